"""The table of measured steps of models cut over ranks: it reads, it plans, and its errors are counted rightly."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from simulator.basics.errors import UnknownNameError
from simulator.basics.measured_tables import read_table
from simulator.calibration.training_runs import cache as kept
from simulator.calibration.training_runs import validation_tables
from simulator.calibration.training_runs.cache import play_on
from simulator.calibration.training_runs.cut_rows import all_measured, measured_cut
from simulator.calibration.training_runs.fine_tuning_rows import measured_fine_tuning
from simulator.calibration.training_runs.playing import PlayedRow, frameworks, play_row, play_rows
from simulator.calibration.training_runs.recipe_rows import measured_recipes
from simulator.calibration.training_runs.rows import MeasuredRow, cluster_of, measured, step_of
from simulator.calibration.training_runs.summary import by, by_source
from simulator.engine.play import play
from simulator.findings.measured_range import measured_runs
from simulator.step.plan import plan_step
from tests.commands import commands_in
from tools.validation.cross_validation import play_unseen

CELLS = read_table("training_cut.csv")
ROWS = measured_cut()
KNOWN = frameworks()


def test_every_source_has_its_rows() -> None:
    assert Counter(row.table for row in ROWS) == {
        "vtrain": 73, "vtrain_composed": 721, "megatron_sc21": 16, "nanotron_cut": 405, "dgxc": 32, "simumax": 19,
        "llmq": 16, "internevo": 24, "mlperf": 5, "torchtitan_cut": 4,
    }  # fmt: skip
    assert len(all_measured()) == len(measured()) + len(ROWS) + len(measured_fine_tuning()) + len(measured_recipes())
    assert len(all_measured("dgxc", every=5)) == 7
    with pytest.raises(UnknownNameError, match="did you mean 'simumax'"):
        measured_cut("simumx")


def test_the_validated_range_has_the_measured_schedules() -> None:
    """An empty cell is a run without a pipeline, which counts as 1f1b."""
    timed = Counter(row["schedule"] or "1f1b" for row in CELLS if row["how"] == "timed")
    runs = Counter(run.schedule for run in measured_runs())
    assert len(timed) > 1
    # The runs of the other tables have no pipeline.
    assert {name: count for name, count in runs.items() if name != "1f1b"} == {"interleaved": timed["interleaved"]}
    assert {run.schedule for run in measured_runs() if run.virtual_stages > 1} == {"interleaved"}


def test_unseen_rows_keep_their_order_and_differ_where_a_constant_was_fitted_to_them() -> None:
    """GeForce cards' and one H100's load were fitted to llmq's rows: unseen, they take other chips' and are slower."""
    rows = measured_cut("llmq")[::5]
    played = play_rows(rows, KNOWN, jobs=1)
    unseen = play_unseen(played, KNOWN, jobs=1)
    assert [outcome.row for outcome in unseen] == list(rows)
    for own, other in zip(played, unseen, strict=True):
        assert other.step_time > own.step_time


def test_steps_of_llmq_are_within_a_tenth_without_a_number_of_its_own_for_kernels() -> None:
    """Twelve rows of 16 within 3 %: facts of its code, measured matmuls and the H100's known load suffice."""
    played = play_rows(measured_cut("llmq"), KNOWN, jobs=1)
    found = sorted(abs(outcome.time_error) for outcome in played)
    assert found[-1] < 0.10
    assert found[11] < 0.03
    for gpu in ("rtx_4090", "h100_sxm"):
        assert median(abs(outcome.time_error) for outcome in played if outcome.row.gpu == gpu) < 0.02


def test_composed_rows_are_told_from_timed_ones() -> None:
    assert {row.table for row in ROWS if not row.timed} == {"vtrain_composed"}
    assert all(row.table != "vtrain_composed" for row in ROWS if row.timed)


@pytest.mark.parametrize(("cells", "row"), list(zip(CELLS, ROWS, strict=True))[::20])
def test_sizes_multiply_out_and_what_is_assumed_is_a_column(cells: dict[str, str], row: MeasuredRow) -> None:
    cut = row.parallelism
    assert row.replicas == int(cells["dp"])
    assert cut.tp * cut.pp * cut.cp * row.replicas == row.gpus
    assert row.replicas * row.micro_batch_size * row.accumulation == int(cells["global_batch"])
    assert not cut.layers_of_stages or sum(cut.layers_of_stages) == row.transformer.num_layers
    assert row.step_time == pytest.approx(float(cells["step_time_s"]))
    assert set(row.assumed) <= set(cells)
    assert row.source


