"""Draws a training task from a seed: token sequences or windows of a text for each step, and initial parameters.

A step's sequences depend on the seed and the step, not on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.gpt import Gpt

# Largest stride of a sequence, and the probability of replacing a token by a random one.
_STRIDES: Final = 8
_SLIPS: Final = 0.05
# Standard deviation of GPT-2's normal initial weights (Radford et al. 2019).
_DEVIATION: Final = 0.02


def sequences(seed: int, step: int, count: int, length: int, vocabulary: int) -> Array:
    """Return random token sequences for a training step: each counts up by a random stride, with a few tokens replaced
    at random.

    Returns
    -------
    int array, shape (count, length)

    Examples
    --------
    >>> sequences(0, 0, 2, 5, 100).shape
    (2, 5)
    """
    generator = np.random.default_rng([seed, step])
    first = generator.integers(0, vocabulary, (count, 1))
    stride = generator.integers(1, _STRIDES + 1, (count, 1))
    counted = (first + stride * np.arange(length)) % vocabulary
    slips = generator.random((count, length)) < _SLIPS
    return np.where(slips, generator.integers(0, vocabulary, (count, length)), counted)


def windows(tokens: Array, seed: int, step: int, count: int, length: int) -> Array:
    """Return pieces of a text for a training step, cut at random places drawn from the seed.

    Parameters
    ----------
    tokens : int array, shape (n,)
        The text, at least `length` tokens.

    Returns
    -------
    int array, shape (count, length)

    Examples
    --------
    >>> windows(np.arange(10), 0, 0, 2, 4)[0].tolist() in [list(range(n, n + 4)) for n in range(7)]
    True
    """
    starts = np.random.default_rng([seed, step]).integers(0, len(tokens) - length + 1, count)
    pieces: Array = tokens[starts[:, None] + np.arange(length)]
    return pieces


def initial(gpt: Gpt, seed: int) -> Mapping[str, dict[str, Array]]:
    """Return a GPT's parameters before the first step, drawn from a seed in float64: normal weights, scales of norms 1,
    biases 0.
    """
    # No step has number 2^31, so parameters do not depend on any step's tokens.
    generator = np.random.default_rng([seed, 2**31])
    parameters: dict[str, dict[str, Array]] = {}
    for unit in gpt.units:
        parameters[unit] = {}
        for name, shape in gpt.shapes(unit).items():
            if len(shape) > 1:
                parameters[unit][name] = generator.standard_normal(shape) * _DEVIATION
            else:
                # Only a norm's scale is a weight with a single dimension.
                scales = name.endswith("weight")
                parameters[unit][name] = np.full(shape, 1.0 if scales else 0.0)
    return parameters
