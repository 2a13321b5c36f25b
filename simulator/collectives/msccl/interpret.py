"""Carries out an MSCCL program on symbols: is its result the promised result, whatever the order of unordered steps?

Each chunk of a buffer holds a value: a chunk of the array, and the ranks whose numbers are added in it. Steps run in an
order that respects thread blocks, dependencies and messages. Two steps that use the same place must be ordered by these
if one of them writes; then every possible order gives the same result.

Messages on a connection (sender, receiver, channel) are matched first in, first out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from simulator.basics.errors import ScenarioError
from simulator.collectives.msccl.msccl_program import ADDING, RECEIVING, SENDING, MscclProgram, MscclStep
from simulator.collectives.verify import origins_text

Place = tuple[int, str, int]  # GPU, buffer, chunk in the buffer


class Received(NamedTuple):
    """A chunk of a message: number of the message, and place in the message."""

    message: int
    position: int


class Value(NamedTuple):
    """Content of a place.

    Attributes
    ----------
    chunk : int
        Chunk of the array, in the numbering of Schedule.
    origins : int
        Ranks whose numbers are added, as a bit mask.
    received : Received or None
        Part of a message that brought the value, if nothing has been added since.
    """

    chunk: int
    origins: int
    received: Received | None = None


@dataclass(slots=True)
class MscclMessage:
    """A message of a program."""

    # `sender`, `receiver`: Numbers of the sending and the receiving step.
    sender: int
    receiver: int
    chunks: list[int] = field(default_factory=list)  # chunks of the array that it carries
    adds: set[int] = field(default_factory=set)  # places in `chunks` whose values the receiver adds to its own


@dataclass(frozen=True, slots=True)
class NumberedStep:
    """A step with its place in the program: GPU, thread block, and number within the block."""

    gpu: int
    block: int
    number: int
    step: MscclStep
    wire_in: tuple[int, int, int] | None
    wire_out: tuple[int, int, int] | None

    def __str__(self) -> str:
        return f"gpu {self.gpu}, tb {self.block}, step {self.number}"


@dataclass(frozen=True, slots=True)
class Interpretation:
    """A program that has been carried out on symbols."""

    steps: tuple[NumberedStep, ...]  # every step, by its number
    # Steps of the same GPU that each step waits for: its predecessor in the block, and its dependency.
    before: tuple[tuple[int, ...], ...]
    messages: tuple[MscclMessage, ...]
    # `incoming`, `outgoing`: Message that a step receives, and that it sends.
    incoming: Mapping[int, int]
    outgoing: Mapping[int, int]


def interpret(program: MscclProgram, source: str) -> Interpretation:
    """Carry out a program on symbols and return its messages; `source` names the file in faults.

    Raises
    ------
    ScenarioError
        The program hangs, races, reads a place without a value, adds a value twice, or ends with a wrong result.
    """
    steps = _numbered(program, source)
    before = _before(steps)
    messages = _matched(steps, source)
    incoming = {message.receiver: number for number, message in enumerate(messages)}
    outgoing = {message.sender: number for number, message in enumerate(messages)}
    interpretation = Interpretation(tuple(steps), before, tuple(messages), incoming, outgoing)
    order = topological_order(interpretation, ())
    if len(order) < len(steps):
        stuck = steps[min(set(range(len(steps))) - set(order))]
        raise _fault(source, stuck, "never runs: it waits for itself in a circle of messages and dependencies")
    machine = _Machine(program, interpretation, source)
    for number in order:
        machine.run(number)
    machine.check_result()
    return interpretation


def topological_order(interpretation: Interpretation, further: Iterable[tuple[int, int]]) -> list[int]:
    """Return the steps in an order that respects blocks, dependencies, messages and the further pairs (first, later).

    Steps on a circle, and behind a circle, are left out. Steps with fewer steps before them come first.
    """
    later: list[list[int]] = [[] for _ in interpretation.steps]
    waits = [0] * len(interpretation.steps)
    pairs = [(first, number) for number, firsts in enumerate(interpretation.before) for first in firsts]
    pairs += [(message.sender, message.receiver) for message in interpretation.messages]
    for first, second in (*pairs, *further):
        later[first].append(second)
        waits[second] += 1
    depth = [0] * len(interpretation.steps)
    ready = [(0, number) for number, count in enumerate(waits) if not count]
    heapify(ready)
    order = []
    while ready:
        _, number = heappop(ready)
        order.append(number)
        for second in later[number]:
            depth[second] = max(depth[second], depth[number] + 1)
            waits[second] -= 1
            if not waits[second]:
                heappush(ready, (depth[second], second))
    return order


def _numbered(program: MscclProgram, source: str) -> list[NumberedStep]:
    """Return every step with its place and connections; refuse two blocks with the same connection."""
    steps, users = list[NumberedStep](), dict[tuple[str, tuple[int, int, int]], int]()
    for gpu in program.gpus:
        for block in gpu.blocks:
            wire_in = None if block.source is None else (block.source, gpu.id, block.channel)
            wire_out = None if block.to is None else (gpu.id, block.to, block.channel)
            for number, step in enumerate(block.steps):
                receives = wire_in if step.type in RECEIVING else None
                sends = wire_out if step.type in SENDING else None
                entry = NumberedStep(gpu.id, block.id, number, step, receives, sends)
                for what, wire in (("receives", receives), ("sends", sends)):
                    if wire is not None and users.setdefault((what, wire), block.id) != block.id:
                        other = users[what, wire]
                        message = f"{what} on the connection {_wire_text(wire)}, which belongs to tb {other}"
                        raise _fault(source, entry, message)
                steps.append(entry)
    return steps


def _before(steps: list[NumberedStep]) -> tuple[tuple[int, ...], ...]:
    numbers = {(entry.gpu, entry.block, entry.number): number for number, entry in enumerate(steps)}
    return tuple(
        (
            *((number - 1,) if entry.number else ()),
            *(() if entry.step.awaits is None else (numbers[entry.gpu, *entry.step.awaits],)),
        )
        for number, entry in enumerate(steps)
    )


def _matched(steps: list[NumberedStep], source: str) -> list[MscclMessage]:
    """Return the messages: the n-th sending and the n-th receiving step of each connection."""
    sends, receives = dict[tuple[int, int, int], list[int]](), dict[tuple[int, int, int], list[int]]()
    for number, entry in enumerate(steps):
        if entry.wire_out is not None:
            sends.setdefault(entry.wire_out, []).append(number)
        if entry.wire_in is not None:
            receives.setdefault(entry.wire_in, []).append(number)
    messages = []
    for wire in sorted({*sends, *receives}):
        senders, receivers = sends.get(wire, []), receives.get(wire, [])
        if len(senders) != len(receivers):
            rest = senders[len(receivers) :] or receivers[len(senders) :]
            counts = f"{len(senders)} messages are sent and {len(receivers)} received"
            raise _fault(source, steps[rest[0]], f"has no partner: on the connection {_wire_text(wire)}, {counts}")
        for sender, receiver in zip(senders, receivers, strict=True):
            counts_of = steps[sender].step.count, steps[receiver].step.count
            if counts_of[0] != counts_of[1]:
                problem = f"receives {counts_of[1]} chunks, and {steps[sender]} sends {counts_of[0]}"
                raise _fault(source, steps[receiver], problem)
            messages.append(MscclMessage(sender, receiver))
    return messages


@dataclass(slots=True)
class _Machine:
    """The GPUs of a program while it runs: values by place, and the steps that used each place."""

    program: MscclProgram
    made: Interpretation
    source: str
    values: dict[Place, Value] = field(default_factory=dict)
    ancestors: dict[int, int] = field(default_factory=dict)  # step -> bit mask of steps that end before
    writer: dict[Place, int] = field(default_factory=dict)
    readers: dict[Place, list[int]] = field(default_factory=dict)
    carried: dict[int, list[Value]] = field(default_factory=dict)  # message -> values

    def __post_init__(self) -> None:
        for rank in range(self.program.ranks):
            for place, chunk in _inputs(self.program, rank):
                self.values[place] = Value(chunk, 1 << rank)

    def run(self, number: int) -> None:
        """Carry out step `number`, whose predecessors have ended."""
        entry, step = self.made.steps[number], self.made.steps[number].step
        ancestors = 0
        firsts = [*self.made.before[number]]
        if number in self.made.incoming:
            firsts.append(self.made.messages[self.made.incoming[number]].sender)
        for first in firsts:
            ancestors |= self.ancestors[first] | 1 << first
        self.ancestors[number] = ancestors
        if step.type == "nop":
            return
        values = self._incoming(number)
        if step.type in ("s", "cpy"):
            values = self._read(number, step.source, step.count)
        elif step.type in ADDING:
            terms = self._read(number, step.source, step.count)
            values = [self._sum(entry, *pair) for pair in zip(terms, values, strict=True)]
        elif step.type == "re":
            terms = self._read(number, step.destination, step.count)
            values = [
                self._sum(entry, *pair) for pair in zip(terms, self._read(number, step.source, step.count), strict=True)
            ]
        if step.type not in ("s", "rrs"):
            for offset, value in enumerate(values):
                self._write(number, self._place(entry.gpu, step.destination, offset), value)
        if number in self.made.outgoing:
            message = self.made.outgoing[number]
            self.made.messages[message].chunks.extend(value.chunk for value in values)
            self.carried[message] = values

    def _incoming(self, number: int) -> list[Value]:
        message = self.made.incoming.get(number)
        if message is None:
            return []
        return [
            Value(value.chunk, value.origins, Received(message, index))
            for index, value in enumerate(self.carried.pop(message))
        ]

    def _sum(self, entry: NumberedStep, first: Value, second: Value) -> Value:
        """Return the sum of two values; the messages that brought them become additions."""
        if first.chunk != second.chunk or self.program.operation not in ("all_reduce", "reduce_scatter"):
            raise _fault(self.source, entry, f"adds chunk {second.chunk} to chunk {first.chunk}")
        if first.origins & second.origins:
            overlap = f"{origins_text(second.origins)} to {origins_text(first.origins)}"
            raise _fault(self.source, entry, f"adds chunk {first.chunk} of {overlap}: a rank would count twice")
        for value in (first, second):
            if value.received is not None:
                self.made.messages[value.received.message].adds.add(value.received.position)
        return Value(first.chunk, first.origins | second.origins)

    def _read(self, number: int, begin: tuple[str, int], count: int) -> list[Value]:
        entry, values = self.made.steps[number], []
        for offset in range(count):
            place = self._place(entry.gpu, begin, offset)
            value = self.values.get(place)
            if value is None:
                raise _fault(self.source, entry, f"reads {_place_text(place)}, which has no value yet")
            self._after(number, self.writer.get(place), "reads", place, "writes")
            self.readers.setdefault(place, []).append(number)
            values.append(value)
        return values

    def _write(self, number: int, place: Place, value: Value) -> None:
        self._after(number, self.writer.get(place), "writes", place, "writes")
        for reader in self.readers.pop(place, []):
            self._after(number, reader, "writes", place, "reads")
        self.values[place], self.writer[place] = value, number

    def _after(self, number: int, other: int | None, does: str, place: Place, did: str) -> None:
        if other is None or other == number or self.ancestors[number] >> other & 1:
            return
        message = f"{does} {_place_text(place)}, which {self.made.steps[other]} {did}; neither waits for the other"
        raise _fault(self.source, self.made.steps[number], message)

    def _place(self, gpu: int, begin: tuple[str, int], offset: int) -> Place:
        return _home(self.program, gpu, begin[0], begin[1] + offset)

    def check_result(self) -> None:
        """Raise ScenarioError unless each rank ends with the promised values in its output."""
        for rank in range(self.program.ranks):
            for offset, promise in enumerate(_promised(self.program, rank)):
                value = self.values.get(_home(self.program, rank, "o", offset))
                if value is None or value[:2] != promise:
                    has = "nothing" if value is None else f"chunk {value.chunk} of {origins_text(value.origins)}"
                    place = f"gpu {rank} ends with {has} in o[{offset}]"
                    raise ScenarioError(
                        f"{self.source}: {place}; {self.program.operation} promises chunk {promise[0]} of "
                        f"{origins_text(promise[1])}"
                    )


def _home(program: MscclProgram, gpu: int, buffer: str, chunk: int) -> Place:
    """Return the place in memory of a buffer's chunk: in place, input and output share memory."""
    if program.in_place:
        if program.operation == "all_gather" and buffer == "i":
            return gpu, "o", gpu * program.part + chunk
        if program.operation != "all_gather" and buffer == "o":
            return gpu, "i", chunk + (gpu * program.part if program.operation == "reduce_scatter" else 0)
    return gpu, buffer, chunk


