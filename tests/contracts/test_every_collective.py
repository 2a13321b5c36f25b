"""Every algorithm gives every element right, sends what it declares, and keeps its promise without a clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from simulator.basics import dtypes
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import ALGORITHMS, REDUCING, ROOTED, CollectiveRequest
from simulator.collectives.verify import verify
from simulator.records.chunks import chunk_sizes, transfer_elements
from simulator.records.schedule import Repeat
from simulator.records.transfers import write_out
from tests.playing import (
    Array,
    nodes,
    parts,
    planned,
    played,
    request_options,
    same_bits,
    share_of,
    star,
    starts,
    time_of,
    wrapped_sum,
)

PAIRS = [pytest.param(a, o, id=f"{a}-{o}") for a, o in ALGORITHMS.pairs()]
SIZES = (2, 3, 4, 5, 7, 8, 13, 16, 32)
DTYPES = ("int64", "int8", "float32", "float16", "bfloat16")
# Unit roundoff: half the distance from 1 to the next number.
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def variants(algorithm: str, n: int) -> Iterator[tuple[Cluster, dict[str, Any]]]:
    """Where, and with which options, an algorithm can run on n ranks: its own examples."""
    for example in ALGORITHMS.find(algorithm).examples(n):
        own = example.servers if example.servers_on == "own" else 0
        cluster = nodes(n, example.node_size) if example.node_size and not example.given else star(n, own or 0)
        yield cluster, request_options(example, n)


def requests(algorithm: str, operation: str, n: int, elements: int) -> Iterator[tuple[Cluster, CollectiveRequest]]:
    roots = sorted({0, n - 1, n // 2}) if operation in ROOTED else [0]
    for cluster, options in variants(algorithm, n):
        for root in roots:
            yield cluster, CollectiveRequest(operation, n, elements, root=root, **options)


def with_nodes(cluster: Cluster, request: CollectiveRequest) -> CollectiveRequest:
    """The request as the planner completes it."""
    return request if request.nodes else replace(request, nodes=cluster.nodes)


@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
def test_rows_are_counted_before_they_are_written_down(algorithm: str, operation: str) -> None:
    for n in SIZES[:-1]:
        for cluster, request in requests(algorithm, operation, n, 100 * n):
            schedule = ALGORITHMS.find(algorithm).plans[operation](with_nodes(cluster, request))
            written = sum(len(part.round if isinstance(part, Repeat) else part) for part in schedule.parts())
            assert schedule.rows == written, request


def truth(request: CollectiveRequest, inputs: list[Array]) -> list[Array] | None:
    """What each rank must get, in exact arithmetic: bits for copies and integers, None for sums of floats."""
    if request.operation == "all_to_all":
        return share_of(request, inputs)
    if request.operation in REDUCING:
        return share_of(request, wrapped_sum(inputs)) if inputs[0].dtype.kind in "iu" else None
    if request.operation in ("broadcast", "scatter"):
        return share_of(request, inputs[request.root])
    gathered = [inputs[rank][part] for rank, part in enumerate(parts(request.elements, request.world_size))]
    return share_of(request, np.concatenate(gathered))


def assert_near_the_sum(request: CollectiveRequest, inputs: list[Array], results: list[Array], dtype: str) -> None:
    """|error| <= ((1 + u)^(N-1) - 1) sum |x|, for N - 1 additions in any order (Higham 2002, section 4.2)."""
    wide = [a.astype(np.float64) for a in inputs]
    sums, magnitudes = share_of(request, sum(wide)), share_of(request, sum(np.abs(a) for a in wide))  # type: ignore[arg-type]
    bound = (1 + ROUNDOFF[dtype]) ** (request.world_size - 1) - 1
    for result, exact, magnitude in zip(results, sums, magnitudes, strict=True):
        assert result.shape == exact.shape
        # One more half unit in the last place for float64's own rounding and for subnormal float16.
        assert np.all(np.abs(result.astype(np.float64) - exact) <= bound * magnitude + 2.0**-24 * ROUNDOFF[dtype])


def assert_right(cluster: Cluster, algorithm: str, request: CollectiveRequest, dtype: str) -> None:
    run = played(cluster, algorithm, request, dtype=dtype)
    wanted = truth(request, run.inputs)
    results = run.results
    if wanted is None:
        assert_near_the_sum(request, run.inputs, results, dtype)
    else:
        assert all(same_bits(result, exact) for result, exact in zip(results, wanted, strict=True))
    if request.operation == "all_reduce":
        assert all(same_bits(results[0], other) for other in results[1:])
    verdict = run.verdict
    assert verdict.wrong == 0
    if not dtypes.find(dtype).is_float:
        totals = np.sum([a.astype(object) for a in run.inputs], axis=0).tolist()
        limits = np.iinfo(dtype)
        if dtype == "int8" and request.operation == "all_reduce":
            assert verdict.overflowed == sum(not limits.min <= total <= limits.max for total in totals)


@pytest.mark.parametrize("n", [*SIZES[:-1], pytest.param(SIZES[-1], marks=pytest.mark.long)])
@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
def test_every_element_is_right(algorithm: str, operation: str, n: int) -> None:
    # A few elements are those of fewer ranks once more.
    for elements in (1, n - 1, 1003)[2 if n == 32 else 0 :]:
        for place, (cluster, request) in enumerate(requests(algorithm, operation, n, elements)):
            # All dtypes where there is one variant; else they take turns, and each variant sees two. Small messages of
            # many ranks, and all of 32, are those of fewer ranks once more: two dtypes there too.
            chosen = (
                DTYPES
                if place == 0 and (n < 13 or (elements > n and n < 32))
                else (DTYPES[place % 5], DTYPES[(place + 2) % 5])
            )
            for dtype in chosen:
                assert_right(cluster, algorithm, request, dtype)


@pytest.mark.parametrize("algorithm", ALGORITHMS.names())
def test_a_million_and_three_elements_are_right(algorithm: str) -> None:
    for operation in ALGORITHMS.operations(algorithm)[:1]:
        for cluster, request in list(requests(algorithm, operation, 4, 1_000_003))[:2]:
            assert_right(cluster, algorithm, request, "int64")


# Least elements on the wire in all, S elements over N ranks: Patarasuk & Yuan 2009; Thakur, Rabenseifner & Gropp 2005.
def least(request: CollectiveRequest) -> int:
    n, s = request.world_size, request.elements
    own = len(range(s)[parts(s, n)[request.root]])
    formulas = {
        "all_reduce": 2 * (n - 1) * s,
        "reduce_scatter": (n - 1) * s,
        "all_gather": (n - 1) * s,
        "broadcast": (n - 1) * s,
        "reduce": (n - 1) * s,
        "scatter": s - own,
        "gather": s - own,
        "all_to_all": (n - 1) * s,
    }
    return formulas[request.operation]


@pytest.mark.parametrize("n", [*SIZES[:-1], pytest.param(SIZES[-1], marks=pytest.mark.long)])
@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
def test_it_sends_what_it_declares_and_proves_its_promise(algorithm: str, operation: str, n: int) -> None:
    declared = ALGORITHMS.find(algorithm)
    for elements in (0, 1, n - 1, 1003):
        for cluster, bare in requests(algorithm, operation, n, elements):
            request = with_nodes(cluster, bare)
            schedule = declared.plans[operation](request)
            transfers = write_out(schedule)
            sent = int(transfer_elements(transfers, chunk_sizes(schedule, elements)).sum())
            assert sent == declared.volume(request)
            # A switch that adds is no rank: what it takes off the ranks' shoulders is why NVLS exists.
            assert sent >= least(request)
            assert (sent == least(request)) >= declared.minimal(request)
            verify(schedule, transfers)


@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
def test_payload_changes_no_time_and_no_two_ranks_share_memory(algorithm: str, operation: str) -> None:
    for n in (2, 5, 8):
        for cluster, request in requests(algorithm, operation, n, 1003):
            run = played(cluster, algorithm, request, dtype="float32")
            assert time_of(cluster, algorithm, request, dtype="float32") == run.time
            assert not any(np.shares_memory(a, b) for a, b in combinations(run.results, 2))
            again = played(cluster, algorithm, request, dtype="float32")
            assert all(same_bits(a, b) for a, b in zip(run.buffers, again.buffers, strict=True))


def added(values: list[Array]) -> Array:
    """Sum from left to right, each step rounded to the dtype."""
    total = values[0]
    for value in values[1:]:
        if total.dtype.itemsize <= 2:
            total = (total.astype(np.float32) + value.astype(np.float32)).astype(total.dtype)
        else:
            total = total + value
    return total


def along_the_ring(x: list[Array], order: tuple[int, ...]) -> Array:
    """The part of the rank at place i starts one place on, and that rank's own share comes last."""
    n = len(order)
    whole = np.empty_like(x[0])
    for place, rank in enumerate(order):
        part = parts(len(x[0]), n)[rank]
        whole[part] = added([x[order[(place + 1 + k) % n]][part] for k in range(n)])
    return whole


