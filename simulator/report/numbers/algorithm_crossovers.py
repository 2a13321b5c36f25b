"""Which algorithm is fastest at which size and number of workers, by how much, and with which crossovers?

Takes the times of a sweep's points, and returns crossovers and a sentence; draws nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Final, Literal

from simulator.basics.units import format_bytes, format_time
from simulator.records.measures import factor_text

Axis = Literal["world_size", "nbytes"]
Place = tuple[int, int]

_AXES: Final[tuple[Axis, Axis]] = ("world_size", "nbytes")
_SIZES: Final = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
# Times that differ by less than this share are equal: the engine's precision against closed forms.
_EQUAL: Final = 1e-9


@dataclass(frozen=True, slots=True)
class ScalingPoint:
    """A run of a sweep.

    Attributes
    ----------
    algorithm : str
        The algorithm, or any text that names a line of the picture.
    world_size : int
        Ranks.
    nbytes : int
        Size of the array on a rank [B].
    time : float
        Simulated time [s].
    predicted : float or None
        The closed form's time [s], if it is exact.
    """

    algorithm: str
    world_size: int
    nbytes: int
    time: float
    predicted: float | None = None


@dataclass(frozen=True, slots=True)
class Crossing:
    """A crossover: an algorithm overtakes another."""

    # `before`, `after`: The faster algorithm below `at`, and above it.
    before: str
    after: str
    along: Axis  # quantity that varies along the two lines
    fixed: int  # value of the other quantity, equal for both lines
    at: float  # place of the crossover: ranks, or [B]
    time: float  # time of both algorithms there [s]
    leads: bool  # True if the two are the fastest of all there, so that the winner changes
    # True if the place was found by simulating points in between, to 2 %; False if interpolated on logarithmic axes
    searched: bool = False

    def text(self) -> str:
        """Format the crossover's place: '38 KiB (64 GPUs)' or '12 GPUs (64 KiB)'."""
        fixed = _gpus(self.fixed) if self.along == "nbytes" else format_bytes(self.fixed)
        return f"{self.place()} ({fixed})"

    def place(self) -> str:
        """Format the crossover's number of GPUs or array size: '12 GPUs' or '38 KiB'."""
        if self.along == "world_size":
            return f"{self.at:.2g} GPUs"
        unit, factor = next(((u, f) for u, f in _SIZES if self.at >= f), ("B", 1))
        # An interpolated place deserves two digits, a searched place three.
        digits = 3 if self.searched else 2
        return f"{float(f'{self.at / factor:.{digits}g}'):g} {unit}"


def crossings(points: Iterable[ScalingPoint], overrides: Sequence[Crossing] = ()) -> tuple[Crossing, ...]:
    """Return each two algorithms' crossovers, along array size and number of workers, from simulated points.

    Parameters
    ----------
    overrides : sequence of Crossing
        Crossovers found by simulating points in between; they replace the interpolated ones.

    Returns
    -------
    tuple of Crossing
        Sorted by axis, fixed value and place.

    Raises
    ------
    ValueError
        A time is not positive, or a setting occurs twice.

    Notes
    -----
    Between two neighbouring runs ln(t_a / t_b) is taken as linear in ln x; the lines cross at its zero.
    """
    table = by_place(points)
    crossed: list[Crossing] = []
    for along in _AXES:
        # A grid of sizes and workers has lines in both directions: each row and each column.
        for fixed, line in _lines(table, along).items():
            names = list(dict.fromkeys(name for _, times in line for name in times))
            for first, second in combinations(names, 2):
                crossed += _pair(line, first, second, along, fixed)
    exact = {(c.before, c.after, c.along, c.fixed): c for c in overrides}
    crossed = [exact.get((c.before, c.after, c.along, c.fixed), c) for c in crossed]
    return tuple(sorted(crossed, key=lambda c: (_AXES.index(c.along), c.fixed, c.at, c.before, c.after)))


def by_place(points: Iterable[ScalingPoint]) -> dict[Place, dict[str, float]]:
    """Return the points as {(world size, array size): {algorithm: time [s]}}; raise ValueError if a point repeats."""
    table: dict[Place, dict[str, float]] = {}
    for point in points:
        if not 0.0 < point.time < math.inf:
            raise ValueError(f"{point.algorithm}: got time {point.time!r} s; must be positive and finite")
        times = table.setdefault((point.world_size, point.nbytes), {})
        # Two runs of the same setting would make a line ambiguous.
        if point.algorithm in times:
            place = place_text((point.world_size, point.nbytes))
            raise ValueError(f"{point.algorithm} stands twice at {place}; give the lines different names")
        times[point.algorithm] = point.time
    return table


