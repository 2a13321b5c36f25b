"""Forward and backward functions of a GPT's operations: linear, layer norm, GELU, dropout, cross-entropy.

Forward returns the result and the saved tensors for backward, in the stored dtype unless stated otherwise. Every
function is pure. Weights have the shape (out, in), as in PyTorch.

Shapes: x is (tokens, width) unless stated otherwise.

References
----------
.. [1] Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 2014.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.arithmetic import Arithmetic
from simulator.numerics.dropout import Draw

# Added to a layer norm's variance; PyTorch's default.
EPSILON: Final = 1e-5
_ROOT: Final = float(np.sqrt(2.0 / np.pi))
# GELU's tanh form (Hendrycks & Gimpel, arXiv:1606.08415).
_CUBIC: Final = 0.044715


def linear(a: Arithmetic, x: Array, weight: Array, bias: Array | None) -> tuple[Array, Array]:
    """Return x weight^T + bias, and x in the stored dtype for the backward pass."""
    # Not `a.product`: the bias is added before the only rounding, as GPU kernels do.
    y = a.operand(x) @ a.operand(a.load(weight)).T
    if bias is not None:
        y = y + a.load(bias)
    return a.rounded(y), a.store(x)


def linear_backward(a: Arithmetic, dy: Array, saved: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Return a linear layer's gradients for x, weight and bias, from the output gradient `dy` and the saved x."""
    x = a.load(saved)
    return a.product(dy, a.load(weight)), a.product(dy.T, x), a.rounded(dy.sum(axis=0))


def layer_norm(a: Arithmetic, x: Array, weight: Array, bias: Array) -> tuple[Array, tuple[Array, Array, Array]]:
    """Return the layer norm of x, and the saved tensors: x, means and inverse deviations of the rows (float32 or
    wider).
    """
    mean = x.mean(axis=1, keepdims=True)
    centred = x - mean
    inverse = 1.0 / np.sqrt((centred * centred).mean(axis=1, keepdims=True) + x.dtype.type(EPSILON))
    y = centred * inverse * a.load(weight) + a.load(bias)
    return a.rounded(y), (a.store(x), mean, inverse)


def layer_norm_backward(
    a: Arithmetic, dy: Array, saved: tuple[Array, Array, Array], weight: Array
) -> tuple[Array, Array, Array]:
    """Return a layer norm's gradients for x, weight and bias, from the output gradient `dy` and the saved tensors."""
    x, mean, inverse = saved
    normed = (a.load(x) - mean) * inverse
    scaled = dy * a.load(weight)
    # The mean and the variance depend on every entry of the row, hence the two subtracted averages.
    dx = scaled - scaled.mean(axis=1, keepdims=True) - normed * (scaled * normed).mean(axis=1, keepdims=True)
    return a.rounded(dx * inverse), a.rounded((dy * normed).sum(axis=0)), a.rounded(dy.sum(axis=0))


def gelu(a: Arithmetic, x: Array) -> tuple[Array, Array]:
    """Return GELU of x in its tanh form, and x in the stored dtype for the backward pass."""
    inner = _ROOT * (x + _CUBIC * x * x * x)
    return a.rounded(0.5 * x * (1.0 + np.tanh(inner))), a.store(x)


def gelu_backward(a: Arithmetic, dy: Array, saved: Array) -> Array:
    """Return the gradient of GELU's input from the output gradient `dy` and the saved input."""
    x = a.load(saved)
    # Recomputed from x, as fused kernels do; saving the tanh would take a second array.
    t = np.tanh(_ROOT * (x + _CUBIC * x * x * x))
    slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * _ROOT * (1.0 + 3.0 * _CUBIC * x * x)
    return a.rounded(dy * slope)


def dropout(a: Arithmetic, x: Array, draw: Draw) -> tuple[Array, Array | None]:
    """Return x with random numbers set to 0 and the rest scaled up [1]_, and the mask (1 byte each; None without
    dropout).
    """
    mask = draw.mask(x.shape)
    return masked(a, x, mask, draw), mask


def masked(a: Arithmetic, x: Array, mask: Array | None, draw: Draw) -> Array:
    """Return numbers, or their gradients, multiplied by the factors of a given dropout mask; unchanged without
    a mask.
    """
    return x if mask is None else a.rounded(x * draw.factor(mask, x.dtype))


def cross_entropy(logits: Array, targets: Array) -> tuple[float, Array]:
    """Return the mean over tokens of -log softmax at the target, in the logits' dtype, and the log-probabilities of all
    tokens.

    Parameters
    ----------
    logits : float array, shape (tokens, vocabulary)
    targets : int array, shape (tokens,)

    Examples
    --------
    >>> cross_entropy(np.log([[0.25, 0.75]]), np.array([1]))[0]
    0.287682072451781
    """
    # Subtracting the row maximum keeps exp from overflowing.
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probabilities = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    at_target = log_probabilities[np.arange(len(targets)), targets]
    return float(-at_target.mean(dtype=np.float64 if logits.dtype == np.float64 else np.float32)), log_probabilities


def cross_entropy_backward(log_probabilities: Array, targets: Array, scale: float = 1.0) -> Array:
    """Return the gradient of the mean cross entropy with respect to the logits, times a loss scale.

    >>> cross_entropy_backward(np.log([[0.25, 0.75]]), np.array([1]))
    array([[ 0.25, -0.25]])
    """
    gradient: Array = np.exp(log_probabilities)
    # d loss / d logits = softmax - one-hot(target), divided by the number of tokens (mean).
    gradient[np.arange(len(targets)), targets] -= 1.0
    gradient *= log_probabilities.dtype.type(scale / len(targets))
    return gradient
