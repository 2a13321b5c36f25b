"""Reads and writes a list of layers as JSON: the file of a traced PyTorch module, which needs no PyTorch to be read.

    {"format": "layer list 1", "name": "mlp", "tokens": 1, "unknown": [],
     "kinds": [{"parameters": [["0.weight", [64, 10], true]],
                "operations": [{"name": "0", "forward": [{"matmul": "0", "m": [0, 1], "n": 64, "k": 10}],
                                "backward": [...], "saved": [["input", {"elements": [0, 10]}, "input"]],
                                "output": {"elements": [0, 64]}}],
                "output": {"elements": [0, 64]}}],
     "first": 0, "layers": [1, 1], "last": 2}

A count is a whole number, or [fixed, per sample]. Layers are numbers of kinds, since most layers of a model are alike.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from simulator.basics.document import Document, Fault, Key
from simulator.model.layer_list import (
    NO_COUNT,
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

FORMAT: Final = "layer list 1"
_LARGEST: Final = 10**15
_SIZES: Final = ("heads", "kv_heads", "seq_len", "head_dim")
_Built = dict[str, Any]


def written_layer_list(model: LayerList) -> str:
    """Return the JSON text of a list of layers, equal for equal models."""
    layers = (model.first, *model.layers, model.last)
    kinds = list(dict.fromkeys(layers))
    numbers = [kinds.index(layer) for layer in layers]
    data = {
        "format": FORMAT,
        "name": model.name,
        "tokens": model.tokens,
        "unknown": list(model.unknown),
        "first": numbers[0],
        "layers": numbers[1:-1],
        "last": numbers[-1],
    }
    # One line per operation keeps the file short and its differences readable.
    texts = [_layer_text(kind) for kind in kinds]
    head = json.dumps(data)[:-1]
    joined = ",\n".join(texts)
    return f'{head},\n"kinds": [\n{joined}\n]}}\n'


def read_traced(document: Document, name: str) -> LayerList:
    """Return the list of layers that a JSON file describes.

    Raises
    ------
    ScenarioError
        A line per fault: another format, a missing key, an impossible number.
    """
    reader, data = _Reader(document), document.data
    if data.get("format") != FORMAT:
        reader.fault(("format",), f"got {data.get('format')!r}; must be {FORMAT!r}")
        document.refuse(reader.faults)
    kinds = [reader.layer(("kinds", number), kind) for number, kind in enumerate(reader.listed(("kinds",), data))]
    numbers = reader.listed(("layers",), data)
    references = [
        (("first",), data.get("first")),
        *((("layers", place), number) for place, number in enumerate(numbers)),
    ]
    references.append((("last",), data.get("last")))
    for key, number in references:
        if not (_whole(number) and number < len(kinds)):
            reader.fault(key, f"got {number!r}; must be the number of a kind, 0 to {len(kinds) - 1}")
    tokens, unknown = data.get("tokens", 1), data.get("unknown", [])
    if not (_whole(tokens) and tokens >= 1):
        reader.fault(("tokens",), f"got {tokens!r}; must be a whole number of at least 1")
    if not (isinstance(unknown, list) and all(isinstance(number, str) for number in unknown)):
        reader.fault(("unknown",), "must be a list of names")
    if not numbers:
        reader.fault(("layers",), "must name at least one layer")
    document.refuse(reader.faults)
    first, *layers, last = (kinds[number] for _, number in references)
    return LayerList(name, first, tuple(layers), last, tokens, tuple(unknown))


def _layer_text(layer: Layer) -> str:
    """Return the JSON text of a layer, an operation to a line."""
    parameters = json.dumps([[p.name, list(p.shape), p.trained] for p in layer.parameters])
    operations = ",\n".join(f" {json.dumps(_operation(operation))}" for operation in layer.operations)
    return (
        f'{{"parameters": {parameters}, "output": {json.dumps(_amount(layer.output))}, "operations": [\n{operations}]}}'
    )


def _operation(operation: LayerOperation) -> _Built:
    """Return an operation as plain data."""
    return {
        "name": operation.name,
        "forward": [_kernel(kernel) for kernel in operation.forward],
        "backward": [_kernel(kernel) for kernel in operation.backward],
        "saved": [[tensor.name, _amount(tensor.size), tensor.source] for tensor in operation.saved],
        "output": _amount(operation.output),
    }


def _kernel(kernel: KernelCounts) -> _Built:
    """Return a kernel as plain data; values that are usual are left out."""
    match kernel:
        case MatmulCounts():
            document: _Built = {"matmul": kernel.name, **{key: _count(getattr(kernel, key)) for key in "mnk"}}
            if kernel.batch != Count(1):
                document["batch"] = _count(kernel.batch)
            if kernel.reread != NO_COUNT:
                document["reread"] = _count(kernel.reread)
            if kernel.convolution:
                document["convolution"] = True
        case AttentionCounts():
            sizes = {key: getattr(kernel, key) for key in (*_SIZES, "causal", "backward")}
            document = {"attention": kernel.name, "batch": _count(kernel.batch), **sizes}
            if kernel.keys is not None:
                document["keys"] = kernel.keys
        case ElementwiseCounts():
            moved = {key: _amount(getattr(kernel, key)) for key in ("read", "written")}
            document = {"elementwise": kernel.name, **moved}
            if kernel.fusible:
                document["fusible"] = True
    if getattr(kernel, "of_weights", False):
        document["of_weights"] = True
    return document


def _amount(amount: Amount) -> _Built:
    """Return an amount as plain data, without parts that are zero."""
    parts = {"elements": amount.elements, "bytes": amount.nbytes}
    return {key: _count(count) for key, count in parts.items() if count != NO_COUNT}


def _count(count: Count) -> int | list[int]:
    """Return a count as a number, or as [fixed, per sample]."""
    return [count.fixed, count.per_sample] if count.per_sample else count.fixed


def _whole(value: Any) -> bool:
    """Return True for a whole number from 0 to the largest that is accepted."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _LARGEST


