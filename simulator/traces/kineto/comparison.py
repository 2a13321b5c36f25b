"""What differs between a measured and a simulated step: time by kind, the order of the work, and single operations?

Kernels are compared as runs: neighbours of a kind are one run, because a framework may cut the same work into more
kernels. Collectives are compared one by one. The first place at which kinds or bytes differ ends the comparison of
single times, because behind it operations have no partners.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from simulator.basics.units import format_bytes, format_time
from simulator.traces.gpu_work import COPIES, KERNELS, SENDS, GpuStep, GpuWork
from simulator.traces.kineto.measured_step import MeasuredStep

# A trace's clock has whole nanoseconds: both ends of an operation are rounded.
RESOLUTION: Final = 1
# Padding changes the bytes of a collective by less.
_SAME_BYTES: Final = 0.01
# An operation differs in time if it takes 10 % longer or shorter, and the difference is 0.1 % of the step.
_SAME_TIME: Final = 0.1
_SEEN: Final = 1e-3
_NS: Final = 1e-9
_ONE: Final = {"kernels": "run", "collectives": "collective"}
_PARTS: Final = ("exposed communication", "exposed copies", "idle", "step")
# Exchanges that NCCL runs as sends and receives.
_AS_SENDS: Final = ("all_to_all", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class KindTime:
    """Time of a kind of work, mean over the ranks."""

    # Kind of operations; "exposed communication", "exposed copies" (between GPU and host), "idle" or "step" for parts
    # of the step.
    kind: str
    # Operations measured and simulated; None for parts of the step.
    counts: tuple[float, float] | None
    # `measured`, `simulated`: Time [s].
    measured: float
    simulated: float

    @property
    def difference(self) -> float:
        """Simulated time less measured time [s]."""
        return self.simulated - self.measured

    @property
    def differs(self) -> bool:
        """True if the times differ by more than the trace's resolution.

        >>> KindTime("matmul", (1, 1), 1e-3, 1e-3 + 1e-9).differs, KindTime("matmul", (1, 1), 1e-3, 2e-3).differs
        (False, True)
        """
        operations = 1.0 if self.counts is None else max(self.counts)
        return abs(self.difference) > (operations + 1.0) * RESOLUTION * 1.000001 * _NS


@dataclass(frozen=True, slots=True)
class Divergence:
    """First place at which a rank's measured and simulated operations differ."""

    rank: int
    among: Literal["kernels", "collectives"]  # one of {"kernels", "collectives"}
    about: Literal["kind", "bytes", "time"]  # one of {"kind", "bytes", "time"}
    place: int  # number of the run or collective, from 0
    # `measured`, `simulated`: The two operations; None if there are no more.
    measured: GpuWork | None
    simulated: GpuWork | None

    @property
    def start(self) -> int:
        """When the first of both operations begins [ns]."""
        return min(work.start for work in (self.measured, self.simulated) if work is not None)

    @property
    def text(self) -> str:
        """The place, and both operations."""
        where = f"{_ONE[self.among]} {self.place + 1} of rank {self.rank}"
        return f"{where}: {_text(self.measured, 'measured')}, {_text(self.simulated, 'simulated')}"

    def to_dict(self) -> dict[str, Any]:
        """Return the place as plain data, times in seconds."""
        return {
            "rank": self.rank,
            "among": self.among,
            "about": self.about,
            "place": self.place,
            "measured": _plain(self.measured),
            "simulated": _plain(self.simulated),
        }


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """A measured step beside the simulated step."""

    # Step of each trace; None for a whole trace.
    numbers: tuple[int | None, ...]
    # `measured`, `simulated`: The step of each rank.
    measured: tuple[GpuStep, ...]
    simulated: tuple[GpuStep, ...]
    times: tuple[KindTime, ...]  # kinds of kernels, collectives, copies, and parts of the step
    # `order`, `time`: Where kinds or bytes differ first, and where times of matched operations differ first; None:
    # nowhere.
    order: Divergence | None
    time: Divergence | None

    @property
    def step(self) -> KindTime:
        """Time of the step."""
        return self.times[-1]

    @property
    def differs(self) -> bool:
        """True if anything differs."""
        return self.order is not None or self.time is not None or any(time.differs for time in self.times)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The comparison in sentences, the most important first."""
        step = self.step
        if not self.differs:
            return (
                f"The simulated step does not differ from the trace: {format_time(step.simulated)}; every kind, run "
                "and collective agrees to the nanosecond.",
            )
        ratio = f"{100 * step.difference / step.measured:+.1f} %" if step.measured else "no measured time"
        texts = [
            f"The step takes {format_time(step.measured)} in the trace and {format_time(step.simulated)} in the "
            f"simulation ({ratio})."
        ]
        if worst := self._worst():
            texts.append(
                f"The largest difference is in {worst.kind}: {format_time(worst.measured)} measured, "
                f"{format_time(worst.simulated)} simulated."
            )
        if self.order is None:
            texts.append("The order of kernels and collectives agrees.")
        else:
            of = "size" if self.order.about == "bytes" else "order"
            texts.append(f"The first difference in {of} is at {self.order.text}.")
        if self.time is not None:
            texts.append(f"The first operation that takes another time is {self.time.text}.")
        return tuple(texts)

    def _worst(self) -> KindTime | None:
        """Return the kind with the largest difference in time; None if no kind differs."""
        kinds = [time for time in self.times[:-1] if time.differs]
        return max(kinds, key=lambda time: abs(time.difference), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain data, times in seconds."""
        return {
            "steps": list(self.numbers),
            "ranks": [step.rank for step in self.measured],
            "differs": self.differs,
            "times": [
                {
                    "kind": time.kind,
                    "measured_s": time.measured,
                    "simulated_s": time.simulated,
                    "difference_s": time.difference,
                    "measured_operations": None if time.counts is None else time.counts[0],
                    "simulated_operations": None if time.counts is None else time.counts[1],
                }
                for time in self.times
            ],
            "first_difference_in_order": None if self.order is None else self.order.to_dict(),
            "first_difference_in_time": None if self.time is None else self.time.to_dict(),
        }


