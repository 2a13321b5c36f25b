"""Which changes would make a step fit into memory? Every change named here was tried (`memory.checked_need`).

Changes that cannot fit are excluded by their lower bound on memory, which takes no time. A change that takes long to
simulate is named with its lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from simulator.basics.units import format_memory
from simulator.cluster.cluster import Cluster
from simulator.engine.jitter import Jitter
from simulator.run.memory import checked_need, estimate_memory, least_need
from simulator.step.alternatives import Alternative, double_changes, single_changes
from simulator.step.spec import TrainingStep

# Limits on advice: changes tried, among those with a chance to fit, and changes reported.
_MOST_TRIED: Final = 6
_MOST_TOLD: Final = 3
# Most unit passes simulated to try a change (a few seconds); larger changes are not tried.
_MOST_PASSES: Final = 50_000
# Most unit passes listed for a change's lower bound (a quarter of a second).
_MOST_LISTED: Final = 200_000


def advice(cluster: Cluster, step: TrainingStep, jitter: Jitter) -> str:
    """Return a text with a training step's memory need and single changes that make it fit, else pairs of changes.

    If no pair fits either, the nearest change is named, provided that it needs less memory than the step itself.
    """
    # Only memory matters here, so real training is omitted.
    bare = replace(step, lesson=None)
    least = least_need(cluster, bare)
    told = f"the whole step needs at least {format_memory(least)}; " if least > cluster.gpus[0].hbm_bytes else ""
    singles, doubles = (made(bare, cluster.world_size) for made in (single_changes, double_changes))
    # Pairs are tried only if no single change fits.
    fitting = _fitting(cluster, singles, jitter) or _fitting(cluster, doubles, jitter)
    if fitting:
        return f"{told}changes that make the step fit: {'; '.join(fitting)}"
    changes = [*singles, *doubles]
    nearest = _nearest(cluster, changes)
    # Without a simulation, the lower bound is the only known number.
    if nearest is not None and _takes_long(nearest.step):
        nbytes = least_need(cluster, nearest.step)
        if nbytes < least:
            return (
                f"{told}changes with a long simulation were not tested; the change with the smallest need: "
                f"{nearest.text} (needs at least {format_memory(nbytes)})"
            )
    elif nearest is not None:
        nbytes = checked_need(cluster, nearest.step, jitter).most
        if nbytes < estimate_memory(cluster, bare).most:
            return (
                f"{told}no tested pair of changes is enough; the change with the smallest need: {nearest.text} "
                f"(needs about {format_memory(nbytes)})"
            )
    if any(_takes_long(one.step) for one in changes):
        return f"{told}no tested change needs less memory, and further changes take long to simulate"
    return f"{told}no change needs less memory on this GPU"


def _fitting(cluster: Cluster, tried: Sequence[Alternative], jitter: Jitter) -> list[str]:
    """Return texts with the smallest change of each kind after which the step fits, and its memory need."""
    hbm, fitting, left = cluster.gpus[0].hbm_bytes, dict[tuple[str, ...], str](), _MOST_TRIED
    for one in tried:
        if not left or len(fitting) == _MOST_TOLD:
            break
        # Changes are sorted by size: the first that fits is the smallest in its kind.
        least = None if one.kinds in fitting or _takes_long(one.step) else _least(cluster, one.step)
        if least is None or least > hbm:
            continue
        left -= 1
        needed = checked_need(cluster, one.step, jitter)
        if needed.fits:
            fitting[one.kinds] = f"{one.text} (needs about {format_memory(needed.nbytes)})"
    return list(fitting.values())


def _nearest(cluster: Cluster, tried: Sequence[Alternative]) -> Alternative | None:
    """Return the changed step with the smallest lower bound on memory; None if no change is possible."""
    bounds = [(least, number) for number, one in enumerate(tried) if (least := _least(cluster, one.step)) is not None]
    return tried[min(bounds)[1]] if bounds else None


def _passes(step: TrainingStep) -> int:
    """Return the number of forward and backward passes over layers, embedding and head in a training step."""
    return 2 * step.accumulation * (step.model.num_layers + 2)


def _takes_long(step: TrainingStep) -> bool:
    """Return True if simulating all passes of a training step takes more than a few seconds."""
    return _passes(step) > _MOST_PASSES


def _least(cluster: Cluster, step: TrainingStep) -> int | None:
    """Return a step's lower bound on memory [B]; None if the step is impossible, or listing its passes takes long."""
    if _passes(step) > _MOST_LISTED:
        return None
    try:
        return least_need(cluster, step)
    except ValueError:
        return None
