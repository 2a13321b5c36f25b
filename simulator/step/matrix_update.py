"""How does a program update matrices with a rule of their own? Average, bring whole matrices together, make them
orthogonal, apply.

Example: Muon on two ZeRO-1 ranks with gathered shards; the gather of layer 1 runs while layer 0 is made orthogonal::

    compute        average | layer 0      layer 1 | apply
    communication   gather 0  gather 1

References
----------
.. [1] Liu et al., "Muon is scalable for LLM training", arXiv:2502.16982, algorithm 1: gathered shards.
.. [2] Ahn et al., "Dion: distributed orthonormalized updates", arXiv:2504.05295, and its program: all-to-all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

from simulator.records.operation import Computation, Exchange, NumericAction
from simulator.step.kernel_timer import KernelTimer
from simulator.step.optimizer_update import apply_cost, average_cost, orthogonal_cost
from simulator.step.optimizers.optimizer import MatrixRule, Shape
from simulator.step.passes import Passes, dealt_matrices, owned_matrices
from simulator.step.process_groups import Scope
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import Updater
from simulator.step.states import States, shard
from simulator.step.strategies.strategy import Strategy
from simulator.step.units import Unit


def update_matrices(
    builder: ProgramBuilder, passes: Passes, timer: KernelTimer, states: States, strategy: Strategy, after: str
) -> str:
    """Append the update of a rank's matrices after the operation `after`; return the last operation, or `after` if the
    optimizer has no rule for matrices or the rank has no matrices.
    """
    rule, matrices = passes.step.optimizer.of_matrices, _counted(passes.units)
    if rule is None or not matrices:
        return after
    owned = _counted_owned(passes) if rule.distribution in ("owners", "all_to_all") else matrices
    average = average_cost(timer, states, rule, sum(count for _, count in owned))
    averaged = builder.compute(
        "average gradients of matrices", average, "optimizer", [after], NumericAction(Computation.AVERAGE)
    )
    scratch = _scratch_bytes(rule, [shape for shape, _ in owned])
    builder.allocate("matrices made orthogonal", scratch, "optimizer")
    last: str | None
    if rule.distribution == "gathered":
        last = _gathered(builder, passes, timer, rule, averaged)
    elif rule.distribution == "replicated":
        last = _one_by_one(builder, passes, timer, rule, averaged)
    else:
        last = _by_owners(builder, passes, timer, rule, averaged, sends=strategy.updater is Updater.EVERY_RANK)
    builder.free("matrices made orthogonal")
    # Owners that gather parameters afterwards apply the result to their own matrices only.
    applied = owned if strategy.updater is Updater.OWNERS and rule.distribution == "owners" else matrices
    cost = apply_cost(timer, states, rule, sum(count for _, count in applied))
    # Real training applies orthogonal updates at the end of the optimizer's step.
    return builder.compute("apply orthogonal updates", cost, "optimizer", [last])


def _counted(units: Sequence[Unit]) -> tuple[tuple[Shape, int], ...]:
    """Return the shapes of the matrices of units to which the rule applies, with counts."""
    return tuple(sorted(sum((Counter(dict(unit.own_rule)) for unit in units), Counter[Shape]()).items()))


def _counted_owned(passes: Passes) -> tuple[tuple[Shape, int], ...]:
    """Return the shapes of the matrices of the rank that owns the most, with counts."""
    return tuple(entry for units, ranks in passes.by_ranks() for entry in _owned(passes, units, ranks))


def _owned(passes: Passes, units: Sequence[Unit], ranks: int) -> tuple[tuple[Shape, int], ...]:
    """Return the shapes of the matrices among units that the busiest rank owns, with counts."""
    # Other tensors have owners too if ranks own whole tensors; all_to_all shards these tensors evenly.
    deal = owned_matrices if passes.step.optimizer.owns_whole_tensors else dealt_matrices
    return deal(units, ranks)


def _scratch_bytes(rule: MatrixRule, shapes: Sequence[Shape]) -> int:
    """Return the bytes of temporary arrays for the largest matrix: X and the next X, A and B (`MatrixRule.matmuls`)."""
    return rule.itemsize * max((2 * prod(shape) + 2 * min(shape) ** 2 for shape in shapes), default=0)


def _scope(passes: Passes, unit: Unit) -> Scope:
    """Return the process group whose ranks hold the shards of a unit."""
    return "expert data" if unit.spread else "shard" if passes.copies else "all"


def _orthogonal(*units: str) -> NumericAction[Computation]:
    """Return the effect on numbers of making matrices of these units orthogonal."""
    return NumericAction(Computation.ORTHOGONALISE, units)


def _layer(unit: Unit) -> int:
    """Return the number of the layer to which a unit with a rule for matrices belongs."""
    return int(unit.name.split()[1])


def _one_by_one(builder: ProgramBuilder, passes: Passes, timer: KernelTimer, rule: MatrixRule, averaged: str) -> str:
    """Append kernels that make every matrix of the rank orthogonal, unit by unit; return the last operation."""
    done = averaged
    for unit in passes.units:
        if unit.own_rule:
            cost = orthogonal_cost(timer, rule, unit.own_rule)
            done = builder.compute(
                f"make {unit.name} orthogonal", cost, "optimizer", [averaged], _orthogonal(unit.name)
            )
    return done


def _gathered(builder: ProgramBuilder, passes: Passes, timer: KernelTimer, rule: MatrixRule, averaged: str) -> str:
    """Append for each unit an all-gather of its averages, and kernels that make them orthogonal; return the last
    operation.

    A unit is gathered when the unit before the last has been made orthogonal, hence two units are held at once.
    """
    done = [averaged, averaged]
    # In a pipeline with both directions, two ranks hold the same stages in opposite orders, and gather together.
    for unit in sorted((unit for unit in passes.units if unit.own_rule), key=_layer):
        ranks, name = passes.ranks_of(unit), f"averages of {unit.name}"
        elements = ranks * shard(unit.in_matrices, ranks)
        builder.allocate(name, elements * rule.itemsize, "optimizer", after=[done[-2]])
        gathered = builder.communicate(
            f"gather {name}",
            "all_gather",
            elements,
            rule.dtype,
            [done[-2]],
            _scope(passes, unit),
            NumericAction(Exchange.GATHER_AVERAGES, (unit.name,)),
        )
        cost = orthogonal_cost(timer, rule, unit.own_rule)
        act = _orthogonal(unit.name)
        done.append(builder.compute(f"make {unit.name} orthogonal", cost, "optimizer", [gathered], act))
        builder.free(name)
    return done[-1]


def _by_owners(
    builder: ProgramBuilder,
    passes: Passes,
    timer: KernelTimer,
    rule: MatrixRule,
    averaged: str,
    *,
    sends: bool,
) -> str | None:
    """Append the update of whole matrices by their owners; return the last operation.

    With "all_to_all", averages travel from shards to owners, and results back. With "owners", the averages are the
    owner's already, and with `sends` the results travel to every rank.
    """
    last: str | None = averaged
    for units, ranks in passes.by_ranks():
        owned = _owned(passes, units, ranks)
        if not owned:
            continue
        names = tuple(unit.name for unit in units if unit.own_rule)
        what, scope = ("expert matrices" if units[0].spread else "matrices"), _scope(passes, units[0])
        if rule.distribution == "all_to_all":
            elements = sum(shard(unit.in_matrices, ranks) for unit in units)
            act = NumericAction(Exchange.TO_OWNERS, names)
            sent = builder.communicate(f"{what} to owners", "all_to_all", elements, rule.dtype, [last], scope, act)
            last = sent or last
        cost = orthogonal_cost(timer, rule, owned)
        last = builder.compute(f"make {what} orthogonal", cost, "optimizer", [last], _orthogonal(*names))
        if rule.distribution == "all_to_all":
            act = NumericAction(Exchange.FROM_OWNERS, names)
            sent = builder.communicate(f"{what} from owners", "all_to_all", elements, rule.dtype, [last], scope, act)
            last = sent or last
        elif sends:
            elements = ranks * sum(prod(shape) * count for shape, count in owned)
            last = builder.communicate(f"gather {what}", "all_gather", elements, rule.dtype, [last], scope) or last
    return last
