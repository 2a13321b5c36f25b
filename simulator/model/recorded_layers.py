"""Which list of layers do recordings of a module on micro-batches of different size describe?

The first two recordings give each number's fixed part and its part per sample; the third one checks both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from simulator.basics.errors import ScenarioError
from simulator.model.convolution import Convolution
from simulator.model.layer_list import (
    Amount,
    AttentionCounts,
    Count,
    ElementwiseCounts,
    KernelCounts,
    Layer,
    LayerList,
    LayerOperation,
    MatmulCounts,
    SavedTensor,
)
from simulator.model.parameters import Parameter

if TYPE_CHECKING:
    from simulator.model.torch_operations import TracedKernel
    from simulator.model.torch_recording import RecordedOperation, Recorder

# Micro-batches that are traced: the first two give the numbers per sample, the third checks that they grow evenly.
# Batches of one sample take other paths through some modules.
SAMPLES: Final = (2, 3, 5)


def layers_of_recordings(name: str, runs: Sequence[Recorder], tokens: int) -> LayerList:
    """Return the list of layers of a module that was recorded on micro-batches of different sizes."""
    first = runs[0]
    number = len(first.roots)
    forward, backward = (_fitted(name, [getattr(run, which) for run in runs]) for which in ("forward", "backward"))
    layers = [list[LayerOperation]() for _ in range(number + 2)]
    gradients = [list[KernelCounts]() for _ in range(number + 2)]
    for event, operation in forward:
        layers[_layer_of(event.place, number)].append(operation)
    for event, operation in backward:
        gradients[_layer_of(event.place, number)] += operation.forward
    sizes = {place: _grown(name, "output", [run.outputs[place] for run in runs]) for place in first.outputs}
    kinds = []
    for place, operations in enumerate(layers):
        of_layer = operations or ([LayerOperation("gradients")] if gradients[place] else [])
        if of_layer:
            # The backward pass of a layer runs as it was recorded, before the passes of earlier layers.
            of_layer[-1] = replace(of_layer[-1], backward=tuple(gradients[place]))
        output = Amount(*sizes[place - 1]) if place - 1 in sizes else Amount()
        kinds.append(Layer(_parameters(first, place, number), tuple(of_layer), output))
    if not number:
        # A module without lists of modules is one layer.
        entered = Amount(*_grown(name, "input", [run.entered for run in runs]))
        kinds = [Layer((), (), entered), _merged(kinds[0], kinds[1]), Layer((), (), Amount())]
    return LayerList(name, kinds[0], tuple(kinds[1:-1]), kinds[-1], tokens, tuple(first.unknown))


def _layer_of(place: int, number: int) -> int:
    """Return the index among first layer, `number` layers and last layer of a place of the forward pass; what runs
    between two layers belongs to the earlier one.
    """
    if place % 2:
        return place // 2 + 1
    return number + 1 if place // 2 == number else place // 2


def _merged(first: Layer, other: Layer) -> Layer:
    """Return two layers as one."""
    return Layer(first.parameters + other.parameters, first.operations + other.operations, other.output)


def _parameters(run: Recorder, layer: int, number: int) -> tuple[Parameter, ...]:
    """Return the parameters of a layer, by the module that holds them."""
    parameters = []
    for name, parameter in run.module.named_parameters():
        holder = name.rpartition(".")[0]
        while holder and holder not in run.owned:
            holder = holder.rpartition(".")[0]
        place = run.owned.get(holder, 0)
        if _layer_of(place, number) == layer:
            root = run.roots[place // 2] if place % 2 else ""
            name_in_layer = name.removeprefix(root).lstrip(".")
            parameters.append(Parameter(name_in_layer, tuple(parameter.shape), parameter.requires_grad))
    return tuple(parameters)


def _fitted(name: str, passes: Sequence[list[RecordedOperation]]) -> list[tuple[RecordedOperation, LayerOperation]]:
    """Return each operation of a pass with numbers that grow with the samples, from the same pass on several
    micro-batches.
    """
    if len({len(events) for events in passes}) != 1:
        raise ScenarioError(f"{name}: runs other operations on a larger micro-batch; trace a module without that")
    pairs = []
    for events in zip(*passes, strict=True):
        if len({event.shape for event in events}) != 1:
            raise ScenarioError(f"{name}: {events[0].name} does something else on a larger micro-batch")
        counts = iter(_grown(name, events[0].name, [event.numbers for event in events]))
        kernels = tuple(
            _kernel(events[0].name, kernel, [next(counts) for _ in kernel.numbers]) for kernel in events[0].kernels
        )
        output = Amount(next(counts), next(counts))
        saved = tuple(
            SavedTensor(label, Amount(next(counts), next(counts)), source) for label, _, source in events[0].saved
        )
        pairs.append((events[0], LayerOperation(events[0].name, kernels, (), saved, output)))
    return pairs


def _grown(name: str, what: str, numbers: Sequence[Sequence[int]]) -> list[Count]:
    """Return counts from the same numbers on micro-batches of `SAMPLES` samples."""
    counts = []
    for few, more, most in zip(*numbers, strict=True):
        each = (more - few) // (SAMPLES[1] - SAMPLES[0])
        count = Count(few - each * SAMPLES[0], each)
        if count.fixed < 0 or each < 0 or count.of(SAMPLES[2]) != most:
            raise ScenarioError(
                f"{name}: {what} does not grow evenly with the micro-batch: {few}, {more} and {most} for "
                f"{', '.join(map(str, SAMPLES))} samples"
            )
        counts.append(count)
    return counts


def _kernel(name: str, kernel: TracedKernel, counts: list[Count]) -> KernelCounts:
    """Return a kernel with counts in place of its numbers."""
    if kernel.kind == "matmul":
        m, n, k, batch = counts
        return MatmulCounts(name, m, n, k, batch, kernel.of_weights)
    if kernel.kind == "attention":
        heads, kv_heads, tokens, width, causal, backward, keys = kernel.fixed
        return AttentionCounts(name, counts[0], heads, kv_heads, tokens, width, causal, backward, keys)
    if kernel.kind == "elementwise":
        read, written = Amount(*counts[:2]), Amount(*counts[2:])
        return ElementwiseCounts(name, read, written, kernel.fixed[0], kernel.of_weights)
    channels, outputs, window, groups = kernel.fixed
    of = Convolution(name, counts[0], channels, outputs, window, groups, counts[1])
    passes = {"forward": of.forward, "input gradient": of.input_gradient, "weight gradient": of.weight_gradient}
    return passes[kernel.kind]()
