"""Injected faults in a step: a transfer's changed delivery, a spoiled gradient, or a rank that stops.

Faults are made from the scenario's records. The payload's carriers and the engine apply them without knowing about
faults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from simulator.basics.arrays import Array
from simulator.basics.dtypes import find
from simulator.basics.errors import ScenarioError, one_of
from simulator.collectives.payload.carry import Tamper
from simulator.learning.rank_shard import SENDS_GRADIENTS
from simulator.learning.setting import TrainingContext
from simulator.learning.state import Parameters, Spoil
from simulator.records.operation import Collective, Computation, Compute, Exchange, Op
from simulator.records.program import Program
from simulator.step.learning_spec import FaultSpec

# Collectives with gradient sums: a fault's default targets.
_SUMS = SENDS_GRADIENTS | {Exchange.SUM_COPIES}


@dataclass
class Faults:
    """The faults injected into a training, and earlier deliveries for stale transfers."""

    setting: TrainingContext
    faults: tuple[FaultSpec, ...]  # faults of the scenario
    _before: dict[FaultSpec, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that the transfer, element and bit of every fault exist in the simulated transfers."""
        for number, fault in enumerate(self.faults):
            if fault.what not in ("overflow", "stopped"):
                self._check(f"training.faults.{number}", fault)

    def spoil(self, steps: range) -> Spoil | None:
        """Return a function that sets gradient elements to infinity for the overflow faults in the given steps; None
        without such faults.
        """
        overflows = [f for f in self.faults if f.what == "overflow" and f.step in steps]
        if not overflows:
            return None

        def overflow(rank: int, unit: str, gradients: Parameters, step: int) -> None:
            for fault in overflows:
                if (fault.rank, fault.step, self.setting.gpt.units[-1]) == (rank, step, unit):
                    # The last array of the last unit: the head's table, or the norm's bias if the head is tied.
                    next(reversed(gradients.values())).flat[fault.element] = np.inf

        return overflow

    def tamper(self, steps: range) -> Mapping[str, Tamper]:
        """Return functions that change a transfer's delivery in the given steps, by collective and transfer number."""
        by_collective: dict[str, dict[int, Callable[[Array], Array | None]]] = {}
        for fault in self.faults:
            if fault.what in ("overflow", "stopped"):
                continue
            # A stale transfer repeats the previous step's delivery, hence the recording in the step before the fault.
            for step in (fault.step - 1, fault.step) if fault.what == "stale" else (fault.step,):
                if step in steps:
                    deliver = self._delivers(fault, happens=step == fault.step)
                    by_collective.setdefault(self._name(fault, step), {})[fault.transfer] = deliver
        return by_collective

    def _delivers(self, fault: FaultSpec, *, happens: bool) -> Callable[[Array], Array | None]:
        """Return a function from the array sent to the array delivered under a fault (None: nothing arrives)."""
        if fault.what == "stale":
            return lambda array: self._stale(fault, array, happens=happens)
        if fault.what == "dropped":
            return lambda array: None
        if fault.what == "doubled":
            return self._doubled(fault)
        return lambda array: flipped(array, fault.element, fault.bit)

    def _stale(self, fault: FaultSpec, array: Array, *, happens: bool) -> Array:
        """Return the last step's array if the fault `happens` now; otherwise record and return the array sent."""
        if happens:
            return self._before[fault]
        self._before[fault] = array.copy()
        return array

    def _doubled(self, fault: FaultSpec) -> Callable[[Array], Array | None]:
        """Return a function that changes an array like a transfer that arrives twice."""
        # Adding twice doubles the value; copying twice changes nothing.
        adds = bool(self.setting.logs[self._name(fault, fault.step)].transfers.reduce[fault.transfer])
        return (lambda array: array + array) if adds else (lambda array: array)

    def _name(self, fault: FaultSpec, step: int) -> str:
        """Return the name of the collective that a fault affects in a step."""
        if not self.setting.plan.step.sharding.asynchronous:
            return fault.collective or self._summing[0]
        # Asynchronous servers: all steps are a single program, and each push of each worker and step has its own name.
        # Take the push at the same position within the step.
        pushes = [op for op in self.setting.plan.program.ranks[fault.rank] if _is_push(op)]
        size = len(pushes) // self.setting.plan.step.keys.steps
        names = [op.name for op in pushes[fault.step * size : (fault.step + 1) * size]]
        place = names.index(fault.collective) if fault.collective in names else 0
        return pushes[step * size + place].name

    @cached_property
    def _summing(self) -> list[str]:
        """Names of gradient-summing collectives, in program order."""
        ops = self.setting.plan.program.collectives().values()
        return [op.name for op in ops if op.act is not None and op.act.effect in _SUMS]

    def _check(self, place: str, fault: FaultSpec) -> None:
        """Raise a ScenarioError, naming the key `place`, if the fault's transfer, element or bit does not exist."""
        logs = self.setting.logs
        if not logs or (fault.collective is None and not self._summing):
            raise ScenarioError(f"{place}: a single rank sends no transfers; take more ranks")
        names = list(dict.fromkeys([*self._summing, *logs]))
        if fault.collective is not None and fault.collective not in names:
            raise ScenarioError(f"{place}.collective: got {fault.collective!r}; {one_of(names, fault.collective)}")
        name = self._name(fault, fault.step)
        if fault.collective not in (None, name):
            raise ScenarioError(f"{place}.collective: got {fault.collective!r}, which is no push of rank {fault.rank} "
                                f"in step {fault.step}; the first push is {name!r}")  # fmt: skip
        log, op = logs[name], self.setting.plan.program.collectives()[name]
        itemsize = find(op.dtype).itemsize
        for key, got, most in (
            ("transfer", fault.transfer, len(log.end)),
            ("bit", fault.bit, 8 * itemsize),
            ("element", fault.element, int(log.nbytes[min(fault.transfer, len(log.end) - 1)]) // itemsize),
        ):
            if got >= most:
                raise ScenarioError(f"{place}.{key}: got {got}; {name!r} carries {op.dtype}, 0 .. {most - 1}")


def _is_push(op: Op) -> bool:
    """Return True if the operation pushes gradients to parameter servers."""
    return isinstance(op, Collective) and op.act is not None and op.act.effect is Exchange.PUSH


def flipped(array: Array, element: int, bit: int) -> Array:
    """Return a copy of an array with a single bit flipped in a single element.

    >>> flipped(np.array([1.0, 2.0], np.float32), 1, 31).tolist()
    [1.0, -2.0]
    """
    delivered = np.ascontiguousarray(array).copy()
    bits = delivered.view(f"u{delivered.itemsize}")
    bits[element] ^= bits.dtype.type(1 << bit)
    return delivered


def without(program: Program, rank: int, micro: int) -> Program:
    """Return a program in which `rank` stops before its first backward pass of micro-batch `micro`."""
    ops = program.ranks[rank]
    acts = [op.act if isinstance(op, Compute) else None for op in ops]
    end = next(n for n, act in enumerate(acts) if act and (act.effect, act.micro) == (Computation.BACKWARD, micro))
    return replace(program, ranks=(*program.ranks[:rank], ops[:end], *program.ranks[rank + 1 :]))
