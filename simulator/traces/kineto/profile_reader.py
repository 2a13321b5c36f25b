"""Reads a PyTorch profiler (Kineto) trace: a rank's GPU operations, their launches, and the steps.

Kept are kernels, copies, memsets, their launches, and the annotations `ProfilerStep#N` and `Optimizer.step#...`;
everything else is skipped while the file is read. Times are microseconds in the file, and whole nanoseconds here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from simulator.basics.dtypes import TORCH_ITEMSIZES
from simulator.basics.errors import ScenarioError, one_line
from simulator.basics.plain_data import at
from simulator.records.operation import KernelParts
from simulator.traces.json_stream import JsonStream, whole_number

# Most GPU operations, and most launches, that are kept.
_MOST_WORK: Final = 2_000_000
_MOST_LAUNCHES: Final = 4_000_000
_MOST_STEPS: Final = 100_000
# Longest name that is kept [characters].
_LONGEST: Final = 500
_STEP: Final = re.compile(r"ProfilerStep#(\d{1,9})")
_RANK_IN_NAME: Final = re.compile(r"rank[_-]?(\d{1,7})", re.IGNORECASE)
# Names of categories, in lower case: older versions of PyTorch write Kernel, Memcpy and Runtime.
_KERNELS: Final = ("kernel", "concurrent_kernel")
_COPIES: Final = ("gpu_memcpy", "gpu_memset", "memcpy", "memset")
_LAUNCHES: Final = ("cuda_runtime", "cuda_driver", "runtime", "hip_runtime", "hip_driver", "xpu_runtime")
_HOST_NOTES: Final = ("user_annotation", "cpu_op", "operator")
_GPU_NOTES: Final = ("gpu_user_annotation",)
# Latest time of an event, in microseconds since 1970: the year 2255.
_LATEST_US: Final = 9e15


@dataclass(frozen=True, slots=True)
class TracedWork:
    """A GPU operation in a trace."""

    name: str  # name of the kernel or copy
    # `start`, `end`: Times on the trace's clock [ns].
    start: int
    end: int
    copies: bool  # True for copies and memsets
    launch: int | None  # correlation, the number that a launch and its operations share
    operation: str  # PyTorch's name of the collective; empty for other work, and in traces without these names
    nbytes: int | None  # bytes of a collective's larger array, if the trace says
    device: int  # number of the GPU
    # Kind of the operation, and shares of its kinds of kernels, as this simulator's own traces state them.
    simulated: tuple[str, KernelParts] | None


@dataclass(frozen=True, slots=True)
class KinetoTrace:
    """What a trace says about a GPU."""

    source: str  # path of the file
    # `rank`, `world_size`: Rank of the process, and number of ranks; None if neither the trace nor the file's name
    # says.
    rank: int | None
    world_size: int | None
    work: tuple[TracedWork, ...]  # in order of start
    launches: Mapping[int, int]  # time of each launch by its correlation [ns]
    # Begin and end of each `ProfilerStep#N` on the host [ns]; on the GPU, if the host's are missing.
    steps: Mapping[int, tuple[int, int]]
    optimizer: tuple[tuple[int, int], ...]  # when the host ran the optimizer's step [ns]
    notes: tuple[str, ...] = ()  # what was left out


@dataclass(slots=True)
class _Reading:
    """State while a trace is read."""

    source: str
    work: list[TracedWork] = field(default_factory=list)
    launches: dict[int, int] = field(default_factory=dict)
    host_steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    gpu_steps: dict[int, tuple[int, int]] = field(default_factory=dict)
    optimizer: list[tuple[int, int]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    faulty: int = 0

    def add(self, event: Any) -> None:
        """Keep what an event says about the GPU's work."""
        # A complete event: "B" and "E" pairs, counters and flows carry no GPU work.
        if not isinstance(event, dict) or event.get("ph") != "X":
            return
        category = event.get("cat")
        if not isinstance(category, str):
            return
        category = category.lower()
        if category in _KERNELS or category in _COPIES:
            self._work(event, copies=category in _COPIES)
        elif category in _LAUNCHES:
            self._launch(event)
        elif category in _HOST_NOTES or category in _GPU_NOTES:
            self._note(event, on_gpu=category in _GPU_NOTES)

    def _work(self, event: Mapping[str, Any], *, copies: bool) -> None:
        times, args = _times(event), event.get("args")
        if times is None:
            self.faulty += 1
            return
        name = event.get("name")
        name = name[:_LONGEST] if isinstance(name, str) else ""
        args = args if isinstance(args, dict) else {}
        operation, nbytes = _collective(args)
        if len(self.work) == _MOST_WORK:
            raise ScenarioError(
                f"{self.source}: has more than {_MOST_WORK:,} GPU operations; profile fewer steps, or cut the trace"
            )
        self.work.append(
            TracedWork(
                self.names.setdefault(name, name), *times, copies, whole_number(args.get("correlation")), operation,
                nbytes, whole_number(args.get("device")) or 0, _of_this_simulator(args),
            )
        )  # fmt: skip

    def _launch(self, event: Mapping[str, Any]) -> None:
        number, times = whole_number(at(event, ("args", "correlation"))), _times(event)
        if number is None or times is None:
            return
        if len(self.launches) == _MOST_LAUNCHES:
            raise ScenarioError(
                f"{self.source}: has more than {_MOST_LAUNCHES:,} launches; profile fewer steps, or cut the trace"
            )
        self.launches[number] = times[0]

    def _note(self, event: Mapping[str, Any], *, on_gpu: bool) -> None:
        name = event.get("name")
        if not isinstance(name, str) or not name.startswith(("ProfilerStep#", "Optimizer.step#")):
            return
        times = _times(event)
        if times is None or len(self.host_steps) + len(self.gpu_steps) + len(self.optimizer) > _MOST_STEPS:
            return
        if name.startswith("Optimizer.step#"):
            if not on_gpu:
                self.optimizer.append(times)
        elif match := _STEP.fullmatch(name):
            steps = self.gpu_steps if on_gpu else self.host_steps
            number = int(match.group(1))
            # The GPU has an annotation for each stream.
            begin, end = steps.get(number, times)
            steps[number] = min(begin, times[0]), max(end, times[1])


