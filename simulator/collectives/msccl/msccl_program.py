"""The records of an MSCCL program: GPUs, their thread blocks, and the steps of each thread block.

Each step names a source and a destination, as runs of chunks in the buffers i (input), o (output) and s (scratch).

    s     send the source               rcs   receive, store, send on
    r     receive into the destination  rrs   receive, add the source, send on
    cpy   destination = source          rrc   receive, add the source, store
    re    destination += source         rrcs  receive, add the source, store, send on
    nop   wait

References
----------
.. [1] Cowan et al., "MSCCLang: Microsoft collective communication language", ASPLOS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SENDING: Final = frozenset({"s", "rcs", "rrs", "rrcs"})
RECEIVING: Final = frozenset({"r", "rcs", "rrc", "rrs", "rrcs"})
ADDING: Final = frozenset({"rrc", "rrs", "rrcs"})
LOCAL: Final = frozenset({"cpy", "re"})
# Steps that use their source, and steps that store into their destination.
READING: Final = frozenset({"s", *ADDING, *LOCAL})
STORING: Final = frozenset({"r", "rcs", "rrc", "rrcs", *LOCAL})
TYPES: Final = (*sorted(SENDING | RECEIVING | LOCAL), "nop")
BUFFERS: Final = ("i", "o", "s")
# MSCCL's names of the operations whose results can be checked.
OPERATIONS: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}


@dataclass(frozen=True, slots=True)
class MscclStep:
    """A step of a thread block."""

    type: str  # A name in TYPES
    # `source`, `destination`: Buffer, and first chunk in the buffer.
    source: tuple[str, int]
    destination: tuple[str, int]
    count: int  # number of chunks
    awaits: tuple[int, int] | None = None  # thread block of the same GPU, and its step, that must have ended
    # Line in the file; 0 for a program that was not read from a file.
    line: int = 0


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """A thread block, whose steps run in order."""

    id: int  # number within the GPU
    # `to`, `source`: GPUs to which the block sends, and from which it receives.
    to: int | None
    source: int | None
    channel: int  # channel of both connections
    steps: tuple[MscclStep, ...]


@dataclass(frozen=True, slots=True)
class MscclGpu:
    """A GPU with the size of its scratch buffer [chunks] and its thread blocks."""

    id: int
    scratch: int
    blocks: tuple[ThreadBlock, ...]


@dataclass(frozen=True, slots=True)
class MscclProgram:
    """An MSCCL program."""

    name: str  # name of the algorithm
    operation: str  # operation of this package, such as "all_reduce"
    chunks: int  # chunks of the whole array (nchunksperloop)
    in_place: bool  # whether input and output share memory
    gpus: tuple[MscclGpu, ...]  # in the order of their ids, which are the ranks

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.gpus)

    @property
    def part(self) -> int:
        """Chunks in the part of a rank; all chunks for an all_reduce, whose ranks have no parts."""
        return self.chunks if self.operation == "all_reduce" else self.chunks // self.ranks
