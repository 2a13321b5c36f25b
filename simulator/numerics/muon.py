"""Muon: Nesterov's momentum of a matrix, made orthogonal by Newton-Schulz iterations; Adam for all other parameters.

The order of operations is that of PyTorch 2.9 (torch/optim/_muon.py). Averages are rounded to `dtype` before matrices
are multiplied, and every product is rounded to `dtype` once.

References
----------
.. [1] Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024
   (kellerjordan.github.io/posts/muon).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt
from typing import Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.gpt import Gpt
from simulator.numerics.learning_rate import RateSchedule
from simulator.numerics.optimizer import Adam, OptimizerState

# Coefficients of x, x^3 and x^5 [1]_, and the smallest norm by which PyTorch divides.
_COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
_SMALLEST: Final = 1e-7
_STEADY: Final = RateSchedule()
_ADAM: Final = Adam()


@dataclass(frozen=True, slots=True)
class Muon:
    """Muon for the matrices of layers [1]_, with Adam for all other parameters."""

    rate: float = 1e-3  # learning rate of matrices
    momentum: float = 0.95  # decay factor of the momentum per step
    decay: float = 0.0  # weight decay, applied to the parameters and not to the gradient; 0 for none
    iterations: int = 5  # Newton-Schulz iterations
    dtype: str = "bfloat16"  # dtype in which matrices are multiplied, and sent between ranks
    splits_maps: bool = True  # True if queries, keys and values are three matrices, False if they are a single matrix
    schedule: RateSchedule = _STEADY  # schedule of the learning rate
    others: Adam = _ADAM  # rule for embedding, head, norms and biases

    @property
    def moments(self) -> int:
        """Number of moments per parameter outside of matrices: 2, Adam's."""
        return self.others.moments

    def update(self, parameters: Array, gradient: Array, state: OptimizerState) -> None:
        """Update parameters outside of matrices, and their moments, in place by one Adam step."""
        self.others.update(parameters, gradient, state)

    def averaged(self, momentum: Array, gradient: Array) -> Array:
        """Add a gradient to the momentum in place; return Nesterov's average of both, in `dtype`."""
        kind = momentum.dtype.type
        momentum += (gradient - momentum) * kind(1.0 - self.momentum)
        average: Array = gradient + (momentum - gradient) * kind(self.momentum)
        return average.astype(arithmetic(self.dtype).stored)

    def orthogonal(self, average: Array) -> Array:
        """Return a matrix, shape (rows, columns), made orthogonal by Newton-Schulz iterations, in `dtype`."""
        number = arithmetic(self.dtype)
        x = number.load(average)
        # The product of the matrix with its transpose is smaller if the matrix has fewer rows than columns.
        tall = len(x) > len(x.T)
        x = x.T if tall else x
        norm = number.rounded(np.sqrt((x * x).sum()))
        x = number.rounded(x / np.maximum(norm, x.dtype.type(_SMALLEST)))
        a, b, c = (x.dtype.type(coefficient) for coefficient in _COEFFICIENTS)
        for _ in range(self.iterations):
            gram = number.product(x, x.T)
            # PyTorch's addmm: the product is added in the wider dtype, and the sum is rounded once.
            polynomial = number.rounded(b * gram + c * (gram @ gram))
            x = number.rounded(a * x + polynomial @ x)
        return number.store(x.T if tall else x)

    def apply(self, parameters: Array, update: Array, scale: Array, steps: int) -> None:
        """Decay elements of matrices and move them against the orthogonal update, in place.

        Parameters
        ----------
        parameters, update, scale : array, shape (elements,)
            Elements of matrices, of their orthogonal updates, and the factor of each update (`scales`).
        steps : int
            Steps taken before.
        """
        kind = parameters.dtype.type
        scheduled = self.rate * self.schedule.factor(steps)
        if self.decay:
            parameters *= kind(1.0 - scheduled * self.decay)
        parameters -= kind(scheduled) * scale.astype(parameters.dtype) * update.astype(parameters.dtype)

    def shapes(self, gpt: Gpt, unit: str) -> tuple[tuple[int, int], ...]:
        """Return the shapes (rows, columns) of a unit's matrices on a rank, in the order of packed parameters.

        Tensor-parallel ranks have parts of matrices, which are matrices of their own here.
        """
        return tuple(self._shapes(gpt, unit))

    def _shapes(self, gpt: Gpt, unit: str) -> Iterator[tuple[int, int]]:
        """Yield the shapes of a unit's matrices on a rank."""
        for name, shape in gpt.shapes(unit).items():
            if not in_matrix(unit, shape):
                continue
            rows, columns = shape
            if self.splits_maps and name.endswith("qkv.weight"):
                yield from 3 * ((rows // 3, columns),)
            else:
                yield rows, columns

    def scales(self, gpt: Gpt, unit: str) -> Array:
        """Return the factor sqrt(max(1, rows / columns)) of each element's update, for a unit's packed matrices."""
        factors = [np.full(rows * columns, sqrt(max(1.0, rows / columns))) for rows, columns in self.shapes(gpt, unit)]
        return np.concatenate(factors)

    def orthogonal_matrices(self, averages: Array, shapes: tuple[tuple[int, int], ...]) -> Array:
        """Return packed matrices of these shapes, each made orthogonal, packed again."""
        matrices, at = [averages[:0]], 0
        for shape in shapes:
            matrices.append(self.orthogonal(averages[at : at + prod(shape)].reshape(shape)).ravel())
            at += prod(shape)
        return np.concatenate(matrices)


def in_matrix(unit: str, shape: tuple[int, ...]) -> bool:
    """Return True for a weight matrix of a layer, False for a vector, and for tables of embedding and head.

    >>> in_matrix("layer 0", (4, 4)), in_matrix("layer 0", (4,)), in_matrix("head", (4, 4))
    (True, False, False)
    """
    return len(shape) > 1 and unit not in ("embedding", "head")
