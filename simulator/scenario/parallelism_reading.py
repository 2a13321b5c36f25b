"""How are a stage's layers, context parallelism, and the order of parallel kinds written? The readers for these keys.

Same form as reading.py. Rules between these values, the model and the ranks are in parallelism_rules.py.
"""

from __future__ import annotations

from typing import Any, Final

from simulator.basics import reading
from simulator.step.rank_grid import ORDER

_LESS: Final = ("first_less", "last_less")
# Upper bound for layers and for ranks; larger numbers are typing errors.
_MOST_LAYERS: Final = 10_000
_WAYS: Final = ("ring", "all_gather", "ulysses")


def layers_of_stages() -> reading.ValueReader:
    """Return a validator for the layers of pipeline stages.

    Allowed: "auto", a list of layers per stage, or how many fewer layers the first and last stage have.
    """
    # Both are plain counts of layers.
    # A stage may have 0 layers: the first often holds the embedding alone.
    layers = less = reading.whole(0, _MOST_LAYERS)

    def reader(value: Any) -> Any:
        if value == "auto":
            return value
        if isinstance(value, list | tuple) and value:
            return tuple(int(layers.reader(one)) for one in value)
        if isinstance(value, dict) and value and set(value) <= set(_LESS):
            return {key: int(less.reader(one)) for key, one in value.items()}
        raise ValueError(
            f"got {reading.shown(value)}; must be auto, layers of each stage such as [8, 8, 8, 8], or "
            "{first_less: 1, last_less: 1}"
        )

    return reading.ValueReader(
        reader,
        lambda: {
            "anyOf": [
                {"const": "auto"},
                {"type": "array", "items": layers.schema(), "minItems": 1},
                {
                    "type": "object",
                    "properties": {key: less.schema() for key in _LESS},
                    "additionalProperties": False,
                    "minProperties": 1,
                },
            ]
        },
    )


def ways_of_attention() -> reading.ValueReader:
    """Return a validator for the way of context parallelism: a word, or {ulysses: ranks, ring: ranks}."""
    ranks = reading.whole(1, _MOST_LAYERS)

    def reader(value: Any) -> Any:
        if isinstance(value, str) and value in _WAYS:
            return value
        # Both sizes are required; a rule checks their product against `cp`.
        if isinstance(value, dict) and set(value) == {"ulysses", "ring"}:
            return {key: int(ranks.reader(one)) for key, one in value.items()}
        raise ValueError(f"got {reading.shown(value)}; must be {', '.join(_WAYS)}, or {{ulysses: 4, ring: 2}}")

    return reading.ValueReader(
        reader,
        lambda: {
            "anyOf": [
                {"enum": list(_WAYS)},
                {
                    "type": "object",
                    "propertyNames": {"enum": ["ulysses", "ring"]},
                    "additionalProperties": ranks.schema(),
                    "minProperties": 2,
                },
            ]
        },
    )


def kinds_in_order() -> reading.ValueReader:
    """Return a validator for an order over all kinds of parallelism, each kind once."""

    def reader(value: Any) -> tuple[str, ...]:
        # `str`, because a list may hold values that cannot be sorted together.
        if isinstance(value, list | tuple) and sorted(map(str, value)) == sorted(ORDER):
            return tuple(value)
        raise ValueError(
            f"got {reading.shown(value)}; must have each of [{', '.join(ORDER)}] once, the fastest-varying kind first"
        )

    length = len(ORDER)
    return reading.ValueReader(
        reader,
        lambda: {
            "type": "array",
            "items": {"enum": list(ORDER)},
            "uniqueItems": True,
            "minItems": length,
            "maxItems": length,
        },
    )
