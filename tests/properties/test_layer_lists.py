"""Lists of layers and traced modules in training steps: both engines leave the same behind, whatever the layers, the
sharding, the pipeline and the recompute.
"""

from __future__ import annotations

import warnings
from typing import Final

import pytest

from simulator.basics.errors import ScenarioWarning
from simulator.cluster.build import build
from simulator.records.operation import Compute
from simulator.records.program import Program
from tests.combinations import accepted, list_scenario, simulated
from tests.engines import simulated_alike
from tests.many import many

SIZE: Final = 8


def compared(seeds: range) -> int:
    """Simulate drawn scenarios with both engines; return how many were accepted."""
    count = 0
    for seed in seeds:
        data = list_scenario(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScenarioWarning)
            drawn = accepted(data)
        if drawn is not None:
            try:
                simulated(drawn)
            except Exception as error:
                shown = data["training"] | {"model": data["training"]["model"].get("name", data["training"]["model"])}
                raise AssertionError(f"seed {seed}: {shown}") from error
            count += 1
    return count


@pytest.mark.parametrize("block", range(2))
def test_both_engines_leave_the_same_behind_for_lists_of_layers(block: int) -> None:
    assert compared(range(block * SIZE, (block + 1) * SIZE)) >= SIZE // 2


@pytest.mark.long
@pytest.mark.parametrize("block", range(many(20)))
def test_both_engines_leave_the_same_behind_for_many_lists_of_layers(block: int) -> None:
    assert compared(range(1000 + block * SIZE, 1000 + (block + 1) * SIZE)) >= SIZE // 2


def test_a_step_without_any_transfer_is_the_same_on_both_engines() -> None:
    cluster = build("star_100g", 4)
    ops = (Compute("forward", 1e-3), Compute("backward", 2e-3))
    timeline, grew = simulated_alike(Program((ops,) * 4), cluster)
    assert (timeline.end, timeline.transfers, grew) == (3e-3, 0, 0)
