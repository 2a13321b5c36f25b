"""Flows on shared links, on either engine: against SimGrid's figures, and against a fluid solver of the tests' own."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path as FilePath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.max_min import rates
from tests.fluid import Player, Sent, crowds, drawn, fluid, in_core, max_min, on_fabric, path_of

BOTH = pytest.mark.parametrize("played", [on_fabric, in_core], ids=["events", "core"])
GOLDEN = FilePath(__file__).parents[1] / "golden" / "fair_share_cases.csv"


def cases() -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    with GOLDEN.open() as file:
        for row in csv.DictReader(file):
            found[row["case"]].append(row)
    return found


@pytest.mark.parametrize("name", cases())
@BOTH
def test_simgrids_finish_times_are_met(played: Player, name: str) -> None:
    numbers: dict[str, int] = {}
    capacity: list[float] = []
    flows, finish = [], []
    for row in cases()[name]:
        hops = [hop.split(":") for hop in row["route"].split(";")]
        for link, bandwidth, _ in hops:
            if link not in numbers:
                numbers[link] = len(capacity)
                capacity.append(float(bandwidth))
        links = tuple(numbers[link] for link, _, _ in hops)
        latency = sum(float(latency) for _, _, latency in hops)
        flows.append(Sent(float(row["start_s"]), float(row["bytes"]), links, latency=latency))
        finish.append(float(row["finish_s"]))
    assert played(flows, capacity) == pytest.approx(finish, rel=1e-9)
    assert fluid(flows, capacity) == pytest.approx(finish, rel=1e-9)


def test_there_are_33_cases() -> None:
    assert len(cases()) == 33


@settings(max_examples=200, derandomize=True)
@given(crowds())
@BOTH
def test_random_crowds_meet_the_fluid_solver(played: Player, crowd: tuple[list[Sent], list[float]]) -> None:
    flows, capacity = crowd
    assert played(flows, capacity) == pytest.approx(fluid(flows, capacity), rel=1e-9)


@settings(max_examples=25, derandomize=True)
@given(crowds(least=55, most=75))
@BOTH
def test_large_crowds_meet_the_fluid_solver_too(played: Player, crowd: tuple[list[Sent], list[float]]) -> None:
    # From 60 flows on the fabric solves them in arrays, and goes back to one by one as they end.
    flows, capacity = crowd
    assert played(flows, capacity) == pytest.approx(fluid(flows, capacity), rel=1e-9)


@pytest.mark.parametrize("cases", [range(300), pytest.param(range(1000, 11_000), marks=pytest.mark.long)], ids=len)
@BOTH
def test_links_of_unlike_rates_meet_the_fluid_solver(played: Player, cases: range) -> None:
    for seed in cases:
        flows, capacity = drawn(seed)
        assert played(flows, capacity) == pytest.approx(fluid(flows, capacity), rel=1e-9), seed


@settings(max_examples=200, derandomize=True)
@given(crowds(most=30))
def test_rates_in_arrays_are_max_min_fair(crowd: tuple[list[Sent], list[float]]) -> None:
    flows, capacity = crowd
    expected = max_min(flows, list(range(len(flows))), capacity)
    paths = [path_of(flow, capacity) for flow in flows]
    fair = pytest.approx([expected[i] for i in range(len(flows))], rel=1e-12)
    assert rates(paths, capacity).tolist() == fair


@settings(max_examples=100, derandomize=True)
@given(crowds(), st.sampled_from([2.0, 0.5, 1024.0]))
@BOTH
def test_faster_links_and_shorter_latencies_scale_all_times_bit_for_bit(
    played: Player, crowd: tuple[list[Sent], list[float]], k: float
) -> None:
    flows, capacity = crowd
    scaled = [Sent(f.start / k, f.nbytes, f.links, f.weights, f.latency / k, f.cap * k) for f in flows]
    assert played(scaled, [k * c for c in capacity]) == [end / k for end in played(flows, capacity)]


@BOTH
def test_two_flows_on_one_link_take_twice_as_long(played: Player) -> None:
    assert played([Sent(0.0, 10.0, (0,)), Sent(0.0, 10.0, (0,))], [5.0]) == [4.0, 4.0]


@BOTH
def test_who_comes_later_takes_half_from_then_on(played: Player) -> None:
    # The first has 10 of 20 left after 1 s at 10 B/s; both then get 5 B/s, the second alone 10 B/s at the end.
    ends = played([Sent(0.0, 20.0, (0,)), Sent(1.0, 15.0, (0,))], [10.0])
    assert ends == [1.0 + 10.0 / 5.0, 3.0 + 5.0 / 10.0]


@BOTH
def test_a_flow_that_waits_out_its_latency_loads_no_link(played: Player) -> None:
    ends = played([Sent(0.0, 10.0, (0,)), Sent(0.0, 10.0, (0,), latency=1.0)], [10.0])
    assert ends == [1.0, 2.0]


@BOTH
def test_a_later_launch_that_enters_earlier_goes_first(played: Player) -> None:
    # The first holds the link for its latency of 3 s, but enters only then: the second is through by then.
    ends = played([Sent(0.0, 10.0, (0,), latency=3.0), Sent(1.0, 10.0, (0,))], [10.0])
    assert ends == [4.0, 2.0]


@BOTH
def test_what_a_capped_flow_leaves_goes_to_the_others(played: Player) -> None:
    ends = played([Sent(0.0, 10.0, (0,), cap=1.0), Sent(0.0, 90.0, (0,))], [10.0])
    assert ends == [10.0, 10.0]


@BOTH
def test_additions_at_one_receiver_share_its_hbm_together(played: Player) -> None:
    # Link 2 is the HBM of 60 B/s; each of two flows at rate x takes 3 x, so x = 10 though each link would give 100.
    flows = [Sent(0.0, 100.0, (0, 2), (1.0, 3.0)), Sent(0.0, 100.0, (1, 2), (1.0, 3.0))]
    assert played(flows, [100.0, 100.0, 60.0]) == [10.0, 10.0]
    assert played(flows[:1], [100.0, 100.0, 60.0]) == [5.0]


@BOTH
def test_a_flow_that_arrives_as_another_ends_never_shares(played: Player) -> None:
    ends = played([Sent(0.0, 10.0, (0,)), Sent(1.0, 10.0, (0,)), Sent(2.0, 10.0, (0,))], [10.0])
    assert ends == [1.0, 2.0, 3.0]


@BOTH
def test_flows_of_no_bytes_end_when_they_enter(played: Player) -> None:
    ends = played([Sent(0.0, 0.0, (0,), latency=2.0), Sent(0.0, 40.0, (0,)), Sent(1.0, 0.0, (0,))], [10.0])
    assert ends == [2.0, 4.0, 1.0]


@BOTH
def test_flows_that_end_a_hair_apart_are_not_thrown_together(played: Player) -> None:
    # Both get 5 B/s for 2 s; the millionth of a byte that is left then flows at 10 B/s.
    ends = played([Sent(0.0, 10.0, (0,)), Sent(0.0, 10.0 + 1e-6, (0,))], [10.0])
    assert ends == pytest.approx([2.0, 2.0 + 1e-7], rel=1e-13)
