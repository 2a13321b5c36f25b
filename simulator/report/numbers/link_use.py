"""How much traffic does each link carry, and when: bytes, bandwidth over time and busy time, from simulated transfers?

Computed on whole columns, never in a loop over the (perhaps millions of) transfers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Array, Bools, Floats, Ints
from simulator.basics.intervals import lengths_by_key
from simulator.records.timeline import LinkUse, Timeline, TransferLog

# Transfers expanded over the links of their routes at once: limits the memory and costs no time.
_AT_ONCE: Final = 2**18


# A link with at least this bandwidth share counts as the bottleneck; below, latency and waiting dominate.
HOLDS_UP: Final = 0.45


@dataclass(frozen=True, slots=True)
class LinkTraffic:
    """Traffic of each link that carried anything."""

    # Link numbers, rising; row i of the arrays is link numbers[i].
    numbers: tuple[int, ...]
    names: tuple[str, ...]  # 'src->dst'
    # [B/s]; NaN if the timeline does not name the link; shape (links,).
    bandwidths: Floats
    # Edges of the time bins [s]; shape (bins + 1,).
    edges: Floats
    # Mean rate in each bin [B/s]; shape (links, bins).
    rates: Floats
    # [B]; shape (links,).
    nbytes: Floats
    # Time with at least one flow on the link [s]; shape (links,).
    busy: Floats

    def __len__(self) -> int:
        """Return the number of links with bytes."""
        return len(self.numbers)


def link_traffic(timeline: Timeline, bins: int = 400, links: Collection[str] | None = None) -> LinkTraffic:
    """Return the bytes, busy time and rate per time bin of each link that carries bytes.

    A transfer's bytes are spread evenly over its time, and moved where they would exceed a link's bandwidth
    (`within_bandwidths`).

    Parameters
    ----------
    timeline : Timeline
        Timeline with logs; without logs the result has zero links.
    bins : int
        Equal parts of the time from 0 to the end of the timeline, or of the last transfer if later; at least 1.
    links : collection of str, optional
        Names of the links to consider; all if omitted.

    Returns
    -------
    LinkTraffic
        Exact per bin up to float rounding: a row's sum times the bin's length is the link's bytes.

    Raises
    ------
    ValueError
        If bins < 1.

    Notes
    -----
    A flow of 10 B/s from 0.5 s to 3.5 s, with bins of 1 s (see `_spread`):

        bin              0     1     2     3
        carried [B]      5                 5      parts of the flow's first and last bin
        slope [B/s]           +10         -10     differences between whole bins
        running sum            10    10           rate in bins filled by the flow

    A single running sum per link then gives every flow's whole bins.
    """
    if bins < 1:
        raise ValueError(f"got {bins} bins; must be at least 1")
    numbers = np.array([n for n in _links(timeline.logs) if links is None or _name(timeline, n) in links], np.int64)
    # Logs may reach beyond the timeline's end.
    end = max([timeline.end, *(float(log.end.max()) for log in timeline.logs if len(log))], default=0.0)
    # A run without duration still needs bins of positive width.
    edges = np.linspace(0.0, end if end > 0.0 else 1.0, bins + 1)
    carried = np.zeros((len(numbers), bins))
    slope = np.zeros((len(numbers), bins + 1))
    flows = np.zeros((len(numbers), bins + 1), np.int64)
    nbytes = np.zeros(len(numbers))
    uses: list[tuple[Ints, Floats, Floats]] = []
    for link, size, enter, ended in _flows(timeline.logs, numbers):
        nbytes += np.bincount(link, size, len(numbers))
        _spread(link, size, enter, ended, edges, carried, slope, flows)
        uses.append((link, enter, ended))
    width = edges[1] - edges[0]
    # In bins without a flow the rate is exactly zero, instead of the rounding error of the differences.
    full_rates = np.where(np.cumsum(flows, axis=1) > 0, np.cumsum(slope, axis=1), 0.0)[:, :bins]
    names = tuple(_name(timeline, n) for n in numbers.tolist())
    bandwidths = np.array([timeline.link_bandwidths.get(n, np.nan) for n in numbers.tolist()], dtype=np.float64)
    rates = np.maximum(carried / width + full_rates, 0.0)
    return LinkTraffic(
        numbers=tuple(numbers.tolist()),
        names=names,
        bandwidths=bandwidths,
        edges=edges,
        rates=within_bandwidths(rates[:, None], bandwidths)[:, 0],
        nbytes=nbytes,
        busy=_busy(uses, len(numbers)),
    )


def within_bandwidths(rates: Floats, bandwidths: Floats) -> Floats:
    """Return rates of several users of links, moved such that no link carries more than its bandwidth.

    The rate of a transfer changes while it shares links, and its log has only the mean: sums of means may exceed the
    bandwidth. The surplus moves to the next bins with room, or to earlier bins if there are none.

    Parameters
    ----------
    rates : float array, shape (links, users, bins)
        [B/s]
    bandwidths : float array, shape (links,)
        [B/s]; NaN leaves a link's rates unchanged.

    Examples
    --------
    >>> within_bandwidths(np.array([[[1.0, 6.0, 3.0, 0.0]]]), np.array([4.0])).tolist()
    [[[1.0, 4.0, 4.0, 1.0]]]
    """
    # A sum that exceeds the bandwidth only by rounding stays.
    over = rates.sum(axis=1).max(axis=1, initial=0.0) > bandwidths * (1 + 1e-9)
    if not over.any():
        return rates
    moved, bound = rates[over], bandwidths[over, None]
    waiting = np.zeros(moved.shape[:2])
    for course in (moved, moved[:, :, ::-1]):
        for place in range(course.shape[2]):
            demand = course[:, :, place] + waiting
            sent = demand * (bound / np.maximum(demand.sum(axis=1, keepdims=True), bound))
            waiting = demand - sent
            course[:, :, place] = sent
    capped_rates = rates.copy()
    capped_rates[over] = moved
    return capped_rates


def shares_over_time(timeline: Timeline, bins: int = 400) -> tuple[tuple[str, ...], Floats, Floats]:
    """Return the share of its bandwidth that each link uses in each part of the time.

    Parameters
    ----------
    timeline : Timeline
        Timeline with transfer logs.
    bins : int
        Equal parts of the time, at least 1.

    Returns
    -------
    tuple of str, float array of shape (bins + 1,), float array of shape (links, bins)
        Names of the links that carried anything; edges of the parts [s]; shares from 0 to 1, NaN for a link without
        known bandwidth.
    """
    traffic = link_traffic(timeline, bins)
    return traffic.names, traffic.edges, traffic.rates / traffic.bandwidths[:, None]


def link_uses(timeline: Timeline) -> tuple[LinkUse, ...]:
    """Return bytes, busy time and bandwidth of every link of a timeline with bytes, sorted by link number.

    If the engine has recorded the link use, return its record; else sum over the transfers.
    """
    # The engine has recorded link use itself.
    if timeline.links:
        return timeline.links
    numbers = np.array(_links(timeline.logs), np.int64)
    nbytes = np.zeros(len(numbers))
    uses: list[tuple[Ints, Floats, Floats]] = []
    for link, size, enter, ended in _flows(timeline.logs, numbers):
        nbytes += np.bincount(link, size, len(numbers))
        uses.append((link, enter, ended))
    bandwidths = [timeline.link_bandwidths.get(number, float("nan")) for number in numbers.tolist()]
    names = [_name(timeline, number) for number in numbers.tolist()]
    columns = (names, bandwidths, nbytes.tolist(), _busy(uses, len(numbers)).tolist())
    return tuple(LinkUse(*row) for row in zip(*columns, strict=True))


def reverse_of(name: str) -> str:
    """Return the name of the link in the opposite direction of the link "src->dst".

    >>> reverse_of("gpu0->switch0")
    'switch0->gpu0'
    """
    source, _, destination = name.partition("->")
    return f"{destination}->{source}"


def cable_time(timeline: Timeline, link: str) -> float:
    """Return the time during which a cable sends at its bandwidth, in either direction or both [s].

    This is the integral of the larger used share of both directions. Directions that take turns add up; directions that
    send at the same time count once. A server that receives for 1 s and then sends for 1 s, both at full bandwidth,
    uses its cable for 2 s; a ring that does both at the same time uses it for 1 s.

    Parameters
    ----------
    timeline : Timeline
        Timeline with logs.
    link : str
        Either of the cable's two links.
    """
    directions = {link, reverse_of(link)}
    numbers = np.array(sorted(n for n, name in timeline.link_names.items() if name in directions), np.int64)
    flows = list(_flows(timeline.logs, numbers))
    if not flows:
        return 0.0
    row, size, enter, end = (np.concatenate(column) for column in zip(*flows, strict=True))
    # Transfers without duration carry no bytes over time.
    lasting = end > enter
    row, size, enter, end = row[lasting], size[lasting], enter[lasting], end[lasting]
    # Between two neighbouring moments every rate is constant.
    times, place = np.unique(np.concatenate([enter, end]), return_inverse=True)
    # Rate over bandwidth, constant during the flow.
    share = size / (end - enter) / np.array([timeline.link_bandwidths[n] for n in numbers.tolist()])[row]
    steps = np.zeros((len(numbers), len(times)))
    # Each flow adds its bandwidth share at its start and removes the share at its end; moments may coincide.
    np.add.at(steps, (np.concatenate([row, row]), place), np.concatenate([share, -share]))
    # The running sum gives each direction's share; the maximum is over the two directions.
    used_share = np.cumsum(steps, axis=1)[:, :-1].max(axis=0, initial=0.0)
    return float((used_share * np.diff(times)).sum())


def used(use: LinkUse, end: float) -> float:
    """Return the share (0 to 1) of a link's bandwidth used from 0 until `end` [s]: bytes / (bandwidth x end)."""
    if end <= 0.0 or not use.bandwidth > 0.0:
        return 0.0
    # Rounding may bring a link that is always busy slightly above 1.
    return min(1.0, use.nbytes / (use.bandwidth * end))


