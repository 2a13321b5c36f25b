"""The report of a collective: what its figures are, and the sentence that says what held it up."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from simulator.basics.units import format_time
from simulator.records.timeline import LinkUse, Timeline
from simulator.report.numbers.bottleneck import Bottleneck, bottleneck
from simulator.report.tables.table import points_tables
from simulator.run.simulate import SimulatedRun, simulate
from simulator.scenario.load import load_scenario

LATENCY, BANDWIDTH = 10e-6, 12.5e9


def played(operation: str = "all_reduce", algorithm: str = "ring", n: int = 4, **collective: Any) -> SimulatedRun:
    facts = {"operation": operation, "algorithm": algorithm, "size": "4 MiB", **collective}
    cluster = {"topology": "star_100g", "world_size": n}
    return simulate(load_scenario({"name": "summary", "cluster": cluster, "collective": facts}))


def test_a_rings_figures_are_those_of_the_formula() -> None:
    n, size = 4, 4 * 2**20
    report = played(n=n).report
    time = 2 * (n - 1) * (LATENCY + size / n / BANDWIDTH)
    assert report.time_s == pytest.approx(time, rel=1e-9)
    assert report.predicted_s == pytest.approx(time, rel=1e-9)
    assert report.algbw == pytest.approx(size / time, rel=1e-9)
    assert report.busbw == pytest.approx(size / time * 2 * (n - 1) / n, rel=1e-9)
    assert (report.transfers, report.wire_bytes) == (2 * (n - 1) * n, 2 * (n - 1) * size)
    assert (report.wrong, report.overflowed, report.peak_buffer_bytes) == (0, 0, 0)
    held = report.bottleneck
    assert held is not None
    assert (held.link, held.bytes) == ("gpu0->switch0", 2 * (n - 1) / n * size)
    assert held.busy_fraction == pytest.approx(2 * (n - 1) * size / n / BANDWIDTH / time, rel=1e-9)
    assert report.because == "Bottleneck: link gpu0->switch0, 89 % busy, carries 1.5x the array"
    # Both directions send at the same time, so that the cable's time is the link's.
    assert held.reverse_bytes == held.bytes
    assert held.cable_time_s == pytest.approx(held.bandwidth_time_s, rel=1e-9)
    assert list(held.parts) == ["sending"]


@pytest.mark.parametrize(("algorithm", "end", "arrays"), [("parameter_server", "server0", 8), ("naive", "gpu0", 7)])
def test_a_cable_whose_directions_take_turns_is_busy_for_both(algorithm: str, end: str, arrays: int) -> None:
    """The sums come in first and go out then: no half of the time is waiting."""
    n, size = 8, 4 * 2**20
    report = played(n=n, algorithm=algorithm).report
    held = report.bottleneck
    assert held is not None
    sending = arrays * size / BANDWIDTH
    assert held.end == end
    assert held.parts == pytest.approx({"receiving": sending, "sending": sending}, rel=1e-9)
    assert report.time_s - sum(held.parts.values()) == pytest.approx(2 * LATENCY, rel=1e-6)
    said = f"{end} receives {arrays}x the array for 50 % of the time and sends {arrays}x the array for 50 %"
    assert report.because == f"Bottleneck: {said}"


def test_directions_that_mostly_overlap_do_not_take_turns() -> None:
    """Both directions send for 0.7 s of 1 s: together 0.95 s, of which 0.45 s at the same time."""
    turns = Bottleneck("a->b", 1.0, 1.0, 0.5, reverse_bytes=1.0, reverse_time_s=0.5, cable_time_s=0.95, end="a")
    overlap = replace(turns, bandwidth_time_s=0.7, reverse_time_s=0.7)
    assert (turns.takes_turns, turns.limiting_time_s) == (True, 0.95)
    assert (overlap.takes_turns, overlap.limiting_time_s) == (False, 0.7)


def test_a_slow_gpu_that_adds_more_slowly_than_its_link_delivers_is_the_bottleneck() -> None:
    """An A100 at 1 % of its speed has 20.39 GB/s of memory, which carry three accesses for each added byte."""
    slow = {"cluster": {"topology": "star_100g", "world_size": 8, "gpu": "a100_sxm_80gb", "stragglers": {3: 0.01}}}
    size = {"collective": {"operation": "all_reduce", "algorithm": "ring", "size": "16 MiB"}}
    report = simulate(load_scenario({"name": "slow"} | slow | size)).report
    assert report.slow_memory is not None
    assert report.slow_memory.rank == 3
    assert report.because == (
        "Bottleneck: the slow GPU of rank 3 adds arriving data at 6.797 GB/s, and its links could deliver 12.5 GB/s"
    )


@pytest.mark.parametrize(("algorithm", "stragglers"), [("ring", {3: 0.5}), ("ring", {}), ("tree", {7: 0.01})])
def test_a_gpu_that_adds_fast_enough_or_adds_nothing_is_no_bottleneck(
    algorithm: str, stragglers: dict[int, float]
) -> None:
    """Rank 7 is a leaf of the tree: it only sends its array and receives the sum."""
    cluster = {"topology": "star_100g", "world_size": 8, "gpu": "a100_sxm_80gb", "stragglers": stragglers}
    collective = {"operation": "all_reduce", "algorithm": algorithm, "size": "16 MiB"}
    report = simulate(load_scenario({"name": "slow", "cluster": cluster, "collective": collective})).report
    assert report.slow_memory is None
    assert "slow GPU" not in report.because


def test_a_busy_link_below_its_bandwidth_is_limited_by_the_rate_of_the_machines_collectives() -> None:
    """Caps of dgx_h100 keep a direct exchange far below NVLink's bandwidth; a small array waits for latencies."""

    def because(size: str) -> tuple[str, float, float]:
        collective = {"operation": "all_to_all", "algorithm": "direct", "size": size}
        cluster = {"topology": "dgx_h100", "world_size": 8}
        report = simulate(load_scenario({"name": "caps", "cluster": cluster, "collective": collective})).report
        held = report.bottleneck
        assert held is not None
        # Share of the time with a flow on the link, and share of the bandwidth that the bytes fill.
        return report.because, held.busy_fraction, held.bandwidth_time_s / report.time_s

    text, busy, use = because("8 MiB")
    assert busy > 0.45
    assert use < 0.45
    assert text == (
        "Bottleneck: the rate of the machine's collectives; the busiest link gpu0->node0/nvswitch, "
        f"{100 * busy:.0f} % busy, uses {100 * use:.0f} % of its bandwidth, carries 0.875x the array"
    )
    text, busy, _ = because("64 KiB")
    assert busy < 0.45
    assert text.startswith("Bottleneck: latency and waiting; the busiest link, gpu0->node0/nvswitch, uses ")


