"""The events engine on programs small enough to follow by hand."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from simulator.basics.errors import DeadlockError, OutOfMemoryError
from simulator.cluster.build import build
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.parameter_server import ServerLayout, pull
from simulator.engine.events import execute
from simulator.records.operation import Allocate, Collective, Compute, ElementSizes, Free, Op, RateCaps
from simulator.records.program import Program
from tests.playing import planned, star, time_of


def collective(name: str, n: int = 2, elements: int = 1000, **facts: object) -> Collective:
    made = planned(star(n), "ring", CollectiveRequest("all_reduce", n, elements))
    return replace(made.program.collectives()["all_reduce"], name=name, **facts)  # type: ignore[arg-type]


def test_kernels_of_one_stream_run_one_after_the_other_and_streams_at_once() -> None:
    ops = (Compute("a", 1.0), Compute("b", 2.0), Compute("c", 2.5, stream="copy"))
    timeline = execute(Program((ops,)), star(2))
    assert [(s.name, s.start, s.end) for s in timeline.spans] == [("a", 0.0, 1.0), ("b", 1.0, 3.0), ("c", 0.0, 2.5)]
    assert timeline.end == 3.0


def test_an_operation_waits_for_operations_of_other_streams() -> None:
    ops = (Compute("a", 1.0), Compute("b", 1.0, stream="copy", after=("a",)), Compute("c", 1.0, after=("b",)))
    timeline = execute(Program((ops,)), star(2))
    assert {s.name: s.start for s in timeline.spans} == {"a": 0.0, "b": 1.0, "c": 2.0}


def test_a_collectives_span_begins_when_its_stream_reaches_it() -> None:
    op = collective("sum")
    alone = time_of(star(2), "ring", CollectiveRequest("all_reduce", 2, 1000))
    timeline = execute(Program(((op,), (Compute("late", 1.0), replace(op, after=("late",))))), star(2))
    spans = {(s.rank, s.name): (s.start, s.end) for s in timeline.spans}
    assert spans[0, "sum"] == pytest.approx((0.0, 1.0 + alone), rel=1e-12)
    assert spans[1, "sum"] == pytest.approx((1.0, 1.0 + alone), rel=1e-12)


def test_ranks_leave_a_collective_when_their_own_transfers_have_ended() -> None:
    made = planned(star(4), "chain", CollectiveRequest("broadcast", 4, 1200, chunks=1))
    ends = {span.rank: span.end for span in execute(made.program, star(4)).spans}
    hop = 10e-6 + 4800 / 12.5e9
    assert ends == {r: pytest.approx(k * hop, rel=1e-9) for r, k in ((0, 1), (1, 2), (2, 3), (3, 3))}


def test_collectives_that_differ_in_the_bound_of_a_flow_alone_go_each_at_its_own() -> None:
    """A ring of two: two rounds of half the array, 10 us and at most the port's 12.5 GB/s each."""
    one = collective("at the port's rate")
    ops = (one, replace(one, name="at 1 GB/s", caps=RateCaps(1e9)), replace(one, name="at 2 GB/s", caps=RateCaps(2e9)))
    spans = {span.name: span.end - span.start for span in execute(Program((ops, ops)), star(2)).spans}
    for name, rate in (("at the port's rate", 12.5e9), ("at 1 GB/s", 1e9), ("at 2 GB/s", 2e9)):
        assert spans[name] == pytest.approx(2 * (10e-6 + 4 * 500 / rate), rel=1e-9)


def test_opposite_orders_are_a_deadlock_that_names_both_ranks_and_both_collectives() -> None:
    a, b = collective("A"), collective("B")
    with pytest.raises(DeadlockError) as caught:
        execute(Program(((a, b), (b, a))), star(2))
    assert caught.value.waiting == {
        "rank 0 (communication)": "'A', which rank 1 has not reached",
        "rank 1 (communication)": "'B', which rank 0 has not reached",
    }
    assert str(caught.value) == (
        "deadlock at 0 s: rank 0 (communication) waits for 'A', which rank 1 has not reached; "
        "rank 1 (communication) waits for 'B', which rank 0 has not reached"
    )


