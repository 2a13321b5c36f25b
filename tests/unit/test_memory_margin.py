"""Free and missing memory are the same difference everywhere: the process's memory against the GPU's memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import simulator
import simulator.errors
from simulator.basics.units import format_memory
from simulator.cluster.build import build
from simulator.cluster.locate import read_named
from simulator.records.memory_margin import MemoryMargin, margin_of
from simulator.run.memory_need import checked_need
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario
from tests.commands import commands_in

GIB = 2**30


def step(policy: str) -> dict[str, Any]:
    """Return Llama 3 8B on four L4 of 22.5 GiB: fragments take gibibytes beside the tensors."""
    return {
        "name": "margin",
        "cluster": {"topology": "pcie_workstation", "world_size": 4, "gpu": "l4"},
        "training": {"model": "llama3_8b", "seq_len": 2048, "sharding": "zero3", "activation_checkpointing": policy},
        "answer": ["fit"],
    }


@pytest.mark.parametrize(
    ("reserved", "capacity", "fits", "free", "missing"),
    [(3 * GIB, 4 * GIB, True, GIB, 0), (4 * GIB, 4 * GIB, True, 0, 0), (4 * GIB + 1, 4 * GIB, False, 0, 1)],
)
def test_a_step_fits_up_to_the_last_byte(reserved: int, capacity: int, fits: bool, free: int, missing: int) -> None:
    for beside in (0, 100):
        margin = MemoryMargin(reserved - beside, capacity, context=beside // 2, nccl=beside // 2)
        assert (margin.fits, margin.free, margin.missing) == (fits, free, missing)


def test_context_and_buffers_decide_everywhere() -> None:
    """A card with room for what PyTorch reserves and not for the rest of the process does not fit: in a run, in its
    report without a limit and in the estimate of memory. With room for both it fits.
    """
    data = step("full")
    data["training"] |= {"model": "gpt2", "seq_len": 1024}
    ample = simulator.simulate(data).report
    beside = ample.context_bytes + ample.nccl_bytes
    # One byte less than tensors, context and buffers: PyTorch's memory alone fits.
    small, large = ample.peak_memory_bytes + beside - 1, ample.peak_reserved_bytes + beside
    assert ample.peak_reserved_bytes <= small
    for size, fits in ((small, False), (large, True)):
        gpu = {**read_named("gpu", "l4", None)[1].data, "hbm_bytes": f"{size} B"}
        data["cluster"]["gpu"] = gpu
        scenario = load_scenario(data)
        assert scenario.training is not None
        made = to_step(scenario.training, 4), build("pcie_workstation", 4, gpu=gpu)
        assert checked_need(made[1], made[0]).fits is fits
        assert simulator.simulate(data, limit_memory=False).report.fits is fits
        if fits:
            assert simulator.simulate(data).report.process_bytes == size
        else:
            with pytest.raises(simulator.errors.OutOfMemoryError) as error:
                simulator.simulate(data)
            assert (error.value.capacity, error.value.beside) == (size, beside)
            assert error.value.needed > size


@pytest.mark.parametrize("offload", ["none", "optimizer"])
def test_terminal_page_and_json_of_a_point_agree_to_the_byte(
    offload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = step("full")
    data["training"]["offload"] = offload
    data["compare"] = {"training.activation_checkpointing": ["full", "none"]}
    sweep = simulator.play(data)
    report = sweep.outcomes[0].report
    assert report is not None
    reserved, capacity = report["peak_reserved_bytes"], report["capacity_bytes"]
    process = reserved + report["context_bytes"] + report["nccl_bytes"]
    # Tensors alone would give another difference.
    assert reserved - report["peak_memory_bytes"] > GIB
    assert (report["fits"], report["shortfall_bytes"]) == (process <= capacity, max(0, process - capacity))
    left, word = (capacity - process, "free") if process <= capacity else (process - capacity, "missing")
    text = f"reserved memory {format_memory(reserved)}, process {format_memory(process)}, {format_memory(left)} {word}"
    assert margin_of(report).text == text
    assert text in sweep.answer.sentences[0]
    # On the page no line breaks between a number and its unit.
    page = sweep.to_html().replace("\N{NO-BREAK SPACE}", " ")
    assert text in page
    if word == "missing":
        assert f"lacks {format_memory(left)}" in page
    (tmp_path / "margin.yaml").write_text(json.dumps(data), encoding="utf-8")
    cli = commands_in(tmp_path, monkeypatch, capsys)
    assert text in " ".join(cli("run", "margin.yaml").out.split())
    told = json.loads((tmp_path / "runs" / "margin-0001" / "report.json").read_text(encoding="utf-8"))
    assert told["answer"]["findings"][0]["fits"][0]["shortfall_bytes"] == max(0, process - capacity)
    picture = sweep.plot("memory", {"training.activation_checkpointing": "full"}).get_suptitle()
    assert text in " ".join(picture.split())


def test_the_limit_of_the_allocator_and_the_reserved_memory_agree() -> None:
    """A limited run ends with an error exactly if the process of the unlimited run is larger than the card."""
    for policy in ("none", "full"):
        for offload in ("none", "optimizer"):
            data = step(policy)
            data["training"]["offload"] = offload
            report = simulator.simulate(data, limit_memory=False).report
            try:
                simulator.simulate(data)
                ended = True
            except simulator.errors.OutOfMemoryError:
                ended = False
            assert ended is report.fits is (report.process_bytes <= report.capacity_bytes)
