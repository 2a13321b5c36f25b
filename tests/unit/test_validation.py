"""The table of measured steps, constants of frameworks and what they do to a step, the tables, the pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import pytest

from simulator.basics import registry
from simulator.basics.errors import OutOfMemoryError, ScenarioError, UnknownNameError
from simulator.basics.measured_tables import read_table
from simulator.calibration.table import Table
from simulator.calibration.training_runs.cut_rows import all_measured
from simulator.calibration.training_runs.playing import PlayedRow, frameworks, play_rows
from simulator.calibration.training_runs.rows import Changes, MeasuredRow, cluster_of, measured, step_of
from simulator.calibration.training_runs.summary import apart, by_group, errors, of_memory, worst
from simulator.cluster.gpu_file import load_gpu
from simulator.engine.jitter import Jitter
from simulator.model.head import logits_memory
from simulator.model.kernel import Attention, Elementwise, Matmul
from simulator.model.layer import layer_operations
from simulator.model.load import load_model
from simulator.model.operation import Batch, Operation
from simulator.run.training import play_step
from simulator.step.framework import BARE, Framework, Sustained, load_framework
from simulator.step.kernel_timer import KernelTimer
from simulator.step.kernels.framework_operations import narrow_casts, second_maps, until_needed
from simulator.step.kernels.kernel_time import duration
from simulator.step.kernels.losses import backward_bytes, loss_operations
from simulator.step.precision import MIXED, Precision
from simulator.step.sharding import Sharding
from simulator.step.spec import TrainingStep, bare_step
from simulator.step.units import units
from tools.validation import cut_text as cut_page_text
from tools.validation import error_plot as plot_validation
from tools.validation import machines_text, training_text
from tools.validation.training_page import finding

H100 = load_gpu("h100_sxm")
MPT = load_model("mpt_1b", 2048)


def step(framework: Framework = BARE, **facts: object) -> TrainingStep:
    return bare_step(MPT, 2048, 4, framework=framework, **facts)


def test_every_row_names_its_source_and_recomputes_its_step_time() -> None:
    rows = measured()
    assert len(rows) == 120 + 9 + 13
    for row in rows:
        assert row.source
        tokens = row.seq_len * row.micro_batch_size * row.accumulation * row.gpus
        assert row.step_time == pytest.approx(tokens / row.tokens_per_s)


def test_a_table_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'foundry'"):
        measured("foundy")


@pytest.mark.parametrize("name", registry.names("framework"))
def test_every_framework_gives_a_source_for_each_of_its_figures(name: str) -> None:
    framework = load_framework(name)
    assert framework.name == name
    assert framework.facts["sources"]
    assert all(framework.facts["sources"][f"sustained.{chip}"] for chip in framework.sustained)
    assert 0.0 <= framework.kernels.attention_masked <= 1.0
    assert all(held.time >= 1.0 for held in framework.sustained.values())


def test_a_framework_of_a_path_has_the_name_of_its_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("kernels: {row_scaled: 2.0}\n")
    assert load_framework(mine) == load_framework(str(mine))
    assert load_framework(mine).name == "mine"


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"kernels": {"attention_masked": 1.5}}, "got 1.5; must be at most 1"),
        ({"kernels": {"row_scaled": 0.0}}, "more than 0"),
        ({"sharding": {"parameter_bytes": -1.0}}, "at least 0"),
        ({"kernels": {"row_scaledd": 1.0}}, "did you mean 'row_scaled'"),
        ({"row_scaled": 1.0}, "row_scaled: unknown key; write it under kernels$"),
        ({"workspaces": {"other": 1e6}}, "workspaces: unknown key; write it under memory$"),
        ({"host": {"router": {"forward": 24}}}, r"host\.router: unknown key; write it under host\.parts$"),
        ({"host": {"isue": 1e-6}}, "did you mean 'issue'"),
    ],
)
def test_a_wrong_framework_is_told_in_one_line(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ScenarioError, match=told) as caught:
        load_framework(keys)
    assert "\n" not in str(caught.value)


def test_sustained_load_follows_the_watts_of_a_board_and_takes_the_middle_where_a_chip_is_not_known() -> None:
    known = {"A100": Sustained(1.1, 400.0, 312e12), "H100": Sustained(1.2, 700.0, 989.4e12)}
    framework = Framework(sustained=known)
    assert framework.matmul_time(H100) == pytest.approx(1.2)
    weaker = replace(H100, facts={**H100.facts, "power": 500.0})
    # Voltage falls less than the frequency: power is proportional to the frequency's square.
    assert framework.matmul_time(weaker) == pytest.approx(1.2 * (700 / 500) ** (1 / 2))
    stronger = replace(H100, facts={**H100.facts, "power": 770.0})
    # Frequency and voltage rise together: power is proportional to the frequency's cube.
    assert framework.matmul_time(stronger) == pytest.approx(1.2 / (770 / 700) ** (1 / 3))
    boundless = replace(H100, facts={**H100.facts, "power": 1300.0})
    assert framework.matmul_time(boundless) == 1.0
    assert framework.matmul_time(load_gpu("v100_sxm_32gb")) == pytest.approx(1.2)
    assert BARE.matmul_time(H100) == 1.0


def test_gpus_with_the_chip_of_another_have_its_loss_by_their_own_watts() -> None:
    known = {"A100": Sustained(1.1, 400.0, 312e12), "H100": Sustained(1.2, 700.0, 989.4e12)}
    framework = Framework(sustained=known)
    times = {name: framework.matmul_time(load_gpu(name)) for name in ("h200", "h800_sxm", "a800_sxm_80gb")}
    assert times == pytest.approx({"h200": 1.2, "h800_sxm": 1.2, "a800_sxm_80gb": 1.1})
    # 500 W for 148 TFLOP/s, and 900 W or 550 W for an H100's peak.
    assert framework.matmul_time(load_gpu("h20")) == 1.0
    assert framework.matmul_time(load_gpu("gh200_144gb")) == pytest.approx(1.2 * (700 / 900) ** (1 / 3))
    assert framework.matmul_time(load_gpu("gh200_96gb")) == pytest.approx(1.2 * (700 / 550) ** (1 / 2))
    # Turing has no bfloat16: 250 W for 53.8 TFLOP/s in float16.
    geforce = Framework(sustained={"GeForce": Sustained(1.0, 450.0, 165.2e12)})
    assert geforce.matmul_time(load_gpu("rtx_2080_ti")) == 1.0


def test_eight_bits_need_power_by_their_best_rate_or_lose_what_was_measured() -> None:
    """1402.6 of 1978.9 TFLOP/s in eight bits, 794.5 of 989.4 in bfloat16 (best matmuls of an H100)."""
    derived = Framework(sustained={"H100": Sustained(1.2, 700.0, 989.4e12)})
    share = (1402.6 / 1978.9) / (794.5 / 989.4)
    assert derived.matmul_time(H100, "float8_e4m3fn") == pytest.approx(1.2 * share)
    measured = Framework(sustained={"H100": Sustained(1.2, 700.0, 989.4e12, 1.3)})
    assert measured.matmul_time(H100, "float8_e4m3fn") == 1.3
    assert measured.matmul_time(H100) == pytest.approx(1.2)


def test_each_halving_of_the_bits_saves_the_same_share_of_power() -> None:
    """1.5 in 16 bits and 1.35 in eight: 0.9 of it, so 0.81 in four."""
    load = Sustained(1.5, 1000.0, 2250e12, 1.35)
    expected = {"bfloat16": 1.5, "float8_e4m3fn": 1.35, "float4_e2m1fn": 1.215}
    framework, b200 = Framework(sustained={"B200": load}), load_gpu("b200")
    assert {name: framework.matmul_time(b200, name) for name in expected} == pytest.approx(expected)
    assert Sustained(1.5, 1000.0, 2250e12).narrow_time(4) is None


def test_a_rack_s_board_with_a_fifth_more_watts_is_hardly_faster_than_the_same_chip_s_other_board() -> None:
    """Llama 3 8B in eight bits on 8 GPUs, the whole step one CUDA graph: 31,357 tokens/s a GPU on GB200, 29,994 on B200
    (Megatron-Bridge 067f987d, docs/performance-summary-archive.md, 25.09), and 31,508 and 30,624 (25.11).
    """
    times = {gpu: load_framework("nemo").matmul_time(load_gpu(gpu), "float8_e4m3fn") for gpu in ("b200", "gb200")}
    assert 1.0 < times["b200"] / times["gb200"] < 31357 / 29994


def test_scales_for_each_row_make_matmuls_in_eight_bits_slower_and_nothing_else() -> None:
    framework, eight = BARE.with_constants(row_scaled=1.35), Precision(matmul="float8_e4m3fn").resolved()
    tensor, row = (
        KernelTimer(H100, step(framework, precision=eight.replaced(scaling=scaling))) for scaling in ("tensor", "row")
    )
    matmul, attention = Matmul("", 8192, 4096, 4096), Attention("", 2, 16, 16, 2048, 128, causal=True, backward=True)
    bare = duration(matmul, H100, "float8_e4m3fn")
    assert row.seconds(matmul) - tensor.seconds(matmul) == pytest.approx(0.35 * bare)
    assert row.seconds(attention) == tensor.seconds(attention)
    wide = KernelTimer(H100, step(framework, precision=Precision(scaling="row").resolved()))
    assert wide.seconds(matmul) == pytest.approx(duration(matmul, H100, "bfloat16"))


def test_scales_for_each_block_make_weight_gradients_slowest() -> None:
    # Medians of the three measured shapes; 1 x 128 by 128 x 128, and 1 x 128 by 1 x 128 for weight gradients.
    def measured(how: str) -> float:
        times = {name: _times(name) for name in (how, "float8 tensor fast")}
        return median(times[how][shape] / times["float8 tensor fast"][shape] for shape in times[how])

    tensor, block = (
        KernelTimer(H100, step(Framework(), precision=Precision(matmul="float8_e4m3fn", scaling=scaling).resolved()))
        for scaling in ("tensor", "block")
    )
    bare = duration(Matmul("", 8192, 4096, 4096), H100, "float8_e4m3fn")
    found = {}
    for of_weights, how in ((False, "float8 block 1x128_128x128"), (True, "float8 block 1x128_1x128")):
        kernel = Matmul("", 8192, 4096, 4096, of_weights=of_weights)
        found[how] = 1 + (block.seconds(kernel) - tensor.seconds(kernel)) / bare
        # Constants of blocks are fitted to another library's kernels.
        assert found[how] == pytest.approx(measured(how), abs=0.03)
    plain, gradient = found.values()
    assert gradient / plain == pytest.approx(1.41 / 1.17)


def _times(how: str) -> dict[tuple[str, str, str], float]:
    """Return the times of measured matmuls by shape [us]."""
    rows = [row for row in read_table("kernels.csv") if row["how"] == how]
    return {(row["m"], row["n"], row["k"]): float(row["us"]) for row in rows}


@pytest.mark.parametrize(
    ("framework", "kernel", "factor"),
    [
        (Framework(sustained={"H100": Sustained(1.5, 700.0, 989.4e12)}), Matmul("", 4096, 4096, 4096), 1.5),
        (BARE.with_constants(kernel_time=3.0), Elementwise("", 1e9, 1e9), 3.0),
    ],
)
def test_a_constant_multiplies_the_time_of_its_kind_of_kernel_alone(
    framework: Framework, kernel: Matmul | Elementwise, factor: float
) -> None:
    expected = factor * duration(kernel, H100, "bfloat16")
    assert KernelTimer(H100, step(framework)).cost([kernel]).alone == pytest.approx(expected)


def test_attention_lies_between_the_causal_half_and_the_full_square() -> None:
    kernel = Attention("", 2, 16, 16, 4096, 128, causal=True, backward=False)
    half = duration(kernel, H100, "bfloat16")
    whole = duration(replace(kernel, causal=False), H100, "bfloat16")
    found = KernelTimer(H100, step(BARE.with_constants(attention_masked=0.25))).cost([kernel]).alone
    assert found == pytest.approx(half + 0.25 * (whole - half))


def test_kernels_that_a_compiler_merges_cost_their_share_of_the_traffic() -> None:
    kernel = Elementwise("", 1e9, 1e9, fusible=True)
    timer = KernelTimer(H100, step(BARE.with_constants(compiled=0.5), compile=True))
    assert timer.cost([kernel]).alone == pytest.approx(0.5 * duration(kernel, H100, "bfloat16"))


def test_copies_around_collectives_are_paid_by_several_ranks_and_not_by_one() -> None:
    given = step(BARE.with_constants(parameter_bytes=20.0))
    alone, several = units(given, H100, 1), units(given, H100, 8)
    for one, many in zip(alone, several, strict=True):
        copies = duration(Elementwise("", 10.0 * one.elements, 10.0 * one.elements), H100, "bfloat16")
        assert many.copies is not None
        assert many.copies.alone == pytest.approx(copies)
        assert one.copies is None
        assert one.backward == many.backward


def test_a_fused_loss_passes_over_the_logits_three_times_and_keeps_them() -> None:
    batch = Batch(4, 2048)
    operations = loss_operations(step(Framework(loss="fused")), batch)
    logits = batch.tokens * MPT.vocab_size * 2
    loss = operations[-1]
    assert [op.name for op in operations] == ["norm", "logits", "cross entropy"]
    assert sum(kernel.nbytes(2) for kernel in (*loss.forward, *loss.backward)) == 3 * logits
    assert [saved.nbytes for saved in loss.saved] == [logits, 8 * batch.tokens]


def matmul_flops(operations: Sequence[Operation]) -> float:
    return sum((k.flops for op in operations for k in op.forward if isinstance(k, Matmul)), 0.0)


def test_recomputation_that_ends_early_leaves_out_a_third_of_an_mpt_layers_matmuls() -> None:
    operations = layer_operations(MPT, Batch(4, 2048))
    assert matmul_flops(until_needed(operations)) == pytest.approx(matmul_flops(operations) * 2 / 3)


def test_full_checkpointing_that_ends_early_is_shorter() -> None:
    times = [
        sum(
            u.recompute.alone
            for u in units(step(BARE.with_constants(stops_early=early), activation_checkpointing="full"), H100)
            if u.recompute
        )
        for early in (False, True)
    ]
    assert times[1] < 0.75 * times[0]


def test_selective_checkpointing_of_split_maps_runs_keys_and_up_again() -> None:
    llama = load_model("llama3_8b", 8192)
    batch = Batch(1, 8192)
    keys, up = second_maps(llama, batch)
    assert (keys.n, up.n) == (llama.kv_width, llama.ffn_size)
    assert len(second_maps(MPT, batch)) == 1
    given = bare_step(llama, 8192, 1, activation_checkpointing="selective_op")
    plain, split = (
        units(replace(given, framework=BARE.with_constants(split_maps=fact)), H100)[1] for fact in (False, True)
    )
    assert plain.recompute is not None
    assert split.recompute is not None
    assert split.recompute.flops - plain.recompute.flops == keys.flops + up.flops


@pytest.mark.parametrize("policy", ["full", "attention", "selective_op", "feed_forward", "activation"])
@pytest.mark.parametrize("split", [False, True])
def test_a_policy_that_names_all_layers_is_the_policy(policy: str, split: bool) -> None:
    llama = load_model("llama3_8b", 8192)
    given = bare_step(llama, 8192, 1, attention="standard", framework=BARE.with_constants(split_maps=split))
    listed = ((policy, tuple(range(llama.num_layers))),)
    assert units(given.with_keys(activation_checkpointing=listed), H100) == units(
        given.with_keys(activation_checkpointing=policy), H100
    )


def test_buffers_of_the_loss_are_its_float32_gradients_and_half_of_them_compiled() -> None:
    batch = Batch(2, 2048)
    elements = batch.tokens * MPT.vocab_size
    assert backward_bytes(step(Framework(loss="separate")), batch) == 8 * elements
    assert backward_bytes(step(Framework(loss="separate"), compile=True), batch) == 4 * elements
    assert backward_bytes(step(Framework(loss="fused")), batch) == 0
    assert logits_memory(MPT, batch).log_probabilities == 4 * elements
    assert units(step(Framework(loss="separate")), H100)[-1].recomputed == 8 * 4 * 2048 * MPT.vocab_size


def test_eight_bit_matmuls_pay_for_their_casts_and_attention_keeps_its_dtype() -> None:
    eight = step(precision=Precision(matmul="float8_e4m3fn").resolved())
    matmul = Matmul("", 8192, 4096, 4096)
    operands = 8192 * 4096 + 4096 * 4096
    assert narrow_casts(matmul).nbytes(1) == 3 * operands
    expected = duration(matmul, H100, "float8_e4m3fn") + duration(narrow_casts(matmul), H100, "bfloat16")
    assert KernelTimer(H100, eight).cost([matmul]).alone == pytest.approx(expected)
    attention = Attention("", 2, 16, 16, 2048, 128, causal=True, backward=True)
    assert KernelTimer(H100, eight).cost([attention]).alone == duration(attention, H100, "bfloat16")
    assert units(eight, H100)[-1].forward == units(step(), H100)[-1].forward


@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_buffers_of_the_loss_are_given_back(strategy: str) -> None:
    given = step(Framework(loss="separate"), sharding=Sharding(strategy=strategy))
    timeline = play_step(cluster_of("h100_sxm", 2), given, Jitter(), limit_memory=False).timeline
    peak = max(timeline.memory, key=lambda sample: sample.nbytes)
    assert dict(peak.by_category)["loss buffers"] == 8 * 4 * 2048 * MPT.vocab_size


def small(line: int = 112) -> MeasuredRow:
    """13 B on one node, two sequences a GPU."""
    return next(row for row in measured("foundry") if row.line == line)


def test_a_row_is_played_with_its_micro_batches_foretold_from_three() -> None:
    row = replace(small(122), gpus=2)
    known = frameworks()
    three, six = play_rows([replace(row, accumulation=3), replace(row, accumulation=6)], known, jobs=1)
    nine = play_rows([replace(row, accumulation=9)], known, jobs=1)[0]
    assert six.step_time - three.step_time == pytest.approx(nine.step_time - six.step_time)
    assert three.fits


def test_rows_played_on_two_processes_are_those_played_on_one() -> None:
    rows = [replace(small(line), gpus=2) for line in (139, 148)]
    calls: list[int] = []
    alone = play_rows(rows, frameworks(), jobs=1)
    assert play_rows(rows, frameworks(), jobs=2, advance=lambda: calls.append(1)) == alone
    assert len(calls) == 2


def test_a_step_whose_states_alone_exceed_memory_is_refused() -> None:
    row = next(row for row in measured("foundry") if row.model == "mpt_30b")
    given = step_of(replace(row, gpus=2), frameworks()["llm_foundry"], accumulation=1)
    # Adam's 12 bytes a parameter over two ranks: 180 GB on a GPU of 80 GB.
    with pytest.raises(OutOfMemoryError):
        play_step(cluster_of("h100_sxm", 2), given, Jitter(), limit_memory=True)


EIGHT = MIXED.replaced(grads="float32", matmul="float8_e4m3fn")


def outcome(error: float, **facts: object) -> PlayedRow:
    row = replace(small(), **facts)  # type: ignore[arg-type]
    return PlayedRow(row, row.step_time / (1.0 + error), 40e9, H100.hbm_bytes, 0.0)


def test_an_error_is_of_tokens_per_second() -> None:
    found = outcome(0.25)
    assert found.tokens_per_s == pytest.approx(1.25 * found.row.tokens_per_s)
    assert found.error == pytest.approx(0.25)
    assert found.memory_error is None


def test_groups_tell_nodes_and_dtypes_apart_and_the_fitted_rows_together() -> None:
    played = [outcome(0.1), outcome(-0.1, gpus=16), outcome(0.3, precision=EIGHT)]
    found = {group.name: group for group in by_group(played)}
    assert list(found) == [
        "foundry, bf16, all", "foundry, H100, one node", "foundry, H100, several nodes", "foundry, H100, fp8",
    ]  # fmt: skip
    assert found["foundry, bf16, all"].bias == pytest.approx(0.0)
    assert found["foundry, H100, fp8"].median == pytest.approx(0.3)


def test_no_error_cannot_be_summarised() -> None:
    with pytest.raises(ValueError, match="no error"):
        errors("none", [])
    assert of_memory([outcome(0.1)], "foundry") is None


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (replace(outcome(0.3), peak=0.9 * H100.hbm_bytes), "nearly full"),
        (outcome(-0.3, precision=EIGHT), "cast"),
        (outcome(0.3, table="torchtitan", gpus=16), "not stated"),
        (outcome(-0.3, seq_len=32768), "attention"),
        (outcome(-0.3, gpus=16), "nodes"),
        (outcome(-0.3), "kernels"),
    ],
)
def test_the_worst_rows_have_a_reason(found: PlayedRow, told: str) -> None:
    (only, reason), *rest = worst([found])
    assert (only, rest) == (found, [])
    assert told in reason


def test_a_row_slower_than_one_of_longer_sequences_is_told_as_the_sources_puzzle() -> None:
    quick = outcome(0.0, seq_len=4096, tokens_per_s=2 * small().tokens_per_s)
    assert "slower than sequence 4096" in worst([outcome(0.3), quick])[0][1]


def test_constants_of_a_rows_gpu_can_be_changed() -> None:
    row = replace(small(), gpus=2, accumulation=1)
    changes: tuple[Changes, ...] = ((), (("launch", 0.0),), (("attention_2", 1.0),))
    times = [play_rows([row], frameworks(), 1, changes=each)[0].step_time for each in changes]
    assert times[0] > times[1] > times[2]


def test_a_new_constant_fitted_to_steps_does_not_come_silently() -> None:
    """The owners of the steps, by constant; a file without own runs takes a constant over with its owner."""
    owners: dict[str, set[str]] = {}
    for name in registry.names("framework"):
        for key, owner in load_framework(name).facts["fitted_to"].items():
            if owner:
                owners.setdefault(key, set()).add(owner)
    assert owners == {
        "kernels.attention_masked": {"llm_foundry"},
        "kernels.compiled": {"torchtitan"},
        "kernels.row_scaled": {"torchtitan"},
        "host.issue": {"megatron_2021", "nanotron"},
        "host.issue_in_pipeline": {"nanotron"},
        "sharding.per_owner": {"internevo"},
        "sharding.parameter_bytes": {"llm_foundry"},
        "sustained.H100": {"dgxc, llm_foundry, llmq, mlperf, nanotron"},
        "sustained.A100": {"torchtitan, internevo, llm_foundry, megatron_2021"},
        "sustained.B200": {"simumax, mlperf"},
        "sustained.GeForce": {"llmq"},
    }


def test_a_chips_load_is_the_median_of_what_the_sources_of_steps_ask_for() -> None:
    for chip, load in load_framework("nemo").sustained.items():
        if load.by_source:
            assert load.time == pytest.approx(median(load.by_source.values()), abs=0.005), chip


def test_a_single_gpu_waits_for_no_slower_one() -> None:
    load = Sustained(1.3, 700.0, 989.4e12, 1.3, of_one_gpu=1.17)
    framework = Framework(sustained={"H100": load, "A100": Sustained(1.25, 400.0, 312e12)})
    assert framework.on_ranks(8) is framework
    one = framework.on_ranks(1)
    assert one.matmul_time(H100) == one.matmul_time(H100, "float8_e4m3fn") == pytest.approx(1.17)
    assert one.sustained["A100"] == framework.sustained["A100"]


def test_a_table_is_written_for_a_terminal_and_for_a_page() -> None:
    table = Table("title", ("name", "figure"), (("a", "1"), ("bb", "22")))
    assert table.text() == "title\n  name  figure\n  a          1\n  bb        22"
    assert table.markdown() == "| name | figure |\n|---|---|\n| a | 1 |\n| bb | 22 |\n"


@pytest.mark.parametrize(
    ("page", "words"),
    [("measured", machines_text), ("validation", training_text), ("validation_cut", cut_page_text)],
)
def test_a_page_holds_the_words_that_it_is_written_from(page: str, words: ModuleType) -> None:
    text = (Path(__file__).parents[2] / "docs" / f"{page}.md").read_text(encoding="utf-8")
    parts = {name: part for name, part in vars(words).items() if name.isupper() and isinstance(part, str)}
    assert [name for name, part in parts.items() if part not in text] == []


def test_the_picture_has_a_point_for_every_run() -> None:
    groups = [plot_validation.Group("a", (1.0, 2.0), (1.1, 1.9)), plot_validation.Group("b", (3.0,), (9.0,))]
    above, below = plot_validation.figure(groups, "finding").axes
    drawn = [list(line.get_ydata()) for line in above.lines[1:]]  # type: ignore[arg-type]
    assert drawn == [pytest.approx([1.1, 1.9]), [9.0]]
    # Three times as fast as measured: on the edge of the ratio's axis.
    ratios = [list(line.get_ydata()) for line in below.lines[1:]]  # type: ignore[arg-type]
    assert ratios == [pytest.approx([1.1, 0.95]), [], [2.0]]
    with pytest.raises(ValueError, match="no run"):
        plot_validation.figure([], "finding")


def test_every_place_that_counts_measured_runs_counts_the_same() -> None:
    """1,734 rows, 1,013 of them timed, 975 of those undisturbed: README, page and picture say which they mean."""
    rows = all_measured()
    timed = sum(row.timed for row in rows)
    calm = timed - len(apart(rows))
    assert (len(rows), timed, calm) == (1734, 1013, 975)
    root = Path(__file__).parents[2]
    texts = [(root / name).read_text(encoding="utf-8") for name in ("README.md", "docs/validation.md")]
    readme, page = (" ".join(text.split()) for text in texts)
    composed = f"{len(rows) - timed} that their source computed from timed parts"
    assert f"{len(rows):,} training steps ({timed:,} timed, {composed})" in readme
    assert f"{timed:,} measured training steps from public sources" in readme
    assert f"{len(rows):,} rows, of which {timed:,} were timed" in page
    told = f"over {calm} of {timed} timed runs ({timed - calm} disturbed ones left out)"
    assert told in finding([0.1] * calm, timed - calm)


def _range(cells: list[str]) -> str:
    values = [float(cell.removesuffix("%")) for cell in cells]
    return f"{min(values):.0f} to {max(values):.0f} %"


def test_the_trust_page_has_the_figures_of_the_validation_pages() -> None:
    docs = Path(__file__).parents[2] / "docs"
    trust = (docs / "explanation" / "trust.md").read_text(encoding="utf-8")

    def by_source(name: str) -> dict[str, list[str]]:
        table = (docs / name).read_text(encoding="utf-8").partition("\n| source |")[2].partition("\n\n")[0]
        return {row[0]: row[1:] for line in table.splitlines()[2:] if (row := line.strip("| ").split(" | "))}

    # `vtrain_composed` was composed of profiled pieces, and not timed; the rows of disturbed runs are in no table.
    cut = {name: row for name, row in by_source("validation_cut.md").items() if name != "vtrain_composed"}
    whole = [by_source("validation.md")[name] for name in (
        "foundry", "foundry, eight bits", "torchtitan", "torchtitan, eight bits", "nanotron")]  # fmt: skip
    assert f"median {_range([row[1] for row in whole])}, 90 %: {_range([row[2] for row in whole])}" in trust
    steps = [row[1] for row in cut.values()], [row[2] for row in cut.values()]
    assert f"median {_range(steps[0])}, 90 %: {_range(steps[1])}" in trust
    measured = [row for row in cut.values() if row[4].strip().isdigit()]
    memory = [row[5] for row in measured], [row[6] for row in measured]
    assert f"| Peak memory | median {_range(memory[0])}, 90 %: {_range(memory[1])}" in trust
