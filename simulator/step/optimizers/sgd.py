"""Plain gradient descent, and gradient descent with momentum.

Kernels as in PyTorch 2.5 (torch/optim/sgd.py), without dampening and Nesterov's momentum. p is the parameter, g the
gradient, b the momentum buffer. A number in brackets counts accesses.

Momentum: b *= c (b 2); b += g (b 2, g 1); p -= rate b (p 2, b 1). Without: p -= rate g (p 2, g 1).
"""

from __future__ import annotations

from simulator.step.optimizers.optimizer import Optimizer, SeparateKernels

OPTIMIZER = (
    Optimizer("sgd", 0, SeparateKernels(1, 2, 1, 0), "p -= rate g"),
    Optimizer("momentum", 1, SeparateKernels(3, 2, 1, 5), "Polyak 1964: v = m v + g; p -= rate v"),
)
