"""Which changes would make a step fit into memory? Every change named here was tried (`memory.advised_need`).

The trial simulates all ranks, as a run of the changed step does. Changes that cannot fit are excluded by their lower
bound on memory, which takes no time. A change that takes long to simulate is named with its lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from simulator.basics.units import format_memory
from simulator.cluster.cluster import Cluster
from simulator.engine.jitter import Jitter
from simulator.run.memory_need import MemoryNeed, advised_need, estimate_memory, fullest_end, least_need, passes_of
from simulator.step.alternatives import (
    Alternative,
    StepChange,
    changed,
    double_changes,
    mild_changes,
    offloading,
    partitions,
    single_changes,
)
from simulator.step.spec import TrainingStep

# Limits on advice: changes tried, among those with a chance to fit, and changes reported.
_MOST_TRIED: Final = 8
_MOST_TOLD: Final = 3
# Most unit passes simulated to try a change (a few seconds); larger changes are not tried.
_MOST_PASSES: Final = 50_000
# Most unit passes listed for a change's lower bound (a quarter of a second).
_MOST_LISTED: Final = 200_000


def advice(cluster: Cluster, step: TrainingStep, jitter: Jitter) -> str:
    """Return a text with a training step's memory need and changes that make the step fit, as few changes as possible.

    If no change fits, the nearest change is named, provided that it needs less memory than the step itself.
    """
    # Only memory matters here, so real training is omitted.
    bare = replace(step, lesson=None)
    least = least_need(cluster, bare)
    need_text = f"the whole step needs at least {format_memory(least)}; " if least > cluster.gpus[0].hbm_bytes else ""
    per_node = min(map(len, cluster.nodes), default=1)
    mild = mild_changes(bare, cluster.world_size, fullest_end(cluster, bare))
    cuts = partitions(step, cluster.world_size, per_node)
    host = offloading(bare)
    tried: list[Alternative] = []
    for tier in _tiers(bare, mild, cuts, host, lambda change: _fits(cluster, change, jitter)):
        fitting = _fitting(cluster, tier, jitter)
        if fitting:
            return f"{need_text}changes that make the step fit: {'; '.join(fitting)}"
        tried += tier
    nearest = _nearest(cluster, tried)
    # Without a simulation, the lower bound is the only known number.
    if nearest is not None and takes_long(nearest.step):
        nbytes = least_need(cluster, nearest.step)
        if nbytes < least:
            tested = "changes with a long simulation were not tested"
            if nbytes > cluster.gpus[0].hbm_bytes:
                tested = "no tested combination of changes is enough"
            return (
                f"{need_text}{tested}; the change with the smallest need: {nearest.text} (needs at least "
                f"{format_memory(nbytes)})"
            )
    elif nearest is not None:
        nbytes = advised_need(cluster, nearest.step, jitter).margin.process
        if nbytes < estimate_memory(cluster, bare).margin.process:
            return (
                f"{need_text}no tested combination of changes is enough; the change with the smallest need: "
                f"{nearest.text} (needs about {format_memory(nbytes)})"
            )
    if any(takes_long(change.step) for change in tried):
        return f"{need_text}no tested change needs less memory, and further changes take long to simulate"
    return f"{need_text}no change needs less memory on this GPU"


def _tiers(
    step: TrainingStep,
    mild: Sequence[StepChange],
    cuts: Sequence[StepChange],
    host: Sequence[StepChange],
    fits: Callable[[Alternative], bool],
) -> Iterator[list[Alternative]]:
    """Yield lists of changed steps, the changes that cost least time first; the caller stops at the first that fits.

    Parameters
    ----------
    mild, cuts, host : sequence of StepChange
        Changes that cost little time; tensor and context parallelism; offload, whose update takes seconds.
    fits : function (alternative) -> bool
        Test whether a changed step fits into memory.
    """
    yield single_changes(step, mild)
    yield double_changes(step, mild)
    yield _together(step, [], mild, fits)
    yield single_changes(step, cuts)
    yield [both for cut in cuts for mild_one in mild if (both := changed(step, [cut, mild_one])) is not None]
    # The largest partition of each kind, the partition of the least memory.
    largest = {cut.kind: cut for cut in cuts}.values()
    yield [both for cut in largest for both in _together(step, [cut], mild, fits)]
    # The update on the host costs most.
    yield single_changes(step, host)
    yield [both for both in double_changes(step, [*mild, *host]) if "offload" in both.kinds]
    yield _together(step, [], [*mild, *host], fits)


def _together(
    step: TrainingStep, fixed: Sequence[StepChange], changes: Sequence[StepChange], fits: Callable[[Alternative], bool]
) -> list[Alternative]:
    """Return a step with the strongest changes of each kind together, without the changes that are not needed.

    Parameters
    ----------
    fixed : sequence of StepChange
        Changes that are always made, and made first.
    changes : sequence of StepChange
        Further changes; changes of one kind are neighbours, the mildest first.
    fits : function (alternative) -> bool
        Test whether a changed step fits into memory.
    """
    kinds = [list(of_kind) for _, of_kind in groupby(changes, key=lambda change: change.kind)]
    strengths: list[StepChange | None] = [of_kind[-1] for of_kind in kinds]

    def alternative() -> Alternative | None:
        listed = [*fixed, *(change for change in strengths if change is not None)]
        return changed(step, listed) if listed else None

    best = alternative()
    if best is None or not fits(best):
        return [] if best is None else [best]
    # The costliest change is weakened first, as far as the step still fits.
    for place in reversed(range(len(kinds))):
        strongest = strengths[place]
        for weaker in (None, *kinds[place][:-1]):
            strengths[place] = weaker
            tried = alternative()
            if tried is not None and fits(tried):
                best = tried
                break
        else:
            strengths[place] = strongest
    return [best]


def _fits(cluster: Cluster, change: Alternative, jitter: Jitter) -> bool:
    """Return True if a changed step fits into memory and does not take long to simulate."""
    least = None if takes_long(change.step) else _least(cluster, change.step)
    return least is not None and least <= cluster.gpus[0].hbm_bytes and advised_need(cluster, change.step, jitter).fits


def _fitting(cluster: Cluster, tried: Sequence[Alternative], jitter: Jitter) -> list[str]:
    """Return texts with the smallest change of each kind after which the step fits, and its memory need."""
    hbm, fitting, left = cluster.gpus[0].hbm_bytes, dict[tuple[str, ...], str](), _MOST_TRIED
    for change in tried:
        if not left or len(fitting) == _MOST_TOLD:
            break
        # Changes are sorted by size: the first that fits is the smallest in its kind.
        least = None if change.kinds in fitting or takes_long(change.step) else _least(cluster, change.step)
        if least is None or least > hbm:
            continue
        left -= 1
        needed = advised_need(cluster, change.step, jitter)
        if needed.fits:
            fitting[change.kinds] = f"{change.text} ({_needs(needed)})"
    return list(fitting.values())


def _needs(needed: MemoryNeed) -> str:
    """Return a text with the memory of the process that a simulated change needs."""
    text = f"needs about {format_memory(needed.margin.process)}"
    return text if needed.whole else f"{text}, estimated from a rank of each stage"


def _nearest(cluster: Cluster, tried: Sequence[Alternative]) -> Alternative | None:
    """Return the changed step with the smallest lower bound on memory; None if no change is possible."""
    bounds = [
        (least, number) for number, change in enumerate(tried) if (least := _least(cluster, change.step)) is not None
    ]
    return tried[min(bounds)[1]] if bounds else None


def takes_long(step: TrainingStep) -> bool:
    """Return True if simulating all passes of a training step takes more than a few seconds."""
    return passes_of(step) > _MOST_PASSES


def _least(cluster: Cluster, step: TrainingStep) -> int | None:
    """Return a step's lower bound on memory [B]; None if the step is impossible, or listing its passes takes long."""
    if passes_of(step) > _MOST_LISTED:
        return None
    try:
        return least_need(cluster, step)
    except ValueError:
        return None
