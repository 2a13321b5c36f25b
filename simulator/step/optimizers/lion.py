"""Lion: the sign of an average of gradients.

Kernels of the published program (Chen et al., program 1) as PyTorch operations. p is the parameter, g the gradient, m
the momentum, d a temporary. A number in brackets counts accesses. p *= c (p 2); d = m c (m 1, d 1); d += c g (d 2,
g 1); d.sign_() (d 2); p -= rate d (p 2, d 1); m *= c (m 2); m += c g (m 2, g 1): 4 p, 2 g, 11 states and temporaries.
bitsandbytes has a fused kernel.
"""

from __future__ import annotations

from simulator.step.optimizers.optimizer import Optimizer, SeparateKernels

OPTIMIZER = Optimizer(
    "lion",
    1,
    SeparateKernels(7, 4, 2, 11, temporaries=1),
    "Chen et al., arXiv:2302.06675, algorithm 2: one momentum",
)
