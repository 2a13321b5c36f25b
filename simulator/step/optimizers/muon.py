"""Muon: momentum made orthogonal by Newton-Schulz iterations for the matrices of layers, and Adam for everything else.

Embedding, head, norms and biases have Adam's update. Kernels as in PyTorch 2.9 (torch/optim/_muon.py), which has no
fused or foreach implementation: every kernel runs for each matrix. p is the parameter, g the gradient, b the momentum
buffer, d the update in the buffer's dtype, x the update in bfloat16. A number in brackets counts accesses.

Average: b.lerp_(g) (b 2, g 1); d = g.lerp(b) (g 1, b 1, d 1); the cast to bfloat16, the norm and the division by the
norm count as accesses to d (d 3).
Apply: p *= c (p 2); p += rate x (p 2), with x in half of a number's bytes (x 1).

References
----------
.. [1] Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024
   (kellerjordan.github.io/posts/muon): Nesterov's momentum, five iterations in bfloat16.
.. [2] Liu et al., "Muon is scalable for LLM training", arXiv:2502.16982: gathered shards (algorithm 1).
"""

from __future__ import annotations

from simulator.step.optimizers.adam import ADAM
from simulator.step.optimizers.optimizer import MatrixRule, Optimizer, SeparateKernels

OPTIMIZER = Optimizer(
    "muon",
    ADAM.states,
    ADAM.separate,
    "Jordan et al. 2024 (kellerjordan.github.io/posts/muon): one momentum of matrices; Adam elsewhere",
    of_matrices=MatrixRule(1, average=SeparateKernels(5, 0, 2, 7), apply=SeparateKernels(2, 4, 0, 1)),
)
