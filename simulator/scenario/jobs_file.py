"""Reads a file with several jobs on one cluster: a topology, and for each job a training with its GPUs and its start.

Each job becomes a Scenario of its own on the common topology, checked like a scenario file; a message about a job's
keys names the job.

Example:

    # What do two trainings cost each other?
    cluster: {topology: leaf_spine_100g}
    jobs:
      a: {scenario: my_training.yaml, world_size: 8}
      b: {training: {model: gpt2, seq_len: 1024}, world_size: 8, placement: spread, start: 20 ms}

Reinforcement learning has a job that generates batches, and a training that takes its batches from there and returns
its weights:

    jobs:
      rollout: {generation: {tokens: 2M, rate: 3000}, world_size: 8}
      trainer: {scenario: my_training.yaml, world_size: 8, batches_from: rollout, lag: 1}

The time of a batch follows from its answers, if they are given in place of tokens and a rate:

      rollout: {generation: {answers: 1024, lengths: {distribution: lognormal, median: 900, sigma: 0.6, max: 4k}}, ...}
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from simulator.basics import counts, reading, registry, yaml_dialect
from simulator.basics.document import Document, Fault, Key, load
from simulator.basics.errors import ScenarioError, one_of
from simulator.basics.spec import LargeCount, Listed, Spec, stored_dtypes
from simulator.cluster.build import facts
from simulator.cluster.changes import EventSpec, LinkName
from simulator.scenario.build_cluster import placed
from simulator.scenario.load import check_scenario, load_scenario
from simulator.scenario.plain_faults import plain_faults
from simulator.scenario.records import PLACEMENT, ClusterSpec, EcmpSpec, Engine, Factor, Scenario, Seed
from simulator.step.decoding import HOST, Generated
from simulator.step.lengths import Lengths
from simulator.step.spec import Updater
from simulator.step.strategies.strategy import STRATEGIES

# Keys of `generation` about the answers of a batch.
_OF_ANSWERS: Final = ("lengths", "prompt", "model", "tp", "host", "refit", "processing", "partial")
# Most jobs of a file; each is simulated alone, too.
_MOST_JOBS: Final = 64
Placement = Literal["packed", "spread", "by_rail"]
PLACEMENTS: Final[tuple[Placement, ...]] = ("packed", "spread", "by_rail")
# Highest priority of a job.
_MOST_PRIORITY: Final = 100
_NAME: Final = reading.text(r"[A-Za-z0-9_-]{1,40}", "at most 40 letters a to z or A to Z, digits, '_' or '-'")


def _placement(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if isinstance(value, dict):
        return PLACEMENT.counted(value)
    return reading.choice(PLACEMENTS).reader(value)


class SharedClusterSpec(Spec):
    """The cluster that jobs share (keys of `cluster` in a file of jobs)."""

    topology: Annotated[Any, reading.named_or_written_out("topology", "the name of a topology")]
    gpu: Annotated[Any, reading.named_or_written_out("gpu", "the name of a GPU")] | None = None
    nodes: LargeCount | None = None
    link_factors: dict[LinkName, Factor] = Field(default={})
    ecmp: EcmpSpec | None = None
    events: Listed[EventSpec] = ()


class GenerationSpec(Spec):
    """The generation of a batch (keys of a job's `generation`): its time, its tokens and a rate, or its answers."""

    time: Annotated[float, reading.duration()] | None = None
    tokens: Annotated[int, reading.count(1, 10**15, counts.TOKENS)] | None = None
    rate: Annotated[float, reading.number(positive=True, most=1e9)] | None = None
    # Answers, whose time follows from the model and the GPUs.
    answers: LargeCount | None = None
    lengths: Lengths | None = None
    prompt: Annotated[int, reading.count(1, 10**9, counts.TOKENS)] | None = None
    model: Any = None
    tp: Annotated[int, reading.whole(1, 4096)] = 1
    host: Annotated[float, reading.duration()] = HOST
    refit: Annotated[float, reading.duration()] | None = None
    processing: Annotated[float, reading.duration()] | None = None
    partial: Annotated[bool, reading.YES_NO] = False


class OuterSpec(Spec):
    """Copies of a training that average their parameters only every so many steps (keys of a job's `outer`)."""

    copies: Annotated[int, reading.whole(2, _MOST_JOBS)]
    every: LargeCount
    fragments: Annotated[int, reading.whole(1, 1000)] = 1
    delay: Annotated[int, reading.whole(0, 1000)] = 0
    dtype: Annotated[str, reading.choice(stored_dtypes())] = "float32"


class JobSpec(Spec):
    """A job of a file of jobs."""

    scenario: str | None = None
    training: dict[str, Any] | None = None
    generation: GenerationSpec | None = None
    batches_from: str | None = None
    lag: Annotated[int, reading.whole(0, 100)] = 0
    steps_per_batch: LargeCount = 1
    forward_passes: Annotated[int, reading.whole(0, 100)] = 0
    outer: OuterSpec | None = None
    settings: dict[str, Any] = Field(default={}, alias="set")
    world_size: LargeCount | None = None
    placement: Annotated[Any, reading.ValueReader(_placement, dict)] = "packed"
    start: Annotated[float, reading.duration()] = 0.0
    steps: LargeCount | None = None
    priority: Annotated[int, reading.whole(1, _MOST_PRIORITY)] = 1


class JobsSpec(Spec):
    """A file of jobs."""

    cluster: SharedClusterSpec
    jobs: dict[Annotated[str, _NAME], JobSpec]
    engine: Annotated[Engine, reading.choice(("auto", "events", "compiled"))] = "auto"
    seed: Seed = 0


@dataclass(frozen=True, slots=True)
class OuterSetting:
    """A training in several copies, which average their parameters every so many steps (DiLoCo, local SGD)."""

    name: str  # name of the training, whose copies are jobs
    copies: int  # number of copies
    every: int  # inner steps between two averages of a parameter
    fragments: int  # parts of the parameters, averaged one after the other, evenly over the inner steps
    delay: int  # inner steps during which an average may be under way before its result is needed
    dtype: str  # dtype in which parameters travel


@dataclass(frozen=True, slots=True)
class Rollout:
    """A batch of answers, generated by inference engines on a job's GPUs."""

    model: Any  # model that generates
    answers: int  # answers of a batch
    lengths: Lengths  # tokens of the answers
    prompt: int  # tokens of a prompt
    tp: int  # GPUs of an engine
    host: float  # time of the host between two steps of generation [s]
    # Time to load new weights into the engines, and of rewards, advantages and packing, for each batch [s]; None:
    # derived from the weights and the answers
    refit: float | None = None
    processing: float | None = None
    partial: bool = False  # whether answers that are not complete go on in the next batch
    generated: Generated | None = None  # outcome on the engine that ends last


@dataclass(frozen=True, slots=True)
class JobSetting:
    """A job on a shared cluster."""

    name: str  # name of the job
    cluster: ClusterSpec  # the shared cluster; `placement` says which GPUs are the job's
    scenario: Scenario | None  # the job's training; None if the job only generates batches
    base: Path
    start: float = 0.0  # when the job begins [s]
    steps: int | None = None  # number of steps; None for as many as the longest step of all jobs asks for
    generation: float = 0.0  # time to generate a batch [s]; 0 if the job generates nothing
    tokens: int | None = None  # tokens of a generated batch, if given
    batches_from: str | None = None  # job that generates this job's batches
    lag: int = 0  # number of updates by which the weights that generate a batch may be older than its training
    steps_per_batch: int = 1  # training steps for each generated batch
    outer: OuterSetting | None = None  # how the job averages its parameters with copies of itself
    # Weight of the job's transfers on full links: a transfer of priority 2 gets twice the rate of one of priority 1
    priority: int = 1
    rollout: Rollout | None = None  # answers of a batch, whose generation is simulated
    # Forward passes over a batch before it is trained, for the probabilities of the old and the reference policy
    forward_passes: int = 0


@dataclass(frozen=True, slots=True)
class JobsFile:
    """Several jobs on one cluster."""

    source: str  # name of the file
    question: str  # first comment of the file
    jobs: tuple[JobSetting, ...]  # the jobs, in the file's order
    engine: Engine  # the requested engine
    # Links, ranks and nodes of the shared cluster that slow down or fail; ranks are numbered job by job
    events: tuple[EventSpec, ...] = ()


def is_jobs_file(data: Any) -> bool:
    """Return True if a document's data is a file of jobs.

    >>> is_jobs_file({"jobs": {}}), is_jobs_file({"scenario": "job.yaml"})
    (True, False)
    """
    return isinstance(data, dict) and "jobs" in data


def load_jobs(source: str | Path | Mapping[str, Any]) -> JobsFile:
    """Return the jobs of a file, of a shipped name or of the same keys as a dict.

    Raises
    ------
    ScenarioError
        A line for each fault, with file, line and key.
    """
    if isinstance(source, Mapping):
        return _read(Document("<dict>", dict(source)), Path())
    path = registry.find("jobs", str(source))
    return _read(load(path, source=str(source)), path.parent)


def _read(document: Document, base: Path) -> JobsFile:
    registry.refuse_other_kind(document, "jobs")
    if not is_jobs_file(document.data):
        message = (
            "has no key 'jobs'; a file of jobs begins like 'cluster: {topology: leaf_spine_100g}' with 'jobs: {a: "
            "{scenario: FILE, world_size: 8}}'; `simulator run` simulates the scenario of a single job"
        )
        document.refuse([document.fault((), message)])
    try:
        spec = JobsSpec.model_validate(document.data)
    except ValidationError as error:
        document.refuse(plain_faults(document, error, _spec_at))
        raise  # without a fault above; the type checker cannot know that `refuse` has raised
    if not 1 <= len(spec.jobs) <= _MOST_JOBS:
        document.refuse([document.fault(("jobs",), f"got {len(spec.jobs)} jobs; must be 1 to {_MOST_JOBS}")])
    sizes = {name: _world_size(document, name, job, base) for name, job in spec.jobs.items()}
    placed = _placements(document, spec, sizes, base)
    document.refuse(_conflicts(document, spec))
    settings = tuple(
        setting
        for name in spec.jobs
        for setting in _copies(_setting(document, spec, name, placed[name], base), spec.jobs[name])
    )
    if len(settings) > _MOST_JOBS:
        document.refuse([document.fault(("jobs",), f"got {len(settings)} jobs, copies included; at most {_MOST_JOBS}")])
    return JobsFile(document.source, document.question, settings, spec.engine, spec.cluster.events)


def _conflicts(document: Document, spec: JobsSpec) -> Iterator[Fault]:
    """Yield a fault for each broken rule between keys of jobs that generate batches or train on them."""
    trainings: dict[str, str] = {}
    for name, job in spec.jobs.items():
        where: Key = ("jobs", name)
        trains, generates = _trains(job), job.generation is not None
        if job.generation is not None:
            timing = job.generation.time, job.generation.tokens, job.generation.rate
            if job.generation.answers is not None:
                yield from _of_answers(document, spec, name)
            elif timing[0] is None and None in timing[1:]:
                message = (
                    "write the time of a batch (time: 40 s), its tokens with the rate of a GPU in tokens/s, or its "
                    "answers with their lengths"
                )
                yield document.fault((*where, "generation"), message)
            elif alone := next((key for key in _OF_ANSWERS if key in job.generation.model_fields_set), None):
                yield document.fault((*where, "generation", alone), "has no effect without answers", of_key=True)
            elif timing[0] is not None and timing[2] is not None:
                yield document.fault((*where, "generation", "rate"), "time is given, too; give one of the two")
        if job.outer is not None:
            yield from _of_outer(document, name, job)
        if not trains and job.steps is not None:
            yield document.fault((*where, "steps"), "a job that only generates has the steps of its training")
        if job.lag and job.batches_from is None:
            yield document.fault((*where, "lag"), "has no effect without batches_from", of_key=True)
        if job.steps_per_batch > 1 and not generates and job.batches_from is None:
            message = "has no effect without batches_from or generation"
            yield document.fault((*where, "steps_per_batch"), message, of_key=True)
        if job.forward_passes and (not trains or (not generates and job.batches_from is None)):
            message = "has no effect without batches_from or generation, and a training"
            yield document.fault((*where, "forward_passes"), message, of_key=True)
        if job.steps is not None and job.steps % job.steps_per_batch:
            message = f"got {job.steps}; must be a multiple of steps_per_batch, {job.steps_per_batch}"
            yield document.fault((*where, "steps"), message)
        if job.batches_from is not None:
            source: Key = (*where, "batches_from")
            makers = [other for other, peer in spec.jobs.items() if peer.generation is not None and not _trains(peer)]
            if job.batches_from not in makers:
                choices = one_of(makers, job.batches_from) if makers else "no job has generation alone"
                yield document.fault(source, f"got {job.batches_from!r}; {choices}")
            elif not trains or generates:
                yield document.fault(source, "a job with batches of another job trains, and generates nothing itself")
            elif job.batches_from in trainings:
                message = f"job {trainings[job.batches_from]!r} takes its batches, too; a generation has one training"
                yield document.fault(source, message)
            trainings.setdefault(job.batches_from, name)


def _of_answers(document: Document, spec: JobsSpec, name: str) -> Iterator[Fault]:
    """Yield a fault for each broken rule of a generation of answers."""
    where: Key = ("jobs", name, "generation")
    batch = spec.jobs[name].generation
    if batch is None:
        return
    if (batch.time, batch.tokens, batch.rate) != (None, None, None):
        yield document.fault((*where, "answers"), "time, tokens and rate follow from the answers; omit them")
    if batch.lengths is None:
        message = "needs lengths, such as {distribution: lognormal, median: 800, sigma: 0.6, max: 4k}"
        yield document.fault((*where, "answers"), message)
    elif batch.lengths.max is None:
        yield document.fault((*where, "lengths"), "needs max, the most tokens of an answer")
    elif batch.lengths.steps > 1:
        yield document.fault(
            (*where, "lengths", "steps"), "has no effect on answers: every batch has the same", of_key=True
        )
    if batch.model is None and _trained_model(spec, name) is None:
        yield document.fault(where, "needs a model, because no training in this file takes its batches")


def _trained_model(spec: JobsSpec, name: str) -> JobSpec | None:
    """Return the training that a generating job works for: itself, or the one that takes its batches."""
    jobs = [spec.jobs[name], *(job for job in spec.jobs.values() if job.batches_from == name)]
    return next((job for job in jobs if _trains(job)), None)


def _of_outer(document: Document, name: str, job: JobSpec) -> Iterator[Fault]:
    """Yield a fault for each broken rule of a job in copies."""
    where: Key = ("jobs", name, "outer")
    if job.outer is None:
        return
    if not _trains(job) or job.generation is not None or job.batches_from is not None:
        yield document.fault(where, "copies average what they train; a job that generates has none")
    if job.steps is not None:
        yield document.fault(("jobs", name, "steps"), "follows from outer.every")
    if job.outer.every % job.outer.fragments:
        message = f"got {job.outer.fragments}; must divide every, {job.outer.every}"
        yield document.fault((*where, "fragments"), message)
    elif job.outer.delay >= job.outer.every // job.outer.fragments:
        message = f"got {job.outer.delay}; must be below every / fragments, {job.outer.every // job.outer.fragments}"
        yield document.fault((*where, "delay"), message)


def _trains(job: JobSpec) -> bool:
    return job.scenario is not None or job.training is not None


def _setting(document: Document, spec: JobsSpec, name: str, placement: tuple[int, ...], base: Path) -> JobSetting:
    """Return a job with its scenario on the shared cluster."""
    job, shared = spec.jobs[name], spec.cluster
    batch = job.generation
    seconds = 0.0
    if batch is not None:
        seconds = batch.time if batch.time is not None else (batch.tokens or 0) / ((batch.rate or 1.0) * len(placement))
    cluster = ClusterSpec(
        topology=shared.topology,
        world_size=len(placement),
        gpu=shared.gpu,
        placement=placement,
        link_factors=dict(shared.link_factors),
        ecmp=shared.ecmp,
    )
    scenario = _scenario(document, spec, name, placement, base) if _trains(job) else None
    rollout = None
    if batch is not None and batch.answers is not None and batch.lengths is not None:
        trained = _trained_model(spec, name)
        model = batch.model or _model_of(trained, base)
        lengths = batch.lengths.located(base)
        times = batch.host, batch.refit, batch.processing, batch.partial
        rollout = Rollout(model, batch.answers, lengths, batch.prompt or 0, batch.tp, *times)
    return JobSetting(
        name,
        cluster if scenario is None else scenario.cluster.replaced(placement=placement, world_size=len(placement)),
        scenario,
        base,
        job.start,
        job.steps,
        seconds,
        None if batch is None else batch.tokens,
        job.batches_from,
        job.lag,
        job.steps_per_batch,
        priority=job.priority,
        rollout=rollout,
        forward_passes=job.forward_passes,
    )


def _model_of(job: JobSpec | None, base: Path) -> Any:
    """Return the model of a training."""
    if job is None:
        return None
    if job.training is not None:
        return job.settings.get("training.model", job.training.get("model"))
    training = load_scenario(_path(job, base)).training
    return None if training is None else job.settings.get("training.model", training.model)


def _copies(setting: JobSetting, job: JobSpec) -> Iterator[JobSetting]:
    """Yield a job, or each of its copies with its own share of the GPUs."""
    if job.outer is None:
        yield setting
        return
    outer = OuterSetting(setting.name, **dict(job.outer))
    places = placed(setting.cluster, setting.base)
    size = len(places) // outer.copies
    for copy in range(outer.copies):
        share = places[copy * size : (copy + 1) * size]
        cluster = setting.cluster.replaced(placement=share, world_size=size)
        scenario = None if setting.scenario is None else setting.scenario.replaced(cluster=cluster)
        name = f"{setting.name}-{copy}"
        yield replace(setting, name=name, cluster=cluster, scenario=scenario, outer=outer)


def _spec_at(key: Key) -> type[Spec]:
    """Return the record of the mapping at a key path of a file of jobs."""
    if not key:
        return JobsSpec
    if key[0] == "jobs":
        inner: dict[str, type[Spec]] = {"generation": GenerationSpec, "outer": OuterSpec, "lengths": Lengths}
        return inner.get(str(key[-1]), JobSpec) if len(key) > 2 else JobSpec
    return {"ecmp": EcmpSpec}.get(str(key[-1]), EventSpec if "events" in key else SharedClusterSpec)


def _world_size(document: Document, name: str, job: JobSpec, base: Path) -> int:
    """Return the number of ranks of a job with all its copies: `world_size` of the job, or of its scenario."""
    where: Key = ("jobs", name)
    if job.scenario is not None and job.training is not None:
        document.refuse([document.fault(where, "has scenario and training; give one of the two")])
    if not _trains(job) and job.generation is None:
        message = "does nothing; give scenario, training or generation"
        document.refuse([document.fault(where, message)])
    copies = 1 if job.outer is None else job.outer.copies
    if job.world_size is not None:
        return copies * job.world_size
    if job.scenario is None:
        document.refuse([document.fault(where, "world_size is missing; write for example 'world_size: 8'")])
    return copies * load_scenario(_path(job, base)).cluster.world_size


def _path(job: JobSpec, base: Path) -> str:
    """Return the scenario of a job: a shipped name, or a path from the folder of the file."""
    scenario = str(job.scenario)
    return str(base / scenario) if registry.is_file(base / scenario) else scenario


def _placements(document: Document, spec: JobsSpec, sizes: Mapping[str, int], base: Path) -> dict[str, tuple[int, ...]]:
    """Return each job's GPU numbers: explicit ones first, then the others' in the file's order.

    Packed jobs take the lowest free GPUs. The other placements need nodes, and number their ranks node by node, as
    launchers do: see `_spread` and `_by_rail`.
    """
    machine = facts(spec.cluster.topology, base)
    per_node = machine.node_size or 1
    placements: dict[str, tuple[int, ...]] = {}
    job_of: dict[int, str] = {}
    for name, job in spec.jobs.items():
        if isinstance(job.placement, tuple):
            where: Key = ("jobs", name, "placement")
            places = job.placement
            if len(set(places)) != sizes[name] or not all(type(gpu) is int and gpu >= 0 for gpu in places):
                message = f"got {list(places)}; must be {sizes[name]} different GPU numbers from 0"
                document.refuse([document.fault(where, message)])
            both = next((gpu for gpu in places if gpu in job_of), None)
            if both is not None:
                document.refuse([document.fault(where, f"GPU {both} belongs to job {job_of[both]!r}, too")])
            placements[name] = places
            job_of |= dict.fromkeys(places, name)
    ranks = sum(sizes.values())
    nodes = spec.cluster.nodes or -(-max(ranks, max(job_of, default=-1) + 1) // per_node)
    total = nodes * per_node
    if machine.max_ranks is not None and total > machine.max_ranks:
        total = machine.max_ranks
    if ranks > total:
        message = f"jobs have {ranks} ranks in all; {nodes} nodes of {machine.name} have {total} GPUs"
        document.refuse([document.fault(("jobs",), message)])
    for name, job in spec.jobs.items():
        if name in placements:
            continue
        free = [gpu for gpu in range(total) if gpu not in job_of]
        if job.placement == "by_rail":
            railed = _by_rail(free, sizes[name], per_node)
            if railed is None:
                message = (
                    f"{sizes[name]} GPUs with equal local numbers on their nodes are not free; write a list of GPU "
                    "numbers, or packed"
                )
                document.refuse([document.fault(("jobs", name, "placement"), message)])
            placements[name] = railed or ()
        else:
            order = _spread(free, per_node) if job.placement == "spread" else free
            if isinstance(job.placement, Mapping):
                used = job.placement[PLACEMENT.key]
                order = _of_each_node(free, per_node, used)
                if len(order) < sizes[name]:
                    message = f"{sizes[name]} GPUs, {used} of each node, are not free on {nodes} nodes"
                    document.refuse([document.fault(("jobs", name, "placement"), message)])
            placements[name] = tuple(sorted(order[: sizes[name]]))
        job_of |= dict.fromkeys(placements[name], name)
    return placements


def _spread(free: Sequence[int], per_node: int) -> list[int]:
    """Return the free GPUs in the order in which a spread job takes them: one GPU of each node in turn.

    >>> _spread([0, 1, 3, 4, 5], per_node=2)
    [0, 3, 4, 1, 5]
    """
    # The n-th free GPU of each node comes in round n.
    round_of: dict[int, int] = {}
    order = []
    for gpu in free:
        node = gpu // per_node
        order.append((round_of.get(node, 0), node, gpu))
        round_of[node] = round_of.get(node, 0) + 1
    return [gpu for _, _, gpu in sorted(order)]


def _of_each_node(free: Sequence[int], per_node: int, used: int) -> list[int]:
    """Return the first `used` free GPUs of each node that has so many.

    >>> _of_each_node([1, 2, 3, 4, 6, 7, 8], per_node=4, used=2)
    [1, 2, 4, 6]
    """
    by_node: dict[int, list[int]] = {}
    for gpu in free:
        by_node.setdefault(gpu // per_node, []).append(gpu)
    return [gpu for gpus in by_node.values() if len(gpus) >= used for gpu in gpus[:used]]


def _by_rail(free: Sequence[int], size: int, per_node: int) -> tuple[int, ...] | None:
    """Return `size` free GPUs with the same neighbouring local numbers on each of their nodes; None if there are none.

    The job takes the fewest rails, hence the most nodes; then the lowest rails, and on them the lowest nodes. GPU i has
    the local number i modulo `per_node`, which is its rail.

    >>> _by_rail(range(8), 2, per_node=4), _by_rail([1, 2, 3, 4, 5, 6, 7], 4, per_node=4)
    ((0, 4), (1, 2, 5, 6))
    """
    nodes_with: list[set[int]] = [set() for _ in range(per_node)]
    for gpu in free:
        nodes_with[gpu % per_node].add(gpu // per_node)
    for rails in range(1, min(per_node, size) + 1):
        if size % rails:
            continue
        for first in range(per_node - rails + 1):
            nodes = sorted(set.intersection(*nodes_with[first : first + rails]))[: size // rails]
            if len(nodes) == size // rails:
                return tuple(node * per_node + first + rail for node in nodes for rail in range(rails))
    return None


def _scenario(document: Document, spec: JobsSpec, name: str, placement: tuple[int, ...], base: Path) -> Scenario:
    """Return a job's scenario on the shared cluster; of a job in copies, the scenario of the first."""
    if spec.jobs[name].outer is not None:
        placement = placement[: len(placement) // spec.jobs[name].outer.copies]  # type: ignore[union-attr]
    job, source = spec.jobs[name], f"{document.source}: jobs.{name}"
    cluster: dict[str, Any] = {
        "topology": spec.cluster.topology, "world_size": len(placement), "placement": list(placement),
        "link_factors": dict(spec.cluster.link_factors),
    }  # fmt: skip
    if spec.cluster.gpu is not None:
        cluster["gpu"] = spec.cluster.gpu
    if spec.cluster.ecmp is not None:
        cluster["ecmp"] = {"hash": spec.cluster.ecmp.hash}
    if job.training is not None:
        training = {"collectives": "played"} | job.training
        scenario = check_scenario({"name": name, "cluster": cluster, "training": training}, source, base)
        return _checked(document, name, scenario)
    changes = {"training.collectives": "played"} | job.settings
    changes |= {f"cluster.{key}": value for key, value in cluster.items()}
    texts = {key: yaml_dialect.dump(value, one_line=True) for key, value in changes.items()}
    return _checked(document, name, load_scenario(_path(job, base), texts))


def _checked(document: Document, name: str, scenario: Scenario) -> Scenario:
    """Return a job's scenario; raise ScenarioError for what several jobs on one cluster cannot have."""
    training, jitter = scenario.training, scenario.cluster.jitter
    if several := [*scenario.compare, *scenario.sweep]:
        message = f"has several points along {', '.join(several)}; give each a single value: set: {{{several[0]}: ...}}"
    elif training is None:
        message = "is a collective; jobs are trainings"
    elif training.numerics:
        message = "has numerics: true; jobs have times alone; write set: {training.numerics: false}"
    elif STRATEGIES.find(training.sharding.strategy, scenario.base).updater is Updater.SERVERS:
        message = "has parameter servers; jobs sum gradients among their ranks"
    elif jitter.compute or jitter.latency:
        message = "has cluster.jitter; jobs are simulated without noise"
    else:
        return scenario
    raise ScenarioError(document.fault(("jobs", name), message).as_line(document.source))
