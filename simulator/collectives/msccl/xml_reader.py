"""Reads an MSCCL program from XML: elements algo, gpu, tb and step, within fixed limits."""

from __future__ import annotations

from typing import Any, Final

from simulator.basics.errors import ScenarioError, few, one_of
from simulator.basics.xml_elements import Element, XmlFaultError, read_elements
from simulator.collectives.msccl.msccl_program import (
    BUFFERS,
    LOCAL,
    OPERATIONS,
    READING,
    RECEIVING,
    SENDING,
    STORING,
    TYPES,
    MscclGpu,
    MscclProgram,
    MscclStep,
    ThreadBlock,
)

# Limits: largest file [B], and most GPUs, steps, chunks in a buffer, and chunks named by all steps together.
MOST_BYTES: Final = 8 * 2**20
_MOST_GPUS: Final = 256
_MOST_STEPS: Final = 2**16
_MOST_CHUNKS: Final = 2**16
_MOST_MOVES: Final = 2**20
# Most chunks of the schedule times ranks; in an all_to_all, the schedule has chunks x ranks chunks.
_MOST_HELD: Final = 2**22
_NESTING: Final = {"algo": None, "gpu": "algo", "tb": "gpu", "step": "tb"}


def read_program(content: bytes, source: str) -> MscclProgram:
    """Return the program in an XML file's content; `source` names the file in faults.

    Raises
    ------
    ScenarioError
        The file is no MSCCL program, exceeds a limit, or names an operation without a checkable result.
    """
    reader = _Reader()
    read_elements(
        content,
        source,
        reader.begin,
        reader.end,
        "a second program begins here; write each program into a file of its own",
    )
    if reader.program is None:
        raise ScenarioError(f"{source}:1: has no element algo")
    return reader.program


class _Reader:
    """Builds a program from the events of the XML parser."""

    def __init__(self) -> None:
        self._open: list[Element] = []
        self._steps = 0
        self._moves = 0
        self.program: MscclProgram | None = None

    def begin(self, element: Element) -> None:
        name = element.name
        within = self._open[-1].name if self._open else None
        if name not in _NESTING or _NESTING[name] != within:
            place = f"inside {within}" if within else "as the outermost element"
            raise XmlFaultError(element.line, f"got element {name!r} {place}; a program is algo > gpu > tb > step")
        if name == "step":
            self._steps += 1
            if self._steps > _MOST_STEPS:
                raise XmlFaultError(element.line, f"has more than {_MOST_STEPS} steps")
        self._open.append(element)

    def end(self) -> None:
        element = self._open.pop()
        build: Any = {"step": self._step, "tb": _block, "gpu": _gpu, "algo": _program}[element.name]
        node = build(element)
        if self._open:
            self._open[-1].children.append(node)
            # A file within the limit of bytes can still name thousands of GPUs.
            if element.name == "gpu" and len(self._open[-1].children) > _MOST_GPUS:
                raise XmlFaultError(element.line, f"has more than {_MOST_GPUS} GPUs")
        else:
            self.program = node

    def _step(self, element: Element) -> MscclStep:
        kind = element.attributes.get("type", "")
        if kind not in TYPES:
            raise XmlFaultError(element.line, f"step: type: got {kind!r}; {one_of(TYPES, kind)}")
        if element.whole("s", 0) != len(self._open[-1].children):
            raise XmlFaultError(
                element.line, f"step: s: got {element.attributes['s']!r}; must be {len(self._open[-1].children)}"
            )
        count = element.whole("cnt", 0, _MOST_CHUNKS)
        if kind != "nop" and count < 1:
            raise XmlFaultError(element.line, f"step: cnt: got {count}; must be at least 1")
        self._moves += count
        if self._moves > _MOST_MOVES:
            raise XmlFaultError(element.line, f"moves more than {_MOST_MOVES} chunks")
        block, step = element.whole("depid", -1), element.whole("deps", -1)
        if block >= 0 and step < 0:
            raise XmlFaultError(element.line, f"step: got depid {block} and deps {step}; deps must be a step")
        return MscclStep(
            kind,
            _place(element, "src", used=kind in READING),
            _place(element, "dst", used=kind in STORING),
            count,
            None if block < 0 else (block, step),
            element.line,
        )


def _place(element: Element, which: str, *, used: bool) -> tuple[str, int]:
    """Return the buffer and first chunk of a step's source or destination; any text is accepted if it is unused."""
    if not used:
        return "i", 0
    name = element.attributes.get(f"{which}buf", "")
    if name not in BUFFERS:
        raise XmlFaultError(element.line, f"step: {which}buf: got {name!r}; {one_of(BUFFERS, name)}")
    return name, element.whole(f"{which}off", 0, _MOST_CHUNKS)


