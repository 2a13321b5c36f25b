"""What `simulator support` says of GPUs and machines, and what a report says of its evidence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.basics import registry
from simulator.cluster.gpu_file import load_gpu
from simulator.report.numbers.evidence import GRADES
from simulator.step.kernels.kernel_model import kernel_model
from tests.commands import Command, commands_in

GRADE_OR_NONE = {*GRADES, "-"}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def test_every_gpu_and_every_machine_with_constants_has_a_line(cli: Command) -> None:
    document = json.loads(cli("support", "--json").out)
    assert list(document["kernels"]) == list(registry.names("gpu"))
    assert all(grade in GRADE_OR_NONE for grades in document["kernels"].values() for grade in grades.values())
    assert document["collectives"]["dgx_h100"]["all_gather"] == "measured"
    assert document["collectives"]["dgx_h200"]["all_gather"] == "measured"
    assert document["collectives"]["dgx_b300"]["all_gather"] == "other_gpu"


def test_a_kernel_is_measured_on_a_gpu_exactly_where_its_file_has_a_fit(cli: Command) -> None:
    """GB300 has no table of its own, B300 has; a V100 has no units for bfloat16; a TPU's constants are assumed."""
    kernels = json.loads(cli("support", "--json").out)["kernels"]
    assert (kernels["b300"]["bf16"], kernels["gb300"]["bf16"], kernels["v100_sxm_32gb"]["bf16"]) == (
        "measured", "other_gpu", "-",
    )  # fmt: skip
    for name in registry.names("gpu"):
        facts = load_gpu(name).facts
        own = "matmul_bfloat16_prologue" in facts["constants"]
        own = own and "constants.matmul_bfloat16_prologue" not in facts["unsure"]
        if "bfloat16" in load_gpu(name).peak_flops:
            assert (kernels[name]["bf16"] == "measured") is own, name


def test_one_gpu_has_a_line_of_its_own_and_an_unknown_one_is_an_error(cli: Command) -> None:
    lines = cli("support", "h200").out.splitlines()
    assert lines[1].split()[:2] == ["h200", "measured"]
    assert cli("support", "h2000").code == 2


def test_constants_are_carried_over_from_the_nearest_gpu_whole_kernels_at_a_time() -> None:
    """A GB300's matmuls are a B300's, and its operand rate follows SMs and clock: both have 148 SMs."""
    own, other = kernel_model(load_gpu("gb300")), kernel_model(load_gpu("b300"))
    for name in ("prologue", "efficiency", "overlap", "operand_rate"):
        constant = own.constants[f"matmul_bfloat16_{name}"]
        assert constant.value == pytest.approx(other.value(f"matmul_bfloat16_{name}"))
        assert (constant.grade, "b300" in constant.source) == ("other_gpu", True)


def test_a_report_tells_the_evidence_of_its_whole_busy_time_and_where_the_host_decides(
    cli: Command, tmp_path: Path
) -> None:
    """Busy time is kernels and exposed communication. Transformers' loop over experts has no interval of its time."""
    for name, model, framework in (("dense", "gpt2", "nemo"), ("experts", "qwen3_30b_a3b", "transformers")):
        (tmp_path / f"{name}.yaml").write_text(
            f"name: {name}\ncluster: {{topology: dgx_b200, world_size: 8}}\n"
            f"training: {{model: {model}, seq_len: 1024, framework: {framework}, sharding: zero3,"
            " activation_checkpointing: full}\n"
        )
        told = cli("run", f"{name}.yaml").out
        report = json.loads((tmp_path / f"runs/{name}-0001/report.json").read_text())["points"][0]["report"]
        busy = report["step_time_s"] - report["bubble_time_s"] - report["host_wait_time_s"]
        assert sum(report["time_by_evidence"].values()) == pytest.approx(busy, rel=1e-6)
        assert "of the time rests on" in told
        assert ("not predictable" in told) is (name == "experts")
        assert ("step_time_s_80_low" in report["intervals"]) is (name == "dense")
        assert "peak_memory_bytes_80_low" in report["intervals"]
