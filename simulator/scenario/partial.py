"""Which rules between keys can still be checked when some values of a scenario are wrong.

Rule: a wrong value is removed, and a required one is replaced by a stand-in. A rule that looks at such a key reports
nothing, for nobody knows what was meant; all other rules are checked, so that one run shows all faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from simulator.basics.document import Document, Key
from simulator.basics.plain_data import at
from simulator.basics.sections import overlap
from simulator.scenario import axes, error_messages
from simulator.scenario.conflict import Conflict
from simulator.scenario.records import KINDS, Scenario, fields

# Any values that break no rule by themselves.
_STAND_INS: Final[dict[Key, Any]] = {
    ("name",): "unnamed",
    ("cluster",): {"topology": "star_100g", "world_size": 8},
    ("cluster", "topology"): "star_100g",
    ("cluster", "world_size"): 8,
    ("collective", "operation"): "all_reduce",
    ("training", "model"): "gpt2",
    ("training", "seq_len"): 64,
}
# Removing a value can leave its mapping without a key that it needs, which then is the next thing that is wrong.
_MOST_ROUNDS: Final = 10


@dataclass(frozen=True, slots=True)
class PartialScenario:
    """What is left of a scenario without its wrong values; valid key by key.

    Attributes
    ----------
    data : dict
        The shape was validated from it.
    shape : Scenario
    doubtful : frozenset of str
        Dotted keys whose values the user has not chosen: removed, replaced, or perhaps misspelt elsewhere.
    thinned : frozenset of str
        Axes that have lost some of their values; another key may be right for the values that were removed.
    """

    data: dict[str, Any]
    shape: Scenario
    doubtful: frozenset[str] = frozenset()
    thinned: frozenset[str] = frozenset()

    def doubts(self, conflict: Conflict) -> bool:
        """Whether a rule looked at a key whose value the user has not chosen."""
        if any(overlap(key, other) for key in conflict.involved for other in self.doubtful):
            return True
        if conflict.involved == ("plots",) and sum(kind in self.data for kind in KINDS) != 1:
            return True  # which there are depends on what is played
        return len(conflict.involved) > 1 and any(overlap(k, a) for k in conflict.involved for a in self.thinned)


def without_faults(data: dict[str, Any], faulty: Iterable[Key]) -> PartialScenario | None:
    """Remove what is wrong; None if nothing that could be checked is left.

    Parameters
    ----------
    data : dict
        Of a scenario; stays as it is.
    faulty : iterable of key paths
        Where a value is wrong, or missing.
    """
    data, doubtful, thinned = deepcopy(data), set[str](), set[str]()
    for _ in range(_MOST_ROUNDS):
        for key in _from_the_end(faulty):
            doubtful |= set(_doubtful(data, key))
            thinned |= {str(key[1])} if key and key[0] in axes.KINDS and len(key) > 2 else set()
            if not _remove_or_replace(data, key):
                return None
        try:
            shape = Scenario.model_validate(data)
        except ValidationError as error:
            faulty = [fault.key for fault in error_messages.faults(error, Document("", data))]
            continue
        return PartialScenario(data, shape, frozenset(doubtful), frozenset(thinned))
    return None


def _from_the_end(faulty: Iterable[Key]) -> list[Key]:
    """Key paths, the last items of a list first, so that the places of the others stay; of an axis whole values."""
    whole = {key[:3] if key and key[0] in axes.KINDS else key for key in faulty}
    return sorted(whole, key=lambda key: [(s, "") if isinstance(s, int) else (0, s) for s in key], reverse=True)


def _doubtful(data: dict[str, Any], key: Key) -> Iterator[str]:
    """Keys whose values the user has not chosen once the value at `key` is removed."""
    if key[0] in axes.KINDS:
        # An axis that keeps other values still says what is varied; an axis that loses all does not.
        values = at(data, key[:2])
        if len(key) == 1:
            yield from map(str, values if isinstance(values, dict) else ())
        elif len(key) == 2 or not isinstance(values, list) or len(values) < 2:
            yield str(key[1])
        return
    yield ".".join(map(str, key))
    known, beside = fields(key[:-1]), at(data, key[:-1])
    if known and key[-1] not in known and isinstance(beside, dict):
        # A misspelt key is probably one of those that are left out.
        yield from (".".join(map(str, (*key[:-1], name))) for name in known if name not in beside)


def _remove_or_replace(data: dict[str, Any], key: Key) -> bool:
    """Remove a value from data, or put a stand-in for a missing one; whether that was possible."""
    if not key:
        return False
    around: Any = at(data, key[:-1])
    last: Any = key[-1]
    if key in _STAND_INS and isinstance(around, dict):
        around[last] = deepcopy(_STAND_INS[key])
    elif isinstance(around, dict | list) and last in (around if isinstance(around, dict) else range(len(around))):
        del around[last]
    else:  # what is missing
        return _remove_or_replace(data, key[:-1])
    if key[0] in axes.KINDS and len(key) == 3 and not around:
        del data[key[0]][key[1]]
    return True
