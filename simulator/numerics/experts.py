"""A layer's experts, forward and backward: each token goes to the few that its router likes best, wherever these are.

Rule: a router is a matrix and a softmax over all experts; the k best are weighed by their shares of these [1]_ and
added up. An expert is an MLP like any other. Of its tokens a rank knows which expert each goes to; what it gets from
others is told with how much of it is for whom, as libraries tell each other before they send.

References
----------
.. [1] Jiang et al., "Mixtral of experts", 2024, arXiv:2401.04088, section 2.1.
.. [2] Lepikhin et al., "GShard", 2020, arXiv:2006.16668, section 2.2: an expert takes so many tokens of each rank,
   those that come first; what is more goes past it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.basics.arrays import Array, Ints
from simulator.numerics import layers
from simulator.numerics.arithmetic import Arithmetic
from simulator.numerics.cut_linear import Gradients, Parameters
from simulator.numerics.exchange import Pass, Wanted
from simulator.numerics.share import Share

Cache = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Experts:
    """A layer's experts as one rank has them.

    Attributes
    ----------
    arithmetic : Arithmetic
    share : Share
    count, active : int
        Experts of all ranks, and how many a token goes to.
    capacity : float or None
        Tokens that an expert takes of each rank, over its even share; None: all.
    """

    arithmetic: Arithmetic
    share: Share
    count: int
    active: int
    capacity: float | None = None

    def forward(self, p: Parameters, x: Array) -> Pass[tuple[Array, Cache]]:
        """Weighted sum of the experts' outputs, shape (tokens, width), and what is kept."""
        a = self.arithmetic
        logits, kept = layers.linear(a, x, p["router.weight"], None)
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        likes = exponentials / exponentials.sum(axis=1, keepdims=True)
        chosen = np.argsort(-likes, axis=1, kind="stable")[:, : self.active]
        best = np.take_along_axis(likes, chosen, axis=1)
        weights = best / best.sum(axis=1, keepdims=True)
        rows = _Rows.of(chosen, self.count, self._slots(len(x)))
        sent = rows.filled(x)
        came, splits = yield from self._handed("tokens to experts", sent, rows.lengths)
        made, inside = self._computed(p, came, splits)
        back, _ = yield from self._handed("tokens from experts", made, splits.sum(axis=1))
        outputs = rows.taken(back, chosen.size).reshape(*chosen.shape, -1)
        out = a.rounded((weights[..., None] * outputs).sum(axis=1))
        c = {"x": kept, "likes": likes, "chosen": chosen, "weights": weights, "rows": rows, "splits": splits}
        return out, c | {"inside": inside, "outputs": outputs}

    def backward(self, p: Parameters, dy: Array, c: Cache, g: Gradients) -> Pass[Array]:
        """Gradient of the input; those of parameters are put into `g`."""
        a, rows, chosen, splits = self.arithmetic, c["rows"], c["chosen"], c["splits"]
        of_copies = (c["weights"][..., None] * dy[:, None]).reshape(chosen.size, -1)
        sent = rows.placed(of_copies)
        came, _ = yield from self._handed("tokens' gradients to experts", sent, rows.lengths)
        made = self._computed_backward(p, came, splits, c["inside"], g)
        back, _ = yield from self._handed("tokens' gradients from experts", made, splits.sum(axis=1))
        dx = rows.taken(back, chosen.size).reshape(*chosen.shape, -1).sum(axis=1)
        d = (c["outputs"] * dy[:, None]).sum(axis=-1)
        likes, weights = c["likes"], c["weights"]
        best = np.take_along_axis(likes, chosen, axis=1).sum(axis=1, keepdims=True)
        dlikes = np.zeros_like(likes)
        np.put_along_axis(dlikes, chosen, (d - (d * weights).sum(axis=1, keepdims=True)) / best, axis=1)
        dlogits = likes * (dlikes - (dlikes * likes).sum(axis=1, keepdims=True))
        dx = dx + a.product(dlogits, a.load(p["router.weight"]))
        g["router.weight"] = a.product(dlogits.T, a.load(c["x"]))
        return a.rounded(dx)

    def _slots(self, tokens: int) -> int | None:
        if self.capacity is None:
            return None
        return math.ceil(tokens * self.active / self.count * self.capacity)

    def own(self) -> range:
        """Numbers of the experts that this rank has."""
        each = self.count // self.share.experts
        return range(self.share.expert_place * each, (self.share.expert_place + 1) * each)

    def _handed(self, name: str, rows: Array, lengths: Ints) -> Pass[tuple[Array, Ints]]:
        """Hand so many rows to each taker; returns the rows that came, and by source how many for each taker.

        Takers are experts or ranks, as many of them for each rank; where one rank has all, rows stay where they are.
        """
        width = rows.shape[1]
        if self.share.experts == 1:
            return rows, np.asarray(lengths)[None]
        came, splits = yield Wanted(name, rows.ravel(), splits=tuple((np.asarray(lengths) * width).tolist()))
        return came.reshape(-1, width), splits // width

    def _computed(self, p: Parameters, came: Array, splits: Ints) -> tuple[Array, list[Any]]:
        """Each own expert's output for the rows that came for it, where they lie."""
        out, inside = np.zeros_like(came), []
        for expert, where in zip(self.own(), _places(splits), strict=True):
            wide, first = layers.linear(self.arithmetic, came[where], *_of(p, expert, "fc1"))
            bent, middle = layers.gelu(self.arithmetic, wide)
            out[where], last = layers.linear(self.arithmetic, bent, *_of(p, expert, "fc2"))
            inside.append((first, middle, last))
        return out, inside

    def _computed_backward(self, p: Parameters, came: Array, splits: Ints, inside: list[Any], g: Gradients) -> Array:
        a, out = self.arithmetic, np.zeros_like(came)
        for expert, where, kept in zip(self.own(), _places(splits), inside, strict=True):
            first, middle, last = kept
            one, other = (f"experts.{expert}.{name}" for name in ("fc1", "fc2"))
            d, g[f"{other}.weight"], g[f"{other}.bias"] = layers.linear_backward(
                a, came[where], last, p[f"{other}.weight"]
            )
            d = layers.gelu_backward(a, d, middle)
            out[where], g[f"{one}.weight"], g[f"{one}.bias"] = layers.linear_backward(a, d, first, p[f"{one}.weight"])
        return out


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where copies of tokens lie as they are handed over: expert behind expert, in the order of tokens.

    Attributes
    ----------
    place : int array, shape (copies,)
        Of each copy; -1 for one that its expert does not take.
    lengths : int array, shape (experts,)
        Rows of each expert, padded ones too.
    active : int
        Copies of a token.
    """

    place: Ints
    lengths: Ints
    active: int

    @classmethod
    def of(cls, chosen: Ints, experts: int, slots: int | None) -> _Rows:
        """Where copies lie, given the experts of each token, of which each takes so many."""
        expert = chosen.ravel()
        count = np.bincount(expert, minlength=experts)
        order = np.argsort(expert, kind="stable")
        rank = np.empty(len(expert), np.int64)
        rank[order] = np.arange(len(expert)) - np.repeat(np.cumsum(count) - count, count)
        lengths = count if slots is None else np.full(experts, slots)
        place = (np.cumsum(lengths) - lengths)[expert] + rank
        return cls(np.where(rank < lengths[expert], place, -1), lengths, chosen.shape[1])

    def filled(self, tokens: Array) -> Array:
        """Copies of tokens, shape (tokens, width), as they are handed over."""
        return self.placed(np.repeat(tokens, self.active, axis=0))

    def placed(self, copies: Array) -> Array:
        """Rows as they are handed over; zeros where none lies."""
        rows = np.zeros((int(self.lengths.sum()), copies.shape[1]), copies.dtype)
        rows[self.place[self.place >= 0]] = copies[self.place >= 0]
        return rows

    def taken(self, rows: Array, copies: int) -> Array:
        """Each copy's row; zeros for one that was not taken."""
        back = np.zeros((copies, rows.shape[1]), rows.dtype)
        back[self.place >= 0] = rows[self.place[self.place >= 0]]
        return back


def _places(splits: Ints) -> Sequence[Ints]:
    """Of rows that came from each source, expert behind expert, those of each expert."""
    begin = (np.cumsum(splits) - splits.ravel()).reshape(splits.shape)
    pieces = [
        [np.arange(a, a + n) for a, n in zip(b, own, strict=True)] for b, own in zip(begin.T, splits.T, strict=True)
    ]
    return [np.concatenate(own) for own in pieces]


def _of(p: Parameters, expert: int, matrix: str) -> tuple[Array, Array]:
    return p[f"experts.{expert}.{matrix}.weight"], p[f"experts.{expert}.{matrix}.bias"]


__all__ = ["Experts"]
