"""Recursive halving and doubling: peers exchange halves, quarters, ... of the array and add them; then gather back.

The reduce-scatter phase begins with the farthest peer and halves distance and data in each round. The gather phase
runs the rounds backwards and doubles both.

Let p be the largest power of two up to N. If N is larger than p, the first 2(N - p) ranks form pairs of an even and an
odd rank. The odd rank of a pair sends its array to the even rank before the rounds (fold), and receives the result
after the rounds (unfold).

Example with N = 3: p = 2, the array has 2 chunks, ranks 0 and 1 form a pair, ranks 0 and 2 are the players.

    fold      1 -> 0  chunks 0, 1  add
    halve     0 -> 2  chunk 1      add      2 -> 0  chunk 0  add
    double    0 -> 2  chunk 0      copy     2 -> 0  chunk 1  copy
    unfold    0 -> 1  chunks 0, 1  copy

Example with N = 4: p = 4, no pairs, 4 chunks.

    halve     0 <-> 2, 1 <-> 3  two chunks  add
              0 <-> 1, 2 <-> 3  one chunk   add
    double    0 <-> 1, 2 <-> 3  one chunk   copy
              0 <-> 2, 1 <-> 3  two chunks  copy

References
----------
.. [1] Thakur, Rabenseifner & Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005.
.. [2] Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from simulator.collectives.algorithm import (
    Algorithm,
    CollectiveRequest,
    ElementSizes,
    always,
    least_volume,
    one_a_node,
    tree_steps,
)
from simulator.collectives.idle import IdleNetwork
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept


@dataclass(slots=True)
class _PowerOfTwoRanks:
    """Builder of a halving-doubling schedule over the p players (ranks of every round).

    Player v owns the chunks start(v) .. start(v + 1) - 1. In an all_reduce this is chunk v of p chunks. Otherwise the
    array has N chunks, and player v owns the chunks of its rank or pair.
    """

    n: int  # ranks of the group, N
    whole: bool  # True in an all_reduce (p chunks); False where each rank owns a chunk (N chunks)
    builder: ScheduleBuilder = field(default_factory=ScheduleBuilder)
    arrived: dict[int, int] = field(default_factory=dict)  # rank -> number of the last transfer into this rank

    @property
    def players(self) -> int:
        """Number p of players: the largest power of two up to N."""
        return 1 << (self.n.bit_length() - 1)

    @property
    def pairs(self) -> int:
        """Number of pairs with an even and an odd rank, N - p."""
        return self.n - self.players

    @property
    def chunks(self) -> int:
        return self.players if self.whole else self.n

    def rank(self, player: int) -> int:
        """Return the rank of a player; players are the even ranks of pairs first, then the unpaired ranks."""
        return 2 * player if player < self.pairs else player + self.pairs

    def start(self, player: int) -> int:
        """Return a player's first chunk; for player p, the chunk count (end for the last player)."""
        return player if self.whole else self.rank(player) if player < self.players else self.n

    def part(self, low: int, high: int) -> tuple[int, int]:
        """Return (first chunk, chunk count) for the chunks owned by the players `low` .. `high` - 1."""
        return self.start(low), self.start(high) - self.start(low)

    def send(self, src: int, dst: int, part: tuple[int, int], *, reduce: bool) -> int:
        # An add also waits for the previous add into its destination: the schedule alone fixes the order of the
        # sum (ReductionOrder.IN_SEQUENCE). A copy waits only until its source holds the data.
        after = [self.arrived.get(src), self.arrived.get(dst) if reduce else None]
        return self.builder.send(src, dst, *part, reduce=reduce, channel=src, after=after)

    def exchange(self, hops: list[tuple[int, int, tuple[int, int]]], *, reduce: bool) -> None:
        """Add a round to the schedule: transfers given by (source, destination, (first chunk, chunk count))."""
        # `arrived` is updated after the whole round: transfers in a round run at once and do not wait for each other.
        numbers = [(dst, self.send(src, dst, part, reduce=reduce)) for src, dst, part in hops]
        self.arrived.update(numbers)
        self.builder.end_round()

    def fold(self) -> None:
        """Add the round in which each pair's odd rank sends the array to the even rank for adding.

        The odd rank keeps its own chunk, unless the operation is an all_reduce.
        """
        hops = [(2 * v + 1, 2 * v, self._all_but(2 * v + 1)) for v in range(self.pairs)]
        self.exchange(hops, reduce=True)

    def unfold(self) -> None:
        """Add the round in which each pair's even rank sends the result to the odd rank.

        The odd rank's own chunk is omitted, unless the operation is an all_reduce.
        """
        hops = [(2 * v, 2 * v + 1, self._all_but(2 * v + 1)) for v in range(self.pairs)]
        self.exchange(hops, reduce=False)

    def _all_but(self, rank: int) -> tuple[int, int]:
        # The N - 1 chunks after the rank's own chunk wrap round the end of the array. Because the rank keeps its own
        # chunk back, reduce_scatter and all_gather have the least volume for any N: (N - 1) S.
        return (0, self.chunks) if self.whole else (rank + 1, self.n - 1)

    def halve(self) -> None:
        """Add the reduce-scatter rounds: each player sends its peer the peer's half of their common chunks."""
        distance = self.players // 2
        while distance:
            hops = []
            for player in range(self.players):
                # The players low .. low + distance - 1 are the peer's half. With p = 4, player 0 sends the chunks of
                # players 2 and 3 to player 2 (distance 2), then the chunk of player 1 to player 1 (distance 1).
                peer = player ^ distance
                low = peer - peer % distance
                hops.append((self.rank(player), self.rank(peer), self.part(low, low + distance)))
            self.exchange(hops, reduce=True)
            distance //= 2

    def double(self) -> None:
        """Add the gather rounds: each player sends its peer every chunk gathered before."""
        distance = 1
        while distance < self.players:
            hops = []
            for player in range(self.players):
                # Before this round the player holds the chunks of players low .. low + distance - 1.
                low = player - player % distance
                hops.append((self.rank(player), self.rank(player ^ distance), self.part(low, low + distance)))
            self.exchange(hops, reduce=False)
            distance *= 2


