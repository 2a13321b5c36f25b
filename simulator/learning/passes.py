"""What one rank computes of a pass: forward, recomputation, backward, unit by unit.

Rule: works on one rank's arrays; what ranks that compute a unit together exchange on the way is asked for (`Wanted`),
and who brings it is not known here.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from simulator.basics.arrays import Array, Ints
from simulator.basics.dtypes import find
from simulator.learning.place import is_spread
from simulator.learning.setting import Setting
from simulator.learning.state import Rank
from simulator.numerics import vocabulary_loss
from simulator.numerics.block import Cache, entry, trimmed
from simulator.numerics.exchange import Came, Pass, Wanted
from simulator.records.operation import Act, Computation


def forward(setting: Setting, rank: Rank, act: Act[Computation], rows: Array, begun: int) -> Pass[float | None]:
    """Run a unit, and keep what its backward pass needs, or what it can be run again from; the head's loss.

    Parameters
    ----------
    setting : Setting
    rank : Rank
    act : Act
    rows : int array, shape (sequences, seq_len + 1)
        The micro-batch's tokens.
    begun : int
        Steps taken before.
    """
    gpt, (unit,), micro = setting.places[rank.number].gpt, act.units, act.micro
    number = setting.micro_batch(rank.number, unit, micro)
    own = gpt.share.positions(rows.shape[1] - 1)
    x = rows[:, own] if unit == gpt.units[0] else rank.rising.pop((unit, number))
    draw = setting.draw(rank.number, unit, micro, begun)
    out, cache = yield from gpt.forward(unit, gpt.used(unit, rank.working), x, draw)
    loss = None
    if unit == gpt.units[-1]:
        targets = rows[:, own + 1].ravel()
        logits = out.reshape(-1, out.shape[-1])
        loss, kept = yield from vocabulary_loss.cross_entropy(logits, targets, gpt.share, gpt.vocabulary)
        cache = (cache, kept, targets)
    else:
        rank.rising[gpt.units[gpt.units.index(unit) + 1], number] = out
    rank.caches[unit, micro] = _kept(setting, unit, cache)
    return loss


def _kept(setting: Setting, unit: str, cache: object) -> object:
    if unit not in setting.recomputed or not isinstance(cache, dict):
        return cache
    policy = setting.policy(unit)
    if policy != "sqrt":
        return trimmed(cache, policy)
    # Of a segment only the input of its first layer.
    return trimmed(cache, "full") if unit in setting.segments else {}


def recompute(setting: Setting, rank: Rank, act: Act[Computation], begun: int) -> Pass[None]:
    """Run one layer or a segment of them forward again, from the input of the first.

    What has been made again is there before the pass has ended: nobody may wait for its last exchange.
    """
    gpt, micro = setting.places[rank.number].gpt, act.micro
    x = entry(rank.caches[act.units[0], micro])
    batch = setting.plan.step.micro_batch_size
    x = gpt.arithmetic.load(x).reshape(batch, -1, gpt.width)
    for unit in act.units:
        kept, made = rank.caches[unit, micro], Cache()
        draw = setting.draw(rank.number, unit, micro, begun)
        rank.caches[unit, micro] = made
        x = yield from gpt.again(unit, gpt.used(unit, rank.working), x, kept, made, draw)


def backward(setting: Setting, rank: Rank, act: Act[Computation], begun: int) -> Pass[None]:
    """Run a unit's backward pass, or half of it, and add its gradients to those that are there.

    The loss of a micro-batch is its share of the step's, as users of PyTorch write `scaler.scale(loss / accumulation)`.
    """
    gpt, (unit,), micro = setting.places[rank.number].gpt, act.units, act.micro
    part, number = _PARTS[act.effect], setting.micro_batch(rank.number, unit, micro)
    cache = rank.caches[unit, micro] if part == "input" else rank.caches.pop((unit, micro))
    if unit == gpt.units[-1]:
        cache, probabilities, targets = cache
    if part == "weights":
        dy = rank.left[unit, micro]["falling"]
    elif unit == gpt.units[-1]:
        factor = rank.scale.value / setting.plan.step.accumulation
        gradient = vocabulary_loss.cross_entropy_backward(probabilities, targets, gpt.share, factor)
        sequences = setting.plan.step.micro_batch_size
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
        rank.falling[gpt.units[gpt.units.index(unit) - 1], number] = dx
    if part != "input":
        _keep(setting, rank, unit, micro, gradients)


_PARTS: dict[Computation, Any] = {
    Computation.BACKWARD: "whole",
    Computation.INPUT_GRADIENT: "input",
    Computation.WEIGHT_GRADIENT: "weights",
}


def _keep(setting: Setting, rank: Rank, unit: str, micro: int, gradients: dict[str, Array]) -> None:
    own_names = setting.places[rank.number].gpt.shapes(unit)
    kept = find(setting.plan.step.precision.grads).numpy
    own = rank.gradients.setdefault((unit, setting.kept_in(micro)), {})
    if is_spread((unit,)):
        gradients = {name: rank.tied.pop((micro, name)) for name in own_names}
    for name, gradient in gradients.items():
        if name not in own_names:
            rank.tied[micro, name] = gradient
            continue
        # A tied table has gradients from both ends; a micro-batch's are one before they are added to earlier ones'.
        whole = gradient + rank.tied.pop((micro, name)) if (micro, name) in rank.tied else gradient
        part = whole.astype(kept)
        own[name] = own[name] + part if name in own else part


class PassUnderWay:
    """A pass of one rank that goes on as far as what it wants has come.

    Attributes
    ----------
    brought : dict of exchange's name to Wanted
        What it has asked for, with what it brings.
    ended : bool
    result : object
        What the pass returned.
    """

    def __init__(self, run: Pass[Any]) -> None:
        self.brought: dict[str, Wanted] = {}
        self.ended = False
        self.result: Any = None
        self._run = run
        self._times: Counter[str] = Counter()
        self._came: dict[str, Any] = {}
        # What it waits for, or else what it is told next; a generator begins with None.
        self._waiting = ""
        self._told: str | None = None

    def advance(self) -> None:
        """Go on until it has ended, or wants what has not come."""
        while not self.ended:
            if self._waiting and self._waiting not in self._came:
                return
            told: Any = self._came.pop(self._waiting) if self._waiting else self._told
            self._waiting, self._told = "", None
            try:
                asked = self._run.send(told)
            except StopIteration as end:
                self.ended, self.result = True, end.value
                return
            if isinstance(asked, Came):
                self._waiting = asked.what
                continue
            self._times[asked.name] += 1
            # Several layers may be run again together.
            again = f", {self._times[asked.name]}" if self._times[asked.name] > 1 else ""
            self.brought[asked.name + again] = asked
            if asked.later:
                self._told = asked.name + again
            else:
                self._waiting = asked.name + again

    def take(self, what: str, array: Array) -> None:
        """Take what came of an exchange."""
        wide = self.brought[what].array.dtype
        self._came[what] = np.asarray(array).astype(wide, copy=False)
        self.advance()

    def take_apart(self, what: str, array: Array, splits: Ints) -> None:
        """Take what came from each rank, and how much of it is for whom."""
        self._came[what] = array.astype(self.brought[what].array.dtype, copy=False), splits
        self.advance()


__all__ = ["PassUnderWay", "backward", "forward", "recompute"]
