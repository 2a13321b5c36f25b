"""`simulator kernels`: every kernel of a micro-batch, its time and what bounds it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from simulator.cluster.gpu_file import load_gpu
from simulator.model.load import load_model
from simulator.step.kernel_table import kernel_rows
from simulator.step.spec import bare_step
from simulator.step.units import units
from tests.commands import Command, commands_in


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("name", ["llama3_8b", "gpt2", "mixtral_8x7b", "deepseek_v3"])
def test_the_kernels_take_what_a_step_is_planned_with(name: str) -> None:
    step, gpu = bare_step(load_model(name, 1024), 1024, 2), load_gpu("h100_sxm")
    rows = kernel_rows(step, gpu)
    planned = sum(unit.forward.alone + unit.backward.alone for unit in units(step, gpu))
    assert sum(row.times * row.seconds for row in rows) == pytest.approx(planned, rel=1e-12)
    flops = sum(unit.forward.flops + unit.backward.flops for unit in units(step, gpu))
    assert sum(row.times * row.kernel.flops for row in rows) == pytest.approx(flops, rel=1e-12)


def test_what_bounds_a_kernel_follows_from_its_size() -> None:
    """A large product by arithmetic; a norm by HBM; of 16 tokens everything small by its launch."""
    large, small = (
        {
            row.kernel.name: row.bound
            for row in kernel_rows(bare_step(load_model("gpt2", s), s, b), load_gpu("h100_sxm"))
        }
        for s, b in ((1024, 32), (16, 1))
    )
    assert (large["up"], large["norm1"], large["residual1 add"]) == ("arithmetic", "HBM", "HBM")
    assert (small["norm1"], small["activation"]) == ("launch", "launch")


def test_equal_bytes_take_equal_times_in_layers_and_head(cli: Command) -> None:
    out = cli("kernels", "llama3_8b", "--seq-len", 8192, "--framework", "nemo").out
    rows = {tuple(line.split()[:3]): line.split() for line in out.splitlines()}
    layer, head = rows["layer", "forward", "norm1"], rows["head", "forward", "norm"]
    assert layer[3:6] == head[3:6]
    assert "unequal times" not in out


def test_lists_of_layers_have_no_factors_because_equal_bytes_take_equal_times(cli: Command) -> None:
    out = cli("kernels", "resnet50", "--gpu", "a100_sxm_80gb", "--micro-batch-size", 64).out
    times: dict[str, set[str]] = {}
    for cells in (re.split(r" {2,}", line.strip()) for line in out.splitlines()):
        if len(cells) > 8 and cells[3].endswith("MiB") and cells[-1] == "HBM":
            times.setdefault(cells[3], set()).add(cells[4])
    assert len(times) > 5
    assert all(len(found) == 1 for found in times.values())
    assert "times the transfer time" not in out
    assert "in embedding and head" not in cli("kernels", "resnet50", "--compile").out


def test_a_line_for_each_kernel_and_what_takes_most(cli: Command) -> None:
    answer = cli("kernels", "llama3_8b", "--seq-len", 8192, "--framework", "bare", "--compile")
    assert answer.code == 0
    first, second, *lines = answer.out.splitlines()
    assert first.startswith("llama3_8b on h100_sxm: ")
    assert "forward and backward" in first
    assert second.startswith("bound by: ")
    rows = [line.split() for line in lines if line.startswith(("embedding", "layer", "head"))]
    assert ["layer", "forward", "norm1"] in [row[:3] for row in rows if row[-1] == "merged"]
    document: dict[str, Any] = cli(
        "kernels", "llama3_8b", "--seq-len", 8192, "--framework", "bare", "--compile", "--json"
    ).data
    assert len(document["kernels"]) == len(rows)
    (up,) = (one for one in document["kernels"] if one["kernel"] == "up")
    assert up["flops"] == 2 * 8192 * 28672 * 4096


def test_no_kernel_moves_its_bytes_faster_than_the_gpus_memory(cli: Command) -> None:
    """Merged kernels move 0.8 of the bytes of separate kernels, and their rates count these bytes."""
    options = ("kernels", "llama3_8b", "--seq-len", 8192, "--framework", "maxtext")
    separate, merged = cli(*options, "--json").data["kernels"], cli(*options, "--compile", "--json").data["kernels"]
    rates = [one["bytes"] / one["seconds"] for one in merged]
    assert max(rates) < 3.35e12
    shares = {one["kernel"]: one["bytes"] / other["bytes"] for one, other in zip(merged, separate, strict=True)}
    assert shares["norm1"] == shares["activation gradient"] == pytest.approx(0.8)
    assert shares["up"] == shares["attention"] == shares["log-softmax"] == 1
    told = " ".join(cli(*options, "--compile").out.split())
    assert "merged kernels move 0.8 times the bytes in the column shape, and GB/s counts the moved bytes." in told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("nope", "MODEL: got 'nope'; `simulator list models` lists all"),
        ("llama3_8b --tp 3", "--tp: got 3; must divide the 32 heads of llama3_8b"),
        ("llama3_8b --gpu h10", "--gpu: got 'h10'; did you mean "),
        ("llama3_8b --precision fp8 --gpu a100_sxm_80gb", "which a100_sxm_80gb does not support"),
        ("llama3_8b --seq-len 0", "--seq-len: got 0; must be at least 1"),
        ("llama3_8b --framework jax", "--framework: got 'jax'; `simulator list frameworks` lists all"),
    ],
)
def test_what_cannot_be_is_one_line(cli: Command, options: str, said: str) -> None:
    answer = cli("kernels", *options.split())
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1
