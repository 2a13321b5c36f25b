"""How long does each kernel of a micro-batch take on a GPU, and what bounds it?

Operations come from the model and durations from the step's settings; nothing is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from simulator.basics.dtypes import find
from simulator.cluster.cluster import Gpu
from simulator.model.kernel import Kernel
from simulator.model.layer_list import Layer, LayerList
from simulator.model.model import LayerKind, Model, first_operations
from simulator.model.operation import Operation
from simulator.step.kernel_timer import KernelTimer
from simulator.step.kernels.losses import loss_operations
from simulator.step.spec import TrainingStep
from simulator.step.units import batch_of, of_framework, timer_of_ends

ModelPart = Literal["layer", "embedding", "head"]
Bound = Literal["arithmetic", "SMs", "HBM", "launch", "merged"]
# Blocks of a hybrid's layers.
_BLOCKS: Final = {"M": "Mamba-2", "*": "attention", "-": "dense", "E": "expert"}


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A row in the table of a micro-batch's kernels: kernel, duration, bytes and bottleneck."""

    # "embedding", "head", "layer" or "dense layer", the last two with a window if layers have different windows. Of a
    # hybrid, the blocks of a layer, such as "Mamba-2 layer". Of a list of layers "first", "last" and "layer", with its
    # number if layers differ.
    part: str
    times: int  # number of such parts in the model
    backward: bool
    kernel: Kernel
    seconds: float  # duration of a single kernel [s]
    nbytes: float  # least bytes read and written; of a merged kernel the share that is left after merging [B]
    # The largest of: the time lost with half of the SMs ("arithmetic", or "SMs" for a kernel that handles elements one
    # by one), the time lost with half of the HBM bandwidth, and the launch overhead. "merged": a compiler has fused
    # the kernel into a neighbour, and the framework has no constant for the bytes that are left.
    bound: Bound


def kernel_rows(step: TrainingStep, gpu: Gpu) -> tuple[KernelRow, ...]:
    """Return a table row for each kernel of a step's micro-batch on a GPU; repeated equal layers have one set of rows.

    >>> from simulator.cluster.gpu_file import load_gpu
    >>> from simulator.model.load import load_model
    >>> from simulator.step.spec import bare_step
    >>> rows = kernel_rows(bare_step(load_model("llama3_8b"), 8192, 1), load_gpu("h100_sxm"))
    >>> [(row.part, row.times, row.kernel.name, row.bound) for row in rows if row.part == "layer"][:2]
    [('layer', 32, 'norm1', 'HBM'), ('layer', 32, 'qkv', 'arithmetic')]
    """
    timer, model = KernelTimer(gpu, step), step.model
    first, last = ("first", "last") if isinstance(model, LayerList) else ("embedding", "head")
    # Kinds of layers that differ in saved tensors alone have the same kernels.
    layers: dict[tuple[Any, ...], tuple[str, int, KernelTimer, Sequence[Operation]]] = {}
    for kind, members in model.kinds.items():
        of_layer = part_operations(timer, "layer", members[0])
        key = tuple((op.forward, op.backward) for op in of_layer[1])
        name, count, *_ = layers.get(key, (_part(kind, model), 0))
        layers[key] = name, count + len(members), *of_layer
    parts: list[tuple[str, int, KernelTimer, Sequence[Operation]]] = [
        (first, 1, *part_operations(timer, "embedding")),
        *layers.values(),
        (last, 1, *part_operations(timer, "head")),
    ]
    return tuple(row for part in parts for row in _rows(*part))


def part_operations(timer: KernelTimer, part: ModelPart, layer: int = 0) -> tuple[KernelTimer, tuple[Operation, ...]]:
    """Return the operations of a part of the step's model on a micro-batch, and the timer of their kernels; `layer` is
    the number of the layer.

    >>> from simulator.cluster.gpu_file import load_gpu
    >>> from simulator.model.load import load_model
    >>> from simulator.step.spec import bare_step
    >>> timer = KernelTimer(load_gpu("h100_sxm"), bare_step(load_model("gpt2"), 1024))
    >>> [operation.name for operation in part_operations(timer, "layer", 11)[1]][:3]
    ['norm1', 'qkv', 'attention']
    """
    batch, model = batch_of(timer.step), timer.step.model
    if part == "layer":
        kind = next(kind for kind, members in model.kinds.items() if layer in members)
        return timer, of_framework(timer, kind, batch)
    ends = timer_of_ends(timer)
    return ends, first_operations(model, batch) if part == "embedding" else loss_operations(ends.step, batch)


def _part(kind: LayerKind, model: Model) -> str:
    """Return the name of a kind of layer in a model: "layer", "dense layer" beside layers with experts, with its window
    if layers have different windows. Layers of a list are "layer" and their first number if there are several kinds.
    """
    if isinstance(model, LayerList):
        numbers = [members[0] for other, members in model.kinds.items() if other == kind]
        return f"layer {numbers[0]}" if len(model.kinds) > 1 else "layer"
    if isinstance(kind, Layer):
        raise TypeError(f"got a layer of a list for {model.name}, a transformer")
    name = "dense layer" if model.num_experts and not kind.num_experts else "layer"
    if kind.blocks:
        name = f"{' and '.join(_BLOCKS[letter] for letter in kind.layer_blocks)} layer"
    if len(set(model.windows)) <= 1:
        return name
    return f"{name}, {'chunk' if model.chunked else 'window'} {kind.window}" if kind.window else f"{name}, all keys"


def _rows(part: str, times: int, timer: KernelTimer, operations: Sequence[Operation]) -> Iterator[KernelRow]:
    """Yield a table row for each kernel of a model part's operations, kernels of the forward pass first."""
    itemsize = find(timer.step.precision.params).itemsize
    for backward in (False, True):
        for operation in operations:
            for kernel in operation.backward if backward else operation.forward:
                seconds, nbytes = timer.seconds(kernel), kernel.nbytes(itemsize) * timer.bytes_left(kernel)
                yield KernelRow(part, times, backward, kernel, seconds, nbytes, _bound(timer, kernel, seconds))


def _bound(timer: KernelTimer, kernel: Kernel, seconds: float) -> Bound:
    """Return a kernel's bottleneck: "arithmetic", "HBM", "launch", or "merged" for a kernel without duration."""
    if not seconds:
        return "merged"
    # Halving a resource shows its importance, also for kernels between two roofs.
    lost: dict[Bound, float] = {
        "arithmetic" if kernel.flops else "SMs": timer.seconds(kernel, sms_taken=timer.gpu.sms // 2) - seconds,
        "HBM": timer.seconds(kernel, hbm_left=0.5) - seconds,
        "launch": timer.launch,
    }
    return max(lost, key=lambda bound: lost[bound])
