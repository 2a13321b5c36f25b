"""Adam, with states in 32, 16 or 8 bits, and with states in paged memory.

Adam keeps momentum and variance. Kernels as in PyTorch 2.5 (torch/optim/adam.py), without amsgrad. p is the parameter,
g the gradient, m and v are the moments, d is a temporary. A number in brackets counts accesses. With decoupled decay:
p *= c (p 2); m.lerp_(g) (m 2, g 1); v *= c (v 2); v.addcmul_(g, g) (v 2, g 1); d = sqrt(v) (v 1, d 1); d /= c (d 2);
d += eps (d 2); p.addcdiv_(m, d) (p 2, m 1, d 1): 4 p, 2 g, 14 states and temporaries.

Eight-bit Adam stores each moment as a byte, and a float32 scale for each block of 256 (bitsandbytes since 0.44; 2,048
before). Its kernel reads and writes everything once, hence it has one implementation. bitsandbytes keeps tensors below
4,096 elements in float32, and launches its kernel for each tensor; both are neglected.

Paged Adam (bitsandbytes' PagedAdamW32bit and PagedAdamW8bit) has states in CUDA's managed memory: on the GPU while they
fit, otherwise partly on the host (run/paging.py). Its states in 32 bits are float32 whatever the parameters' dtype.
"""

from __future__ import annotations

from simulator.step.optimizers.optimizer import Optimizer, SeparateKernels

_KERNELS = SeparateKernels(8, 4, 2, 14, temporaries=1)
_PAPER = "Kingma & Ba, arXiv:1412.6980, algorithm 1: first and second moment"
ADAM = Optimizer("adam", 2, _KERNELS, _PAPER)
_EIGHT_BITS = f"{_PAPER}; Dettmers et al., arXiv:2110.02861: eight bits each"
_PAGED = "Dettmers et al., arXiv:2305.14314, section 3: states in managed memory; bitsandbytes"
OPTIMIZER = (
    ADAM,
    Optimizer("adam_8bit", 2, None, _EIGHT_BITS, block=256),
    Optimizer("paged_adam", 2, None, f"{_PAPER}; {_PAGED}", paged=True),
    Optimizer("paged_adam_8bit", 2, None, f"{_EIGHT_BITS}; {_PAGED}", block=256, paged=True),
)