def up_the_tree(x: list[Array], rank: int = 0, level: int = 99) -> Array:
    """A rank adds the sums of rank + 1, rank + 2, rank + 4, ... to its own, as far as its lowest set bit."""
    total = x[rank]
    bit = 0
    while bit < level and rank + (1 << bit) < len(x):
        total = added([total, up_the_tree(x, rank + (1 << bit), bit)])
        bit += 1
    return total


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e5m2"])
@pytest.mark.parametrize("n", [2, 3, 5, 8, 13])
def test_sums_have_the_bits_of_the_algorithms_own_order(n: int, dtype: str) -> None:
    request = CollectiveRequest("all_reduce", n, 1003)
    x = starts(request, dtype)
    zigzag = tuple(sorted(range(n), key=lambda rank: (rank % 3, -rank)))
    wanted = {
        "naive": added(x),
        "direct": added(x),
        # All pushes of a server's part end at one instant on a star, so they are added by rank.
        "parameter_server": added(x),
        "tree": up_the_tree(x),
        "ring": along_the_ring(x, tuple(range(n))),
    }
    for algorithm, total in wanted.items():
        run = played(star(n, 1), algorithm, request, dtype=dtype, start=x)
        assert all(same_bits(result, total) for result in run.results), algorithm
    ordered = CollectiveRequest("all_reduce", n, 1003, rank_order=zigzag)
    for result in played(star(n), "ring", ordered, dtype=dtype, start=x).results:
        assert same_bits(result, along_the_ring(x, zigzag))


