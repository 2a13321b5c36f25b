"""The work of a step on one rank: each unit's kernels put together, with times on this GPU.

Rule: turns operations into spans of kernels (time alone, time beside communication, FLOPs, bytes); knows no sharding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from simulator.basics.dtypes import find
from simulator.cluster.cluster import Gpu
from simulator.model.head import embedding_operations, head_operations
from simulator.model.kernel import Attention, Elementwise, Kernel, Matmul
from simulator.model.layer import Batch, Operation, layer_operations, saved_bytes
from simulator.model.parameters import Module, modules
from simulator.step.checkpointing import Kept, kept, policy_of
from simulator.step.kernels.framework_operations import (
    eight_bit_casts,
    fused_loss,
    loss_buffers,
    second_maps,
    until_needed,
)
from simulator.step.kernels.kernel_time import communication_sms, duration
from simulator.step.spec import TrainingStep


@dataclass(frozen=True, slots=True)
class Timed:
    """A span of kernels on one GPU.

    Attributes
    ----------
    alone, slowed : float
        Its duration, and that beside communication all the time [s].
    flops, nbytes : float
        [FLOP], [B]
    """

    alone: float
    slowed: float
    flops: float
    nbytes: float

    def __add__(self, other: Timed) -> Timed:
        return Timed(
            self.alone + other.alone,
            self.slowed + other.slowed,
            self.flops + other.flops,
            self.nbytes + other.nbytes,
        )


@dataclass(frozen=True, slots=True)
class Unit:
    """A module of the model with its work for one micro-batch.

    Attributes
    ----------
    name : str
    elements : int
        Of its parameters.
    forward, backward : Timed
    recompute : Timed or None
        Before its backward pass.
    kept, recomputed : int
        Activations kept from forward to backward, and made again for it [B].
    makes : tuple of str
        Units whose activations are made again before this one's backward pass: its own, and those of its segment.
    copies : Timed or None
        Copies and casts around its collectives, once for each micro-batch that communicates.
    accumulate : Timed or None
        Adding its gradients to those of earlier micro-batches.
    resident : int
        Elements that stay whole on every rank where parameters are sharded.
    """

    name: str
    elements: int
    forward: Timed
    backward: Timed
    recompute: Timed | None
    kept: int
    recomputed: int
    makes: tuple[str, ...] = ()
    copies: Timed | None = None
    accumulate: Timed | None = None
    resident: int = 0


@dataclass(frozen=True, slots=True)
class _Beside:
    """What a collective in flight takes of SMs and leaves of HBM."""

    sms_taken: int
    hbm_left: float


_ALONE: Final = _Beside(0, 1.0)


@dataclass(frozen=True, slots=True)
class Gauge:
    """Times kernels on one GPU under one step's settings.

    Attributes
    ----------
    gpu : Gpu
    step : TrainingStep
    hbm_left : float
        Share of HBM bandwidth that a collective in flight leaves to kernels.
    """

    gpu: Gpu
    step: TrainingStep
    hbm_left: float = 1.0

    def timed(self, kernels: Iterable[Kernel]) -> Timed:
        """Kernels one after the other."""
        beside = self._beside()
        found = Timed(0.0, 0.0, 0.0, 0.0)
        for kernel in kernels:
            alone = self._duration(kernel, _ALONE)
            slowed = self._duration(kernel, beside)
            size = find(self.step.precision.params).itemsize
            found += Timed(alone, slowed, kernel.flops, kernel.nbytes(size))
        return found

    def _duration(self, kernel: Kernel, beside: _Beside) -> float:
        """A kernel's time with what the framework and the chip's sustained load make of it [s]."""
        framework = self.step.framework
        if isinstance(kernel, Elementwise):
            if self.step.compiled and kernel.fusible:
                return framework.compiled * self._bare(replace(kernel, fusible=False), beside)
            return framework.elementwise * self._bare(kernel, beside)
        if isinstance(kernel, Attention):
            found = self._bare(kernel, beside)
            if kernel.causal and framework.attention_masked:
                whole = self._bare(replace(kernel, causal=False), beside)
                found += framework.attention_masked * (whole - found)
            return found
        found = framework.matmul_time(self.gpu) * self._bare(kernel, beside)
        return found + self._casts(kernel, beside)

    def _casts(self, kernel: Matmul, beside: _Beside) -> float:
        """Time to bring operands to eight bits, where the matmul takes them so and activations do not [s]."""
        precision = self.step.precision
        if not _is_eight_bit(precision.matmul) or _is_eight_bit(precision.params):
            return 0.0
        return self._bare(eight_bit_casts(kernel), replace(beside, sms_taken=0))

    def _bare(self, kernel: Kernel, beside: _Beside) -> float:
        precision = self.step.precision
        # Eight bits are for the layers' linear maps; attention keeps the activations' dtype.
        wide = isinstance(kernel, Elementwise) or (isinstance(kernel, Attention) and _is_eight_bit(precision.matmul))
        return duration(
            kernel,
            self.gpu,
            precision.params if wide else precision.matmul,
            sms_taken=beside.sms_taken,
            hbm_share=beside.hbm_left,
            attention_generation=self.step.attention_generation,
            compiled=self.step.compiled,
            sustained=bool(self.step.framework.sustained),
        )

    def copies(self, nbytes: float) -> Timed:
        """Plain copies of so many bytes, read and written together [B]."""
        kernel = Elementwise("copies", nbytes / 2, nbytes / 2)
        beside = replace(self._beside(), sms_taken=0)
        return Timed(self._bare(kernel, _ALONE), self._bare(kernel, beside), 0.0, nbytes)

    def _beside(self) -> _Beside:
        return _Beside(communication_sms(self.gpu), self.hbm_left)

    def swept(self, name: str, read: float, written: float) -> Timed:
        """One pass over HBM."""
        return self.timed([Elementwise(name, read, written)])


def _is_eight_bit(dtype: str) -> bool:
    return find(dtype, stored=False).itemsize == 1


def units(
    step: TrainingStep, gpu: Gpu, ranks: int = 1, hbm_left: float = 1.0, *, sharded: bool = False
) -> tuple[Unit, ...]:
    """Embedding, layers and head with their work for one micro-batch; several ranks copy what they communicate.

    Where parameters are `sharded` small ones may stay whole on every rank (`Sharding.keep_below`).
    """
    framework = step.framework
    gauge = Gauge(gpu, step, hbm_left)
    # The head and the embedding keep the activations' dtype where layers multiply with eight bits.
    ends = gauge
    if _is_eight_bit(step.precision.matmul):
        wide = replace(step, precision=replace(step.precision, matmul=step.precision.params))
        ends = replace(gauge, step=wide)
    batch = Batch(
        step.micro_batch_size,
        step.seq_len,
        find(step.precision.params).itemsize,
        step.attention,
        step.dropout,
    )
    parts = modules(step.model)
    elements = [module.elements for module in parts]
    layer = layer_operations(step.model, batch)
    entry = batch.tokens * step.model.hidden_size * batch.itemsize
    forward, backward = _both(gauge, layer)
    found = [_plain("embedding", elements[0], ends, embedding_operations(step.model, batch))]
    timed: dict[tuple[str, ...], Timed] = {}
    for i in range(step.model.num_layers):
        keeping: Kept = kept(step.checkpointing, i, step.model, layer, entry)
        again = None
        if keeping.operations and keeping.segment:
            again = _again(gauge, keeping, timed)
            if framework.split_maps and policy_of(step.checkpointing, i) == "selective_op":
                again += gauge.timed(second_maps(step.model, batch))
        makes = tuple(f"layer {j}" for j in range(i - keeping.segment + 1, i + 1)) if keeping.recomputed else ()
        kept_here = (keeping.nbytes, keeping.recomputed, makes)
        found.append(Unit(f"layer {i}", elements[1 + i], forward, backward, again, *kept_here))
    head = head_operations(step.model, batch)
    if framework.fused_loss:
        head = fused_loss(head)
    last = _plain("head", elements[-1], ends, head)
    if framework.loss_buffers and not framework.fused_loss:
        held = loss_buffers(step.model, batch, compiled=step.compiled)
        last = replace(last, recomputed=held, makes=(last.name,))
    found.append(last)
    return tuple(
        _completed(gauge, unit, module, ranks, sharded=sharded) for unit, module in zip(found, parts, strict=True)
    )


def _again(gauge: Gauge, keeping: Kept, timed: dict[tuple[str, ...], Timed]) -> Timed:
    """What is run again before a layer's backward pass: whole layers, the last of them as far as it is needed."""

    def time(operations: tuple[Operation, ...]) -> Timed:
        names = tuple(op.name for op in operations)
        if names not in timed:
            timed[names] = gauge.timed(k for op in operations for k in op.forward)
        return timed[names]

    again = time(until_needed(keeping.operations) if gauge.step.framework.stops_early else keeping.operations)
    for _ in range(keeping.segment - 1):
        again += time(keeping.operations)
    return again


