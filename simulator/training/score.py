"""A pencil for programs: note what one rank does, in the order in which it is issued.

Rule: only for writing; names are made here, so that they are unique and say what they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from simulator.program import Allocate, Collective, Compute, Free, Op
from simulator.training.communicator import Communicator
from simulator.training.groups import Scope
from simulator.training.work import Timed


@dataclass(slots=True)
class Score:
    """Operations noted so far.

    Attributes
    ----------
    communicator : Communicator
        Plans collectives of the data-parallel group.
    ops : list of Op
        Rank 0's.
    scopes : dict of str to Scope
        Which group each collective is among.
    """

    communicator: Communicator
    ops: list[Op] = field(default_factory=list)
    scopes: dict[str, Scope] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)

    def compute(self, name: str, timed: Timed, kind: str, after: Iterable[str | None] = ()) -> str:
        """Kernels on the compute stream; returns their name, for others to wait for."""
        self._note(Compute(name, timed.alone, timed.flops, timed.nbytes, timed.slowed, kind, after=_given(after)))
        return name

    def communicate(
        self,
        name: str,
        operation: str,
        elements: int,
        dtype: str,
        after: Iterable[str | None] = (),
        scope: Scope = "all",
    ) -> str | None:
        """A collective of the rank's group on that group's stream; nothing where the group is one rank."""
        template = self.communicator.plan(operation, elements, dtype, scope)
        if template is None:
            return None
        stream = "communication replicate" if scope == "replicate" else "communication"
        self._note(replace(template, name=name, after=_given(after), stream=stream))
        self.scopes[name] = scope
        return name

    def allocate(
        self, name: str, nbytes: int, category: str, *, stream: str = "compute", after: Iterable[str | None] = ()
    ) -> str:
        """Memory from when its stream gets there."""
        self._note(Allocate(name, nbytes, category, stream, _given(after)))
        return name

    def free(self, allocation: str, *, stream: str = "compute", after: Iterable[str | None] = ()) -> str:
        """Memory back when its stream gets there, after all that it waits for."""
        op = Free(allocation, stream, _given(after))
        self._note(op)
        return op.name

    def _note(self, op: Op) -> None:
        if op.name in self._names:
            raise ValueError(f"two operations are named {op.name!r}")
        self._names.add(op.name)
        self.ops.append(op)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Those noted so far."""
        return tuple(op for op in self.ops if isinstance(op, Collective))


def _given(after: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in after if name is not None))