@pytest.mark.parametrize("n", [2, 4, 7])
def test_a_chain_adds_from_the_far_end_towards_the_root(n: int) -> None:
    request = CollectiveRequest("reduce", n, 1003, root=1, rank_order=tuple(reversed(range(n))))
    x = starts(request, "float16")
    line = [(1 - k) % n for k in range(n)]
    run = played(star(n), "chain", request, dtype="float16", start=x)
    assert same_bits(run.results[1], added([x[rank] for rank in reversed(line)]))


@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
def test_an_array_of_no_elements_takes_only_latency(algorithm: str, operation: str) -> None:
    cluster = nodes(4, 4) if algorithm == "nvls" else star(4, 1)
    request = CollectiveRequest(operation, 4, 0)
    run = played(cluster, algorithm, request)
    assert run.verdict.wrong == 0
    assert [len(result) for result in run.results] == [0] * 4
    assert 0 < run.time < 20 * 4 * 10e-6
    assert float(run.timeline.logs[0].nbytes.sum()) == 0.0


@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
@pytest.mark.parametrize("elements", [0, 1, 2, 3, 1003])
def test_links_without_latency_and_chunks_without_elements_keep_the_order(
    algorithm: str, operation: str, elements: int
) -> None:
    # Everything may then end at one instant; what waits must still come after what it waits for.
    cluster = nodes(4, 4) if algorithm == "nvls" else star(4, 1, latency="0 s")
    for root in (0, 2) if operation in ROOTED else (0,):
        request = CollectiveRequest(operation, 4, elements, root=root)
        run = played(cluster, algorithm, request, dtype="int64")
        wanted = truth(request, run.inputs)
        assert wanted is not None
        assert all(same_bits(result, exact) for result, exact in zip(run.results, wanted, strict=True))
        assert run.verdict.wrong == 0


@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
def test_the_declared_form_is_what_the_planner_predicts_or_nothing(algorithm: str, operation: str) -> None:
    # Any prediction that is given at all must be met; whether one is given is for the theory tests.
    for n in (2, 3, 4, 7, 8, 16):
        for elements in (0, 1, 240, 1003, 16 * 15 * 7):
            for cluster, request in requests(algorithm, operation, n, elements):
                made = planned(cluster, algorithm, request)
                if made.predicted is not None:
                    assert time_of(cluster, algorithm, request) == pytest.approx(made.predicted, rel=1e-9)
