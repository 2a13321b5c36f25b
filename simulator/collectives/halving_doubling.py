"""Halving and doubling: exchange half with the farthest, a quarter with the next, ...; then the same way back.

Like merging sorted piles by pairs. Where N is no power of two, the first 2(N - p) ranks pair up, p = 2^floor(log2 N):
the odd one of a pair hands its array to the even one before, and gets its result after.

References
----------
.. [1] Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005.
.. [2] Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from simulator.collectives.algorithm import Algorithm, Request, Sizes, always, least_volume
from simulator.collectives.idle import IdleNetwork
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept


@dataclass(slots=True)
class _Game:
    """The players of the power-of-two game, and the last transfer into each of them.

    A player owns the chunks starts[v] to starts[v + 1]: in all_reduce one of p, else those of its pair.
    """

    n: int
    whole: bool
    builder: ScheduleBuilder = field(default_factory=ScheduleBuilder)
    arrived: dict[int, int] = field(default_factory=dict)

    @property
    def players(self) -> int:
        return 1 << (self.n.bit_length() - 1)

    @property
    def pairs(self) -> int:
        return self.n - self.players

    @property
    def chunks(self) -> int:
        return self.players if self.whole else self.n

    def rank(self, player: int) -> int:
        return 2 * player if player < self.pairs else player + self.pairs

    def start(self, player: int) -> int:
        return player if self.whole else self.rank(player) if player < self.players else self.n

    def part(self, low: int, high: int) -> tuple[int, int]:
        return self.start(low), self.start(high) - self.start(low)

    def send(self, src: int, dst: int, part: tuple[int, int], *, reduce: bool) -> int:
        # Adds into one chunk wait for the add before; copies only for what they carry.
        after = [self.arrived.get(src), self.arrived.get(dst) if reduce else None]
        return self.builder.send(src, dst, *part, reduce=reduce, channel=src, after=after)

    def exchange(self, hops: list[tuple[int, int, tuple[int, int]]], *, reduce: bool) -> None:
        """Note one round: all messages at once, each after what came to its ranks before."""
        numbers = [(dst, self.send(src, dst, part, reduce=reduce)) for src, dst, part in hops]
        self.arrived.update(numbers)
        self.builder.end_round()

    def fold(self) -> None:
        """The odd rank of each pair hands over all but, where chunks are owned, its own chunk."""
        hops = [(2 * v + 1, 2 * v, self._all_but(2 * v + 1)) for v in range(self.pairs)]
        self.exchange(hops, reduce=True)

    def unfold(self) -> None:
        """The odd rank of each pair gets all but, where chunks are owned, its own chunk."""
        hops = [(2 * v, 2 * v + 1, self._all_but(2 * v + 1)) for v in range(self.pairs)]
        self.exchange(hops, reduce=False)

    def _all_but(self, rank: int) -> tuple[int, int]:
        return (0, self.chunks) if self.whole else (rank + 1, self.n - 1)

    def halve(self) -> None:
        distance = self.players // 2
        while distance:
            hops = []
            for player in range(self.players):
                peer = player ^ distance
                low = peer - peer % distance
                hops.append((self.rank(player), self.rank(peer), self.part(low, low + distance)))
            self.exchange(hops, reduce=True)
            distance //= 2

    def double(self) -> None:
        distance = 1
        while distance < self.players:
            hops = []
            for player in range(self.players):
                low = player - player % distance
                hops.append((self.rank(player), self.rank(player ^ distance), self.part(low, low + distance)))
            self.exchange(hops, reduce=False)
            distance *= 2


def all_reduce(request: Request) -> Schedule:
    """Fold, halve, double, unfold."""

    def play(game: _Game) -> None:
        game.fold()
        game.halve()
        game.double()
        game.unfold()

    return _schedule(request, play)


def reduce_scatter(request: Request) -> Schedule:
    """Fold and halve; then the odd rank of each pair gets the sum of its chunk, and adds its own part."""

    def play(game: _Game) -> None:
        game.fold()
        game.halve()
        game.exchange([(2 * v, 2 * v + 1, (2 * v + 1, 1)) for v in range(game.pairs)], reduce=True)

    return _schedule(request, play)


def all_gather(request: Request) -> Schedule:
    """The odd rank of each pair hands over its chunk; double, unfold."""

    def play(game: _Game) -> None:
        game.exchange([(2 * v + 1, 2 * v, (2 * v + 1, 1)) for v in range(game.pairs)], reduce=False)
        game.double()
        game.unfold()

    return _schedule(request, play)


def _schedule(request: Request, play: Callable[[_Game], None]) -> Schedule:
    n, whole = request.world_size, request.operation == "all_reduce"
    game = _Game(n, whole)
    levels = game.players.bit_length() - 1
    rows = 2 * game.pairs + game.players * levels * (2 if whole else 1)

    def parts() -> Iterator[Round | Repeat]:
        played = _Game(n, whole)
        play(played)
        return played.builder.parts()

    return Schedule(
        request.operation, "halving_doubling", n, 0, game.chunks, ReductionOrder.IN_SEQUENCE, kept(parts), rows=rows
    )


def closed_form(request: Request, sizes: Sizes, network: IdleNetwork) -> float | None:
    """all_reduce, p | n, l = log2 p: 2 l alpha + 2(p-1) S/(p beta); + 2(alpha + S/beta) where N is not p.

    Half of it for the other two, where N = p.
    """
    link = network.port or network.mesh
    game = _Game(request.world_size, whole=request.operation == "all_reduce")
    p = game.players
    if link is None or request.elements % p or (game.pairs and not game.whole):
        return None
    rate, alpha, levels = link.rate(1), link.latency, p.bit_length() - 1
    folds = 1 if game.pairs else 0
    moved = request.elements // p * (p - 1) + folds * request.elements
    time = network.startup
    if request.operation != "all_gather":
        if not network.hbm_bears(rate):
            return None
        time += (levels + folds) * alpha + moved * sizes.reduced / rate
    if request.operation != "reduce_scatter":
        time += (levels + folds) * alpha + moved * sizes.copied / rate
    return time


ALGORITHM = Algorithm(
    plans={"all_reduce": all_reduce, "reduce_scatter": reduce_scatter, "all_gather": all_gather},
    volume=least_volume,
    minimal=always,
    closed_form=closed_form,
)
