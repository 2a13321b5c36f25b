"""Reads a file of layers as a model: any network whose layers are known, without PyTorch.

A layer is a mapping from its type to its keys (see `LAYER_TYPES`), or the type alone. Four words compose layers:

    block: [...]                            layers that are one: gathered, recomputed and placed on a stage together
    repeat: 12, layers: [...]               as many equal blocks; inside a block, as many equal layers
    residual: [...]                         the layers' output plus their input; {layers: [...], shortcut: [...]}
    branch: {input: [1152], layers: [...]}  layers on an input of their own, as a condition; their output leaves here

Example::

    input: [3, 224, 224]
    layers:
    - conv2d: {in: 3, out: 64, kernel: 7, stride: 2, padding: 3, bias: false}
    - repeat: 2
      layers:
      - residual: [{conv2d: {in: 64, out: 64, kernel: 3, padding: 1}}, relu]
    - global_pool
    - linear: [64, 1000]
    loss: cross_entropy

Layers before the first block are the model's first layer, layers after the last block are its last layer. Without
blocks, every layer with parameters begins one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

from simulator.basics.document import Document, Fault, Key
from simulator.basics.errors import one_of
from simulator.model.config_keys import MOST_LAYERS
from simulator.model.layer_list import (
    Amount,
    Count,
    ElementwiseCounts,
    Layer,
    LayerList,
    LayerOperation,
    SavedTensor,
    joined,
)
from simulator.model.layer_types import LAYER_TYPES, Built, LayerKeys, Shape, Tensor, amount, elementwise, shape_text
from simulator.model.parameters import Parameter

_COMPOSED: Final = ("block", "repeat", "residual", "branch")
_LOSSES: Final = ("cross_entropy", "mean_squared_error", "none")
_KEYS: Final = ("input", "layers", "loss", "name", "source")
_FLOAT32: Final = 4
_LABEL: Final = 8


def read_layer_list(document: Document, name: str) -> LayerList:
    """Return the model that a file of layers describes.

    Raises
    ------
    ScenarioError
        A line per fault: an unknown type or key, a missing size, shapes that do not follow one another.
    """
    reader = _Reader(document)
    for key in document.data:
        if key not in _KEYS:
            reader.fault((str(key),), f"unknown key; {one_of(_KEYS, str(key))}")
    entered, tokens = reader.input()
    groups = reader.groups(entered)
    loss = reader.loss(groups[-1].output if groups else entered)
    document.refuse(reader.faults)
    return _model(name, groups, loss, entered, tokens)


@dataclass(frozen=True, slots=True)
class _Group:
    """Consecutive layers that become one layer of the model; `alone` if no block holds them."""

    layer: Layer
    output: Tensor
    alone: bool


@dataclass(frozen=True, slots=True)
class _Part:
    """Entries of a file that become one layer of the model, each with its key; `alone` if no block holds them."""

    entries: list[tuple[Key, Any]]
    alone: bool


def _model(name: str, groups: list[_Group], loss: LayerOperation | None, entered: Tensor, tokens: int) -> LayerList:
    """Return the model of some groups of layers, whose first and last ones also prepare the input and take the loss."""
    layers = [group.layer for group in groups]
    empty = Layer((), (), entered.size)
    blocks = not all(group.alone for group in groups)
    # At least one layer lies between the first and the last.
    takes_first = groups[0].alone and (blocks or len(groups) > 2)
    takes_last = groups[-1].alone and (blocks or len(groups) > 2)
    first = layers.pop(0) if takes_first else empty
    last = layers.pop() if takes_last else Layer((), (), groups[-1].output.size)
    if loss is not None:
        last = replace(last, operations=(*last.operations, loss), output=loss.output)
    first, *between, last = joined((first, *layers, last))
    if first.operations:
        first = _without_input_gradient(first)
    else:
        between[0] = _without_input_gradient(between[0]) if len(set(between)) > 1 else between[0]
    return LayerList(name, first, tuple(between), last, tokens)


def _without_input_gradient(layer: Layer) -> Layer:
    """Return a layer whose first operation computes no gradient of its input, which nothing needs."""
    first, *others = layer.operations
    weights = tuple(kernel for kernel in first.backward if getattr(kernel, "of_weights", False))
    return replace(layer, operations=(replace(first, backward=weights), *others))


@dataclass(slots=True)
class _Reader:
    """Builds the layers of a file one after another and records every fault."""

    document: Document
    faults: list[Fault] = field(default_factory=list)
    names: Counter[str] = field(default_factory=Counter)

    def fault(self, key: Key, message: str) -> None:
        """Record a fault at a key of the file."""
        self.faults.append(self.document.fault(key, message))

    def input(self) -> tuple[Tensor, int]:
        """Return the input of a sample, and its tokens: 1 unless the input is a sequence of token numbers."""
        value = self.document.data.get("input")
        if isinstance(value, Mapping) and set(value) == {"tokens"} and _is_size(value["tokens"]):
            return Tensor("input", (value["tokens"],)), value["tokens"]
        return Tensor("input", self._shape(("input",), value)), 1

    def _shape(self, key: Key, value: Any) -> Shape:
        """Return a shape that a file gives at a key; (1,) after a fault."""
        if isinstance(value, list) and value and all(map(_is_size, value)):
            return tuple(value)
        got = "is missing" if value is None else f"got {value!r}"
        self.fault(key, f"{got}; write the shape of a sample, such as [3, 224, 224], or tokens: 1024")
        return (1,)

    def groups(self, source: Tensor) -> list[_Group]:
        """Return the layers of the model."""
        entries = self._listed(("layers",), self.document.data.get("layers"))
        groups = []
        for part in self._parts(entries, source):
            self.names.clear()
            entered = Tensor("input", source.shape)
            built = self._sequence(part.entries, entered)
            layer = Layer(built.parameters, built.operations, built.output.size)
            groups.append(_Group(layer, built.output, part.alone))
            source = built.output
        return groups

    def _parts(self, entries: list[tuple[Key, Any]], source: Tensor) -> list[_Part]:
        """Return the entries of the file by the layer of the model that they belong to."""
        if not any(map(_is_block, (entry for _, entry in entries))):
            return self._by_parameters(entries, source)
        parts = list[_Part]()
        for single, run in groupby(entries, lambda entry: not _is_block(entry[1])):
            if single:
                parts.append(_Part(list(run), alone=True))
            else:
                for key, entry in run:
                    parts += [_Part(self._flat(layers), alone=False) for layers in self._blocks(key, entry)]
        return parts

    def _by_parameters(self, entries: list[tuple[Key, Any]], source: Tensor) -> list[_Part]:
        """Return the entries of a file without blocks: each entry with parameters begins a part, but for the first."""
        # A copy of the reader, because the layers are built again part by part.
        tried = replace(self, faults=[], names=Counter())
        parts, begun = list[_Part](), False
        for entry in entries:
            built = tried._sequence([entry], source)
            source = built.output
            if not parts or (built.parameters and begun):
                parts.append(_Part([], alone=True))
            begun = begun or bool(built.parameters)
            parts[-1].entries.append(entry)
        return parts

    def _listed(self, key: Key, layers: Any) -> list[tuple[Key, Any]]:
        """Return the layers that a file lists at a key, each with its own key."""
        if not isinstance(layers, list) or not layers:
            self.fault(key, "must be a list of layers, such as [{linear: [784, 10]}]")
            return []
        return [((*key, number), layer) for number, layer in enumerate(layers)]

    def _blocks(self, key: Key, entry: Mapping[str, Any]) -> list[list[tuple[Key, Any]]]:
        """Return the layers of a `block` entry once, and the layers of a `repeat` entry as often as the entry says."""
        inner, times = ("layers" if "repeat" in entry else "block"), entry.get("repeat", 1)
        if not _is_size(times) or times > MOST_LAYERS:
            self.fault((*key, "repeat"), f"got {times!r}; must be from 1 to {MOST_LAYERS}")
            times = 1
        for other in set(entry) - {"repeat", inner}:
            self.fault((*key, str(other)), f"unknown key; {'beside repeat only layers' if times else 'omit it'}")
        return [self._listed((*key, inner), entry.get(inner))] * times

    def _flat(self, entries: list[tuple[Key, Any]]) -> list[tuple[Key, Any]]:
        """Return a list of layers with those of its blocks in their place."""
        flat = list[tuple[Key, Any]]()
        for key, entry in entries:
            if _is_block(entry):
                for layers in self._blocks(key, entry):
                    flat += self._flat(layers)
            else:
                flat.append((key, entry))
        return flat

    def _sequence(self, entries: list[tuple[Key, Any]], source: Tensor) -> Built:
        """Return consecutive entries of a file, applied to the tensor `source`, as a single layer."""
        parameters, operations = list[Parameter](), list[LayerOperation]()
        for key, entry in self._flat(entries):
            built = self._entry(key, entry, source)
            source = built.output
            parameters += built.parameters
            operations += built.operations
        return Built(source, tuple(parameters), tuple(operations))

    def _entry(self, key: Key, entry: Any, source: Tensor) -> Built:
        """Return the layer that an entry of a list describes."""
        if isinstance(entry, str):
            entry = {entry: None}
        if not isinstance(entry, Mapping) or len(entry) != 1:
            self.fault(key, "must be a type of layer, such as relu, or a type with its keys, such as linear: [64, 10]")
            return Built(source)
        kind, value = next(iter(entry.items()))
        if kind == "residual":
            return self._residual((*key, kind), value, source)
        if kind == "branch":
            return self._branch((*key, kind), value, source)
        if kind not in LAYER_TYPES:
            self.fault((*key, str(kind)), f"unknown layer; {one_of((*LAYER_TYPES, *_COMPOSED), str(kind))}")
            return Built(source)
        return self._typed((*key, kind), kind, value, source)

    def _typed(self, key: Key, kind: str, value: Any, source: Tensor) -> Built:
        """Return a layer of a type of the catalogue."""
        of_type = LAYER_TYPES[kind]
        data = self._keys(key, kind, value)
        keys = LayerKeys(data)
        for name in data:
            if name not in of_type.keys:
                able = one_of(of_type.keys, str(name)) if of_type.keys else f"{kind} has no keys"
                self.fault((*key, name), f"unknown key; {able}")
        built = of_type.build(keys, source, self._name(kind))
        for name, message in keys.faults:
            place = (*key, name) if name and isinstance(value, Mapping) else key
            self.fault(place, message if place != key or not name else f"{name}: {message}")
        return built

    def _keys(self, key: Key, kind: str, value: Any) -> Mapping[str, Any]:
        """Return the keys of a layer from its written value: a mapping, nothing, or its short form."""
        short = LAYER_TYPES[kind].short
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return value
        numbers = value if isinstance(value, list) else [value]
        if not short or len(numbers) > len(short):
            form = f"a mapping of {', '.join(LAYER_TYPES[kind].keys)}" if LAYER_TYPES[kind].keys else "no value"
            self.fault(key, f"got {value!r}; {kind} takes {form}" + (f", or [{', '.join(short)}]" if short else ""))
            return {}
        return dict(zip(short, numbers, strict=False))

    def _residual(self, key: Key, value: Any, source: Tensor) -> Built:
        """Return the sum of some layers' output and their input, or of the layers of a shortcut."""
        inner = value if isinstance(value, Mapping) else {"layers": value}
        for name in set(inner) - {"layers", "shortcut"}:
            self.fault((*key, str(name)), "unknown key; one of layers, shortcut")
        below = (*key, "layers") if isinstance(value, Mapping) else key
        main = self._sequence(self._listed(below, inner.get("layers")), source)
        beside = self._listed((*key, "shortcut"), inner["shortcut"]) if "shortcut" in inner else []
        other = self._sequence(beside, source)
        if main.output.shape != other.output.shape:
            whose = "the shortcut's" if beside else "their input"
            self.fault(
                key,
                f"the layers' output is {shape_text(main.output.shape)}, {whose} {shape_text(other.output.shape)}; "
                "both must be equal to be added",
            )
        name, size = self._name("add"), main.output.size
        added = elementwise(name, (size.times(2), size), (size.times(2), size), output=size)
        return Built(
            Tensor(name, main.output.shape),
            main.parameters + other.parameters,
            (*main.operations, *other.operations, added),
        )

    def _branch(self, key: Key, value: Any, source: Tensor) -> Built:
        """Return layers on an input of their own, whose output does not enter the layers after them."""
        if not isinstance(value, Mapping) or set(value) != {"input", "layers"}:
            self.fault(key, "must be a mapping of input, a shape, and layers")
            return Built(source)
        entered = Tensor(self._name("branch"), self._shape((*key, "input"), value["input"]))
        built = self._sequence(self._listed((*key, "layers"), value["layers"]), entered)
        return Built(source, built.parameters, built.operations)

    def _name(self, kind: str) -> str:
        """Return a name for a layer of a type that is unique within its block."""
        self.names[kind] += 1
        return f"{kind} {self.names[kind]}"

    def loss(self, output: Tensor) -> LayerOperation | None:
        """Return the operation of the loss on the model's output; None without a loss."""
        kind = self.document.data.get("loss", "cross_entropy")
        if kind not in _LOSSES:
            self.fault(("loss",), f"got {kind!r}; {one_of(_LOSSES, str(kind))}")
        if kind == "none":
            return None
        size, wide = output.size, amount(nbytes=_FLOAT32 * output.elements)
        if kind == "mean_squared_error":
            # Output and target, in float32.
            saved = (SavedTensor("prediction and target", wide.times(2), "loss"),)
            kernels = ElementwiseCounts("loss", size + wide, wide), ElementwiseCounts("loss gradient", wide, size)
            return LayerOperation("loss", kernels[:1], kernels[1:], saved, _scalar())
        labels = amount(nbytes=_LABEL * output.rows)
        # PyTorch's autocast computes the cross entropy in float32: a cast, log-softmax, and the loss.
        return LayerOperation(
            "loss",
            (
                ElementwiseCounts("logits to float32", size, wide, fusible=True),
                ElementwiseCounts("log-softmax", wide, wide),
            ),
            (
                ElementwiseCounts("loss gradient", labels, wide, fusible=True),
                ElementwiseCounts("log-softmax gradient", wide.times(2), wide),
                ElementwiseCounts("logits gradient cast", wide, size, fusible=True),
            ),
            (SavedTensor("log-probabilities", wide, "loss"), SavedTensor("labels", labels, "input labels")),
            _scalar(),
        )


def _scalar() -> Amount:
    """Return the size of the loss, a float32 number."""
    return Amount(nbytes=Count(_FLOAT32))


def _is_block(entry: Any) -> bool:
    """Return True if an entry of a list of layers is a block, or blocks that repeat."""
    return isinstance(entry, Mapping) and ("block" in entry or "repeat" in entry)


def _is_size(value: Any) -> bool:
    """Return True for a whole number of at least 1."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