@pytest.mark.parametrize("together", [False, True])
def test_opposite_orders_deadlock_where_ranks_start_together_too(together: bool) -> None:
    a, b = collective("A", together=together), collective("B", together=together)
    with pytest.raises(DeadlockError) as caught:
        execute(Program(((a, b), (b, a))), star(2))
    assert list(caught.value.waiting.values()) == [
        "'A', which rank 1 has not reached",
        "'B', which rank 0 has not reached",
    ]


def test_opposite_orders_on_two_streams_are_no_deadlock() -> None:
    a, b = collective("A"), collective("B", stream="second")
    assert execute(Program(((a, b), (b, a))), star(2)).end > 0


def test_a_rank_that_never_comes_is_named() -> None:
    with pytest.raises(DeadlockError, match="'A', which rank 1 has not reached"):
        execute(Program(((collective("A"),), ())), star(2))


def test_operations_that_wait_for_each_other_are_a_deadlock() -> None:
    ops = (Compute("a", 1.0, after=("b",)), Compute("b", 1.0, stream="copy", after=("a",)))
    with pytest.raises(DeadlockError) as caught:
        execute(Program((ops,)), star(2))
    assert caught.value.waiting == {"rank 0 (compute)": "its own 'b'", "rank 0 (copy)": "its own 'a'"}


def test_a_deadlock_survives_the_way_back_from_another_process() -> None:
    with pytest.raises(DeadlockError) as caught:
        execute(Program(((collective("A"),), ())), star(2))
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.waiting, again.time) == (str(caught.value), caught.value.waiting, 0.0)


def test_too_much_memory_is_told_with_its_three_largest_holders() -> None:
    gigabyte = 10**9
    blocks: tuple[Op, ...] = (
        Allocate("weights", 30 * gigabyte, "parameters"),
        Allocate("small", gigabyte),
        Allocate("moments", 40 * gigabyte, "optimizer"),
        Allocate("cache", 5 * gigabyte),
        Compute("step", 0.25),
        Allocate("last", 5 * gigabyte, after=("step",)),
    )
    with pytest.raises(OutOfMemoryError) as caught:
        execute(Program(((), blocks)), star(2))
    error = caught.value
    assert (error.rank, error.time, error.needed, error.capacity) == (1, 0.25, 81 * gigabyte, 80 * gigabyte)
    assert error.holders == (("moments", 40 * gigabyte), ("weights", 30 * gigabyte), ("cache", 5 * gigabyte))
    assert str(error) == (
        "rank 1 ran out of memory at 0.25 s: needs 75.44 GiB, has 74.51 GiB (moments 37.3 GiB, weights 27.9 GiB, "
        "cache 4.66 GiB)"
    )
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert pickle.loads(pickle.dumps(error)).holders == error.holders


def test_without_the_limit_the_program_is_played_on() -> None:
    ops: tuple[Op, ...] = (Allocate("huge", 200 * 10**9), Compute("step", 1.0), Free("huge"))
    timeline = execute(Program((ops,)), star(2), limit_memory=False)
    assert [(s.time, s.nbytes) for s in timeline.memory] == [(0.0, 200 * 10**9), (1.0, 0)]


def test_memory_is_sampled_by_category_and_returns_to_its_start() -> None:
    ops: tuple[Op, ...] = (
        Allocate("w", 100, "parameters"),
        Allocate("x", 20, "activations"),
        Allocate("y", 3, "activations"),
        Free("x"),
        Free("w"),
        Free("y"),
    )
    samples = execute(Program((ops,)), star(2)).memory
    assert [s.nbytes for s in samples] == [100, 120, 123, 103, 3, 0]
    assert samples[2].by_category == (("activations", 23), ("parameters", 100))
    assert samples[-1].by_category == ()


