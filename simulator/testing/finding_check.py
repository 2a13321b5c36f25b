"""Does a finding keep the laws of findings? Its result for a comparison of collectives, and of trainings."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from simulator.findings.found import FINDING_KINDS, Finding
from simulator.scenario.answer_spec import FindingSpec
from simulator.testing.examples import KINDS, compared
from simulator.testing.law import PartCheck, judged, require


def check_finding(finding: str | Path) -> PartCheck:
    """Check a finding: its sentences, numbers and points, for a comparison of collectives and of trainings.

    `finding` is the path of a file with a FINDING, or a shipped name. Raises ScenarioError if the file declares no
    finding.
    """
    record = FINDING_KINDS.find(str(finding))
    cases = [(f"a comparison of {kind}s", partial(_tells, record, kind)) for kind in KINDS]
    return PartCheck(str(finding), "findings", (judged("", "sentences, numbers and points", cases),))


def _tells(finding: Finding, kind: str) -> bool:
    """Check the result of a finding; return False if the points do not tell."""
    comparison = compared(kind)
    result = finding.find(comparison, FindingSpec.model_construct(finding=finding.name))
    if result is None:
        return False
    require(result.kind == finding.name, f"the result is called {result.kind!r}; must be {finding.name!r}")
    require(bool(result.sentences), "has no sentence; return None if the points do not tell")
    for sentence in result.sentences:
        require(isinstance(sentence, str) and bool(sentence.strip()), "has an empty sentence")
        require(not sentence.endswith("."), f"the sentence {sentence!r} ends with a full stop, which the answer adds")
    try:
        json.dumps(result.to_dict(), allow_nan=False)
    except (TypeError, ValueError) as error:
        require(False, f"the numbers are no plain data: {error}")
    most = len(comparison.rows)
    other = next((place for place in result.spoken if place not in range(most)), None)
    require(other is None, f"mentions point {other}; must be one of 0 .. {most - 1}")
    return True
