"""What does a kind of finding declare, and what does it find: sentences, their numbers, the points they speak of?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from simulator.basics.catalog import Catalog
from simulator.findings.comparison import Comparison
from simulator.scenario.answer_spec import FindingSpec


@dataclass(frozen=True, slots=True)
class Found:
    """What was found.

    Attributes
    ----------
    kind : str
        The finding's name.
    sentences : tuple of str
        Without a full stop.
    numbers : mapping
        Plain data: every number that the sentences say, unrounded.
    spoken : tuple of int
        Points that the sentences speak of, the most important first.
    """

    kind: str
    sentences: tuple[str, ...]
    numbers: Mapping[str, Any] = field(default_factory=dict)
    spoken: tuple[int, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {"finding": self.kind, "sentences": list(self.sentences), **self.numbers}


@dataclass(frozen=True, slots=True)
class Finding:
    """A kind of finding.

    Attributes
    ----------
    name : str
        As `answer` has it in a scenario.
    find : function (Comparison, FindingSpec) -> Found or None
        None where the points do not tell.
    """

    name: str
    find: Callable[[Comparison, FindingSpec], Found | None]


FINDING_KINDS: Final = Catalog("simulator.findings.kinds", "FINDING", Finding, "finding")
