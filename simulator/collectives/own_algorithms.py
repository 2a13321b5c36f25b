"""Which algorithms come from outside the package, do they carry out their operation, and how much do they send at once?

Shipped algorithms declare their flows, and tests prove them. Any other algorithm is proved before it is simulated, and
its flows are counted in its transfers.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Final

import numpy as np

from simulator.basics.arrays import Ints
from simulator.basics.errors import ScheduleError
from simulator.collectives.algorithm import ALGORITHMS, Algorithm, CollectiveRequest, Flows
from simulator.records.transfers import write_out

# Most transfers of a proof, which takes up to 5 s and 130 MB with this number: both grow with its square.
_MOST_PROVED: Final = 2**15


@lru_cache(maxsize=256)
def prove(algorithm: Algorithm, request: CollectiveRequest) -> None:
    """Prove an algorithm for a request, on fewer ranks if there are too many; shipped algorithms are proved by tests.

    Raises
    ------
    ScheduleError
        The algorithm does not carry out its operation; the message names transfer or rank.
    ValueError
        The algorithm refuses the request.
    """
    if is_own(algorithm):
        # Imported late, because most algorithms are shipped ones.
        from simulator.collectives.verify import verify

        verify(algorithm.plans[request.operation](_proved_request(algorithm, request)))


def broken_text(name: str, operation: str, error: ScheduleError) -> str:
    """Return a refusal of an algorithm that does not carry out its operation, with the fault that its proof found."""
    return f"got {name!r}, which does not carry out {operation}: {error}; `simulator check-algorithm` tells more"


def is_own(algorithm: Algorithm) -> bool:
    """Return True if an algorithm is not shipped with the package."""
    return all(algorithm is not shipped for shipped in ALGORITHMS.by_name.values())


@lru_cache(maxsize=256)
def flows_at_once(algorithm: Algorithm, request: CollectiveRequest) -> Flows:
    """Return (inside, across): most transfers that a rank of an own algorithm sends at once in its node, and to others.

    Transfers with equally long chains of transfers before them run at once: they share their sender's rate. At least 1.
    """
    node_of = {place: number for number, node in enumerate(request.nodes) for place in node}
    sent = Counter[tuple[int, int, bool]]()
    for depth, (sources, destinations) in enumerate(transfers_at_once(algorithm, request)):
        for src, dst in zip(sources.tolist(), destinations.tolist(), strict=True):
            if src < request.world_size:
                sent[src, depth, node_of.get(src) != node_of.get(dst) and dst < request.world_size] += 1
    most = [max((count for (*_, away), count in sent.items() if away is across), default=1) for across in (False, True)]
    return Flows(*most)


def transfers_at_once(algorithm: Algorithm, request: CollectiveRequest) -> tuple[tuple[Ints, Ints], ...]:
    """Return sources and destinations of an own algorithm's transfers, by the length of the chain of transfers before
    them: equally long ones run at once.
    """
    transfers, depths = write_out(algorithm.plans[request.operation](request)), list[int]()
    for waits, before in zip(transfers.waits_of(), transfers.before_on_channel.tolist(), strict=True):
        depths.append(1 + max((depths[awaited] for awaited in (*waits, before) if awaited >= 0), default=-1))
    depth = np.array(depths, np.int64)
    return tuple((transfers.src[depth == level], transfers.dst[depth == level]) for level in range(max(depths) + 1))


def proof_text(algorithm: Algorithm, request: CollectiveRequest) -> str:
    """Return a remark that an own algorithm was proved on fewer ranks than it is simulated on; "" if on as many."""
    proved = _proved_request(algorithm, request).world_size
    if proved == request.world_size:
        return ""
    return f"; proved on {proved} ranks, because {request.world_size} ranks have too many transfers"


@lru_cache(maxsize=256)
def _proved_request(algorithm: Algorithm, request: CollectiveRequest) -> CollectiveRequest:
    """Return the request whose schedule is proved in place of `request`: the same, or one with fewer ranks.

    A schedule with too many transfers for a proof is represented by half of its nodes (of its ranks, on one node), and
    so on, down to the fewest ranks that the algorithm accepts.
    """
    proved = request
    while algorithm.plans[request.operation](proved).length() > _MOST_PROVED and proved.world_size > 2:
        smaller = _halved(proved)
        try:
            algorithm.plans[request.operation](smaller)
        except ValueError:
            break
        proved = smaller
    return proved


def _halved(request: CollectiveRequest) -> CollectiveRequest:
    """Return the request for the first half of its nodes; on a single node, for the first half of its ranks.

    >>> half = _halved(CollectiveRequest("all_reduce", 4, 8, nodes=((0, 2), (1, 3))))
    >>> half.world_size, half.nodes
    (2, ((0, 1),))
    """
    half = request.nodes[: -(-len(request.nodes) // 2)] if len(request.nodes) > 1 else ()
    places = sorted(place for node in half for place in node) or range(-(-request.world_size // 2))
    new = {place: number for number, place in enumerate(places)}
    return replace(
        request,
        world_size=len(new),
        root=new.get(request.root, 0),
        rank_order=tuple(new[place] for place in request.rank_order if place in new),
        servers=min(request.servers, len(new)),
        nodes=tuple(tuple(new[place] for place in node) for node in half or (tuple(places),) * bool(request.nodes)),
    )