def _name(timeline: Timeline, number: int) -> str:
    """Return the name that a timeline gives to the link with this number, or "link 7" without a name."""
    return timeline.link_names.get(number, f"link {number}")


@dataclass(frozen=True, slots=True)
class _Joined:
    """Transfers from several logs in a single table, with their routes."""

    links: Ints  # link numbers of every route, route after route
    starts: Ints  # start of each route in `links`, shape (routes,)
    hops: Ints  # number of links of each route, shape (routes,)
    route: Ints  # route of each transfer that carries anything, shape (transfers,)
    nbytes: Floats  # bytes [B], shape (transfers,)
    enter: Floats  # start of the flow [s], shape (transfers,)
    end: Floats  # end [s], shape (transfers,)


def _joined(logs: Iterable[TransferLog]) -> Iterator[_Joined]:
    """Yield tables of transfers, each joined from successive logs until it has at least `_AT_ONCE` transfers.

    Reason: numpy takes as long for a few numbers as for thousands.
    """
    few: list[TransferLog] = []
    count = 0
    for log in logs:
        few.append(log)
        count += len(log)
        if count >= _AT_ONCE:
            yield _one_table(few)
            few, count = [], 0
    if few:
        yield _one_table(few)


def _one_table(logs: Sequence[TransferLog]) -> _Joined:
    """Return several transfer logs joined to a single table of the transfers with bytes."""
    # Repetitions of a collective share their route table; join each table once.
    tables = list({id(log.routes): log.routes for log in logs}.values())
    # Route numbers and link positions of each table move up by the sizes of the tables before.
    first_link = np.cumsum([0, *(len(table.link) for table in tables)])
    first_route = dict(zip(map(id, tables), np.cumsum([0, *map(len, tables)]).tolist(), strict=False))
    starts = [table.begin[:-1] + offset for table, offset in zip(tables, first_link, strict=False)]
    # Transfers of zero bytes pay latency but use no bandwidth.
    carries = np.concatenate([log.nbytes > 0 for log in logs])
    routes = (log.route_of + offset if (offset := first_route[id(log.routes)]) else log.route_of for log in logs)
    route, nbytes, enter, end = (
        _carrying(columns, carries)
        for columns in (
            list(routes),
            [log.nbytes for log in logs],
            [log.enter for log in logs],
            [log.end for log in logs],
        )
    )
    return _Joined(
        links=np.concatenate([table.link for table in tables]),
        starts=np.concatenate(starts),
        hops=np.concatenate([np.diff(table.begin) for table in tables]),
        route=route,
        nbytes=nbytes,
        enter=enter,
        end=end,
    )


