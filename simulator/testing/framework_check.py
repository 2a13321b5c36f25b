"""Does a framework file keep the laws of framework files? Its constants have sources, and a step has its times."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from simulator.step.framework import Framework, load_framework
from simulator.testing.law import LawResult, PartCheck, judged, require
from simulator.testing.steps import TINY, step, takes_as_long_in_both_engines

RANKS: Final = 4
SHARDINGS: Final = ("ddp", "zero3")


def check_framework(framework: str | Path) -> PartCheck:
    """Check a framework file: its constants' sources, and a step with its constants.

    `framework` is the path of a framework file, or a name. Raises ScenarioError, with a line for each fault, if the
    file has unknown keys or impossible values.

    >>> check_framework("torchtitan").holds
    True
    """
    file = load_framework(framework)
    results = (
        judged("", "sources of constants", [(key, partial(_has_source, file, key)) for key in file.facts["sources"]]),
        _simulated(file),
    )
    return PartCheck(str(framework), "framework files", results, f"{', '.join(SHARDINGS)} on {RANKS} ranks")


def _has_source(framework: Framework, key: str) -> None:
    """Check that a constant of the file names its source."""
    has_source = bool(framework.facts["sources"][key].strip())
    require(has_source, "has no source; write {value: ..., source: where the value was measured}")


def _simulated(framework: Framework) -> LawResult:
    """Return whether a step with the framework takes as long in both engines."""
    cases = (
        (strategy, partial(takes_as_long_in_both_engines, step(strategy, TINY, framework=framework), RANKS))
        for strategy in SHARDINGS
    )
    return judged("", "the same time in both engines", cases)
