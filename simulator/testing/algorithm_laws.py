"""Laws that every collective algorithm obeys; each function raises BrokenLawError if an algorithm breaks its law.

Results are compared with numpy's own sums, and never with the schedule.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulator.basics import dtypes
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import Algorithm, CollectiveRequest
from simulator.collectives.verify import verify
from simulator.records.chunks import chunk_sizes, transfer_elements
from simulator.records.schedule import Repeat, Schedule
from simulator.records.transfers import Transfers, write_out
from simulator.testing.arrays import error_bound, parts, same_bits, truth
from simulator.testing.law import require
from simulator.testing.playing import planned, played, time_of

# Largest relative difference of a closed form and the simulated time.
_EQUAL = 1e-9


def schedule_of(algorithm: Algorithm, cluster: Cluster, request: CollectiveRequest) -> Schedule:
    """Return an algorithm's schedule for a request, with the cluster's nodes if the request names none."""
    full = request if request.nodes else replace(request, nodes=cluster.nodes)
    return algorithm.plans[request.operation](full)


def counts_rows(algorithm: Algorithm, cluster: Cluster, request: CollectiveRequest) -> None:
    """Check that a schedule's declared number of rows equals the number of rows that it writes."""
    schedule = schedule_of(algorithm, cluster, request)
    rows = sum(len(part.round if isinstance(part, Repeat) else part) for part in schedule.parts())
    require(schedule.rows == rows, f"declares {schedule.rows} rows, and writes {rows}")


def keeps_its_promise(algorithm: Algorithm, cluster: Cluster, request: CollectiveRequest) -> None:
    """Check by proof that every rank ends with the promised data, and that no transfer races with another."""
    verify(*_written(algorithm, cluster, request))


def sends_its_volume(algorithm: Algorithm, cluster: Cluster, request: CollectiveRequest) -> None:
    """Check that the elements on the wire are as many as declared, and the fewest possible if declared minimal."""
    schedule, transfers = _written(algorithm, cluster, request)
    sent = int(transfer_elements(transfers, chunk_sizes(schedule, request.elements)).sum())
    full = request if request.nodes else replace(request, nodes=cluster.nodes)
    declared, fewest = algorithm.volume(full), least(request)
    require(sent == declared, f"sends {sent} elements, and declares a volume of {declared}")
    # Transfers of a reducing switch count too, therefore no algorithm sends fewer elements.
    require(sent >= fewest, f"sends {sent} elements; no algorithm can send fewer than {fewest}")
    require(sent == fewest or not algorithm.minimal(full), f"sends {sent} elements, and declares the least, {fewest}")


def least(request: CollectiveRequest) -> int:
    """Return the fewest elements on the wire, for S elements over N ranks.

    Sources: Patarasuk & Yuan 2009; Thakur, Rabenseifner & Gropp 2005.
    """
    n, s = request.world_size, request.elements
    root_elements = len(range(s)[parts(s, n)[request.root]])
    formulas = {
        "all_reduce": 2 * (n - 1) * s,
        "reduce_scatter": (n - 1) * s,
        "all_gather": (n - 1) * s,
        "broadcast": (n - 1) * s,
        "reduce": (n - 1) * s,
        "scatter": s - root_elements,
        "gather": s - root_elements,
        "all_to_all": (n - 1) * s,
    }
    return formulas[request.operation]


def gives_exact_results(
    algorithm: Algorithm, cluster: Cluster, request: CollectiveRequest, dtype: str = "int64"
) -> None:
    """Check every element of every rank after a simulation with arrays.

    Copies and integers must be equal in every bit; sums of floats must be within the bound for any order.
    """
    run = played(cluster, algorithm, request, dtype=dtype)
    results, truths = run.results, truth(request, run.inputs)
    for rank, result in enumerate(results):
        if truths is not None:
            require(same_bits(result, truths[rank]), f"rank {rank} ends with wrong elements of {dtype}")
            continue
        exact, bound = (of_ranks[rank] for of_ranks in error_bound(request, run.inputs, dtype))
        require(result.shape == exact.shape, f"rank {rank} ends with {len(result)} elements, not {len(exact)}")
        near = np.all(np.abs(result.astype(np.float64) - exact) <= bound)
        require(bool(near), f"rank {rank} ends with {dtype} sums beyond the error of any order of additions")
    if request.operation == "all_reduce":
        require(all(same_bits(results[0], other) for other in results[1:]), "ranks end with different sums")
    verdict = run.verdict
    require(verdict.wrong == 0, f"{verdict.wrong} elements are wrong")
    if dtype == "int8" and request.operation == "all_reduce":
        limits = np.iinfo(dtypes.find(dtype).numpy)
        totals = np.sum([a.astype(object) for a in run.inputs], axis=0).tolist()
        overflowed = sum(not limits.min <= total <= limits.max for total in totals)
        require(verdict.overflowed == overflowed, f"{verdict.overflowed} sums overflow; must be {overflowed}")


def takes_its_closed_form(algorithm: Algorithm, cluster: Cluster, request: CollectiveRequest) -> bool:
    """Check that the simulated time equals the closed form; return False if the algorithm declares none here."""
    predicted = planned(cluster, algorithm, request).predicted
    if predicted is None:
        return False
    time = time_of(cluster, algorithm, request)
    off = abs(time - predicted) > _EQUAL * max(time, predicted)
    require(not off, f"takes {time:.9g} s, and its closed form gives {predicted:.9g} s")
    return True


def _written(algorithm: Algorithm, cluster: Cluster, request: CollectiveRequest) -> tuple[Schedule, Transfers]:
    schedule = schedule_of(algorithm, cluster, request)
    return schedule, write_out(schedule)
