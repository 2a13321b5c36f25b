"""Every algorithm gives every element right, sends what it declares, and keeps its promise without a clock."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import ALGORITHMS, ROOTED, CollectiveRequest
from simulator.testing import algorithm_laws as laws
from simulator.testing import check_algorithm, machines
from simulator.testing.arrays import truth
from tests.playing import Array, nodes, parts, played, same_bits, star, starts, time_of

PAIRS = [pytest.param(a, o, id=f"{a}-{o}") for a, o in ALGORITHMS.pairs()]
SIZES = (2, 3, 4, 5, 7, 8, 13, 16, 32)
# Powers of two and primes, of which these are enough to see a wrong rank, and of the large ones every second algorithm
# and operation has the one, the others the other; long runs have the others too.
FEW, LARGE = (2, 3, 5, 8), (13, 16)
DTYPES = ("int64", "int8", "float32", "float16", "bfloat16")


def requests(algorithm: str, operation: str, n: int, elements: int) -> Iterator[tuple[Cluster, CollectiveRequest]]:
    """Where, and with which options, an algorithm can run on n ranks: its own examples."""
    return machines.requests(ALGORITHMS.find(algorithm), operation, n, elements)


@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
def test_rows_are_counted_before_they_are_written_down(algorithm: str, operation: str) -> None:
    for n in SIZES[:-1]:
        for cluster, request in requests(algorithm, operation, n, 100 * n):
            laws.counts_rows(ALGORITHMS.find(algorithm), cluster, request)


every_size = pytest.mark.parametrize(
    ("algorithm", "operation", "n"),
    [
        pytest.param(a, o, n, id=f"{a}-{o}-{n}", marks=[pytest.mark.long] * (n not in (*FEW, LARGE[place % 2])))
        for place, (a, o) in enumerate(ALGORITHMS.pairs())
        for n in SIZES
    ],
)


@every_size
def test_every_element_is_right(algorithm: str, operation: str, n: int) -> None:
    # A few elements are those of fewer ranks once more.
    for elements in (1, n - 1, 1003)[2 if n >= 16 else 0 :]:
        for place, (cluster, request) in enumerate(requests(algorithm, operation, n, elements)):
            # All dtypes where there is one variant; else they take turns, and each variant sees two. Small messages of
            # many ranks, and all of 13 and more, are those of fewer ranks once more: two dtypes there too.
            chosen = (
                DTYPES
                if place == 0 and (n < 5 or (elements > n and n < 13))
                else (DTYPES[place % 5], DTYPES[(place + 2) % 5])
            )
            for dtype in chosen:
                laws.gives_exact_results(ALGORITHMS.find(algorithm), cluster, request, dtype)


@pytest.mark.long
@pytest.mark.parametrize("n", [5, 8, 13, 16])
@pytest.mark.parametrize(("algorithm", "operation"), PAIRS)
def test_every_element_is_right_in_every_dtype(algorithm: str, operation: str, n: int) -> None:
    for elements in (1, n - 1, 1003):
        for cluster, request in requests(algorithm, operation, n, elements):
            for dtype in DTYPES:
                laws.gives_exact_results(ALGORITHMS.find(algorithm), cluster, request, dtype)


@pytest.mark.parametrize("algorithm", ALGORITHMS.names())
def test_a_million_and_three_elements_are_right(algorithm: str) -> None:
    for operation in ALGORITHMS.operations(algorithm)[:1]:
        for cluster, request in list(requests(algorithm, operation, 4, 1_000_003))[:2]:
            laws.gives_exact_results(ALGORITHMS.find(algorithm), cluster, request)


@every_size
def test_it_sends_what_it_declares_and_proves_its_promise(algorithm: str, operation: str, n: int) -> None:
    declared = ALGORITHMS.find(algorithm)
    for elements in (0, 1, n - 1, 1003):
        for cluster, request in requests(algorithm, operation, n, elements):
            laws.sends_its_volume(declared, cluster, request)
            laws.keeps_its_promise(declared, cluster, request)


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
                laws.takes_its_closed_form(ALGORITHMS.find(algorithm), cluster, request)


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_a_user_gets_the_same_laws_from_a_single_function(algorithm: str) -> None:
    checked = check_algorithm(algorithm)
    assert checked.holds
    assert {result.operation for result in checked.results} == set(ALGORITHMS.operations(algorithm))
    assert all(result.cases for result in checked.results if result.law != "closed form")
