"""Which names does a hostlist stand for, as in Slurm: "gpu[001-003,017],login"?"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.importing.machines.limits import MOST_NODES

_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_PART: Final = re.compile(r"\[([0-9,-]*)\]|([A-Za-z0-9_.-]+)")
# Most characters of a hostlist, and of a name.
_LONGEST: Final = 100_000
_LONGEST_NAME: Final = 200


def expand(text: str, place: str) -> tuple[str, ...]:
    """Return the names of a hostlist, in its order.

    Parameters
    ----------
    text : str
        The hostlist. Numbers keep their leading zeros; a name may have several brackets.
    place : str
        Place of the text in faults.

    Raises
    ------
    ScenarioError
        A wrong list, or more than 100,000 names.

    Examples
    --------
    >>> expand("gpu[008-010,017],login", "topology.conf:1")
    ('gpu008', 'gpu009', 'gpu010', 'gpu017', 'login')
    """
    if len(text) > _LONGEST:
        raise ScenarioError(f"{place}: the hostlist has {len(text)} characters; must have at most {_LONGEST}")
    names: list[str] = []
    for item in _items(text, place):
        # Counted before the names are written out.
        parts = [_choices(part, place) for part in _parts(item, place)]
        if len(names) + prod(len(part) for part in parts) > MOST_NODES:
            raise ScenarioError(f"{place}: {item[:60]!r} stands for too many names; at most {MOST_NODES:,} in all")
        names += ["".join(choice) for choice in product(*parts)]
    return tuple(names)


def _items(text: str, place: str) -> Iterator[str]:
    """Yield the parts between commas outside brackets."""
    item, depth = "", 0
    for char in f"{text},":
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            break
        if char == "," and not depth:
            if not item:
                raise ScenarioError(f"{place}: got hostlist {text[:60]!r}; a name is missing beside a comma")
            yield item
            item = ""
        else:
            item += char
    if depth:
        raise ScenarioError(f"{place}: got hostlist {text[:60]!r}; a bracket is not closed, or not opened")


def _parts(item: str, place: str) -> list[re.Match[str]]:
    if any(len(text) > _LONGEST_NAME for text in re.split(r"\[|\]", item)[::2]):
        raise ScenarioError(f"{place}: got name {item[:60]!r}...; names have at most {_LONGEST_NAME} characters")
    parts = list(_PART.finditer(item))
    if "".join(part[0] for part in parts) != item:
        raise ScenarioError(f"{place}: got name {item[:60]!r}; names have letters, digits, '_', '.', '-' and [ranges]")
    return parts


def _choices(part: re.Match[str], place: str) -> list[str] | _Numbers:
    """Return the texts that a part of a name stands for."""
    if part[1] is None:
        return [part[2]]
    ranges = [_RANGE.fullmatch(each) for each in part[1].split(",")]
    bounds = [(match[1], match[2] or match[1]) for match in ranges if match is not None]
    if len(bounds) < len(ranges) or any(int(first) > int(last) for first, last in bounds):
        raise ScenarioError(f"{place}: got {part[0][:60]!r}; must be ranges of numbers such as [001-008,017]")
    return _Numbers(bounds)


class _Numbers:
    """Numbers of several ranges, written with the leading zeros of a range's first number."""

    def __init__(self, bounds: list[tuple[str, str]]) -> None:
        self._bounds = bounds

    def __len__(self) -> int:
        return sum(int(last) - int(first) + 1 for first, last in self._bounds)

    def __iter__(self) -> Iterator[str]:
        for first, last in self._bounds:
            for number in range(int(first), int(last) + 1):
                yield f"{number:0{len(first)}d}"
