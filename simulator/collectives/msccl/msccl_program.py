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
    """A step of a thread block.

    Attributes
    ----------
    type : str
        A name in TYPES.
    source, destination : (str, int)
        Buffer, and first chunk in the buffer.
    count : int
        Number of chunks.
    awaits : (int, int) or None
        Thread block of the same GPU, and its step, that must have ended.
    line : int
        Line in the file; 0 for a program that was not read from a file.
    """

    type: str
    source: tuple[str, int]
    destination: tuple[str, int]
    count: int
    awaits: tuple[int, int] | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class ThreadBlock:
    """A thread block, whose steps run in order.

    Attributes
    ----------
    id : int
        Number within the GPU.
    to, source : int or None
        GPUs to which the block sends, and from which it receives.
    channel : int
        Channel of both connections.
    """

    id: int
    to: int | None
    source: int | None
    channel: int
    steps: tuple[MscclStep, ...]


@dataclass(frozen=True, slots=True)
class MscclGpu:
    """A GPU with the size of its scratch buffer [chunks] and its thread blocks."""

    id: int
    scratch: int
    blocks: tuple[ThreadBlock, ...]


@dataclass(frozen=True, slots=True)
class MscclProgram:
    """An MSCCL program.

    Attributes
    ----------
    name : str
        Name of the algorithm.
    operation : str
        Operation of this package, such as "all_reduce".
    chunks : int
        Chunks of the whole array (nchunksperloop).
    in_place : bool
        Whether input and output share memory.
    gpus : tuple of MscclGpu
        In the order of their ids, which are the ranks.
    """

    name: str
    operation: str
    chunks: int
    in_place: bool
    gpus: tuple[MscclGpu, ...]

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.gpus)

    @property
    def part(self) -> int:
        """Chunks in the part of a rank; all chunks for an all_reduce, whose ranks have no parts."""
        return self.chunks if self.operation == "all_reduce" else self.chunks // self.ranks
