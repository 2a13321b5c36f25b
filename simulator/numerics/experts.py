"""A layer's experts, forward and backward: each token is sent to its k best experts, on whatever rank these are.

The router is a matrix and a softmax over all experts; the k best experts' outputs are summed, weighted by their
renormalised probabilities [1]_. Each expert is a plain MLP. Ranks exchange tokens together with the counts for each
receiver, as libraries exchange counts before tokens.

References
----------
.. [1] Jiang et al., "Mixtral of experts", 2024, arXiv:2401.04088, section 2.1.
.. [2] Lepikhin et al., "GShard", 2020, arXiv:2006.16668, section 2.2: an expert takes a fixed number of tokens from
   each rank, in order; further tokens bypass the expert.
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
from simulator.numerics.exchange import ExchangeRequest, Pass
from simulator.numerics.tensor_shard import TensorShard

Cache = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Experts:
    """A layer's mixture of experts, seen from a single rank."""

    arithmetic: Arithmetic
    share: TensorShard  # says how many ranks the experts are distributed over, and this rank's place among them
    # `count`, `active`: Experts on all ranks; experts that each token is sent to (k).
    count: int
    active: int
    # Tokens that an expert takes from each rank, in units of its even share [2]_; None: unlimited.
    capacity: float | None = None

    def forward(self, p: Parameters, x: Array) -> Pass[tuple[Array, Cache]]:
        """Return the weighted sum of the experts' outputs for the tokens `x`, shape (tokens, width), and the saved
        tensors.
        """
        a = self.arithmetic
        logits, saved = layers.linear(a, x, p["router.weight"], None)
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        likes = exponentials / exponentials.sum(axis=1, keepdims=True)
        # A stable sort breaks ties in favour of the lower expert number, on every machine.
        choices = np.argsort(-likes, axis=1, kind="stable")[:, : self.active]
        best = np.take_along_axis(likes, choices, axis=1)
        weights = best / best.sum(axis=1, keepdims=True)
        # Exchange of tokens on 2 ranks with 2 experts each (k = 1):
        #    rank 0 sends rows for experts 0 1 | 2 3 ;  rank 1 sends rows for experts 0 1 | 2 3
        #    rank 0 receives   from rank 0: 0 1 ;  from rank 1: 0 1      (experts 0 and 1 live here)
        #    rank 1 receives   from rank 0: 2 3 ;  from rank 1: 2 3
        # An expert's rows are therefore scattered over the received array (`_places`). Results go back in the received
        # layout, so each result returns to the position of its token in `sent`.
        rows = _Rows.of(choices, self.count, self._slots(len(x)))
        sent = rows.filled(x)
        came, splits = yield from self._handed("tokens to experts", sent, rows.lengths)
        results, inside = self._computed(p, came, splits)
        back, _ = yield from self._handed("tokens from experts", results, splits.sum(axis=1))
        # A copy beyond an expert's capacity has output 0: the token bypasses the expert through the residual
        # connection.
        outputs = rows.taken(back, choices.size).reshape(*choices.shape, -1)
        out = a.rounded((weights[..., None] * outputs).sum(axis=1))
        c = {"x": saved, "likes": likes, "chosen": choices, "weights": weights, "rows": rows, "splits": splits}
        return out, c | {"inside": inside, "outputs": outputs}

    def backward(self, p: Parameters, dy: Array, c: Cache, g: Gradients) -> Pass[Array]:
        """Return the gradient of the experts' input from the output gradient; put the parameters' gradients
        into `g`.
        """
        a, rows, choices, splits = self.arithmetic, c["rows"], c["chosen"], c["splits"]
        # A copy's output gradient is the token's output gradient times the copy's weight.
        of_copies = (c["weights"][..., None] * dy[:, None]).reshape(choices.size, -1)
        sent = rows.placed(of_copies)
        came, _ = yield from self._handed("tokens' gradients to experts", sent, rows.lengths)
        row_gradients = self._computed_backward(p, came, splits, c["inside"], g)
        back, _ = yield from self._handed("tokens' gradients from experts", row_gradients, splits.sum(axis=1))
        dx = rows.taken(back, choices.size).reshape(*choices.shape, -1).sum(axis=1)
        # Router: with probabilities p, the chosen ones' sum s and weights w_j = p_j / s, the weight's gradient is d_j =
        # output_j . dy. Hence dp_j = (d_j - sum_k d_k w_k) / s for the chosen experts and 0 elsewhere, and the softmax
        # gives dlogits = p (dp - sum(dp p)).
        d = (c["outputs"] * dy[:, None]).sum(axis=-1)
        likes, weights = c["likes"], c["weights"]
        best = np.take_along_axis(likes, choices, axis=1).sum(axis=1, keepdims=True)
        dlikes = np.zeros_like(likes)
        np.put_along_axis(dlikes, choices, (d - (d * weights).sum(axis=1, keepdims=True)) / best, axis=1)
        dlogits = likes * (dlikes - (dlikes * likes).sum(axis=1, keepdims=True))
        dx = dx + a.product(dlogits, a.load(p["router.weight"]))
        g["router.weight"] = a.product(dlogits.T, a.load(c["x"]))
        return a.rounded(dx)

    def _slots(self, tokens: int) -> int | None:
        """Return the number of rows that each expert takes from this rank's `tokens` tokens, or None if unlimited."""
        if self.capacity is None:
            return None
        return math.ceil(tokens * self.active / self.count * self.capacity)

    def own(self) -> range:
        """Return the numbers of this rank's experts, a range."""
        each = self.count // self.share.experts
        return range(self.share.expert_place * each, (self.share.expert_place + 1) * each)

    def _handed(self, name: str, rows: Array, lengths: Ints) -> Pass[tuple[Array, Ints]]:
        """Send rows to their receivers (all-to-all); return the received rows and their counts, shape (ranks, receivers
        of a rank).

        `lengths` are the rows for each receiver. Receivers are experts or ranks, equally many per rank. If this rank
        has all experts, the rows stay here.
        """
        width = rows.shape[1]
        if self.share.experts == 1:
            return rows, np.asarray(lengths)[None]
        # The exchange counts elements; a row is `width` elements.
        came, splits = yield ExchangeRequest(name, rows.ravel(), splits=tuple((np.asarray(lengths) * width).tolist()))
        return came.reshape(-1, width), splits // width

    def _computed(self, p: Parameters, came: Array, splits: Ints) -> tuple[Array, list[Any]]:
        """Return the outputs of this rank's experts for the received rows `came`, in order, and the saved tensors."""
        out, inside = np.zeros_like(came), []
        for expert, where in zip(self.own(), _places(splits), strict=True):
            wide, first = layers.linear(self.arithmetic, came[where], *_matrix(p, expert, "fc1"))
            bent, middle = layers.gelu(self.arithmetic, wide)
            out[where], last = layers.linear(self.arithmetic, bent, *_matrix(p, expert, "fc2"))
            inside.append((first, middle, last))
        return out, inside

    def _computed_backward(self, p: Parameters, came: Array, splits: Ints, inside: list[Any], g: Gradients) -> Array:
        """Return the received rows' gradients from the outputs' gradients; put the experts' gradients into `g`."""
        a, out = self.arithmetic, np.zeros_like(came)
        for expert, where, saved in zip(self.own(), _places(splits), inside, strict=True):
            first, middle, last = saved
            up, down = (f"experts.{expert}.{name}" for name in ("fc1", "fc2"))
            d, g[f"{down}.weight"], g[f"{down}.bias"] = layers.linear_backward(
                a, came[where], last, p[f"{down}.weight"]
            )
            d = layers.gelu_backward(a, d, middle)
            out[where], g[f"{up}.weight"], g[f"{up}.bias"] = layers.linear_backward(a, d, first, p[f"{up}.weight"])
        return out


