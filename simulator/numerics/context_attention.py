"""Causal attention over sequences that are cut among ranks: keys and values travel round a ring, or are gathered.

Queries and keys are processed in blocks with explicit positions. Each row saves the logarithm of its sum of
exponentials, from which the blocks' contributions are combined in the forward pass and recomputed in the backward pass.

References
----------
.. [1] Liu, Zaharia & Abbeel, "Ring attention with blockwise transformers", 2023, arXiv:2310.01889.
.. [2] Dao, "FlashAttention-2", 2023, arXiv:2307.08691, section 3.1 (combining rows, and the backward pass).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.basics.arrays import Array, Ints
from simulator.numerics.arithmetic import Arithmetic
from simulator.numerics.exchange import ExchangeRequest, Pass
from simulator.numerics.tensor_shard import TensorShard

Cache = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ContextAttention:
    """Causal attention of this rank's queries to the keys of every context-parallel rank."""

    arithmetic: Arithmetic
    share: TensorShard  # this rank's part of the sequences

    def forward(self, q: Array, k: Array, v: Array) -> Pass[tuple[Array, Cache]]:
        """Return attention's output for this rank's q, k and v, shape (batch, heads, own tokens, head_dim), and the
        saved tensors.
        """
        a, blocks = self.arithmetic, _Blocks(q, self._positions(q))
        keys, place = np.stack([k, v]), self.share.context_place
        if self.share.gathers:
            for source, block in enumerate((yield from self._gathered("gather keys", keys))):
                blocks.see(block, self._positions(q, source))
        else:
            # Key blocks in a ring with 4 ranks (rank r sends to r + 1 and receives from r - 1):
            #    step     0   1   2   3
            #    rank 0   0   3   2   1
            #    rank 1   1   0   3   2
            #    rank 2   2   1   0   3
            #    rank 3   3   2   1   0
            # At step s rank r holds the keys of rank r - s. Nobody needs the keys after the last step, hence only 3
            # shifts.
            for step in range(self.share.context):
                coming = keys
                if step < self.share.context - 1:
                    coming = (yield ExchangeRequest(f"keys {step + 1}", keys.ravel())).reshape(keys.shape)
                blocks.see(keys, self._positions(q, place - step))
                keys = coming
        out = a.rounded(blocks.out)
        return out, {"q": a.store(q), "k": a.store(k), "v": a.store(v), "logsumexp": blocks.logsumexp}

    def backward(self, dy: Array, saved: Cache, out: Array) -> Pass[tuple[Array, Array, Array]]:
        """Return the gradients of this rank's queries, keys and values from the output gradient `dy` and the saved
        tensors.
        """
        a, share = self.arithmetic, self.share
        q, keys = a.load(saved["q"]), np.stack([a.load(saved["k"]), a.load(saved["v"])])
        # delta = rowsum(dO * O) equals rowsum(dP * P), without needing every block's scores [2]_.
        mine = _Gradients(q, dy, saved["logsumexp"], (dy * out).sum(axis=-1, keepdims=True), self._positions(q))
        dq, place = np.zeros_like(q), share.context_place
        if share.gathers:
            parts = []
            for source, block in enumerate((yield from self._gathered("gather keys again", keys))):
                of_queries, of_keys = mine.of(block, self._positions(q, source))
                dq += of_queries
                parts.append(of_keys)
            # Every rank has a contribution to every block; the reduce-scatter gives each rank the sum for its own keys.
            home = yield ExchangeRequest("scatter keys' gradients", np.stack(parts).ravel())
        else:
            # A block's gradients follow the block round the ring, a step behind its keys. With 2 ranks, for block 0:
            #    step 0: rank 0 adds its contribution and sends keys 0 on
            #    step 1: rank 1 receives keys 0, then the gradients so far, and adds its contribution
            #    end:    rank 1 sends the gradients home to rank 0 (exchange number c)
            gradients = np.zeros_like(keys)
            for step in range(share.context):
                coming = keys
                if step < share.context - 1:
                    coming = (yield ExchangeRequest(f"keys again {step + 1}", keys.ravel())).reshape(keys.shape)
                if step:
                    gradients = (yield ExchangeRequest(f"keys' gradients {step}", gradients.ravel())).reshape(
                        keys.shape
                    )
                of_queries, of_keys = mine.of(keys, self._positions(q, place - step))
                dq += of_queries
                gradients = gradients + of_keys
                keys = coming
            home = yield ExchangeRequest(f"keys' gradients {share.context}", gradients.ravel())
        dk, dv = home.reshape(keys.shape)
        return a.rounded(dq), a.rounded(dk), a.rounded(dv)

    def _gathered(self, name: str, keys: Array) -> Pass[Array]:
        """Return all ranks' keys and values, shape (ranks, 2, batch, heads, tokens, head_dim)."""
        together: Array = yield ExchangeRequest(name, keys.ravel())
        return together.reshape(self.share.context, *keys.shape)

    def _positions(self, q: Array, place: int | None = None) -> Ints:
        """Return the positions of the tokens of the rank at `place`, by default of this rank, shape (own tokens,)."""
        seq_len, c = q.shape[-2] * self.share.context, self.share.context
        # Ring steps count downwards from this rank's place, hence the modulo.
        return self.share.positions(seq_len, None if place is None else place % c)