def test_step_times_follow_from_what_the_source_printed() -> None:
    for cells, row in zip(CELLS, ROWS, strict=True):
        figure, unit = cells["printed"].split()
        assert float(figure) == pytest.approx(PRINTED[unit](row), rel=1e-3), row.name


def hardware_flops(row: MeasuredRow) -> float:
    """Narayanan et al., SC21, equation 3: with the forward pass run again, of a GPU and second [TFLOP/s]."""
    model, s = row.transformer, row.seq_len
    sequences, h, layers = row.replicas * row.micro_batch_size * row.accumulation, model.hidden_size, model.num_layers
    flops = 96 * sequences * s * layers * h**2 * (1 + s / (6 * h) + model.vocab_size / (16 * layers * h))
    return flops / row.step_time / row.gpus / 1e12


PRINTED = {
    "s": lambda row: row.step_time,
    "tokens/s/GPU": lambda row: row.tokens_per_s / row.gpus,
    "TFLOP/s/GPU": hardware_flops,
}


def kinds(row: MeasuredRow) -> tuple[object, ...]:
    cut = row.parallelism
    return row.table, row.precision.matmul, row.sharding, cut.tp > 1, cut.pp > 1, cut.cp > 1, cut.ep > 1, row.timed


SAMPLE = tuple({kinds(row): row for row in reversed(ROWS) if row.gpus <= 64}.values())


@pytest.mark.parametrize("row", SAMPLE, ids=lambda row: f"{row.table} {row.name}")
def test_a_row_of_each_kind_is_planned(row: MeasuredRow) -> None:
    step = step_of(row, KNOWN[row.framework], min(row.accumulation, 2 * row.parallelism.pp))
    planned = plan_step(cluster_of(row.gpu, row.gpus, (), row.topology), step)
    assert planned.tokens == row.seq_len * row.micro_batch_size * step.accumulation * row.replicas


def test_stages_of_a_shape_are_the_first_layers_of_a_catalogs_model() -> None:
    slice_of = next(row for row in ROWS if row.table == "simumax" and row.model.startswith("deepseek_v3"))
    model = slice_of.transformer
    assert (model.num_layers, model.dense_layers, model.num_experts, model.hidden_size) == (4, 1, 256, 7168)


def test_a_pipeline_is_foretold_from_two_and_three_micro_batches_a_rank() -> None:
    row = next(row for row in ROWS if row.parallelism.pp == 4 and row.gpus == 8 and row.accumulation == 16)
    planned = plan_step(cluster_of(row.gpu, row.gpus, (), row.topology), step_of(row, KNOWN[row.framework]))
    whole = play("auto", planned.program, cluster_of(row.gpu, row.gpus, (), row.topology), limit_memory=False)
    assert play_row(row, KNOWN).step_time == pytest.approx(whole.end, rel=1e-9)


def outcome(time: float, memory: float | None, table: str = "vtrain", *, refused: bool = False) -> PlayedRow:
    """A row whose step is played so many times as long as measured, with so many times the memory."""
    row = replace(ROWS[0], table=table, peak=None if memory is None else 40e9)
    return PlayedRow(row, row.step_time * time, 40e9 * (memory or 1.0), 80 * 10**9, 0.0, refused)


def test_errors_of_a_source_are_those_of_a_table_made_by_hand() -> None:
    played = [outcome(1.1, None), outcome(0.7, 0.9), outcome(1.2, 0.8, refused=True), outcome(2.0, 1.5, "dgxc")]
    vtrain, dgxc = by_source(played)
    assert (vtrain.time.name, vtrain.time.count, dgxc.time.count) == ("vtrain", 3, 1)
    assert vtrain.time.median == pytest.approx(0.2)  # of 10, 30 and 20 per cent
    assert vtrain.time.most == pytest.approx(0.3)
    assert vtrain.time.bias == pytest.approx(0.0)
    assert vtrain.memory is not None
    assert (vtrain.memory.count, vtrain.refused) == (2, 1)
    assert vtrain.memory.bias == pytest.approx(-0.15)
    assert dgxc.time.bias == pytest.approx(1.0)
    assert validation_tables.sources(by_source(played)).rows[1] == (
        "dgxc", "1", "100.0%", "100.0%", "+100.0%", "1", "50.0%", "50.0%", "+50.0%", "0",
    )  # fmt: skip
    assert [part.time.name for part in by(played, lambda o: "all")] == ["all"]


def test_the_worst_steps_are_those_off_by_the_largest_factor() -> None:
    found = validation_tables.worst_steps([outcome(1.9, None), outcome(0.4, None), outcome(1.0, None)], 2)
    assert [row[-1] for row in found.rows] == ["-60.0%", "+90.0%"]