def _block(element: Element) -> ThreadBlock:
    to, source = element.whole("send", -1), element.whole("recv", -1)
    steps: tuple[MscclStep, ...] = tuple(element.children)
    for step in steps:
        for peer, types, what in ((to, SENDING, "sends"), (source, RECEIVING, "receives")):
            if peer < 0 and step.type in types:
                attribute = "send" if what == "sends" else "recv"
                raise XmlFaultError(step.line, f"step: type {step.type} {what}, but {attribute} of its tb is -1")
    return ThreadBlock(
        element.whole("id", 0),
        None if to < 0 else to,
        None if source < 0 else source,
        element.whole("chan", 0),
        steps,
    )


def _gpu(element: Element) -> MscclGpu:
    blocks: tuple[ThreadBlock, ...] = tuple(element.children)
    ids = [block.id for block in blocks]
    if len(set(ids)) < len(ids):
        twice = next(ident for ident in ids if ids.count(ident) > 1)
        raise XmlFaultError(element.line, f"gpu: has tb {twice} twice")
    lengths = {block.id: len(block.steps) for block in blocks}
    for block in blocks:
        for step in block.steps:
            if step.awaits is not None and step.awaits[1] >= lengths.get(step.awaits[0], 0):
                depid, deps = step.awaits
                raise XmlFaultError(
                    step.line, f"step: waits for step {deps} of tb {depid}, which this gpu does not have"
                )
    return MscclGpu(element.whole("id", 0), element.whole("s_chunks", 0, _MOST_CHUNKS), blocks)


def _program(element: Element) -> MscclProgram:
    collective = element.attributes.get("coll", "")
    name = element.attributes.get("name", "")
    if collective == "custom":
        message = "coll is 'custom', which promises no result that could be checked; import one of"
        raise XmlFaultError(element.line, f"algo {name!r}: {message} {', '.join(OPERATIONS)}")
    if collective not in OPERATIONS:
        raise XmlFaultError(element.line, f"algo: coll: got {collective!r}; {one_of(OPERATIONS, collective)}")
    gpus: list[MscclGpu] = sorted(element.children, key=lambda gpu: gpu.id)
    ranks, ids = element.whole("ngpus", 2, _MOST_GPUS), [gpu.id for gpu in gpus]
    if ids != list(range(ranks)):
        names = few([str(ident) for ident in ids], 8)
        raise XmlFaultError(
            element.line, f"algo: has gpus {names}; must have 0 .. {ranks - 1}, because ngpus is {ranks}"
        )
    program = MscclProgram(
        name or "msccl",
        OPERATIONS[collective],
        element.whole("nchunksperloop", 1, _MOST_CHUNKS),
        element.whole("inplace", 0, 1) == 1,
        tuple(gpus),
    )
    if program.operation != "all_reduce" and program.chunks % ranks:
        message = f"got {program.chunks}; {collective} over {ranks} GPUs needs a multiple of {ranks}"
        raise XmlFaultError(element.line, f"algo: nchunksperloop: {message}")
    if program.chunks * ranks * (ranks if collective == "alltoall" else 1) > _MOST_HELD:
        raise XmlFaultError(element.line, f"algo: {program.chunks} chunks over {ranks} GPUs are too many to be checked")
    _check_places(program)
    return program


def _check_places(program: MscclProgram) -> None:
    """Raise a fault unless every step stays in its buffers and every connection leads to another GPU."""
    for gpu in program.gpus:
        sizes = buffer_sizes(program, gpu)
        for block in gpu.blocks:
            for peer, attribute in ((block.to, "send"), (block.source, "recv")):
                if peer is not None and (peer >= program.ranks or peer == gpu.id):
                    line = block.steps[0].line if block.steps else 1
                    message = f"got {peer}; must be another GPU, 0 .. {program.ranks - 1}"
                    raise XmlFaultError(line, f"gpu {gpu.id}, tb {block.id}: {attribute}: {message}")
            for step in block.steps:
                for (buffer, first), used in ((step.source, READING), (step.destination, STORING)):
                    if step.type in used and first + step.count > sizes[buffer]:
                        place = f"{buffer}[{first} .. {first + step.count - 1}]"
                        message = f"step uses {place}, but {buffer} has {sizes[buffer]} chunks"
                        raise XmlFaultError(step.line, f"gpu {gpu.id}, tb {block.id}: {message}")
                if step.type in LOCAL and step.source == step.destination:
                    raise XmlFaultError(
                        step.line, f"gpu {gpu.id}, tb {block.id}: {step.type} has its source as destination"
                    )


def buffer_sizes(program: MscclProgram, gpu: MscclGpu) -> dict[str, int]:
    """Return the chunks in each buffer of a GPU: from the operation, because files print 0 for unused buffers."""
    chunks, part = program.chunks, program.part
    sizes = {
        "all_reduce": (chunks, chunks),
        "all_gather": (part, chunks),
        "reduce_scatter": (chunks, part),
        "all_to_all": (chunks, chunks),
    }
    return {"i": sizes[program.operation][0], "o": sizes[program.operation][1], "s": gpu.scratch}