class _Blocks:
    """Attention output for this rank's queries, accumulated over key blocks (online softmax)."""

    def __init__(self, q: Array, positions: Ints) -> None:
        """Start without any keys: output 0 and log-sum-exp -inf, shapes as `q` and (..., 1)."""
        self.q, self.positions = q, positions
        self.out = np.zeros_like(q)
        self.logsumexp = np.full((*q.shape[:-1], 1), -np.inf, q.dtype)

    def see(self, keys: Array, positions: Ints) -> None:
        """Add keys and values, shape (2, batch, heads, tokens, head_dim), to the output of this rank's queries."""
        scores = _scores(self.q, keys[0], self.positions, positions)
        # For two blocks with log-sum-exps a and b the combined log-sum-exp is log(e^a + e^b) = c; the old output is
        # weighted by e^(a - c), and the new scores by e^(score - c).
        largest = scores.max(axis=-1, keepdims=True)
        # A row without a visible key in this block has -inf as its maximum, and -inf - -inf would be NaN.
        safe = np.where(np.isneginf(largest), 0, largest)
        with np.errstate(divide="ignore"):
            block = safe + np.log(np.exp(scores - safe).sum(axis=-1, keepdims=True))
        both = np.logaddexp(self.logsumexp, block)
        # A row without any visible key has no finite sum yet; its output stays 0.
        weight = np.exp(self.logsumexp - np.where(np.isneginf(both), 0, both))
        block_weights = np.exp(scores - np.where(np.isneginf(both), 0, both))
        self.out = self.out * weight + block_weights @ keys[1]
        self.logsumexp = both


@dataclass(frozen=True, slots=True)
class _Gradients:
    """Attention's backward pass for this rank's queries, evaluated per block of keys."""

    q: Array  # queries, shape (batch, heads, tokens, head_dim)
    dy: Array  # gradient of the output, same shape
    logsumexp: Array  # log-sum-exp of each row, shape (batch, heads, tokens, 1)
    delta: Array  # sum of each row's output times its gradient, same shape
    positions: Ints  # positions of the queries in the sequence, shape (tokens,)

    def of(self, keys: Array, positions: Ints) -> tuple[Array, Array]:
        """Return a block's contribution to the queries' gradient, and the gradients of its keys and values."""
        # exp(score - log-sum-exp) is the softmax itself; nothing of size tokens x tokens was saved.
        weights = np.exp(_scores(self.q, keys[0], self.positions, positions) - self.logsumexp)
        dv = weights.swapaxes(-1, -2) @ self.dy
        ds = weights * (self.dy @ keys[1].swapaxes(-1, -2) - self.delta) * _scale(self.q)
        return ds @ keys[0], np.stack([ds.swapaxes(-1, -2) @ self.q, dv])


def _scores(q: Array, k: Array, rows: Ints, columns: Ints) -> Array:
    """Return the scaled scores q k^T, shape (..., rows, columns), with -inf for keys behind the query's position."""
    scores: Array = np.where(columns <= rows[:, None], q @ k.swapaxes(-1, -2) * _scale(q), q.dtype.type(-np.inf))
    return scores


def _scale(q: Array) -> Any:
    """Return 1 / sqrt(head_dim) in the dtype of the queries."""
    return q.dtype.type(1.0 / np.sqrt(q.shape[-1]))


__all__ = ["ContextAttention"]
