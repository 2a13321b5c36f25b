"""Free and missing memory are the same difference everywhere: reserved memory against the GPU's memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import simulator
import simulator.errors
from simulator.basics.units import format_memory
from simulator.report.numbers.memory_margin import MemoryMargin, margin_of
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
    margin = MemoryMargin(reserved, capacity)
    assert (margin.fits, margin.free, margin.missing) == (fits, free, missing)


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
    # Tensors alone would give another difference.
    assert reserved - report["peak_memory_bytes"] > GIB
    assert (report["fits"], report["shortfall_bytes"]) == (reserved <= capacity, max(0, reserved - capacity))
    left, word = (capacity - reserved, "free") if reserved <= capacity else (reserved - capacity, "missing")
    text = f"reserved memory {format_memory(reserved)}, {format_memory(left)} {word}"
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
    assert told["answer"]["findings"][0]["fits"][0]["shortfall_bytes"] == max(0, reserved - capacity)
    picture = sweep.plot("memory", {"training.activation_checkpointing": "full"}).get_suptitle()
    assert text in " ".join(picture.split())


def test_the_limit_of_the_allocator_and_the_reserved_memory_agree() -> None:
    """A limited run ends with an error exactly if the unlimited run reserves more than the card has."""
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
            assert ended is report.fits is (report.peak_reserved_bytes <= report.capacity_bytes)
