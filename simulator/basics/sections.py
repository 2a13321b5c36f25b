"""Which keys does a setting of a whole section stand for: `collective: {algorithm: ring}` for `collective.algorithm`?

Rule: a setting of a section sets the keys that it names, each as a setting of that key would, and leaves all others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

SECTIONS: Final = ("cluster", "collective", "training")


def flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings by dotted key, with the keys that a section's setting names in its place.

    Examples
    --------
    >>> flat({"collective": {"algorithm": "ring", "servers.count": 4}, "seed": 1})
    {'collective.algorithm': 'ring', 'collective.servers.count': 4, 'seed': 1}
    """
    return {key: value for one in settings.items() for key, value in _keys(*one)}


def _keys(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if key in SECTIONS and isinstance(value, Mapping):
        yield from ((f"{key}.{name}", inner) for name, inner in value.items())
    else:
        yield key, value


def varied(axes: Mapping[str, Iterable[Any]]) -> dict[str, None]:
    """Dotted keys that axes set, in order.

    Examples
    --------
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


def overlap(one: str, other: str) -> bool:
    """Return True if one of two dotted keys is the other, or in it.

    Examples
    --------
    >>> overlap("collective.servers", "collective.servers.count"), overlap("collective.size", "collective.servers")
    (True, False)
    """
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
