"""Which kinds of findings exist? A module in kinds/ per finding, found by file name."""

from __future__ import annotations

from functools import cache

import simulator.findings.kinds
from simulator.basics.registry import declared
from simulator.findings.found import Finding


@cache
def _findings() -> dict[str, Finding]:
    """Return every finding by name, collected once per process."""
    return {finding.name: finding for finding in declared(simulator.findings.kinds, "FINDING", Finding).values()}


def names() -> tuple[str, ...]:
    """Return the names of all findings, sorted."""
    return tuple(sorted(_findings()))


def find(name: str) -> Finding:
    """Return a finding by name."""
    return _findings()[name]
