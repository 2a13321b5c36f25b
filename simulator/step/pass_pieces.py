"""A pass through a unit as pieces: kernels one after the other, and what the model's ranks exchange between them.

Rule: only order: a piece says which exchanges it waits for; what overlaps comes out of the engine.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.model.cut import Communication
from simulator.model.kernel import Kernel
from simulator.model.operation import Operation
from simulator.step.kernel_timer import KernelCost, KernelTimer

# The whole backward pass, or what of it makes gradients of inputs, or of weights.
Part = Literal["whole", "input", "weights"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Kernels, or an exchange.

    Attributes
    ----------
    cost : KernelCost or None
        Of the kernels.
    exchange : Communication or None
    awaited : tuple of int
        Places of the exchanges of the same pass that the kernels wait for.
    """

    cost: KernelCost | None
    exchange: Communication | None = None
    awaited: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PassPieces:
    """What a pass issues, in that order; sums are over its kernels."""

    pieces: tuple[Piece, ...]

    @property
    def cost(self) -> KernelCost:
        """Of all kernels."""
        total, *others = [piece.cost for piece in self.pieces if piece.cost is not None] or [NOTHING]
        for other in others:
            total += other
        return total

    @property
    def alone(self) -> float:
        """[s]"""
        return self.cost.alone

    @property
    def flops(self) -> float:
        """[FLOP]"""
        return self.cost.flops

    @property
    def exchanges(self) -> tuple[Communication, ...]:
        """In the order in which they start."""
        return tuple(piece.exchange for piece in self.pieces if piece.exchange is not None)

    def __add__(self, other: PassPieces) -> PassPieces:
        """One after the other; without exchanges in one piece."""
        if not self.exchanges and not other.exchanges:
            return PassPieces((Piece(self.cost + other.cost),))
        shifted = tuple(
            Piece(piece.cost, piece.exchange, tuple(len(self.pieces) + place for place in piece.awaited))
            for piece in other.pieces
        )
        return PassPieces(self.pieces + shifted)


NOTHING = KernelCost(0.0, 0.0, 0.0, 0.0)
NO_PASS = PassPieces(())


def forward_pieces(timer: KernelTimer, operations: Sequence[Operation]) -> PassPieces:
    """The forward pass through operations."""
    return _pieces(timer, [_Listed(op.forward, _of(op, backward=False)) for op in operations])


def backward_pieces(timer: KernelTimer, operations: Sequence[Operation], part: Part = "whole") -> PassPieces:
    """The backward pass through operations, or a part of it."""
    listed = [_part(op, part) for op in operations]
    if not any(own.exchanges for own in listed):
        # Nothing stands between them, so that they are summed in one order whatever part of them is asked for.
        return _pieces(timer, listed)
    return _pieces(timer, listed[::-1])


@dataclass(frozen=True, slots=True)
class _Listed:
    """Kernels of an operation, and its exchanges with places among them."""

    kernels: tuple[Kernel, ...]
    exchanges: tuple[tuple[int, int, Communication], ...]


def _of(op: Operation, *, backward: bool) -> tuple[tuple[int, int, Communication], ...]:
    return tuple((one.before, one.awaited, one) for one in op.communications if one.backward == backward)


def _part(op: Operation, part: Part) -> _Listed:
    if part == "whole":
        return _Listed(op.backward, _of(op, backward=True))
    wanted = [kernel.of_weights == (part == "weights") for kernel in op.backward]
    kernels = tuple(kernel for kernel, is_wanted in zip(op.backward, wanted, strict=True) if is_wanted)

    def of_weights(awaited: int) -> bool:
        return awaited < len(op.backward) and op.backward[awaited].of_weights

    exchanges = tuple(
        (sum(wanted[:before]), sum(wanted[:awaited]), one)
        for before, awaited, one in _of(op, backward=True)
        if of_weights(awaited) == (part == "weights")
    )
    return _Listed(kernels, exchanges)


def _pieces(timer: KernelTimer, listed: Sequence[_Listed]) -> PassPieces:
    kernels: list[Kernel] = []
    exchanges: list[tuple[int, int, Communication]] = []
    for own in listed:
        exchanges += [(len(kernels) + before, len(kernels) + awaited, one) for before, awaited, one in own.exchanges]
        kernels += own.kernels
    return PassPieces(tuple(_in_order(timer, kernels, exchanges)))


def _in_order(
    timer: KernelTimer, kernels: Sequence[Kernel], exchanges: Sequence[tuple[int, int, Communication]]
) -> Iterator[Piece]:
    """Cut the kernels where an exchange starts or is waited for."""
    cuts = sorted({0, len(kernels), *(place for before, awaited, _ in exchanges for place in (before, awaited))})
    place_of: dict[int, int] = {}
    place = 0
    for begin, end in zip(cuts, [*cuts[1:], len(kernels)], strict=True):
        for number, (before, _, one) in enumerate(exchanges):
            if before == begin:
                yield Piece(None, one)
                place_of[number] = place
                place += 1
        if end > begin:
            awaited = [n for n, (_, awaited, _) in enumerate(exchanges) if awaited == begin]
            beside = [one.sms for before, until, one in exchanges if before <= begin < until and one.sms is not None]
            cost = timer.cost(kernels[begin:end], max(beside, default=None))
            yield Piece(cost, None, tuple(place_of[number] for number in awaited))
            place += 1
