"""Makes a Scenario record out of a shape that keeps all rules.

Rule: nothing is checked here; defaults that depend on other keys are filled in.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, cast

from pydantic import ValidationError

from simulator.scenario import build_training, collective_rules, plot_names
from simulator.scenario.answer_shape import FindingShape
from simulator.scenario.global_batch import sequences_of
from simulator.scenario.plan_shape import PlanShape
from simulator.scenario.records import (
    Asked,
    BucketFusion,
    Budget,
    BufferFusion,
    ClusterSpec,
    CollectiveSpec,
    Ecmp,
    Fusion,
    Jitter,
    PlanSpec,
    Scenario,
    Servers,
)
from simulator.scenario.shape import ClusterShape, CollectiveShape, FusionShape, ScenarioShape, adapter, axis_keys

_BUFFER: Final = BufferFusion()


def scenario(shape: ScenarioShape, question: str, source: str, base: Path) -> Scenario:
    """Make the record of a shape that keeps all rules."""
    plotted = shape.plotted
    points = plotted.points
    return Scenario(
        name=shape.name,
        cluster=_cluster(shape.cluster),
        collective=None if shape.collective is None else _collective(shape.collective),
        training=None if shape.training is None else build_training.training(shape.training, shape.cluster.world_size),
        question=" ".join((shape.question or question).split()),
        seed=shape.seed,
        engine=cast(Any, shape.engine),
        compare=_axes(shape.compare),
        sweep=_axes(shape.sweep),
        baseline={key: _plain_number(key, value) for key, value in shape.baseline.items()},
        answer=tuple(_asked(asked) for asked in shape.answer),
        budget=None if shape.budget is None else Budget(**shape.budget.model_dump()),
        plan=None if shape.plan is None or shape.training is None else _plan(shape.plan, shape.training.seq_len),
        plots=tuple(dict.fromkeys(plot_names.names_of(shape.kind) if plotted.kinds is None else plotted.kinds)),
        plotted_points=tuple(points) if isinstance(points, list) else cast(Any, points),
        source=source,
        base=base,
    )


def _plan(shape: PlanShape, seq_len: int) -> PlanSpec:
    return PlanSpec(
        sequences=sequences_of(shape.global_batch, seq_len),
        fix=dict(shape.fix),
        among={name: tuple(values) for name, values in shape.among.items()},
        without=tuple(shape.without),
        best=shape.best,
        deadline=shape.deadline,
        sensitivity=shape.sensitivity,
    )


def _asked(shape: FindingShape) -> Asked:
    ends = shape.between or []
    if shape.along in axis_keys():
        ends = [_plain_number(shape.along, end) for end in ends]
    between = (ends[0], ends[-1]) if ends else None
    return Asked(shape.finding, tuple(shape.of), shape.along, between, shape.margin)


def _axes(axes: Mapping[str, list[Any]]) -> dict[str, tuple[Any, ...]]:
    return {key: tuple(_plain_number(key, value) for value in values) for key, values in axes.items()}


def _plain_number(key: str, written: Any) -> Any:
    """A count that is written as 8k or 1e6 as the number that it is; other values of an axis as they were written."""
    reads = adapter(key).validate_python
    if not isinstance(written, str | float) or not isinstance(value := reads(written), int):
        return written
    try:
        return value if reads(value) == value else written
    except ValidationError:  # a size, which has a unit
        return written


def _tuple(values: list[int] | None) -> tuple[int, ...] | None:
    return None if values is None else tuple(values)


def _cluster(shape: ClusterShape) -> ClusterSpec:
    return ClusterSpec(
        topology=shape.topology,
        world_size=shape.world_size,
        gpu=shape.gpu,
        stragglers=dict(shape.stragglers),
        link_factors=dict(shape.link_factors),
        jitter=Jitter(shape.jitter.compute, shape.jitter.latency),
        placement=_tuple(shape.placement),
        ecmp=None if shape.ecmp is None else Ecmp(shape.ecmp.hash),
    )


def _collective(shape: CollectiveShape) -> CollectiveSpec:
    return CollectiveSpec(
        operation=shape.operation,
        size=size(shape),
        algorithm=shape.algorithm,
        dtype=shape.dtype,
        reduction=shape.reduction,
        accumulate=cast(Any, shape.accumulate),
        payload=shape.payload,
        servers=_servers(shape),
        rank_order=_tuple(shape.rank_order),
        chunks=shape.chunks,
        root=shape.root or 0,
        group=_tuple(shape.group),
        group_size=shape.group_size,
        tensors=_tuple(shape.tensors),
        fusion=None if shape.fusion is None else _fusion(shape.fusion),
    )


def size(shape: CollectiveShape) -> int:
    """Bytes of the whole array: as given, else the sum of the tensors [B]."""
    return shape.size if shape.size is not None else sum(shape.tensors or ())


def _servers(shape: CollectiveShape) -> Servers | None:
    if shape.servers is not None:
        return Servers(shape.servers.count, cast(Any, shape.servers.on))
    return Servers() if shape.algorithm in collective_rules.algorithms_with("servers") else None


def _fusion(shape: FusionShape) -> Fusion:
    if shape.buckets is not None:
        return BucketFusion(shape.buckets)
    return BufferFusion(
        _BUFFER.buffer if shape.buffer is None else shape.buffer,
        _BUFFER.cycle if shape.cycle is None else shape.cycle,
    )
