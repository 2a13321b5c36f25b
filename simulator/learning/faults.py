"""Faults of one step: what a transfer delivers instead of what was sent, what a rank's gradient becomes, who stops.

Rule: made from the scenario's records; the payload's carriers and the engine do the rest, and know of no faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from simulator.cluster.cluster import Cluster
from simulator.engine.events import execute
from simulator.engine.payload import Tamper
from simulator.errors import ScenarioError
from simulator.learning.setting import Setting
from simulator.learning.state import Parameters, Spoil
from simulator.numerics.arithmetic import Array
from simulator.program import Compute, Program
from simulator.timeline import Timeline
from simulator.training.spec import Fault

_SUMS = ("all_reduce", "reduce_scatter", "sum copies", "push")


@dataclass
class Faults:
    """The faults of a training, and what stale transfers remember.

    Attributes
    ----------
    setting : Setting
    faults : tuple of Fault
    """

    setting: Setting
    faults: tuple[Fault, ...]
    _before: dict[Fault, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, fault in enumerate(self.faults):
            if fault.what not in ("overflow", "stopped"):
                self._check(f"training.faults.{number}", fault)

    def stops(self, step: int) -> Fault | None:
        """Who stops in a step."""
        return next((f for f in self.faults if f.what == "stopped" and f.step == step), None)

    def spoil(self, step: int) -> Spoil | None:
        """What happens to gradients before they are sent in a step."""
        ranks = {f.rank for f in self.faults if f.what == "overflow" and f.step == step}
        if not ranks:
            return None

        def overflow(rank: int, unit: str, gradients: Parameters) -> None:
            if rank in ranks and unit == self.setting.gpt.units[-1]:
                next(reversed(gradients.values())).flat[0] = np.inf

        return overflow

    def tamper(self, step: int) -> Mapping[str, Tamper]:
        """What transfers deliver in a step, by collective."""
        found: dict[str, dict[int, Callable[[Array], Array | None]]] = {}
        for fault in self.faults:
            happens = fault.step == step
            if fault.what in ("overflow", "stopped") or not (happens or fault.what == "stale"):
                continue
            name = self._name(fault)
            found.setdefault(name, {})[fault.transfer] = self._delivers(fault, happens=happens)
        return found

    def _delivers(self, fault: Fault, *, happens: bool) -> Callable[[Array], Array | None]:
        if fault.what == "stale":
            return lambda sent: self._stale(fault, sent, happens=happens)
        if fault.what == "dropped":
            return lambda sent: None
        if fault.what == "doubled":
            return self._doubled(fault)
        return lambda sent: flipped(sent, fault.element, fault.bit)

    def _stale(self, fault: Fault, sent: Array, *, happens: bool) -> Array:
        """What the same transfer brought a step before, zeros before the first."""
        before = self._before.get(fault, np.zeros_like(sent))
        self._before[fault] = sent.copy()
        return before if happens else sent

    def _doubled(self, fault: Fault) -> Callable[[Array], Array | None]:
        # A copy that arrives twice is the same copy.
        adds = bool(self.setting.logs[self._name(fault)].transfers.reduce[fault.transfer])
        return (lambda sent: sent + sent) if adds else (lambda sent: sent)

    def _name(self, fault: Fault) -> str:
        return fault.collective or self._summing[0]

    @cached_property
    def _summing(self) -> list[str]:
        """Collectives that sum gradients, in the order of the program."""
        ops = self.setting.plan.program.collectives().values()
        return [op.name for op in ops if op.act is not None and op.act.what in _SUMS]

    def _check(self, place: str, fault: Fault) -> None:
        """ScenarioError for a transfer that is not there."""
        logs = self.setting.logs
        if not logs:
            raise ScenarioError(f"{place}: one rank alone sends nothing; take more ranks")
        if fault.collective is not None and fault.collective not in logs:
            some = ", ".join(repr(name) for name in [*self._summing, *logs][:4])
            raise ScenarioError(f"{place}.collective: got {fault.collective!r}; the step has {some}, ...")
        log = logs[self._name(fault)]
        if fault.transfer >= len(log.end):
            told = f"{log.collective!r} has transfers 0 .. {len(log.end) - 1}"
            raise ScenarioError(f"{place}.transfer: got {fault.transfer}; {told}")


def flipped(sent: Array, element: int, bit: int) -> Array:
    """With one bit turned; counted around where there are fewer elements, or fewer bits.

    Examples
    --------
    >>> flipped(np.array([1.0, 2.0], np.float32), 1, 31).tolist()
    [1.0, -2.0]
    """
    delivered = np.ascontiguousarray(sent).copy()
    bits = delivered.view(f"u{delivered.itemsize}")
    place = element % bits.size
    bits[place] ^= bits.dtype.type(1 << (bit % (8 * delivered.itemsize)))
    return delivered


def without(program: Program, rank: int, micro: int) -> Program:
    """A program in which a rank does nothing more when its first backward pass of a micro-batch would begin."""
    ops = program.ranks[rank]
    acts = [op.act if isinstance(op, Compute) else None for op in ops]
    end = next(n for n, act in enumerate(acts) if act is not None and (act.what, act.micro) == ("backward", micro))
    return replace(program, ranks=(*program.ranks[:rank], ops[:end], *program.ranks[rank + 1 :]))


def played_without(program: Program, cluster: Cluster, rank: int, micro: int) -> Timeline:
    """What is seen when a rank has stopped; it is played, not thought out.

    Raises
    ------
    DeadlockError
        Others wait for it in vain; says who, and for what.
    """
    return execute(without(program, rank, micro), cluster, limit_memory=False)