def _lines(table: Mapping[Place, dict[str, float]], along: Axis) -> dict[int, list[tuple[int, dict[str, float]]]]:
    """Return the lines along an axis: {value of the other axis: [(value on the axis, {algorithm: time}), ...]}."""
    lines: dict[int, list[tuple[int, dict[str, float]]]] = {}
    for place in sorted(table):
        moving, fixed = place if along == "world_size" else (place[1], place[0])
        lines.setdefault(fixed, []).append((moving, table[place]))
    return dict(sorted(lines.items()))


def _pair(
    line: Sequence[tuple[int, dict[str, float]]], first: str, second: str, along: Axis, fixed: int
) -> list[Crossing]:
    """Return the crossovers of two algorithms along a line of (axis value, {algorithm: time}) pairs."""
    # Comparing needs a run of both algorithms.
    measured = [(x, times) for x, times in line if first in times and second in times]
    # Places where both are equal have no leader; one between two leads is itself the crossover.
    with_leader = [(x, times) for x, times in measured if not _equal(times[first], times[second])]
    crossed: list[Crossing] = []
    for (x0, left), (x1, right) in pairwise(with_leader):
        d0, d1 = math.log(left[first] / left[second]), math.log(right[first] / right[second])
        # The same algorithm leads on both sides.
        if d0 * d1 > 0:
            continue
        tied = [(x, times) for x, times in measured if x0 < x < x1]
        # Zero of the straight line through (ln x0, d0) and (ln x1, d1).
        share = d0 / (d0 - d1)
        at = float(tied[0][0]) if tied else math.exp(math.log(x0) + share * (math.log(x1) - math.log(x0)))
        # Interpolate the time geometrically, as the axes are logarithmic.
        time = tied[0][1][first] if tied else left[first] * (right[first] / left[first]) ** share
        before, after = (first, second) if d0 < 0 else (second, first)
        # The old leader must be the fastest overall on the left, the new leader on the right.
        leads = _equal(left[before], min(left.values())) and _equal(right[after], min(right.values()))
        crossed.append(Crossing(before, after, along, fixed, at, time, leads))
    return crossed


def _equal(a: float, b: float) -> bool:
    """Return True if two times [s] are equal within the engine's precision."""
    return math.isclose(a, b, rel_tol=_EQUAL)


def finding(points: Iterable[ScalingPoint]) -> str:
    """Return a sentence on the fastest algorithm, its lead and the crossovers, for a sweep's points.

    Examples
    --------
    >>> finding([ScalingPoint("ring", 2, 1024, 1.0), ScalingPoint("naive", 2, 1024, 4.0)])
    'ring beats naive by 4.0x (2 GPUs, 1 KiB)'
    """
    return _sentence(list(points), short=False)


def headline(points: Iterable[ScalingPoint], overrides: Sequence[Crossing] = ()) -> str:
    """Return the sentence of `finding` in fewer words, for a plot title; `overrides`: see `crossings`."""
    return _sentence(list(points), short=True, overrides=overrides)


def _sentence(points: list[ScalingPoint], *, short: bool, overrides: Sequence[Crossing] = ()) -> str:
    """Return the sentence on a sweep's points: algorithms tie, one wins everywhere, or several share the lead."""
    table = by_place(points)
    if not table:
        return "no run to compare"
    names = list(dict.fromkeys(point.algorithm for point in points))
    if len(names) == 1:
        return _single_algorithm(names[0], table)
    # Only places with at least two algorithms can be compared.
    contested = {place: times for place, times in table.items() if len(times) > 1}
    if not contested:
        return "no comparison: no two lines share a number of GPUs and an array size"
    # Algorithms that are the fastest, or tied, at every contested place.
    unbeaten = [
        name
        for name in names
        if all(name in times and _equal(times[name], min(times.values())) for times in contested.values())
    ]
    if len(unbeaten) == len(names):
        who = _list_text(names) if len(names) <= 12 else f"all {len(names)} settings"
        return f"{who} take equal times {_where(contested)}"
    if unbeaten:
        others = [name for name in names if name not in unbeaten[1:]]
        # Unbeaten algorithms have equal times everywhere, so the first represents the rest below.
        tied = f"{_list_text(unbeaten)} take equal times; " if len(unbeaten) > 1 else ""
        return tied + _everywhere(unbeaten[0], others, contested, short=short)
    return _shared_lead(names, contested, crossings(points, overrides), short=short)


def _single_algorithm(name: str, table: Mapping[Place, dict[str, float]]) -> str:
    """Return a text with the least and greatest time, and their settings, of the only algorithm in the table."""
    ordered = sorted((times[name], place) for place, times in table.items())
    (least, first), (most, last) = ordered[0], ordered[-1]
    if first == last:
        return f"{name} takes {format_time(least)} ({place_text(first)})"
    return f"{name} takes {format_time(least)} ({place_text(first)}) to {format_time(most)} ({place_text(last)})"


