"""Flash attention, forward and backward: exact attention in tiles, which never writes scores to HBM; counts HBM access.

The outer loop runs over tiles of K and V, the inner loop over tiles of Q and the output, as in the first generation
[1]_. Every tile that is read from or written to HBM is counted. Softmax can be computed tile by tile, because a row's
sum can be rescaled when a larger score appears (online softmax).

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

# A row's sum and its largest score are float32 in HBM [B].
_STATISTIC: Final = 4
# Rows and columns of a tile in training: a size of the second generation (Dao, "FlashAttention-2", arXiv:2307.08691,
# section 3.3).
_TILE: Final = 128


@dataclass(frozen=True, slots=True)
class FlashCache:
    """Tensors that flash attention saves for the backward pass."""

    # `q`, `k`, `v`, `out`: Inputs and output; shape (batch, heads, seq_len, head_dim).
    q: Array
    k: Array
    v: Array
    out: Array
    # `largest`, `total`: Each row's largest score, and its sum of exp(score - largest); shape (batch, heads, seq_len,
    # 1).
    largest: Array
    total: Array


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tile sizes in flash attention, and the order in which tiles are computed.

    Examples
    --------
    >>> cut = Tiles(4, 2, 2, causal=True)
    >>> [(q.start, k.start) for k in cut.outer() for q in cut.inner(k)]
    [(0, 0), (2, 0), (2, 2)]
    """

    # `seq_len`, `rows`, `columns`: Sequence length; queries per tile (Br) and keys per tile (Bc) of [1]_.
    seq_len: int
    rows: int
    columns: int
    causal: bool  # if True, tiles above the diagonal are skipped

    def outer(self) -> Iterator[slice]:
        """Yield the key and value tiles, each a slice along the sequence."""
        for start in range(0, self.seq_len, self.columns):
            yield slice(start, min(start + self.columns, self.seq_len))

    def inner(self, columns: slice) -> Iterator[slice]:
        """Yield the query tiles (slices along the sequence) that attend to at least one key in the given tile."""
        for start in range(0, self.seq_len, self.rows):
            rows = slice(start, min(start + self.rows, self.seq_len))
            if not self.causal or rows.stop > columns.start:
                yield rows