def _inputs(program: MscclProgram, rank: int) -> Iterable[tuple[Place, int]]:
    """Yield the place of each chunk of a rank's input, and its number in the array."""
    part = program.part
    for chunk in range(part if program.operation == "all_gather" else program.chunks):
        first = {"all_gather": rank * part, "all_to_all": rank * program.chunks}.get(program.operation, 0)
        yield _home(program, rank, "i", chunk), first + chunk


def _promised(program: MscclProgram, rank: int) -> list[tuple[int, int]]:
    """Return (chunk, origins) that a rank must hold in each place of its output."""
    everyone, part = (1 << program.ranks) - 1, program.part
    if program.operation == "all_reduce":
        return [(chunk, everyone) for chunk in range(program.chunks)]
    if program.operation == "reduce_scatter":
        return [(rank * part + piece, everyone) for piece in range(part)]
    if program.operation == "all_gather":
        return [(chunk, 1 << chunk // part) for chunk in range(program.chunks)]
    return [
        ((sender * program.ranks + rank) * part + piece, 1 << sender)
        for sender in range(program.ranks)
        for piece in range(part)
    ]


def _place_text(place: Place) -> str:
    return f"{place[1]}[{place[2]}]"


def _wire_text(wire: tuple[int, int, int]) -> str:
    return f"gpu {wire[0]} -> gpu {wire[1]}, channel {wire[2]}"


def _fault(source: str, entry: NumberedStep, message: str) -> ScenarioError:
    line = f":{entry.step.line}" if entry.step.line else ""
    return ScenarioError(f"{source}{line}: {entry}: {message}")
