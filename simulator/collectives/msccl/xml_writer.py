"""Writes a schedule as an MSCCL program, and a program as XML.

Each transfer becomes a send at its sender and a receive at its receiver, in a thread block for each connection and
direction. Waits become dependencies within the GPU at which both transfers begin or end. An all-to-all that passes data
on keeps them in scratch.

Example: rank 1 of a ring receives chunk 0, adds, and sends the sum on:

    tb 0, receives from 0    step 0: rrc i[0]
    tb 1, sends to 2         step 0: s i[0]      depends on step 0 of tb 0
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from xml.sax.saxutils import quoteattr

from simulator.basics.errors import ScenarioError
from simulator.collectives.msccl.convert import schedule_of_program
from simulator.collectives.msccl.msccl_program import OPERATIONS, MscclGpu, MscclProgram, MscclStep, ThreadBlock
from simulator.collectives.msccl.xml_reader import buffer_sizes, read_program
from simulator.collectives.verify import chunks_of
from simulator.records.schedule import Schedule
from simulator.records.transfers import Transfers, write_out

_NAMES: Final = {operation: name for name, operation in reversed(OPERATIONS.items())}
_Key = tuple[int, bool, int, int]  # GPU, whether it sends, the other GPU, channel


def program_of_schedule(schedule: Schedule) -> MscclProgram:
    """Return the MSCCL program of a schedule.

    Raises
    ------
    ScenarioError
        MSCCL has no such operation, a participant is no rank, or a wait is between other ranks.
    """
    if schedule.operation not in _NAMES:
        raise ScenarioError(f"{schedule.operation}: MSCCL has no such operation; one of {', '.join(_NAMES)}")
    if schedule.auxiliaries:
        raise ScenarioError(f"{schedule.algorithm}: sends data over servers or switches, which MSCCL cannot name")
    return _Writer(schedule, write_out(schedule)).program()


def program_text(program: MscclProgram) -> str:
    """Return a program as XML."""
    awaited = {(gpu.id, *step.awaits) for gpu in program.gpus for tb in gpu.blocks for step in tb.steps if step.awaits}
    channels = 1 + max((tb.channel for gpu in program.gpus for tb in gpu.blocks), default=0)
    lines = [
        f'<algo name={quoteattr(program.name)} proto="Simple" nchannels="{channels}" '
        f'nchunksperloop="{program.chunks}" ngpus="{program.ranks}" coll="{_NAMES[program.operation]}" '
        f'inplace="{int(program.in_place)}">'
    ]
    for gpu in program.gpus:
        sizes = buffer_sizes(program, gpu)
        chunks = " ".join(f'{buffer}_chunks="{size}"' for buffer, size in sizes.items())
        lines.append(f'  <gpu id="{gpu.id}" {chunks}>')
        for block in gpu.blocks:
            send, receive = (-1 if peer is None else peer for peer in (block.to, block.source))
            lines.append(f'    <tb id="{block.id}" send="{send}" recv="{receive}" chan="{block.channel}">')
            for number, step in enumerate(block.steps):
                depid, deps = step.awaits or (-1, -1)
                places = " ".join(
                    f'{which}buf="{place[0]}" {which}off="{place[1]}"'
                    for which, place in (("src", step.source), ("dst", step.destination))
                )
                has = int((gpu.id, block.id, number) in awaited)
                lines.append(
                    f'      <step s="{number}" type="{step.type}" {places} cnt="{step.count}" '
                    f'depid="{depid}" deps="{deps}" hasdep="{has}"/>'
                )
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def exported(schedule: Schedule) -> str:
    """Return a schedule as the XML of an MSCCL program, which has been read back and proved.

    Raises
    ------
    ScenarioError
        As for `program_of_schedule`; or the program relies on an order that MSCCL does not promise.
    """
    text = program_text(program_of_schedule(schedule))
    source = f"{schedule.algorithm} {schedule.operation} over {schedule.world_size} ranks"
    schedule_of_program(read_program(text.encode(), source), source)
    return text


@dataclass(slots=True)
class _Writer:
    """The thread blocks of a schedule's program while they are filled."""

    schedule: Schedule
    transfers: Transfers
    _steps: dict[_Key, list[MscclStep]] = field(default_factory=dict)
    _blocks: list[dict[_Key, int]] = field(init=False)  # for each GPU, the numbers of its thread blocks
    _scratch: list[dict[int, int]] = field(init=False)  # for each GPU, chunk -> place in scratch
    # For each transfer, the thread block and step that end it at its sender, and at its receiver.
    _ends: list[tuple[tuple[int, int], tuple[int, int]]] = field(default_factory=list)
    # (rank, chunk) -> thread block and step that added last.
    _adder: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._blocks = [{} for _ in range(self.schedule.world_size)]
        self._scratch = [{} for _ in range(self.schedule.world_size)]

    def program(self) -> MscclProgram:
        """Return the program with the steps of every transfer."""
        schedule, waits = self.schedule, self.transfers.waits_of()
        ranks = range(schedule.world_size)
        in_place = schedule.operation != "all_to_all"
        if not in_place:
            for rank in ranks:
                step = MscclStep("cpy", ("i", rank * schedule.pieces), ("o", rank * schedule.pieces), schedule.pieces)
                self._add((rank, True, -1, 0), step, [])
        channels: dict[tuple[int, int], dict[int, int]] = {}
        for number, awaited in enumerate(waits):
            src, dst = int(self.transfers.src[number]), int(self.transfers.dst[number])
            of_pair = channels.setdefault((src, dst), {})
            channel = of_pair.setdefault(int(self.transfers.channel[number]), len(of_pair))
            before = int(self.transfers.before_on_channel[number])
            self._transfer(number, (src, dst, channel), [*awaited, *([before] if before >= 0 else [])])
        gpus = tuple(MscclGpu(rank, len(self._scratch[rank]), self._thread_blocks(rank)) for rank in ranks)
        chunks = schedule.chunks if in_place else schedule.chunks // schedule.world_size
        return MscclProgram(schedule.algorithm, schedule.operation, chunks, in_place, gpus)

    def _thread_blocks(self, rank: int) -> tuple[ThreadBlock, ...]:
        blocks = []
        for key, number in self._blocks[rank].items():
            _, sends, other, channel = key
            peer = None if other < 0 else other
            blocks.append(
                ThreadBlock(number, peer if sends else None, None if sends else peer, channel, tuple(self._steps[key]))
            )
        return tuple(blocks)

    def _transfer(self, number: int, wire: tuple[int, int, int], awaited: list[int]) -> None:
        """Add the MSCCL steps of transfer `number` on a wire (source, destination, channel), after the transfers
        `awaited`: a send and a receive for each run of chunks that lie side by side at both ends. Raise ScenarioError
        if one of the awaited has no end in common with it.
        """
        src, dst, channel = wire
        at_sender, at_receiver = [], []
        for other in awaited:
            participants = int(self.transfers.src[other]), int(self.transfers.dst[other])
            ends = dict(zip(participants, self._ends[other], strict=True))
            if src in ends:
                at_sender.append(ends[src])
            elif dst in ends:
                at_receiver.append(ends[dst])
            else:
                raise ScenarioError(
                    f"{self.schedule.algorithm} {self.schedule.operation}: transfer {number} from rank {src} to rank "
                    f"{dst} waits for a transfer between other ranks; MSCCL has dependencies within a GPU alone"
                )
        reduce = bool(self.transfers.reduce[number])
        # Additions that a schedule leaves in any order take turns in MSCCL, because each reads and writes the sum.
        added = [(dst, chunk) for chunk in chunks_of(self.schedule, self.transfers, number) if reduce]
        at_receiver += [self._adder[place] for place in added if place in self._adder]
        last = (0, 0), (0, 0)
        for source, destination, count in self._runs(number, src, dst):
            send = MscclStep("s", source, destination, count)
            # An addition reads the place into which it writes.
            receive = MscclStep("rrc" if reduce else "r", destination, destination, count)
            last = (
                self._add((src, True, dst, channel), send, at_sender),
                self._add((dst, False, src, channel), receive, at_receiver),
            )
            at_sender, at_receiver = [], []
        self._ends.append(last)
        self._adder |= dict.fromkeys(added, last[1])

    def _runs(self, number: int, src: int, dst: int) -> list[tuple[tuple[str, int], tuple[str, int], int]]:
        """Return (place at the sender, place at the receiver, count) of a transfer's runs of chunks."""
        runs: list[tuple[tuple[str, int], tuple[str, int], int]] = []
        for chunk in chunks_of(self.schedule, self.transfers, number):
            source, target = self._place(src, chunk), self._place(dst, chunk)
            if runs:
                (buffer, first), (other, second), count = runs[-1]
                if source == (buffer, first + count) and target == (other, second + count):
                    runs[-1] = (buffer, first), (other, second), count + 1
                    continue
            runs.append((source, target, 1))
        return runs

    def _place(self, rank: int, chunk: int) -> tuple[str, int]:
        """Return the buffer of a rank, and the place in it, that hold a chunk."""
        operation, pieces = self.schedule.operation, self.schedule.pieces
        if operation != "all_to_all":
            return ("o" if operation == "all_gather" else "i"), chunk
        (sender, receiver), piece = divmod(chunk // pieces, self.schedule.world_size), chunk % pieces
        if rank == sender:
            return "i", receiver * pieces + piece
        if rank == receiver:
            return "o", sender * pieces + piece
        scratch = self._scratch[rank]
        return "s", scratch.setdefault(chunk, len(scratch))

    def _add(self, key: _Key, step: MscclStep, awaited: list[tuple[int, int]]) -> tuple[int, int]:
        """Append a step to a thread block, behind a nop for each dependency but the last; return block and number."""
        steps = self._steps.setdefault(key, [])
        block = self._blocks[key[0]].setdefault(key, len(self._blocks[key[0]]))
        # Steps of the same block run in order anyway; of another block, the last awaited step suffices.
        latest: dict[int, int] = {}
        for other, number in awaited:
            if other != block:
                latest[other] = max(number, latest.get(other, -1))
        *first, last = [*sorted(latest.items()), None] if not latest else sorted(latest.items())
        steps.extend(MscclStep("nop", ("i", 0), ("i", 0), 0, dependency) for dependency in first)
        steps.append(MscclStep(step.type, step.source, step.destination, step.count, last))
        return block, len(steps) - 1
