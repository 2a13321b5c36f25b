"""Finds numbers that are not finite: NaN or infinity in a report or in link use is a defect of the simulator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any

from simulator.records.timeline import LinkUse


def not_finite(document: Any, name: str = "report") -> Iterator[str]:
    """Yield a text, the path of keys and the value, for each NaN or infinite number in a nested document.

    Examples
    --------
    >>> list(not_finite({"time_s": 1.0, "stages": [{"idle": float("nan")}]}))
    ['report.stages[0].idle is nan']
    """
    if isinstance(document, float) and not isfinite(document):
        yield f"{name} is {document}"
    # Extend the key on the way down: "report.stages[0].idle".
    elif isinstance(document, Mapping):
        for key, value in document.items():
            yield from not_finite(value, f"{name}.{key}")
    elif isinstance(document, list | tuple):
        for number, value in enumerate(document):
            yield from not_finite(value, f"{name}[{number}]")


def unusable_links(links: Iterable[LinkUse]) -> Iterator[str]:
    """Yield a text for each link whose carried bytes or busy time are NaN or infinite."""
    for use in links:
        if not (isfinite(use.nbytes) and isfinite(use.busy)):
            yield f"link {use.name} carries {use.nbytes} B and is busy for {use.busy} s"
