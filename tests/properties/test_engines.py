"""The compiled engine gives the events engine's answer to 1e-9, whether ranks that are alike are played once or not."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.basics.arrays import Floats
from simulator.basics.errors import DeadlockError, ScenarioWarning, SimulationError
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.compiled import engine, library
from simulator.engine.compiled.engine import execute as compiled
from simulator.engine.events import execute as events
from simulator.engine.play import play
from simulator.records.operation import Compute
from simulator.records.program import Program
from simulator.records.timeline import AllocatorEvent, Timeline
from simulator.report.numbers.link_use import link_uses
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from tests.engines import ROUNDING, farthest, left_behind
from tests.many import many
from tests.programs import FAMILIES, drawn

CLOSE = 1e-9
NEVER = 2**62
# Cases of each family in a block, of which `make test` has one, and in a long run; with nine families 81 and, for a
# release, 23,562 in all.
BLOCK, BLOCKS, MANY = 9, 3, many(2600)


@dataclass(frozen=True, slots=True)
class Tally:
    """How many cases were played, and of these on unlike links."""

    played: int = 0
    unlike: int = 0


def compared(family: str, seeds: range) -> Tally:
    """Play cases three ways: by events, every rank in the core, and one rank of each class in it."""
    tally = Tally()
    for seed in seeds:
        case = drawn(family, seed)
        if case is None:
            continue
        expected = events(case.program, case.cluster, jitter=case.jitter, limit_memory=False)
        left = left_behind(expected)
        for reduced_from in (0, NEVER):
            played = compiled(
                case.program, case.cluster, jitter=case.jitter, limit_memory=False, reduced_from=reduced_from
            )
            assert left.distance(left_behind(played)) <= CLOSE, (family, seed, reduced_from)
        bandwidths = case.cluster.router.bandwidth
        unlike = len({bandwidths[link] for link in expected.link_names}) > 3
        tally = Tally(tally.played + 1, tally.unlike + unlike)
    # `pytest -rP` shows it.
    print(f"{family}: {tally.played} played, {tally.unlike} on unlike links")  # noqa: T201
    return tally


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, BLOCKS))])
@pytest.mark.one_of(3)
def test_both_engines_give_one_answer(family: str, block: int) -> None:
    compared(family, range(block * BLOCK, (block + 1) * BLOCK))


def test_several_flows_of_one_collective_are_handed_over_together() -> None:
    """Computed while nobody else was there, three flows leave one port, which HBM holds far below its rate."""
    compared("zero3 with copies", range(100_642, 100_643))


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block", range(20))
def test_both_engines_give_one_answer_to_many(family: str, block: int) -> None:
    size = MANY // 20
    compared(family, range(100_000 + block * size, 100_000 + (block + 1) * size))


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 100), marks=pytest.mark.long)])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.one_of(3)
def test_the_busiest_link_alone_is_told_as_in_the_books_of_all(
    monkeypatch: pytest.MonkeyPatch, family: str, seeds: range
) -> None:
    """Where transfers are too many for books of all links."""
    for seed in seeds:
        case = drawn(family, seed)
        if case is None:
            continue
        expected = compiled(case.program, case.cluster, jitter=case.jitter, limit_memory=False)
        books = {use.name: use for use in link_uses(expected)}
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_MAX_BOOKED_TRANSFERS", 0)
            told = compiled(
                case.program, case.cluster, jitter=case.jitter, limit_memory=False, reduced_from=seed % 2 * NEVER
            ).links
        longest = max((use.nbytes / use.bandwidth for use in books.values()), default=0.0)
        assert (longest > 0.0) == bool(told), (family, seed)
        for use in told:
            assert use.nbytes == pytest.approx(books[use.name].nbytes, rel=1e-12), (family, seed)
            assert use.nbytes / use.bandwidth == pytest.approx(longest, rel=1e-12), (family, seed)
            assert use.busy == pytest.approx(books[use.name].busy, rel=1e-9), (family, seed)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_enough_cases_and_unlike_links_in_half_of_them(family: str) -> None:
    """Of 216 draws 200 are cases, and links are unlike where half of all draws ask for it."""
    cases = [case for case in (drawn(family, seed) for seed in range(216)) if case is not None]
    assert len(cases) >= 200
    unlike = sum(_slowed(case.cluster) for case in cases)
    assert 0.4 * len(cases) <= unlike <= 0.6 * len(cases)


def _slowed(cluster: Cluster) -> bool:
    """Whether some link is slower than its like by a share that no shipped topology has."""
    return any(bandwidth % 1e6 for bandwidth in cluster.router.bandwidth)


@pytest.mark.parametrize(("ranks", "seed"), [(64, 1), (512, 2), (4096, 3)])
def test_one_slower_link_changes_a_ring_as_the_recurrence_says(ranks: int, seed: int) -> None:
    """Written out: a chunk enters a hop when it has come and the hop is free; one random hop is 1 % slower.

    All other hops take (a + c) a round, so the last chunk ends when it has gone over the slow hop as often as it must.
    """
    generator = np.random.default_rng(seed)
    slow = int(generator.integers(ranks))
    cluster = build("star_100g", ranks, link_factors={f"gpu{slow}->switch0": 0.99})
    elements, rounds = 64 * ranks, 2 * (ranks - 1)
    program = plan(
        cluster, Task(CollectiveRequest("all_reduce", ranks, elements), "ring", tuple(range(ranks)), "float32")
    ).program
    # Two hops of 5 us each and 64 float32 at 12.5 GB/s (topologies/star_100g.yaml).
    takes = np.full(ranks, 256 / 12.5e9)
    takes[slow] /= 0.99
    end = np.zeros(ranks)
    for _ in range(rounds):
        end = np.maximum(np.roll(end, 1) + 10e-6, end) + takes
    found = compiled(program, cluster, keep=())
    assert found.end == pytest.approx(end.max(), rel=1e-11)
    plain = build("star_100g", ranks)
    assert found.end > compiled(program, plain, keep=()).end


def test_a_flow_group_that_enters_at_once_gets_its_exact_shares() -> None:
    """Three flows leave each port together, each at a third: direct's closed form on a star is 2 (a + 3 S / (4 B))."""
    cluster = build("star_100g", 4)
    request = CollectiveRequest("all_reduce", 4, 4_000_000)
    program = plan(cluster, Task(request, "direct", (0, 1, 2, 3), "float32")).program
    found = compiled(program, cluster)
    assert farthest(events(program, cluster), found) <= CLOSE
    assert found.end == pytest.approx(2 * (10e-6 + 3 * 16e6 / 4 / 12.5e9), rel=1e-9)


