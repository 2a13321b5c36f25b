"""`simulator fit gpu FILE`: a GPU file from what tools/measure_gpu.py found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.basics.errors import ScenarioError
from simulator.calibration.gpu_fit import FORMAT, ROUNDS, GpuFigures, fit_gpu, read_figures
from simulator.cluster.cluster import Gpu
from simulator.cluster.gpu_file import load_gpu
from simulator.model.kernel import Attention, Elementwise, Matmul
from simulator.step.kernels.kernel_time import default_attention, duration, kernel_model
from tests.commands import Command, commands_in

SHAPES = ((256, 256, 512), (512, 2048, 1024), (1024, 1024, 1024), (2048, 2048, 2048), (2048, 512, 4096),
          (4096, 4096, 4096), (8192, 8192, 8192), (2048, 2048, 13312))  # fmt: skip


def of(gpu: Gpu, share: float = 0.5) -> dict[str, Any]:
    """What the script would write where kernels took exactly what a GPU file says."""
    size = 2.0 * 8192 * 4096
    attention = [Attention("", 4, 32, 32, 2048, 128, causal=True, backward=b) for b in (False, True)]
    forward, backward = (duration(one, gpu, "bfloat16") for one in attention)
    return {
        "format": FORMAT,
        "device": {"name": "a GPU"},
        "matmul": [
            {"dtype": dtype, "m": m, "n": n, "k": k, "seconds": duration(Matmul("", m, n, k), gpu, dtype)}
            for dtype in ("bfloat16", "tf32") for m, n, k in SHAPES
        ],
        "copy": [{"bytes": 2**30, "seconds": duration(Elementwise("", 2.0**30, 2.0**30), gpu, "bfloat16")}],
        "attention": [{"batch": 4, "heads": 32, "seq_len": 2048, "head_dim": 128, "forward": forward,
                       "forward_backward": forward + backward}],
        "elementwise": [{"kind": "norm", "rows": 8192, "columns": 4096,
                         "seconds": duration(Elementwise("", size, size), gpu, "bfloat16") / share}],
        "gpt": [{"layers": 2, "hidden": 512, "heads": 8, "seq_len": 512, "sequences": 4, "words": 8192,
                 "checkpointing": "none", "seconds": 0.01, "peak_bytes": 10**9}],
    }  # fmt: skip


def test_what_was_put_in_comes_out() -> None:
    """A B200's own kernels, fitted on the base of its data sheet: matmuls, copies, attention and norms as they were."""
    gpu = load_gpu("b200")
    rounds: list[None] = []
    found = fit_gpu(GpuFigures(**of(gpu)), "b200", lambda: rounds.append(None))
    assert 0 < len(rounds) <= ROUNDS
    assert found.median("matmul") < 0.02
    assert abs(found.median("attention")) < 0.01
    # A launch and a share of the rate stand for each other on one size; the time is what was measured.
    assert found.median("elementwise") < 0.01
    assert 0.4 < found.gpu["constants"]["elementwise"]["value"] < 0.65
    again = load_gpu(yaml.safe_load(found.to_yaml()))
    kernel = Matmul("", 4096, 4096, 4096)
    assert duration(kernel, again, "bfloat16") == pytest.approx(duration(kernel, gpu, "bfloat16"), rel=0.03)
    # Each dtype's matmuls have constants of their own; attention is that of the library's default kernel.
    kernels = found.gpu["kernels"]
    for dtype in ("bfloat16", "tf32"):
        assert kernels[f"matmul_{dtype}"].keys() == {"prologue", "efficiency", "overlap", "operand_rate", "source"}
    assert kernels["matmul_float8_e4m3fn"]["source"] == gpu.facts["sources"]["constants.matmul_float8_e4m3fn_overlap"]
    assert default_attention(again) == 2
    assert {one.kind for one in found.residuals} >= {"GPT step", "GPT memory"}
    assert any("sustained" in text for text in found.untold)


def test_the_share_of_elementwise_kernels_is_that_of_the_largest_arrays() -> None:
    """Small arrays are over before the GPU is full; steps are made of large ones, so these alone are fitted."""
    figures = of(load_gpu("b200"))
    figures["matmul"] = figures["matmul"][:3]  # rates of matrix multiplications are fitted apart
    (large,) = figures["elementwise"]
    small = [large | {"rows": 64, "columns": 64, "seconds": large["seconds"] / part} for part in (2, 3, 4, 5)]
    alone, beside = (
        fit_gpu(GpuFigures(**figures | {"elementwise": rows}), "b200").gpu["constants"]["elementwise"]["value"]
        for rows in ([large], [large, *small])
    )
    assert alone == beside


def test_a_fit_keeps_the_copies_that_the_base_gpu_has() -> None:
    """Eight-bit matmuls of an H100 copy b into the order that the kernel needs; no measurement shows this alone."""
    figures = of(load_gpu("h100_sxm"))
    figures["matmul"] = [row | {"dtype": "float8_e4m3fn", "seconds": row["seconds"]} for row in figures["matmul"][:3]]
    found = fit_gpu(GpuFigures(**figures), "h100_sxm")
    copies = kernel_model(load_gpu("h100_sxm")).value("matmul_float8_e4m3fn_copies")
    assert copies > 0
    assert kernel_model(load_gpu(found.gpu)).value("matmul_float8_e4m3fn_copies") == copies
    assert not any("8-bit" in text for text in found.untold)


def test_a_gpu_that_is_faster_than_its_data_sheet_is_another_one() -> None:
    with pytest.raises(ScenarioError, match="above the peak of a100_sxm_80gb; set --base"):
        fit_gpu(GpuFigures(**of(load_gpu("b200"))), "a100_sxm_80gb")


@pytest.mark.parametrize(
    ("change", "told"),
    [({"format": "other"}, "format: "), ({"matmul": [{"m": 0}]}, "matmul.0.m: "), ({"colour": 1}, "colour: ")],
)
def test_every_fault_of_the_file_is_a_line(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(of(load_gpu("b200")) | change), encoding="utf-8")
    with pytest.raises(ScenarioError, match=told):
        read_figures(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[" * 100_000, "nested too deeply"),
        ("[1]", "not an output of tools/measure_gpu.py"),
        ("{", "gpu.json:1:2: not JSON"),
    ],
)
def test_a_file_that_is_no_measurement_is_refused(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "gpu.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError, match=told):
        read_figures(path)


def test_the_command_writes_a_file_that_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli: Command = commands_in(tmp_path, monkeypatch, capsys)
    Path("mine.json").write_text(json.dumps(of(load_gpu("h100_sxm"))), encoding="utf-8")
    answer = cli("fit", "gpu", "mine.json", "--out", "mine.yaml")
    assert answer.code == 0
    assert "median |error|: matmul" in answer.out
    assert "fitting to mine.json" in answer.err
    assert load_gpu(tmp_path / "mine.yaml").sms == load_gpu("h100_sxm").sms
    assert cli("fit", "gpu", "none.json").code == 2
    assert cli("fit", "one.txt", "two.txt").code == 2