def _carrying(columns: Sequence[Array], carries: Bools) -> Array:
    """Return a column from several logs, concatenated, with only the rows selected by the mask `carries`."""
    joined = columns[0] if len(columns) == 1 else np.concatenate(columns)
    return joined if carries.all() else joined[carries]


def _links(logs: Sequence[TransferLog]) -> list[int]:
    """Return the sorted numbers of the links that carry bytes in the transfer logs."""
    used: list[Ints] = [np.zeros(0, np.int64)]
    for all_of in _joined(logs):
        # Mark routes first: a route table may hold routes that no transfer with bytes takes.
        carries = np.zeros(len(all_of.starts), np.bool_)
        carries[all_of.route] = True
        used.append(np.unique(all_of.links[np.repeat(carries, all_of.hops)]))
    return [int(number) for number in np.unique(np.concatenate(used))]


def _flows(logs: Sequence[TransferLog], numbers: Ints) -> Iterator[tuple[Ints, Floats, Floats, Floats]]:
    """Yield batches of columns (row of link in `numbers`, bytes, start, end): a row per transfer and link crossed."""
    for all_of in _joined(logs):
        mask = np.isin(all_of.links, numbers)
        if not mask.any():
            continue
        # Row -1 marks links that are not asked for.
        rows = np.where(mask, np.searchsorted(numbers, all_of.links), -1)
        # A transfer over h links becomes h rows; batches keep these arrays small.
        for begin in range(0, len(all_of.route), _AT_ONCE):
            batch = np.arange(begin, min(begin + _AT_ONCE, len(all_of.route)))
            route = all_of.route[batch]
            hops = all_of.hops[route]
            transfer = np.repeat(batch, hops)
            # Position within the route: 0 1 2, 0 1, 0 1 2 for routes with 3, 2 and 3 links.
            within = np.arange(len(transfer)) - np.repeat(np.cumsum(hops) - hops, hops)
            link = rows[np.repeat(all_of.starts[route], hops) + within]
            hits = link >= 0
            link, transfer = link[hits], transfer[hits]
            yield link, all_of.nbytes[transfer], all_of.enter[transfer], all_of.end[transfer]