def test_flows_that_meet_in_disorder_are_followed() -> None:
    """Ranks that come one after the other share links now with one, now with two others."""
    cluster = build("star_100g", 4)
    ops = plan(cluster, Task(CollectiveRequest("all_reduce", 4, 1000), "direct", (0, 1, 2, 3), "float32")).ops
    lists = [(Compute("late", rank * 1e-7, stream="communication"), *ops) for rank in range(4)]
    program = Program(tuple(lists))
    assert farthest(events(program, cluster), compiled(program, cluster)) <= CLOSE


def test_two_streams_that_share_a_card_are_played_together() -> None:
    """Two rings over the same ports at once, one begun later, and a third behind the first one's end."""
    cluster = build("star_100g", 4)
    ring = plan(cluster, Task(CollectiveRequest("all_reduce", 4, 400_000), "ring", (0, 1, 2, 3), "float32")).ops[0]
    one = (
        replace(ring, name="first", stream="a"),
        Compute("kernel", 3e-5, stream="compute"),
        replace(ring, name="second", stream="b", after=("kernel",)),
        replace(ring, name="third", stream="a"),
        Compute("last", 1e-5, stream="compute", after=("second",)),
    )
    program = Program((one,) * 4)
    expected, found = events(program, cluster), compiled(program, cluster)
    assert farthest(expected, found) <= CLOSE
    alone = compiled(Program(((one[0],),) * 4), cluster)
    assert expected.end > 1.5 * alone.end


def shared() -> tuple[Program, Cluster]:
    """Two rings over the same ports at once."""
    cluster = build("star_100g", 4)
    ring = plan(cluster, Task(CollectiveRequest("all_reduce", 4, 400_000), "ring", (0, 1, 2, 3), "float32")).ops[0]
    ops = (replace(ring, name="first", stream="a"), replace(ring, name="second", stream="b"))
    return Program((ops,) * 4), cluster


