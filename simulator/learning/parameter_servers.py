"""Parameter servers: update once after all workers' gradients, or apply each gradient on arrival (asynchronous).

The order of ends on the clock decides a server's state. Who waits for whom is decided by the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from simulator.basics.arrays import Array, Ints
from simulator.basics.dtypes import find
from simulator.collectives.payload.carry import Tamper, ended_order
from simulator.learning.checks import Checks
from simulator.learning.exchange import sent
from simulator.learning.setting import TrainingContext
from simulator.learning.state import Rank, Units
from simulator.learning.updating import squares
from simulator.numerics.packing import pack
from simulator.numerics.server import Server, added
from simulator.records.chunks import chunk_starts
from simulator.records.operation import Collective, Computation, Exchange, NumericAction
from simulator.records.timeline import TransferLog


@dataclass(slots=True)
class ParameterServers:
    """Parameter servers of a training, and the gradients in transit."""

    servers: dict[Units, Server]  # server of each bucket of units
    squares: list[float] = field(default_factory=list)  # sum of squares of each gradient, in the order of application
    # For each applied gradient: updates between reading its parameters and its own update, in the same order
    staleness: list[int] = field(default_factory=list)
    _pushed: dict[Units, tuple[Collective, dict[int, Array], Tamper]] = field(default_factory=dict)
    _coming: dict[tuple[int, Units], Array] = field(default_factory=dict)
    _seen: dict[tuple[int, Units], int] = field(default_factory=dict)

    def push(
        self, setting: TrainingContext, rank: Rank, op: Collective, act: NumericAction[Exchange], tamper: Tamper
    ) -> None:
        """Store a worker's pushed gradients until `pull` adds all workers' gradients (synchronous servers)."""
        self._pushed.setdefault(act.units, (op, {}, tamper))[1][rank.number] = sent(setting, rank, op, act)

    def pull(self, setting: TrainingContext, units: Units, checks: Checks, step: int) -> Array:
        """Sum all workers' gradients of a bucket in arrival order, update, and return the parameters (synchronous
        servers).
        """
        op, pushed, tamper = self._pushed.pop(units)
        log, kind = setting.logs[op.name], find(op.dtype).numpy
        buffers = [pushed[number].astype(kind) for number in op.group]
        gradient = added(_arrived(op, log, ended_order(log.transfers, log.end), buffers, tamper), op.elements, kind)
        checks.summed(step, buffers, gradient)
        self.squares.append(squares(gradient))
        self.servers[units].update(setting.rule, gradient)
        return self.servers[units].parameters

    def apply(self, setting: TrainingContext, rank: Rank, act: NumericAction[Computation]) -> None:
        """Update the server's parameters with one worker's stored gradient (asynchronous servers), and record norm and
        staleness.
        """
        gradient, server = self._coming.pop((rank.number, act.units)), self.servers[act.units]
        self.squares.append(squares(gradient))
        # Two workers that both read version 0: the first update has staleness 0, the second 1.
        self.staleness.append(server.version - self._seen.get((rank.number, act.units), 0))
        server.update(setting.rule, gradient)

    def bring(
        self,
        setting: TrainingContext,
        rank: Rank,
        op: Collective,
        act: NumericAction[Exchange],
        tamper: Tamper,
        checks: Checks,
        begun: int,
    ) -> None:
        """Carry a worker's pushed gradient to its server and store it until the server applies it (asynchronous
        servers).
        """
        buffer = sent(setting, rank, op, act).astype(find(op.dtype).numpy)
        log = setting.logs[op.name]
        order = ended_order(log.transfers, log.end)
        gradient = added(_arrived(op, log, order, [buffer], tamper), op.elements, buffer.dtype)
        checks.summed(begun + act.micro // setting.plan.step.accumulation, [buffer], gradient)
        self._coming[rank.number, act.units] = gradient

    def look(self, rank: Rank, units: Units) -> Array:
        """Return the parameters in a bucket at the start of a worker's pull, and record their version for the
        staleness.
        """
        server = self.servers[units]
        self._seen[rank.number, units] = server.version
        return server.parameters.copy()


def delivered(setting: TrainingContext, rank: Rank, op: Collective, handed_out: Array, tamper: Tamper) -> Array:
    """Return the parameters that a worker receives from a pull: `handed_out`, changed by injected faults."""
    if not tamper or op.act is None:
        return handed_out
    parameters, transfers = handed_out.copy(), setting.logs[op.name].transfers
    before = pack(setting.gpt, rank.working, op.act.units, op.elements).astype(parameters.dtype)
    places = _places(op)
    for number in np.flatnonzero(transfers.dst == op.group.index(rank.number)).tolist():
        if number in tamper:
            place = places[int(transfers.first[number])]
            piece = tamper[number](parameters[place].copy())
            # A dropped piece leaves the old parameters in place.
            parameters[place] = before[place] if piece is None else piece
    return parameters


def _places(op: Collective) -> list[slice]:
    """Return each chunk's slice in a collective's array."""
    starts = chunk_starts(op.schedule, op.elements)
    return [slice(int(a), int(b)) for a, b in pairwise(starts)]


def _arrived(
    op: Collective, log: TransferLog, order: Ints, buffers: Sequence[Array], tamper: Tamper
) -> list[tuple[slice, Array]]:
    """Return the gradient pieces received by the servers, each with a slice in the array, in receipt order."""
    places = _places(op)
    # Each chunk is pushed to its server's host. Without server vertices of their own (no auxiliaries) the hosts are
    # workers, and a host has its own gradient before any transfer ends.
    hosts = dict(zip(log.transfers.first.tolist(), log.transfers.dst.tolist(), strict=True))
    pieces = [] if op.auxiliaries else [(places[chunk], buffers[host][places[chunk]]) for chunk, host in hosts.items()]
    for number in order.tolist():
        place = places[int(log.transfers.first[number])]
        sent_piece = buffers[int(log.transfers.src[number])][place]
        piece = tamper[number](sent_piece.copy()) if number in tamper else sent_piece
        if piece is not None:
            pieces.append((place, piece))
    return pieces
