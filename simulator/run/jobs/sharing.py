"""What do several jobs on one cluster cost each other? Each is simulated alone and with the others on shared links.

A job's slowdown is its mean step time with the others over its step time alone. Only steps during which every other
job was running count, because a job that has ended costs nobody anything; without such a step all steps count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.errors import OutOfMemoryError, ScenarioError
from simulator.basics.progress import stage
from simulator.cluster.build import TopologyFacts, facts
from simulator.cluster.cluster import Cluster
from simulator.cluster.leaf_switches import leaf_switches
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.play import Engine, play
from simulator.model.model import modules
from simulator.model.partition import WHOLE
from simulator.records.operation import Collective, Compute
from simulator.records.program import Program
from simulator.records.timeline import LinkUse, Timeline, by_rank
from simulator.report.numbers.headline import HasSentences
from simulator.report.numbers.link_use import link_uses
from simulator.report.tables.answer_table import AnswerTable
from simulator.run.jobs.job_outcome import (
    JobOutcome,
    SharedLink,
    Shift,
    sentences,
    shift_sentence,
    slow_links,
    step_of,
    timeline_of,
)
from simulator.run.jobs.job_tables import job_table, link_table, shift_table, step_table
from simulator.run.jobs.joined_program import BatchExchange, JobProgram, OuterAverage, joined
from simulator.run.jobs.outer import OuterRound, simulated_steps, window_time
from simulator.run.jobs.rollouts import GENERATE, generation_phases, training_phases, with_rollouts
from simulator.run.watchdog import watched
from simulator.scenario import own_parts
from simulator.scenario.build_cluster import network_time, placed, to_cluster
from simulator.scenario.build_training import to_step
from simulator.scenario.jobs_file import JobSetting, JobsFile, OuterSetting
from simulator.step.plan import plan_step
from simulator.step.spec import TrainingStep
from simulator.step.strategies.strategy import STRATEGIES

if TYPE_CHECKING:
    import pandas as pd

# Steps of the slowest job, if a file gives no number; faster jobs have as many as fit into the same time.
_STEPS: Final = 6
# Batches of a training that takes them from another job, beside its lag.
_BATCHES: Final = 5
# Most steps of a job without a given number.
_MOST_STEPS: Final = 200
# Most operations of which all are kept.
_MOST_KEPT: Final = 200_000


@dataclass(frozen=True, slots=True, repr=False)
class SharedRun(HasSentences):
    """Several jobs, simulated together.

    Attributes
    ----------
    file : JobsFile
        What was asked.
    jobs : tuple of JobOutcome
        Outcome of each job.
    links : tuple of SharedLink
        Links with bytes of several jobs, the one whose bytes take longest first.
    shifts : tuple of Shift
        Slowdowns with later starts of the last job; empty if none was tried.
    timeline : Timeline
        Operations of all jobs; ranks are numbered job by job.
    rounds : tuple of OuterRound
        Times of trainings in copies.
    """

    file: JobsFile
    jobs: tuple[JobOutcome, ...]
    links: tuple[SharedLink, ...]
    shifts: tuple[Shift, ...]
    timeline: Timeline
    rounds: tuple[OuterRound, ...] = ()

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer in sentences, the most important first."""
        return sentences(self.file, self.jobs, self.links, self.shifts, self.rounds)

    def shown(self) -> tuple[str, str]:
        """Return what was asked, and the table of the jobs as HTML."""
        return self.file.question or self.file.source, self.tables[0].frame().to_html(index=False)

    @property
    def shift_sentence(self) -> str:
        """A sentence on the start of the last job; empty if no later start was tried."""
        return shift_sentence(self.jobs, self.shifts)

    @property
    def tables(self) -> tuple[AnswerTable, ...]:
        """The jobs, the links that they share, the later starts that were tried, and the steps of each job."""
        names = [job.name for job in self.jobs]
        tables = [job_table(self.jobs)]
        if self.links:
            tables.append(link_table(self.links, names))
        if self.shifts:
            tables.append(shift_table(self.shifts, names))
        return (*tables, step_table(self.jobs))

    def frame(self) -> pd.DataFrame:
        """Return a row for each job: GPUs, nodes, leaf switches, start [s], steps, step time alone and together [s],
        slowdown, bytes sent.
        """
        return self.tables[0].frame().set_index("job")

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data, times in seconds and sizes in bytes."""
        return {
            "sentences": list(self.sentences),
            "jobs": {
                job.name: {
                    "ranks": job.ranks, "nodes": job.nodes, "leaf_switches": list(job.leaf_switches),
                    "priority": setting.priority, "start_s": job.start,
                    "step_time_healthy_links_s": job.healthy, "step_time_alone_s": job.alone,
                    "step_time_s": job.together, "slowdown": job.slowdown,
                    "steps": len(job.step_ends), "judged_steps": list(job.judged),
                    "step_ends_s": list(job.step_ends), "wire_bytes": job.nbytes,
                }
                for setting, job in zip(self.file.jobs, self.jobs, strict=True)
            },
            "shared_links": [
                {"link": link.name, "bandwidth": link.bandwidth, "nbytes": dict(link.nbytes)} for link in self.links
            ],
            "rounds": {outer_round.setting.name: outer_round.to_dict() for outer_round in self.rounds},
            "shifts": [{"delay_s": shift.delay, "slowdowns": dict(shift.slowdowns)} for shift in self.shifts],
        }  # fmt: skip


def share(file: JobsFile, *, shifts: int = 0) -> SharedRun:
    """Simulate several jobs alone and together, and return what they cost each other.

    Parameters
    ----------
    file : JobsFile
        The jobs.
    shifts : int
        Number of later starts of the last job that are tried, evenly over its step.

    Raises
    ------
    ScenarioError
        A job does not fit on its GPUs, or frameworks with different network constants share the cluster.
    SimulationError
        This machine cannot hold the simulation.
    """
    cluster = _cluster(file)
    file = with_rollouts(file, _parts(replace(cluster, changes=()), file.jobs))
    parts, steps, planned = _planned_alone(cluster, file.jobs)
    once = _times_alone(file, parts, planned)
    programs = [replace(job, steps=number) for job, number in zip(planned, _numbers(file.jobs, once), strict=True)]
    # Alone with as many steps as beside the others: equal circumstances then give equal bits.
    undisturbed = _times_alone(file, parts, programs)
    healthy = _times_on_healthy_links(file, programs) if slow_links(file) else undisturbed
    exchanges, outers = _exchanges(cluster, file.jobs, steps), _outers(cluster, file.jobs, steps)
    with watched(None, file.events):
        timeline = _played(file.engine, cluster, programs, exchanges, outers)
    topology = facts(file.jobs[0].cluster.topology, file.jobs[0].base)
    jobs = _with_places(_outcomes(timeline, programs, undisturbed, healthy), parts, topology)
    rounds = _rounds(file, cluster, jobs)
    tried = []
    for number in range(1, shifts + 1 if len(programs) > 1 else 1):
        delay = number * undisturbed[-1] / (shifts + 1)
        later = [*programs[:-1], replace(programs[-1], start=programs[-1].start + delay)]
        outcomes = _outcomes(_played(file.engine, cluster, later, exchanges, outers), later, undisturbed, healthy)
        tried.append(Shift(delay, {job.name: job.slowdown for job in outcomes}))
    return SharedRun(file, jobs, _shared_links(timeline, programs), tuple(tried), timeline, rounds)


def _numbers(jobs: Sequence[JobSetting], once: Sequence[float]) -> list[int]:
    """Return the number of steps of each job, whose step alone takes `once` [s]; of batches, if it only generates."""
    trainings = {job.batches_from: job for job in jobs if job.batches_from}
    coupled = {job.name for job in trainings.values()} | set(trainings)
    longest = max((time for job, time in zip(jobs, once, strict=True) if job.name not in coupled), default=0.0)
    numbers = []
    for job, time in zip(jobs, once, strict=True):
        trained = trainings.get(job.name, job)
        batches = (
            _BATCHES + trained.lag
            if job.name in coupled
            else -(-math.ceil(_STEPS * longest / time) // job.steps_per_batch)
        )
        if job.outer is not None:
            # An average begins after the first half, and ends within the second.
            numbers.append(2 * simulated_steps(job.outer))
            continue
        steps = trained.steps or max(1, min(_MOST_STEPS // trained.steps_per_batch, batches)) * trained.steps_per_batch
        numbers.append(steps // trained.steps_per_batch if job.scenario is None else steps)
    return numbers


def _cluster(file: JobsFile) -> Cluster:
    """Return the cluster with the GPUs of all jobs, numbered job by job."""
    jobs = file.jobs
    factors = {job.name: network_time(job.scenario.training, job.base) for job in jobs if job.scenario is not None}
    if len(set(factors.values())) > 1:
        text = ", ".join(f"{name} {factor:g}" for name, factor in factors.items())
        raise ScenarioError(
            f"jobs: frameworks have different factors on the network's time ({text}); give all jobs one"
        )
    places: list[int] = []
    stragglers: dict[int, float] = {}
    for job in jobs:
        stragglers |= {len(places) + rank: factor for rank, factor in job.cluster.stragglers.items()}
        places += placed(job.cluster, job.base)
    spec = jobs[0].cluster.replaced(
        world_size=len(places), stragglers=stragglers, placement=tuple(places), events=file.events
    )
    stage("building the cluster")
    return to_cluster(spec, jobs[0].base, network_time=next(iter(factors.values()), 1.0))


def _step(part: Cluster, job: JobSetting) -> TrainingStep | None:
    """Return the training step of a job; None if it only generates."""
    if job.scenario is None or job.scenario.training is None:
        return None
    return to_step(job.scenario.training, part.world_size, job.scenario.base)


def _planned_alone(
    cluster: Cluster, jobs: Sequence[JobSetting]
) -> tuple[list[Cluster], list[TrainingStep | None], list[JobProgram]]:
    """Return each job's part of a cluster without events, its training step and its program without the others."""
    parts = _parts(replace(cluster, changes=()), jobs)
    steps = [_step(part, job) for part, job in zip(parts, jobs, strict=True)]
    of_name = {job.name: job for job in jobs}
    programs = [
        _planned(part, job, step, of_name.get(job.batches_from or job.name))
        for part, job, step in zip(parts, jobs, steps, strict=True)
    ]
    return parts, steps, programs


