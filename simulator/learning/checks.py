"""Is something wrong with a training? Checks watch a run like a careful user, and record the first bad step.

Each check reads existing values and answers yes or no. No check knows about injected faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, assert_never

import ml_dtypes
import numpy as np

from simulator.basics.arrays import Array
from simulator.learning.rank_shard import is_spread
from simulator.learning.setting import TrainingContext
from simulator.learning.state import Rank, StepResult
from simulator.records.operation import Exchange, NumericAction

# A loss 1.3 times, or a norm 3 times, the median of the last 10 steps (at least 3) counts as an outlier. These limits
# are a guess: tighter limits raise false alarms, because small batches already differ by a tenth.
_LOSS, _NORM, _LAST, _FEWEST = 1.3, 3.0, 10, 3
CHECKS: Final = {
    "sums": "the result of a collective differs from the sum of its inputs by more than rounding",
    "copies": "replicas of the same parameters differ between ranks",
    "scales": "the loss scale or the number of steps differs between ranks",
    "finite": "the loss or the gradient norm is not finite, and the step was not skipped",
    "norm": "the gradient norm is more than three times the median of the last ten steps",
    "loss": "the loss is more than 30 % above the median of the last ten steps",
    "watchdog": "ranks wait for a rank that does not arrive",
}


@dataclass(slots=True)
class Checks:
    """Findings so far in a real training watched by checks."""

    seen: dict[str, int] = field(default_factory=dict)  # the first step in which each check found something
    _history: list[StepResult] = field(default_factory=list)

    def tell(self, check: str, step: int) -> None:
        """Record that a check found a problem in a step; only the first step per check is stored."""
        self.seen.setdefault(check, step)

    def moved(self, step: int, act: NumericAction[Exchange], sent: Sequence[Array], results: Sequence[Array]) -> None:
        """Compare a collective's results on all ranks with the arrays sent; record a finding of the check "sums" if
        they differ.
        """
        # The check computes the sum a second time, so stop after the first finding.
        if "sums" not in self.seen and not _gives_what_was_sent(act.effect, sent, results):
            self.tell("sums", step)

    def summed(self, step: int, sent: Sequence[Array], total: Array) -> None:
        """Compare a sum `total` with the float64 sum of the arrays sent; record a finding of the check "sums" if they
        differ.
        """
        if "sums" not in self.seen and not is_sum(sent, total):
            self.tell("sums", step)

    def after(self, setting: TrainingContext, ranks: Sequence[Rank], step: int, result: StepResult) -> None:
        """Run the checks that follow each step (equal copies, equal scales, finite and plausible loss and norm), and
        record findings.
        """
        # Asynchronous workers hold parameters of different age by design.
        if not setting.plan.step.sharding.asynchronous and not agree(setting, ranks):
            self.tell("copies", step)
        # A rank that misses an overflow keeps a different scale, or does not skip the step.
        counts = {(rank.scale.value, *{state.steps for state in rank.states.values()}) for rank in ranks}
        if len(counts) > 1:
            self.tell("scales", step)
        # A skipped step has an infinite norm, which loss scaling has handled already.
        if not result.skipped:
            self._watch(step, result)

    def _watch(self, step: int, result: StepResult) -> None:
        """Compare a step's loss and gradient norm with the median of the last steps, and record findings."""
        if not (np.isfinite(result.loss) and np.isfinite(result.norm)):
            self.tell("finite", step)
        last = self._history[-_LAST:]
        if len(last) >= _FEWEST:
            for check, now, before, most in (
                ("loss", result.loss, [entry.loss for entry in last], _LOSS),
                ("norm", result.norm, [entry.norm for entry in last], _NORM),
            ):
                if now > most * float(np.median(before)):
                    self.tell(check, step)
        self._history.append(result)


