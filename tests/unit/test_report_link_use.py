"""Bytes per bin and busy time of links, on flows small enough to add up by hand."""

from dataclasses import replace

import numpy as np
import pytest

from simulator.basics.intervals import length, lengths_by_key
from simulator.collectives.algorithm import OPERATIONS
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Round, Schedule
from simulator.records.timeline import LinkUse, RouteLinks, Span, Timeline, TransferLog
from simulator.records.transfers import write_out
from simulator.report.numbers.bottleneck import bottleneck
from simulator.report.numbers.link_use import HOLDS_UP, cable_time, link_traffic, link_uses
from simulator.report.plots.both import bandwidth_utilization as plot_bandwidth
from simulator.report.plots.plot import CloseUp

Flow = tuple[float, float, float, int]  # bytes, enter, end, route


def log(flows: list[Flow], routes: tuple[tuple[int, ...], ...]) -> TransferLog:
    t = len(flows)
    none = np.zeros(t, np.int64)
    played = Round(none, none + 1, none, none + 1, np.zeros(t, np.bool_), none, none.reshape(t, 1) - 1)
    transfers = write_out(Schedule("broadcast", "naive", 2, 0, 1, ReductionOrder.IN_SEQUENCE, lambda: iter([played])))
    nbytes, enter, end = (np.array([flow[i] for flow in flows], np.float64) for i in range(3))
    route = np.array([flow[3] for flow in flows], np.int32)
    return TransferLog("op", transfers, nbytes, enter, end, route, RouteLinks.of(routes), ("a", "b"))


def timeline(end: float, *logs: TransferLog, links: dict[int, str] | None = None) -> Timeline:
    names = links or {}
    return Timeline("events", end, (), logs, link_names=names, link_bandwidths=dict.fromkeys(names, 100.0))


def test_a_flow_is_spread_evenly_over_its_time() -> None:
    # 60 B from 1 s to 4 s are 20 B/s; bins of 2 s hold 1 s, then 2 s of it.
    found = link_traffic(timeline(4.0, log([(60.0, 1.0, 4.0, 0)], ((7,),))), bins=2)
    assert found.numbers == (7,)
    assert found.rates.tolist() == [[20.0 / 2, 40.0 / 2]]
    assert found.nbytes.tolist() == [60.0]
    assert found.busy.tolist() == [3.0]


def test_whole_bins_between_the_ends_are_filled_and_those_outside_are_exactly_empty() -> None:
    found = link_traffic(timeline(10.0, log([(70.0, 1.5, 8.5, 0)], ((0,),))), bins=10)
    assert found.rates[0].tolist() == [0.0, 5.0, 10.0, 10.0, 10.0, 10.0, 10.0, 10.0, 5.0, 0.0]


def test_every_link_of_a_route_carries_the_bytes() -> None:
    found = link_traffic(timeline(1.0, log([(8.0, 0.0, 1.0, 0), (4.0, 0.0, 1.0, 1)], ((0, 2), (2,)))), bins=1)
    assert dict(zip(found.numbers, found.nbytes.tolist(), strict=True)) == {0: 8.0, 2: 8.0 + 4.0}


def test_busy_time_is_the_union_not_the_sum() -> None:
    flows = [(1.0, 0.0, 4.0, 0), (1.0, 1.0, 2.0, 0), (1.0, 3.0, 5.0, 0), (1.0, 7.0, 8.0, 0)]
    found = link_traffic(timeline(8.0, log(flows, ((0,),))))
    assert found.busy.tolist() == [5.0 + 1.0]


def test_lengths_of_many_unions_at_once_are_those_of_each_alone() -> None:
    draw = np.random.default_rng(1)
    key, start = draw.integers(0, 7, 200), draw.integers(0, 500, 200).astype(np.float64)
    end = start + draw.integers(0, 12, 200)
    # Key 7 has no interval; whole numbers add up without rounding.
    alone = [length(zip(start[key == k].tolist(), end[key == k].tolist(), strict=True)) for k in range(8)]
    assert lengths_by_key(key, start, end, 8).tolist() == alone


def test_busy_time_of_a_link_ignores_the_others() -> None:
    flows = [(1.0, 0.0, 9.0, 0), (1.0, 2.0, 3.0, 1)]
    found = link_traffic(timeline(9.0, log(flows, ((0,), (1,)))))
    assert found.busy.tolist() == [9.0, 1.0]


def test_flows_of_different_collectives_add_up() -> None:
    one, other = log([(10.0, 0.0, 1.0, 0)], ((3,),)), log([(30.0, 0.5, 1.0, 0)], ((3,),))
    found = link_traffic(timeline(1.0, one, other), bins=2)
    assert found.rates.tolist() == [[10.0, 10.0 + 60.0]]


def test_transfers_without_bytes_use_no_link() -> None:
    assert len(link_traffic(timeline(1.0, log([(0.0, 0.5, 0.5, 0)], ((0,),))))) == 0