def tiles(seq_len: int, head_dim: int, on_chip: int, *, causal: bool) -> Tiles:
    """Return flash attention's tile sizes [1]_ for a chip that holds `on_chip` numbers.

    >>> tiles(1024, 64, 49152, causal=True)
    Tiles(seq_len=1024, rows=64, columns=192, causal=True)
    """
    # The chip must hold four tiles at once (Q, K, V and the output), hence M / 4d.
    columns = -(-on_chip // (4 * head_dim))
    return Tiles(seq_len, min(columns, head_dim), columns, causal)


def flash(
    q: Array, k: Array, v: Array, cut: Tiles, traffic: HbmCounter, mask: Array | None = None, left: Array | None = None
) -> tuple[Array, FlashCache]:
    """Return softmax(q k^T / sqrt(d)) v, computed tile by tile, and the tensors saved for the backward pass.

    Parameters
    ----------
    q, k, v : float array, shape (batch, heads, seq_len, head_dim)
    cut : Tiles
        Tile sizes.
    traffic : HbmCounter
        Counter that receives the bytes read and written.
    mask : bool array, shape (seq_len, seq_len), optional
        Keys visible to each query, in addition to the causal limit. A query without a visible key gets zeros.
    left : float array, shape (batch, heads, seq_len, seq_len), optional
        Dropout factor of each weight: 0 if removed. On a GPU each tile draws its own factors again.
    """
    # Four tokens in tiles of 2 x 2, causal; tiles are computed in the order A, B, C:
    #                 keys 0 1   keys 2 3
    #    queries 0 1     A       (skipped)
    #    queries 2 3     B          C
    # Queries 2 and 3 have a complete softmax over keys 0 and 1 after B, and C corrects it. For a row with scores 1 (B)
    # and 3 (C):
    #    after B: largest 1, total 1,                    out = v_B
    #    after C: largest 3, total exp(1 - 3) + 1 = 1.14, out = (0.14 v_B + 1 v_C) / 1.14
    out = np.zeros_like(q)
    largest = np.full((*q.shape[:-1], 1), -np.inf, q.dtype)
    total = np.zeros_like(largest)
    for columns in cut.outer():
        traffic.read += k[..., columns, :].nbytes + v[..., columns, :].nbytes
        for rows in cut.inner(columns):
            tile, statistics = q[..., rows, :].nbytes, 2 * _STATISTIC * largest[..., rows, :].size
            # Read Q and the output so far; K and V stay on the chip for the whole inner loop.
            traffic.read += 2 * tile + statistics
            scores = _scores(q, k, cut, mask, rows, columns)
            above = np.maximum(largest[..., rows, :], scores.max(axis=-1, keepdims=True))
            # A row without a visible key has -inf as its maximum, and -inf - -inf would be NaN.
            safe = np.where(np.isneginf(above), q.dtype.type(0), above)
            exponentials = np.exp(scores - safe)
            # The old sum was relative to the old maximum; rescale it to the new maximum.
            before = total[..., rows, :] * np.exp(largest[..., rows, :] - safe)
            now = before + exponentials.sum(axis=-1, keepdims=True)
            # Dropout follows softmax, so the sum above includes the removed weights.
            if left is not None:
                exponentials = exponentials * left[..., rows, columns]
            mixed = before * out[..., rows, :] + exponentials @ v[..., columns, :]
            # Rows that see no key keep output 0.
            np.divide(mixed, now, out=out[..., rows, :], where=now > 0)
            largest[..., rows, :], total[..., rows, :] = above, now
            traffic.written += tile + statistics
    return out, FlashCache(q, k, v, out, largest, total)


def flash_backward(
    dy: Array, saved: FlashCache, cut: Tiles, traffic: HbmCounter, mask: Array | None = None, left: Array | None = None
) -> tuple[Array, Array, Array]:
    """Return the gradients for q, k and v from the output gradient `dy`; scores are recomputed tile by tile."""
    q, k, v = saved.q, saved.k, saved.v
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    scale = q.dtype.type(1.0 / np.sqrt(q.shape[-1]))
    safe = np.where(np.isneginf(saved.largest), q.dtype.type(0), saved.largest)
    for columns in cut.outer():
        keys, values = k[..., columns, :], v[..., columns, :]
        traffic.read += keys.nbytes + values.nbytes
        for rows in cut.inner(columns):
            tile, statistics = q[..., rows, :].nbytes, 2 * _STATISTIC * saved.total[..., rows, :].size
            # Read Q, the output, its gradient and the queries' gradient so far; dK and dV stay on the chip during the
            # inner loop.
            traffic.read += 4 * tile + statistics
            exponentials = np.exp(_scores(q, k, cut, mask, rows, columns) - safe[..., rows, :])
            total = saved.total[..., rows, :]
            p = np.divide(exponentials, total, out=np.zeros_like(exponentials), where=total > 0)
            tile_dy = dy[..., rows, :]
            factor = 1 if left is None else left[..., rows, columns]
            dv[..., columns, :] += (p * factor).swapaxes(-1, -2) @ tile_dy
            # rowsum(P dP) equals rowsum(dO O), without scores from other tiles ([1]_, appendix B.2).
            along = (tile_dy * saved.out[..., rows, :]).sum(axis=-1, keepdims=True)
            ds = p * (tile_dy @ values.swapaxes(-1, -2) * factor - along) * scale
            dq[..., rows, :] += ds @ keys
            dk[..., columns, :] += ds.swapaxes(-1, -2) @ q[..., rows, :]
            traffic.written += tile
        traffic.written += keys.nbytes + values.nbytes
    return dq, dk, dv


def _scores(q: Array, k: Array, cut: Tiles, mask: Array | None, rows: slice, columns: slice) -> Array:
    """Return a tile's scaled scores, shape (batch, heads, rows, columns), with -inf for invisible keys."""
    scale = q.dtype.type(1.0 / np.sqrt(q.shape[-1]))
    scores = q[..., rows, :] @ k[..., columns, :].swapaxes(-1, -2) * scale
    visible = np.ones((rows.stop - rows.start, columns.stop - columns.start), np.bool_)
    if cut.causal:
        visible = np.arange(rows.start, rows.stop)[:, None] >= np.arange(columns.start, columns.stop)
    if mask is not None:
        visible = visible & mask[rows, columns]
    masked: Array = np.where(visible, scores, -np.inf)
    return masked


def _forward(a: Arithmetic, q: Array, k: Array, v: Array, draw: Draw) -> tuple[Array, dict[str, Any]]:
    """Return flash attention's output and the saved tensors (of row statistics only the log-sum-exp)."""
    out, saved = flash(a.operand(q), a.operand(k), a.operand(v), _cut(q), HbmCounter(), left=_left(q, draw))
    stored = {"q": a.store(q), "k": a.store(k), "v": a.store(v)}
    return a.rounded(out), stored | {"logsumexp": saved.largest + np.log(saved.total)}


def _backward(a: Arithmetic, dy: Array, saved: dict[str, Any], out: Array, draw: Draw) -> tuple[Array, Array, Array]:
    """Return the gradients of q, k and v from the gradient `dy` of the output `out`, and the saved tensors."""
    q, k, v = (a.operand(a.load(saved[name])) for name in ("q", "k", "v"))
    # exp(score - log-sum-exp) is the softmax already, so the sum to divide by is 1.
    rows = FlashCache(q, k, v, out, saved["logsumexp"], np.ones_like(saved["logsumexp"]))
    dq, dk, dv = flash_backward(dy, rows, _cut(q), HbmCounter(), left=_left(q, draw))
    return a.rounded(dq), a.rounded(dk), a.rounded(dv)


def _cut(q: Array) -> Tiles:
    """Return the tile sizes of flash attention for a layer in training, from the queries' sequence length."""
    return Tiles(q.shape[-2], _TILE, _TILE, causal=True)


def _left(q: Array, draw: Draw) -> Array | None:
    """Return dropout's factors for the weights, or None; forward and backward draw the same, and save no mask."""
    mask = draw.mask((*q.shape[:-1], q.shape[-2]))
    return None if mask is None else draw.factor(mask, q.dtype)


CORE: Final = Core(_forward, _backward)
