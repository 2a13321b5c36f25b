"""The compiled engine gives the events engine's answer to 1e-9, or none; and none only where flows really meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import Request
from simulator.collectives.plan import Task, plan
from simulator.engine.compiled import engine
from simulator.engine.compiled.contention import LinkLoad
from simulator.engine.compiled.contention_filter import may_contend
from simulator.engine.compiled.declined import DeclinedError
from simulator.engine.compiled.engine import execute as compiled
from simulator.engine.events import execute as events
from simulator.engine.jitter import Jitter
from simulator.engine.play import play
from simulator.errors import SimulationError
from simulator.records.program import Compute, Program
from simulator.records.timeline import Timeline
from simulator.report.numbers.link_use import link_uses
from simulator.step.plan import plan_step
from tests.engines import farthest
from tests.programs import FAMILIES, drawn
from tests.training import TINY, step

CLOSE = 1e-9
# Cases of each family in `make test` and in a long run: 2,340 and 23,400 in all.
CASES, MANY = 260, 2600
BLOCK = 26


def meet(timeline: Timeline, cluster: Cluster, link: int) -> bool:
    """Whether two flows were on a link, or added to a rank's HBM, at once in what the events engine played."""
    links, flows = len(cluster.router.bandwidth), []
    for log in timeline.logs:
        reduce, dst = log.transfers.reduce.tolist(), log.transfers.dst.tolist()
        for number, row in enumerate(log.route_of.tolist()):
            if link < links:
                there = link in log.routes[row]
            else:
                there = reduce[number] and log.vertices[dst[number]] == cluster.ranks[link - links]
            if there:
                flows.append((float(log.enter[number]), float(log.end[number])))
    flows.sort()
    return any(later[0] < first[1] * (1 - 1e-12) for first, later in pairwise(flows) if first[1] > first[0])


def tried(program: Program, cluster: Cluster, jitter: Jitter | None) -> Timeline | int | None:
    """The compiled engine's answer, or the link on which flows would meet."""
    try:
        return compiled(program, cluster, jitter=jitter, limit_memory=False)
    except DeclinedError as error:
        return error.link


@dataclass(frozen=True, slots=True)
class Tally:
    """How many cases were played, of these accepted, and of these on unlike links."""

    played: int = 0
    accepted: int = 0
    unlike: int = 0


def compared(family: str, seeds: range) -> Tally:
    """Play cases both ways."""
    tally = Tally()
    for seed in seeds:
        case = drawn(family, seed)
        if case is None:
            continue
        expected = events(case.program, case.cluster, jitter=case.jitter, limit_memory=False)
        found = tried(case.program, case.cluster, case.jitter)
        taken = isinstance(found, Timeline)
        if isinstance(found, Timeline):
            assert farthest(expected, found) <= CLOSE, (family, seed)
        else:
            assert found is not None, (family, seed)
            assert meet(expected, case.cluster, found), (family, seed)
        bandwidths = case.cluster.router.bandwidth
        unlike = len({bandwidths[link] for link in expected.link_names}) > 3
        tally = Tally(tally.played + 1, tally.accepted + taken, tally.unlike + unlike)
    # `pytest -rP` shows it.
    print(f"{family}: accepted {tally.accepted} of {tally.played}, {tally.unlike} on unlike links")  # noqa: T201
    return tally


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block", range(CASES // BLOCK))
def test_both_engines_give_one_answer(family: str, block: int) -> None:
    """And what is declined shares the named link in what the events engine played."""
    tally = compared(family, range(block * BLOCK, (block + 1) * BLOCK))
    # Declining everything would prove nothing.
    assert tally.accepted >= 0.6 * tally.played


@pytest.mark.parametrize("seed", [100035, 100557])
def test_operations_that_began_before_a_checkpoint_are_not_solved_again(seed: int) -> None:
    """Of two co-scheduled sets the second begins within the first, and its ready time is guessed wrong."""
    assert compared("stragglers", range(seed, seed + 1)).accepted == 1


def test_co_scheduled_operations_contend_with_others_from_the_first_of_them_on() -> None:
    """Of two that share links the one that stands later in the program begins first, while others still run."""
    cluster = build("star_100g", 8, stragglers={1: 0.46101769056363173})
    facts = {"accumulation": 3, "checkpointing": "full", "algorithm": "halving_doubling", "collectives": "played"}
    sharding = {"prefetch": 1, "reshard_after_forward": False, "layers_per_unit": 2, "shard_size": 4}
    program = plan_step(cluster, step("zero3", TINY, **facts, **sharding)).program
    assert farthest(events(program, cluster), compiled(program, cluster)) <= CLOSE


def test_an_operation_is_over_when_nothing_that_begins_later_can_contend_with_it() -> None:
    """The second operation begins before the third, but has its only flow long after it, when the first one is over."""

    def load(link: int, first: float, last: float) -> Callable[[], LinkLoad]:
        return lambda: LinkLoad(*(np.array([value]) for value in (link, first, last, 1.0)))

    ops = [(0.0, 0, load(0, 1.0, 9.0)), (1.0, 1, load(1, 10.0, 20.0)), (2.0, 2, load(0, 3.0, 8.0))]
    assert list(may_contend(ops, np.ones(2))) == [(0, 2)]


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block", range(20))
def test_both_engines_give_one_answer_to_many(family: str, block: int) -> None:
    size = MANY // 20
    tally = compared(family, range(100_000 + block * size, 100_000 + (block + 1) * size))
    assert tally.accepted >= 0.6 * tally.played


