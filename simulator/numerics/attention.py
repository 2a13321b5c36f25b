"""Standard causal attention over heads, forward and backward: scores, softmax and weighted values as whole arrays.

The forward pass saves q, k, v and the softmax; with dropout it also saves the mask and the softmax after dropout. Flash
attention (flash.py) saves a single number per row instead of the softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics import layers
from simulator.numerics.arithmetic import Arithmetic
from simulator.numerics.dropout import NO_DROPOUT, Draw

Cache = dict[str, Any]

# Saved tensors that grow with the square of the sequence length; selective checkpointing recomputes these.
SCORES: Final = ("softmax", "mask", "dropped")


@dataclass(frozen=True, slots=True)
class Core:
    """An attention implementation: a forward and a backward function.

    Attributes
    ----------
    forward : function (arithmetic, q, k, v, draw) -> output, saved tensors
    backward : function (arithmetic, output gradient, saved tensors, output, draw) -> gradients of q, k and v
    """

    forward: Callable[[Arithmetic, Array, Array, Array, Draw], tuple[Array, Cache]]
    backward: Callable[[Arithmetic, Array, Cache, Array, Draw], tuple[Array, Array, Array]]


def of_documents(core: Core, documents: Sequence[int]) -> Core:
    """Return an implementation that runs another one on each document of packed sequences, one after the other: queries
    see keys of their own document alone.

    Saved tensors of the sequence's length are joined again; those of the scores' size stay apart, in a tuple.

    Parameters
    ----------
    documents : sequence of int
        Tokens of each document, in order.
    """
    bounds = np.cumsum([0, *documents]).tolist()
    parts = [slice(begin, end) for begin, end in pairwise(bounds)]

    def forward(a: Arithmetic, q: Array, k: Array, v: Array, draw: Draw) -> tuple[Array, Cache]:
        runs = [
            core.forward(a, q[..., part, :], k[..., part, :], v[..., part, :], draw.at(number))
            for number, part in enumerate(parts)
        ]
        saved = {name: [cache[name] for _, cache in runs] for name in runs[0][1]}
        joined = {
            name: tuple(arrays) if name in SCORES else np.concatenate(arrays, axis=-2) for name, arrays in saved.items()
        }
        return np.concatenate([out for out, _ in runs], axis=-2), joined

    def backward(a: Arithmetic, dy: Array, saved: Cache, out: Array, draw: Draw) -> tuple[Array, Array, Array]:
        gradients = []
        for number, part in enumerate(parts):
            tensors = {name: each[number] if name in SCORES else each[..., part, :] for name, each in saved.items()}
            gradients.append(core.backward(a, dy[..., part, :], tensors, out[..., part, :], draw.at(number)))
        dq, dk, dv = (np.concatenate(arrays, axis=-2) for arrays in zip(*gradients, strict=True))
        return dq, dk, dv

    return Core(forward, backward)


def attention(a: Arithmetic, q: Array, k: Array, v: Array, draw: Draw = NO_DROPOUT) -> tuple[Array, Cache]:
    """Return softmax(q k^T / sqrt(d), causal) v and the tensors saved for the backward pass.

    Parameters
    ----------
    q, k, v : float array, shape (batch, heads, seq_len, head_dim)
    draw : Draw, optional
        Entries of the softmax that dropout sets to 0.

    Returns
    -------
    tuple
        Output, shape (batch, heads, seq_len, head_dim); saved tensors by name.
    """
    scores = a.rounded(a.operand(q) @ a.operand(k).swapaxes(-1, -2)) * q.dtype.type(1.0 / np.sqrt(q.shape[-1]))
    scores = np.where(_causal_mask(q.shape[-2]), a.rounded(scores), -np.inf)
    # Subtracting the row maximum leaves the softmax unchanged and keeps exp from overflowing.
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    softmax = a.rounded(exponentials / exponentials.sum(axis=-1, keepdims=True)).astype(q.dtype, copy=False)
    weights, mask = layers.dropout(a, softmax, draw)
    saved = {"q": a.store(q), "k": a.store(k), "v": a.store(v), "softmax": a.store(softmax)}
    if mask is not None:
        saved |= {"mask": mask, "dropped": a.store(weights)}
    return a.product(weights, v), saved


def attention_backward(
    a: Arithmetic, dy: Array, saved: Cache, out: Array | None = None, draw: Draw = NO_DROPOUT
) -> tuple[Array, Array, Array]:
    """Return the gradients for q, k and v from the output gradient `dy` and the tensors saved by `attention`; `out` is
    not used.
    """
    q, k, v, softmax = (a.load(saved[name]) for name in ("q", "k", "v", "softmax"))
    weights = a.load(saved.get("dropped", softmax))
    # With P = softmax, D = P after dropout and O = D v: dv = D^T dO, dP = dropout(dO v^T), dS = P (dP - rowsum(dP P)),
    # dq = dS k and dk = dS^T q, both scaled by 1 / sqrt(d).
    dv = a.product(weights.swapaxes(-1, -2), dy)
    dp = layers.masked(a, a.product(dy, v.swapaxes(-1, -2)), saved.get("mask"), draw)
    ds = softmax * (dp - (dp * softmax).sum(axis=-1, keepdims=True))
    ds = a.rounded(ds * q.dtype.type(1.0 / np.sqrt(q.shape[-1])))
    return a.product(ds, k), a.product(ds.swapaxes(-1, -2), q), dv


def _causal_mask(seq_len: int) -> Array:
    """Return the causal mask, shape (seq_len, seq_len): each query attends to keys up to its own position."""
    return np.tri(seq_len, dtype=np.bool_)


CORE: Final = Core(attention, attention_backward)
