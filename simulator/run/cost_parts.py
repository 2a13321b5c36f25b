"""What the costs of a simulation on this machine are made of: shares of memory and time, and rows of schedules.

Both estimates, from sizes (`size_estimate.py`, `step_size.py`) and from plans (`cost_estimate.py`), use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulator.records.operation import Collective
from simulator.records.program import Program

# Points on fewer ranks take at most seconds and get no estimate.
FEW_RANKS: Final = 4096
# Memory of an operation on a rank of a step [B].
BYTES_AN_OPERATION_OF_A_RANK: Final = 15
# Real training with small models in numpy on one core: about 30 ns per thousand FLOP, and 150 us per unit pass [s];
# bytes per parameter including gradient, optimizer states and copies [B].
A_FLOP: Final = 3e-11
A_PASS: Final = 150e-6
BYTES_A_PARAMETER: Final = 40


@dataclass(frozen=True, slots=True)
class Share:
    """Estimated memory and time on this machine for a part (cluster, program ...) of a point's simulation."""

    asked: str  # key and value: "cluster.world_size: 1,000,000 ranks"
    made_of: str  # what is built for the key: "3,000,001 vertices and links"
    remedy: str  # how to need less: "take fewer ranks"
    nbytes: float  # memory [B]
    seconds: float  # time on one core [s]


@dataclass(frozen=True, slots=True)
class SimulatedCollective:
    """A collective with simulated transfers."""

    op: Collective  # the collective
    transfers: int  # transfers of all such collectives in a step


def simulated_collectives(program: Program) -> list[SimulatedCollective]:
    """Return the collectives of a program whose transfers are simulated, with their number of transfers.

    Each kind of collective is built for its first process groups only: building every rank's takes minutes and GB.
    """
    lists = program.lists
    length: dict[int, int] = {}
    collectives = []
    for times, members in zip(lists.times, lists.kinds, strict=True):
        for op in members:
            if op.duration is None:
                # Groups in a family share their schedule.
                key = id(op.schedule)
                length[key] = length.get(key) or op.schedule.length()
                collectives.append(SimulatedCollective(op, times * length[key]))
    return collectives


def rows(collectives: Sequence[SimulatedCollective], *, by_schedule: bool) -> int:
    """Return the number of schedule rows (transfers, repeated rounds counted once) to route.

    Parameters
    ----------
    collectives : sequence of SimulatedCollective
        Collectives of the program.
    by_schedule : bool
        True: one group stands for all groups with its schedule, as in the compiled engine with one rank per class.
        False: a schedule counts once for each group.
    """
    ops = [collective.op for collective in collectives]
    return sum({(id(op.schedule), () if by_schedule else op.group): op.schedule.rows for op in ops}.values())