def _spread(
    link: Ints, size: Floats, enter: Floats, end: Floats, edges: Floats, carried: Floats, slope: Floats,
    flows: Ints,
) -> None:  # fmt: skip
    """Add flows, each with a link row, bytes and start and end [s], to the arrays of time bins, in place.

    The parts in a flow's first and last bin go to `carried` [B]. For whole bins in between, the rate goes to `slope`
    [B/s] and 1 to `flows`, as differences between bins (example in `link_traffic`).
    """
    bins = len(edges) - 1
    # A flow that starts on an edge belongs to the bin behind it; a flow that ends on an edge, to the bin before.
    first = np.clip(np.searchsorted(edges, enter, "right") - 1, 0, bins - 1)
    last = np.clip(np.searchsorted(edges, end, "left") - 1, first, bins - 1)
    # Also covers flows without duration, whose rate would be infinite.
    in_one_bin = first == last
    _add(carried, link[in_one_bin], first[in_one_bin], size[in_one_bin])
    link, size, enter, end, first, last = (column[~in_one_bin] for column in (link, size, enter, end, first, last))
    # From here on every flow spans at least two bins, so its duration is positive.
    rate = size / (end - enter)
    _add(carried, link, first, rate * (edges[first + 1] - enter))
    _add(carried, link, last, rate * (end - edges[last]))
    _add(slope, link, first + 1, rate)
    _add(slope, link, last, -rate)
    _add(flows, link, first + 1, np.ones(len(link), np.int64))
    _add(flows, link, last, np.full(len(link), -1, np.int64))


def _add(table: npt.NDArray[Any], row: Ints, column: Ints, value: npt.NDArray[Any]) -> None:
    """Add each value to table[row, column] in place; values for the same cell add up."""
    # bincount is faster than np.add.at for millions of numbers.
    total = np.bincount(row * table.shape[1] + column, value, table.size)
    table += total.reshape(table.shape).astype(table.dtype)


def _busy(uses: Sequence[tuple[Ints, Floats, Floats]], links: int) -> Floats:
    """Return each link's seconds with at least one flow, shape (links,), from batches of (link row, start, end) [s]."""
    if not uses:
        return np.zeros(links)
    link, enter, end = (np.concatenate(columns) for columns in zip(*uses, strict=True))
    return lengths_by_key(link, enter, end, links)
