"""Which spans of which ranks does a page show: one lane for each rank and stream, alike ranks once with their count?"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.records.timeline import Span, Timeline, by_rank
from simulator.report.numbers.participants import Participant, Traffic, traffic
from simulator.report.plots.training.pipeline import first_of_stages, passes
from simulator.step.streams import dimension_of

# Unlike ranks that are shown; the first, the last to end and slow ones are always among them.
_MOST_RANKS: Final = 16
# Transfers that lanes of what is sent and received show, all together.
_MOST_TRANSFERS: Final = 50_000
# Unlike servers and switches that are shown.
_MOST_OTHERS: Final = 8
# Share of the time below which nobody sees a difference, zoomed in by a hundred on a screen of a thousand pixels.
_SEEN: Final = 1e-5
# What tells groups of one kind apart at the end of a name.
_OF_GROUP: Final = re.compile(r" \([a-z ]+ \d+\)$")
# Order of a rank's lanes.
_ORDER: Final = {"compute": 0, "communication": 1}


def lanes(
    timeline: Timeline,
    unit: float,
    groups: Mapping[str, Sequence[int]] | None,
    slow: Sequence[int],
    notes: list[str],
) -> dict[str, Any]:
    """Columns of spans.

    Returns
    -------
    dict
        `names` and `kinds`: texts; `lanes`: a dict each of `rank` (or a server's or switch's vertex), `alike` (how many
        do the same), stream, and columns start (distance from the one before [units]), duration [units], name and kind
        (places in the texts).
    """
    ranks = by_rank(timeline.spans)
    firsts = {own[0]: own for own in _alike(ranks, timeline.end)}
    last = timeline.last_rank if timeline.last_rank in ranks else None
    shown = _chosen(firsts, last, slow)
    if len(shown) < len(firsts):
        notes.append(f"{len(shown)} of {len(firsts)} unlike ranks are shown")
    texts: dict[str, dict[str, int]] = {"names": {}, "kinds": {}}
    moved = traffic(timeline, groups) if groups is not None and timeline.transfers <= _MOST_TRANSFERS else {}
    told = []
    for rank in shown:
        told += [_lane(rank, firsts[rank], stream, own, unit, texts) for stream, own in _streams(ranks[rank])]
        told += [_moved(rank, len(firsts[rank]), one, unit, texts) for one in moved.get(rank, ())]
    told += _others(moved, unit, texts, notes)
    return {
        "names": list(texts["names"]),
        "kinds": list(texts["kinds"]),
        "lanes": told,
        "last_rank": _first_of(firsts, last),
        "slow": [_first_of(firsts, rank) for rank in slow],
    }


def pipeline(timeline: Timeline, unit: float) -> dict[str, Any] | None:
    """Lanes as of `lanes`, one a pipeline stage, of passes named by micro-batch; None without a pipeline."""
    firsts, ranks = first_of_stages(timeline), by_rank(timeline.spans)
    if len(firsts) < 2:
        return None
    texts: dict[str, dict[str, int]] = {"names": {}, "kinds": {}}
    told = []
    for stage, rank in enumerate(firsts):
        own = [
            Span(rank, f"stage {stage}", _pass_name(one.kind, one.micro, one.chunk), one.kind, one.start, one.end)
            for one in passes(sorted(ranks[rank], key=lambda span: span.start))
        ]
        told.append(_lane(rank, (rank,), f"stage {stage}", own, unit, texts))
    return {"names": list(texts["names"]), "kinds": list(texts["kinds"]), "lanes": told, "last_rank": None, "slow": []}


def _pass_name(kind: str, micro: int, chunk: int) -> str:
    if micro < 0:
        return kind
    return f"{micro} {kind}" if chunk <= 0 else f"{micro} {kind}, chunk {chunk}"


def _alike(ranks: Mapping[int, Sequence[Span]], end: float) -> list[list[int]]:
    """Ranks that do the same at the same times, each in a group of its own, to less than a screen shows.

    Ranks of one stage differ by a few nanoseconds and by the number of their group: "send 0 (pipeline 1)".
    """
    groups: dict[tuple[Any, ...], list[tuple[Floats, list[int]]]] = {}
    for rank in sorted(ranks):
        does = tuple((span.stream, span.kind, _OF_GROUP.sub("", span.name)) for span in ranks[rank])
        times = np.array([(span.start, span.end) for span in ranks[rank]])
        known = groups.setdefault(does, [])
        own = next((ranks for first, ranks in known if np.allclose(first, times, rtol=0.0, atol=_SEEN * end)), None)
        if own is None:
            own = []
            known.append((times, own))
        own.append(rank)
    return sorted(own for known in groups.values() for _, own in known)


def _first_of(firsts: Mapping[int, Sequence[int]], rank: int | None) -> int | None:
    """The rank that stands for another one that does the same."""
    return next((first for first, own in firsts.items() if rank in own), None)


def _chosen(firsts: Mapping[int, Sequence[int]], last: int | None, slow: Sequence[int]) -> list[int]:
    wanted = [rank for rank in (_first_of(firsts, one) for one in (last, *slow)) if rank is not None]
    every = sorted(firsts)
    spread = [every[i * len(every) // _MOST_RANKS] for i in range(_MOST_RANKS)] if len(every) > _MOST_RANKS else every
    return sorted(dict.fromkeys([*wanted, *spread]))[: _MOST_RANKS + len(wanted)]


def _streams(spans: Sequence[Span]) -> list[tuple[str, list[Span]]]:
    by_stream: dict[str, list[Span]] = {}
    for span in spans:
        # What is sent to each stage has a stream of its own; one lane shows them all.
        stream = "sends to stages" if dimension_of(span.stream) == "pp" else span.stream
        by_stream.setdefault(stream, []).append(span)
    ordered = sorted(by_stream, key=lambda stream: (_ORDER.get(stream.partition(" ")[0], 2), stream))
    return [(stream, sorted(by_stream[stream], key=lambda span: span.start)) for stream in ordered]


def _lane(
    rank: int, alike: Sequence[int], stream: str, spans: Sequence[Span], unit: float, texts: dict[str, dict[str, int]]
) -> dict[str, Any]:
    starts = np.array([span.start for span in spans])
    ends = np.array([span.end for span in spans])
    names = [texts["names"].setdefault(span.name, len(texts["names"])) for span in spans]
    kinds = [texts["kinds"].setdefault(span.kind, len(texts["kinds"])) for span in spans]
    return _columns(rank, len(alike), stream, starts, ends, unit) | {"name": names, "kind": kinds}


def _moved(who: Participant, alike: int, own: Traffic, unit: float, texts: dict[str, dict[str, int]]) -> dict[str, Any]:
    """A lane of what a participant sends, or receives, transfer by transfer."""
    names = [texts["names"].setdefault(name, len(texts["names"])) for name in own.names]
    kind = texts["kinds"].setdefault("transfer", len(texts["kinds"]))
    columns = _columns(who, alike, own.direction, own.start, own.end, unit)
    return columns | {"name": names, "kind": [kind] * len(names)}


def _others(
    moved: Mapping[Participant, Sequence[Traffic]], unit: float, texts: dict[str, dict[str, int]], notes: list[str]
) -> list[dict[str, Any]]:
    """Lanes of servers and switches, those that do the same at the same times once."""
    alike: dict[Any, list[str]] = {}
    for who, own in moved.items():
        if isinstance(who, str):
            looks = [_columns(one.direction, 1, "", one.start, one.end, unit) for one in own]
            alike.setdefault(repr(looks), []).append(who)
    shown = list(alike.values())[:_MOST_OTHERS]
    if len(shown) < len(alike):
        notes.append(f"{len(shown)} of {len(alike)} unlike servers and switches are shown")
    return [_moved(names[0], len(names), one, unit, texts) for names in shown for one in moved[names[0]]]


def _columns(rank: Participant, alike: int, stream: str, starts: Any, ends: Any, unit: float) -> dict[str, Any]:
    begins, stops = (np.rint(times / unit).astype(np.int64) for times in (starts, ends))
    return {
        "rank": rank,
        "alike": alike,
        "stream": stream,
        "start": np.diff(begins, prepend=0).tolist(),
        "duration": (stops - begins).tolist(),
    }
