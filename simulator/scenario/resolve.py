"""Writes a Scenario as plain data and as YAML, with every default written out.

The result loads back to an equal scenario. Quantities are text with units and lose no digit.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final

from simulator.basics import units, yaml_dialect
from simulator.basics.sections import varied
from simulator.cluster.changes import EventSpec
from simulator.scenario.answer_spec import FindingSpec
from simulator.scenario.plan_spec import FOLLOWS, KEYS, SAID_OR_CHOSEN, PlanSpec
from simulator.scenario.records import (
    BUFFER,
    CYCLE,
    ClusterSpec,
    CollectiveSpec,
    FusionSpec,
    Scenario,
    ServersSpec,
)
from simulator.step.global_batch import SEQUENCES

if TYPE_CHECKING:
    from simulator.step.training_spec import TrainingSpec

_IEC: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def resolved(scenario: Scenario) -> dict[str, Any]:
    """Return a scenario as plain data, with every default written out.

    Returns
    -------
    dict
        Keys of a scenario file. Omitted keys without a default (group, chunks, ...) are absent.
    """
    data: dict[str, Any] = {"name": scenario.name}
    if scenario.question:
        data["question"] = scenario.question
    data |= {"seed": scenario.seed, "cluster": _cluster(scenario.cluster)}
    # An axis over a key may supply its value: a default written beside the axis could contradict it.
    axes = varied({**scenario.compare, **scenario.sweep})
    if scenario.collective is not None:
        data["collective"] = _collective(scenario.collective, axes)
    if scenario.training is not None:
        data["training"] = training_data(scenario.training)
        if scenario.training.global_batch is not None or "training.global_batch" in axes:
            # The number follows from the global batch; writing both would be refused.
            del data["training"]["gradient_accumulation_steps"]
    if scenario.plan is not None:
        _leave_to_plan(data, scenario.plan)
    # Order of the keys: job first, then axes, plots and findings, like in shipped scenarios.
    data["engine"] = scenario.engine
    for kind, axis in (("compare", scenario.compare), ("sweep", scenario.sweep)):
        if axis:
            data[kind] = {key: list(values) for key, values in axis.items()}
    data["plots"] = _plots(scenario)
    if scenario.baseline:
        data["baseline"] = dict(scenario.baseline)
    if scenario.answer:
        data["answer"] = [_finding(entry) for entry in scenario.answer]
    if scenario.budget is not None:
        data["budget"] = {key: value for key, value in scenario.budget.model_dump().items() if value is not None}
    if scenario.plan is not None:
        data["plan"] = _plan(scenario.plan)
    return data


def _plan(plan: PlanSpec) -> dict[str, Any]:
    """Return a scenario's `plan` as plain data; omitted keys are absent."""
    data: dict[str, Any] = {"global_batch": f"{plan.sequences}{SEQUENCES}"}
    data |= {"fix": dict(plan.fix)} if plan.fix else {}
    data |= {"among": {name: list(values) for name, values in plan.among.items()}} if plan.among else {}
    data |= {"without": list(plan.without)} if plan.without else {}
    data |= {"best": plan.best, "sensitivity": plan.sensitivity}
    return data | ({} if plan.deadline is None else {"deadline": plan.deadline})


def _leave_to_plan(data: dict[str, Any], plan: PlanSpec) -> None:
    """Remove in place the keys that the plan chooses: their defaults would look like the user's choice."""
    choices = {**plan.fix, **plan.among}
    # Keys in SAID_OR_CHOSEN keep the scenario's value if the plan names none; every other key is chosen.
    keys = [key for name, key in KEYS.items() if name not in SAID_OR_CHOSEN or name in choices]
    for dotted in (*keys, *FOLLOWS):
        *at, name = dotted.split(".")
        mapping = data
        for inner in at:
            mapping = mapping[inner]
        mapping.pop(name, None)


def _finding(entry: FindingSpec) -> dict[str, Any]:
    data: dict[str, Any] = {"finding": entry.finding, "margin": entry.margin}
    if entry.of:
        data["of"] = list(entry.of)
    if entry.along is not None:
        data["along"] = entry.along
    if entry.between is not None:
        data["between"] = list(entry.between)
    return data


