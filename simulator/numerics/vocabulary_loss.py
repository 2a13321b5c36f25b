"""Cross entropy over a vocabulary that is cut among ranks: ranks exchange three numbers per token instead of logits.

References
----------
.. [1] Shoeybi et al., "Megatron-LM", 2019, section 3: logits stay where they are.
"""

from __future__ import annotations

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics import layers
from simulator.numerics.exchange import ExchangeRequest, Pass
from simulator.numerics.tensor_shard import TensorShard


def cross_entropy(logits: Array, targets: Array, share: TensorShard, vocabulary: int) -> Pass[tuple[float, Array]]:
    """Return the mean over tokens of -log softmax at the target; save the log-probabilities of this rank's words.

    Parameters
    ----------
    logits : float array, shape (tokens, own words)
    targets : int array, shape (tokens,)
    share : TensorShard
        This rank's part of the vocabulary.
    vocabulary : int
        Words on all ranks; words beyond pad the table and have probability 0.
    """
    if share.tensor == 1:
        return layers.cross_entropy(logits, targets)
    first = share.place * share.rows
    words = np.arange(first, first + share.rows)
    logits = np.where(words < vocabulary, logits, logits.dtype.type(-np.inf))
    # Three exchanges per token: the largest logit (against overflow), the target's logit (held by a single rank, 0
    # elsewhere), and the sum of exponentials. loss = log(sum) - target's logit, both relative to the largest.
    largest = yield ExchangeRequest("largest logit", logits.max(axis=1), "max")
    shifted = logits - largest[:, None].astype(logits.dtype)
    row, word, mine = _own_targets(targets, share)
    partial = np.zeros(len(targets), logits.dtype)
    partial[mine] = shifted[row[mine], word[mine]]
    at_target = yield ExchangeRequest("target's logit", partial)
    total = yield ExchangeRequest("sum of exponentials", np.exp(shifted).sum(axis=1))
    wide = np.float64 if logits.dtype == np.float64 else np.float32
    loss = float(-(at_target - np.log(total)).mean(dtype=wide))
    return loss, shifted - np.log(total)[:, None].astype(logits.dtype)


def cross_entropy_backward(log_probabilities: Array, targets: Array, share: TensorShard, scale: float = 1.0) -> Array:
    """Return the gradient of the mean cross entropy with respect to this rank's logits, times a loss scale."""
    if share.tensor == 1:
        return layers.cross_entropy_backward(log_probabilities, targets, scale)
    row, word, mine = _own_targets(targets, share)
    # softmax - one-hot(target); only the rank that holds the target's word subtracts the 1.
    gradient: Array = np.exp(log_probabilities)
    gradient[row[mine], word[mine]] -= 1.0
    gradient *= log_probabilities.dtype.type(scale / len(targets))
    return gradient


def _own_targets(targets: Array, share: TensorShard) -> tuple[Array, Array, Array]:
    """Return the targets' row numbers, indices among this rank's words, and a mask of targets on this rank."""
    word = targets - share.place * share.rows
    return np.arange(len(targets)), word, (word >= 0) & (word < share.rows)


__all__ = ["cross_entropy", "cross_entropy_backward"]
