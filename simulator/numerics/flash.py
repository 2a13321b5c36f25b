"""Flash attention, forward and backward: exact attention in tiles, which never writes scores to HBM; counts HBM access.

Rule: the outer loop runs over blocks of K and V, the inner one over blocks of Q and the output, as in the first
generation [1]_; every tile that is read from or written to HBM is counted. Softmax can be computed block by block,
because a row's sum so far can be rescaled when a larger score appears.

References
----------
.. [1] Dao et al., "FlashAttention: fast and memory-efficient exact attention with IO-awareness", NeurIPS 2022,
   algorithms 1 (forward) and 4 (backward): Bc = ceil(M / 4d) rows of K and V, Br = min(Bc, d) rows of Q.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.arithmetic import Arithmetic
from simulator.numerics.attention import Core
from simulator.numerics.dropout import Draw
from simulator.numerics.hbm_counter import HbmCounter

# Size of a row's sum, and of its largest score, in HBM: float32 [B].
_STATISTIC: Final = 4
# Rows and columns of a tile that a model trains with: one of the sizes of the second generation (Dao,
# "FlashAttention-2", arXiv:2307.08691, section 3.3).
_TILE: Final = 128


@dataclass(frozen=True, slots=True)
class FlashCache:
    """What the backward pass needs: inputs, output, each row's largest score and sum."""

    q: Array
    k: Array
    v: Array
    out: Array
    largest: Array
    total: Array


@dataclass(frozen=True, slots=True)
class Tiles:
    """Sizes of the tiles, and which of them are computed.

    Attributes
    ----------
    seq_len, rows, columns : int
        Br and Bc of [1]_.
    causal : bool
        Whether tiles above the diagonal are skipped.
    """

    seq_len: int
    rows: int
    columns: int
    causal: bool

    def outer(self) -> Iterator[slice]:
        """Blocks of K and V."""
        for start in range(0, self.seq_len, self.columns):
            yield slice(start, min(start + self.columns, self.seq_len))

    def inner(self, columns: slice) -> Iterator[slice]:
        """Blocks of Q that see some of these keys."""
        for start in range(0, self.seq_len, self.rows):
            rows = slice(start, min(start + self.rows, self.seq_len))
            if not self.causal or rows.stop > columns.start:
                yield rows


