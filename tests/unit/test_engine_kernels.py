"""Kernels beside communication: slowed for exactly as long as a collective of their rank is in flight."""

from __future__ import annotations

import pytest

from simulator.collectives.algorithm import CollectiveRequest
from simulator.engine.clock import Clock
from simulator.engine.compute_stream import Kernels
from simulator.engine.events import execute
from simulator.records.operation import Compute
from simulator.records.program import Program
from tests.playing import planned, star


def test_progress_is_integrated_over_both_paces() -> None:
    """4 s of work, from 1 s to 3 s at half pace: 1 + 2/2 done at 3, the last 2 s at full pace."""
    clock = Clock()
    kernels = Kernels(clock)
    ends: list[float] = []
    kernels.run(4.0, 8.0).callbacks.append(lambda _: ends.append(clock.now))
    clock.when(1.0, lambda: kernels.communicate(+1))
    clock.when(3.0, lambda: kernels.communicate(-1))
    clock.play()
    assert ends == [pytest.approx(3.0 + 2.0)]


def test_a_second_collective_beside_the_first_slows_no_further() -> None:
    clock = Clock()
    kernels = Kernels(clock)
    ends: list[float] = []
    kernels.run(1.0, 2.0).callbacks.append(lambda _: ends.append(clock.now))
    for at, change in ((0.0, +1), (0.5, +1), (1.0, -1), (1.5, -1)):
        clock.when(at, lambda change=change: kernels.communicate(change))  # type: ignore[misc]
    clock.play()
    # Half pace from 0 to 1.5: 0.75 done; the rest at full pace.
    assert ends == [pytest.approx(1.75)]


def test_a_kernel_slows_in_a_played_program_and_the_transfers_do_not() -> None:
    cluster = star(2)
    alone = planned(cluster, "ring", CollectiveRequest("all_reduce", 2, 1000)).program.ranks[0][0]
    time = execute(Program(((alone,), (alone,))), cluster).end
    kernel = Compute("work", duration=time, contended=2 * time)
    timeline = execute(Program(((kernel, alone), (kernel, alone))), cluster)
    spans = {s.name: s for s in timeline.spans if s.rank == 0}
    assert spans[alone.name].end == pytest.approx(time, rel=1e-9)
    # Half done when the collective ends; the other half at full pace.
    assert spans["work"].end == pytest.approx(1.5 * time, rel=1e-9)
