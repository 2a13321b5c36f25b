"""The passes of a single rank: forward, recompute and backward, unit by unit.

A pass works on a single rank's arrays. The pass requests exchanges (`ExchangeRequest`) with ranks computing the same
unit, without knowing how arrays are delivered.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from simulator.basics.arrays import Array, Ints
from simulator.basics.dtypes import find
from simulator.learning.rank_shard import is_spread
from simulator.learning.setting import TrainingContext
from simulator.learning.state import Rank
from simulator.numerics import vocabulary_loss
from simulator.numerics.block import Cache, entry, trimmed
from simulator.numerics.exchange import ExchangeRequest, ExchangeResult, Pass
from simulator.numerics.gpt import Gpt
from simulator.records.operation import Computation, NumericAction


def forward(
    setting: TrainingContext, rank: Rank, act: NumericAction[Computation], rows: Array, begun: int
) -> Pass[float | None]:
    """Run a unit forward, save tensors for its backward pass or recompute, and return the head's loss (else None).

    Parameters
    ----------
    rows : int array, shape (sequences, seq_len + 1)
        The micro-batch's tokens.
    begun : int
        Steps taken before.
    """
    (unit,), micro = act.units, act.micro
    gpt = setting.model(rank.number, unit, micro)
    if is_spread(act.units):
        # The layer after this unit runs the experts.
        return None
    number = setting.micro_batch(rank.number, unit, micro)
    # Context parallelism: this rank's positions in each sequence.
    positions = gpt.share.positions(rows.shape[1] - 1)
    x = rows[:, positions] if unit == gpt.units[0] else rank.rising.pop((unit, number))
    draw = setting.draw(rank.number, unit, micro, begun)
    out, cache = yield from gpt.forward(unit, gpt.used(unit, rank.working), x, draw)
    loss = None
    if unit == gpt.units[-1]:
        # Padding is not learnt.
        used = sum(setting.documents(rank.number, unit, micro)) or None
        # Position i predicts token i + 1, also where sequences are cut: `rows` holds every position on every rank.
        targets = rows[:, positions + 1].ravel()[:used]
        logits = out.reshape(-1, out.shape[-1])[:used]
        loss, probabilities = yield from vocabulary_loss.cross_entropy(logits, targets, gpt.share, gpt.vocabulary)
        cache = (cache, probabilities, targets)
    else:
        # The next unit may be on another pipeline stage; a send then moves the array (training.py).
        rank.rising[_beside(gpt, unit, 1), number] = out
    rank.caches[unit, micro] = _saved_tensors(setting, unit, cache)
    return loss


def _beside(gpt: Gpt, unit: str, step: int) -> str:
    """Return the unit before (`step` -1) or after (1) a unit; units of experts hand no activations on."""
    units = [name for name in gpt.units if not is_spread((name,))]
    return units[units.index(unit) + step]


def _saved_tensors(setting: TrainingContext, unit: str, cache: object) -> object:
    """Return the tensors in a unit's cache to keep for the backward pass under the checkpointing policy."""
    if unit not in setting.recomputed or not isinstance(cache, dict):
        return cache
    policy = setting.policy(unit)
    if policy != "sqrt":
        return trimmed(cache, policy)
    # "sqrt": a segment keeps only its first layer's input.
    return trimmed(cache, "full") if unit in setting.segments else {}


def recompute(setting: TrainingContext, rank: Rank, act: NumericAction[Computation], begun: int) -> Pass[None]:
    """Recompute on a rank a layer, or a segment of layers, from the first layer's input, and store the caches.

    Recomputed tensors are available before the pass ends, because operations need not wait for its last exchange.
    """
    gpt, micro = setting.model(rank.number, act.units[0], act.micro), act.micro
    x = entry(rank.caches[act.units[0], micro])
    batch = setting.plan.step.keys.micro_batch_size
    x = gpt.arithmetic.load(x).reshape(batch, -1, gpt.width)
    for unit in act.units:
        saved_tensors, cache = rank.caches[unit, micro], Cache()
        draw = setting.draw(rank.number, unit, micro, begun)
        # Publish the dict before it is filled: the backward pass may start while this generator still waits for the
        # layer's last exchange.
        rank.caches[unit, micro] = cache
        x = yield from gpt.again(unit, gpt.used(unit, rank.working), x, saved_tensors, cache, draw)


