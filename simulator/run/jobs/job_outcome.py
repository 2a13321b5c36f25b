"""What became of several jobs on one cluster: each job's steps, shared links, later starts, and what they say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simulator.basics.counts import number_of
from simulator.basics.units import format_time
from simulator.records.setting_text import label
from simulator.records.timeline import Span, Timeline
from simulator.run.jobs.joined_program import AVERAGE, EXCHANGES, Phase
from simulator.run.jobs.outer import OuterRound
from simulator.scenario.jobs_file import JobSetting, JobsFile

# Slowdown below which a job counts as undisturbed.
FELT: Final = 0.005
# Changes of the slowdown by a later start that are worth a sentence.
_SHIFT_HELPS: Final = 0.01
# Share of the GPUs from which another division between generation and training is told.
_UNEVEN: Final = 0.05


@dataclass(frozen=True, slots=True)
class JobOutcome:
    """What a job does beside the others."""

    name: str  # name of the job
    ranks: int  # number of its GPUs
    start: float  # when it begins [s]
    alone: float  # mean time of a step if the other jobs do not run [s]
    healthy: float  # the same with every link at its rating [s]
    step_ends: tuple[float, ...]  # when each step ends [s]
    # Steps during which every other job was running; every step if there is none.
    judged: tuple[int, ...]
    nbytes: float  # bytes that it sends, each transfer counted once [B]
    # Number of nodes with its GPUs; None if the topology has no nodes.
    nodes: int | None = None
    # Leaf switches of its GPUs; empty if the topology has none.
    leaf_switches: tuple[str, ...] = ()
    phases: tuple[Phase, ...] = ()  # work on a batch before its training

    @property
    def step_times(self) -> tuple[float, ...]:
        """Time of each step [s].

        >>> JobOutcome("chat", 8, 1.0, 1.0, 1.0, (2.0, 3.5), (1,), 0.0).step_times
        (1.0, 1.5)
        """
        return tuple(end - begin for begin, end in zip((self.start, *self.step_ends), self.step_ends, strict=False))

    @property
    def together(self) -> float:
        """Mean time of the judged steps [s]."""
        times = self.step_times
        return sum(times[step] for step in self.judged) / len(self.judged)

    @property
    def slowdown(self) -> float:
        """Step time beside the others over step time alone.

        >>> JobOutcome("chat", 8, 0.0, alone=1.0, healthy=1.0, step_ends=(1.0, 2.5), judged=(1,), nbytes=0.0).slowdown
        1.5
        """
        return self.together / self.alone

    @property
    def slowdown_by_links(self) -> float:
        """Step time alone over the step time alone with every link at its rating."""
        return self.alone / self.healthy


@dataclass(frozen=True, slots=True)
class SharedLink:
    """A link that carries bytes of several jobs."""

    name: str  # 'src->dst'
    bandwidth: float  # bandwidth [B/s]
    nbytes: Mapping[str, float]  # bytes of each job that uses it [B]


@dataclass(frozen=True, slots=True)
class Shift:
    """Slowdowns if the last job starts later."""

    delay: float  # how much later the last job starts [s]
    slowdowns: Mapping[str, float]  # slowdown of each job

    @property
    def mean(self) -> float:
        """Mean slowdown of the jobs."""
        return sum(self.slowdowns.values()) / len(self.slowdowns)


def timeline_of(timeline: Timeline, job: str) -> Timeline:
    """Return a timeline with the transfers of one job alone."""
    logs = [log for log in timeline.logs if log.collective.startswith(f"{job} ")]
    return replace(timeline, logs=logs, links=())


def step_of(span: Span, job: str) -> int | None:
    """Return the step of a job that a span belongs to; None for other jobs, for the job's start, and for averages.

    An average belongs to every copy, and goes on during later steps.

    >>> names = "chat 2 forward layer 0", "start chat", "code 2 forward layer 0"
    >>> [step_of(Span(0, "compute", name, "forward", 0.0, 1.0), "chat") for name in names]
    [2, None, None]
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


def sentences(
    file: JobsFile,
    jobs: Sequence[JobOutcome],
    links: Sequence[SharedLink],
    shifts: Sequence[Shift],
    rounds: Sequence[OuterRound],
) -> tuple[str, ...]:
    """Return the answer in sentences, the most important first."""
    if rounds:
        return tuple(sentence for outer_round in rounds for sentence in outer_round.sentences)
    slow = tuple(_on_slow_links(file, jobs))
    generations = (*_on_generations(file, jobs), *_on_rollouts(file))
    if coupled := tuple(_on_batches(file, jobs)):
        return (*coupled, *generations, *slow)
    return (*generations, *slow, *_on_sharing(file, jobs, links, shifts))


