"""Laws that hold for every collective on every cluster."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import REDUCING, CollectiveRequest
from simulator.engine.events import execute
from simulator.engine.jitter import Jitter
from simulator.records.operation import Allocate, Compute, Free, Op
from simulator.records.program import Program
from simulator.records.timeline import Timeline, TransferLog
from tests.playing import (
    WIDE_GPU,
    PlayedCollective,
    planned,
    played,
    regular,
    same_bits,
    share_of,
    star,
    time_of,
    wrapped_sum,
)
from tests.strategies import Case, cases, rewired

MODEST = settings(max_examples=120, derandomize=True)


def run(case: Case, dtype: str = "int64", jitter: Jitter | None = None) -> PlayedCollective:
    return played(case.cluster, case.algorithm, case.request, dtype=dtype, jitter=jitter)


def loads(log: TransferLog, run: PlayedCollective, cluster: Cluster) -> dict[str, list[tuple[float, float, float]]]:
    """(enter, end, bytes that the link's capacity is used for) of every transfer, by link; HBM counts three times."""
    found: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    columns = zip(log.enter.tolist(), log.end.tolist(), log.nbytes.tolist(), log.route_of.tolist(), strict=True)
    for number, (enter, end, nbytes, route) in enumerate(columns):
        for link in log.routes[route]:
            found[cluster.router.link_name(link)].append((enter, end, nbytes))
        if log.transfers.reduce[number] and log.transfers.dst[number] < run.op.schedule.world_size:
            found[f"hbm {log.transfers.dst[number]}"].append((enter, end, 3 * nbytes))
    return found


def bandwidths(cluster: Cluster) -> dict[str, float]:
    named = {cluster.router.link_name(i): b for i, b in enumerate(cluster.router.bandwidth)}
    return named | {f"hbm {r}": cluster.hbm_bandwidth(r) for r in range(cluster.world_size)}


@MODEST
@given(cases())
def test_no_link_carries_more_than_its_bandwidth_in_any_span_of_time(case: Case) -> None:
    played_ = run(case)
    limits = bandwidths(case.cluster)
    for name, flows in loads(played_.timeline.logs[0], played_, case.cluster).items():
        begins, ends = sorted({f[0] for f in flows}), sorted({f[1] for f in flows})
        for begin in begins[:: max(1, len(begins) // 12)]:
            for end in ends[:: max(1, len(ends) // 12)]:
                inside = sum(nbytes for enter, left, nbytes in flows if enter >= begin and left <= end)
                assert inside <= limits[name] * max(end - begin, 0.0) * (1 + 1e-9) + 1e-6


@MODEST
@given(cases(), st.booleans())
def test_transfers_keep_the_rule_of_transfers(case: Case, lucky: bool) -> None:
    jitter = Jitter(latency=0.7, seed=4) if lucky else None
    played_ = run(case, jitter=jitter)
    log = played_.timeline.logs[0]
    transfers, enter, end = log.transfers, log.enter, log.end
    latency = np.array([sum(case.cluster.router.latency[i] for i in route) for route in log.routes])[log.route_of]
    tolerance = 1e-12 * (1 + end)
    # A channel is a FIFO, and nothing is ready before what it waits for has ended.
    follows = transfers.before_on_channel >= 0
    assert np.all(enter[follows] >= end[transfers.before_on_channel[follows]])
    assert np.all(enter[transfers.waiter] >= end[transfers.awaited])
    # Nothing is faster than its route.
    narrowest = np.array([min(case.cluster.router.bandwidth[i] for i in route) for route in log.routes])[log.route_of]
    assert np.all(end - enter >= log.nbytes / narrowest - tolerance)
    if lucky:
        return
    # Nothing idles: it enters as soon as it may.
    ready = np.zeros(len(log))
    np.maximum.at(ready, transfers.waiter, end[transfers.awaited])
    expected = ready + latency
    expected[follows] = np.maximum(expected[follows], end[transfers.before_on_channel[follows]])
    assert np.allclose(enter, expected, rtol=1e-12, atol=0)


@MODEST
@given(cases())
def test_all_that_is_sent_is_received_and_each_rank_ends_with_its_last_transfer(case: Case) -> None:
    played_ = run(case)
    log = played_.timeline.logs[0]
    sent, received = Counter[int](), Counter[int]()
    last: Counter[int] = Counter()
    for src, dst, nbytes, end in zip(
        log.transfers.src.tolist(), log.transfers.dst.tolist(), log.nbytes.tolist(), log.end.tolist(), strict=True
    ):
        sent[src] += nbytes
        received[dst] += nbytes
        for participant in (src, dst):
            last[participant] = max(last[participant], end)
    assert sum(sent.values()) == sum(received.values())
    for span in played_.timeline.spans:
        assert span.start == 0.0
        assert span.end == last[span.rank]
    assert played_.timeline.end == max(end for rank, end in last.items() if rank < case.request.world_size)


@MODEST
@given(cases(), st.sampled_from([0.3, 2.0]))
def test_luck_with_latencies_changes_no_integer_result(case: Case, sigma: float) -> None:
    calm, lucky = run(case), run(case, jitter=Jitter(latency=sigma, seed=11))
    assert lucky.verdict.wrong == 0
    for a, b in zip(calm.results, lucky.results, strict=True):
        assert same_bits(a, b)
    if case.request.operation in REDUCING:
        wanted = share_of(case.request, wrapped_sum(calm.inputs))
        assert all(same_bits(a, b) for a, b in zip(lucky.results, wanted, strict=True))


@MODEST
@given(cases(), st.sampled_from([0.5, 2.0, 2.0**20]))
def test_rates_times_k_and_latencies_over_k_divide_every_time_by_k(case: Case, k: float) -> None:
    cluster = case.cluster
    gpu = replace(cluster.gpus[0], hbm_bandwidth=cluster.gpus[0].hbm_bandwidth * k)
    edges = {(a, b): (f["bandwidth"] * k, f["latency"] / k) for a, b, f in cluster.graph.edges(data=True)}
    scaled = replace(rewired(cluster, edges), gpus=(gpu,) * cluster.world_size)
    slow = execute(planned(cluster, case.algorithm, case.request).program, cluster)
    fast = execute(planned(scaled, case.algorithm, case.request).program, scaled)
    assert [(s.start / k, s.end / k) for s in slow.spans] == [(s.start, s.end) for s in fast.spans]
    assert (slow.logs[0].end / k).tolist() == fast.logs[0].end.tolist()
    assert (slow.logs[0].enter / k).tolist() == fast.logs[0].enter.tolist()


@MODEST
@given(cases(unlike=False), st.randoms(use_true_random=False))
def test_renaming_the_ranks_of_a_star_or_a_mesh_changes_no_time_and_no_byte(case: Case, luck: object) -> None:
    n = case.request.world_size
    for cluster in (star(n, len(case.cluster.servers)), regular("fully_connected", n)):
        if case.algorithm == "nvls" or (case.request.servers_on == "own" and not cluster.servers):
            continue
        renamed = replace(cluster, ranks=tuple(luck.sample(cluster.ranks, n)))  # type: ignore[attr-defined]
        one = execute(planned(cluster, case.algorithm, case.request).program, cluster)
        other = execute(planned(renamed, case.algorithm, case.request).program, renamed)
        assert [(s.rank, s.start, s.end) for s in one.spans] == [(s.rank, s.start, s.end) for s in other.spans]
        assert one.logs[0].end.tolist() == other.logs[0].end.tolist()
        assert one.logs[0].nbytes.tolist() == other.logs[0].nbytes.tolist()


@pytest.mark.parametrize("shift", [1, 3])
def test_turning_a_ring_changes_no_time(shift: int) -> None:
    n = 7
    cluster = regular("ring", n)
    turned = replace(cluster, ranks=tuple(cluster.ranks[(r + shift) % n] for r in range(n)))
    for operation in ("all_reduce", "reduce_scatter", "all_gather"):
        request = CollectiveRequest(operation, n, 1003)
        assert time_of(cluster, "ring", request) == time_of(turned, "ring", request)


# -- programs ----------------------------------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn) -> tuple[Cluster, Program]:
    """Kernels, memory and collectives of two groups on several streams, in one order for all ranks."""
    n = draw(st.integers(2, 5))
    cluster = star(n)
    ranks: list[list[Op]] = [[] for _ in range(n)]
    for number in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from(["compute", "all", "first", "memory"]))
        for rank in range(n):
            before = tuple(op.name for op in ranks[rank][-1:]) if draw(st.booleans()) else ()
            if kind == "compute":
                ranks[rank].append(Compute(f"kernel {number}", draw(st.sampled_from([0.0, 1e-6, 1e-4])), after=before))
            elif kind == "memory":
                ranks[rank] += [Allocate(f"block {number}", 1000), Free(f"block {number}")]
        members = tuple(range(n)) if kind == "all" else (0, 1)
        if kind in ("all", "first"):
            request = CollectiveRequest("all_reduce", len(members), draw(st.sampled_from([0, 10, 10_000])))
            made = planned(cluster, draw(st.sampled_from(["ring", "direct", "tree"])), request, group=members)
            (op,) = made.program.collectives().values()
            for rank in members:
                before = tuple(op.name for op in ranks[rank][-1:])
                stream = "communication" if kind == "all" else "pair"
                ranks[rank].append(replace(op, name=f"collective {number}", stream=stream, after=before))
    return cluster, Program(tuple(map(tuple, ranks)))


@settings(max_examples=80, derandomize=True)
@given(programs(), st.booleans())
def test_a_stream_runs_one_operation_at_a_time_in_order(made: tuple[Cluster, Program], lucky: bool) -> None:
    cluster, program = made
    timeline = execute(program, cluster, jitter=Jitter(0.5, 0.5, 3) if lucky else None)
    lanes: dict[tuple[int, str], list[tuple[float, float, str]]] = defaultdict(list)
    for span in timeline.spans:
        lanes[span.rank, span.stream].append((span.start, span.end, span.name))
    for (rank, stream), lane in lanes.items():
        ordered = sorted(lane, key=lambda entry: (entry[0], entry[1]))
        assert all(a[1] <= b[0] for a, b in pairwise(ordered))
        kept = [op.name for op in program.ranks[rank] if op.stream == stream and not isinstance(op, Allocate | Free)]
        assert [name for _, _, name in lane] == kept or len({e[:2] for e in lane}) < len(lane)
        assert sum(end - start for start, end, _ in lane) <= timeline.end * (1 + 1e-12)
    ends = {(s.rank, s.name): s.end for s in timeline.spans}
    begins = {(s.rank, s.name): s.start for s in timeline.spans}
    for rank, ops in enumerate(program.ranks):
        for op in ops:
            for name in op.after:
                if (rank, name) in ends and (rank, op.name) in begins:
                    assert begins[rank, op.name] >= ends[rank, name]
    for rank in range(cluster.world_size):
        samples = [sample for sample in timeline.memory if sample.rank == rank]
        assert not samples or samples[-1].nbytes == 0


def test_two_collectives_at_once_share_their_links_and_take_twice_as_long() -> None:
    n, request = 4, CollectiveRequest("all_reduce", 4, 1_000_000)
    cluster = star(n, latency="0 s")
    (op,) = planned(cluster, "ring", request).program.collectives().values()
    pair: tuple[Op, ...] = (op, replace(op, name="other", stream="second"))
    alone = execute(Program(((op,),) * n), cluster).end
    assert execute(Program((pair,) * n), cluster).end == pytest.approx(2 * alone, rel=1e-9)
    one_after_the_other: tuple[Op, ...] = (op, replace(op, name="other"))
    assert execute(Program((one_after_the_other,) * n), cluster).end == pytest.approx(2 * alone, rel=1e-9)


def test_a_rank_outside_the_group_does_nothing() -> None:
    cluster = star(5)
    made = planned(cluster, "ring", CollectiveRequest("all_reduce", 3, 300), group=(4, 0, 2))
    timeline = execute(made.program, cluster)
    assert sorted({span.rank for span in timeline.spans}) == [0, 2, 4]
    assert timeline.logs[0].vertices == ("gpu4", "gpu0", "gpu2")
    assert timeline.end == time_of(star(3), "ring", CollectiveRequest("all_reduce", 3, 300))


def test_adding_ranks_does_not_shift_the_luck_of_the_others() -> None:
    enters: list[dict[tuple[int, int], float]] = []
    for n in (4, 6):
        made = planned(star(n), "direct", CollectiveRequest("all_gather", n, 12))
        log = execute(made.program, star(n), jitter=Jitter(latency=0.5, seed=3)).logs[0]
        pairs = zip(log.transfers.src.tolist(), log.transfers.dst.tolist(), strict=True)
        enters.append(dict(zip(pairs, log.enter.tolist(), strict=True)))
    few, many = enters
    assert len(set(few.values())) == len(few)
    # A rank's first transfers are to the first ranks, whoever else there is.
    assert all(many[pair] == enter for pair, enter in few.items())


def test_the_luck_of_kernels_belongs_to_the_rank() -> None:
    def spans(n: int) -> dict[tuple[int, str], float]:
        kernels = (Compute("a", 1.0), Compute("b", 1.0))
        timeline = execute(Program((kernels,) * n), star(n), jitter=Jitter(compute=0.1, seed=8))
        return {(s.rank, s.name): s.end - s.start for s in timeline.spans}

    few, many = spans(2), spans(5)
    assert all(many[key] == lasted for key, lasted in few.items())
    assert len(set(many.values())) == 10


def test_a_straggler_stretches_its_own_kernels_by_its_factor() -> None:
    cluster = build({"builder": "star", "options": {"bandwidth": "1 GB/s", "latency": "0 s"}}, 3, gpu=WIDE_GPU,
                    stragglers={1: 0.5})  # fmt: skip
    timeline = execute(Program(((Compute("kernel", 3.0),),) * 3), cluster)
    assert [span.end for span in timeline.spans] == [3.0, 6.0, 3.0]


def test_jitter_follows_a_log_normal_of_its_sigma() -> None:
    n, sigma = 64, 0.3
    made = planned(star(n), "direct", CollectiveRequest("all_gather", n, n))
    log = execute(made.program, star(n), jitter=Jitter(latency=sigma, seed=1)).logs[0]
    logs = np.log(log.enter / 10e-6)
    # 4032 draws: the mean is within 4 standard errors, the deviation too.
    assert abs(logs.mean()) < 4 * sigma / np.sqrt(len(logs))
    assert abs(logs.std() / sigma - 1) < 4 / np.sqrt(2 * len(logs))


def collective_names(timeline: Timeline) -> list[str]:
    return [log.collective for log in timeline.logs]


def test_the_same_program_twice_gives_the_same_timeline() -> None:
    made = planned(star(6), "double_binary_tree", CollectiveRequest("all_reduce", 6, 5000))
    one, other = (execute(made.program, star(6), jitter=Jitter(0.0, 0.4, 9)) for _ in range(2))
    assert one.spans == other.spans
    assert one.logs[0].end.tolist() == other.logs[0].end.tolist()
    assert collective_names(one) == ["all_reduce"]
    another = execute(made.program, star(6), jitter=Jitter(0.0, 0.4, 10))
    assert another.end != one.end
