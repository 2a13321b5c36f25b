"""Which keys does a setting of a whole section replace: `collective: {algorithm: ring}` for `collective.algorithm`?

A section's setting sets each named key, like a separate setting would, and leaves every other key unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

SECTIONS: Final = ("cluster", "collective", "training")


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings of a scenario by dotted key; a section's mapping is replaced by a setting for each of its keys.

    >>> flat({"collective": {"algorithm": "ring", "servers.count": 4}, "seed": 1})
    {'collective.algorithm': 'ring', 'collective.servers.count': 4, 'seed': 1}
    """
    return {key: value for pair in settings.items() for key, value in _keys(*pair)}


def _keys(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if key in SECTIONS and isinstance(value, Mapping):
        # Inner names may be dotted: {"servers.count": 4} under `collective` is collective.servers.count.
        yield from ((f"{key}.{name}", inner) for name, inner in value.items())
    else:
        yield key, value


def varied(axes: Mapping[str, Iterable[Any]]) -> dict[str, None]:
    """Return the dotted keys set by a sweep's axes, in order, as the keys in a dict with values None.

    >>> list(varied({"training": [{}, {"sharding": "ddp"}], "seed": [1, 2]}))
    ['training.sharding', 'seed']
    """
    if not isinstance(axes, Mapping):
        return {}
    return {
        name: None
        for key, values in axes.items()
        for value in (values if key in SECTIONS and isinstance(values, list | tuple) else (None,))
        for name in flat({key: value})
    }


def overlap(first: str, second: str) -> bool:
    """Return True if two dotted keys are equal, or if one contains the other.

    >>> overlap("collective.servers", "collective.servers.count"), overlap("collective.size", "collective.servers")
    (True, False)
    """
    # The final dot keeps "collective.size" apart from "collective.sizes".
    return f"{first}.".startswith(f"{second}.") or f"{second}.".startswith(f"{first}.")