def compared(measured: Sequence[MeasuredStep], simulated: Sequence[GpuStep]) -> TraceComparison:
    """Return the comparison of the measured steps of some ranks with the simulated steps of the same ranks."""
    simulated_steps = tuple(simulated)
    if any(step.ambiguous_sends for step in measured):
        simulated_steps = tuple(step.renamed(dict.fromkeys(_AS_SENDS, SENDS)) for step in simulated_steps)
    measured_steps = tuple(step.step for step in measured)
    order: list[Divergence] = []
    time: list[Divergence] = []
    for first, second in zip(measured_steps, simulated_steps, strict=True):
        for differs, slow in (
            _first(first, first.runs(), second.runs(), "kernels"),
            _first(first, first.collectives, second.collectives, "collectives"),
        ):
            order += [] if differs is None else [differs]
            time += [] if slow is None else [slow]
    return TraceComparison(
        tuple(step.number for step in measured),
        measured_steps,
        simulated_steps,
        _times_by_kind(measured_steps, simulated_steps),
        min(order, key=lambda divergence: divergence.start, default=None),
        min(time, key=lambda divergence: divergence.start, default=None),
    )


def _first(
    step: GpuStep,
    measured: Sequence[GpuWork],
    simulated: Sequence[GpuWork],
    among: Literal["kernels", "collectives"],
) -> tuple[Divergence | None, Divergence | None]:
    """Return where two sequences of a rank differ first in kind or bytes, and before that in time."""
    slow: Divergence | None = None
    for place in range(max(len(measured), len(simulated))):
        first = measured[place] if place < len(measured) else None
        second = simulated[place] if place < len(simulated) else None
        if first is None or second is None or first.kind != second.kind:
            return Divergence(step.rank, among, "kind", place, first, second), slow
        if first.nbytes and second.nbytes and abs(first.nbytes / second.nbytes - 1.0) > _SAME_BYTES:
            return Divergence(step.rank, among, "bytes", place, first, second), slow
        longest, difference = max(_time(first), _time(second)), abs(_time(first) - _time(second))
        if slow is None and difference > max(_SAME_TIME * longest, _SEEN * step.duration, 2 * RESOLUTION):
            slow = Divergence(step.rank, among, "time", place, first, second)
    return None, slow


def _times_by_kind(measured: Sequence[GpuStep], simulated: Sequence[GpuStep]) -> tuple[KindTime, ...]:
    """Return the time of each kind of work and of the parts of the step, means over the ranks."""
    ranks = len(measured)
    totals = [[step.totals() for step in side] for side in (measured, simulated)]
    kinds = dict.fromkeys(kind for side in totals for row in side for kind in row)
    last = [kind for kind in (COPIES,) if kind in kinds]
    collectives = sorted(kind for kind in kinds if kind not in (*KERNELS, *last))
    rows = []
    for kind in (*(kind for kind in KERNELS if kind in kinds), *collectives, *last):
        sums = [[sum(row.get(kind, (0, 0))[which] for row in side) / ranks for side in totals] for which in (0, 1)]
        rows.append(KindTime(kind, (sums[0][0], sums[0][1]), sums[1][0] * _NS, sums[1][1] * _NS))
    for part in _PARTS:
        first, second = (sum(_part(step, part) for step in side) / ranks * _NS for side in (measured, simulated))
        rows.append(KindTime(part, None, first, second))
    return tuple(rows)


def _part(step: GpuStep, part: str) -> int:
    """Return the time of a part of a step [ns]."""
    times = {"exposed communication": step.exposed, "exposed copies": step.exposed_copies, "idle": step.idle}
    return times.get(part, step.duration)


def _time(work: GpuWork) -> int:
    """Return an operation's time [ns]."""
    return work.end - work.start


def _text(work: GpuWork | None, side: str) -> str:
    """Return a text on an operation of the measured or simulated side."""
    if work is None:
        return f"nothing {side}"
    size = "" if work.nbytes is None else f" of {format_bytes(work.nbytes)}"
    time, start = format_time(_time(work) * _NS), format_time(work.start * _NS)
    return f"{work.kind}{size} for {time} at {start} {side} ({work.name[:60]})"


def _plain(work: GpuWork | None) -> dict[str, Any] | None:
    if work is None:
        return None
    return {
        "name": work.name,
        "kind": work.kind,
        "start_s": work.start * _NS,
        "time_s": _time(work) * _NS,
        "bytes": work.nbytes,
    }
