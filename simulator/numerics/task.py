"""Something to learn, from a seed alone: numbers that go up by a stride of their own, with slips in between.

Rule: the sequences of a step depend on the seed and the step, not on how many ranks share them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.gpt import Gpt

_STRIDES: Final = 8
_SLIPS: Final = 0.05
# GPT-2's (Radford et al. 2019): normal with this deviation.
_DEVIATION: Final = 0.02


def sequences(seed: int, step: int, count: int, length: int, vocabulary: int) -> Array:
    """Tokens of one step.

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
    """Pieces of a text for one step, from places that the seed says.

    Parameters
    ----------
    tokens : int array, shape (n,)
        At least `length` of them.

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
    """Parameters before the first step, in float64: normal weights, norms of one, no biases."""
    generator = np.random.default_rng([seed, 2**31])
    parameters: dict[str, dict[str, Array]] = {}
    for unit in gpt.units:
        parameters[unit] = {}
        for name, shape in gpt.shapes(unit).items():
            if len(shape) > 1:
                parameters[unit][name] = generator.standard_normal(shape) * _DEVIATION
            else:
                scales = name.endswith("weight")  # of a norm: what has one dimension and is no bias
                parameters[unit][name] = np.full(shape, 1.0 if scales else 0.0)
    return parameters
