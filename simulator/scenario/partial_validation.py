"""Which rules between keys can still be checked if some values of a scenario are wrong?

Rules about correct values can. A wrong value is removed, and a stand-in replaces a required value. Rules involving a
removed or replaced key report nothing, because the intended value is unknown. Every other rule is checked, and a single
run therefore shows every fault.

Example: a training with `world_size: -8`, `shard_size: 3` and `precision: {params: float32, master: float32}`. The
negative number is a fault, and 8 is its stand-in. The rule "shard_size divides world_size" involves world_size and
reports nothing. The rule "master is wider than params" involves correct keys alone, and reports a second fault.
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
from simulator.scenario.records import KINDS, Scenario, fields
from simulator.scenario.rule_violation import RuleViolation

# Arbitrary valid values for required keys; no rule is broken by any of them alone.
_STAND_INS: Final[dict[Key, Any]] = {
    ("name",): "unnamed",
    ("cluster",): {"topology": "star_100g", "world_size": 8},
    ("cluster", "topology"): "star_100g",
    ("cluster", "world_size"): 8,
    ("collective", "operation"): "all_reduce",
    ("training", "model"): "gpt2",
    ("training", "seq_len"): 64,
}
# Removing a value can leave its mapping without a required key, and the next validation then reports the mapping. This
# bounds the number of rounds.
_MOST_ROUNDS: Final = 10


@dataclass(frozen=True, slots=True)
class PartialScenario:
    """A scenario without its wrong values; each remaining key is valid alone."""

    data: dict[str, Any]  # data from which the shape was validated
    shape: Scenario  # the validated scenario
    # Dotted keys without a value chosen by the user: removed, replaced, or perhaps misspelt elsewhere
    doubtful: frozenset[str] = frozenset()
    thinned: frozenset[str] = frozenset()  # axes that lost some values; another key may suit the removed values

    def doubts(self, conflict: RuleViolation) -> bool:
        """Return True if a violation involves a key without a value chosen by the user, and so may be no fault."""
        if any(overlap(key, other) for key in conflict.involved for other in self.doubtful):
            return True
        if conflict.involved == ("plots",) and sum(kind in self.data for kind in KINDS) != 1:
            # Allowed plots depend on the kind of scenario, which is unknown here.
            return True
        # A rule about the axis key alone is still valid for the remaining values. A rule about several keys is not:
        # `shard_size: 8` may be meant for the very world_size that was removed.
        return len(conflict.involved) > 1 and any(overlap(k, a) for k in conflict.involved for a in self.thinned)


def without_faults(data: dict[str, Any], faulty: Iterable[Key]) -> PartialScenario | None:
    """Return a scenario without its wrong values; None if nothing checkable is left.

    Parameters
    ----------
    data : dict
        Data of a scenario; not modified.
    faulty : iterable of key paths
        Paths of wrong or missing values.
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
    """Return key paths of wrong values in an order that allows removal one after another.

    List items come from the end, therefore earlier items keep their index. An axis value is removed as a whole, even
    if only a key within it is wrong.

    >>> _from_the_end([("faults", 0, "step"), ("faults", 2), ("sweep", "collective", 1, "size")])
    [('sweep', 'collective', 1), ('faults', 2), ('faults', 0, 'step')]
    """
    keys = {key[:3] if key and key[0] in axes.KINDS else key for key in faulty}
    # A path may hold text and numbers at the same place; the pairs make them comparable.
    return sorted(keys, key=lambda key: [(s, "") if isinstance(s, int) else (0, s) for s in key], reverse=True)


def _doubtful(data: dict[str, Any], key: Key) -> Iterator[str]:
    """Yield the dotted scenario keys whose intended values are unknown, because the wrong value at `key` was left out.

    A misspelt key also puts the absent keys of its mapping in doubt. Rules between keys skip keys in doubt.
    """
    if key[0] in axes.KINDS:
        # An axis with other values left still varies its key; an axis that loses every value does not.
        values = at(data, key[:2])
        if len(key) == 1:
            yield from map(str, values if isinstance(values, dict) else ())
        elif len(key) == 2 or not isinstance(values, list) or len(values) < 2:
            yield str(key[1])
        return
    yield ".".join(map(str, key))
    names, beside = fields(key[:-1]), at(data, key[:-1])
    if names and key[-1] not in names and isinstance(beside, dict):
        # A misspelt key probably means a known key absent from the same mapping: each absent key is in doubt.
        yield from (".".join(map(str, (*key[:-1], name))) for name in names if name not in beside)


def _remove_or_replace(data: dict[str, Any], key: Key) -> bool:
    """Remove a value from the data in place, or put a stand-in for it; return False if neither is possible."""
    if not key:
        return False
    around: Any = at(data, key[:-1])
    last: Any = key[-1]
    if key in _STAND_INS and isinstance(around, dict):
        around[last] = deepcopy(_STAND_INS[key])
    elif isinstance(around, dict | list) and last in (around if isinstance(around, dict) else range(len(around))):
        del around[last]
    else:
        # The value itself is missing: remove the mapping around it.
        return _remove_or_replace(data, key[:-1])
    # An axis without values is invalid too.
    if key[0] in axes.KINDS and len(key) == 3 and not around:
        del data[key[0]][key[1]]
    return True