def _gives_what_was_sent(effect: Exchange, sent: Sequence[Array], results: Sequence[Array]) -> bool:
    """Return True if a collective's results on all ranks follow from the arrays sent."""
    match effect:
        case Exchange.FLAG | Exchange.SUM_NORM | Exchange.SUM_PARTIAL | Exchange.SUM_SHARED:
            # Only a few numbers; other checks detect faults here.
            return True
        case Exchange.WITHIN | Exchange.SEND | Exchange.TO_OWNERS | Exchange.FROM_OWNERS:
            raise ValueError(f"got a {effect.value}; Training delivers the result of this effect")
        case Exchange.REDUCE_SCATTER:
            return is_sum(sent, np.concatenate(results))
        case Exchange.ALL_GATHER | Exchange.GATHER_AVERAGES | Exchange.GATHER_UPDATED | Exchange.GATHER_NORMS:
            # Rank n's contribution lies in the n-th part of its buffer; every rank must receive the same concatenation.
            size = len(results[0]) // len(sent)
            parts = np.concatenate([buffer[n * size : (n + 1) * size] for n, buffer in enumerate(sent)])
            return all(_same(result, parts.astype(result.dtype, copy=False)) for result in results)
        case Exchange.ALL_REDUCE | Exchange.SUM_COPIES:
            # Usually all results are identical, and a single comparison with the exact sum suffices.
            identical = all(_same(results[0], result) for result in results)
            return all(is_sum(sent, result) for result in (results[:1] if identical else results))
        case Exchange.PUSH | Exchange.PULL:
            raise ValueError(f"got a {effect.value}; Checks.summed compares the sums of servers")
        case _:
            assert_never(effect)


def is_sum(sent: Sequence[Array], total: Array) -> bool:
    """Return True if the array `total` equals the sum of the arrays `sent`, within rounding, element by element.

    >>> is_sum([np.float32([0.1]), np.float32([0.2])], np.float32([0.3])), is_sum([np.ones(1)], np.zeros(1))
    (True, False)
    """
    wide = np.promote_types(total.dtype, np.float32)
    exact = sent[0].astype(wide)
    # n additions have an error of at most about n eps sum|x|; twice this bound, plus the smallest subnormal number for
    # sums near 0, leaves room for other orders of summation.
    size = np.abs(exact)
    for array in sent[1:]:
        part = array.astype(wide, copy=False)
        exact += part
        size += np.abs(part)
    limits: Any = ml_dtypes.finfo(total.dtype)  # type: ignore[no-untyped-call]
    size *= wide.type(2 * len(sent) * float(limits.eps))
    size += wide.type(2 * len(sent) * float(limits.smallest_subnormal))
    with np.errstate(invalid="ignore"):
        exact -= total.astype(wide, copy=False)
    if bool((np.abs(exact) <= size).all()):
        return True
    # Elements with infinite inputs, or with sum|x| above the dtype's maximum, overflow legitimately; do not compare
    # them.
    largest = wide.type(2 * len(sent) * float(limits.eps) * float(limits.max))
    return bool((np.abs(exact) <= size)[np.isfinite(size) & (size <= largest)].all())


def agree(setting: TrainingContext, ranks: Sequence[Rank]) -> bool:
    """Return True if ranks that should hold the same parameters hold the same bits."""
    groups: dict[int, list[Rank]] = {}
    for rank in ranks:
        groups.setdefault(setting.places[rank.number].holders, []).append(rank)
    return all(_agree(setting, group) for group in groups.values())


def _agree(setting: TrainingContext, ranks: Sequence[Rank]) -> bool:
    """Return True if the given ranks, which hold the same part of the model, hold the same bits."""
    if setting.plan.strategy.shards_parameters:
        # ZeRO-3: rank n holds shard n % cut, so compare with the rank of the first copy. With 8 ranks and shards over
        # 4, rank 5 is compared with rank 1. Experts differ between ranks and are not compared.
        pairs = [(ranks[n % setting.cut].parts, rank.parts) for n, rank in enumerate(ranks)]
        return all(_same(base[units], other[units]) for base, other in pairs for units in base if not is_spread(units))
    # Else every rank computes with whole parameters; compare each name with its first occurrence.
    by_name: dict[str, Array] = {}
    for rank in ranks:
        for parameters in rank.working.values():
            if not all(_same(by_name.setdefault(name, value), value) for name, value in parameters.items()):
                return False
    return True


def _same(first: Array, second: Array) -> bool:
    """Return True if two arrays have the same bits (NaN equals NaN)."""
    return first.tobytes() == second.tobytes()
