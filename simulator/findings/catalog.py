"""Which kinds of findings exist? One module of kinds/ each, found by its file name."""

from __future__ import annotations

from functools import cache

import simulator.findings.kinds
from simulator.basics.registry import declared
from simulator.findings.found import Finding


@cache
def _findings() -> dict[str, Finding]:
    return {finding.name: finding for finding in declared(simulator.findings.kinds, "FINDING", Finding).values()}


def names() -> tuple[str, ...]:
    """Every finding's name, sorted."""
    return tuple(sorted(_findings()))


def find(name: str) -> Finding:
    """The finding of that name."""
    return _findings()[name]
