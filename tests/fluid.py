"""Flows on links with capacities: played by either engine's fabric, and by a solver written out here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf

import numpy as np
from hypothesis import strategies as st

from simulator.cluster.build import build
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.clock import Clock
from simulator.engine.compiled.core import run
from simulator.engine.compiled.operation_lists import Lists
from simulator.engine.compiled.problem import problem_of
from simulator.engine.compiled.rows import Rows
from simulator.engine.compiled.simulated_kinds import SimulatedKind
from simulator.engine.compiled.sized_collective import SizedCollective
from simulator.engine.fabric import Fabric, Flow
from simulator.engine.jitter import Jitter
from simulator.engine.path import Path
from simulator.engine.routes import Routes
from simulator.records.operation import Compute


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


def on_fabric(flows: list[Sent], capacity: list[float]) -> list[float]:
    """When each flow ends on the events engine's fabric."""
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


def in_core(flows: list[Sent], capacity: list[float]) -> list[float]:
    """When each flow ends in the compiled core: each is a collective of two ranks that come at its start."""
    cluster = build("star_100g", 2)
    send = plan(cluster, Task(CollectiveRequest("all_reduce", 2, 2), "ring", (0, 1), "float32")).ops[0]
    zero, none, no = np.zeros(1, np.int64), np.zeros(0, np.int64), np.zeros(1, np.bool_)
    times, one = np.ones(1, np.int64), np.ones(1, np.int64)
    rows = Rows(2, 2, times, zero, no, zero, one, zero, one, zero - 1, no, no, (none,) * 3, (none,) * 4)
    ranks, kinds, lists = 2 * len(flows), [], []
    place = np.arange(ranks) % 2
    for number, flow in enumerate(flows):
        op = replace(send, name=f"flow {number}", group=(2 * number, 2 * number + 1), after=("wait",), startup=0.0)
        path, legs = path_of(flow, capacity), np.array(flow.links, np.int64)
        routes = Routes(
            np.zeros(len(legs), np.int64),
            legs,
            np.array(flow.takes),
            np.array([flow.latency]),
            np.array([path.rate]),
            np.ones(len(legs), np.bool_),
        )
        playable = SizedCollective(rows, zero, np.array([flow.nbytes]), True, routes, False, -1)
        kinds.append(SimulatedKind([op], [op.group], [playable], 0 * place, place))
        lists.append((Compute("wait", flow.start, stream="host"), op))
    numbers = range(len(flows))
    own = Lists(
        lists, [(-1, number) for number in numbers], numbers, np.arange(ranks) // 2, np.ones(ranks), np.ones((0, ranks))
    )
    problem = problem_of(own, kinds, np.array(capacity), Jitter(), logged=numbers)
    return run(problem).through.tolist()


# Flows and capacities in, ends out.
Player = Callable[[list[Sent], list[float]], list[float]]


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


def drawn(seed: int) -> tuple[list[Sent], list[float]]:
    """Flows over links whose rates differ up to a million times; many start together or carry nothing."""
    generator = np.random.default_rng([8, seed])
    links = int(generator.integers(1, 9))
    capacity = (10.0 ** generator.uniform(0, 6 * generator.random(), links)).tolist()
    starts = [0.0, 0.0, *generator.uniform(0, 2, 3).tolist()]
    sizes = [0.0, 1.0, 1.0, 100.0, *(10.0 ** generator.uniform(-1, 5, 3)).tolist()]
    flows = []
    for _ in range(int(generator.integers(2, 15))):
        route = tuple(generator.permutation(links)[: int(generator.integers(1, min(links, 5) + 1))].tolist())
        flows.append(
            Sent(
                start=float(generator.choice(starts)),
                nbytes=float(generator.choice(sizes)),
                links=route,
                weights=tuple(float(generator.choice([1.0, 1.0, 3.0])) for _ in route),
                latency=float(generator.choice([0.0, 0.0, 1e-3, 0.25])),
                cap=float(generator.choice([inf, inf, 10.0 ** generator.uniform(0, 5)])),
            )
        )
    return flows, capacity
