"""Matmuls that hide tensor-parallel exchanges: in pieces that travel round a ring, or whole exchanges beside a matmul.

Transformer Engine's ring exchange cuts a gather, or a reduce-scatter, into as many pieces as ranks, and likewise the
matmul that consumes or produces it: a piece is multiplied while another is in flight. With t pieces of a matmul of time
G and t - 1 shifts of time g, this takes G / t + (t - 1) max(G / t, g). For 3 ranks:

    gather   matmul  [piece 0][piece 1][piece 2]        scatter   matmul  [piece 0][piece 1][piece 2]
             shifts  [shift 1][shift 2]                           shifts           [shift 1][shift 2]

Bulk keeps exchanges whole, beside a matmul that does not need them. Megatron-LM overlaps the same exchanges anyway;
bulk only changes the number of SMs taken.

This module rewrites an operation's kernels and exchanges; bytes and FLOPs stay the same. Additions in a ring are
considered a part of the matmul.

References
----------
.. [1] NVIDIA/TransformerEngine, transformer_engine/pytorch/module/base.py: initialize_ub, which method at which site,
   and the SMs that each takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simulator.model.kernel import Kernel, Matmul
from simulator.model.operation import Operation
from simulator.model.partition import Communication, ModelPartition

# SMs taken by an exchange [1]_.
_SMS: Final = {"ring": 1, "bulk": 16}


def overlapped(operation: Operation, cut: ModelPartition) -> Operation:
    """Return an operation in which matmuls hide tensor-parallel exchanges; unchanged without overlap or sequence
    parallelism.
    """
    # Without sequence parallelism there are only all-reduces, which are not cut into pieces.
    if cut.overlap == "none" or not cut.sequence:
        return operation
    with_sms = replace(operation, communications=tuple(map(_with_sms, operation.communications)))
    if cut.overlap == "bulk":
        return with_sms
    forward = _in_rings(
        with_sms.forward, [exchange for exchange in with_sms.communications if not exchange.backward], cut.tensor
    )
    backward = _in_rings(
        with_sms.backward, [exchange for exchange in with_sms.communications if exchange.backward], cut.tensor
    )
    return replace(
        with_sms,
        forward=forward.kernels,
        backward=backward.kernels,
        communications=forward.communications + backward.communications,
    )


def _with_sms(exchange: Communication) -> Communication:
    """Return an exchange with the SMs taken in "bulk" overlap if a kernel hides the exchange; otherwise unchanged."""
    return (
        replace(exchange, sms=_SMS["bulk"])
        if exchange.group == "tensor" and exchange.before < exchange.awaited
        else exchange
    )


@dataclass(frozen=True, slots=True)
class _Pass:
    """Kernels of an operation's forward or backward pass, and the exchanges between the kernels."""

    kernels: tuple[Kernel, ...]
    communications: tuple[Communication, ...]


def _in_rings(kernels: Sequence[Kernel], communications: Sequence[Communication], ranks: int) -> _Pass:
    """Return a pass in which each exchange directly beside a matmul is cut, with the matmul, into `ranks` pieces."""
    around = {_site(exchange, kernels): exchange for exchange in communications if _site(exchange, kernels) is not None}
    cut: list[Kernel] = []
    # New index of each old kernel. For 3 ranks and a cut matmul at index 1: old kernels 0, 1, 2 begin at 0, 1, 4.
    begins: list[int] = []
    for place, kernel in enumerate(kernels):
        begins.append(len(cut))
        if place in around and isinstance(kernel, Matmul):
            cut += [replace(kernel, m=kernel.m // ranks)] * ranks
        else:
            cut.append(kernel)
    begins.append(len(cut))
    exchanges: list[Communication] = []
    for exchange in communications:
        site = _site(exchange, kernels)
        if site is None:
            # Exchanges that are not cut keep their neighbours under the new numbers.
            exchanges.append(replace(exchange, before=begins[exchange.before], awaited=begins[exchange.awaited]))
        else:
            exchanges += _shifts(exchange, begins[site], ranks)
    return _Pass(tuple(cut), tuple(exchanges))


def _site(exchange: Communication, kernels: Sequence[Kernel]) -> int | None:
    """Return the index of the matmul after a gather, or before a reduce-scatter, that nothing hides; else None."""
    # before == awaited: the next kernel waits at once, so nothing hides this exchange.
    if exchange.group != "tensor" or exchange.before != exchange.awaited:
        return None
    # A gather feeds the matmul behind it; a reduce-scatter sums the output of the matmul before it.
    place = {"all_gather": exchange.before, "reduce_scatter": exchange.before - 1}.get(exchange.operation, -1)
    return place if 0 <= place < len(kernels) and isinstance(kernels[place], Matmul) else None


def _shifts(exchange: Communication, first: int, ranks: int) -> Iterator[Communication]:
    """Yield the ring shifts of an exchange cut into pieces; `first` is the index of the first matmul piece."""
    gathers = exchange.operation == "all_gather"
    for number in range(1, ranks):
        # Gather: shift n runs during piece n - 1 and brings the input of piece n. Scatter: shift n starts after piece n
        # - 1 and ends before the next operation.
        before = first + number - 1 if gathers else first + number
        awaited = before + 1 if gathers else first + ranks
        yield Communication(
            f"{exchange.name}, piece {number}", "ring_shift", exchange.elements, exchange.backward, before, awaited,
            exchange.dtype, exchange.group, _SMS["ring"],
        )  # fmt: skip
