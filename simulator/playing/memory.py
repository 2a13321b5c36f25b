"""Whether a training step fits into memory, known before it is played; and, where it does not, what would.

Rule: one rank of each list of operations is followed (of each stage of a pipeline), for ranks that do the same hold the
same, and its collectives take roughly their time: what is held depends little on when exactly they end. Whoever must
know it to the byte plays the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from simulator.basics.units import format_memory
from simulator.cluster.cluster import Cluster
from simulator.engine.play import play
from simulator.errors import OutOfMemoryError
from simulator.records.program import Program
from simulator.records.timeline import Timeline
from simulator.step.alternatives import alternatives
from simulator.step.plan import ranks_alone
from simulator.step.spec import TrainingStep

# More advice than this nobody reads.
_MOST_TRIED: Final = 6
# Steps on so few ranks are played all the same: that takes a second, and says to the byte and the microsecond.
_FEW_RANKS: Final = 64
# How much more than there is a rank must need for it to be sure, whenever its collectives end.
_SURELY: Final = 1.05


@dataclass(frozen=True, slots=True)
class Need:
    """What a step needs of a rank's memory.

    Attributes
    ----------
    nbytes : int
        Most that is held [B].
    reserved : int
        Most that the allocator holds from the device [B].
    fits : bool
    """

    nbytes: int
    reserved: int
    fits: bool


def need(cluster: Cluster, step: TrainingStep, *, at_once: bool = False) -> Need:
    """What a step needs, about: a few parts in a hundred where ranks keep step.

    Slow ranks and parameter servers keep buffers for longer or shorter; `at_once`, collectives take no time, and
    nothing is held for them any longer than it must be.
    """
    stages = [_followed(cluster, program, step, limit=False) for program in ranks_alone(cluster, step, at_once=at_once)]
    most = max(timeline.peak.nbytes if timeline.peak else 0 for timeline in stages)
    reserved = max(max(timeline.reserved.values(), default=most) for timeline in stages)
    return Need(most, reserved, not any(timeline.short_of_memory for timeline in stages))


def refuse_unfit(cluster: Cluster, step: TrainingStep) -> None:
    """Raise OutOfMemoryError where a step on many ranks surely does not fit."""
    few = cluster.world_size <= _FEW_RANKS or step.lesson is not None
    if few or need(cluster, step, at_once=True).nbytes <= _SURELY * cluster.gpus[0].hbm_bytes:
        return
    try:
        for program in ranks_alone(cluster, step):
            _followed(cluster, program, step, limit=True)
    except OutOfMemoryError as error:
        if error.time:
            error.args = (error.args[0].replace("memory at ", "memory at about "),)
        raise


def _followed(cluster: Cluster, program: Program, step: TrainingStep, *, limit: bool) -> Timeline:
    return play("auto", program, cluster, limit_memory=limit, allocator=step.allocator)


def advice(cluster: Cluster, step: TrainingStep) -> str:
    """Changes of one setting that fit; where none does, what comes nearest."""
    fitting: list[str] = []
    lacking: list[tuple[int, str]] = []
    for number, (change, changed) in enumerate(alternatives(step, cluster.world_size)):
        if number == _MOST_TRIED:
            break
        needed = need(cluster, changed)
        if needed.fits:
            fitting.append(f"{change} (needs about {format_memory(needed.nbytes)})")
        else:
            # Where the bytes would fit but not their fragments, what is reserved says what is missing.
            lacking.append((max(needed.nbytes, needed.reserved), change))
    if fitting:
        return "tried, and fits: " + "; ".join(fitting[:3])
    if lacking:
        nearest, change = min(lacking)
        return f"no single change that was tried fits; nearest: {change} (needs about {format_memory(nearest)})"
    return "nothing smaller is left to try on this GPU"
