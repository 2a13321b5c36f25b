"""Arrays carried by transfers: faults put in show, and nobody writes into somebody else's array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator.collectives.algorithm import ALGORITHMS, REDUCING, CollectiveRequest
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from tests.playing import NODED, TOLD_NODES, Array, nodes, played, same_bits, star, starts, time_of


def zeroed(value: Array) -> Array:
    return np.zeros_like(value)


def scenario(algorithm: str, operation: str = "all_reduce", **collective: Any) -> Any:
    facts = {"operation": operation, "algorithm": algorithm, "size": "64 KiB", **collective}
    topology = "dgx_h100" if algorithm in NODED else "star_100g"
    return load_scenario({"name": "fault", "cluster": {"topology": topology, "world_size": 8}, "collective": facts})


@pytest.mark.parametrize(("algorithm", "operation"), ALGORITHMS.pairs())
@pytest.mark.parametrize("dtype", ["int64", "float32", "bfloat16"])
@pytest.mark.one_of(3)
def test_a_zeroed_transfer_shows(algorithm: str, operation: str, dtype: str) -> None:
    sound = simulate(scenario(algorithm, operation, dtype=dtype))
    assert sound.report.wrong == 0
    number = min(16, sound.report.transfers - 1)
    faulty = simulate(scenario(algorithm, operation, dtype=dtype), tamper={number: zeroed})
    assert faulty.report.wrong is not None
    assert faulty.report.wrong > 0
    assert faulty.report.time_s == sound.report.time_s


def test_one_bit_in_one_element_of_one_transfer_shows() -> None:
    def nudged(value: Array) -> Array:
        value[3] = np.nextafter(value[3], np.float32(np.inf))
        return value

    last = simulate(scenario("ring")).report.transfers - 1
    assert simulate(scenario("ring"), tamper={last: nudged}).report.wrong == 1


def test_a_fault_in_a_reducing_transfer_reaches_every_rank() -> None:
    # Transfer 16 of a ring of 8 is reduced on: all ranks get the wrong chunk of 64 KiB / 4 B / 8 elements.
    assert simulate(scenario("ring", dtype="int64"), tamper={16: zeroed}).report.wrong == pytest.approx(
        8 * 65_536 / 8 / 8, rel=0.05
    )


def test_the_senders_own_array_is_not_touched_by_a_fault() -> None:
    x = starts(CollectiveRequest("broadcast", 4, 100), "float32")
    run = played(star(4), "direct", CollectiveRequest("broadcast", 4, 100), start=x, tamper={0: zeroed})
    assert same_bits(run.results[0], x[0])
    assert not run.results[1].any()
    assert same_bits(run.results[2], x[0])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float8_e4m3fn"])
def test_an_average_is_the_sum_divided_once(dtype: str) -> None:
    request = CollectiveRequest("all_reduce", 6, 1003)
    x = starts(request, dtype)
    total = played(star(6), "ring", request, dtype=dtype, start=x).results[0]
    average = played(star(6), "ring", request, dtype=dtype, reduction="average", start=x)
    wanted = (total.astype(np.float32) / np.float32(6)).astype(total.dtype)
    assert all(same_bits(result, wanted) for result in average.results)
    assert average.verdict.wrong == 0


@pytest.mark.parametrize(("algorithm", "operation"), [p for p in ALGORITHMS.pairs() if p[1] in REDUCING])
@pytest.mark.parametrize("accumulate", ["payload", "float32"])
@pytest.mark.parametrize("reduction", ["sum", "average", "max", "min", "product"])
def test_every_reduction_is_right_in_every_algorithm(
    algorithm: str, operation: str, accumulate: str, reduction: str
) -> None:
    n, elements = 8, 203
    cluster = nodes(n, 4) if algorithm in NODED else star(n, 1)
    request = CollectiveRequest(operation, n, elements)
    x = starts(request, "bfloat16")
    run = played(cluster, algorithm, request, dtype="bfloat16", reduction=reduction, accumulate=accumulate, start=x)
    wide = np.stack([a.astype(np.float64) for a in x])
    exact = {
        "sum": wide.sum(0), "average": wide.mean(0), "max": wide.max(0), "min": wide.min(0), "product": wide.prod(0)
    }[reduction]  # fmt: skip
    whole = np.concatenate(run.results) if operation == "reduce_scatter" else run.results[0]
    error = np.abs(whole.astype(np.float64) - exact)
    u = 2.0**-8
    if reduction in ("max", "min"):
        assert not error.any()
    elif reduction == "product":
        assert np.all(error <= ((1 + u) ** n - 1) * np.abs(exact) + 1e-30)
    else:
        scale = np.abs(wide).sum(0) / (n if reduction == "average" else 1)
        # In several nodes an in-switch sum of a node travels in the payload's dtype, so it is rounded there too.
        steps = (1 + u) ** (n + 1) - 1 if accumulate == "payload" else u * (2.1 if algorithm == "nvls" else 1.001)
        assert np.all(error <= steps * scale)
    assert run.verdict.wrong == 0


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving_doubling", "double_binary_tree", *TOLD_NODES])
def test_partial_sums_in_float32_take_four_bytes_on_the_wire_where_they_travel(algorithm: str) -> None:
    n, elements = 8, 8 * 1000
    cluster = nodes(n, 4) if algorithm in NODED else star(n)
    run = played(
        cluster, algorithm, CollectiveRequest("all_reduce", n, elements), dtype="bfloat16", accumulate="float32"
    )
    log = run.timeline.logs[0]
    reducing = log.transfers.reduce
    assert log.nbytes[reducing].sum() == (n - 1) * elements * 4
    assert log.nbytes[~reducing].sum() == (n - 1) * elements * 2


@pytest.mark.parametrize("algorithm", ["direct", "naive", "parameter_server"])
def test_what_is_added_at_its_goal_is_sent_in_the_payloads_dtype(algorithm: str) -> None:
    n, elements = 8, 8 * 1000
    request = CollectiveRequest("all_reduce", n, elements)
    run = played(star(n, 1), algorithm, request, dtype="bfloat16", accumulate="float32")
    assert run.timeline.logs[0].nbytes.sum() == ALGORITHMS.find(algorithm).volume(request) * 2
    assert run.time == time_of(star(n, 1), algorithm, request, dtype="bfloat16")


def test_overflow_is_counted_once_an_element() -> None:
    request = CollectiveRequest("all_reduce", 4, 6)
    huge = np.array([6e4, 3e4, 1.0, -6e4, 1.6e4, 2e4], np.float16)
    run = played(star(4), "ring", request, dtype="float16", start=[huge] * 4)
    # Four times: 240,000, 120,000 and -240,000 are beyond 65,504, and so is 80,000; 64,000 and 4 are not.
    assert run.verdict.overflowed == 4
    assert np.isinf(run.results[0].astype(np.float32)).tolist() == [True, True, False, True, False, True]
    assert run.verdict.wrong == 0


def test_an_int8_sum_wraps_and_is_counted() -> None:
    x = [np.array([100, 1, -128], np.int8)] * 2
    run = played(star(2), "direct", CollectiveRequest("all_reduce", 2, 3), dtype="int8", start=x)
    assert run.results[0].tolist() == [-56, 2, 0]
    assert run.verdict.overflowed == 2


def test_nothing_overflows_in_what_is_only_copied() -> None:
    x = [np.full(8, np.inf, np.float16), np.full(8, np.nan, np.float16)]
    run = played(star(2), "ring", CollectiveRequest("all_gather", 2, 8), dtype="float16", start=x)
    assert (run.verdict.overflowed, run.verdict.wrong) == (0, 0)


@pytest.mark.parametrize("dtype", ["float64", "uint8", "int32", "float8_e4m3fn", "float8_e5m2"])
def test_the_other_dtypes_are_carried_too(dtype: str) -> None:
    for algorithm in ("ring", "direct", "tree"):
        run = played(star(5), algorithm, CollectiveRequest("all_reduce", 5, 1003), dtype=dtype)
        assert run.verdict.wrong == 0
        assert run.results[0].dtype == run.inputs[0].dtype