@pytest.mark.parametrize("family", FAMILIES)
def test_the_busiest_link_alone_is_told_as_in_the_books_of_all(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """Where transfers are too many for books of all links."""
    for seed in range(30):
        case = drawn(family, seed)
        expected = tried(case.program, case.cluster, case.jitter) if case is not None else None
        if case is None or not isinstance(expected, Timeline):
            continue
        books = {use.name: use for use in link_uses(expected)}
        with monkeypatch.context() as patch:
            patch.setattr(engine, "_MAX_BOOKED_TRANSFERS", 0)
            told = compiled(case.program, case.cluster, jitter=case.jitter, limit_memory=False).links
        longest = max((use.nbytes / use.bandwidth for use in books.values()), default=0.0)
        assert (longest > 0.0) == bool(told), (family, seed)
        for use in told:
            assert use.nbytes == pytest.approx(books[use.name].nbytes, rel=1e-12), (family, seed)
            assert use.nbytes / use.bandwidth == pytest.approx(longest, rel=1e-12), (family, seed)
            assert use.busy == pytest.approx(books[use.name].busy, rel=1e-9), (family, seed)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_enough_cases_and_unlike_links_in_half_of_them(family: str) -> None:
    """200 cases a family can be drawn, and links are unlike where half of all draws ask for it."""
    cases = [case for case in (drawn(family, seed) for seed in range(CASES)) if case is not None]
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
        cluster, Task(Request("all_reduce", ranks, elements), "ring", tuple(range(ranks)), "float32")
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
    request = Request("all_reduce", 4, 4_000_000)
    program = plan(cluster, Task(request, "direct", (0, 1, 2, 3), "float32")).program
    found = compiled(program, cluster)
    assert farthest(events(program, cluster), found) <= CLOSE
    assert found.end == pytest.approx(2 * (10e-6 + 3 * 16e6 / 4 / 12.5e9), rel=1e-9)


def test_flows_that_meet_in_disorder_are_followed() -> None:
    """Ranks that come one after the other share links now with one, now with two others."""
    cluster = build("star_100g", 4)
    ops = plan(cluster, Task(Request("all_reduce", 4, 1000), "direct", (0, 1, 2, 3), "float32")).ops
    lists = [(Compute("late", rank * 1e-7, stream="communication"), *ops) for rank in range(4)]
    program = Program(tuple(lists))
    assert farthest(events(program, cluster), compiled(program, cluster)) <= CLOSE


def test_two_streams_that_share_a_card_are_played_together() -> None:
    """Two rings over the same ports at once, one begun later, and a third behind the first one's end."""
    cluster = build("star_100g", 4)
    ring = plan(cluster, Task(Request("all_reduce", 4, 400_000), "ring", (0, 1, 2, 3), "float32")).ops[0]
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
    ring = plan(cluster, Task(Request("all_reduce", 4, 400_000), "ring", (0, 1, 2, 3), "float32")).ops[0]
    ops = (replace(ring, name="first", stream="a"), replace(ring, name="second", stream="b"))
    return Program((ops,) * 4), cluster


def test_what_is_declined_is_told_with_link_time_and_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where flows may not be followed: two operations that contend, and one whose own flows do."""
    monkeypatch.setattr("simulator.engine.compiled.group_solver._MAX_FOLLOWED", 0)
    with pytest.raises(DeclinedError, match=r"flows of 'first' and 'second' meet on .*gpu.* at .* s") as two:
        compiled(*shared())
    assert two.value.link is not None
    cluster = build("star_100g", 4)
    ops = plan(cluster, Task(Request("all_reduce", 4, 1000), "direct", (0, 1, 2, 3), "float32")).ops
    lists = [(Compute("late", rank * 1e-7, stream="communication"), *ops) for rank in range(4)]
    with pytest.raises(DeclinedError, match=r"flows of 'all_reduce' meet on .*gpu.* at .* s"):
        compiled(Program(tuple(lists)), cluster)


@pytest.mark.parametrize(("family", "seed"), [("zero3", 8), ("groups on shared cards", 51)])
def test_who_would_follow_more_than_all_is_for_the_events_engine(
    family: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operations that share links may be solved several times over; not more often than everything once."""
    case = drawn(family, seed)
    assert case is not None
    assert compiled(case.program, case.cluster, limit_memory=False).end > 0
    monkeypatch.setattr("simulator.engine.compiled.group_solver._FREE_TO_FOLLOW", 0)
    with pytest.raises(DeclinedError, match=r"meet on .* s; .* more than all \d+ would have to be followed"):
        compiled(case.program, case.cluster, limit_memory=False)


def test_nobody_waits_hours_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` says how long events would take; who asks for events gets them."""
    monkeypatch.setattr("simulator.engine.compiled.group_solver._MAX_FOLLOWED", 0)
    program, cluster = shared()
    assert play("auto", program, cluster).engine == "events"
    monkeypatch.setattr("simulator.engine.play._MOST_UNASKED", 40)
    with pytest.raises(SimulationError, match=r"meet on .*; the events engine .* 48 transfers, about"):
        play("auto", program, cluster)
    assert play("events", program, cluster).engine == "events"


def test_ranks_that_do_different_things_are_for_the_events_engine() -> None:
    cluster = build("star_100g", 2)
    unlike = Program(((Compute("a", 1.0),), (Compute("a", 1.0), Compute("b", 1.0))))
    with pytest.raises(DeclinedError, match="unlike length"):
        compiled(unlike, cluster)


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
