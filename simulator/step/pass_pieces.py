"""How is a unit's pass divided into pieces? Kernels in sequence, cut where model-parallel ranks exchange data.

A piece states its awaited exchanges; the engine determines the overlap.

Example: an operation with kernels k0, k1 and an exchange x, which starts before k1 and is awaited at the end. The
pieces are k0, x, k1, and the next pass waits for x.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from simulator.model.kernel import Kernel
from simulator.model.operation import Operation
from simulator.model.partition import Communication
from simulator.step.kernel_timer import KernelCost, KernelTimer

# Whole backward pass, or only the gradients of inputs, or of weights.
Part = Literal["whole", "input", "weights"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Kernels, or an exchange.

    Attributes
    ----------
    cost : KernelCost or None
        Cost of the kernels.
    awaited : tuple of int
        Indices of the pieces with exchanges for which the kernels wait.
    """

    cost: KernelCost | None
    exchange: Communication | None = None
    awaited: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PassPieces:
    """A pass's pieces, in order."""

    pieces: tuple[Piece, ...]

    @property
    def cost(self) -> KernelCost:
        """Total cost of the kernels."""
        total, *others = [piece.cost for piece in self.pieces if piece.cost is not None] or [NOTHING]
        for other in others:
            total += other
        return total

    @property
    def alone(self) -> float:
        """Duration without collectives [s]."""
        return self.cost.alone

    @property
    def flops(self) -> float:
        """Operations [FLOP]."""
        return self.cost.flops

    @property
    def exchanges(self) -> tuple[Communication, ...]:
        """Exchanges in the order of their starts."""
        return tuple(piece.exchange for piece in self.pieces if piece.exchange is not None)

    def __add__(self, other: PassPieces) -> PassPieces:
        """Return both passes in sequence, as a single piece if there are no exchanges."""
        if not self.exchanges and not other.exchanges:
            return PassPieces((Piece(self.cost + other.cost),))
        # Indices of awaited exchanges count from the beginning of the joined pass.
        shifted = tuple(
            Piece(piece.cost, piece.exchange, tuple(len(self.pieces) + place for place in piece.awaited))
            for piece in other.pieces
        )
        return PassPieces(self.pieces + shifted)


NOTHING = KernelCost(0.0, 0.0, 0.0, 0.0)
NO_PASS = PassPieces(())


def forward_pieces(timer: KernelTimer, operations: Sequence[Operation]) -> PassPieces:
    """Return the forward pass through operations."""
    return _pieces(timer, [_Listed(op.forward, _of(op, backward=False)) for op in operations])


def backward_pieces(timer: KernelTimer, operations: Sequence[Operation], part: Part = "whole") -> PassPieces:
    """Return the backward pass through operations, or a part of it."""
    listed = [_part(op, part) for op in operations]
    if not any(own.exchanges for own in listed):
        # Without exchanges, the sum keeps one order for every part, hence rounding is equal.
        return _pieces(timer, listed)
    return _pieces(timer, listed[::-1])


@dataclass(frozen=True, slots=True)
class _Listed:
    """Kernels of an operation, and its exchanges: (start before kernel, awaited by kernel, exchange)."""

    kernels: tuple[Kernel, ...]
    exchanges: tuple[tuple[int, int, Communication], ...]


def _of(op: Operation, *, backward: bool) -> tuple[tuple[int, int, Communication], ...]:
    """Return an operation's exchanges of one direction."""
    return tuple((one.before, one.awaited, one) for one in op.communications if one.backward == backward)


def _part(op: Operation, part: Part) -> _Listed:
    """Return an operation's backward kernels and exchanges, or a part of them."""
    if part == "whole":
        return _Listed(op.backward, _of(op, backward=True))
    # Renumber the exchanges' places among the kernels of this part.
    wanted = [kernel.of_weights == (part == "weights") for kernel in op.backward]
    kernels = tuple(kernel for kernel, is_wanted in zip(op.backward, wanted, strict=True) if is_wanted)

    def of_weights(awaited: int) -> bool:
        """Return True if a weight-gradient kernel waits for the exchange."""
        return awaited < len(op.backward) and op.backward[awaited].of_weights

    exchanges = tuple(
        (sum(wanted[:before]), sum(wanted[:awaited]), one)
        for before, awaited, one in _of(op, backward=True)
        if of_weights(awaited) == (part == "weights")
    )
    return _Listed(kernels, exchanges)


def _pieces(timer: KernelTimer, listed: Sequence[_Listed]) -> PassPieces:
    """Join operations, and cut their kernels at exchanges."""
    kernels: list[Kernel] = []
    exchanges: list[tuple[int, int, Communication]] = []
    for own in listed:
        exchanges += [(len(kernels) + before, len(kernels) + awaited, one) for before, awaited, one in own.exchanges]
        kernels += own.kernels
    return PassPieces(tuple(_in_order(timer, kernels, exchanges)))


def _in_order(
    timer: KernelTimer, kernels: Sequence[Kernel], exchanges: Sequence[tuple[int, int, Communication]]
) -> Iterator[Piece]:
    """Yield kernels and exchanges in order, cut where an exchange starts or is awaited."""
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
            # Exchanges through user buffers take their own number of SMs from the kernels beside them.
            beside = [one.sms for before, until, one in exchanges if before <= begin < until and one.sms is not None]
            cost = timer.cost(kernels[begin:end], max(beside, default=None))
            yield Piece(cost, None, tuple(place_of[number] for number in awaited))
            place += 1
