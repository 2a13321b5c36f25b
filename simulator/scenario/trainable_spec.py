"""Which parts of a model are trained (`training.trainable`)? All, or named parts; the others are frozen."""

from __future__ import annotations

import re
from typing import Any, Final

from simulator.scenario import reading

ALL: Final = "all"
# One layer, or a range of layers.
_LAYERS: Final = re.compile(r"layers? (\d{1,6})(?: ?- ?(\d{1,6}))?")
_HINT: Final = "must be all, or a list of embedding, head, layer 3, layers 28-31"


def trained_parts() -> reading.ValueReader:
    """Return a validator for the trained parts of a model: the word all, or a list of parts."""

    def reader(value: Any) -> Any:
        if value == ALL:
            return ALL
        parts = [value] if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or not parts:
            raise ValueError(f"got {reading.shown(value)}; {_HINT}")
        for part in parts:
            if part not in ("embedding", "head") and not (isinstance(part, str) and _LAYERS.fullmatch(part)):
                raise ValueError(f"got {reading.shown(part)}; {_HINT}")
        return tuple(parts)

    part = {"type": "string", "pattern": rf"^(embedding|head|{_LAYERS.pattern})$"}
    return reading.ValueReader(reader, lambda: {"anyOf": [{"const": ALL}, part, {"type": "array", "items": part}]})


def trained_units(value: Any, layers: int) -> frozenset[str] | None:
    """Return the names of the trained units (embedding, layers, head) of a model; None if all are trained.

    Raises
    ------
    ValueError
        The model has no such layer.

    Examples
    --------
    >>> sorted(trained_units(("head", "layers 2-3"), 4))
    ['head', 'layer 2', 'layer 3']
    """
    if value == ALL:
        return None
    found = set[str]()
    for part in value:
        match = _LAYERS.fullmatch(part)
        if match is None:
            found.add(part)
            continue
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < layers:
            raise ValueError(f"got {part!r}; the layers are 0 to {layers - 1}")
        found |= {f"layer {number}" for number in range(first, last + 1)}
    return None if len(found) == layers + 2 else frozenset(found)
