"""What a page draws of a point: lanes of ranks, servers and switches, parts of the time, links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.findings.answer import answer
from simulator.findings.comparison import Comparison
from simulator.records.measures import share_text
from simulator.report.plots.plot import CloseUp
from simulator.report.plots.training import pipeline
from simulator.report.views.view import _few_names, compressed, decompressed, view_of, within
from simulator.results.page.page import report_page, without_files
from simulator.results.page.page_data import page_data
from simulator.results.page.point_table import point_table
from simulator.results.small_table import small_tables
from simulator.run.simulate import SimulatedRun, simulate
from simulator.scenario.load import load_scenario, points
from simulator.sweeps.artifacts import view_of_run
from simulator.sweeps.sweep import play_points

SERVED: dict[str, Any] = {
    "name": "served",
    "cluster": {"topology": "star_100g", "world_size": 4},
    "collective": {"operation": "all_reduce", "size": "1 MiB", "algorithm": "parameter_server", "payload": False},
}
TRAINED: dict[str, Any] = {
    "name": "trained",
    "cluster": {"topology": "dgx_a100", "world_size": 2},
    "training": {"model": "gpt2", "seq_len": 512},
}


def looked_at(data: dict[str, Any]) -> tuple[SimulatedRun, dict[str, Any]]:
    run = simulate(load_scenario(data))
    return run, view_of(run.timeline, 8e10, {op.name: op.group for op in run.plan.program.collectives().values()})


def compared_of(data: dict[str, Any]) -> Comparison:
    scenario = load_scenario(data)
    return Comparison(scenario, list(play_points(list(enumerate(points(scenario))), 1)))


def paged(data: dict[str, Any]) -> dict[str, Any]:
    compared = compared_of(data)
    return page_data(None, compared, answer(compared), {})


def streams(view: dict[str, Any]) -> list[tuple[Any, int, str]]:
    return [(lane["rank"], len(lane["alike"]), lane["stream"]) for lane in view["lanes"]["lanes"]]


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


def test_passes_are_split_into_their_kernels() -> None:
    run = simulate(load_scenario(TRAINED))
    view = view_of_run(run)
    (lane,) = [lane for lane in view["lanes"]["lanes"] if lane["stream"] == "compute"]
    names, kinds = view["lanes"]["names"], view["lanes"]["kinds"]
    spans = list(zip([names[n] for n in lane["name"]], [kinds[k] for k in lane["kind"]], lane["kernels"], strict=True))
    # 12 layers, embedding and head, forward and backward; copies and the optimizer stay whole.
    assert sum(place >= 0 for *_, place in spans) == 2 * 14
    assert {kind for _, kind, place in spans if place < 0} <= {"copies", "optimizer"}
    for name, kind, place in spans:
        if place >= 0:
            parts = view["lanes"]["passes"][place]
            assert sum(share for _, share in parts) == pytest.approx(1.0, rel=1e-12)
            assert ("attention" in dict(parts)) is name.startswith("layer ")
            # The first kernel of a layer is its norm; the backward pass ends with it.
            if name.startswith("layer "):
                assert parts[0 if kind == "forward" else -1][0] == "elementwise"
    # With tensor parallelism exchanges cut the passes of layers, and each piece has its own kernels.
    cut = view_of_run(simulate(load_scenario(TRAINED | {"training": TRAINED["training"] | {"parallelism": {"tp": 2}}})))
    split = [
        cut["lanes"]["kinds"][kind]
        for lane in cut["lanes"]["lanes"]
        if lane["rank"] == 0 and lane["stream"] == "compute"
        for kind, place in zip(lane["kind"], lane["kernels"], strict=True)
        if place >= 0
    ]
    assert set(split) == {"forward", "backward"}
    # A layer's forward pass has at least two pieces: the sums after attention and after the MLP cut it.
    assert split.count("forward") >= 2 * 12


def test_a_page_without_room_keeps_the_allocations_of_the_peak_alone() -> None:
    _, view = looked_at(TRAINED)
    small = within(view, len(compressed(view)) - 1)
    assert small is not None
    whole, kept = (one["memory"]["allocations"] for one in (view, decompressed(small)))

    def named(allocations: dict[str, Any], place: int) -> tuple[str, int]:
        return allocations["names"][allocations["name"][place]], allocations["bytes"][place]

    assert (whole["complete"], kept["complete"]) == (True, False)
    assert [named(kept, place) for place in kept["peak"]] == [named(whole, place) for place in whole["peak"]]
    assert len(kept["names"]) <= len(kept["bytes"]) == len(kept["peak"]) < len(whole["bytes"])


def test_a_rank_of_a_ring_receives_while_it_sends_and_has_one_lane_for_both() -> None:
    _, view = looked_at(SERVED | {"collective": SERVED["collective"] | {"algorithm": "ring"}})
    assert streams(view) == [(0, 4, "communication"), (0, 4, "sends")]


def test_switches_that_add_have_lanes_once_for_all_that_are_alike() -> None:
    collective = {"operation": "all_reduce", "size": "1 MiB", "algorithm": "nvls"}
    _, view = looked_at(
        {"name": "nvls", "cluster": {"topology": "dgx_h100", "world_size": 16}, "collective": collective}
    )
    switches = [lane["alike"] for lane in view["lanes"]["lanes"] if isinstance(lane["rank"], str)]
    assert switches
    assert all(names == ["node0/nvswitch", "node1/nvswitch"] for names in switches)


def test_a_servers_bar_has_receiving_and_sending_and_next_to_no_waiting() -> None:
    data = paged(SERVED | {"collective": SERVED["collective"] | {"size": "64 MiB"}})
    (point,) = data["points"]
    parts = dict(point["parts"])
    sending = 4 * 64 * 2**20 / 12.5e9
    assert parts == pytest.approx({"receiving": sending, "sending": sending, "latency and waiting": 20e-6}, rel=1e-6)
    assert all(data["colours"][name] for name in parts)


def test_every_place_of_a_page_prints_the_same_idle_time() -> None:
    """The mean over the stages' first ranks: in the sentence, both tables, the bars, the point and the picture."""
    step = {
        "model": "gpt2_medium", "seq_len": 512, "gradient_accumulation_steps": 8, "sharding": "zero1",
        "parallelism": {"pp": 4}, "cuda_graphs": "full_iteration",
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
        assert f", idle {share}; " in point["because"]
        drawn = dict(point["parts"])
        assert share_text(drawn["idle"] / sum(drawn.values())) == share
        run = simulate(numbered[row.index][1].scenario, keep=None)
        picture = pipeline.PLOT.figure(CloseUp(run.timeline, 8e10))
        assert picture is not None
        assert f"Mean idle time of 4 stages: {share} of " in picture.get_suptitle()
    best = min((row.report or {})["bubble_time_s"] / (row.report or {})["step_time_s"] for row in compared.rows)
    assert f"has the lowest idle time ({share_text(best)}); " in told.sentences[0]


def test_why_tells_of_bytes_that_come_back() -> None:
    compare = {"collective.algorithm": ["ring", "parameter_server"]}
    served = {key: value for key, value in SERVED["collective"].items() if key != "algorithm"} | {"size": "64 MiB"}
    told = answer(compared_of(SERVED | {"collective": served, "compare": compare, "answer": ["best"]}))
    assert "4x the array, then 4x the array back with parameter_server (server0->switch0)" in told.why
    assert told.why.startswith("The busiest link carries 1.5x the array with ring (gpu0->switch0)")


EXPERTS: dict[str, Any] = {
    "name": "experts",
    "cluster": {"topology": "dgx_h100", "world_size": 8},
    "training": {
        "model": {
            "model_type": "mixtral", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
            "intermediate_size": 512, "vocab_size": 500, "num_local_experts": 8, "num_experts_per_tok": 2,
        },
        "seq_len": 128, "parallelism": {"ep": 8},
    },
    "compare": {"training.parallelism.experts.dispatch": ["all_to_all", "all_gather"]},
}  # fmt: skip


def test_bars_of_a_page_stack_their_parts_in_one_order() -> None:
    data = paged(EXPERTS)
    places = {name: place for place, name in enumerate(data["partOrder"])}
    orders = [[places[name] for name, _ in point["parts"]] for point in data["points"]]
    assert all(order == sorted(order) for order in orders)
    assert any("all_gather" in dict(point["parts"]) for point in data["points"])


def test_time_is_weighed_against_memory_only_where_both_differ_and_by_the_step_where_steps_are_alike() -> None:
    same = {"compare": {"training.parallelism.schedule": ["gpipe", "1f1b"]}}
    step = {"model": "gpt2", "seq_len": 256, "gradient_accumulation_steps": 4, "parallelism": {"pp": 2}}
    step["cuda_graphs"] = "full_iteration"
    staged = {"name": "staged", "cluster": {"topology": "dgx_h100", "world_size": 2}, "training": step} | same
    data = paged(staged)
    # Sums in another order may differ in the last digit.
    times = {float(f"{row['figures']['step_time_s']:.12g}") for row in data["points"]}
    assert bool(data["front"]) == (len(times) > 1)
    assert (data["frontKeys"][0], data["frontTime"]) == ("step_time_s", "step time")
    larger = staged | {"compare": {"training.micro_batch_size": [1, 2]}}
    assert paged(larger)["frontKeys"][0] == "time_per_token_s"


def test_a_table_names_the_baseline_and_says_why_numbers_are_missing() -> None:
    html = point_table(
        compared_of(
            {
                "name": "sizes",
                "cluster": {"topology": "star_100g", "world_size": 4},
                "collective": {"operation": "all_reduce", "size": "1 MiB"},
                "compare": {"collective.algorithm": ["ring", "naive"]},
                "sweep": {"collective.size": ["1 MiB", "128 MiB"]},
            }
        )
    )
    assert "<th>vs ring</th>" in html
    assert html.count(">baseline</td>") == 2
    assert "Real arrays were summed in 2 points; payload: auto sums arrays of at most 256 MiB over all ranks" in html


def test_a_page_that_is_put_elsewhere_links_to_no_file_beside_it(tmp_path: Path) -> None:
    compared = compared_of(SERVED)
    for name in ("spans.csv", "transfers.csv", "links.csv"):
        (tmp_path / name).write_text("", encoding="utf-8")
    page = report_page(compared, answer(compared), {}, tmp_path)
    assert '<a href="report.json">report.json</a>' in page
    assert '"files":[["spans.csv","spans.csv"],["transfers.csv","transfers.csv"],["links.csv","links.csv"]]' in page
    alone = without_files(page)
    assert ("<a href" in alone, "report.json (all figures)" in alone) == (False, True)
    assert '"files":[]' in alone


def test_collectives_that_closed_forms_keep_off_the_links_are_told_with_the_links() -> None:
    step = {"model": "gpt2", "seq_len": 256, "sharding": "zero1"}
    _, view = looked_at({"name": "step", "cluster": {"topology": "dgx_h100", "world_size": 8}, "training": step})
    assert view["links"]["off_links"].startswith("closed forms replace ")
    assert not view["links"]["complete"]  # nobody knows what a link that closed forms left out has carried
    _, view = looked_at(SERVED)
    assert view["links"]["off_links"] == ""
    assert view["links"]["complete"]


def test_a_page_that_must_be_small_says_which_links_it_does_not_know() -> None:
    wide = SERVED | {"cluster": {"topology": "star_100g", "world_size": 64}}
    _, view = looked_at(wide | {"collective": SERVED["collective"] | {"algorithm": "ring"}})
    assert [len(row["names"]) for row in view["links"]["rows"]] == [64, 64]
    cut = _few_names(view)["links"]
    assert ([len(row["names"]) for row in cut["rows"]], cut["complete"]) == ([40, 40], False)
