"""Flows on shared links: against SimGrid's figures, and against a fluid solver written out here."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path as FilePath

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.engine.clock import Clock
from simulator.engine.fabric import Fabric, Flow
from simulator.engine.max_min import rates, rates_of
from simulator.engine.path import Path

GOLDEN = FilePath(__file__).parents[1] / "golden" / "fair_share_cases.csv"


@dataclass(frozen=True, slots=True)
class Sent:
    """A flow to be sent: when its latency begins, how much, where."""

    start: float
    nbytes: float
    links: tuple[int, ...]
    weights: tuple[float, ...] = ()
    latency: float = 0.0
    cap: float = inf

    @property
    def takes(self) -> tuple[float, ...]:
        return self.weights or (1.0,) * len(self.links)


class Sender:
    """Owns all flows of a test."""

    def __init__(self, flows: list[Sent]) -> None:
        self.sizes: Sequence[float] = [flow.nbytes for flow in flows]
        self.ends = [inf] * len(flows)
        self.on_end: tuple[Callable[[Flow], None], ...] = (self._ended,)

    def _ended(self, flow: Flow) -> None:
        self.ends[flow.number] = flow.end


def path_of(flow: Sent, capacity: list[float]) -> Path:
    alone = min((capacity[link] / w for link, w in zip(flow.links, flow.takes, strict=True)), default=inf)
    return Path(flow.links, flow.takes, flow.latency, min(alone, flow.cap), flow.cap < alone)


def played(flows: list[Sent], capacity: list[float]) -> list[float]:
    """When each flow ends on the fabric."""
    clock = Clock()
    fabric, sender = Fabric(clock, capacity), Sender(flows)
    for number, flow in enumerate(flows):
        launched = Flow(number, path_of(flow, capacity), flow.start + flow.latency, sender)
        clock.when(flow.start, partial(fabric.launch, launched))
    clock.play()
    return sender.ends


def max_min(flows: list[Sent], active: list[int], capacity: list[float]) -> dict[int, float]:
    """Rates by the definition: the flow that can get least is given its share, then the next, with what is left."""
    rates: dict[int, float] = {}
    left = list(capacity)
    while len(rates) < len(active):
        open_ = [i for i in active if i not in rates]
        load = [0.0] * len(capacity)
        for i in open_:
            for link, weight in zip(flows[i].links, flows[i].takes, strict=True):
                load[link] += weight
        bound = {i: min([flows[i].cap, *(left[link] / load[link] for link in flows[i].links)]) for i in open_}
        least = min(bound.values())
        chosen = next(i for i in open_ if bound[i] == least)
        rates[chosen] = least
        for link, weight in zip(flows[chosen].links, flows[chosen].takes, strict=True):
            left[link] -= weight * least
    return rates


def fluid(flows: list[Sent], capacity: list[float]) -> list[float]:
    """When each flow ends: constant rates between arrivals and ends."""
    enter = [flow.start + flow.latency for flow in flows]
    left = [flow.nbytes for flow in flows]
    ends = [inf] * len(flows)
    now = min(enter)
    while inf in ends:
        active = [i for i in range(len(flows)) if enter[i] <= now and ends[i] == inf]
        rates = max_min(flows, active, capacity)
        arrivals = [enter[i] - now for i in range(len(flows)) if enter[i] > now]
        finishes = {i: left[i] / rates[i] for i in active}
        step = min([*arrivals, *finishes.values()])
        for i in active:
            left[i] -= rates[i] * step
            if finishes[i] <= step * (1 + 1e-13):
                ends[i] = now + step
        following = [e for e in enter if e > now]
        now = min(following) if following and min(following) - now <= step else now + step
    return ends


def cases() -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = defaultdict(list)
    with GOLDEN.open() as file:
        for row in csv.DictReader(file):
            found[row["case"]].append(row)
    return found


@pytest.mark.parametrize("name", cases())
def test_simgrids_finish_times_are_met(name: str) -> None:
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


@st.composite
def crowds(draw: st.DrawFn, least: int = 1, most: int = 12) -> tuple[list[Sent], list[float]]:
    capacity = draw(st.lists(st.sampled_from([1.0, 2.0, 3.0, 7.5, 10.0, 100.0]), min_size=1, max_size=6))
    flows = []
    for _ in range(draw(st.integers(least, most))):
        links = tuple(draw(st.sets(st.integers(0, len(capacity) - 1), min_size=1, max_size=3)))
        flows.append(
            Sent(
                start=draw(st.sampled_from([0.0, 0.0, 0.0, 0.5, 1.0, 2.25, 7.0])),
                nbytes=draw(st.one_of(st.sampled_from([1.0, 2.0, 10.0]), st.floats(0.01, 50.0))),
                links=links,
                weights=tuple(draw(st.sampled_from([1.0, 1.0, 3.0])) for _ in links),
                latency=draw(st.sampled_from([0.0, 0.0, 0.25, 1.0])),
                cap=draw(st.sampled_from([inf, inf, 0.5, 1.0, 4.0])),
            )
        )
    return flows, capacity


@settings(max_examples=400, deadline=None, derandomize=True)
@given(crowds())
def test_random_crowds_meet_the_fluid_solver(crowd: tuple[list[Sent], list[float]]) -> None:
    flows, capacity = crowd
    assert played(flows, capacity) == pytest.approx(fluid(flows, capacity), rel=1e-9)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(crowds(least=55, most=75))
def test_large_crowds_meet_the_fluid_solver_too(crowd: tuple[list[Sent], list[float]]) -> None:
    # From 60 flows on the fabric solves them in arrays, and goes back to one by one as they end.
    flows, capacity = crowd
    assert played(flows, capacity) == pytest.approx(fluid(flows, capacity), rel=1e-9)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(crowds(most=30))
def test_rates_in_arrays_are_max_min_fair(crowd: tuple[list[Sent], list[float]]) -> None:
    flows, capacity = crowd
    expected = max_min(flows, list(range(len(flows))), capacity)
    paths = [path_of(flow, capacity) for flow in flows]
    fair = pytest.approx([expected[i] for i in range(len(flows))], rel=1e-12)
    assert rates(paths, capacity).tolist() == fair
    rows = [(i, link, weight) for i, p in enumerate(paths) for link, weight in zip(p.links, p.weights, strict=True)]
    flow, link, weight = (np.array(column) for column in zip(*rows, strict=True))
    alone = np.array([path.rate for path in paths])
    assert rates_of((flow, link, weight), alone, np.array(capacity)).tolist() == fair


@settings(max_examples=100, deadline=None, derandomize=True)
@given(crowds(), st.sampled_from([2.0, 0.5, 1024.0]))
def test_faster_links_and_shorter_latencies_scale_all_times_bit_for_bit(
    crowd: tuple[list[Sent], list[float]], k: float
) -> None:
    flows, capacity = crowd
    scaled = [Sent(f.start / k, f.nbytes, f.links, f.weights, f.latency / k, f.cap * k) for f in flows]
    assert played(scaled, [k * c for c in capacity]) == [end / k for end in played(flows, capacity)]


def test_two_flows_on_one_link_take_twice_as_long() -> None:
    assert played([Sent(0.0, 10.0, (0,)), Sent(0.0, 10.0, (0,))], [5.0]) == [4.0, 4.0]


def test_who_comes_later_takes_half_from_then_on() -> None:
    # The first has 10 of 20 left after 1 s at 10 B/s; both then get 5 B/s, the second alone 10 B/s at the end.
    ends = played([Sent(0.0, 20.0, (0,)), Sent(1.0, 15.0, (0,))], [10.0])
    assert ends == [1.0 + 10.0 / 5.0, 3.0 + 5.0 / 10.0]


def test_a_flow_that_waits_out_its_latency_loads_no_link() -> None:
    ends = played([Sent(0.0, 10.0, (0,)), Sent(0.0, 10.0, (0,), latency=1.0)], [10.0])
    assert ends == [1.0, 2.0]


def test_a_later_launch_that_enters_earlier_goes_first() -> None:
    # The first holds the link for its latency of 3 s, but enters only then: the second is through by then.
    ends = played([Sent(0.0, 10.0, (0,), latency=3.0), Sent(1.0, 10.0, (0,))], [10.0])
    assert ends == [4.0, 2.0]


def test_what_a_capped_flow_leaves_goes_to_the_others() -> None:
    ends = played([Sent(0.0, 10.0, (0,), cap=1.0), Sent(0.0, 90.0, (0,))], [10.0])
    assert ends == [10.0, 10.0]


def test_additions_at_one_receiver_share_its_hbm_together() -> None:
    # Link 2 is the HBM of 60 B/s; each of two flows at rate x takes 3 x, so x = 10 though each link would give 100.
    flows = [Sent(0.0, 100.0, (0, 2), (1.0, 3.0)), Sent(0.0, 100.0, (1, 2), (1.0, 3.0))]
    assert played(flows, [100.0, 100.0, 60.0]) == [10.0, 10.0]
    assert played(flows[:1], [100.0, 100.0, 60.0]) == [5.0]


def test_a_flow_that_arrives_as_another_ends_never_shares() -> None:
    ends = played([Sent(0.0, 10.0, (0,)), Sent(1.0, 10.0, (0,)), Sent(2.0, 10.0, (0,))], [10.0])
    assert ends == [1.0, 2.0, 3.0]


def test_flows_of_no_bytes_end_when_they_enter() -> None:
    ends = played([Sent(0.0, 0.0, (0,), latency=2.0), Sent(0.0, 40.0, (0,)), Sent(1.0, 0.0, (0,))], [10.0])
    assert ends == [2.0, 4.0, 1.0]


def test_flows_that_end_a_hair_apart_are_not_thrown_together() -> None:
    # Both get 5 B/s for 2 s; the millionth of a byte that is left then flows at 10 B/s.
    ends = played([Sent(0.0, 10.0, (0,)), Sent(0.0, 10.0 + 1e-6, (0,))], [10.0])
    assert ends == pytest.approx([2.0, 2.0 + 1e-7], rel=1e-13)