@dataclass(frozen=True, slots=True)
class _Rows:
    """Layout of token copies for sending: sorted by expert, in token order within an expert.

    Examples
    --------
    Three tokens choose experts 1, 0 and 1; then the same with room for a single row per expert:

    >>> _Rows.of(np.array([[1], [0], [1]]), 2, None).place.tolist()
    [1, 0, 2]
    >>> _Rows.of(np.array([[1], [0], [1]]), 2, 1).place.tolist()
    [1, 0, -1]
    """

    place: Ints  # row of each copy; -1 for a copy beyond its expert's capacity; shape (copies,)
    lengths: Ints  # rows of each expert, including padding, shape (experts,)
    active: int  # copies of a token

    @classmethod
    def of(cls, choices: Ints, experts: int, slots: int | None) -> _Rows:
        """Return the layout for sending token copies to experts.

        Parameters
        ----------
        choices : int array, shape (tokens, k)
            Experts of each token.
        experts : int
            Experts on all ranks.
        slots : int or None
            Rows per expert; None: unlimited.
        """
        expert = choices.ravel()
        count = np.bincount(expert, minlength=experts)
        order = np.argsort(expert, kind="stable")
        # Number the copies of each expert from 0, in the order of tokens: position in the sorted order, less the
        # position of the expert's first copy.
        rank = np.empty(len(expert), np.int64)
        rank[order] = np.arange(len(expert)) - np.repeat(np.cumsum(count) - count, count)
        lengths = count if slots is None else np.full(experts, slots)
        place = (np.cumsum(lengths) - lengths)[expert] + rank
        return cls(np.where(rank < lengths[expert], place, -1), lengths, choices.shape[1])

    def filled(self, tokens: Array) -> Array:
        """Return copies of the tokens, shape (tokens, width), one per chosen expert, in the row order for sending."""
        return self.placed(np.repeat(tokens, self.active, axis=0))

    def placed(self, copies: Array) -> Array:
        """Return the token copies in the row order for sending; padding rows are 0."""
        rows = np.zeros((int(self.lengths.sum()), copies.shape[1]), copies.dtype)
        rows[self.place[self.place >= 0]] = copies[self.place >= 0]
        return rows

    def taken(self, rows: Array, copies: int) -> Array:
        """Return each token copy's row from the returned rows; 0 for a copy beyond the expert's capacity."""
        back = np.zeros((copies, rows.shape[1]), rows.dtype)
        back[self.place >= 0] = rows[self.place[self.place >= 0]]
        return back


def _places(splits: Ints) -> Sequence[Ints]:
    """Return, for each of this rank's experts, the indices of its rows among the received rows (sorted by source rank,
    then expert).

    Two source ranks sent 1 and 3 rows for the first expert, 2 and 1 rows for the second:

    >>> [rows.tolist() for rows in _places(np.array([[1, 2], [3, 1]]))]
    [[0, 3, 4, 5], [1, 2, 6]]
    """
    begin = (np.cumsum(splits) - splits.ravel()).reshape(splits.shape)
    pieces = [
        [np.arange(a, a + n) for a, n in zip(b, size, strict=True)] for b, size in zip(begin.T, splits.T, strict=True)
    ]
    return [np.concatenate(ranges) for ranges in pieces]


def _matrix(p: Parameters, expert: int, matrix: str) -> tuple[Array, Array]:
    """Return weight and bias for an expert's matrix ("fc1" or "fc2") from the parameters."""
    return p[f"experts.{expert}.{matrix}.weight"], p[f"experts.{expert}.{matrix}.bias"]


__all__ = ["Experts"]
