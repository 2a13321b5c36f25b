"""How does a kind of finding declare itself, and how does it return sentences, numbers and the points mentioned?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from simulator.basics.catalog import Catalog
from simulator.findings.comparison import Comparison
from simulator.scenario.answer_spec import FindingSpec


@dataclass(frozen=True, slots=True)
class FindingResult:
    """Result of a finding."""

    kind: str  # the finding's name
    sentences: tuple[str, ...]  # sentences without a full stop
    # Plain data: every number in the sentences, unrounded.
    numbers: Mapping[str, Any] = field(default_factory=dict)
    spoken: tuple[int, ...] = ()  # points mentioned by the sentences, the most important first

    def to_dict(self) -> dict[str, Any]:
        """Return the finding's result in plain data for JSON."""
        return {"finding": self.kind, "sentences": list(self.sentences), **self.numbers}


@dataclass(frozen=True, slots=True)
class Finding:
    """A kind of finding ("best", "threshold", ...): its name and the function that makes it from a comparison."""

    name: str  # as `answer` has it in a scenario
    find: Callable[[Comparison, FindingSpec], FindingResult | None]  # None where the points do not tell


FINDING_KINDS: Final = Catalog("simulator.findings.kinds", "FINDING", Finding, "finding")
