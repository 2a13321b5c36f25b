"""Which request does a scenario's collective make, and does it carry real arrays? `payload: auto` decides by size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from simulator.basics.dtypes import find as find_dtype
from simulator.basics.spec import servers_among
from simulator.scenario.records import CollectiveSpec, Payload

if TYPE_CHECKING:
    from simulator.collectives.algorithm import CollectiveRequest

# Under payload: auto, real arrays move up to this total size over every rank [B].
PAYLOAD_LIMIT: Final = 256 * 2**20


def carries_payload(payload: Payload, nbytes: int) -> bool:
    """Return True if a collective moves real arrays: as requested, or, under "auto", if the arrays are small.

    Parameters
    ----------
    payload : bool or "auto"
        Value of the key.
    nbytes : int
        Size of the arrays, summed over the ranks [B].

    Examples
    --------
    >>> carries_payload("auto", 2**20), carries_payload("auto", 2**40), carries_payload(True, 2**40)
    (True, False, True)
    """
    return nbytes <= PAYLOAD_LIMIT if payload == "auto" else bool(payload)


def request_of(spec: CollectiveSpec, world_size: int) -> CollectiveRequest:
    """Return the request (operation, ranks, elements, options) of a collective on a cluster of `world_size` ranks."""
    from simulator.collectives.algorithm import CollectiveRequest

    ranks, size = ranks_of(spec, world_size), spec.group_size
    return CollectiveRequest(
        operation=spec.operation,
        world_size=ranks,
        elements=spec.nbytes // itemsize_of(spec),
        root=spec.root or 0,
        rank_order=spec.rank_order or (),
        chunks=spec.chunks,
        # One separate server by default.
        servers=servers_among(spec.servers.count, ranks) if spec.servers else 1,
        servers_on=spec.servers.on if spec.servers else "own",
        nodes=tuple(tuple(range(b, b + size)) for b in range(0, ranks, size)) if size else (),
    )


def itemsize_of(spec: CollectiveSpec) -> int:
    """Return the size of an array element [B]."""
    return find_dtype(spec.dtype).itemsize


def ranks_of(spec: CollectiveSpec, world_size: int) -> int:
    """Return the number of ranks that take part in the collective: its group's, or all."""
    return len(spec.group or range(world_size))
