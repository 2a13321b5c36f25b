"""Every picture that a shipped scenario draws can be read: it names its point, and no text lies on another one."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from simulator.basics import registry
from simulator.report.plots import catalog
from simulator.results.pictures import figures
from simulator.scenario.load import load_scenario, points
from simulator.sweeps.sweep import play_points
from tests.looking import empty_axes, foreign_colours, outside, overlapping, texts

# Of every kind of picture one at least; the others take minutes.
SHORT: Final = ("slow_link", "zero_stages", "pipeline_schedules", "megatron_3d")
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
def test_a_picture_can_be_read(name: str) -> None:
    shipped = load_scenario(name)
    kind = "collective" if shipped.training is None else "training"
    scenario = replace(shipped, plots=catalog.names_of(kind))
    outcomes = list(play_points(list(enumerate(points(scenario)))))
    drawn = list(figures(scenario, outcomes))
    assert drawn
    for file_name, figure in drawn:
        where, words = f"{name}: {file_name}", texts(figure)
        assert figure.get_suptitle().strip(), where
        assert figure.artists, f"{where}: says no point"
        assert not overlapping(words), f"{where}: texts lie on each other"
        assert not outside(figure, words), f"{where}: texts are cut off"
        assert not foreign_colours(figure), f"{where}: colours of no kind"
        assert not empty_axes(figure), f"{where}: empty axes"
