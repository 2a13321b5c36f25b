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
    """Result of a finding.

    Attributes
    ----------
    kind : str
        The finding's name.
    sentences : tuple of str
        Sentences without a full stop.
    numbers : mapping
        Plain data: every number in the sentences, unrounded.
    spoken : tuple of int
        Points mentioned by the sentences, the most important first.
    """

    kind: str
    sentences: tuple[str, ...]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    spoken: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the finding's result in plain data for JSON."""
        return {"finding": self.kind, "sentences": list(self.sentences), **self.numbers}


@dataclass(frozen=True, slots=True)
class Finding:
    """A kind of finding ("best", "threshold", ...): its name and the function that makes it from a comparison.

    Attributes
    ----------
    name : str
        As `answer` has it in a scenario.
    find : function (Comparison, FindingSpec) -> FindingResult or None
        None where the points do not tell.
    """

    name: str
    find: Callable[[Comparison, FindingSpec], FindingResult | None]


FINDING_KINDS: Final = Catalog("simulator.findings.kinds", "FINDING", Finding, "finding")
