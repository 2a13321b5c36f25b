"""Causal attention over sequences that are cut among ranks: keys and values go round, or are gathered.

Rule: works on blocks of queries and keys with the positions of both, and keeps for each row the logarithm of the sum of
its exponentials, so that what each block adds can be put together and made again.

References
----------
.. [1] Liu, Zaharia & Abbeel, "Ring attention with blockwise transformers", 2023, arXiv:2310.01889.
.. [2] Dao, "FlashAttention-2", 2023, arXiv:2307.08691, section 3.1 (rows put together, and the backward pass).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.basics.arrays import Array, Ints
from simulator.numerics.arithmetic import Arithmetic
from simulator.numerics.exchange import Pass, Wanted
from simulator.numerics.share import Share

Cache = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ContextAttention:
    """Attention of one rank's queries to all keys.

    Attributes
    ----------
    arithmetic : Arithmetic
    share : Share
    """

    arithmetic: Arithmetic
    share: Share

    def forward(self, q: Array, k: Array, v: Array) -> Pass[tuple[Array, Cache]]:
        """Output of the queries' shape (batch, heads, own tokens, head_dim), and what is kept."""
        a, blocks = self.arithmetic, _Blocks(q, self._positions(q))
        keys, place = np.stack([k, v]), self.share.context_place
        if self.share.gathers:
            for source, block in enumerate((yield from self._gathered("gather keys", keys))):
                blocks.see(block, self._positions(q, source))
        else:
            for step in range(self.share.context):
                coming = keys
                if step < self.share.context - 1:
                    coming = (yield Wanted(f"keys {step + 1}", keys.ravel())).reshape(keys.shape)
                blocks.see(keys, self._positions(q, place - step))
                keys = coming
        out = a.rounded(blocks.out)
        return out, {"q": a.store(q), "k": a.store(k), "v": a.store(v), "logsumexp": blocks.logsumexp}

    def backward(self, dy: Array, kept: Cache, out: Array) -> Pass[tuple[Array, Array, Array]]:
        """Gradients of this rank's queries, keys and values."""
        a, share = self.arithmetic, self.share
        q, keys = a.load(kept["q"]), np.stack([a.load(kept["k"]), a.load(kept["v"])])
        mine = _Gradients(q, dy, kept["logsumexp"], (dy * out).sum(axis=-1, keepdims=True), self._positions(q))
        dq, place = np.zeros_like(q), share.context_place
        if share.gathers:
            parts = []
            for source, block in enumerate((yield from self._gathered("gather keys again", keys))):
                of_queries, of_keys = mine.of(block, self._positions(q, source))
                dq += of_queries
                parts.append(of_keys)
            home = yield Wanted("scatter keys' gradients", np.stack(parts).ravel())
        else:
            gradients = np.zeros_like(keys)
            for step in range(share.context):
                coming = keys
                if step < share.context - 1:
                    coming = (yield Wanted(f"keys again {step + 1}", keys.ravel())).reshape(keys.shape)
                if step:
                    gradients = (yield Wanted(f"keys' gradients {step}", gradients.ravel())).reshape(keys.shape)
                of_queries, of_keys = mine.of(keys, self._positions(q, place - step))
                dq += of_queries
                gradients = gradients + of_keys
                keys = coming
            home = yield Wanted(f"keys' gradients {share.context}", gradients.ravel())
        dk, dv = home.reshape(keys.shape)
        return a.rounded(dq), a.rounded(dk), a.rounded(dv)

    def _gathered(self, name: str, keys: Array) -> Pass[Array]:
        """Keys and values of all ranks, shape (ranks, 2, batch, heads, tokens, head_dim)."""
        together: Array = yield Wanted(name, keys.ravel())
        return together.reshape(self.share.context, *keys.shape)

    def _positions(self, q: Array, place: int | None = None) -> Ints:
        whole, c = q.shape[-2] * self.share.context, self.share.context
        return self.share.positions(whole, None if place is None else place % c)


class _Blocks:
    """Rows that see one block of keys after the other."""

    def __init__(self, q: Array, positions: Ints) -> None:
        self.q, self.positions = q, positions
        self.out = np.zeros_like(q)
        self.logsumexp = np.full((*q.shape[:-1], 1), -np.inf, q.dtype)

    def see(self, keys: Array, positions: Ints) -> None:
        """Add a block."""
        scores = _scores(self.q, keys[0], self.positions, positions)
        largest = scores.max(axis=-1, keepdims=True)
        safe = np.where(np.isneginf(largest), 0, largest)
        with np.errstate(divide="ignore"):
            block = safe + np.log(np.exp(scores - safe).sum(axis=-1, keepdims=True))
        both = np.logaddexp(self.logsumexp, block)
        # A row that has seen nothing yet has no finite sum, and no output.
        weight = np.exp(self.logsumexp - np.where(np.isneginf(both), 0, both))
        own = np.exp(scores - np.where(np.isneginf(both), 0, both))
        self.out = self.out * weight + own @ keys[1]
        self.logsumexp = both


@dataclass(frozen=True, slots=True)
class _Gradients:
    """What a rank's rows give back to a block of keys, and take from it.

    Attributes
    ----------
    q, dy : array, shape (batch, heads, tokens, head_dim)
    logsumexp, delta : array, shape (batch, heads, tokens, 1)
        Of the rows; the sum of output times its gradient.
    positions : int array, shape (tokens,)
    """

    q: Array
    dy: Array
    logsumexp: Array
    delta: Array
    positions: Ints

    def of(self, keys: Array, positions: Ints) -> tuple[Array, Array]:
        """Gradients of the queries, and of keys and values together."""
        weights = np.exp(_scores(self.q, keys[0], self.positions, positions) - self.logsumexp)
        dv = weights.swapaxes(-1, -2) @ self.dy
        ds = weights * (self.dy @ keys[1].swapaxes(-1, -2) - self.delta) * _scale(self.q)
        return ds @ keys[0], np.stack([ds.swapaxes(-1, -2) @ self.q, dv])


def _scores(q: Array, k: Array, rows: Ints, columns: Ints) -> Array:
    scores: Array = np.where(columns <= rows[:, None], q @ k.swapaxes(-1, -2) * _scale(q), q.dtype.type(-np.inf))
    return scores


def _scale(q: Array) -> Any:
    return q.dtype.type(1.0 / np.sqrt(q.shape[-1]))


__all__ = ["ContextAttention"]
