"""Lengths of documents, and how they become the micro-batches of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.basics.errors import ScenarioError
from simulator.scenario.load import load_scenario
from simulator.step.lengths import (
    Batches,
    Batching,
    Lengths,
    MicroBatch,
    _packed,
    batches,
    most_work,
    read_lengths,
)

LOGNORMAL = Lengths(distribution="lognormal", median=900, sigma=1.2)
BATCHINGS: tuple[Batching, ...] = ("pad", "pad_to_longest", "bucket", "pack", "pack_balanced")


def scenario(**training: Any) -> dict[str, Any]:
    keys = {"model": "gpt2", "seq_len": 1024, "precision": "bf16"} | training
    return {"name": "documents", "cluster": {"topology": "dgx_h100", "world_size": 8}, "training": keys}


def documents_of(made: Batches) -> list[int]:
    """Return every rank's documents, sorted."""
    micros = [micro for rank in made for micro in rank]
    return sorted(d for micro in micros for d in micro.documents or (micro.seq_len,) * micro.sequences)


@pytest.mark.parametrize("batching", BATCHINGS)
def test_every_rank_has_its_micro_batches_and_no_document_is_longer_than_a_sequence(batching: Batching) -> None:
    made = batches(LOGNORMAL, batching, 4096, 2, (8, 3))
    assert [len(rank) for rank in made] == [3] * 8
    for micro in (micro for rank in made for micro in rank):
        assert micro.sequences == 2
        assert 0 < micro.used <= micro.tokens <= 2 * 4096
        assert sum(micro.documents) in (0, micro.used)
        assert max(micro.documents, default=0) <= 4096


def test_equal_seeds_draw_equal_documents() -> None:
    other = LOGNORMAL.replaced(seed=1)
    assert batches(LOGNORMAL, "pack", 4096, 1, (4, 2)) == batches(LOGNORMAL.replaced(), "pack", 4096, 1, (4, 2))
    assert batches(other, "pack", 4096, 1, (4, 2)) != batches(LOGNORMAL, "pack", 4096, 1, (4, 2))


def test_lengths_have_the_median_and_the_deviation_of_the_distribution() -> None:
    drawn = np.log(LOGNORMAL.source(100_000, np.random.default_rng(0)))
    assert np.exp(np.median(drawn)) == pytest.approx(900, rel=0.02)
    assert np.std(drawn) == pytest.approx(1.2, rel=0.01)


def test_weights_of_a_histogram_are_shares_of_documents() -> None:
    drawn = Lengths(histogram={100: 3.0, 200: 1.0}).source(10_000, np.random.default_rng(0))
    assert np.mean(drawn == 100) == pytest.approx(0.75, abs=0.02)


def test_packing_puts_each_document_into_the_fullest_sequence_with_room() -> None:
    # Documents of 60 and 40 tokens fill sequences of 100 exactly, if any are drawn of both.
    made = batches(Lengths(histogram={60: 1.0, 40: 1.0}, seed=3), "pack", 100, 1, (4, 4))
    full = [micro for rank in made for micro in rank if micro.documents == (60, 40)]
    assert len(full) > 8
    assert all(micro.documents in ((60, 40), (60,), (40, 40)) for rank in made for micro in rank)


def test_a_bucket_has_sequences_of_like_length() -> None:
    pad, bucket = (batches(LOGNORMAL, name, 4096, 8, (4, 4)) for name in ("pad_to_longest", "bucket"))
    wasted = [sum(micro.tokens - micro.used for rank in made for micro in rank) for made in (pad, bucket)]
    assert wasted[1] < wasted[0] / 3


@pytest.mark.parametrize("seed", range(20))
def test_balancing_never_gives_a_rank_more_than_packing_does(seed: int) -> None:
    lengths = LOGNORMAL.replaced(seed=seed)
    plain, balanced = (batches(lengths, name, 8192, 2, (8, 4)) for name in ("pack", "pack_balanced"))
    assert most_work(balanced) <= most_work(plain)
    assert documents_of(balanced) == documents_of(plain)


def test_a_sequence_that_is_one_document_counts_as_unpacked() -> None:
    [[micro]] = batches(Lengths(histogram={512: 1.0}), "pack", 512, 1, (1, 1))
    assert micro == MicroBatch(1, 512, 512)
    assert micro.pairs == 512**2


def test_a_file_has_lengths_with_counts(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("length,count\n10,3\n20,1\n10,1\n")
    assert read_lengths(str(path)) == {10: 4.0, 20: 1.0}
    drawn = batches(Lengths(file="lengths.csv").located(tmp_path), "pad_to_longest", 1024, 1, (8, 8))
    assert {micro.seq_len for rank in drawn for micro in rank} == {16, 24}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tokens\n10\n", "line 1: got tokens; must have the column length"),
        ("length\n10\nmany\n", "line 3: needs a length of at least 1, and a positive count"),
        ("length,count\n0,1\n", "line 2: needs a length"),
        ("length\n", "has no lengths"),
    ],
)
def test_a_wrong_line_of_a_file_is_named(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=told):
        load_scenario(scenario(lengths={"file": str(path)}))


@pytest.mark.parametrize(
    ("training", "told"),
    [
        ({"lengths": {}}, "needs one of distribution, file and histogram; got none"),
        ({"lengths": {"histogram": {512: 1}, "file": "a.csv"}}, "got file and histogram"),
        ({"lengths": {"distribution": "lognormal", "median": 900}}, "write all three, or none"),
        ({"lengths": {"histogram": {0: 1}}}, "training.lengths.histogram"),
        ({"lengths": {"histogram": {512: 1}}, "tokens_used": 0.5}, "follows from lengths and batching"),
        (
            {"lengths": {"histogram": {512: 1}}, "numerics": True, "batching": "pad"},
            "a real training packs documents into one sequence a micro-batch",
        ),
        (
            {"lengths": {"histogram": {512: 1}}, "batching": "bucket", "parallelism": {"tp": 2}},
            "exchange micro-batches of unequal size under batching bucket",
        ),
        ({"lengths": {"histogram": {512: 1}}, "batching": "stack"}, "got 'stack'"),
        (
            {"lengths": {"histogram": {512: 1}}, "micro_batch_size": 10**6},
            "sequences, whose documents are drawn one by one",
        ),
    ],
)
def test_wrong_keys_are_told(training: dict[str, Any], told: str) -> None:
    with pytest.raises(ScenarioError, match=told):
        load_scenario(scenario(**training))


def test_batching_without_lengths_is_told_to_be_without_effect() -> None:
    (line,) = (line for line in load_scenario(scenario(batching="pad")).warnings if "batching" in line)
    assert "every document has seq_len tokens; write lengths" in line


def test_a_plan_is_for_documents_of_one_length() -> None:
    keys = scenario(lengths={"histogram": {512: 1}}) | {"plan": {"global_batch": "64seq"}}
    with pytest.raises(ScenarioError, match="a plan is for documents of one length"):
        load_scenario(keys)


def test_packing_takes_the_fullest_sequence_with_room_among_equals_the_first() -> None:
    """Best fit decreasing, by a search over all sequences for each document."""
    generator = np.random.default_rng(0)
    for _ in range(50):
        documents = generator.integers(1, 17, 60).tolist()
        rows: list[list[int]] = [[] for _ in range(20)]
        left = [16] * 20
        for tokens in sorted(documents, reverse=True):
            able = [row for row in range(20) if left[row] >= tokens]
            if able:
                row = min(able, key=lambda place: (left[place], place))
                rows[row].append(tokens)
                left[row] -= tokens
        assert _packed(documents, 20, 16) == rows