def backward(setting: TrainingContext, rank: Rank, act: NumericAction[Computation], begun: int) -> Pass[None]:
    """Run a unit's backward pass on a rank, or half of it, and accumulate the parameters' gradients.

    A micro-batch's loss is divided by the number of micro-batches, as PyTorch users write `scaler.scale(loss /
    accumulation)`.
    """
    (unit,), micro = act.units, act.micro
    gpt = setting.model(rank.number, unit, micro)
    part, number = _PARTS[act.effect], setting.micro_batch(rank.number, unit, micro)
    if is_spread(act.units):
        # The layer after this unit has computed the experts' gradients.
        if part != "input":
            _keep(setting, rank, unit, micro, {})
        return
    # The input half leaves the cache for the weight half.
    cache = rank.caches[unit, micro] if part == "input" else rank.caches.pop((unit, micro))
    if unit == gpt.units[-1]:
        cache, probabilities, targets = cache
    if part == "weights":
        # The weight half uses the output's gradient that the input half received.
        dy = rank.left[unit, micro]["falling"]
    elif unit == gpt.units[-1]:
        factor = rank.scale.value / setting.plan.step.accumulation
        gradient = vocabulary_loss.cross_entropy_backward(probabilities, targets, gpt.share, factor)
        padding = sum(gpt.documents) - len(gradient) if gpt.documents else 0
        gradient = np.pad(gradient, ((0, padding), (0, 0)))
        sequences = setting.plan.step.keys.micro_batch_size
        dy = gpt.arithmetic.rounded(gradient).reshape(sequences, -1, gradient.shape[-1])
    else:
        dy = rank.falling.pop((unit, number))
    draw = setting.draw(rank.number, unit, micro, begun)
    left = rank.left.setdefault((unit, micro), {}) if part != "whole" else {}
    dx, gradients = yield from gpt.backward(unit, gpt.used(unit, rank.working), cache, dy, draw, left, part)
    if part == "input":
        left["falling"] = dy
    elif part == "weights":
        rank.left.pop((unit, micro))
    if dx is not None and part != "weights":
        rank.falling[_beside(gpt, unit, -1), number] = dx
    if part != "input":
        _keep(setting, rank, unit, micro, gradients)


# Part of the backward pass per operation.
_PARTS: dict[Computation, Any] = {
    Computation.BACKWARD: "whole",
    Computation.INPUT_GRADIENT: "input",
    Computation.WEIGHT_GRADIENT: "weights",
}


def _keep(setting: TrainingContext, rank: Rank, unit: str, micro: int, gradients: dict[str, Array]) -> None:
    """Add a pass's parameter gradients to the gradients accumulated on the rank, in the gradients' dtype."""
    own_names = setting.places[rank.number].gpt.shapes(unit)
    dtype = find(setting.plan.step.precision.grads).numpy
    sums = rank.gradients.setdefault((unit, setting.kept_in(micro)), {})
    # The layer computed its experts' gradients and left them in `tied`; the experts' unit takes over.
    if is_spread((unit,)):
        gradients = {name: rank.tied.pop((micro, name)) for name in own_names}
    for name, gradient in gradients.items():
        # A parameter of another unit: the tied token table, or an expert. Its home unit picks the gradient up.
        if name not in own_names:
            rank.tied[micro, name] = gradient
            continue
        # A tied table has gradients from head and embedding. Add both before rounding to the gradients' dtype and
        # accumulating, as autograd does for a single micro-batch.
        total = gradient + rank.tied.pop((micro, name)) if (micro, name) in rank.tied else gradient
        part = total.astype(dtype)
        sums[name] = sums[name] + part if name in sums else part


class RunningPass:
    """A rank's pass, run as a coroutine: it stops at each exchange and resumes when the result arrives.

    Attributes
    ----------
    brought : dict of exchange's name to ExchangeRequest
        Exchanges requested so far, with this rank's contributions.
    ended : bool
        True if the pass has returned.
    result : object
        The pass's return value.
    """

    def __init__(self, run: Pass[Any]) -> None:
        """Wrap a pass, a generator requesting exchanges, without starting the generator."""
        self.brought: dict[str, ExchangeRequest] = {}
        self.ended = False
        self.result: Any = None
        self._run = run
        self._times: Counter[str] = Counter()
        self._came: dict[str, Any] = {}
        # Name of the awaited exchange, or else the value to send next. A generator starts with None.
        self._waiting = ""
        self._told: str | None = None

    def advance(self) -> None:
        """Run the pass until it ends or waits for an exchange without a result."""
        while not self.ended:
            if self._waiting and self._waiting not in self._came:
                return
            answer: Any = self._came.pop(self._waiting) if self._waiting else self._told
            self._waiting, self._told = "", None
            try:
                request = self._run.send(answer)
            except StopIteration as end:
                self.ended, self.result = True, end.value
                return
            if isinstance(request, ExchangeResult):
                self._waiting = request.what
                continue
            self._times[request.name] += 1
            # A segment recomputes several layers in a single pass, so a name may occur again: "gather up input, 2".
            again = f", {self._times[request.name]}" if self._times[request.name] > 1 else ""
            self.brought[request.name + again] = request
            # The pass continues at once with a handle, and asks for the result later (`ExchangeResult`).
            if request.later:
                self._told = request.name + again
            else:
                self._waiting = request.name + again

    def take(self, what: str, array: Array) -> None:
        """Store the result for the exchange named `what` and continue the pass."""
        # The array travelled in the dtype on the wire; computing continues in the contribution's dtype.
        wide = self.brought[what].array.dtype
        self._came[what] = np.asarray(array).astype(wide, copy=False)
        self.advance()

    def take_apart(self, what: str, array: Array, splits: Ints) -> None:
        """Store the result for the all-to-all named `what` (received array, and splits by source rank) and continue the
        pass.
        """
        self._came[what] = array.astype(self.brought[what].array.dtype, copy=False), splits
        self.advance()


__all__ = ["RunningPass", "backward", "forward", "recompute"]
