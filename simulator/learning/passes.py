"""What one rank computes of a pass: forward, recomputation, backward, unit by unit.

Rule: works on one rank's arrays; nothing here knows that there are others.
"""

from __future__ import annotations

from simulator.basics.arrays import Array
from simulator.basics.dtypes import find
from simulator.learning.setting import Setting
from simulator.learning.state import Rank
from simulator.numerics import layers
from simulator.numerics.block import entry, trimmed
from simulator.records.program import Act, Computation


def forward(setting: Setting, rank: Rank, act: Act[Computation], rows: Array, begun: int) -> float | None:
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
    gpt, (unit,), micro = setting.gpt, act.units, act.micro
    x = rows[:, :-1] if unit == gpt.units[0] else rank.flowing[micro]
    draw = setting.draw(rank.number, unit, micro, begun)
    out, cache = gpt.forward(unit, gpt.used(unit, rank.working), x, draw)
    loss = None
    if unit == gpt.units[-1]:
        targets = rows[:, 1:].ravel()
        loss, kept = layers.cross_entropy(out.reshape(-1, gpt.vocabulary), targets)
        cache = (cache, kept, targets)
    rank.caches[unit, micro] = _kept(setting, unit, cache)
    rank.flowing[micro] = out
    return loss


def _kept(setting: Setting, unit: str, cache: object) -> object:
    if unit not in setting.recomputed or not isinstance(cache, dict):
        return cache
    policy = setting.policy(unit)
    if policy != "sqrt":
        return trimmed(cache, policy)
    # Of a segment only the input of its first layer.
    return trimmed(cache, "full") if unit in setting.segments else {}


def recompute(setting: Setting, rank: Rank, act: Act[Computation], begun: int) -> None:
    """Run one layer or a segment of them forward again, from the input of the first."""
    gpt, micro = setting.gpt, act.micro
    x = entry(rank.caches[act.units[0], micro])
    batch = setting.plan.step.micro_batch_size
    x = gpt.arithmetic.load(x).reshape(batch, -1, gpt.width)
    for unit in act.units:
        kept = rank.caches[unit, micro]
        draw = setting.draw(rank.number, unit, micro, begun)
        x, rank.caches[unit, micro] = gpt.again(unit, gpt.used(unit, rank.working), x, kept, draw)


def backward(setting: Setting, rank: Rank, act: Act[Computation], begun: int) -> None:
    """Run a unit's backward pass, and add its gradients to those that are there.

    The loss of a micro-batch is its share of the step's, as users of PyTorch write `scaler.scale(loss / accumulation)`.
    """
    gpt, (unit,), micro = setting.gpt, act.units, act.micro
    dy = rank.flowing.pop(micro)
    cache = rank.caches.pop((unit, micro))
    if unit == gpt.units[-1]:
        cache, probabilities, targets = cache
        factor = rank.scale.value / setting.plan.step.accumulation
        gradient = layers.cross_entropy_backward(probabilities, targets, factor)
        dy = gpt.arithmetic.rounded(gradient).reshape(dy.shape)
    draw = setting.draw(rank.number, unit, micro, begun)
    dx, gradients = gpt.backward(unit, gpt.used(unit, rank.working), cache, dy, draw)
    if dx is not None:
        rank.flowing[micro] = dx
    kept = find(setting.plan.step.precision.grads).numpy
    own = rank.gradients.setdefault((unit, setting.kept_in(micro)), {})
    for name, gradient in gradients.items():
        if name not in gpt.shapes(unit):
            rank.tied[micro, name] = gradient
            continue
        # A tied table has gradients from both ends; a micro-batch's are one before they are added to earlier ones'.
        whole = gradient + rank.tied.pop((micro, name)) if (micro, name) in rank.tied else gradient
        part = whole.astype(kept)
        own[name] = own[name] + part if name in own else part
