"""How is a unit's pass divided into pieces? Kernels in sequence, cut where model-parallel ranks exchange data.

A piece states its awaited exchanges; the engine determines the overlap.

Example: an operation with kernels k0, k1 and an exchange x, which starts before k1 and is awaited at the end. The
pieces are k0, x, k1, and the next pass waits for x.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Literal

from simulator.basics.dtypes import is_narrow
from simulator.model.kernel import Kernel, Matmul
from simulator.model.operation import GRAPH_SCOPES, Operation
from simulator.model.partition import Communication
from simulator.step.framework import Framework, HostTime
from simulator.step.kernel_timer import KernelCost, KernelTimer

# Whole backward pass, or only the gradients of inputs, or of weights.
Part = Literal["whole", "input", "weights"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a pass: either kernels in sequence, or an exchange between model-parallel ranks."""

    cost: KernelCost | None  # cost of the kernels
    exchange: Communication | None = None
    awaited: tuple[int, ...] = ()  # indices of the pieces with exchanges for which the kernels wait
    synchronizes: bool = False  # whether the host waits for the end of the kernels before it launches more


@dataclass(frozen=True, slots=True)
class PassPieces:
    """A forward or backward pass as a sequence of pieces: kernels, and exchanges between model-parallel ranks."""

    pieces: tuple[Piece, ...]

    @property
    def cost(self) -> KernelCost:
        """Total cost of the kernels in a pass."""
        total, *others = [piece.cost for piece in self.pieces if piece.cost is not None] or [NOTHING]
        for other in others:
            total += other
        return total

    @property
    def alone(self) -> float:
        """Duration of a pass's kernels without collectives [s]."""
        return self.cost.alone

    @property
    def flops(self) -> float:
        """Floating-point operations of a pass [FLOP]."""
        return self.cost.flops

    @property
    def exchanges(self) -> tuple[Communication, ...]:
        """Exchanges between model-parallel ranks in a pass, in start order."""
        return tuple(piece.exchange for piece in self.pieces if piece.exchange is not None)

    def with_host(self, seconds: float) -> PassPieces:
        """Return the pass with more time of the host before its first kernels [s]."""
        pieces = list(self.pieces)
        place = next((place for place, piece in enumerate(pieces) if piece.cost is not None), None)
        if place is not None and (cost := pieces[place].cost) is not None:
            pieces[place] = replace(pieces[place], cost=replace(cost, host=cost.host + seconds))
        return PassPieces(tuple(pieces))

    def __add__(self, other: PassPieces) -> PassPieces:
        """Return the pieces of two passes in sequence; without exchanges and stops of the host, as a single piece."""
        if not any(piece.exchange is not None or piece.synchronizes for piece in (*self.pieces, *other.pieces)):
            return PassPieces((Piece(self.cost + other.cost),))
        # Indices of awaited exchanges count from the beginning of the joined pass.
        shifted = tuple(
            replace(piece, awaited=tuple(len(self.pieces) + place for place in piece.awaited)) for piece in other.pieces
        )
        return PassPieces(self.pieces + shifted)


@dataclass(frozen=True, slots=True)
class PieceAt:
    """A piece of a pass in a program: the pass, the piece's place in it, and the micro-batch."""

    of: PassPieces
    place: int
    micro: int


NOTHING = KernelCost(0.0, 0.0, 0.0, 0.0)
NO_PASS = PassPieces(())


def forward_pieces(timer: KernelTimer, operations: Sequence[Operation]) -> PassPieces:
    """Return the timed pieces for the forward pass through some operations."""
    return _pieces(
        timer,
        [
            _Listed(op.name, op.forward, _of(op, backward=False), backward=False, of=len(op.forward))
            for op in operations
        ],
    )


def backward_pieces(timer: KernelTimer, operations: Sequence[Operation], part: Part = "whole") -> PassPieces:
    """Return the timed pieces for the backward pass through some operations, or for the input-gradient or
    weight-gradient part.
    """
    listed = [_part(op, part) for op in operations]
    if not any(op.exchanges for op in listed):
        # Without exchanges, the sum keeps one order for every part, hence rounding is equal; kernels run in reverse.
        return PassPieces(
            tuple(
                replace(piece, cost=piece.cost and replace(piece.cost, parts=piece.cost.parts[::-1]))
                for piece in _pieces(timer, listed).pieces
            )
        )
    return _pieces(timer, listed[::-1])


@dataclass(frozen=True, slots=True)
class _Listed:
    """An operation's kernels, and triples (exchange starts before this kernel, awaited by this kernel, exchange)."""

    name: str
    kernels: tuple[Kernel, ...]
    exchanges: tuple[tuple[int, int, Communication], ...]
    backward: bool
    of: int  # kernels of the whole pass, of which these are all or a half

    def host(self, framework: Framework, *, captured: bool, narrow: bool) -> list[float]:
        """Return for each kernel the host's time beyond the framework's `issue` [s]; an operation with a time of its
        own spends it at its first kernel, one that a CUDA graph has captured spends none. Matmuls in eight or four bits
        (`narrow`) and each expert of grouped matmuls have further times.
        """
        more = [-framework.host.issue if captured else 0.0] * len(self.kernels)
        if captured or self.name not in framework.host.parts or not more:
            return more
        matmul = next((kernel for kernel in self.kernels if isinstance(kernel, Matmul)), None)
        times = [(1, self.name)]
        if matmul is not None and matmul.kind == "grouped":
            times.append((matmul.batch, "expert"))
        if matmul is not None and narrow:
            times.append((1, "narrow matmul"))
        launches = sum(count * _of_pass(framework, name, backward=self.backward) for count, name in times)
        more[0] = framework.host.issue * (launches * len(more) / self.of - len(more))
        return more


