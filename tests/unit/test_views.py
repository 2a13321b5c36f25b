"""What a page draws of a point: lanes of ranks, servers and switches, parts of the time, links."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.findings.answer import answer
from simulator.findings.comparison import Comparison
from simulator.report.numbers.measures import share_text
from simulator.report.plots import pipeline
from simulator.report.plots.plot import CloseUp
from simulator.report.views.view import compressed, decompressed, view_of, within
from simulator.results.page.page_data import page_data
from simulator.results.page.point_table import point_table
from simulator.results.small_table import small_tables
from simulator.run import Run, simulate
from simulator.scenario.load import load_scenario, points
from simulator.sweeps.sweep import play_points

SERVED: dict[str, Any] = {
    "name": "served",
    "cluster": {"topology": "star_100g", "world_size": 4},
    "collective": {"operation": "all_reduce", "size": "1 MiB", "algorithm": "parameter_server"},
}


def looked_at(data: dict[str, Any]) -> tuple[Run, dict[str, Any]]:
    run = simulate(load_scenario(data))
    return run, view_of(run.timeline, 8e10, {op.name: op.group for op in run.plan.program.collectives().values()})


def paged(data: dict[str, Any]) -> dict[str, Any]:
    scenario = load_scenario(data)
    compared = Comparison(scenario, list(play_points(list(enumerate(points(scenario))), 1)))
    return page_data(None, compared, answer(compared), {})


def streams(view: dict[str, Any]) -> list[tuple[Any, int, str]]:
    return [(lane["rank"], lane["alike"], lane["stream"]) for lane in view["lanes"]["lanes"]]


def test_a_server_has_lanes_and_ranks_that_receive_later_have_one_for_it() -> None:
    _, view = looked_at(SERVED)
    ranks = [(0, 4, stream) for stream in ("communication", "sends", "receives")]
    assert streams(view) == [*ranks, ("server0", 1, "sends"), ("server0", 1, "receives")]


def test_a_server_stays_where_lanes_are_left_out_for_room() -> None:
    jitter = {"cluster": {"topology": "star_100g", "world_size": 16, "jitter": {"latency": 0.5}}}
    _, view = looked_at(SERVED | jitter)
    assert len({who for who, _, _ in streams(view) if isinstance(who, int)}) == 16
    small = within(view, len(compressed(view)) - 1)
    assert small is not None
    left = streams(decompressed(small))
    assert len({who for who, _, _ in left if isinstance(who, int)}) < 16
    assert ("server0", 1, "sends") in left


def test_a_rank_of_a_ring_receives_while_it_sends_and_has_one_lane_for_both() -> None:
    _, view = looked_at(SERVED | {"collective": SERVED["collective"] | {"algorithm": "ring"}})
    assert streams(view) == [(0, 4, "communication"), (0, 4, "sends")]


def test_switches_that_add_have_lanes_once_for_all_that_are_alike() -> None:
    collective = {"operation": "all_reduce", "size": "1 MiB", "algorithm": "nvls"}
    _, view = looked_at(
        {"name": "nvls", "cluster": {"topology": "dgx_h100", "world_size": 16}, "collective": collective}
    )
    assert {(who, alike) for who, alike, _ in streams(view) if isinstance(who, str)} == {("node0/nvswitch", 2)}


def test_a_servers_bar_has_receiving_and_sending_and_next_to_no_waiting() -> None:
    data = paged(SERVED | {"collective": SERVED["collective"] | {"size": "64 MiB"}})
    (point,) = data["points"]
    parts = dict(point["parts"])
    sending = 4 * 64 * 2**20 / 12.5e9
    assert parts == pytest.approx({"receiving": sending, "sending": sending, "latencies and waiting": 20e-6}, rel=1e-6)
    assert all(data["colours"][name] for name in parts)


def test_every_place_of_a_page_prints_the_same_idle_time() -> None:
    """The mean over the stages' first ranks: in the sentence, both tables, the bars, the point and the picture."""
    step = {
        "model": "gpt2_medium", "seq_len": 512, "gradient_accumulation_steps": 8, "sharding": "zero1",
        "parallelism": {"pp": 4},
    }  # fmt: skip
    staged = {
        "name": "staged",
        "cluster": {"topology": "dgx_h100", "world_size": 8},
        "training": step,
        "compare": {"training.parallelism.schedule": ["gpipe", "1f1b", "zb_h1"]},
        "answer": [{"finding": "best", "of": ["bubble"]}],
    }
    scenario = load_scenario(staged)
    numbered = list(enumerate(points(scenario)))
    compared = Comparison(scenario, list(play_points(numbered, 1)))
    told = answer(compared)
    data, html = page_data(None, compared, told, {}), point_table(compared)
    (small,) = small_tables(compared, told)
    for row, point, (_, cells), line in zip(
        compared.rows, data["points"], small.rows, html.split("<tr ")[1:], strict=True
    ):
        report = row.report
        assert report is not None
        by_stage = report["idle_time_by_stage"]
        assert report["bubble_time_s"] == pytest.approx(sum(by_stage) / len(by_stage), rel=1e-9)
        parts = report["compute_time_s"] + report["exposed_comm_time_s"] + report["bubble_time_s"]
        assert parts == pytest.approx(report["step_time_s"], rel=1e-9)
        share = share_text(report["bubble_time_s"] / report["step_time_s"])
        assert cells[small.columns.index("idle time")].partition(" (")[0] == share
        assert f'<td data-v="{report["bubble_time_s"] / report["step_time_s"]!r}">{share}</td>' in line
        assert f", {share} idle; " in point["because"]
        drawn = dict(point["parts"])
        assert share_text(drawn["idle"] / sum(drawn.values())) == share
        run = simulate(numbered[row.index][1].scenario, keep=None)
        picture = pipeline.PLOT.figure(CloseUp(run.timeline, 8e10))
        assert picture is not None
        assert f"4 stages are idle for {share} of " in picture.get_suptitle()
    best = min((row.report or {})["bubble_time_s"] / (row.report or {})["step_time_s"] for row in compared.rows)
    assert f"is least idle, {share_text(best)} idle: " in told.sentences[0]


def test_why_tells_of_bytes_that_come_back() -> None:
    compare = {"collective.algorithm": ["ring", "parameter_server"]}
    served = {key: value for key, value in SERVED["collective"].items() if key != "algorithm"} | {"size": "64 MiB"}
    scenario = load_scenario(SERVED | {"collective": served, "compare": compare, "answer": ["best"]})
    compared = Comparison(scenario, list(play_points(list(enumerate(points(scenario))), 1)))
    told = answer(compared)
    assert "4 times the array, then 4 times the array back with parameter_server (server0->switch0)" in told.why
    assert told.why.startswith("The busiest link carries 1.5 times the array with ring (gpu0->switch0)")
