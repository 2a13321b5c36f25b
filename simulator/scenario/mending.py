"""What can be checked of a scenario in which some values are wrong: everything else.

Rule: what is wrong is taken out, and what has to be there is stood in for; a rule that looks at a key of which nobody
knows any more what was meant says nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from simulator.basics.document import Document, Key, at
from simulator.scenario import axes, wording
from simulator.scenario.conflict import Conflict
from simulator.scenario.shape import KINDS, ScenarioShape, fields

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
# Taking a value out can leave its mapping without what it needs, and that the mapping around it.
_MOST_ROUNDS: Final = 10


@dataclass(frozen=True, slots=True)
class Mended:
    """A scenario that is valid key by key.

    Attributes
    ----------
    data : dict
        Of which the shape was made.
    shape : ScenarioShape
    doubtful : frozenset of str
        Dotted keys whose values nobody has chosen.
    thinned : frozenset of str
        Axes of which some values are left; what else goes with them may depend on those that are not.
    """

    data: dict[str, Any]
    shape: ScenarioShape
    doubtful: frozenset[str] = frozenset()
    thinned: frozenset[str] = frozenset()

    def doubts(self, conflict: Conflict) -> bool:
        """Whether a rule looked at a key whose value nobody has chosen."""
        if any(_overlap(key, other) for key in conflict.involved for other in self.doubtful):
            return True
        if conflict.involved == ("plots",) and sum(kind in self.data for kind in KINDS) != 1:
            return True  # which there are depends on what is played
        return len(conflict.involved) > 1 and any(_overlap(k, a) for k in conflict.involved for a in self.thinned)


def _overlap(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def mended(data: dict[str, Any], faulty: Iterable[Key]) -> Mended | None:
    """Take out what is wrong; None where nothing that could be checked is left.

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
            if not _taken_out(data, key):
                return None
        try:
            shape = ScenarioShape.model_validate(data)
        except ValidationError as error:
            faulty = [fault.key for fault in wording.faults(error, Document("", data))]
            continue
        return Mended(data, shape, frozenset(doubtful), frozenset(thinned))
    return None


def _from_the_end(faulty: Iterable[Key]) -> list[Key]:
    """Key paths, the last items of a list first, so that the places of the others stay; of an axis whole values."""
    whole = {key[:3] if key and key[0] in axes.KINDS else key for key in faulty}
    return sorted(whole, key=lambda key: [(s, "") if isinstance(s, int) else (0, s) for s in key], reverse=True)


def _doubtful(data: dict[str, Any], key: Key) -> Iterator[str]:
    """Keys of which nobody knows any more what was meant."""
    if key[0] in axes.KINDS:
        # One value of several can go without the others; without an axis nobody knows what is varied.
        values = at(data, key[:2])
        if len(key) == 1:
            yield from map(str, values if isinstance(values, dict) else ())
        elif len(key) == 2 or not isinstance(values, list) or len(values) < 2:
            yield str(key[1])
        return
    yield ".".join(map(str, key))
    known, beside = fields(key[:-1]), at(data, key[:-1])
    if known and key[-1] not in known and isinstance(beside, dict):
        # A key that is misspelt is meant to be one that is left out.
        yield from (".".join(map(str, (*key[:-1], name))) for name in known if name not in beside)


def _taken_out(data: dict[str, Any], key: Key) -> bool:
    """Take a value out of data, or put in what is missing; whether that could be done."""
    if not key:
        return False
    around: Any = at(data, key[:-1])
    last: Any = key[-1]
    if key in _STAND_INS and isinstance(around, dict):
        around[last] = deepcopy(_STAND_INS[key])
    elif isinstance(around, dict | list) and last in (around if isinstance(around, dict) else range(len(around))):
        del around[last]
    else:  # what is missing
        return _taken_out(data, key[:-1])
    if key[0] in axes.KINDS and len(key) == 3 and not around:
        del data[key[0]][key[1]]
    return True
