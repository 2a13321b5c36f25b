"""What would fit where nothing does: changes that cannot be tried are passed over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError, TooLargeError
from simulator.planner import infeasible as nearest


@pytest.mark.parametrize("error", [ScenarioError, TooLargeError])
def test_more_gpus_than_a_topology_or_this_machine_can_hold_are_passed_over(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mesh of 8,192 GPUs has 67 million links: a plan for 512 GPUs ended in this error while it looked for a way."""

    def refused(*_: object) -> None:
        raise error("too many")

    monkeypatch.setattr(nearest, "least_memory", refused)
    asked: Any = SimpleNamespace(choices=None, base=None, sequences=1)
    more = nearest._Change("gpus", "--gpus 8192", lambda asked: asked)
    assert list(nearest._fitting(asked, [(more,)])) == []
