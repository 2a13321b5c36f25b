"""How many schedule rows (transfers, with a repeated round counted once) must be routed for a program?

A step on very many ranks is never planned just for this count. The same step is planned on few ranks in the same
cluster, at two sizes, and the count is extrapolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm, log2
from typing import Final

from simulator.cluster.build import facts
from simulator.records.operation import Collective
from simulator.records.program import Program
from simulator.run.scenario_cluster import build_cluster
from simulator.scenario.records import Scenario
from simulator.step.plan import groups_of, plan_step
from simulator.step.spec import TrainingStep

# Ranks in the smaller planned step, and most ranks in the larger planned step: a second of planning.
_FEW: Final = 128
_MOST: Final = 4096


@dataclass(frozen=True, slots=True)
class SimulatedCollective:
    """A collective with simulated transfers."""

    op: Collective  # the collective
    transfers: int  # transfers of all such collectives in a step


def simulated_collectives(program: Program) -> list[SimulatedCollective]:
    """Return the collectives of a program whose transfers are simulated, with their number of transfers.

    Each kind of collective is built for its first process groups only: building every rank's takes minutes and GB.
    """
    lists = program.lists
    length: dict[int, int] = {}
    collectives = []
    for times, members in zip(lists.times, lists.kinds, strict=True):
        for op in members:
            if op.duration is None:
                # Groups in a family share their schedule.
                key = id(op.schedule)
                length[key] = length.get(key) or op.schedule.length()
                collectives.append(SimulatedCollective(op, times * length[key]))
    return collectives


def rows(collectives: Sequence[SimulatedCollective], *, by_schedule: bool) -> int:
    """Return the number of schedule rows (transfers, repeated rounds counted once) to route.

    Parameters
    ----------
    collectives : sequence of SimulatedCollective
        Collectives of the program.
    by_schedule : bool
        True: one group stands for all groups with its schedule, as in the compiled engine with one rank per class.
        False: a schedule counts once for each group.
    """
    ops = [collective.op for collective in collectives]
    return sum({(id(op.schedule), () if by_schedule else op.group): op.schedule.rows for op in ops}.values())


class StepRows:
    """Estimates the schedule rows to route for steps on many ranks, from the same step on few ranks.

    Steps that are equal on few ranks are planned once.
    """

    def __init__(self) -> None:
        self._planned: dict[str, int] = {}

    def of(self, scenario: Scenario, step: TrainingStep) -> float:
        """Return a step's number of schedule rows, within a factor of two.

        0 if the step cannot be planned on few ranks.

        Rows grow by a constant factor with each doubling: 1 if groups keep their size, 4 if every rank sends to every
        rank. If the factor lies between 2 and 3 (algorithms with levels), rows per rank grow by a constant number
        instead.

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
        # The full step's plan reports this fault later, with its key.
        except ValueError:
            return 0.0
        # Two sizes give a growth factor per doubling, which is extrapolated.
        doublings, growth = log2(ranks / (2 * few)), large / max(small, 1)
        if 2.0 <= growth <= 3.0:
            return ranks * (large + doublings * (large - 2 * small)) / (2 * few)
        return float(large * growth**doublings)

    def _on_few(self, scenario: Scenario, step: TrainingStep, ranks: int) -> int:
        """Return the number of schedule rows of the same step on `ranks` ranks, with few micro-batches."""
        # Keep the slowest straggler; links and placement may refer to parts missing in the small cluster.
        slow = {0: min(scenario.cluster.stragglers.values())} if scenario.cluster.stragglers else {}
        # A multiple accepted by every schedule.
        spec = scenario.cluster.replaced(world_size=ranks, stragglers=slow, link_factors={}, placement=None, ecmp=None)
        few = lcm(2 * step.parallelism.pp, step.parallelism.microbatch_group or 1)
        short = step.with_keys(gradient_accumulation_steps=min(step.accumulation, few))
        key = repr((spec, scenario.base, short))
        if key not in self._planned:
            steady = spec.jitter.compute == 0 and spec.jitter.latency == 0
            plan = plan_step(build_cluster(scenario.replaced(cluster=spec)), short, steady=steady)
            self._planned[key] = rows(simulated_collectives(plan.program), by_schedule=steady)
        return self._planned[key]


def _few_ranks(scenario: Scenario, step: TrainingStep) -> int:
    """Return a small number of ranks on which the step has two copies of the model in whole nodes, at least `_FEW`."""
    groups = groups_of(step, scenario.cluster.world_size)
    shard = groups.shard_size if groups.hybrid else 1
    experts = groups.expert_ranks * groups.expert_tensor
    period = lcm(groups.size("model") * shard, experts, facts(scenario.cluster.topology, scenario.base).node_size or 1)
    return period * max(2, _FEW // period)