def all_reduce(request: CollectiveRequest) -> Schedule:
    """Return a schedule for an all-reduce with the phases fold, halve, double and unfold."""

    def play(game: _PowerOfTwoRanks) -> None:
        game.fold()
        game.halve()
        game.double()
        game.unfold()

    return _schedule(request, play)


def reduce_scatter(request: CollectiveRequest) -> Schedule:
    """Return a schedule for a reduce-scatter: fold, halve; then even ranks send the sum of the odd rank's chunk."""

    def play(game: _PowerOfTwoRanks) -> None:
        game.fold()
        game.halve()
        # In the fold the odd rank kept back its own part of this chunk; the part is added here.
        game.exchange([(2 * v, 2 * v + 1, (2 * v + 1, 1)) for v in range(game.pairs)], reduce=True)

    return _schedule(request, play)


def all_gather(request: CollectiveRequest) -> Schedule:
    """Return a schedule for an all-gather: odd ranks send their chunk to the pair's even rank; then double, unfold."""

    def play(game: _PowerOfTwoRanks) -> None:
        game.exchange([(2 * v + 1, 2 * v, (2 * v + 1, 1)) for v in range(game.pairs)], reduce=False)
        game.double()
        game.unfold()

    return _schedule(request, play)


def _schedule(request: CollectiveRequest, play: Callable[[_PowerOfTwoRanks], None]) -> Schedule:
    n, is_all_reduce = request.world_size, request.operation == "all_reduce"
    game = _PowerOfTwoRanks(n, is_all_reduce)
    levels = game.players.bit_length() - 1
    # Fold and unfold (or a pair's single-chunk transfer) have a transfer for each pair.
    rows = 2 * game.pairs + game.players * levels * (2 if is_all_reduce else 1)

    def parts() -> Iterator[Round | Repeat]:
        replay = _PowerOfTwoRanks(n, is_all_reduce)
        play(replay)
        return replay.builder.parts()

    return Schedule(
        request.operation, "halving_doubling", n, 0, game.chunks, ReductionOrder.IN_SEQUENCE, kept(parts), rows=rows
    )


def closed_form(request: CollectiveRequest, sizes: ElementSizes, network: IdleNetwork) -> float | None:
    """Return the time of halving and doubling on a star or full mesh [s], for p | n and l = log2 p; else None.

    all_reduce: 2 l alpha + 2(p-1) S/(p beta), plus 2(alpha + S/beta) for fold and unfold if N differs from p.
    reduce_scatter and all_gather: half of this if N = p, else None.
    """
    link = network.port or network.mesh
    game = _PowerOfTwoRanks(request.world_size, whole=request.operation == "all_reduce")
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
    summary="peers exchange and add halves, quarters, ... of the array, then gather in reverse order",
    plans={"all_reduce": all_reduce, "reduce_scatter": reduce_scatter, "all_gather": all_gather},
    # MPI libraries, whose ranks are nodes of their own: Thakur, Rabenseifner & Gropp 2005.
    in_libraries=one_a_node,
    volume=least_volume,
    minimal=always,
    closed_form=closed_form,
    steps=tree_steps,
)
