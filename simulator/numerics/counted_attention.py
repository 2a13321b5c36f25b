"""Attention that runs kernel by kernel with its scores in HBM, as without flash attention; counts every HBM access.

Rule: a kernel reads its inputs once and writes its result once; softmax.py decides how often softmax passes over the
scores.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.hbm_counter import HbmCounter

Softmax = Callable[[Array, HbmCounter], Array]


def scored(
    q: Array, k: Array, v: Array, softmax: Softmax, traffic: HbmCounter, mask: Array | None = None
) -> tuple[Array, Array]:
    """softmax(q k^T / sqrt(d)) v, and the softmax, which the backward pass needs.

    Parameters
    ----------
    q, k, v : float array, shape (batch, heads, seq_len, head_dim)
    softmax : function (scores, traffic)
        `three_pass`, `online` or `fused` of softmax.py.
    traffic : HbmCounter
    mask : bool array, shape (seq_len, seq_len), optional
        Which keys each query sees; a query that sees none gets zeros. A kernel of its own applies it.
    """
    scores = q @ k.swapaxes(-1, -2) * q.dtype.type(1.0 / np.sqrt(q.shape[-1]))
    _kernel(traffic, [q, k], scores)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf).astype(q.dtype, copy=False)
        _kernel(traffic, [scores], scores)
    weights = softmax(scores, traffic)
    out = weights @ v
    _kernel(traffic, [weights, v], out)
    return out, weights


def scored_backward(
    dy: Array, q: Array, k: Array, v: Array, weights: Array, traffic: HbmCounter
) -> tuple[Array, Array, Array]:
    """Gradients of q, k and v."""
    dv = weights.swapaxes(-1, -2) @ dy
    _kernel(traffic, [weights, dy], dv)
    dp = dy @ v.swapaxes(-1, -2)
    _kernel(traffic, [dy, v], dp)
    ds = weights * (dp - (dp * weights).sum(axis=-1, keepdims=True)) * q.dtype.type(1.0 / np.sqrt(q.shape[-1]))
    _kernel(traffic, [weights, dp], ds)
    dq, dk = ds @ k, ds.swapaxes(-1, -2) @ q
    _kernel(traffic, [ds, k], dq)
    _kernel(traffic, [ds, q], dk)
    return dq, dk, dv


def _kernel(traffic: HbmCounter, read: list[Array], written: Array) -> None:
    """Count the bytes that one kernel reads and writes."""
    traffic.read += sum(array.nbytes for array in read)
    traffic.written += written.nbytes