def tiles(seq_len: int, head_dim: int, on_chip: int, *, causal: bool) -> Tiles:
    """Choose the tiles' sizes [1]_ for a chip that holds `on_chip` numbers."""
    columns = -(-on_chip // (4 * head_dim))
    return Tiles(seq_len, min(columns, head_dim), columns, causal)


def flash(
    q: Array, k: Array, v: Array, cut: Tiles, traffic: HbmCounter, mask: Array | None = None, left: Array | None = None
) -> tuple[Array, FlashCache]:
    """softmax(q k^T / sqrt(d)) v.

    Parameters
    ----------
    q, k, v : float array, shape (batch, heads, seq_len, head_dim)
    cut : Tiles
    traffic : HbmCounter
    mask : bool array, shape (seq_len, seq_len), optional
        Which keys each query sees, in addition to the causal limit. A query that sees none gets zeros.
    left : float array, shape (batch, heads, seq_len, seq_len), optional
        Factor of each weight: 0 where dropout removes it. On a GPU each tile draws its own factors again.
    """
    out = np.zeros_like(q)
    largest = np.full((*q.shape[:-1], 1), -np.inf, q.dtype)
    total = np.zeros_like(largest)
    for columns in cut.outer():
        traffic.read += k[..., columns, :].nbytes + v[..., columns, :].nbytes
        for rows in cut.inner(columns):
            tile, statistics = q[..., rows, :].nbytes, 2 * _STATISTIC * largest[..., rows, :].size
            traffic.read += 2 * tile + statistics
            scores = _scores(q, k, cut, mask, rows, columns)
            above = np.maximum(largest[..., rows, :], scores.max(axis=-1, keepdims=True))
            safe = np.where(np.isneginf(above), q.dtype.type(0), above)
            exponentials = np.exp(scores - safe)
            before = total[..., rows, :] * np.exp(largest[..., rows, :] - safe)
            now = before + exponentials.sum(axis=-1, keepdims=True)
            if left is not None:  # dropout follows softmax: the sum has all weights
                exponentials = exponentials * left[..., rows, columns]
            mixed = before * out[..., rows, :] + exponentials @ v[..., columns, :]
            np.divide(mixed, now, out=out[..., rows, :], where=now > 0)
            largest[..., rows, :], total[..., rows, :] = above, now
            traffic.written += tile + statistics
    return out, FlashCache(q, k, v, out, largest, total)


def flash_backward(
    dy: Array, kept: FlashCache, cut: Tiles, traffic: HbmCounter, mask: Array | None = None, left: Array | None = None
) -> tuple[Array, Array, Array]:
    """Gradients of q, k and v; scores are computed again tile by tile."""
    q, k, v = kept.q, kept.k, kept.v
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    scale = q.dtype.type(1.0 / np.sqrt(q.shape[-1]))
    safe = np.where(np.isneginf(kept.largest), q.dtype.type(0), kept.largest)
    for columns in cut.outer():
        keys, values = k[..., columns, :], v[..., columns, :]
        traffic.read += keys.nbytes + values.nbytes
        for rows in cut.inner(columns):
            tile, statistics = q[..., rows, :].nbytes, 2 * _STATISTIC * kept.total[..., rows, :].size
            traffic.read += 4 * tile + statistics
            exponentials = np.exp(_scores(q, k, cut, mask, rows, columns) - safe[..., rows, :])
            total = kept.total[..., rows, :]
            p = np.divide(exponentials, total, out=np.zeros_like(exponentials), where=total > 0)
            own = dy[..., rows, :]
            factor = 1 if left is None else left[..., rows, columns]
            dv[..., columns, :] += (p * factor).swapaxes(-1, -2) @ own
            # For each row the sum of p dp equals the sum of output times its gradient, which needs no scores.
            along = (own * kept.out[..., rows, :]).sum(axis=-1, keepdims=True)
            ds = p * (own @ values.swapaxes(-1, -2) * factor - along) * scale
            dq[..., rows, :] += ds @ keys
            dk[..., columns, :] += ds.swapaxes(-1, -2) @ q[..., rows, :]
            traffic.written += tile
        traffic.written += keys.nbytes + values.nbytes
    return dq, dk, dv


def _scores(q: Array, k: Array, cut: Tiles, mask: Array | None, rows: slice, columns: slice) -> Array:
    scale = q.dtype.type(1.0 / np.sqrt(q.shape[-1]))
    scores = q[..., rows, :] @ k[..., columns, :].swapaxes(-1, -2) * scale
    seen = np.ones((rows.stop - rows.start, columns.stop - columns.start), np.bool_)
    if cut.causal:
        seen = np.arange(rows.start, rows.stop)[:, None] >= np.arange(columns.start, columns.stop)
    if mask is not None:
        seen = seen & mask[rows, columns]
    masked: Array = np.where(seen, scores, -np.inf)
    return masked


def _forward(a: Arithmetic, q: Array, k: Array, v: Array, draw: Draw) -> tuple[Array, dict[str, Any]]:
    """Attention of a layer that trains: of each row's statistics it keeps only the log-sum-exp."""
    out, kept = flash(a.operand(q), a.operand(k), a.operand(v), _cut(q), HbmCounter(), left=_left(q, draw))
    stored = {"q": a.store(q), "k": a.store(k), "v": a.store(v)}
    return a.rounded(out), stored | {"logsumexp": kept.largest + np.log(kept.total)}


def _backward(a: Arithmetic, dy: Array, kept: dict[str, Any], out: Array, draw: Draw) -> tuple[Array, Array, Array]:
    q, k, v = (a.operand(a.load(kept[name])) for name in ("q", "k", "v"))
    # exp(score - log-sum-exp) is the softmax already, so the row's sum, by which it is divided, is 1.
    rows = FlashCache(q, k, v, out, kept["logsumexp"], np.ones_like(kept["logsumexp"]))
    dq, dk, dv = flash_backward(dy, rows, _cut(q), HbmCounter(), left=_left(q, draw))
    return a.rounded(dq), a.rounded(dk), a.rounded(dv)


def _cut(q: Array) -> Tiles:
    return Tiles(q.shape[-2], _TILE, _TILE, causal=True)


def _left(q: Array, draw: Draw) -> Array | None:
    """Dropout's factors, drawn alike in forward and backward, so that the cache need not keep them."""
    mask = draw.mask((*q.shape[:-1], q.shape[-2]))
    return None if mask is None else draw.factor(mask, q.dtype)


CORE: Final = Core(_forward, _backward)
