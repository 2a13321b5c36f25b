"""Parameter servers: they wait for all workers and update once, or take each gradient as it comes.

Rule: what a server has is decided by the order in which things end on the clock; who waits for whom is the plan's
business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from simulator.basics.arrays import Array, Ints
from simulator.basics.dtypes import find
from simulator.learning.checks import Checks
from simulator.learning.exchange import sent
from simulator.learning.setting import Setting
from simulator.learning.state import Rank, Units
from simulator.learning.updating import squares
from simulator.numerics.flat import flat
from simulator.numerics.server import Server, added
from simulator.payload.carry import Tamper, ended_order
from simulator.records.chunks import chunk_starts
from simulator.records.operation import Act, Collective, Computation, Exchange
from simulator.records.timeline import TransferLog


@dataclass(slots=True)
class Serving:
    """Servers, and what is on its way to and from them.

    Attributes
    ----------
    servers : dict of units to Server
    squares : list of float
        Of gradients, in the order in which they were applied.
    staleness : list of int
        Updates between a gradient's parameters and its own update, in that order.
    """

    servers: dict[Units, Server]
    squares: list[float] = field(default_factory=list)
    staleness: list[int] = field(default_factory=list)
    _pushed: dict[Units, tuple[Collective, dict[int, Array], Tamper]] = field(default_factory=dict)
    _coming: dict[tuple[int, Units], Array] = field(default_factory=dict)
    _seen: dict[tuple[int, Units], int] = field(default_factory=dict)

    def push(self, setting: Setting, rank: Rank, op: Collective, act: Act[Exchange], tamper: Tamper) -> None:
        """A worker's gradients are there; nothing is added up before all are."""
        self._pushed.setdefault(act.units, (op, {}, tamper))[1][rank.number] = sent(setting, rank, op, act)

    def pull(self, setting: Setting, units: Units, checks: Checks, step: int) -> Array:
        """What servers hand out once all have pushed: gradients added as they arrived, parameters updated."""
        op, pushed, tamper = self._pushed.pop(units)
        log, kind = setting.logs[op.name], find(op.dtype).numpy
        buffers = [pushed[number].astype(kind) for number in op.group]
        gradient = added(_arrived(op, log, ended_order(log.transfers, log.end), buffers, tamper), op.elements, kind)
        checks.summed(step, buffers, gradient)
        self.squares.append(squares(gradient))
        self.servers[units].update(setting.rule, gradient)
        return self.servers[units].parameters

    def apply(self, setting: Setting, rank: Rank, act: Act[Computation]) -> None:
        """One worker's gradient, as soon as it is there."""
        gradient, server = self._coming.pop((rank.number, act.units)), self.servers[act.units]
        self.squares.append(squares(gradient))
        self.staleness.append(server.version - self._seen.get((rank.number, act.units), 0))
        server.update(setting.rule, gradient)

    def bring(
        self,
        setting: Setting,
        rank: Rank,
        op: Collective,
        act: Act[Exchange],
        tamper: Tamper,
        checks: Checks,
        begun: int,
    ) -> None:
        """One worker's gradient has arrived, for a server that waits for nobody."""
        own = sent(setting, rank, op, act).astype(find(op.dtype).numpy)
        log = setting.logs[op.name]
        order = ended_order(log.transfers, log.end)
        gradient = added(_arrived(op, log, order, [own], tamper), op.elements, own.dtype)
        checks.summed(begun + act.micro // setting.plan.step.accumulation, [own], gradient)
        self._coming[rank.number, act.units] = gradient

    def look(self, rank: Rank, units: Units) -> Array:
        """The parameters that are there when a worker asks; whose updates it has not seen is counted from here."""
        server = self.servers[units]
        self._seen[rank.number, units] = server.version
        return server.parameters.copy()


def delivered(setting: Setting, rank: Rank, op: Collective, handed_out: Array, tamper: Tamper) -> Array:
    """What a worker has of what servers hand out to it."""
    if not tamper or op.act is None:
        return handed_out
    given, transfers = handed_out.copy(), setting.logs[op.name].transfers
    before = flat(setting.gpt, rank.working, op.act.units, op.elements).astype(given.dtype)
    places = _places(op)
    for number in np.flatnonzero(transfers.dst == op.group.index(rank.number)).tolist():
        if number in tamper:
            place = places[int(transfers.first[number])]
            piece = tamper[number](given[place].copy())
            # What does not arrive leaves what is there.
            given[place] = before[place] if piece is None else piece
    return given


def _places(op: Collective) -> list[slice]:
    """Where each chunk lies."""
    starts = chunk_starts(op.schedule, op.elements)
    return [slice(int(a), int(b)) for a, b in pairwise(starts)]


def _arrived(
    op: Collective, log: TransferLog, order: Ints, buffers: Sequence[Array], tamper: Tamper
) -> list[tuple[slice, Array]]:
    """Pieces of gradients in the order in which servers have them: a host's own first, then as they came."""
    places = _places(op)
    # A push of each chunk goes to its server's host, which is a worker where servers have no vertices of their own.
    hosts = dict(zip(log.transfers.first.tolist(), log.transfers.dst.tolist(), strict=True))
    pieces = [] if op.auxiliaries else [(places[chunk], buffers[host][places[chunk]]) for chunk, host in hosts.items()]
    for number in order.tolist():
        place = places[int(log.transfers.first[number])]
        sent_piece = buffers[int(log.transfers.src[number])][place]
        piece = tamper[number](sent_piece.copy()) if number in tamper else sent_piece
        if piece is not None:
            pieces.append((place, piece))
    return pieces
