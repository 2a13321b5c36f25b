"""How do findings write lists, places and amounts?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from simulator.records.setting_text import label

# First words of settings in the plural: "sums in float32", "buckets 25 MiB".
_SEVERAL: Final = ("sums", "buckets", "overflows", "servers")
_PLURAL_VERBS: Final = {"does": "do", "has": "have", "is": "are", "reaches": "reach"}
# Verbs of a predicate: its first word, and a word after "and", "but" or a comma.
_VERB: Final = re.compile(r"(^| and |, but |, )(completes|does|fits|has|is|needs|reaches|takes|ties)\b")
_BRACKETS: Final = re.compile(r"\([^)]*\)")
# Settings named in a sentence; of more settings, the sentence gives the best or a range.
MOST_NAMED: Final = 3
_SIZES: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def join_list(words: Sequence[str]) -> str:
    """Return words joined as a list.

    >>> join_list(["ring", "tree", "mesh"]), join_list(["ring"])
    ('ring, tree and mesh', 'ring')
    """
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]


def short_list(words: Sequence[str], noun: str) -> str:
    """Return words joined as a list; of more than four words, the first three and the number of further `noun`s.

    >>> short_list(["a", "b", "c", "d"], "setting"), short_list(["a", "b", "c", "d", "e"], "setting")
    ('a, b, c and d', 'a, b, c and 2 more settings')

    Words with a comma of their own stand in brackets:

    >>> short_list(["ulysses", "ulysses 2, ring 4"], "setting")
    'ulysses and (ulysses 2, ring 4)'
    """
    if len(words) > 1:
        words = [f"({word})" if ", " in _BRACKETS.sub("", word) else word for word in words]
    # Hiding a single word would save nothing, hence the + 1.
    if len(words) <= MOST_NAMED + 1:
        return join_list(words)
    return join_list([*words[:MOST_NAMED], f"{len(words) - MOST_NAMED} more {noun}s"])


def joined(texts: Iterable[tuple[str, str]], between: str = ": ") -> str:
    """Return a text with each name and its text; names with the same text share it.

    >>> joined([("ring", "the same time"), ("tree", "the same time"), ("nvls", "5 % more time")])
    'ring and tree: the same time; nvls: 5 % more time'
    """
    return "; ".join(f"{join_list(names)}{between}{text}" for text, names in grouped(texts).items())


def clause(name: str, predicate: str) -> str:
    """Return a clause of a setting's name and a predicate; the verb's number follows the name.

    >>> clause("ring", "takes 2 ms"), clause("4 further servers", "takes 2 ms"), clause("ring and tree", "has no error")
    ('ring takes 2 ms', '4 further servers take 2 ms', 'ring and tree have no error')
    """
    if _is_plural(name):
        predicate = _VERB.sub(lambda match: match[1] + _PLURAL_VERBS.get(match[2], match[2][:-1]), predicate)
    return f"{name} {predicate}"


def _is_plural(name: str) -> bool:
    """Return True if a name is plural: several settings, a number above 1 with its noun, or a plural noun."""
    first, _, rest = name.partition(" ")
    counted = (
        first.replace(",", "").isdecimal()
        and first != "1"
        and rest.removeprefix("further ").split(" ")[0].endswith("s")
    )
    return counted or first in _SEVERAL or " and " in name


def clauses(texts: Iterable[tuple[str, str]]) -> str:
    """Return a clause for each setting, from (name, predicate) pairs; settings with the same predicate share a clause.

    >>> clauses([("ring", "takes 2 ms"), ("tree", "takes 2 ms"), ("nvls", "takes 1 ms")])
    'ring and tree take 2 ms; nvls takes 1 ms'
    """
    return "; ".join(clause(join_list(names), predicate) for predicate, names in grouped(texts).items())


def predicates(parts: Sequence[tuple[str, str]]) -> str:
    """Return (verb, object) pairs joined to a predicate; neighbours with the same verb share the verb.

    >>> predicates([("reaches", "9 tokens/s"), ("reaches", "40 % MFU"), ("needs", "3 GiB")])
    'reaches 9 tokens/s and 40 % MFU and needs 3 GiB'
    """
    texts: list[tuple[str, list[str]]] = []
    for verb, text in parts:
        if texts and texts[-1][0] == verb:
            texts[-1][1].append(text)
        else:
            texts.append((verb, [text]))
    return join_list([f"{verb} {join_list(objects)}" for verb, objects in texts])


def grouped(texts: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return {text: names} from (name, text) pairs, in order.

    >>> grouped([("ring", "exact"), ("tree", "rounded"), ("mesh", "exact")])
    {'exact': ['ring', 'mesh'], 'rounded': ['tree']}
    """
    names: dict[str, list[str]] = {}
    for name, text in texts:
        names.setdefault(text, []).append(name)
    return names


def at_text(key: str, value: float, *, exact: bool) -> str:
    """Format an axis value in the key's unit, with three digits if known to 2 % only.

    >>> at_text("collective.size", 122_900.0, exact=False)
    '120 KiB'
    >>> at_text("training.micro_batch_size", 3, exact=True)
    'micro-batch 3'
    """
    if key.endswith((".size", "bucket_size")):
        unit, factor = next(((u, f) for u, f in _SIZES if value >= f), ("B", 1))
        return f"{float(f'{value / factor:.3g}'):g} {unit}"
    return label(key, round(value) if exact else int(float(f"{value:.3g}")))


def bracket_text(key: str, place: Mapping[str, Any]) -> str:
    """Format the result of a search: the place `at`, or only the ends `from` and `to`.

    >>> bracket_text("collective.size", {"at": 122_900.0, "from": 121_856, "to": 123_904, "exact": False})
    'about 120 KiB'
    >>> bracket_text("cluster.world_size", {"at": 16.0, "from": 15, "to": 16, "exact": True})
    '16 GPUs'
    """
    if place["at"] is not None:
        return f"{'' if place['exact'] else 'about '}{at_text(key, place['at'], exact=place['exact'])}"
    # The search ended early, e.g. because a point in between could not be simulated.
    low, high = (at_text(key, place[end], exact=True) for end in ("from", "to"))
    # Write a common unit once: "somewhere between 16 and 32 GPUs".
    return f"somewhere between {low.removesuffix(' ' + high.rpartition(' ')[2])} and {high}"


def ends_text(key: str, place: Mapping[str, Any]) -> str:
    """Return the two simulated points between which a search found a place, in brackets.

    Empty if the place is exact, if its text has the two points already, or if the points have the same text.

    >>> ends_text("collective.size", {"at": 122_900.0, "from": 121_856, "to": 123_904, "exact": False})
    ' (between the simulated points 119 KiB and 121 KiB)'
    """
    low, high = (at_text(key, place[end], exact=False) for end in ("from", "to"))
    if place["at"] is None or place["exact"] or low == high:
        return ""
    return f" (between the simulated points {low} and {high})"


def bracketed(bracket: Any) -> dict[str, Any]:
    """Return an interval around a sign change as plain data: at, from, to, exact."""
    return {"at": bracket.at, "from": bracket.low, "to": bracket.high, "exact": bracket.exact}