@dataclass(slots=True)
class _Reader:
    """Reads plain data as layers, and records every fault."""

    document: Document
    faults: list[Fault] = field(default_factory=list)

    def fault(self, key: Key, message: str) -> None:
        """Record a fault at a key of the file."""
        self.faults.append(self.document.fault(key, message))

    def listed(self, key: Key, holder: Any) -> list[Any]:
        """Return the list at the last part of a key; empty after a fault."""
        value = holder.get(key[-1]) if isinstance(holder, Mapping) else None
        if not isinstance(value, list):
            self.fault(key, "must be a list")
            return []
        return value

    def layer(self, key: Key, data: Any) -> Layer:
        """Return a kind of layer."""
        parameters = tuple(
            self._parameter((*key, "parameters", number), entry)
            for number, entry in enumerate(self.listed((*key, "parameters"), data))
        )
        operations = tuple(
            self._operation((*key, "operations", number), entry)
            for number, entry in enumerate(self.listed((*key, "operations"), data))
        )
        output = data.get("output", {}) if isinstance(data, Mapping) else {}
        return Layer(parameters, operations, self._amount((*key, "output"), output))

    def _parameter(self, key: Key, data: Any) -> Parameter:
        """Return a parameter from [name, shape, trained]."""
        match data:
            case [str(name), list(shape), bool(trained)] if all(map(_whole, shape)):
                return Parameter(name, tuple(shape), trained)
        self.fault(key, "must be [name, shape, trained]")
        return Parameter("", ())

    def _operation(self, key: Key, data: Any) -> LayerOperation:
        """Return an operation."""
        if not isinstance(data, Mapping):
            self.fault(key, "must be a mapping (key: value)")
            return LayerOperation("")
        forward, backward = (
            tuple(
                self._kernel((*key, which, number), entry)
                for number, entry in enumerate(self.listed((*key, which), data))
            )
            for which in ("forward", "backward")
        )
        saved = tuple(
            self._saved((*key, "saved", number), entry)
            for number, entry in enumerate(self.listed((*key, "saved"), data))
        )
        output = self._amount((*key, "output"), data.get("output", {}))
        return LayerOperation(self._text(key, data, "name"), forward, backward, saved, output)

    def _saved(self, key: Key, data: Any) -> SavedTensor:
        """Return a saved tensor from [name, size, source]."""
        match data:
            case [str(name), size, str(source)]:
                return SavedTensor(name, self._amount(key, size), source)
        self.fault(key, "must be [name, size, source]")
        return SavedTensor("", Amount(), "")

    def _kernel(self, key: Key, data: Any) -> KernelCounts:
        """Return a kernel of any kind."""
        kinds = [size for size in ("matmul", "attention", "elementwise") if isinstance(data, Mapping) and size in data]
        if len(kinds) != 1:
            self.fault(key, "must have one of the keys matmul, attention, elementwise")
            return ElementwiseCounts("", Amount(), Amount())
        name, of_weights = self._text(key, data, kinds[0]), data.get("of_weights") is True
        if kinds[0] == "matmul":
            m, n, k = (self._count((*key, size), data.get(size)) for size in "mnk")
            batch, reread = (
                self._count((*key, size), data.get(size, usual)) for size, usual in (("batch", 1), ("reread", 0))
            )
            return MatmulCounts(name, m, n, k, batch, of_weights, reread, data.get("convolution") is True)
        if kinds[0] == "elementwise":
            read, written = (self._amount((*key, size), data.get(size, {})) for size in ("read", "written"))
            return ElementwiseCounts(name, read, written, data.get("fusible") is True, of_weights)
        heads, kv_heads, seq_len, head_dim = (self._count((*key, size), data.get(size)).fixed for size in _SIZES)
        keys = self._count((*key, "keys"), data["keys"]).fixed if "keys" in data else None
        batch = self._count((*key, "batch"), data.get("batch"))
        causal, backward = (data.get(size) is True for size in ("causal", "backward"))
        return AttentionCounts(name, batch, heads, kv_heads, seq_len, head_dim, causal, backward, keys)

    def _amount(self, key: Key, data: Any) -> Amount:
        """Return an amount from its elements and bytes."""
        if not isinstance(data, Mapping) or not set(data) <= {"elements", "bytes"}:
            self.fault(key, f"got {data!r}; must be a mapping of elements and bytes")
            return Amount()
        return Amount(*(self._count((*key, size), data.get(size, 0)) for size in ("elements", "bytes")))

    def _count(self, key: Key, value: Any) -> Count:
        """Return a count from a number, or from [fixed, per sample]."""
        parts = value if isinstance(value, list) else [value, 0]
        if len(parts) == 2 and all(map(_whole, parts)):
            return Count(*parts)
        self.fault(key, f"got {value!r}; must be a whole number, or [fixed, per sample]")
        return NO_COUNT

    def _text(self, key: Key, data: Mapping[str, Any], name: str) -> str:
        """Return a key's text."""
        value = data.get(name)
        if not isinstance(value, str):
            self.fault((*key, name), f"got {value!r}; must be text")
        return str(value)
