"""What became of several jobs on one cluster: each job's steps, the links that jobs share, and later starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from simulator.jobs.program import AVERAGE, EXCHANGES
from simulator.records.timeline import Span, Timeline


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What a job does beside the others.

    Attributes
    ----------
    name : str
        Name of the job.
    ranks : int
        Number of its GPUs.
    start : float
        When it begins [s].
    alone : float
        Mean time of a step if the other jobs do not run [s].
    step_ends : tuple of float
        When each step ends [s].
    judged : tuple of int
        Steps during which every other job was running; every step if there is none.
    nbytes : float
        Bytes that it sends, each transfer counted once [B].
    """

    name: str
    ranks: int
    start: float
    alone: float
    step_ends: tuple[float, ...]
    judged: tuple[int, ...]
    nbytes: float

    @property
    def step_times(self) -> tuple[float, ...]:
        """Time of each step [s]."""
        return tuple(end - begin for begin, end in zip((self.start, *self.step_ends), self.step_ends, strict=False))

    @property
    def together(self) -> float:
        """Mean time of the judged steps [s]."""
        times = self.step_times
        return sum(times[step] for step in self.judged) / len(self.judged)

    @property
    def slowdown(self) -> float:
        """Step time beside the others over step time alone."""
        return self.together / self.alone


@dataclass(frozen=True, slots=True)
class SharedLink:
    """A link that carries bytes of several jobs.

    Attributes
    ----------
    name : str
        'src->dst'.
    bandwidth : float
        Bandwidth [B/s].
    nbytes : mapping of str to float
        Bytes of each job that uses it [B].
    """

    name: str
    bandwidth: float
    nbytes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Shift:
    """Slowdowns if the last job starts later.

    Attributes
    ----------
    delay : float
        How much later the last job starts [s].
    slowdowns : mapping of str to float
        Slowdown of each job.
    """

    delay: float
    slowdowns: Mapping[str, float]

    @property
    def mean(self) -> float:
        """Mean slowdown of the jobs."""
        return sum(self.slowdowns.values()) / len(self.slowdowns)


def timeline_of(timeline: Timeline, job: str) -> Timeline:
    """Return a timeline with the transfers of one job alone."""
    own = [log for log in timeline.logs if log.collective.startswith(f"{job} ")]
    return replace(timeline, logs=own, links=())


def step_of(span: Span, job: str) -> int | None:
    """Return the step of a job that a span belongs to; None for other jobs, for the job's start, and for averages.

    Names are "a 2 forward layer 0", and "start a". An average belongs to every copy, and goes on during later steps.
    """
    words = span.name.split(" ", 2)
    if len(words) < 3 or words[0] != job or span.stream == AVERAGE:
        return None
    return int(words[1])


def steps_at_work(timeline: Timeline, job: JobOutcome) -> tuple[tuple[float, float], ...]:
    """Return when each step of a job begins to work, after its waiting for other jobs, and when it ends [s]."""
    begins = list(job.step_ends)
    for span in timeline.spans:
        step = step_of(span, job.name)
        if step is not None and span.stream not in EXCHANGES:
            begins[step] = min(begins[step], span.start)
    before = (job.start, *job.step_ends)
    return tuple((max(begins[step], before[step]), end) for step, end in enumerate(job.step_ends))
