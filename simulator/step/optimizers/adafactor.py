"""Adafactor: second moments as sums over rows and over columns, which are negligible.

Kernels as in PyTorch 2.5 (torch/optim/_adafactor.py). p is the parameter, g the gradient, d a temporary. A number in
brackets counts accesses. p *= c (p 2); norms of g by rows and by columns (g 2); d = rows x columns (d 1); d /= mean
(d 2); d.clamp_() (d 2); d.rsqrt_() (d 2); d *= g (d 2, g 1); |d| (d 1); |p| (p 1); p -= rate d (p 2, d 1), and 9
kernels over rows or columns only.
"""

from __future__ import annotations

from simulator.step.optimizers.optimizer import Optimizer, SeparateKernels

OPTIMIZER = Optimizer(
    "adafactor",
    0,
    SeparateKernels(20, 5, 3, 11, temporaries=1),
    "Shazeer & Stern, arXiv:1804.04235: rows and columns of the second moment alone",
    has_fused=False,
)
