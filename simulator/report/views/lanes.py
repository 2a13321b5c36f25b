"""Which spans of which ranks does a page show: one lane for each rank and stream, alike ranks once with their count?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from simulator.records.timeline import Span, Timeline, by_rank
from simulator.report.plots.pipeline import first_of_stages, passes
from simulator.step.streams import dimension_of

# Unlike ranks that are shown; the first, the last to end and slow ones are always among them.
_MOST_RANKS: Final = 16
# Transfers that lanes of what is sent show, all together.
_MOST_TRANSFERS: Final = 50_000
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
        `names` and `kinds`: texts; `lanes`: a dict each of rank, `alike` (how many ranks do the same), stream, and
        columns start (distance from the one before [units]), duration [units], name and kind (places in the texts).
    """
    ranks = by_rank(timeline.spans)
    classes: dict[tuple[Any, ...], list[int]] = {}
    for rank in sorted(ranks):
        classes.setdefault(_key(ranks[rank]), []).append(rank)
    firsts = {own[0]: own for own in classes.values()}
    last = timeline.last_rank if timeline.last_rank in ranks else None
    shown = _chosen(firsts, last, slow)
    if len(shown) < len(firsts):
        notes.append(f"{len(shown)} of {len(firsts)} unlike ranks are shown")
    texts: dict[str, dict[str, int]] = {"names": {}, "kinds": {}}
    told = []
    for rank in shown:
        told += [_lane(rank, firsts[rank], stream, own, unit, texts) for stream, own in _streams(ranks[rank])]
        if groups is not None and timeline.transfers <= _MOST_TRANSFERS:
            told += _sends(timeline, rank, firsts[rank], groups, unit, texts)
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


def _key(spans: Sequence[Span]) -> tuple[Any, ...]:
    return tuple((s.stream, s.name, s.start, s.end) for s in spans)


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
    return _columns(rank, alike, stream, starts, ends, unit) | {"name": names, "kind": kinds}


def _columns(rank: int, alike: Sequence[int], stream: str, starts: Any, ends: Any, unit: float) -> dict[str, Any]:
    begins, stops = (np.rint(times / unit).astype(np.int64) for times in (starts, ends))
    return {
        "rank": rank,
        "alike": len(alike),
        "stream": stream,
        "start": np.diff(begins, prepend=0).tolist(),
        "duration": (stops - begins).tolist(),
    }


def _sends(
    timeline: Timeline,
    rank: int,
    alike: Sequence[int],
    groups: Mapping[str, Sequence[int]],
    unit: float,
    texts: dict[str, dict[str, int]],
) -> list[dict[str, Any]]:
    """A lane of what a rank sends, transfer by transfer."""
    starts, ends, names = [], [], []
    for log in timeline.logs:
        for participant, member in enumerate(groups.get(log.collective, ())):
            if member != rank:
                continue
            rows = np.flatnonzero(log.transfers.src == participant)
            starts.append(log.enter[rows])
            ends.append(log.end[rows])
            names += [f"{log.collective}: to {log.vertices[to]}" for to in log.transfers.dst[rows].tolist()]
    if not names:
        return []
    start, end = np.concatenate(starts), np.concatenate(ends)
    order = np.argsort(start, kind="stable")
    numbers = [texts["names"].setdefault(names[i], len(texts["names"])) for i in order.tolist()]
    kind = texts["kinds"].setdefault("transfer", len(texts["kinds"]))
    return [
        _columns(rank, alike, "sends", start[order], end[order], unit) | {"name": numbers, "kind": [kind] * len(order)}
    ]
