"""Recursive halving and doubling: pairs of ranks exchange and add half of the array, a quarter, ...; then gather it.

The reduce-scatter begins with the farthest peer and halves distance and data in each round; the all-gather runs the
rounds backwards and doubles both. Where N is no power of two, the first 2(N - p) ranks form pairs, p = 2^floor(log2 N):
the odd rank of a pair sends its array to the even one before the rounds, and receives its result after them.

References
----------
.. [1] Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005.
.. [2] Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from simulator.collectives.algorithm import Algorithm, Request, Sizes, always, least_volume, tree_steps
from simulator.collectives.idle import IdleNetwork
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept


@dataclass(slots=True)
class _Game:
    """The p ranks that take part in every round (players), and the last transfer into each rank.

    Player v owns the chunks from start(v) up to start(v + 1): in all_reduce one of p, else those of its rank or pair.
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
        # An add waits for the add before it into the same chunk; a copy waits only for the data that it carries.
        after = [self.arrived.get(src), self.arrived.get(dst) if reduce else None]
        return self.builder.send(src, dst, *part, reduce=reduce, channel=src, after=after)

    def exchange(self, hops: list[tuple[int, int, tuple[int, int]]], *, reduce: bool) -> None:
        """Send one round of messages; each waits for what reached its source and, if it adds, its destination."""
        numbers = [(dst, self.send(src, dst, part, reduce=reduce)) for src, dst, part in hops]
        self.arrived.update(numbers)
        self.builder.end_round()

    def fold(self) -> None:
        """The odd rank of each pair sends the even one its array; where ranks own chunks, all but its own chunk."""
        hops = [(2 * v + 1, 2 * v, self._all_but(2 * v + 1)) for v in range(self.pairs)]
        self.exchange(hops, reduce=True)

    def unfold(self) -> None:
        """The even rank of each pair sends the odd one the result; where ranks own chunks, all but the odd rank's."""
        hops = [(2 * v, 2 * v + 1, self._all_but(2 * v + 1)) for v in range(self.pairs)]
        self.exchange(hops, reduce=False)

    def _all_but(self, rank: int) -> tuple[int, int]:
        return (0, self.chunks) if self.whole else (rank + 1, self.n - 1)

    def halve(self) -> None:
        """Reduce-scatter among the players: in each round a player sends its peer's half of what both still share."""
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
        """All-gather among the players: in each round a player sends all that it has gathered."""
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
    """Fold and halve; then the even rank of each pair sends the odd one its chunk's sum, and that adds its own part."""

    def play(game: _Game) -> None:
        game.fold()
        game.halve()
        game.exchange([(2 * v, 2 * v + 1, (2 * v + 1, 1)) for v in range(game.pairs)], reduce=True)

    return _schedule(request, play)


def all_gather(request: Request) -> Schedule:
    """The odd rank of each pair sends its chunk to the even one; then double and unfold."""

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

    reduce_scatter and all_gather take half of it where N = p; None where N is not p.
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
    steps=tree_steps,
)
