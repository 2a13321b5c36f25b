"""Attention kernel by kernel with scores in HBM, without flash attention; counts every HBM access.

Each kernel reads its inputs once and writes its result once. softmax.py decides how often softmax passes over the
scores.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.hbm_counter import HbmCounter

Softmax = Callable[[Array, HbmCounter], Array]


def unfused_attention(
    q: Array, k: Array, v: Array, softmax: Softmax, traffic: HbmCounter, mask: Array | None = None
) -> tuple[Array, Array]:
    """Return softmax(q k^T / sqrt(d)) v, computed kernel by kernel, and the softmax for the backward pass.

    Parameters
    ----------
    q, k, v : float array, shape (batch, heads, seq_len, head_dim)
    softmax : function (scores, traffic)
        `three_pass`, `online` or `fused` of softmax.py.
    traffic : HbmCounter
        Counter that receives the bytes read and written.
    mask : bool array, shape (seq_len, seq_len), optional
        Keys visible to each query; a query without a visible key gets zeros. A separate kernel applies the mask.
    """
    scores = q @ k.swapaxes(-1, -2) * q.dtype.type(1.0 / np.sqrt(q.shape[-1]))
    _kernel(traffic, [q, k], scores)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf).astype(q.dtype, copy=False)
        _kernel(traffic, [scores], scores)
    # Each softmax implementation counts its own accesses.
    weights = softmax(scores, traffic)
    out = weights @ v
    _kernel(traffic, [weights, v], out)
    return out, weights


def unfused_attention_backward(
    dy: Array, q: Array, k: Array, v: Array, weights: Array, traffic: HbmCounter
) -> tuple[Array, Array, Array]:
    """Return the gradients for q, k and v from the output gradient `dy` and the softmax `weights`."""
    # Five kernels compute dv, dp, ds, dq and dk; the weights and ds are read twice.
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
    """Add a kernel's read and written bytes to the counter, from input and output arrays."""
    traffic.read += sum(array.nbytes for array in read)
    traffic.written += written.nbytes
