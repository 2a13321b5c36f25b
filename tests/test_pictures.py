"""Which pictures a run leaves, how their files are called, and the sentence at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Annotation

from simulator.basics.errors import ScenarioError
from simulator.results.pictures import draw, figures
from simulator.results.plotted_points import highlighted_points, plotted_points
from simulator.results.scaling_picture import scaling_points
from simulator.run.outcome import PointOutcome
from simulator.scenario.load import load_scenario, points
from simulator.scenario.records import Scenario
from simulator.scenario.resolve import resolved
from simulator.sweeps.sweep import play_points

LATENCY = 10e-6


def scenario(
    collective: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, **further: Any
) -> Scenario:
    facts = {"operation": "all_reduce", "algorithm": "ring", "size": "4 KiB"} | (collective or {})
    place = {"topology": "star_100g", "world_size": 4} | (cluster or {})
    return load_scenario({"name": "drawn", "cluster": place, "collective": facts, **further})


def outcomes(of: Scenario) -> list[PointOutcome]:
    return list(play_points(list(enumerate(points(of)))))


def test_nothing_that_was_set_is_called_none() -> None:
    fused = scenario(
        {"tensors": ["1 KiB"] * 4, "size": None},
        compare={"collective.fusion": [None, {"buckets": "1 MiB"}]},
    )
    assert [point.algorithm for point in scaling_points(fused, outcomes(fused))] == [
        "no fusion",
        "buckets 1 MiB",
    ]


def test_points_that_failed_or_took_no_time_are_left_out() -> None:
    still = {"builder": "star", "options": {"bandwidth": "100 Gb/s", "latency": "0 s"}}
    timeless = scenario(
        {"size": "0 B"}, {"topology": still, "gpu": "a100_sxm_80gb"}, compare={"collective.algorithm": ["ring", "tree"]}
    )
    assert scaling_points(timeless, outcomes(timeless)) == ()


def test_a_group_on_ever_larger_clusters_has_its_place_by_the_cluster() -> None:
    grown = scenario({"group": [0, 1]}, sweep={"cluster.world_size": [2, 4]})
    assert [point.world_size for point in scaling_points(grown, outcomes(grown))] == [2, 4]
    fixed = scenario({"group": [0, 1]}, sweep={"seed": [0, 1]})
    assert [point.world_size for point in scaling_points(fixed, outcomes(fixed))] == [2, 2]


@pytest.mark.parametrize(
    ("plots", "names"),
    [
        ([], []),
        (["scaling"], ["time_against_workers"]),
        (["timeline"], ["timeline_ring", "timeline_tree"]),
        (["bandwidth_utilization"], ["bandwidth_utilization_ring", "bandwidth_utilization_tree"]),
        (["steps"], ["steps_ring", "steps_tree"]),
    ],
)
@pytest.mark.one_of(5)
def test_each_compared_setting_is_drawn_and_a_sweep_as_a_whole(
    tmp_path: Path, plots: list[str], names: list[str]
) -> None:
    asked = scenario(
        compare={"collective.algorithm": ["ring", "tree"]}, sweep={"cluster.world_size": [2, 4]}, plots=plots
    )
    drawn = [path.stem for path in draw(tmp_path, asked, outcomes(asked), svg=True).files]
    assert drawn == names
    assert all(
        (tmp_path / "plots" / f"{name}{kind}").stat().st_size > 1000 for name in drawn for kind in (".png", ".svg")
    )


def test_file_names_of_compared_settings_hold_no_punctuation(tmp_path: Path) -> None:
    fused = scenario(
        {"tensors": ["1 KiB"] * 4, "size": None},
        compare={"collective.fusion": [None, {"buffer": "64 MiB", "cycle": "1 ms"}]},
        plots={"kinds": ["timeline"], "points": "all"},
    )
    names = [path.name for path in draw(tmp_path, fused, outcomes(fused)).files]
    assert names == ["timeline_none.png", "timeline_buffer-64-MiB-cycle-1-ms.png"]


def test_a_point_that_failed_is_not_drawn(tmp_path: Path) -> None:
    broken = scenario(
        cluster={"link_factors": {"gpu3->switch0": 0.5}}, compare={"cluster.world_size": [2, 4]}, plots=["timeline"]
    )
    assert [path.name for path in draw(tmp_path, broken, outcomes(broken)).files] == ["timeline_4.png"]


def test_a_plot_of_steps_of_a_point_that_cannot_be_planned_is_left_out(tmp_path: Path) -> None:
    broken = scenario(
        cluster={"link_factors": {"gpu3->switch0": 0.5}}, compare={"cluster.world_size": [2, 4]}, plots=["steps"]
    )
    assert [path.name for path in draw(tmp_path, broken, outcomes(broken)).files] == ["steps_4.png"]


SWEPT: dict[str, Any] = {
    "compare": {"collective.algorithm": ["ring", "tree"]},
    "sweep": {"collective.size": ["64 KiB", "1 MiB"], "cluster.world_size": [2, 4]},
}


def drawn_names(of: Scenario) -> list[str]:
    return [name for name, _ in figures(of, outcomes(of))]


def test_the_points_that_the_answer_speaks_of_are_looked_at() -> None:
    # Without any bytes all send to all in a single step; a ring takes 6 and a tree 4.
    small = scenario({"size": "0 B"}, compare={"collective.algorithm": ["ring", "tree", "naive"]})
    assert highlighted_points(small, outcomes(small)) == [0, 2]
    assert highlighted_points(small, outcomes(small), answer_points=[1]) == [1]


def test_points_may_be_named_by_some_of_their_settings_however_these_are_written() -> None:
    named = [{"collective.size": "1024 KiB", "cluster.world_size": 2}, {"collective.algorithm": "tree"}]
    chosen = scenario(**SWEPT, plots={"kinds": ["timeline"], "points": named})
    assert drawn_names(chosen) == [
        "timeline_ring_1-MiB_2", "timeline_tree_1-MiB_2",
        "timeline_tree_64-KiB_2", "timeline_tree_64-KiB_4", "timeline_tree_1-MiB_4",
    ]  # fmt: skip


def test_more_than_eight_points_are_looked_at_only_if_all_are_asked_for() -> None:
    many = {"compare": {"collective.algorithm": ["ring"]}, "sweep": {"seed": list(range(12))}}
    named = scenario(**many, plots={"kinds": ["timeline"], "points": [{"collective.algorithm": "ring"}]})
    assert len(drawn_names(named)) == 8
    assert plotted_points(named, outcomes(named)).left_out.startswith("drew 8 of 12 points; for more: ")
    whole = scenario(**many, plots={"kinds": ["timeline"], "points": "all"})
    assert len(drawn_names(whole)) == 12
    assert plotted_points(whole, outcomes(whole)).left_out == ""


@pytest.mark.parametrize(
    ("plotted", "message"),
    [
        (
            [{"cluster.world_size": 3}],
            "plots.points.0: got {cluster.world_size: 3}, which no point has; the points d",
        ),
        ([{"cluster.world_sizes": 3}], "plots.points.0.cluster.world_sizes: unknown key; "),
        ([{"collective.size": 3}], "plots.points.0.collective.size: got 3, which has no unit; "),
        ([4], "plots.points.0: got 4; must be a mapping"),
        ("some", "plots.points: got 'some'; must be all, or a list such as '[{cluster.world_size: 8}]'"),
    ],
)
def test_points_that_are_not_there_are_refused_in_one_line(plotted: Any, message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        scenario(**SWEPT, plots={"points": plotted})
    assert str(refused.value).startswith(f"<dict>: {message}")
    assert "\n" not in str(refused.value)


def test_a_mapping_of_plots_reads_back_as_it_was_written() -> None:
    plots = {"kinds": ["timeline", "steps"], "points": [{"cluster.world_size": 2}]}
    assert resolved(scenario(**SWEPT, plots=plots))["plots"] == plots
    assert resolved(scenario(**SWEPT, plots={"kinds": ["steps"]}))["plots"] == ["steps"]


def test_every_picture_says_which_point_it_shows() -> None:
    named = scenario(**SWEPT, plots={"points": [{"collective.size": "1 MiB", "cluster.world_size": 4}]})
    said = {name: point_of(figure) for name, figure in figures(named, outcomes(named))}
    everywhere = "all_reduce, float32; a100_sxm_80gb, star_100g"
    ring, tree = (f"{name}, 1 MiB, 4 GPUs; {everywhere}" for name in ("ring", "tree"))
    assert said == {
        "time_against_workers": everywhere,
        "time_against_size": everywhere,
        "bandwidth_utilization_ring": ring,
        "bandwidth_utilization_tree": tree,
        "timeline_ring": ring,
        "timeline_tree": tree,
        "steps_ring": ring,
        "steps_tree": tree,
    }


def point_of(figure: Figure) -> str:
    """What stands below the title."""
    (point,) = (artist.get_text() for artist in figure.artists if isinstance(artist, Annotation))
    return point