def _parts(cluster: Cluster, jobs: Sequence[JobSetting]) -> list[Cluster]:
    """Return each job's part of the cluster."""
    sizes = [job.cluster.world_size for job in jobs]
    return [cluster.part(range(end - size, end)) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def _planned(part: Cluster, job: JobSetting, step: TrainingStep | None, maker: JobSetting | None) -> JobProgram:
    """Return a job's program of one step, planned on its part of the cluster; `maker` generates its batches.

    Raises
    ------
    ScenarioError
        The step cannot run, or does not fit into memory there.
    """
    program, phases = Program(((),) * part.world_size), generation_phases(job)
    if step is not None:
        try:
            program = plan_step(part, step).program
            if program.work.size:
                raise ScenarioError("training.lengths: jobs have documents of one length; omit the key")
            step_time = play("auto", program, part, allocator=step.keys.allocator, keep=()).end
            forward = job.forward_passes * job.steps_per_batch * step_time * _forward_share(program)
            phases = (*phases, *training_phases(maker, forward))
        except (ScenarioError, OutOfMemoryError) as error:
            raise ScenarioError(f"jobs.{job.name}: {error}") from error
        # Limits on this GPU: a dtype, or a generation without the attention kernels.
        except ValueError as error:
            raise ScenarioError(f"jobs.{job.name}.training: on {part.gpus[0].name}: {error}") from error
    return JobProgram(job.name, program, job.steps_per_batch, job.start, phases, job.steps_per_batch, job.priority)


def _forward_share(program: Program) -> float:
    """Return the forward passes' share of a step: of the kernels of the first rank."""
    kernels = [op for op in program.ranks[0] if isinstance(op, Compute) and op.stream == "compute"]
    total = sum(op.duration for op in kernels)
    return sum(op.duration for op in kernels if op.kind == "forward") / total if total else 0.0


def _exchanges(
    cluster: Cluster, jobs: Sequence[JobSetting], steps: Sequence[TrainingStep | None]
) -> list[BatchExchange]:
    """Return the exchanges between jobs that generate batches and the trainings on them.

    A batch is gathered from the generating ranks, a token id and the logarithm of its probability for each token. The
    weights of the whole model are broadcast to every rank of both jobs: the trainer's ranks gather them layer by layer
    for it.
    """
    ends = list(accumulate(job.cluster.world_size for job in jobs))
    ranks = {job.name: range(end - job.cluster.world_size, end) for job, end in zip(jobs, ends, strict=True)}
    of_name = {job.name: job for job in jobs}
    exchanges = []
    for job, step in zip(jobs, steps, strict=True):
        if job.batches_from is None or step is None:
            continue
        group = (*ranks[job.name], *ranks[job.batches_from])
        size = len(group)
        maker = of_name[job.batches_from]
        numbers = 2 * (maker.tokens or 1)
        weights = sum(parameter.elements for module in modules(step.model, WHOLE) for parameter in module.parameters)
        exchanges.append(
            BatchExchange(
                job.batches_from,
                job.name,
                job.lag,
                job.steps_per_batch,
                _planned_exchange(cluster, "all_gather", -(-numbers // size) * size, "float32", group, maker.priority),
                _planned_exchange(cluster, "broadcast", weights, step.trained_dtype, group, job.priority),
            )
        )
    return exchanges


def _planned_exchange(
    cluster: Cluster, operation: str, elements: int, dtype: str, group: tuple[int, ...], priority: int
) -> Collective:
    """Return a collective between jobs, with the priority of the job that sends."""
    task = Task(CollectiveRequest(operation, len(group), elements), "auto", group, dtype)
    return replace(plan(cluster, task).ops[0], priority=priority)


def _played(
    engine: Engine,
    cluster: Cluster,
    jobs: Sequence[JobProgram],
    exchanges: Sequence[BatchExchange] = (),
    outers: Sequence[OuterAverage] = (),
) -> Timeline:
    program = joined(jobs, exchanges, outers)
    return play(engine, program, cluster, limit_memory=False, keep=_kept(program))


def _kept(program: Program) -> tuple[int, ...] | None:
    """Return the ranks whose operations tell when steps end: all, or of a long program one of each list."""
    lists = program.lists
    if sum(len(lists.lists[number]) for number in lists.list_of) <= _MOST_KEPT:
        return None
    return tuple(lists.list_of.index(number) for number in range(len(lists.lists)))


def _outers(cluster: Cluster, jobs: Sequence[JobSetting], steps: Sequence[TrainingStep | None]) -> list[OuterAverage]:
    """Return the averages of trainings in copies. The ranks of a copy share the parameters evenly, and each averages
    its share with the same ranks of the other copies.
    """
    ends = list(accumulate(job.cluster.world_size for job in jobs))
    averages_by_name: dict[str, OuterAverage] = {}
    for job, step in zip(jobs, steps, strict=True):
        outer = job.outer
        if outer is None or step is None or outer.name in averages_by_name:
            continue
        copies = [number for number, parameter in enumerate(jobs) if parameter.outer == outer]
        size = job.cluster.world_size
        weights = sum(parameter.elements for module in modules(step.model, WHOLE) for parameter in module.parameters)
        share = -(-weights // (size * outer.fragments * outer.copies)) * outer.copies
        groups = [tuple(ends[number] - size + rank for number in copies) for rank in range(size)]
        averages = tuple(
            _planned_exchange(cluster, "all_reduce", share, outer.dtype, group, job.priority) for group in groups
        )
        averages_by_name[outer.name] = OuterAverage(
            tuple(jobs[number].name for number in copies), simulated_steps(outer), outer.delay, averages
        )
    return list(averages_by_name.values())


def _rounds(file: JobsFile, cluster: Cluster, jobs: Sequence[JobOutcome]) -> tuple[OuterRound, ...]:
    """Return the times of trainings in copies."""
    settings = {job_setting.outer.name: job_setting for job_setting in file.jobs if job_setting.outer is not None}
    rounds = []
    for setting in settings.values():
        outer = setting.outer
        if outer is None:
            continue
        copies = [job for job, job_setting in zip(jobs, file.jobs, strict=True) if job_setting.outer == outer]
        window = window_time([job.step_ends for job in copies], simulated_steps(outer))
        together = _summed_in_every_step(file, cluster, setting)
        rounds.append(OuterRound(outer, copies[0].ranks, copies[0].alone, window, together))
    return tuple(rounds)


def _summed_in_every_step(file: JobsFile, cluster: Cluster, setting: JobSetting) -> float:
    """Return the step time of a training in copies that sums gradients over all of them in every step [s].

    Sharded states stay within a copy, as in hybrid sharding.
    """
    ends = list(accumulate(job.cluster.world_size for job in file.jobs))
    ranks = [
        rank
        for job, end in zip(file.jobs, ends, strict=True)
        if job.outer == setting.outer
        for rank in range(end - job.cluster.world_size, end)
    ]
    training = None if setting.scenario is None else setting.scenario.training
    if training is None:
        raise ScenarioError(f"jobs.{setting.name}: does not train")
    sharding = training.sharding
    if STRATEGIES.find(sharding.strategy, setting.base).shards and sharding.shard_size is None:
        sharding = sharding.replaced(
            shard_size=own_parts.located(training, setting.base).parallelism.holders(setting.cluster.world_size)
        )
    machine = cluster.part(ranks)
    step = to_step(training.replaced(sharding=sharding), len(ranks), setting.base)
    return play(file.engine, plan_step(machine, step).program, machine, limit_memory=False, keep=()).end


def _times_alone(file: JobsFile, parts: Sequence[Cluster], jobs: Sequence[JobProgram]) -> list[float]:
    """Return the mean step time of each job without the others [s]; copies of a training share the first one's."""
    by_outer: dict[OuterSetting, float] = {}
    times = []
    for setting, part, job in zip(file.jobs, parts, jobs, strict=True):
        if setting.outer is not None and setting.outer in by_outer:
            times.append(by_outer[setting.outer])
            continue
        times.append(_time_alone(file.engine, part, job))
        if setting.outer is not None:
            by_outer[setting.outer] = times[-1]
    return times


def _times_on_healthy_links(file: JobsFile, programs: Sequence[JobProgram]) -> list[float]:
    """Return the mean step time of each job without the others if no link is slow [s]; faster links stay faster."""
    slow = slow_links(file)
    factors = {link: factor for link, factor in file.jobs[0].cluster.link_factors.items() if link not in slow}
    rated = tuple(replace(job, cluster=job.cluster.replaced(link_factors=factors)) for job in file.jobs)
    parts, _, planned = _planned_alone(_cluster(replace(file, jobs=rated)), rated)
    counted = [replace(job, steps=program.steps) for job, program in zip(planned, programs, strict=True)]
    return _times_alone(file, parts, counted)


def _time_alone(engine: Engine, part: Cluster, job: JobProgram) -> float:
    """Return the mean step time of a job without the others [s]; of a batch, if it only generates."""
    program = replace(job, start=0.0)
    (ends,) = _step_ends(_played(engine, part, [program]), [program])
    return ends[-1] / len(ends)


def _step_ends(timeline: Timeline, jobs: Sequence[JobProgram]) -> list[list[float]]:
    """Return when each step of each job ends [s]: when the last of its operations on any rank ends."""
    ends = [[0.0] * job.steps for job in jobs]
    job_of = [number for number, job in enumerate(jobs) for _ in job.program.ranks]
    for rank, spans in by_rank(timeline.spans).items():
        ends_of_job, name = ends[job_of[rank]], jobs[job_of[rank]].name
        for span in spans:
            step = step_of(span, name)
            if step is not None:
                ends_of_job[step] = max(ends_of_job[step], span.end)
    return ends


def _outcomes(
    timeline: Timeline, jobs: Sequence[JobProgram], undisturbed: Sequence[float], healthy: Sequence[float]
) -> tuple[JobOutcome, ...]:
    """Return what each job did in a timeline, beside its step time alone, as given and on healthy links [s]."""
    ends = _step_ends(timeline, jobs)
    sent = dict.fromkeys((job.name for job in jobs), 0.0)
    for total in timeline.sent:
        sent[total.collective.split(" ", 1)[0]] += total.nbytes
    outcomes = []
    for number, job in enumerate(jobs):
        others = [(other.start, step_ends[-1]) for other, step_ends in zip(jobs, ends, strict=True) if other is not job]
        begin = max((start for start, _ in others), default=0.0)
        end = min((last for _, last in others), default=math.inf)
        starts = [job.start, *ends[number]]
        judged = [step for step in range(job.steps) if starts[step] >= begin and ends[number][step] <= end]
        if job.phase(GENERATE):
            # Steps of whole batches only: the first step of a batch contains the generation.
            count = job.steps_per_batch if any(job.program.ranks) else 1
            judged = [
                step for step in judged if {*range(step - step % count, step - step % count + count)} <= {*judged}
            ]
        outcomes.append(
            JobOutcome(
                job.name,
                len(job.program.ranks),
                job.start,
                undisturbed[number],
                healthy[number],
                tuple(ends[number]),
                tuple(judged) or tuple(range(job.steps)),
                sent[job.name],
                phases=job.phases,
            )
        )
    return tuple(outcomes)


def _with_places(
    jobs: Sequence[JobOutcome], parts: Sequence[Cluster], topology: TopologyFacts
) -> tuple[JobOutcome, ...]:
    """Return the outcomes with the nodes and the leaf switches of each job's part of the cluster."""
    return tuple(
        replace(
            job,
            # A cluster without nodes counts as a single node.
            nodes=None if topology.node_size is None and len(part.nodes) == 1 else len(part.nodes),
            leaf_switches=leaf_switches(part),
        )
        for job, part in zip(jobs, parts, strict=True)
    )


def _shared_links(timeline: Timeline, jobs: Sequence[JobProgram]) -> tuple[SharedLink, ...]:
    """Return the links that carry bytes of several jobs, the one whose bytes take longest first."""
    uses_by_link: dict[str, dict[str, LinkUse]] = {}
    for job in jobs:
        for use in link_uses(timeline_of(timeline, job.name)):
            uses_by_link.setdefault(use.name, {})[job.name] = use
    shared = [
        SharedLink(name, next(iter(uses.values())).bandwidth, {job: use.nbytes for job, use in uses.items()})
        for name, uses in uses_by_link.items()
        if len(uses) > 1
    ]
    return tuple(sorted(shared, key=lambda link: -sum(link.nbytes.values()) / link.bandwidth))