def test_an_array_that_is_carried_once_is_called_so() -> None:
    because = played("broadcast", "chain").report.because
    assert because.startswith("Bottleneck: link gpu0->switch0, ")
    assert because.endswith(" % busy, carries 1x the array")


@pytest.mark.parametrize(
    ("operation", "given", "got"),
    [("all_reduce", 1, 1), ("reduce_scatter", 1, 4), ("all_gather", 4, 1), ("all_to_all", 1, 1), ("gather", 4, 1)],
)
def test_bytes_of_a_rank_are_the_array_or_its_part(operation: str, given: int, got: int) -> None:
    report = played(operation, "direct").report
    whole = 4 * 2**20
    assert (report.input_bytes_per_rank, report.result_bytes_per_rank) == (whole // given, whole // got)


def test_an_array_of_nothing_has_no_bandwidth_to_blame() -> None:
    report = played(size="0 B").report
    assert report.time_s == pytest.approx(6 * LATENCY, rel=1e-9)
    assert (report.algbw, report.busbw, report.wire_bytes) == (0.0, 0.0, 0)
    assert "bandwidth holds" not in report.because


def test_without_payload_nothing_is_said_about_elements() -> None:
    report = played(payload=False).report
    assert (report.wrong, report.max_abs_error, report.overflowed) == (None, None, None)


def test_what_int8_cannot_hold_is_counted_as_overflow_and_not_as_wrong() -> None:
    report = played(n=32, dtype="int8", size="64 KiB").report
    assert report.wrong == 0
    assert report.overflowed is not None
    assert 0 < report.overflowed < 65_536


def test_with_jitter_no_form_is_exact() -> None:
    cluster = {"topology": "star_100g", "world_size": 4, "jitter": {"latency": 0.5}}
    collective = {"operation": "all_reduce", "algorithm": "ring", "size": "4 KiB"}
    run = simulate(load_scenario({"name": "summary", "cluster": cluster, "collective": collective}))
    assert run.report.predicted_s is None


def test_the_bottleneck_is_the_link_whose_bytes_take_longest() -> None:
    slow, fast = LinkUse("a->b", 1e9, 1e6, 2e-3), LinkUse("b->c", 100e9, 50e6, 1e-3)
    expected = Bottleneck("a->b", 1e6, 0.5, 1e-3, reverse_bytes=0, reverse_time_s=0, cable_time_s=1e-3, end="a")
    assert bottleneck(Timeline("events", 4e-3, (), links=(fast, slow))) == expected
    assert bottleneck(Timeline("events", 4e-3, ())) is None
    assert bottleneck(Timeline("events", 0.0, (), links=(slow,))) is None


def test_a_report_is_plain_data() -> None:
    told = played().report.to_dict()
    assert told["bottleneck"]["link"] == "gpu0->switch0"
    assert told.pop("constants") is None  # of a star nothing was measured
    assert told.pop("slow_memory") is None
    assert told.pop("idle_cards") is None
    assert all(isinstance(v, int | float | str | dict) for v in told.values())
    assert all(math.isfinite(v) for v in told.values() if isinstance(v, float))


def lines(width: int, points: list[dict[str, Any]]) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    for table in points_tables(points, width):
        console.print(table)
    return console.export_text().splitlines()


def outcome(**settings: Any) -> dict[str, Any]:
    return {"settings": settings, "engine": "events", "report": played().report.to_dict()}


POINTS = [
    outcome(**{"collective.algorithm": a, "cluster.stragglers": s}) for a in ("ring", "tree") for s in ({}, {3: 0.5})
]


@pytest.mark.parametrize("width", [60, 80, 100, 120, 150])
def test_a_table_loses_nothing_at_any_width(width: int) -> None:
    told = lines(width, POINTS)
    assert all(len(line) <= width for line in told)
    assert not any("…" in line for line in told)
    text = " ".join(told)
    assert all(heading in text for heading in HEADINGS)
    for point in POINTS:
        report = point["report"]
        assert text.count(format_time(report["time_s"])) >= 4
        assert text.count(f"{report['bottleneck']['link']} {report['bottleneck']['busy_fraction']:.0%}") >= 4


HEADINGS = ("time", "closed form", "busbw", "bytes sent", "wrong", "max error", "busiest link")


def test_what_does_not_fit_stands_in_a_further_table_behind_the_same_settings() -> None:
    assert all(heading in lines(150, POINTS)[1] for heading in HEADINGS)
    assert sum("ring" in line for line in lines(150, POINTS)) == 2
    assert sum("ring" in line for line in lines(80, POINTS)) == 4


def test_a_point_that_failed_stands_in_the_table_as_failed() -> None:
    failed = {"settings": {"seed": 1}, "engine": None, "report": None, "error": "no route"}
    told = lines(120, [failed])
    assert any("failed" in line and "no route" in line for line in told)
