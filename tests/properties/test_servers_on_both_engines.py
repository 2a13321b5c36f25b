"""Parameter servers, few or many, on both engines: whoever plays them gives the same answer, and nobody stumbles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.events import execute as events
from simulator.engine.play import play
from simulator.records.operation import Compute
from simulator.records.program import Program
from simulator.step.plan import plan_step
from tests.engines import farthest
from tests.training import TINY, step

CLOSE = 1e-9
# A single layer shows all that servers do.
MODEL = replace(TINY, num_layers=1)
# Speeds of stragglers.
PACES = ({}, {1: 0.4})


@dataclass(frozen=True, slots=True)
class Servers:
    """A cell of the grid: workers and the servers that they go to."""

    workers: int
    servers: int
    on_workers: bool
    slow: int
    asynchronous: bool = False

    def cluster(self) -> Cluster:
        """A star with a port for each server of its own."""
        return build("star_100g", self.workers, servers=0 if self.on_workers else self.servers, stragglers=self.pace)

    @property
    def pace(self) -> dict[int, float]:
        """Speed of each straggler."""
        return PACES[self.slow]

    def training(self, cluster: Cluster) -> Program:
        """A step; three where nobody waits, for every other number of servers with a bound on staleness."""
        facts = {"servers": self.servers, "servers_on": "workers" if self.on_workers else "own"}
        if self.asynchronous:
            facts |= {"asynchronous": True, "steps": 3, "staleness": 1 if self.servers % 2 else None}
        return plan_step(cluster, step("parameter_server", MODEL, **facts)).program

    def collective(self, cluster: Cluster) -> Program:
        """An all-reduce, to which a straggler comes late."""
        on = "workers" if self.on_workers else "own"
        request = CollectiveRequest("all_reduce", self.workers, 10_000, servers=self.servers, servers_on=on)
        op = plan(cluster, Task(request, "parameter_server", tuple(range(self.workers)))).ops[0]
        late = [1e-6 / self.pace.get(rank, 1.0) for rank in range(self.workers)]
        return Program(tuple((Compute("late", wait, stream=op.stream), op) for wait in late))


def grid() -> Iterator[Servers]:
    """2 to 9 workers, 1 to 8 servers, on machines of their own or on workers, with and without a straggler."""
    for workers in (2, 3, 4, 5, 9):
        for servers in range(1, 9):
            for slow in range(len(PACES)):
                yield Servers(workers, servers, False, slow)
                yield Servers(workers, servers, False, slow, asynchronous=True)
                if servers <= workers:
                    yield Servers(workers, servers, True, slow)


GRID = tuple(grid())
# More servers than half the workers is where there are more kinds of servers than of workers.
FEW = [cell for cell in GRID if cell.workers == 2 and (not cell.asynchronous or cell.servers in (2, 3))]


def hold(cell: Servers) -> None:
    """Whatever `auto` takes gives the events engine's answer."""
    cluster = cell.cluster()
    programs = [cell.training(cluster)] if cell.asynchronous else [cell.training(cluster), cell.collective(cluster)]
    for program in programs:
        expected = events(program, cluster, limit_memory=False)
        assert farthest(expected, play("auto", program, cluster, limit_memory=False)) <= CLOSE, cell


def test_the_grid_is_whole_and_few_of_it_cover_every_setting() -> None:
    assert len(GRID) >= 160
    for name in ("servers", "on_workers", "slow", "asynchronous"):
        assert {getattr(cell, name) for cell in FEW} == {getattr(cell, name) for cell in GRID}, name


def test_as_many_servers_as_anybody_asks_for() -> None:
    for cell in FEW:
        hold(cell)


@pytest.mark.long
@pytest.mark.parametrize("cell", GRID, ids=repr)
def test_as_many_servers_as_anybody_asks_for_on_the_whole_grid(cell: Servers) -> None:
    hold(cell)