def test_a_row_times_the_bin_length_is_the_link_s_bytes() -> None:
    random = np.random.default_rng(0)
    flows: list[Flow] = []
    for _ in range(500):
        enter = random.uniform(0, 9)
        flows.append((random.uniform(1, 9), enter, enter + random.uniform(1e-6, 1), int(random.integers(0, 3))))
    found = link_traffic(timeline(10.0, log(flows, ((0, 1), (1, 2), (2,)))), bins=37)
    assert found.rates.sum(axis=1) * (found.edges[1] - found.edges[0]) == pytest.approx(found.nbytes, rel=1e-12)


def test_chosen_links_only() -> None:
    played = timeline(1.0, log([(8.0, 0.0, 1.0, 0)], ((0, 1),)), links={0: "a->b", 1: "b->c"})
    assert link_traffic(played, links={"b->c"}).names == ("b->c",)
    assert link_traffic(played).bandwidths.tolist() == [100.0, 100.0]


def test_uses_are_added_up_where_the_engine_noted_none() -> None:
    played = timeline(4.0, log([(60.0, 1.0, 4.0, 0)], ((7, 9),)), links={7: "a->b", 8: "idle", 9: "b->c"})
    assert link_uses(played) == (LinkUse("a->b", 100.0, 60.0, 3.0), LinkUse("b->c", 100.0, 60.0, 3.0))


def test_directions_that_take_turns_add_up_and_those_at_the_same_time_count_once() -> None:
    """100 B/s: one way 0 to 2 s at a half and 2 to 4 s in full, the other way 3 to 5 s in full: 1 + 2 + 1 s."""
    flows = [(100.0, 0.0, 2.0, 0), (200.0, 2.0, 4.0, 0), (200.0, 3.0, 5.0, 1)]
    played = timeline(5.0, log(flows, ((0,), (1,))), links={0: "a->b", 1: "b->a"})
    assert cable_time(played, "a->b") == cable_time(played, "b->a") == pytest.approx(1 + 2 + 1)


def test_no_part_of_the_time_has_more_than_the_bandwidth_and_no_byte_is_lost() -> None:
    """Max-min shares on 100 B/s: a flow of 75 B from 0 s meets a flow of 25 B from 0.5 s; rates are 100, 50 and 50.

    The mean rate of the first is 75 B/s over 1 s, of the second 50 B/s over 0.5 s: their sum is 125 B/s.
    """
    flows = log([(75.0, 0.0, 1.0, 0), (25.0, 0.5, 1.0, 0)], ((0,),))
    found = link_traffic(timeline(1.0, flows, links={0: "a->b"}), bins=4)
    assert found.rates.tolist() == [[100.0, 100.0, 100.0, 100.0]]
    later = link_traffic(timeline(2.0, flows, links={0: "a->b"}), bins=8)
    assert later.rates.max() <= 100.0
    assert later.rates.sum() * 0.25 == pytest.approx(100.0)


def test_no_bins_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        link_traffic(timeline(1.0), bins=0)


def uses(*shares: float) -> Timeline:
    """Links of 1 GB/s in a run of 1 s, each used to a share and busy all the time."""
    links = tuple(LinkUse(f"g{i}->s", 1e9, 1e9 * share, 1.0) for i, share in enumerate(shares))
    return Timeline("events", 1.0, (), (), (), links, {i: link.name for i, link in enumerate(links)})


@pytest.mark.parametrize(
    ("shares", "expected"),
    [
        ((0.9, 0.9, 0.88), "All 3 links use 88 % to 90 % of their bandwidth over 1 s"),
        (
            (1.0, 0.25, 0.1),
            "Bottleneck: g0->s uses 100 % of its bandwidth over 1 s; the other 2 links use at most 25 %",
        ),
        (
            (1.0, 1.0, 0.1),
            "Bottleneck: g0->s and g1->s use 100 % of their bandwidth over 1 s; the other link uses at most 10 %",
        ),
        ((0.5,), "Bottleneck: g0->s, the only link used, uses 50 % of its bandwidth over 1 s"),
        ((0.04,), "No link is the bottleneck: the only link used, g0->s, uses 4 % of its bandwidth over 1 s"),
        (
            (0.04, 0.01),
            "No link is the bottleneck: the busiest link, g0->s, uses 4 % of its bandwidth over 1 s; the other link "
            "uses at most 1 %",
        ),
        (
            (*[0.04] * 8, *[0.001] * 4),
            "No link is the bottleneck: the busiest links, 8 x g -> s, use 4 % of their bandwidth over 1 s; the "
            "other 4 links use at most 0.1 %",
        ),
    ],
)
def test_the_title_names_the_bottleneck(shares: tuple[float, ...], expected: str) -> None:
    assert plot_bandwidth.finding(uses(*shares).links, 1.0) == expected