def _on_sharing(
    file: JobsFile, jobs: Sequence[JobOutcome], links: Sequence[SharedLink], shifts: Sequence[Shift]
) -> tuple[str, ...]:
    """Return sentences on what the jobs cost each other."""
    events = label("cluster.events", file.events)
    if len(jobs) == 1:
        # The time of a batch says more than the mean of steps with and without generation.
        if file.jobs[0].generation and not file.events:
            return ()
        return (_on_one_job(jobs[0], events if file.events else ""),)
    felt = [job for job in jobs if job.slowdown > 1.0 + FELT]
    if not felt and file.events:
        return (f"Neither the other jobs nor the events ({events}) slow a job down.",)
    if not felt:
        if not links:
            return ("The jobs do not slow each other down: they share no link.",)
        return (f"The jobs share {_links(len(links))} and do not slow each other down: no shared link holds them up.",)
    lines = list(_on_slowdowns(jobs, max(felt, key=lambda job: job.slowdown)))
    if links:
        first = links[0]
        parts = " and ".join(
            f"{job} {100 * nbytes / sum(first.nbytes.values()):.0f} %" for job, nbytes in first.nbytes.items()
        )
        lines.append(f"The jobs share {_links(len(links))}; the bytes on {first.name} take longest ({parts} of them).")
        lines += _on_priorities(file)
    if file.events:
        lines.append(f"The events count, too: {events}; alone means without them.")
    return (*lines, shift_sentence(jobs, shifts)) if shifts else tuple(lines)


def shift_sentence(jobs: Sequence[JobOutcome], shifts: Sequence[Shift]) -> str:
    """Return a sentence on the start of the last job; empty if no later start was tried."""
    if not shifts:
        return ""
    best, last = min(shifts, key=lambda shift: shift.mean), jobs[-1].name
    now = Shift(0.0, {job.name: job.slowdown for job in jobs})
    if best.mean < now.mean - _SHIFT_HELPS:
        return (
            f"If job {last} starts {format_time(best.delay)} later, the jobs take {best.mean:.3g} instead of "
            f"{now.mean:.3g} times as long in the mean."
        )
    return f"No other start of job {last} makes the jobs faster in the mean ({len(shifts)} tried)."


def _on_one_job(job: JobOutcome, events: str) -> str:
    """Return a sentence on a job without others; `events` names what happens to the cluster."""
    if not events:
        return f"Job {job.name} runs alone: {format_time(job.alone)} a step."
    return (
        f"Job {job.name} takes {format_time(job.step_ends[-1] - job.start)} for {len(job.step_ends)} steps "
        f"with {events}, {format_time(job.alone * len(job.step_ends))} without."
    )


def slow_links(file: JobsFile) -> dict[str, float]:
    """Return the factors below 1 on the bandwidth of links, by link or pattern; a faster link is no slow one."""
    return {link: factor for link, factor in file.jobs[0].cluster.link_factors.items() if factor < 1.0}


def _on_slow_links(file: JobsFile, jobs: Sequence[JobOutcome]) -> Iterator[str]:
    """Yield a sentence on what slow links cost each job without the others; nothing if every link is healthy."""
    factors = slow_links(file)
    if not factors:
        return
    slow = label("cluster.link_factors", factors)
    felt = sorted((job for job in jobs if job.slowdown_by_links > 1.0 + FELT), key=lambda job: -job.slowdown_by_links)
    if not felt:
        yield f"The slow links ({slow}) slow no job down."
        return
    each = " and ".join(
        f"job {job.name} {job.slowdown_by_links:.3g} times as long ({format_time(job.alone)} a step, "
        f"{format_time(job.healthy)} on healthy links)"
        for job in felt
    )
    spared = [job.name for job in jobs if job not in felt]
    rest = f"; {' and '.join(spared)} {'is' if len(spared) == 1 else 'are'} not affected" if spared else ""
    yield f"Slow links ({slow}) make {each}{rest}."


def _on_generations(file: JobsFile, jobs: Sequence[JobOutcome]) -> Iterator[str]:
    """Yield a sentence on a batch of each job that generates and trains on the same GPUs."""
    for setting, job in zip(file.jobs, jobs, strict=True):
        if setting.scenario is None or not setting.generation:
            continue
        batch = job.together * setting.steps_per_batch
        yield (
            f"{_batch(setting)} takes job {job.name} {format_time(batch)}{_in_parts(job, batch)}, with "
            f"{number_of(setting.steps_per_batch, 'training step')} on the same {number_of(job.ranks, 'GPU')}."
        )


