"""Would a better machine help: twice the network bandwidth, another network card per node, or twice the memory?

For each changed machine, the best setting is simulated unchanged, and the search runs again for the fastest setting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from simulator.cluster.upgraded import cards, with_memory, with_network
from simulator.planner.search import PlayedSetting, SearchResult, search
from simulator.planner.setting import scenario_of
from simulator.run.scenario_cluster import Clusters
from simulator.scenario.records import Point, Scenario
from simulator.sweeps.player import open_player
from simulator.sweeps.sweep import Backend

_TWICE: Final = 2.0


@dataclass(frozen=True, slots=True)
class MachineChange:
    """Effect of a change to the machine on the best setting and on the choice of the fastest setting."""

    change: str  # the change in words: "twice the memory"
    before: float  # the best setting's step time on the present machine [s]
    same: float  # the same setting's step time on the changed machine [s]
    best: PlayedSetting  # the fastest setting on the changed machine

    def to_dict(self) -> dict[str, Any]:
        """Return the machine change's effect in a plain dict."""
        return {
            "change": self.change,
            "same_setting_step_time_s": self.same,
            "setting": self.best.setting.text,
            "step_time_s": self.best.step_time,
            "faster_by": 1 - self.best.step_time / self.before,
        }


def sensitivity(plan: SearchResult, backend: Backend) -> Iterator[MachineChange]:
    """Yield the effect of each change to the machine on a plan, in a fixed order; nothing if no setting fits.

    Parameters
    ----------
    plan : SearchResult
        The plan for the present machine.
    backend : Backend
        Processes or cluster for simulations.
    """
    if not plan.best:
        return
    best = plan.best[0]
    for change, base in _machines(plan.base):
        # The unchanged setting separates the machine's effect from the effect of another setting.
        point = Point({}, scenario_of(base, best.setting), report_alone=True)
        with open_player(backend, (0, point)) as player:
            player.submit((0, point))
            report = player.outcome().report
        *_, result = search(base, plan.sequences, plan.choices, best=1, backend=backend)
        if report is not None and result.best:
            yield MachineChange(change, best.step_time, float(report["step_time_s"]), result.best[0])


def _machines(base: Scenario) -> Iterator[tuple[str, Scenario]]:
    """Yield pairs for each changed machine: the change in words, and the scenario on this machine."""
    spec, folder = base.cluster, base.base
    one_node = len(Clusters().of(base).nodes) == 1

    def network(times: float) -> Scenario | None:
        """Return the scenario with `times` the network bandwidth; None if the topology has no such network."""
        faster = with_network(spec.topology, folder, times, one_node=one_node)
        return None if faster is None else base.replaced(cluster=spec.replaced(topology=faster))

    twice = network(_TWICE)
    if twice is not None:
        yield f"twice the bandwidth {'inside the node' if one_node else 'between nodes'}", twice
    # A single node has no network between nodes.
    count = 0 if one_node else cards(spec.topology, folder)
    one_more = network((count + 1) / count) if count else None
    if one_more is not None:
        yield f"one more network card per node ({count + 1} instead of {count}, shared evenly)", one_more
    larger = with_memory(spec.gpu, spec.topology, folder, _TWICE)
    yield "twice the memory", base.replaced(cluster=spec.replaced(gpu=larger))
