"""How does a page show memory? A rank's use over time by category, its peak, and the largest allocations."""

from __future__ import annotations

from math import isfinite
from typing import Any, Final

from simulator.records.timeline import Timeline, by_rank
from simulator.report.numbers.memory_at import fullest, large_over_time
from simulator.report.numbers.memory_steps import thinned
from simulator.report.plots.training.memory import shown_categories, with_rest

# More steps than pixels are invisible.
_MOST_STEPS: Final = 1500
# Smaller groups of alike allocations, as a share of the peak, are not listed.
_SMALL: Final = 1e-3
_COLUMNS: Final = ("name", "category", "bytes", "begin", "end")


def memory(timeline: Timeline, unit: float, capacity: float) -> dict[str, Any] | None:
    """Return the memory over time of the rank with the highest peak, among ranks with samples; None without samples.

    Returns
    -------
    dict
        `rank`, `capacity` [B], `time` [units, differences], `categories`, `held` (a column per category [B]), `peak`
        (index in the columns), `allocations` (see `_allocations`), `reserved` [B] or None.
    """
    samples = by_rank(timeline.memory)
    if not samples or timeline.peak is None:
        return None
    # The rank with the peak may not be among the recorded ranks.
    rank = timeline.peak.rank if timeline.peak.rank in samples else min(samples)
    steps = thinned(samples[rank], timeline.end, _MOST_STEPS)
    by_sample = [dict(sample.by_category) for sample in steps]
    categories = shown_categories(by_sample)
    columns = [with_rest(by_category, categories) for by_category in by_sample]
    times = [round(sample.time / unit) for sample in steps]
    totals = [sample.nbytes for sample in steps]
    return {
        "rank": rank,
        "capacity": capacity if isfinite(capacity) else None,
        "time": [after - before for before, after in zip([0, *times], times, strict=False)],
        "categories": categories,
        "held": [[column.get(name, 0) for column in columns] for name in categories],
        "peak": totals.index(max(totals)),
        "allocations": _allocations(timeline, rank, unit),
        "reserved": timeline.reserved.get(rank),
    }


def _allocations(timeline: Timeline, rank: int, unit: float) -> dict[str, Any] | None:
    """Return a rank's allocations in large groups of alike allocations, largest first; None if none are known.

    Returns
    -------
    dict
        `names`, `categories`, and a column for each of `name`, `category` (indices in these lists), `bytes` [B],
        `begin` and `end` [units]; `peak`: indices in the columns of the allocations at the memory peak; `complete`:
        False if the columns have only these allocations.
    """
    if rank not in timeline.allocations:
        return None
    lifetimes = large_over_time(timeline, rank, _SMALL)
    at_peak = fullest(timeline.allocations[rank])
    # Names repeat: every micro-batch allocates its activations again.
    names, categories = (
        {text: place for place, text in enumerate(dict.fromkeys(getattr(life.holder, key) for life in lifetimes))}
        for key in ("name", "category")
    )
    return {
        "names": list(names),
        "categories": list(categories),
        "name": [names[life.holder.name] for life in lifetimes],
        "category": [categories[life.holder.category] for life in lifetimes],
        "bytes": [life.holder.nbytes for life in lifetimes],
        "begin": [round(life.holder.since / unit) for life in lifetimes],
        "end": [round(life.until / unit) for life in lifetimes],
        "peak": [place for place, life in enumerate(lifetimes) if life.exists(at_peak)],
        "complete": True,
    }


def only_at_peak(allocations: dict[str, Any]) -> dict[str, Any]:
    """Return a view's allocations (see `_allocations`) reduced to the allocations at the memory peak."""
    columns = {key: [allocations[key][place] for place in allocations["peak"]] for key in _COLUMNS}
    used = sorted(set(columns["name"]))
    places = {name: place for place, name in enumerate(used)}
    names = {"names": [allocations["names"][name] for name in used], "name": [places[name] for name in columns["name"]]}
    return allocations | columns | names | {"peak": list(range(len(columns["name"]))), "complete": False}