def _completed(gauge: Gauge, unit: Unit, module: Module, ranks: int, *, sharded: bool) -> Unit:
    """A unit with what its gradients and its sharding ask for beside the passes."""
    step, copied = gauge.step, gauge.step.framework.parameter_bytes * unit.elements
    computed, kept = find(step.precision.params).itemsize, find(step.precision.grads).itemsize
    added = (computed + 2 * kept) * unit.elements
    small = sum(p.elements for p in module.parameters if p.elements < step.sharding.keep_below)
    return replace(
        unit,
        copies=gauge.copies(copied) if ranks > 1 and copied else None,
        # One kernel that reads what is new and adds it in place.
        accumulate=gauge.copies(added) if step.accumulation > 1 or computed != kept else None,
        resident=small if ranks > 1 and sharded else 0,
    )


def _both(gauge: Gauge, operations: tuple[Operation, ...]) -> tuple[Timed, Timed]:
    forward = gauge.timed(k for op in operations for k in op.forward)
    return forward, gauge.timed(k for op in operations for k in op.backward)


def _plain(name: str, elements: int, gauge: Gauge, operations: tuple[Operation, ...]) -> Unit:
    forward, backward = _both(gauge, operations)
    return Unit(name, elements, forward, backward, None, saved_bytes(operations), 0)