def test_nobody_waits_hours_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` says how long it would take to follow flows that share links; who asks for it gets it."""
    cluster = build("star_100g", 4)
    program = plan(cluster, Task(CollectiveRequest("all_reduce", 4, 1000), "direct", (0, 1, 2, 3), "float32")).program
    # Two phases in which each of four sends to three others.
    monkeypatch.setattr(engine, "_SECONDS_A_SHARED_FLOW", 2 * 3600 / 24)
    with pytest.raises(SimulationError, match=r"24 transfers whose .* about 2 hours; write engine: comp"):
        play("auto", program, cluster)
    assert play("compiled", program, cluster).engine == "compiled"
    assert play("events", program, cluster).engine == "events"


def test_without_a_core_the_events_engine_plays_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    program, cluster = shared()
    expected = play("auto", program, cluster)
    monkeypatch.setattr(library, "load", lambda: None)
    told = play("auto", program, cluster)
    assert (expected.engine, told.engine) == ("compiled", "events")
    assert farthest(expected, told) <= CLOSE
    with pytest.raises(SimulationError, match="the compiled engine is not there"):
        play("compiled", program, cluster)
    monkeypatch.setattr("simulator.engine.play._MOST_UNASKED", 40)
    with pytest.raises(SimulationError, match=r"events .* 48 transfers, about"):
        play("auto", program, cluster)
    facts = {"operation": "all_reduce", "algorithm": "ring", "size": "1 KiB"}
    scenario = {"name": "x", "cluster": {"topology": "star_100g", "world_size": 2}, "collective": facts}
    with pytest.warns(ScenarioWarning, match="there is no compiled core") as warned:
        simulate(load_scenario(scenario))
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(load_scenario(scenario | {"engine": "events"}))


def test_allocations_in_another_order_at_the_same_times_are_a_difference() -> None:
    """Engines may only order what happens at one moment differently where the last digits of its times differ."""
    made = [AllocatorEvent(1.0, "alloc", 0, 512, "a"), AllocatorEvent(1.0, "free", 0, 512, "a")]
    later = replace(made[0], time=float(np.nextafter(1.0, 2.0)))
    orders = (made, made[::-1], [made[1], later])
    one, swapped, told_apart = (left_behind(Timeline("events", 2.0, (), allocations={0: tuple(own)})) for own in orders)
    assert one.distance(one) == 0.0
    assert one.distance(swapped) == np.inf
    assert one.distance(told_apart) <= ROUNDING


def test_ranks_may_do_different_things() -> None:
    cluster = build("star_100g", 2)
    unlike = Program(((Compute("a", 1.0),), (Compute("a", 1.0), Compute("b", 1.0))))
    assert farthest(events(unlike, cluster), compiled(unlike, cluster)) == 0.0


def test_who_waits_for_whom_is_told_alike() -> None:
    """A rank that never comes, and one that waits for what comes behind it: the same words from both engines."""
    cluster = build("star_100g", 3)
    ring = plan(cluster, Task(CollectiveRequest("all_reduce", 3, 300), "ring", (0, 1, 2), "float32")).ops[0]
    first, second = replace(ring, name="first", stream="a"), replace(ring, name="second", stream="a")
    waits = (Compute("x", 1.0, after=("y",)), Compute("y", 1.0))
    for program in (Program(((first, second), (second, first), (first, second))), Program((waits, (), ()))):
        with pytest.raises(DeadlockError) as expected:
            events(program, cluster)
        with pytest.raises(DeadlockError) as told:
            compiled(program, cluster)
        assert str(told.value) == str(expected.value)


def test_operations_of_chosen_ranks_are_those_of_all() -> None:
    """What is kept of two ranks, and of the one that ends last, is what the whole record says of them."""
    case = drawn("stragglers", 5)
    assert case is not None
    whole = compiled(case.program, case.cluster, jitter=case.jitter, limit_memory=False)
    part = compiled(case.program, case.cluster, jitter=case.jitter, limit_memory=False, keep=(1, 2))
    last = min(whole.spans, key=lambda span: (-span.end, span.rank)).rank
    assert {span.rank for span in part.spans} == {1, 2, last}
    assert part.spans == tuple(span for span in whole.spans if span.rank in (1, 2, last))
    assert max(s.nbytes for s in part.memory) == max(s.nbytes for s in whole.memory)
    assert part.end == whole.end
    by_events = events(case.program, case.cluster, jitter=case.jitter, limit_memory=False, keep=(1, 2))
    assert {span.rank for span in by_events.spans} == {1, 2, last}


def test_closed_recurrences_of_small_rings_are_the_rounds_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A core that solves every ring by its closed recurrence, which the usual core does for large rings alone.

    Hops have unlike latencies and rates in half of the cases, and ranks come when they come. That the last digits of
    some ends differ from the usual core's is the proof that rings were solved.
    """
    solving = library.opened(library.compile_core(tmp_path / "core.so", "-DSOLVE_FROM=0"))
    # Rings whose single transfers are asked for are never solved.
    monkeypatch.setattr(engine, "_MAX_BOOKED_TRANSFERS", -1)
    monkeypatch.setattr(engine, "busiest_link", lambda _: None)
    cases = [case for case in (drawn("ring", seed) for seed in range(60)) if case is not None]
    solved = 0
    for number, case in enumerate(cases):
        facts: dict[str, Any] = {"jitter": case.jitter, "limit_memory": False}
        expected, usual = (_ends(execute(case.program, case.cluster, **facts)) for execute in (events, compiled))
        with monkeypatch.context() as patch:
            patch.setattr(library, "load", lambda: solving)
            found = _ends(compiled(case.program, case.cluster, **facts))
        assert found == pytest.approx(expected, rel=CLOSE), number
        solved += bool(np.any(found != usual))
    assert len(cases) >= 50
    assert solved >= 10


def _ends(timeline: Timeline) -> Floats:
    """Return when each operation of each rank ends [s]."""
    return np.array([span.end for span in timeline.spans])