def test_rows_that_were_kept_are_not_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, file = all_measured("simumax", every=6), tmp_path / "kept.jsonl"
    calls: list[int] = []
    played = play_on(rows[:3], KNOWN, 1, path=file)
    with file.open("a") as journal:
        journal.write('{"edition": "cut sho\n')

    def noted(left: Sequence[MeasuredRow], *_: object) -> list[tuple[int, PlayedRow]]:
        calls.extend(row.line for row in left)
        return [(place, play_row(row, KNOWN)) for place, row in enumerate(left)]

    monkeypatch.setattr(kept, "each_played", noted)
    assert play_on(rows, KNOWN, 1, path=file)[:3] == played
    assert calls == [row.line for row in rows[3:]]
    # The same line of an edited table is another row.
    play_on([replace(rows[0], seq_len=rows[0].seq_len // 2)], KNOWN, 1, path=file)
    assert calls[len(rows) - 3 :] == [rows[0].line]
    # With other constants of the framework or of the GPUs, the same row has another outcome.
    own = {rows[0].framework: KNOWN[rows[0].framework].with_constants(issue=1e-3)}
    play_on(rows[:1], own, 1, path=file)
    play_on(rows[:1], KNOWN, 1, path=file, changes=(("elementwise", 2.0),))
    assert calls[len(rows) - 2 :] == [rows[0].line] * 2
    # The edition leaves out the topology files, and the outcome depends on them.
    monkeypatch.setattr(kept, "_topologies", lambda: "another")
    play_on(rows[:1], KNOWN, 1, path=file)
    monkeypatch.setattr(kept, "edition", lambda: "another")
    play_on(rows[:1], KNOWN, 1, path=file)
    assert calls[len(rows) - 2 :] == [rows[0].line] * 4


def test_the_command_prints_a_source_and_each_so_manieth_of_its_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator = commands_in(tmp_path, monkeypatch, capsys)
    answer = simulator("validate", "--source", "simumax", "--every", 6, "--jobs", 1, "--kept", "rows.jsonl")
    assert answer.code == 0
    assert answer.out.splitlines()[0] == "4 rows simulated, all timed"
    assert "simumax" in answer.out.splitlines()[4]
    assert answer.out.splitlines()[-1].startswith("4 of 4 rows fit")
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 4
    again = simulator("validate", "--source", "simumax", "--every", 6, "--kept", "rows.jsonl", "--json")
    document = json.loads(again.out)
    assert [(part["time"]["name"], part["time"]["count"]) for part in document["sources"]] == [("simumax", 4)]
    assert simulator("validate", "--source", "nano").code == 2
    # A row that is written as the keys of a step is told with them.
    (lora,) = simulator("validate", "--source", "torchtune", "--every", 20, "--jobs", 1, "--json").data["rows"]
    assert (lora["row"]["table"], lora["row"]["spec"]["seq_len"] > 0) == ("torchtune", True)


def test_an_interrupted_validation_continues_with_the_rows_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator = commands_in(tmp_path, monkeypatch, capsys)
    command = "validate", "--source", "simumax", "--every", 6, "--jobs", 1
    whole = kept.each_played

    def interrupted(*arguments: Any) -> Iterator[tuple[int, PlayedRow]]:
        yield from islice(whole(*arguments), 3)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(kept, "each_played", interrupted)
        stopped = simulator(*command)
    assert stopped.code == 130
    assert "kept in runs/validation.jsonl; the same command simulates the rest" in stopped.err
    file = tmp_path / "runs" / "validation.jsonl"
    assert len(file.read_text().splitlines()) == 3
    played = list[int]()

    def counted(rows: Sequence[MeasuredRow], *more: Any) -> Iterator[tuple[int, PlayedRow]]:
        played.append(len(rows))
        return whole(rows, *more)

    monkeypatch.setattr(kept, "each_played", counted)
    assert simulator(*command).code == 0
    assert played == [1]
    assert len(file.read_text().splitlines()) == 4


def test_memory_is_of_the_kind_that_the_source_prints() -> None:
    """nanotron: bytes reserved by rank 0, on the first of two stages; its last stage, with the logits, needs more."""
    row = next(
        row
        for row in measured_cut("nanotron_cut")
        if row.parallelism.pp == 2 and row.parallelism.tp == 1 and row.accumulation == 1 and row.sharding == "zero1"
    )
    assert row.memory == "reserved by rank 0"
    first, whole = (play_row(replace(row, memory=kind), frameworks()) for kind in (row.memory, "allocated"))
    assert first.peak < 0.8 * whole.peak
    assert row.peak is not None
    assert first.peak == pytest.approx(row.peak, rel=0.15)
