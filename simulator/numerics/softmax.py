"""Three implementations of softmax over rows with different numbers of HBM passes; counts HBM accesses.

A row is processed in blocks that fit on the chip; every block that is read from or written to HBM is counted.

References
----------
.. [1] Milakov & Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867, 2018: 4 accesses an element
   with three passes (3 reads, 1 write), 3 online; 2 if a row stays on the chip.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.hbm_counter import HbmCounter


def three_pass(x: Array, traffic: HbmCounter, block: int = 64) -> Array:
    """Return each row's softmax in 3 passes (largest entry, sum, division): 3 reads and 1 write per element."""
    largest = np.full((*x.shape[:-1], 1), -np.inf, x.dtype)
    for part in _blocks(x, traffic, block):
        largest = np.maximum(largest, x[..., part].max(axis=-1, keepdims=True))
    largest = _guarded(largest)
    total = np.zeros_like(largest)
    for part in _blocks(x, traffic, block):
        total += np.exp(x[..., part] - largest).sum(axis=-1, keepdims=True)
    return _divided(x, largest, total, traffic, block)


def online(x: Array, traffic: HbmCounter, block: int = 64) -> Array:
    """Return each row's softmax; a single pass finds largest entry and sum [1]_: 2 reads and 1 write per element."""
    largest = np.full((*x.shape[:-1], 1), -np.inf, x.dtype)
    total = np.zeros_like(largest)
    for part in _blocks(x, traffic, block):
        above = np.maximum(largest, x[..., part].max(axis=-1, keepdims=True))
        safe = _guarded(above)
        # The sum so far is relative to the old maximum. Row [1, 3] in blocks of 1: total 1, then 1 * exp(1 - 3) + 1.
        total = total * np.exp(largest - safe) + np.exp(x[..., part] - safe).sum(axis=-1, keepdims=True)
        largest = above
    return _divided(x, _guarded(largest), total, traffic, block)


def fused(x: Array, traffic: HbmCounter) -> Array:
    """Return the softmax of each row, with whole rows on the chip: 1 read and 1 write of every element."""
    traffic.read += x.nbytes
    largest = _guarded(x.max(axis=-1, keepdims=True))
    exponentials = np.exp(x - largest)
    total = exponentials.sum(axis=-1, keepdims=True)
    traffic.written += x.nbytes
    softmax = np.zeros_like(x)
    np.divide(exponentials, total, out=softmax, where=total > 0)
    return softmax


def _blocks(x: Array, traffic: HbmCounter, block: int) -> Iterator[slice]:
    """Yield the blocks of the rows in `x`, as slices of the last axis, and count each read in `traffic`."""
    for start in range(0, x.shape[-1], block):
        part = slice(start, start + block)
        traffic.read += x[..., part].nbytes
        yield part


def _divided(x: Array, largest: Array, total: Array, traffic: HbmCounter, block: int) -> Array:
    """Return the softmax exp(x - largest) / total, in a further pass; rows without a finite entry become 0."""
    softmax = np.zeros_like(x)
    for part in _blocks(x, traffic, block):
        piece = np.exp(x[..., part] - largest)
        np.divide(piece, total, out=softmax[..., part], where=total > 0)
        traffic.written += piece.nbytes
    return softmax


def _guarded(largest: Array) -> Array:
    """Return row maxima with -inf (an entirely masked row) replaced by 0, because -inf - -inf is NaN."""
    guarded: Array = np.where(np.isneginf(largest), largest.dtype.type(0), largest)
    return guarded