def _in_parts(job: JobOutcome, batch: float) -> str:
    """Return the parts of a job's time for a batch in brackets; nothing if there is a single part.

    >>> from simulator.run.jobs.joined_program import Phase
    >>> _in_parts(JobOutcome("a", 8, 0.0, 1.0, 1.0, (), (), 0.0, phases=(Phase("generate", "generation", 5.0),)), 7.0)
    ' (5 s of generation, 2 s of training)'
    """
    parts = [(phase.seconds, phase.says) for phase in job.phases]
    training = batch - sum(seconds for seconds, _ in parts)
    # Rounding is no training.
    parts += [(training, "training")] if training > 1e-9 * batch else []
    return f" ({', '.join(f'{format_time(seconds)} of {says}' for seconds, says in parts)})" if len(parts) > 1 else ""


def _on_rollouts(file: JobsFile) -> Iterator[str]:
    """Yield a sentence on each generation of answers, and on the time in which few of them are left."""
    for job in file.jobs:
        rollout = job.rollout
        if rollout is None or rollout.generated is None:
            continue
        mean = (job.tokens or 0) / rollout.answers - rollout.prompt
        engines = job.cluster.world_size // rollout.tp
        tail = format_time(rollout.generated.tail)
        few = (
            f"; for the last {tail}, at most a tenth of an engine's answers are live" if rollout.generated.tail else ""
        )
        yield (
            f"Job {job.name} generates {rollout.answers:,} answers of {mean:,.0f} tokens in the mean on "
            f"{number_of(engines, 'engine')} of {number_of(rollout.tp, 'GPU')} in "
            f"{format_time(rollout.generated.seconds)}{few}."
        )


def _batch(generator: JobSetting) -> str:
    """Return "A batch" with its tokens if they are given."""
    return f"A batch of {generator.tokens:,} tokens" if generator.tokens else "A batch"


def _on_slowdowns(jobs: Sequence[JobOutcome], worst: JobOutcome) -> Iterator[str]:
    """Yield a sentence on each job beside the others, the one that loses most first."""
    yield (
        f"Job {worst.name} loses most: {format_time(worst.together)} a step beside the others, "
        f"{format_time(worst.alone)} alone ({worst.slowdown:.3g} times as long)."
    )
    for job in jobs:
        if job is worst:
            continue
        if job.slowdown > 1.0 + FELT:
            yield (
                f"Job {job.name}: {format_time(job.together)} beside the others, {format_time(job.alone)} alone "
                f"({job.slowdown:.3g} times as long)."
            )
        else:
            yield f"The other jobs cost job {job.name} nothing ({format_time(job.alone)} a step)."


def _on_priorities(file: JobsFile) -> list[str]:
    """Return a sentence on the priorities of the jobs; nothing if all are equal."""
    if len({job.priority for job in file.jobs}) == 1:
        return []
    each = ", ".join(f"{job.name} {job.priority}" for job in file.jobs)
    return [f"On a full link, transfers share the bandwidth in proportion to the priorities of their jobs ({each})."]


def _on_batches(file: JobsFile, jobs: Sequence[JobOutcome]) -> Iterator[str]:
    """Yield sentences on each training that takes its batches from another job."""
    of_name = {job.name: job for job in jobs}
    for setting in file.jobs:
        if setting.batches_from is None:
            continue
        trainer, maker = of_name[setting.name], of_name[setting.batches_from]
        # From the batch after which the generation waits for weights.
        ends = maker.step_ends[min(setting.lag, len(maker.step_ends) - 1) :]
        period = (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else trainer.step_ends[-1] - trainer.start
        training = trainer.alone * setting.steps_per_batch
        yield (
            f"{_batch(next(other for other in file.jobs if other.name == maker.name))} takes {format_time(period)}: "
            f"{maker.name} generates for {format_time(maker.alone)}, {trainer.name} trains for {format_time(training)}."
        )
        parts = [
            f"{job.name}{text}"
            for job, seconds in ((maker, maker.alone), (trainer, training))
            if (text := _in_parts(job, seconds))
        ]
        if parts:
            yield f"In parts: {', '.join(parts)}."
        yield (
            f"The {maker.ranks} GPUs of {maker.name} generate {100 * maker.alone / period:.0f} % of the time, the "
            f"{trainer.ranks} GPUs of {trainer.name} train {100 * training / period:.0f} %."
        )
        gpus, work = maker.ranks + trainer.ranks, maker.alone * maker.ranks
        rollout = next(other.rollout for other in file.jobs if other.name == maker.name)
        # Engines are whole.
        engine = 1 if rollout is None else rollout.tp
        engines = round(gpus / engine * work / (work + training * trainer.ranks))
        better = engine * min((gpus - 1) // engine, max(1, engines))
        # On policy, one of both waits whatever their sizes.
        if setting.lag and abs(better - maker.ranks) > _UNEVEN * gpus:
            yield (
                f"If both scaled with their GPUs, {better} to generate and {gpus - better} to train would be busy "
                "alike."
            )


def _links(number: int) -> str:
    return "a link" if number == 1 else f"{number} links"
