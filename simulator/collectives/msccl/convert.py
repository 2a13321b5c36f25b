"""Converts an MSCCL program that has been carried out into a Schedule, and proves the schedule.

Each message becomes a transfer of its chunks, or several if its chunks are not in one run. The buffers vanish: a rank
holds a single value of each chunk, as in every schedule. A value that arrives in scratch and is added later is added on
arrival. A transfer waits for

- the transfers that must have arrived before its sender's step;
- the transfers that used the same chunk at its receiver earlier, because there is no scratch that keeps values apart.

A program that exchanges two values of the same chunk between two ranks at the same time needs two places, and is
refused.

Example: two steps of a ring. Step 1 of rank 1 receives chunk 0, adds, and sends the sum on:

    rank 0: s   chunk 0 -> rank 1        transfer 0: 0 -> 1, chunk 0, add
    rank 1: rrs chunk 0 -> rank 2        transfer 1: 1 -> 2, chunk 0, add     waits for transfer 0
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from simulator.basics.errors import ScenarioError, ScheduleError
from simulator.collectives.algorithm import Algorithm, CollectiveRequest
from simulator.collectives.msccl.interpret import Interpretation, interpret, topological_order
from simulator.collectives.msccl.msccl_program import MscclProgram
from simulator.collectives.msccl.xml_reader import read_program
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.collectives.verify import verify
from simulator.records.chunks import chunk_sizes, transfer_elements
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept
from simulator.records.transfers import write_out

_INEXPRESSIBLE: Final = "a schedule, in which a rank holds a single value of each chunk, cannot express it"


def algorithm_of_program(content: bytes, source: str) -> Algorithm:
    """Return the algorithm of an MSCCL program, which has been checked and proved.

    Parameters
    ----------
    content : bytes
        The XML file.
    source : str
        The file's name in faults.

    Raises
    ------
    ScenarioError
        The file is no program, the program is wrong, or a schedule cannot express it.
    """
    program = read_program(content, source)
    schedule = schedule_of_program(program, source)

    def plan(request: CollectiveRequest) -> Schedule:
        if request.world_size != program.ranks:
            raise ValueError(f"the program is for {program.ranks} ranks, got {request.world_size}")
        return schedule

    return Algorithm(
        summary=f"the MSCCL program {program.name}",
        plans={program.operation: plan},
        volume=lambda request: _volume(schedule, request.elements),
        minimal=lambda request: False,
        ranks=program.ranks,
    )


def _volume(schedule: Schedule, elements: int) -> int:
    return int(transfer_elements(write_out(schedule), chunk_sizes(schedule, elements)).sum())


def schedule_of_program(program: MscclProgram, source: str) -> Schedule:
    """Return the proved schedule of a program; `source` names the file in faults."""
    interpretation = interpret(program, source)
    converter = _Converter(program, interpretation)
    rows = converter.rows(source)
    pieces = 1 if program.operation == "all_reduce" else program.part

    def parts() -> Iterator[Round | Repeat]:
        builder = ScheduleBuilder()
        for src, dst, first, count, reduce, channel, waits in rows:
            builder.send(src, dst, first, count, reduce=reduce, channel=channel, after=waits)
        return builder.parts()

    chunks = program.chunks * (program.ranks if program.operation == "all_to_all" else 1)
    schedule = Schedule(
        program.operation, program.name, program.ranks, 0, chunks, converter.reduction_order, kept(parts),
        pieces=pieces, rows=len(rows),
    )  # fmt: skip
    try:
        verify(schedule)
    except ScheduleError as error:
        raise ScenarioError(f"{source}: the program is right, but {_INEXPRESSIBLE}: {error}") from error
    return schedule


Row = tuple[int, int, int, int, bool, int, list[int]]


@dataclass(slots=True)
class _Converter:
    """The transfers of a program while they are numbered."""

    program: MscclProgram
    made: Interpretation
    reduction_order: ReductionOrder = ReductionOrder.IN_SEQUENCE
    _rows: list[Row] = field(default_factory=list)
    _ancestors: list[int] = field(default_factory=list)  # transfer -> bit mask of transfers that end before
    _done: dict[int, int] = field(default_factory=dict)  # step -> bit mask of transfers that end before its end
    _ready: dict[int, int] = field(default_factory=dict)  # sending step -> transfers that end before it sends
    # (rank, chunk) -> transfers that wrote the present value, and later transfers that read it.
    _writers: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _readers: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _last: dict[int, int] = field(default_factory=dict)  # channel -> its last transfer

    def rows(self, source: str) -> list[Row]:
        """Return the transfers in the order of their numbers; ScenarioError if there is no such order."""
        order = topological_order(self.made, self._reads_before_writes())
        if len(order) < len(self.made.steps):
            what = "two ranks exchange values of the same chunk at the same time"
            raise ScenarioError(f"{source}: the program is right, but {_INEXPRESSIBLE}: {what}")
        channels: dict[tuple[int, int, int], int] = {}
        for number in order:
            ancestors = 0
            for first in self.made.before[number]:
                ancestors |= self._done[first]
            message = self.made.incoming.get(number)
            if message is not None:
                wire = self.made.steps[number].wire_in
                ancestors |= self._transfer(message, channels.setdefault(wire, len(channels)) if wire else 0)
            self._done[number] = ancestors
            if number in self.made.outgoing:
                self._ready[number] = ancestors
        return self._rows

    def _reads_before_writes(self) -> list[tuple[int, int]]:
        """Return pairs of steps (first, later): a message arrives before its chunk is overwritten at its sender.

        The pairs follow the order in which the program was carried out.
        """
        pairs, readers = list[tuple[int, int]](), dict[tuple[int, int], list[int]]()
        for number in topological_order(self.made, ()):
            rank = self.made.steps[number].gpu
            message = self.made.incoming.get(number)
            if message is not None:
                for chunk in self.made.messages[message].chunks:
                    for reader in readers.pop((rank, chunk), []):
                        if self.made.messages[reader].receiver != number:
                            pairs.append((self.made.messages[reader].receiver, number))
            message = self.made.outgoing.get(number)
            if message is not None:
                for chunk in self.made.messages[message].chunks:
                    readers.setdefault((rank, chunk), []).append(message)
        return pairs

    def _transfer(self, number: int, channel: int) -> int:
        """Add the transfers of a message; return them and the transfers before them as a bit mask."""
        message = self.made.messages[number]
        src, dst = self.made.steps[message.sender].gpu, self.made.steps[message.receiver].gpu
        arrived = 0
        for first, count, reduce in _runs(message.chunks, message.adds):
            ancestors = self._ready[message.sender]
            for chunk in range(first, first + count):
                for other in self._earlier(src, dst, chunk, reduce=reduce):
                    ancestors |= self._ancestors[other] | 1 << other
            before = self._last.get(channel)
            queued = 0 if before is None else self._ancestors[before] | 1 << before
            transfer = len(self._rows)
            # Order on the channel needs no wait.
            self._rows.append((src, dst, first, count, reduce, channel, self._latest(ancestors & ~queued)))
            self._ancestors.append(ancestors | queued)
            self._last[channel] = transfer
            for chunk in range(first, first + count):
                self._use(transfer, src, dst, chunk, reduce=reduce)
            arrived |= self._ancestors[transfer] | 1 << transfer
        return arrived

    def _earlier(self, src: int, dst: int, chunk: int, *, reduce: bool) -> list[int]:
        """Return the transfers that a transfer must follow, because they use the same chunk at its ends."""
        writers = self._writers.get((dst, chunk), [])
        # Additions of a chunk may arrive in any order.
        earlier = [] if reduce and all(self._rows[writer][4] for writer in writers) else writers
        return [*self._writers.get((src, chunk), []), *self._readers.get((dst, chunk), []), *earlier]

    def _use(self, transfer: int, src: int, dst: int, chunk: int, *, reduce: bool) -> None:
        """Note that a transfer reads a chunk at `src` and writes it at `dst`."""
        self._readers.setdefault((src, chunk), []).append(transfer)
        place = dst, chunk
        before = self._writers.get(place, [])
        joins = reduce and all(self._rows[writer][4] for writer in before)
        if joins and any(not self._ancestors[transfer] >> writer & 1 for writer in before):
            self.reduction_order = ReductionOrder.ON_ARRIVAL
        self._writers[place] = [*before, transfer] if joins else [transfer]
        self._readers[place] = []

    def _latest(self, mask: int) -> list[int]:
        """Return the transfers in a bit mask that are no ancestor of another transfer in the mask."""
        latest = []
        while mask:
            last = mask.bit_length() - 1
            latest.append(last)
            mask &= ~(self._ancestors[last] | 1 << last)
        return latest


def _runs(chunks: list[int], adds: set[int]) -> Iterator[tuple[int, int, bool]]:
    """Yield (first chunk, count, adds) for each run of consecutive chunks that are all added, or all copied."""
    begin = 0
    for index in range(1, len(chunks) + 1):
        goes_on = (
            index < len(chunks) and chunks[index] == chunks[index - 1] + 1 and (index in adds) == (index - 1 in adds)
        )
        if not goes_on:
            yield chunks[begin], index - begin, begin in adds
            begin = index
