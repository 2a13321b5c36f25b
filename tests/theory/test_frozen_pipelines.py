"""Frozen parts in a pipeline: no gradient of a frozen parameter is computed or sent, and none passes to stages before
the first trained parameter.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, Final

import pytest

from simulator.model.load import load_transformer
from simulator.model.model import modules
from simulator.records.timeline import Timeline
from simulator.step.pipelines.schedule import SCHEDULES
from tests.combinations import accepted, simulated

# Eight layers, two on each of four stages.
MODEL: Final = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 192, "vocab_size": 96, "tie_word_embeddings": False,
}  # fmt: skip
STAGES, MICRO_BATCHES, TOKENS = 4, 8, 32
# A micro-batch's activations between stages, in bfloat16.
MESSAGE: Final = 2 * TOKENS * 64


def timeline(ranks: int = STAGES, **keys: Any) -> Timeline:
    """Simulate a pipeline on both engines."""
    topology = {"builder": "star", "options": {"bandwidth": "25 GB/s", "latency": "5 us"}}
    training = {
        "model": MODEL, "seq_len": TOKENS, "sharding": "ddp", "collectives": "played",
        "gradient_accumulation_steps": MICRO_BATCHES,
    } | keys  # fmt: skip
    training["parallelism"] = {"pp": STAGES} | keys.get("parallelism", {})
    cluster = {"topology": topology, "world_size": ranks, "gpu": "h100_sxm"}
    drawn = accepted({"name": "frozen", "cluster": cluster, "training": training})
    assert drawn is not None
    return simulated(drawn)[0]


def messages(played: Timeline, what: str) -> Counter[int]:
    """Bytes of activations or gradients that each stage receives."""
    found: Counter[int] = Counter()
    for log in played.logs:
        if match := re.match(rf"{what} to stage (\d+) ", log.collective):
            found[int(match[1])] += int(log.nbytes.sum())
    return found


def computed(played: Timeline, *kinds: str) -> set[str]:
    """Units with kernels of these kinds."""
    spans = (span for span in played.spans if span.kind in kinds and span.end > span.start)
    return {re.match(r"embedding|head|layer \d+", span.name)[0] for span in spans}  # type: ignore[index]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1"])
def test_gradients_end_at_the_stage_of_the_first_trained_layer(schedule: str) -> None:
    """Layers 4 and 5 lie on stage 2: stages 0 and 1 run forward alone and receive no gradient."""
    played = timeline(trainable=["layers 4-5", "head"], parallelism={"schedule": schedule})
    assert messages(played, "activations") == dict.fromkeys((1, 2, 3), MICRO_BATCHES * MESSAGE)
    assert messages(played, "gradients") == {2: MICRO_BATCHES * MESSAGE}
    assert computed(played, "forward") == {"embedding", "head", *(f"layer {n}" for n in range(8))}
    assert computed(played, "backward", "recompute") == {"head", "layer 7", "layer 6", "layer 5", "layer 4"}
    weights = computed(played, "weight gradient", "accumulate")
    assert weights == {"head", "layer 4", "layer 5"}
    kept = {event.label for rank in (0, 1) for event in played.allocations.get(rank, ()) if "activ" in event.label}
    assert kept == set()


def test_ranks_of_a_stage_sum_gradients_of_trained_parameters_alone() -> None:
    """A ring of two sends 2 (2 - 1) float32 gradients in total for each trained parameter; sums of norms apart."""
    sizes = {module.name: module.elements for module in modules(load_transformer(MODEL))}
    played = timeline(8, trainable=["layer 4", "layers.7.attention.*"])
    summed = sum(int(log.nbytes.sum()) for log in played.logs if "all_reduce" in log.collective)
    attention = 64 * (64 + 2 * 32) + 64 * 64
    assert summed == 2 * 4 * (sizes["layer 4"] + attention)


@pytest.mark.parametrize("strategy", ["zero1", "zero3"])
def test_sharded_states_of_trained_parameters_alone_are_exchanged(strategy: str) -> None:
    """Rank pairs scatter (2 - 1) float32 gradients: once, or in each micro-batch."""
    head = next(module.elements for module in modules(load_transformer(MODEL)) if module.name == "head")
    played = timeline(8, trainable=["head"], sharding=strategy)
    scattered = sum(int(log.nbytes.sum()) for log in played.logs if log.collective.startswith("scatter"))
    assert scattered == 4 * head * (MICRO_BATCHES if strategy == "zero3" else 1)
    # Parameters are gathered for forward passes and for the head's backward passes; no stage gathers others backward.
    again = {log.collective for log in played.logs if "backward" in log.collective}
    assert all("head" in name for name in again)
    assert messages(played, "gradients") == {}


def test_adapters_pass_no_gradient_to_a_stage_with_the_embedding_alone() -> None:
    """The first stage has no adapter; the gradient ends at the first layer, on stage 1."""
    shape = {"stages": [0, 3, 3, 2]}
    plain, adapted = (timeline(parallelism=shape, **lora) for lora in ({}, {"lora": {"rank": 4}}))
    assert set(messages(plain, "gradients")) == {0, 1, 2}
    assert messages(adapted, "gradients") == dict.fromkeys((1, 2), MICRO_BATCHES * MESSAGE)


def test_a_tied_table_is_summed_over_both_ends_only_if_it_is_trained() -> None:
    """Both ends hold the table; its two gradients are added if it has any."""
    tied = MODEL | {"tie_word_embeddings": True}
    whole, parts, frozen = (
        [log for log in timeline(model=tied, trainable=one).logs if log.collective.startswith("sum the shared")]
        for one in ("all", ["embedding", "head"], ["layers 2-3"])
    )
    assert len(whole) == len(parts) == 1
    assert parts[0].nbytes.sum() == whole[0].nbytes.sum() == 2 * 4 * 96 * 64
    assert frozen == []


SHARDINGS = [
    "ddp",
    {"strategy": "zero3", "reshard_after_forward": False},
    # Stages without backward kernels free the shards that forward passes kept on a mesh of two ranks.
    {"strategy": "zero3", "reshard_after_forward": 2},
]


@pytest.mark.one_of(3)
@pytest.mark.parametrize("sharding", SHARDINGS)
@pytest.mark.parametrize("name", SCHEDULES.names())
def test_every_schedule_runs_with_frozen_stages(name: str, sharding: Any) -> None:
    chunks = (
        {} if SCHEDULES.find(name).chunks else {"virtual_stages": 2 if name in ("interleaved", "looped_bfs") else 1}
    )
    played = timeline(16, trainable=["layers 6-7"], sharding=sharding, parallelism={"schedule": name, **chunks})
    assert computed(played, "backward") == {"head", "layer 7", "layer 6"}