def _everywhere(name: str, names: list[str], table: Mapping[Place, dict[str, float]], *, short: bool) -> str:
    """Return a sentence on how many times faster the algorithm `name` is than each other algorithm, at all settings."""
    # Lead over the second fastest at each place.
    leads = [min(t for other, t in times.items() if other != name) / times[name] for times in table.values()]
    # A title has no room for each loser: give the range of leads over the second fastest.
    if short and len(names) > 2 and len(table) > 1 and not any(_equal(lead, 1.0) for lead in leads):
        ahead = f"{factor_text(min(leads))} to {factor_text(max(leads))}"
        return f"{name} is fastest everywhere, ahead of the runner-up by {ahead}"
    parts: list[str] = []
    for other in names:
        ratios = sorted((times[other] / times[name], place) for place, times in table.items() if other in times)
        if other == name or not ratios:
            continue
        (least, near), (most, far) = ratios[0], ratios[-1]
        ties = sum(_equal(ratio, 1.0) for ratio, _ in ratios)
        if near == far:
            parts.append(f"{other} by {factor_text(most)} ({place_text(far)})")
        elif short:
            parts.append(f"{other} everywhere, by {factor_text(least)} to {factor_text(most)}")
        elif ties == len(ratios):
            parts.append(f"{other} nowhere (equal in all {ties} conditions)")
        elif ties:
            parts.append(
                f"{other} by up to {factor_text(most)} ({place_text(far)}), equal in {ties} of {len(ratios)} conditions"
            )
        else:
            span = f"{factor_text(least)} ({place_text(near)}) to {factor_text(most)} ({place_text(far)})"
            parts.append(f"{other} everywhere, by {span}")
    if len(table) == 1:
        return f"{name} beats {_list_text(parts)}"
    return f"{name} beats {_list_text(parts)}; no crossover"


def _shared_lead(
    names: list[str], table: Mapping[Place, dict[str, float]], crossed: Sequence[Crossing], *, short: bool
) -> str:
    """Return a sentence with the number of settings at which each algorithm is fastest, and the crossovers."""
    wins: dict[str, list[tuple[float, Place]]] = {name: [] for name in names}
    ties = 0
    for place, times in table.items():
        # Only the gap between the two fastest decides a place.
        (best, name), (second, _) = sorted((time, name) for name, time in times.items())[:2]
        if _equal(best, second):
            ties += 1
        else:
            wins[name].append((second / best, place))
    # The algorithm with most wins first.
    order = sorted((name for name in names if wins[name]), key=lambda name: -len(wins[name]))
    parts: list[str] = []
    for name in order:
        ratio, place = max(wins[name])
        by = "" if short else f" by up to {factor_text(ratio)} ({place_text(place)})"
        won = len(wins[name])
        parts.append(f"{name} {f'wins {won} of {len(table)} conditions' if name == order[0] else won}{by}")
    wins_text = ", ".join([*parts, *([f"{ties} tied"] if ties else [])])
    return f"{wins_text}; {_changes([c for c in crossed if c.leads], 1 if short else 3)}"


def _changes(crossed: Sequence[Crossing], most: int) -> str:
    """Return a text on up to `most` pairs of crossing algorithms, each with a range of crossover sizes.

    If no crossovers are along the array size, the text gives the numbers of workers.
    """
    along: Axis = "nbytes" if any(c.along == "nbytes" for c in crossed) else "world_size"
    pairs: dict[tuple[str, str], list[Crossing]] = {}
    for crossing in crossed:
        if crossing.along == along:
            pairs.setdefault((crossing.after, crossing.before), []).append(crossing)
    if not pairs:
        return "no crossover along a single axis"
    changes: list[str] = []
    # Pairs with the most crossovers first; a title names one pair, a sentence three.
    for (after, before), places in sorted(pairs.items(), key=lambda item: -len(item[1]))[:most]:
        first, last = places[0], places[-1]
        until = "" if first is last else f" to {last.text()}"
        changes.append(f"{after} beats {before} above {first.text()}{until}")
    more = f" (and {len(pairs) - most} more crossovers)" if len(pairs) > most else ""
    return _list_text(changes) + more


def place_text(place: Place) -> str:
    """Format a (world size, array size [B]) pair: '2 GPUs, 256 MiB'."""
    return f"{_gpus(place[0])}, {format_bytes(place[1])}"


def _gpus(count: int) -> str:
    """Format a number of GPUs: '1 GPU', '2 GPUs'."""
    return f"{count} GPU" if count == 1 else f"{count} GPUs"


def _where(table: Mapping[Place, object]) -> str:
    """Return "(2 GPUs, 256 MiB)" if the table has a single setting, else "everywhere"."""
    return f"({place_text(next(iter(table)))})" if len(table) == 1 else "everywhere"


def _list_text(words: Sequence[str]) -> str:
    """Return words joined to a text: 'a, b and c'."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
