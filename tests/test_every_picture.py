"""Every picture that a shipped scenario draws can be read: it names its point, and no text lies on another one."""

from __future__ import annotations

from typing import Final

import pytest
from matplotlib.text import Annotation

from simulator.basics import registry
from simulator.cli.commands.show import usual_ranks
from simulator.cluster.build import build, facts
from simulator.report.plots import style
from simulator.report.plots.topology import figure as topology_figure
from simulator.results.drawn import Undrawn
from simulator.results.pictures import figures
from simulator.results.plotted_points import plotted_points
from simulator.scenario import plot_names
from simulator.scenario.description import describe_point
from simulator.scenario.load import load_scenario, points
from simulator.sweeps.sweep import play_points
from simulator.testing.looking import begins_well, check, empty_axes, foreign_colours, outside, overlapping, texts

# Of every kind of picture one at least, but for losses, whose trainings take long; the others take minutes.
SHORT: Final = ("two_boxes_hierarchical", "zero_stages", "interleaving")
SHORT_TOPOLOGIES: Final = ("dgx_h100", "dragonfly", "fat_tree_1024", "star_100g", "torus_2d")
# Played for half a minute or more, and drawn by nothing that others do not draw.
LARGE: Final = ("llama3_405b", "deepseek_v3")


@pytest.mark.parametrize(
    "name",
    [
        name if name in SHORT else pytest.param(name, marks=pytest.mark.long)
        for name in registry.names("scenario")
        if name not in LARGE
    ],
)
@pytest.mark.one_of(3)
def test_a_picture_can_be_read_and_names_its_point(name: str) -> None:
    shipped = load_scenario(name)
    kind = "collective" if shipped.training is None else "training"
    scenario = shipped.replaced(plots=plot_names.names_of(kind))
    outcomes = list(play_points(list(enumerate(points(scenario)))))
    drawn = {name: figure for name, figure in figures(scenario, outcomes) if not isinstance(figure, Undrawn)}
    assert drawn
    known = {describe_point(scenario, point.settings) for point in points(scenario)}
    assert len(known) == len(points(scenario)), "two points have one name"
    known.add(describe_point(scenario, {}))
    for file_name, figure in drawn.items():
        check(figure, f"{name}: {file_name}")
        (said,) = (artist.get_text() for artist in figure.artists if isinstance(artist, Annotation))
        assert " ".join(said.split()) in known
    # The points that the answer speaks of are looked at.
    for suffix in plotted_points(scenario, outcomes).names.values():
        assert any(file_name == f"timeline{suffix}" for file_name in drawn)


@pytest.mark.parametrize(
    "name",
    [
        name if name in SHORT_TOPOLOGIES else pytest.param(name, marks=pytest.mark.long)
        for name in registry.names("topology")
    ],
)
def test_a_topology_can_be_read(name: str) -> None:
    check(topology_figure(build(name, usual_ranks(facts(name)))), name)


def test_texts_on_each_other_and_beyond_the_edge_are_seen() -> None:
    figure = style.new_figure(4, 3)
    axes = figure.add_subplot()
    figure.text(0.5, 0.5, "one")
    figure.text(0.51, 0.5, "another")
    figure.text(0.99, 0.2, "far beyond the edge")
    axes.plot([0, 1], [0, 1], color="#123456")
    words = texts(figure)
    assert overlapping(words) == [("one", "another")]
    assert outside(figure, words) == ["far beyond the edge"]
    assert foreign_colours(figure) == {"#123456"}
    assert empty_axes(figure) == []
    bare = style.new_figure(2, 2)
    without = bare.add_subplot()
    assert empty_axes(bare) == [without]


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("ring is fastest", False), ("standard attention takes", False), ("Ring is", True), ("zero3 takes", True),
        ("all_gather is", True), ("gpu3->switch0 at", True), ("nvls is", True), ("16 GPUs vs", True),
        ("tp 2, pp 4", True), ("gpipe takes", False),
    ],
)  # fmt: skip
def test_a_word_in_small_letters_is_seen_at_the_start(text: str, starts: bool) -> None:
    assert begins_well(text) is starts
