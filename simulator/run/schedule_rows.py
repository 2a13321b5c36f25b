"""Rows of the schedules of a program's collectives: transfers that are routed and written down one by one.

Rule: a step on very many ranks is never planned to be counted. The same step is planned on few ranks of the same
cluster, at two sizes, and the rows on all ranks are estimated from these two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import lcm, log2
from typing import Final

from simulator.cluster.build import facts
from simulator.records.operation import Collective
from simulator.records.program import Program
from simulator.run.scenario_cluster import build_cluster
from simulator.scenario.records import Scenario
from simulator.step.plan import groups_of, plan_step
from simulator.step.spec import TrainingStep

# Ranks of the smaller of the two steps that are planned, and most ranks of the larger one: a second of planning.
_FEW: Final = 128
_MOST: Final = 4096


@dataclass(frozen=True, slots=True)
class SimulatedCollective:
    """A collective whose transfers are simulated.

    Attributes
    ----------
    op : Collective
    transfers : int
        Transfers of all collectives like this one in a step.
    """

    op: Collective
    transfers: int


def simulated_collectives(program: Program) -> list[SimulatedCollective]:
    """Return the collectives of the first family of each kind; making those of all ranks takes minutes and GB."""
    lists = program.lists
    length: dict[int, int] = {}
    found = []
    for times, members in zip(lists.times, lists.kinds, strict=True):
        for op in members:
            if op.duration is None:
                # Groups of a family share their schedule.
                key = id(op.schedule)
                length[key] = length.get(key) or op.schedule.length()
                found.append(SimulatedCollective(op, times * length[key]))
    return found


def rows(collectives: Sequence[SimulatedCollective], *, alike: bool) -> int:
    """Return the number of rows of these collectives that are routed.

    Parameters
    ----------
    collectives : sequence of SimulatedCollective
    alike : bool
        Whether one group stands for all that share its schedule, as where the compiled engine simulates one rank of
        each class. Otherwise a schedule counts once for each group.
    """
    ops = [one.op for one in collectives]
    return sum({(id(op.schedule), () if alike else op.group): op.schedule.rows for op in ops}.values())


class StepRows:
    """Estimates of the rows of steps on many ranks, of one group of those that are alike.

    Steps that are alike on few ranks are planned once.
    """

    def __init__(self) -> None:
        self._planned: dict[str, int] = {}

    def of(self, scenario: Scenario, step: TrainingStep) -> float:
        """Return the rows of a step, within a factor of two; 0 where the step cannot be planned on few ranks.

        Rows grow by a factor with each doubling of the ranks: 1 where groups stay as large, 4 where every rank sends to
        all others. Between 2 and 3, of algorithms in levels, rows a rank grow by the same number instead.

        Examples
        --------
        A step with 624 rows a rank on 128 ranks and 672 on 256 has 672 + 6 x 48 = 960 on 16,384.
        """
        ranks = scenario.cluster.world_size
        few = _few_ranks(scenario, step)
        if 2 * few > min(ranks, _MOST):
            return 0.0
        try:
            small, large = (self._on_few(scenario, step, count) for count in (few, 2 * few))
        except ValueError:  # planning the step on all ranks reports this fault with its key
            return 0.0
        doublings, growth = log2(ranks / (2 * few)), large / max(small, 1)
        if 2.0 <= growth <= 3.0:
            return ranks * (large + doublings * (large - 2 * small)) / (2 * few)
        return float(large * growth**doublings)

    def _on_few(self, scenario: Scenario, step: TrainingStep, ranks: int) -> int:
        """Return the rows of the step's schedules on the first ranks of the cluster, of a few micro-batches."""
        slow = {0: min(scenario.cluster.stragglers.values())} if scenario.cluster.stragglers else {}
        spec = scenario.cluster.replaced(world_size=ranks, stragglers=slow, link_factors={}, placement=None, ecmp=None)
        # Every schedule accepts a multiple of this number of micro-batches.
        few = lcm(2 * step.parallelism.pp, step.parallelism.microbatch_group or 1)
        one = replace(step, accumulation=min(step.accumulation, few))
        key = repr((spec, scenario.base, one))
        if key not in self._planned:
            steady = spec.jitter.compute == 0 and spec.jitter.latency == 0
            plan = plan_step(build_cluster(scenario.replaced(cluster=spec)), one, steady=steady)
            self._planned[key] = rows(simulated_collectives(plan.program), alike=steady)
        return self._planned[key]


def _few_ranks(scenario: Scenario, step: TrainingStep) -> int:
    """Return `_FEW` ranks, or twice as many as the step can be cut over in whole nodes, if these are more."""
    groups = groups_of(step, scenario.cluster.world_size)
    shard = groups.shard_size if groups.hybrid else 1
    experts = groups.expert_ranks * groups.expert_tensor
    whole = lcm(groups.size("model") * shard, experts, facts(scenario.cluster.topology, scenario.base).node_size or 1)
    return whole * max(2, _FEW // whole)
