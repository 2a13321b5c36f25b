"""What ends a job whose GPU has died or whose link is down? The watchdog of the collectives, after its time.

NCCL's watchdog in PyTorch waits for 10 minutes by default (`torch.distributed.init_process_group`, timeout); a step in
which every collective ends earlier goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from simulator.basics.errors import DeadlockError, SimulationError
from simulator.basics.units import format_duration, format_time
from simulator.cluster.changes import EventSpec
from simulator.records.program import Program
from simulator.records.setting_text import label
from simulator.records.timeline import Timeline


class StoppedError(SimulationError):
    """Error: the watchdog of the collectives ends the job.

    Attributes
    ----------
    time : float
        When the job ends [s].
    """

    def __init__(self, time: float, message: str) -> None:
        self.time = time
        super().__init__(message)


@contextmanager
def watched(watchdog: float | None, events: Sequence[EventSpec]) -> Iterator[None]:
    """Let a deadlock in a block end the job by its watchdog [s]; None: there is none, and the deadlock is raised, with
    the events that never end.
    """
    try:
        yield
    except DeadlockError as error:
        if watchdog is not None:
            raise _stopped(error, watchdog) from error
        if forever := [event for event in events if event.factor == 0.0 and event.lasts is None]:
            what = label("cluster.events", forever)
            why = "for good, because lasts is omitted"
            if any(event.reroute_after is not None for event in forever):
                why += ", and some transfers have no other route"
            error.args = (f"{what} {why}, and the step cannot end; {error.args[0]}",)
        raise


def _stopped(error: DeadlockError, watchdog: float) -> StoppedError:
    """Return the error of a job that ends by its watchdog `watchdog` seconds after the last thing that happened."""
    time = error.time + watchdog
    # A collective that waits, rather than an operation that waits for its own rank.
    first = min(error.waiting.items(), key=lambda pair: pair[1].startswith("its own"))
    return StoppedError(
        time,
        f"the watchdog ends the job at {format_duration(time)}: {first[0]} has waited for {first[1]} since "
        f"{format_time(error.time)} (cluster.watchdog: {format_duration(watchdog)})",
    )


def check_waits(program: Program, timeline: Timeline, watchdog: float | None) -> None:
    """Raise StoppedError if a rank waits in a collective of a program for longer than the watchdog allows [s]."""
    if watchdog is None:
        return
    collectives = program.collectives()
    late = [span for span in timeline.spans if span.end - span.start > watchdog and span.name in collectives]
    if late:
        first = min(late, key=lambda span: (span.start, span.rank))
        time = first.start + watchdog
        raise StoppedError(
            time,
            f"the watchdog ends the job at {format_duration(time)}: {first.name} takes "
            f"{format_time(first.end - first.start)} on rank {first.rank} (cluster.watchdog: "
            f"{format_duration(watchdog)})",
        )