def _plots(scenario: Scenario) -> list[str] | dict[str, Any]:
    """Return a scenario's `plots` as plain data: a list of names, or a mapping if points are named."""
    plotted = scenario.plotted
    kinds, points = list(plotted.kinds or ()), plotted.points
    if points is None:
        return kinds
    return {"kinds": kinds, "points": points if isinstance(points, str) else [dict(settings) for settings in points]}


def to_yaml(scenario: Scenario) -> str:
    """Return a scenario as YAML text with every default, and the question as first comment."""
    data = resolved(scenario)
    question = data.pop("question", "")
    return (f"# {question}\n" if question else "") + yaml_dialect.dump(data)


def bytes_text(nbytes: int) -> str:
    """Return a byte count as exact text, in the largest binary unit that divides the count.

    >>> bytes_text(256 * 2**20), bytes_text(1000)
    ('256 MiB', '1000 B')
    """
    for unit, factor in _IEC:
        if nbytes and nbytes % factor == 0:
            return f"{nbytes // factor} {unit}"
    return f"{nbytes} B"


def time_text(seconds: float) -> str:
    """Return a time [s] as exact text, in ms, us or ns if exact.

    >>> time_text(0.001), time_text(1 / 3)
    ('1 ms', '0.3333333333333333 s')
    """
    return _exact(seconds, "time", (("s", 1.0), ("ms", 1e-3), ("us", 1e-6), ("ns", 1e-9)))


def rate_text(rate: float) -> str:
    """Return a bandwidth [B/s] as exact text.

    >>> rate_text(50e9), rate_text(1e9 / 3)
    ('50 GB/s', '333333333.3333333 B/s')
    """
    return _exact(rate, "bandwidth", (("B/s", 1.0), ("GB/s", 1e9), ("MB/s", 1e6)))


def _exact(value: float, kind: units.Kind, scale: tuple[tuple[str, float], ...]) -> str:
    """Return a value [B, s, B/s] with the largest unit in which six digits read back exactly, else with every digit.

    Six digits in a unit suffice for most values: 0.001 s is "1 ms". 1/3 s needs every digit, "0.3333333333333333 s".
    """
    for unit, factor in sorted(scale, key=lambda pair: -pair[1]):
        short = f"{value / factor:.6g} {unit}"
        if value >= factor and units.parse(short, kind) == value:
            return short
    return f"{value!r} {scale[0][0]}"


def _cluster(cluster: ClusterSpec) -> dict[str, Any]:
    data: dict[str, Any] = {"topology": cluster.topology, "world_size": cluster.world_size}
    if cluster.gpu is not None:
        data["gpu"] = cluster.gpu
    data["stragglers"] = dict(cluster.stragglers)
    data["link_factors"] = dict(cluster.link_factors)
    data["jitter"] = {"compute": cluster.jitter.compute, "latency": cluster.jitter.latency}
    if cluster.placement is not None:
        each = cluster.placement
        data["placement"] = list(each) if isinstance(each, tuple) else dict(each)
    if cluster.ecmp is not None:
        data["ecmp"] = {"hash": cluster.ecmp.hash}
    if cluster.events:
        data["events"] = [_event(event) for event in cluster.events]
    if cluster.storage is not None:
        data["storage"] = rate_text(cluster.storage)
    if cluster.watchdog is not None:
        data["watchdog"] = time_text(cluster.watchdog)
    return data


def _event(event: EventSpec) -> dict[str, Any]:
    keys = event.model_dump(exclude_none=True)
    return keys | {key: time_text(keys[key]) for key in ("at", "lasts", "every", "reroute_after") if key in keys}


