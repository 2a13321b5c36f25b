"""Causal attention over heads, standard: scores, softmax, weighted values, each written out whole.

Rule: q, k, v and the softmax are kept; nothing else is. Flash attention's tiles keep a number a row instead.
"""

from __future__ import annotations

import numpy as np

from simulator.numerics.arithmetic import Arithmetic, Array

Kept = tuple[Array, Array, Array, Array]


def attention(a: Arithmetic, q: Array, k: Array, v: Array) -> tuple[Array, Kept]:
    """softmax(q k^T / sqrt(d), causal) v.

    Parameters
    ----------
    q, k, v : float array, shape (batch, heads, seq_len, head_dim)

    Returns
    -------
    tuple
        Output of the same shape; what the backward pass needs: q, k, v, probabilities.
    """
    scores = a.rounded(a.operand(q) @ a.operand(k).swapaxes(-1, -2)) * q.dtype.type(1.0 / np.sqrt(q.shape[-1]))
    scores = np.where(_seen(q.shape[-2]), a.rounded(scores), -np.inf)
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities = a.rounded(exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(q.dtype, copy=False)
    return a.product(probabilities, v), (a.store(q), a.store(k), a.store(v), a.store(probabilities))


def attention_backward(a: Arithmetic, dy: Array, kept: Kept) -> tuple[Array, Array, Array]:
    """Gradients of q, k and v."""
    q, k, v, probabilities = (a.load(x) for x in kept)
    dv = a.product(probabilities.swapaxes(-1, -2), dy)
    dp = a.product(dy, v.swapaxes(-1, -2))
    ds = probabilities * (dp - (dp * probabilities).sum(axis=-1, keepdims=True))
    ds = a.rounded(ds * q.dtype.type(1.0 / np.sqrt(q.shape[-1])))
    return a.product(ds, k), a.product(ds.swapaxes(-1, -2), q), dv


def _seen(seq_len: int) -> Array:
    """Which keys each query sees: those up to itself."""
    return np.tri(seq_len, dtype=np.bool_)
