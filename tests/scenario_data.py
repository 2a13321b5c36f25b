"""Scenarios as data with some keys changed, and the faults that loading them tells."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.scenario.load import load_scenario


def changed(base: Mapping[str, Any], keys: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario with more keys: collective__root: 3 stands for collective.root."""
    data: dict[str, Any] = copy.deepcopy(dict(base))
    for key, value in keys.items():
        inner = data
        *path, last = key.split("__")
        for step in path:
            inner = inner.setdefault(step, {})
        inner[last] = value
    return data


def told(data: dict[str, Any]) -> list[str]:
    """Faults of a scenario, a line each; its exit code is that of bad input."""
    with pytest.raises(ScenarioError) as caught:
        load_scenario(data)
    assert caught.value.exit_code == 2
    return [line.removeprefix("<dict>: ") for line in str(caught.value).splitlines()]
