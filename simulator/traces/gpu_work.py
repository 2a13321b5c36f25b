"""A GPU's operations in a step, measured or simulated, in the terms in which both can be compared.

Times are whole nanoseconds, because traces have this resolution.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.basics.intervals import length, outside, union
from simulator.records.operation import KernelParts

OTHER: Final = "other kernels"
COPIES: Final = "copies"
SENDS: Final = "send/receive"
# Kinds of kernels whose order is compared; other kernels are too short, or too different, to be matched.
ORDERED: Final = ("matmul", "attention", "elementwise", "optimizer")
KERNELS: Final = (*ORDERED, OTHER)


@dataclass(frozen=True, slots=True)
class GpuWork:
    """An operation of a GPU."""

    name: str  # name in its trace or simulation
    # `start`, `end`: From the begin of the step [ns].
    start: int
    end: int
    # Kinds, in order, each with its share of the duration; a single kind for a real kernel.
    shares: KernelParts
    communicates: bool = False  # True for collectives and for copies between GPUs
    nbytes: int | None = None  # bytes of a collective's whole array; None if unknown, and for other work
    with_host: bool = False  # True for copies between GPU and host

    @property
    def kind(self) -> str:
        """Kind of the operation's first part."""
        return self.shares[0][0]

    def parts(self) -> list[GpuWork]:
        """Return the operation cut into parts of a single kind.

        >>> [(part.kind, part.end) for part in GpuWork("layer", 0, 10, (("matmul", 0.7), ("elementwise", 0.3))).parts()]
        [('matmul', 7), ('elementwise', 10)]
        """
        if len(self.shares) == 1:
            return [self]
        parts, begin, share = [], self.start, 0.0
        for kind, fraction in self.shares:
            # Borders are rounded, not lengths: the parts add up to the whole.
            share += fraction
            end = self.start + round((self.end - self.start) * min(share, 1.0))
            parts.append(replace(self, start=begin, end=end, shares=((kind, 1.0),)))
            begin = end
        parts[-1] = replace(parts[-1], end=self.end)
        return parts


@dataclass(frozen=True, slots=True)
class GpuStep:
    """The work of a GPU in a step."""

    rank: int  # the GPU's rank
    duration: int  # time of the step [ns]
    work: tuple[GpuWork, ...]  # in order of start; every operation has a single kind

    @classmethod
    def of(cls, rank: int, duration: int, work: Iterable[GpuWork]) -> GpuStep:
        """Return the step with its operations cut by kind and sorted; operations without duration are dropped."""
        parts = [part for op in work for part in op.parts() if part.end > part.start]
        return cls(rank, duration, tuple(sorted(parts, key=lambda part: (part.start, part.end, part.kind, part.name))))

    @property
    def kernels(self) -> list[GpuWork]:
        """Operations that are neither collectives nor copies to and from the host."""
        return [work for work in self.work if not (work.communicates or work.with_host)]

    @property
    def collectives(self) -> list[GpuWork]:
        """Collectives, and sends and receives."""
        return [work for work in self.work if work.communicates and work.kind != COPIES]

    @property
    def exposed(self) -> int:
        """Time of communication without a concurrent kernel [ns].

        >>> gather = GpuWork("gather", 0, 10, (("all_gather", 1.0),), communicates=True)
        >>> GpuStep.of(0, 12, [gather, GpuWork("gemm", 4, 8, (("matmul", 1.0),))]).exposed
        6
        """
        return round(outside(_times(work for work in self.work if work.communicates), _times(self.kernels)))

    @property
    def exposed_copies(self) -> int:
        """Time of copies between GPU and host without another operation [ns]."""
        others = _times(work for work in self.work if not work.with_host)
        return round(outside(_times(work for work in self.work if work.with_host), others))

    @property
    def idle(self) -> int:
        """Time without work [ns]."""
        return max(self.duration - round(length(_times(self.work))), 0)

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return the number of operations and their time [ns] of each kind.

        >>> GpuStep.of(0, 12, [GpuWork("gemm", at, at + 3, (("matmul", 1.0),)) for at in (0, 5)]).totals()
        {'matmul': (2, 6)}
        """
        totals: dict[str, tuple[int, int]] = {}
        for work in self.work:
            count, time = totals.get(work.kind, (0, 0))
            totals[work.kind] = count + 1, time + work.end - work.start
        return totals

    def runs(self) -> list[GpuWork]:
        """Return the kernels in order, with neighbours of a kind as a single operation that takes their time.

        The name is that of the first; other kernels and copies are left out.

        >>> kinds = {0: "matmul", 5: "matmul", 8: "attention"}
        >>> work = [GpuWork(kind, at, at + 3, ((kind, 1.0),)) for at, kind in kinds.items()]
        >>> [(run.kind, run.end - run.start) for run in GpuStep.of(0, 12, work).runs()]
        [('matmul', 6), ('attention', 3)]
        """
        runs: list[GpuWork] = []
        for kernel in self.kernels:
            if kernel.kind not in ORDERED:
                continue
            if runs and runs[-1].kind == kernel.kind:
                runs[-1] = replace(runs[-1], end=runs[-1].end + kernel.end - kernel.start)
            else:
                runs.append(kernel)
        return runs

    def renamed(self, kinds: dict[str, str]) -> GpuStep:
        """Return the step with kinds renamed by a mapping."""
        work = tuple(replace(op, shares=((kinds[op.kind], 1.0),)) if op.kind in kinds else op for op in self.work)
        return replace(self, work=work)


def _times(work: Iterable[GpuWork]) -> Floats:
    """Return the union of the operations' times, shape (n, 2) [ns]."""
    pairs: Sequence[tuple[int, int]] = [(op.start, op.end) for op in work]
    return union(np.array(pairs, np.float64).reshape(-1, 2))
