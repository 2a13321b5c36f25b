"""Which changes would make a step fit into memory that does not?

Rule: nothing is advised that was not tried (`memory.checked_need`). Changes that cannot fit are left out by what they
need at least, which takes no time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from simulator.basics.units import format_memory
from simulator.cluster.cluster import Cluster
from simulator.engine.jitter import Jitter
from simulator.playing.memory import checked_need, least_need, need
from simulator.step.alternatives import Alternative, double_changes, single_changes
from simulator.step.spec import TrainingStep

# Changes that are tried of those that may fit, and those that are told: more advice nobody reads.
_MOST_TRIED: Final = 6
_MOST_TOLD: Final = 3
# Passes of a unit that are simulated to try a change, in a few seconds; a change that needs more is left out.
_MOST_PASSES: Final = 50_000


def advice(cluster: Cluster, step: TrainingStep, jitter: Jitter) -> str:
    """What the whole step needs, and changes of one setting that fit; of two where one is not enough.

    Where no two changes fit either, the ones that come nearest are told, if they need less than the step itself.
    """
    bare = replace(step, lesson=None)
    least = least_need(cluster, bare)
    told = f"the whole step needs at least {format_memory(least)}; " if least > cluster.gpus[0].hbm_bytes else ""
    singles, doubles = (made(bare, cluster.world_size) for made in (single_changes, double_changes))
    fitting = _fitting(cluster, singles, jitter) or _fitting(cluster, doubles, jitter)
    if fitting:
        return f"{told}tried, and fits: {'; '.join(fitting)}"
    nearest = _nearest(cluster, [*singles, *doubles], jitter)
    if nearest is None or nearest[0] >= need(cluster, bare).most:
        return f"{told}nothing smaller is left to try on this GPU"
    nbytes, text = nearest
    return f"{told}no two changes that were tried fit; nearest: {text} (needs about {format_memory(nbytes)})"


def _fitting(cluster: Cluster, tried: Sequence[Alternative], jitter: Jitter) -> list[str]:
    """The least change of each kind that fits, and what it needs; not more than anybody reads."""
    hbm, fitting, left = cluster.gpus[0].hbm_bytes, dict[tuple[str, ...], str](), _MOST_TRIED
    for one in tried:
        if not left or len(fitting) == _MOST_TOLD:
            break
        least = None if one.kinds in fitting else _least(cluster, one.step)
        if least is None or least > hbm:
            continue
        left -= 1
        needed = checked_need(cluster, one.step, jitter)
        if needed.fits:
            fitting[one.kinds] = f"{one.text} (needs about {format_memory(needed.nbytes)})"
    return list(fitting.values())


def _nearest(cluster: Cluster, tried: Sequence[Alternative], jitter: Jitter) -> tuple[int, str] | None:
    """The change after which least is needed [B]; None where none can be made."""
    bounds = [(least, number) for number, one in enumerate(tried) if (least := _least(cluster, one.step)) is not None]
    if not bounds:
        return None
    one = tried[min(bounds)[1]]
    return checked_need(cluster, one.step, jitter).most, one.text


def _least(cluster: Cluster, step: TrainingStep) -> int | None:
    """What a step needs at least [B]; None where there is no such step, or trying it would take long."""
    if 2 * step.accumulation * (step.model.num_layers + 2) > _MOST_PASSES:
        return None
    try:
        return least_need(cluster, step)
    except ValueError:
        return None
