"""Optimizers' steps against their papers' formulas, number by number."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from simulator.numerics.optimizer import Adam, Lion, Rule, Sgd, fresh, step

GENERATOR = np.random.default_rng(17)
START = GENERATOR.standard_normal(5).tolist()
GRADIENTS = GENERATOR.standard_normal((6, 5)).tolist()


def stepped(rule: Rule) -> list[list[float]]:
    """Parameters after each step."""
    parameters = np.array(START)
    state, found = fresh(rule, parameters), []
    for gradient in GRADIENTS:
        step(rule, parameters, np.array(gradient), state)
        found.append(parameters.tolist())
    return found


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_adam_with_decoupled_decay(decay: float) -> None:
    """Loshchilov & Hutter 2019, algorithm 2, with the schedule's multiplier in the rate as PyTorch has it."""
    rate, first, second, epsilon = 0.01, 0.8, 0.95, 1e-3
    found = stepped(Adam(rate, first, second, epsilon, decay))
    for i, theta in enumerate(START):
        m = v = 0.0
        for t, gradient in enumerate((row[i] for row in GRADIENTS), 1):
            m = first * m + (1 - first) * gradient
            v = second * v + (1 - second) * gradient**2
            hats = m / (1 - first**t), v / (1 - second**t)
            theta = theta - rate * (hats[0] / (sqrt(hats[1]) + epsilon) + decay * theta)
            assert found[t - 1][i] == pytest.approx(theta, rel=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_gradient_descent_with_momentum_and_decay(momentum: float, decay: float) -> None:
    """torch.optim.SGD without dampening: b = momentum b + (g + decay theta), theta = theta - rate b."""
    rate = 0.05
    found = stepped(Sgd(rate, momentum, decay))
    for i, theta in enumerate(START):
        b = 0.0
        for t, gradient in enumerate(row[i] for row in GRADIENTS):
            b = momentum * b + gradient + decay * theta
            theta = theta - rate * b
            assert found[t][i] == pytest.approx(theta, rel=1e-12)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_lion_moves_by_the_sign_of_an_average(decay: float) -> None:
    """Chen et al. 2023, algorithm 2: c = b1 m + (1 - b1) g, theta -= rate (sign(c) + decay theta), m = b2 m + (1 - b2)
    g.
    """
    rate, first, second = 0.01, 0.8, 0.95
    found = stepped(Lion(rate, first, second, decay))
    for i, theta in enumerate(START):
        m = 0.0
        for t, gradient in enumerate(row[i] for row in GRADIENTS):
            c = first * m + (1 - first) * gradient
            theta = theta - rate * ((c > 0) - (c < 0) + decay * theta)
            m = second * m + (1 - second) * gradient
            assert found[t][i] == pytest.approx(theta, rel=1e-12)


def test_lion_leaves_a_parameter_without_gradient_alone() -> None:
    parameters = np.array([1.0, -2.0])
    step(rule := Lion(), parameters, np.zeros(2), fresh(rule, parameters))
    assert parameters.tolist() == [1.0, -2.0]