def read_trace(path: Path | str) -> KinetoTrace:
    """Return a rank's trace from a JSON file of PyTorch's profiler, plain or gzipped.

    Raises
    ------
    ScenarioError
        The file is no such trace, exceeds a limit, or has no GPU operations.
    """
    stream, reading = JsonStream(path, keys=("distributedInfo",)), _Reading(str(path))
    for event in stream.events():
        reading.add(event)
    if not reading.work:
        raise ScenarioError(
            one_line(f"{path}: has no GPU operations (categories kernel, gpu_memcpy, gpu_memset); profile with CUDA")
        )
    notes = []
    if reading.faulty:
        notes.append(f"{path}: {reading.faulty} GPU operations without a valid time are left out")
    work, device = reading.work, _device(reading.work)
    if any(op.device != device for op in work):
        work = [op for op in work if op.device == device]
        notes.append(f"{path}: has several GPUs; GPU {device}, with the most operations, is compared")
    return KinetoTrace(
        str(path),
        _rank(stream, Path(path).name),
        whole_number(at(stream.header, ("distributedInfo", "world_size"))),
        tuple(sorted(work, key=lambda op: (op.start, op.end))),
        reading.launches,
        reading.host_steps or reading.gpu_steps,
        tuple(reading.optimizer),
        tuple(notes),
    )


def _times(event: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return begin and end of an event [ns]; None unless both are valid."""
    start, duration = event.get("ts"), event.get("dur", 0)
    begin, length = _nanoseconds(start), _nanoseconds(duration)
    return None if begin is None or length is None or length < 0 else (begin, begin + length)


def _nanoseconds(microseconds: Any) -> int | None:
    """Return a number of microseconds in nanoseconds; None for anything else."""
    if isinstance(microseconds, bool) or not isinstance(microseconds, int | float):
        return None
    # A comparison with NaN is False.
    if not abs(microseconds) <= _LATEST_US:
        return None
    return microseconds * 1000 if isinstance(microseconds, int) else round(microseconds * 1000.0)


def _collective(args: Mapping[str, Any]) -> tuple[str, int | None]:
    """Return PyTorch's name of a collective, and the bytes of its larger array, from a kernel's arguments."""
    name = args.get("Collective name")
    if not isinstance(name, str):
        return "", None
    sizes = [whole_number(args.get(f"{way} msg nelems")) for way in ("In", "Out")]
    itemsize, exact = TORCH_ITEMSIZES.get(str(args.get("dtype"))), whole_number(args.get("bytes"))
    elements = max((size for size in sizes if size is not None), default=None)
    if exact is None and elements is not None and itemsize is not None:
        exact = elements * itemsize
    return name[:_LONGEST], exact


def _of_this_simulator(args: Mapping[str, Any]) -> tuple[str, KernelParts] | None:
    """Return the kind of an operation and its kinds of kernels, if this simulator wrote the trace."""
    kind, kernels = args.get("kind"), args.get("kernels")
    if not isinstance(kind, str) or not isinstance(kernels, list):
        return None
    parts = []
    for kernel in kernels[:1000]:
        if not (isinstance(kernel, list) and len(kernel) == 2 and isinstance(kernel[0], str)):
            return None
        share = kernel[1]
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0.0 <= share <= 1.0:
            return None
        parts.append((kernel[0][:_LONGEST], float(share)))
    return kind[:_LONGEST], tuple(parts)


def _device(work: list[TracedWork]) -> int:
    """Return the GPU with most operations."""
    return Counter(op.device for op in work).most_common(1)[0][0]


def _rank(stream: JsonStream, name: str) -> int | None:
    """Return the rank of a trace, from its `distributedInfo`, or else from the file's name."""
    rank = whole_number(at(stream.header, ("distributedInfo", "rank")))
    if rank is None and (match := _RANK_IN_NAME.search(name)):
        rank = int(match.group(1))
    return rank
