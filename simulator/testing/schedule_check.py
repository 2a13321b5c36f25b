"""Does a pipeline schedule keep the laws of schedules? Small pipelines of every shape that it does not refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.basics.foreign_code import located
from simulator.step.pipelines.schedule import SCHEDULES, PipelineSchedule, PipelineShape
from simulator.testing import schedule_laws as laws
from simulator.testing.law import PartCheck, judged

_RANKS: Final = (2, 3, 4)
# Stages per rank, if the user chooses.
_CHUNKS: Final = (1, 2, 3)
# The laws about an order, in the sequence in which a mistake is best understood.
_LAWS: Final[dict[str, Callable[[PipelineSchedule, PipelineShape], bool | None]]] = {
    "every pass once": laws.has_every_pass_once,
    "slots of one pass, or of two": laws.pairs_as_declared,
    "no deadlock": laws.can_be_played,
    "closed form of the bubble": laws.has_its_bubble,
    "activations in memory": laws.holds_what_it_declares,
}


def check_schedule(schedule: str | Path) -> PartCheck:
    """Check a pipeline schedule: every pass once, no deadlock, bubble, activations in memory, both engines.

    `schedule` is the path of a file with a SCHEDULE, or a shipped name. Raises ScenarioError if the file declares no
    schedule, or if the schedule refuses every shape of the check.

    >>> check_schedule("gpipe").lines()[0]
    'gpipe: keeps the laws of pipeline schedules, checked with 42 shapes of 2 to 4 ranks'
    """
    name = str(schedule)
    record = SCHEDULES.find(name)
    shapes = list(_shapes(record))
    if not shapes:
        refused = record.refusal(PipelineShape(_RANKS[0], 4 * _RANKS[0], record.chunks or 1, _RANKS[0]))
        raise ScenarioError(f"{name}: refuses every shape of 2 to 4 ranks, for example: {refused}")
    results = [
        judged("", law, ((_words(shape), partial(check, record, shape)) for shape in shapes))
        for law, check in _LAWS.items()
    ]
    if not any(result.fault for result in results):
        # Only a sound order is simulated: other orders deadlock.
        simulated = partial(laws.is_simulated, located(name), record)
        few = {(shape.ranks, shape.chunks): shape for shape in shapes}.values()
        results.append(judged("", "the same time in both engines", ((_words(s), partial(simulated, s)) for s in few)))
    tried = f"{len(shapes)} shapes of {shapes[0].ranks} to {shapes[-1].ranks} ranks"
    return PartCheck(name, "pipeline schedules", tuple(results), tried)


def _shapes(schedule: PipelineSchedule) -> Iterator[PipelineShape]:
    """Yield the shapes of the check that a schedule accepts."""
    for ranks in _RANKS:
        for chunks in _CHUNKS if schedule.chunks is None else (schedule.chunks,):
            for group in (ranks, ranks + 1) if schedule.grouped else (ranks,):
                for micro_batches in range(1, 4 * ranks + 3):
                    shape = PipelineShape(ranks, micro_batches, chunks, group)
                    if not schedule.refusal(shape):
                        yield shape


def _words(shape: PipelineShape) -> str:
    chunks = f", {shape.chunks} stages per rank" if shape.chunks > 1 else ""
    return f"{shape.ranks} ranks, {shape.micro_batches} micro-batches{chunks}"
