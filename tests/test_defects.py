"""A number that is not finite is told as a defect of the simulator, and never stands in a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.basics.errors import DefectError
from simulator.engine.compiled import engine
from simulator.engine.compiled.core import Times
from simulator.engine.compiled.core import run as run_core
from simulator.engine.compiled.fields import Problem
from simulator.records.timeline import Timeline
from simulator.run import collective
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from tests.commands import commands_in

RING = {
    "name": "ring",
    "cluster": {"topology": "star_100g", "world_size": 4},
    "collective": {"operation": "all_reduce", "algorithm": "ring", "size": "1 MiB", "payload": False},
}


def forgetful(column: str) -> Any:
    """Return a core that leaves one time of a column out."""

    def run(problem: Problem) -> Times:
        times = run_core(problem)
        changed = getattr(times, column).copy()
        changed[5 if column == "through" else 2] = np.nan
        return replace(times, **{column: changed})

    return run


@pytest.mark.parametrize(
    ("column", "record"),
    [
        ("through", "transfer 5 of collective 'all_reduce' enters at"),
        ("end", "operation 'all_reduce' has start 0.0 s and end nan s"),
    ],
)
def test_times_that_the_core_leaves_out_are_a_defect(monkeypatch: pytest.MonkeyPatch, column: str, record: str) -> None:
    monkeypatch.setattr(engine, "run", forgetful(column))
    with pytest.raises(DefectError) as caught:
        simulate(load_scenario(RING))
    assert caught.value.record.startswith(record)
    assert load_scenario_text(caught.value.scenario).collective == load_scenario(RING).collective
    assert caught.value.exit_code == 70


def load_scenario_text(text: str) -> Any:
    """Return the scenario that a text of YAML describes."""
    import yaml

    return load_scenario(yaml.safe_load(text))


def test_a_report_with_a_nan_is_never_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    uses = collective.with_link_use

    def with_nan(timeline: Timeline) -> Timeline:
        made = uses(timeline)
        return replace(made, links=(replace(made.links[0], busy=float("nan")), *made.links[1:]))

    monkeypatch.setattr(collective, "with_link_use", with_nan)
    answer = commands_in(tmp_path, monkeypatch, capsys)("run", "small.yaml", "--out", "out")
    assert answer.code == 70
    assert answer.faults[0].startswith(
        "small.yaml: defect of the simulator, not of the scenario: link gpu0->switch0 carries"
    )
    assert any("size: 4 KiB" in line for line in answer.faults)
    assert not (tmp_path / "out" / "report.json").exists()
