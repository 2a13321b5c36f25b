"""How do Python users simulate a schedule of transfers that they wrote themselves?"""

from __future__ import annotations

from typing import Any

from simulator.api.runs import Run, simulate
from simulator.collectives.algorithm import Algorithm, least_volume
from simulator.collectives.verify import verify
from simulator.records.schedule import Schedule
from simulator.records.transfers import write_out
from simulator.scenario.from_python import collective_scenario


def collective(schedule: Schedule, **keys: Any) -> Run:
    """Simulate a collective with a schedule of transfers and return the run.

    Parameters
    ----------
    schedule : Schedule
        Transfers of the collective; its operation, ranks and root are those of the scenario.
    **keys
        Further keys of `collective_scenario`; required: `topology`, and `size` ("1 MiB").

    Raises
    ------
    ScenarioError
        A key is wrong.
    ScheduleError
        The schedule breaks its promise, such as a rank without its result.

    Examples
    --------
    >>> from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
    >>> ring = ALGORITHMS.find("ring").plans["all_reduce"](CollectiveRequest("all_reduce", 4, 2**18))
    >>> run = collective(ring, topology="star_100g", size="1 MiB")
    >>> run.report.time_s == simulate(collective_scenario(topology="star_100g", world_size=4, operation="all_reduce",
    ...     algorithm="ring", size="1 MiB")).report.time_s
    True
    """
    verify(schedule, write_out(schedule))
    operation = schedule.operation
    settings: Any = {"operation": operation, "world_size": schedule.world_size, **keys}
    scenario = collective_scenario(**(settings | ({"root": schedule.root} if schedule.root else {})))
    method = Algorithm(plans={operation: lambda request: schedule}, volume=least_volume, minimal=lambda request: False)
    return simulate(scenario, algorithm=method)