def test_contradictions_are_value_errors() -> None:
    cases: dict[str, tuple[Op, ...]] = {
        "waits for 'nobody', which is not there": (Compute("a", 1.0, after=("nobody",)),),
        "two operations of one name": (Compute("a", 1.0), Compute("a", 1.0)),
        "frees 'b', which it does not hold": (Free("b"),),
    }
    for told, ops in cases.items():
        with pytest.raises(ValueError, match=told):
            execute(Program((ops,)), star(2))
    with pytest.raises(ValueError, match="the program has 3 ranks, the cluster 2"):
        execute(Program(((), (), ())), star(2))
    two_of_three = (planned(star(2), "ring", CollectiveRequest("all_gather", 2, 2000)).ops[0],)
    with pytest.raises(ValueError, match=r"rank 2 has '.*', but is in no group that carries it out"):
        execute(Program((two_of_three,) * 3), star(3))


def test_a_program_without_operations_takes_no_time() -> None:
    timeline = execute(Program(((), ())), star(2))
    assert (timeline.end, timeline.spans, timeline.logs) == (0.0, (), ())


def test_the_start_up_is_paid_once_an_operation_by_every_rank() -> None:
    alone = time_of(star(2), "ring", CollectiveRequest("all_reduce", 2, 1000))
    op = collective("A", startup=1e-3)
    other = replace(op, name="B")
    assert execute(Program(((op, other),) * 2), star(2)).end == pytest.approx(2 * (1e-3 + alone), rel=1e-12)


def test_transfers_are_logged_as_they_were_played() -> None:
    made = planned(star(2), "direct", CollectiveRequest("all_gather", 2, 2000))
    log = execute(made.program, star(2)).logs[0]
    assert log.vertices == ("gpu0", "gpu1")
    assert len(log) == 2
    assert log.nbytes.tolist() == [4000.0, 4000.0]
    assert log.enter.tolist() == [10e-6, 10e-6]
    assert np.allclose(log.end, 10e-6 + 4000 / 12.5e9, rtol=1e-12)
    names = star(2).router.link_names
    assert [[names[i] for i in log.routes[r]] for r in log.route_of.tolist()] == [
        ["gpu0->switch0", "switch0->gpu1"],
        ["gpu1->switch0", "switch0->gpu0"],
    ]


def test_who_takes_from_a_server_starts_the_transfer_itself() -> None:
    """Servers are always there: each worker's pull begins when the worker does, and none waits for the other."""
    cluster = build("star_100g", 2, servers=1)
    op = Collective("pull", (0, 1), pull(ServerLayout(2, 1)), 1000, ElementSizes(4, 4), auxiliaries=cluster.servers)
    timeline = execute(Program(((op,), (Compute("late", 1.0), replace(op, after=("late",))))), cluster)
    ends = {span.rank: span.end for span in timeline.spans if span.name == "pull"}
    assert ends[0] == pytest.approx(10e-6 + 4000 / 12.5e9)
    assert ends[1] == pytest.approx(1.0 + 10e-6 + 4000 / 12.5e9)


@pytest.mark.parametrize("takes_sms", [True, False])
def test_copies_leave_kernels_their_pace(takes_sms: bool) -> None:
    op = collective("move", elements=10**9, takes_sms=takes_sms)
    timeline = execute(Program(((Compute("work", 0.1, contended=0.2), op), (op,))), star(2))
    (work,) = [span for span in timeline.spans if span.name == "work"]
    assert work.end == pytest.approx(0.2 if takes_sms else 0.1)


def test_collectives_of_two_streams_share_a_port_that_one_alone_could_not_fill() -> None:
    # Each flow is capped at 0.6 of a port: one stream's never meet there, two streams' do.
    n, nbytes, beta = 3, 3000 * 4, 12.5e9
    one = collective("one", n, nbytes // 4, caps=RateCaps(0.6 * beta, 0.6 * beta))
    two = replace(one, name="two", stream="other")
    alone = 4 * (10e-6 + nbytes / n / (0.6 * beta))
    assert execute(Program(((one, replace(two, stream=one.stream)),) * n), star(n)).end == pytest.approx(2 * alone)
    both = 4 * (10e-6 + nbytes / n / (0.5 * beta))
    assert execute(Program(((one, two),) * n), star(n)).end == pytest.approx(both, rel=1e-9)