def _of_pass(framework: Framework, name: str, *, backward: bool) -> float:
    """Return the launches that a part of a layer takes the host in a forward or a backward pass; 0 if unknown."""
    times = framework.host.parts.get(name, HostTime())
    return times.backward if backward else times.forward


def _of(op: Operation, *, backward: bool) -> tuple[tuple[int, int, Communication], ...]:
    """Return a pass's exchanges as triples (start before kernel, awaited by kernel, exchange)."""
    return tuple((call.before, call.awaited, call) for call in op.communications if call.backward == backward)


def _part(op: Operation, part: Part) -> _Listed:
    """Return kernels and exchanges of an operation's backward pass, or of its half of input or weight gradients."""
    if part == "whole":
        return _Listed(op.name, op.backward, _of(op, backward=True), backward=True, of=len(op.backward))
    # Renumber the exchanges' places among the kernels of this part.
    mask = [kernel.of_weights == (part == "weights") for kernel in op.backward]
    kernels = tuple(kernel for kernel, selected in zip(op.backward, mask, strict=True) if selected)

    def of_weights(awaited: int) -> bool:
        """Return True if kernel `awaited`, which waits for the exchange, makes a weight gradient."""
        return awaited < len(op.backward) and op.backward[awaited].of_weights

    exchanges = tuple(
        (sum(mask[:before]), sum(mask[:awaited]), call)
        for before, awaited, call in _of(op, backward=True)
        if of_weights(awaited) == (part == "weights")
    )
    return _Listed(op.name, kernels, exchanges, backward=True, of=len(mask))


def _pieces(timer: KernelTimer, listed: Sequence[_Listed]) -> PassPieces:
    """Return the pieces of a pass: the operations' kernels joined in sequence, cut and timed between exchanges."""
    kernels: list[Kernel] = []
    exchanges: list[tuple[int, int, Communication]] = []
    host: list[float] = []
    stops: set[int] = set()
    narrow = is_narrow(timer.step.precision.matmul)
    # With a capacity, every expert gets as many rows, and the host need not count.
    counts = timer.step.parallelism.experts.capacity is None
    framework, scopes = timer.step.framework, list(timer.step.keys.cuda_graphs)
    # Experts' matrices are in no graph.
    if any(op.name == "router" for op in listed) and "mlp" in scopes:
        scopes.remove("mlp")
    captured = {name: scope for scope in scopes for name in GRAPH_SCOPES.get(scope, ())}
    launched = set[str]()
    for op in listed:
        exchanges += [(len(kernels) + before, len(kernels) + awaited, call) for before, awaited, call in op.exchanges]
        kernels += op.kernels
        times, scope = op.host(framework, captured=op.name in captured, narrow=narrow), captured.get(op.name, "")
        if counts and not op.backward and framework.host.parts.get(op.name, HostTime()).waits:
            stops.add(len(kernels))
        # A graph is launched once, with its first kernel.
        if scope and times and scope not in launched:
            times[0] = 0.0
            launched.add(scope)
        host += times
    return PassPieces(tuple(_in_order(timer, kernels, exchanges, host, stops)))


def _in_order(
    timer: KernelTimer,
    kernels: Sequence[Kernel],
    exchanges: Sequence[tuple[int, int, Communication]],
    host: Sequence[float],
    stops: Set[int],
) -> Iterator[Piece]:
    """Yield exchanges and timed runs of kernels in order, cut where an exchange starts or is awaited, and before the
    kernels in `stops`, where the host has waited for all kernels before.
    """
    awaits = (place for before, awaited, _ in exchanges for place in (before, awaited))
    cuts = sorted({0, len(kernels), *awaits, *stops})
    place_of: dict[int, int] = {}
    place = 0
    for begin, end in zip(cuts, [*cuts[1:], len(kernels)], strict=True):
        for number, (before, _, call) in enumerate(exchanges):
            if before == begin:
                yield Piece(None, call)
                place_of[number] = place
                place += 1
        if end > begin:
            awaited = [n for n, (_, awaited, _) in enumerate(exchanges) if awaited == begin]
            # Exchanges through user buffers take their own number of SMs from the kernels beside them.
            beside = [call.sms for before, until, call in exchanges if before <= begin < until and call.sms is not None]
            cost = timer.cost(kernels[begin:end], max(beside, default=None))
            cost = replace(cost, host=max(cost.host + sum(host[begin:end]), 0.0))
            yield Piece(cost, None, tuple(place_of[number] for number in awaited), end in stops)
            place += 1