def _collective(spec: CollectiveSpec, axes: Collection[str]) -> dict[str, Any]:
    data: dict[str, Any] = {"operation": spec.operation, "algorithm": spec.algorithm}
    # `size` is the sum of the tensors, and `tensors` may come from an axis.
    if spec.tensors is None and "collective.tensors" not in axes:
        data["size"] = bytes_text(spec.nbytes)
    data |= {"dtype": spec.dtype, "reduction": spec.reduction, "accumulate": spec.accumulate, "payload": spec.payload}
    # Defaults are omitted if an axis may choose an algorithm, or an operation, that refuses the key.
    if spec.servers is not None and (spec.servers != ServersSpec() or "collective.algorithm" not in axes):
        data["servers"] = {"count": spec.servers.count, "on": spec.servers.on}
    # Root 0 is written only for operations with a root.
    if spec.root or (_rooted(spec.operation) and "collective.operation" not in axes):
        data["root"] = spec.root
    for name in ("rank_order", "group"):
        if getattr(spec, name) is not None:
            data[name] = list(getattr(spec, name))
    for name in ("chunks", "group_size"):
        if getattr(spec, name) is not None:
            data[name] = getattr(spec, name)
    if spec.tensors is not None:
        data["tensors"] = [bytes_text(nbytes) for nbytes in spec.tensors]
    if spec.fusion is not None:
        data["fusion"] = _fusion(spec.fusion)
    return data


def _fusion(fusion: FusionSpec) -> dict[str, Any]:
    # Buckets exclude buffer and cycle.
    if fusion.buckets is not None:
        return {"buckets": bytes_text(fusion.buckets)}
    return {
        "buffer": bytes_text(fusion.buffer or BUFFER),
        "cycle": time_text(CYCLE if fusion.cycle is None else fusion.cycle),
    }


def training_data(spec: TrainingSpec) -> dict[str, Any]:
    """Return the keys of a training step as plain data; values that follow from another key stay "auto"."""
    data = spec.model_dump()
    data["model"] = spec.model
    # None means "omitted" for these keys; a file cannot write None in any other way.
    for key in ("dp", "etp", "microbatch_group"):
        if data["parallelism"][key] is None:
            del data["parallelism"][key]
    # Here None is written as the word "none".
    if data["parallelism"]["experts"]["capacity"] is None:
        data["parallelism"]["experts"]["capacity"] = "none"
    for key in ("order", "stages"):
        if isinstance(data["parallelism"][key], tuple):
            data["parallelism"][key] = list(data["parallelism"][key])
    data["sharding"]["bucket_size"] = bytes_text(spec.sharding.bucket_size)
    if spec.sharding.shard_size is None:
        del data["sharding"]["shard_size"]
    # Samples of some models have no tokens, no padding and no next token.
    if spec.tokens_used == 1.0:
        del data["tokens_used"]
    if spec.lengths is None:
        del data["lengths"], data["batching"]
    else:
        data["lengths"] = {key: value for key, value in data["lengths"].items() if value is not None}
    if spec.mtp_layers == 0:
        del data["mtp_layers"]
    policy = spec.activation_checkpointing
    # Back from the parsed form: 2 is {every: 2}, (("full", (0, 1)),) is {full: [0, 1]}.
    if isinstance(policy, int):
        data["activation_checkpointing"] = {"every": policy}
    elif isinstance(policy, tuple):
        lists = {entry[0]: list(entry[1]) for entry in policy if isinstance(entry, tuple)}
        data["activation_checkpointing"] = lists or list(policy)
    data["offload"]["host_rate"] = rate_text(spec.offload.host_rate)
    data["faults"] = [{key: value for key, value in fault.items() if value is not None} for fault in data["faults"]]
    scaling = data["loss_scaling"]
    left_out = ((data["sharding"], "staleness"), (scaling, "interval"), (data, "clip_norm"), (data, "global_batch"))
    for mapping, key in left_out:
        if mapping[key] is None:
            del mapping[key]
    listed = {key: list(value) if isinstance(value, tuple) else value for key, value in data["learning"].items()}
    data["learning"] = {key: value for key, value in listed.items() if value is not None}
    return data


def _rooted(operation: str) -> bool:
    from simulator.collectives.algorithm import ROOTED

    return operation in ROOTED
