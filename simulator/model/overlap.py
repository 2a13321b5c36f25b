"""Matmuls that hide the exchanges of tensor parallelism: in pieces that go round a ring, or as a whole beside them.

What Transformer Engine calls ring exchange cuts a gather, or a sum that is scattered, into as many pieces as there are
ranks, and the matmul that needs or makes it too: while one piece is multiplied the next is on its way. With t pieces of
a matmul of time G and t - 1 shifts of time g this takes G / t + (t - 1) max(G / t, g). Bulk leaves exchanges whole,
beside a matmul that does not need them, where Megatron-LM has them anyway; they take other SMs than a library's.

Rule: rewrites an operation's kernels and exchanges; bytes and FLOPs stay the same. What a ring adds up on the way is
taken to be part of the matmul.

References
----------
.. [1] NVIDIA/TransformerEngine, transformer_engine/pytorch/module/base.py: initialize_ub, which method at which site,
   and the SMs that each takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simulator.model.cut import Communication, Cut
from simulator.model.kernel import Kernel, Matmul
from simulator.model.operation import Operation

# SMs that an exchange takes [1]_.
_SMS: Final = {"ring": 1, "bulk": 16}


def overlapped(operation: Operation, cut: Cut) -> Operation:
    """An operation as it is with user buffers; as it was where nothing is asked for, or sequences are whole."""
    if cut.overlap == "none" or not cut.sequence:
        return operation
    made = replace(operation, communications=tuple(map(_with_sms, operation.communications)))
    if cut.overlap == "bulk":
        return made
    forward = _in_rings(made.forward, [one for one in made.communications if not one.backward], cut.tensor)
    backward = _in_rings(made.backward, [one for one in made.communications if one.backward], cut.tensor)
    return replace(
        made,
        forward=forward.kernels,
        backward=backward.kernels,
        communications=forward.communications + backward.communications,
    )


def _with_sms(one: Communication) -> Communication:
    return replace(one, sms=_SMS["bulk"]) if one.group == "tensor" and one.before < one.awaited else one


@dataclass(frozen=True, slots=True)
class _Pass:
    """Kernels of one direction, and the exchanges among them."""

    kernels: tuple[Kernel, ...]
    communications: tuple[Communication, ...]


def _in_rings(kernels: Sequence[Kernel], communications: Sequence[Communication], ranks: int) -> _Pass:
    """Cut each matmul that an exchange stands right before or behind, and that exchange, into pieces."""
    around = {_site(one, kernels): one for one in communications if _site(one, kernels) is not None}
    cut: list[Kernel] = []
    begins: list[int] = []
    for place, kernel in enumerate(kernels):
        begins.append(len(cut))
        if place in around and isinstance(kernel, Matmul):
            cut += [replace(kernel, m=kernel.m // ranks)] * ranks
        else:
            cut.append(kernel)
    begins.append(len(cut))
    made: list[Communication] = []
    for one in communications:
        site = _site(one, kernels)
        if site is None:
            made.append(replace(one, before=begins[one.before], awaited=begins[one.awaited]))
        else:
            made += _shifts(one, begins[site], ranks)
    return _Pass(tuple(cut), tuple(made))


def _site(one: Communication, kernels: Sequence[Kernel]) -> int | None:
    """The place of the matmul that an exchange, which nothing hides, stands right before or behind."""
    if one.group != "tensor" or one.before != one.awaited:
        return None
    place = {"all_gather": one.before, "reduce_scatter": one.before - 1}.get(one.operation, -1)
    return place if 0 <= place < len(kernels) and isinstance(kernels[place], Matmul) else None


def _shifts(one: Communication, first: int, ranks: int) -> Iterator[Communication]:
    """A rank's own piece is there first: what comes is needed by the next piece; what is made goes on with the next."""
    gathers = one.operation == "all_gather"
    for number in range(1, ranks):
        before = first + number - 1 if gathers else first + number
        awaited = before + 1 if gathers else first + ranks
        yield Communication(
            f"{one.name}, piece {number}", "ring_shift", one.elements, one.backward, before, awaited, one.dtype,
            one.group, _SMS["ring"],
        )  # fmt: skip