def test_collectives_that_are_on_no_link_are_told() -> None:
    """Two of three had a closed form: a link that carried little is not what held the step up."""
    names = ("gather", "scatter", "sum")
    spans = [
        Span(0, "s", name, kind, 0.0, 1.0, closed_form=name != "sum")
        for name, kind in zip(names, OPERATIONS, strict=False)
    ]
    some = Timeline("events", 1.0, (*spans, Span(0, "s", "layer", "forward", 0.0, 1.0)))
    assert plot_bandwidth.on_links(some) == "closed forms replace 2 of 3 collectives"
    none = Timeline("events", 1.0, tuple(replace(span, closed_form=False) for span in spans))
    assert plot_bandwidth.on_links(none) == ""


def test_links_that_are_alike_share_a_row_and_the_others_have_their_own() -> None:
    slow = LinkUse("g3->s", 1e8, 5e7, 1.0)
    drawn = plot_bandwidth.figure(Timeline("events", 1.0, (), links=(*uses(*[0.5] * 3, 0.9).links, slow)))
    names = [label.get_text() for label in drawn.axes[0].get_yticklabels()]
    assert names == ["g3->s  858.3 MiB", "3 x g -> s  476.8 MiB each", "g3->s  47.68 MiB"]


def test_at_most_forty_rows_are_shown_and_the_rest_counted() -> None:
    drawn = plot_bandwidth.figure(uses(*[0.99 * 0.95**i for i in range(128)]))
    assert len(drawn.axes[0].get_yticks()) == 40
    assert "most used first (88 more not shown)" in drawn.axes[0].get_title(loc="left")


def test_where_closed_forms_keep_collectives_off_the_links_no_bottleneck_is_named() -> None:
    spans = [Span(0, "s", name, "all_reduce", 0.0, 1.0, closed_form=name == "two") for name in ("one", "two")]
    some = replace(uses(0.4, 0.1), spans=tuple(spans))
    assert plot_bandwidth.figure(some).get_suptitle().replace("\n", " ") == (
        "No bottleneck named: closed forms replace 1 of 2 collectives; the other collectives use at most 40 % of a "
        "link's bandwidth"
    )


def test_a_link_that_simulated_transfers_alone_make_the_bottleneck_is_named_despite_closed_forms() -> None:
    """The report and the answer's reason name a link from 45 % use on, and so does the picture."""
    spans = [Span(0, "s", name, "all_reduce", 0.0, 1.0, closed_form=name == "two") for name in ("one", "two")]
    some = replace(uses(0.9, 0.1), spans=tuple(spans))
    found = bottleneck(some)
    assert found is not None
    assert (found.link, found.limiting_time_s >= HOLDS_UP) == ("g0->s", True)
    assert plot_bandwidth.figure(some).get_suptitle().replace("\n", " ") == (
        "Bottleneck: g0->s uses 90 % of its bandwidth over 1 s; the other link uses at most 10 %; closed forms replace "
        "1 of 2 collectives"
    )


def test_of_too_many_transfers_the_bottleneck_alone_is_drawn_and_called_so() -> None:
    # An engine that follows so many notes one link; it is not the only one that was used.
    large = replace(uses(0.3), transfers=6_000_000)
    assert plot_bandwidth.figure(large).get_suptitle().replace("\n", " ") == (
        "No link is the bottleneck: the busiest link, g0->s, uses 30 % of its bandwidth over 1 s; drawn: transfers "
        "over this link, of 6,000,000 transfers"
    )


def test_where_closed_forms_leave_next_to_nothing_on_links_the_picture_says_why() -> None:
    spans = [Span(0, "s", name, "all_reduce", 0.0, 1.0, closed_form=name == "two") for name in ("one", "two")]
    nearly = replace(uses(1e-6), spans=tuple(spans), transfers=1)
    drawn = plot_bandwidth.PLOT.figure(CloseUp(nearly, 1.0))
    assert drawn is not None
    assert drawn.axes == []
    assert drawn.get_suptitle().startswith(
        "No bottleneck named: closed forms replace 1 of 2 collectives, and links carry almost"
    )


def test_heat_map_rows_are_shares_of_the_link_s_bandwidth() -> None:
    played = timeline(1.0, log([(50.0, 0.0, 0.5, 0)], ((0,),)), links={0: "a->b"})
    drawn = plot_bandwidth.figure(played)
    # What carries nothing is left out, so that the least use stands out from it.
    shares = np.ma.filled(drawn.axes[0].images[0].get_array(), 0.0)
    # 50 B in 0.5 s over a link of 100 B/s: full for the first half.
    assert shares[0, :200] == pytest.approx(1.0)
    assert shares[0, 200:] == pytest.approx(0.0)


def test_nothing_carried_is_refused() -> None:
    with pytest.raises(ValueError, match="no link carried anything"):
        plot_bandwidth.figure(Timeline("events", 1.0, ()))
