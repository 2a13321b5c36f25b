"""The optimizer's update on a GPU: how long its kernels take, and which memory they need meanwhile, by implementation.

Rule: the update rule's own reads and writes are counted, so no factor of a framework is added to them.

Worked example: Adam in float32 without a working copy. One fused kernel reads p, m, v and g and writes p, m and v: 28 B
for each parameter. The same update as a kernel for each operation (`foreach`) moves 4 p, 14 others and 2 g: 80 B.
"""

from __future__ import annotations

from simulator.basics.dtypes import find
from simulator.step.framework import Framework, Implementation
from simulator.step.kernel_timer import KernelCost, KernelTimer
from simulator.step.spec import Optimizer, TrainingStep
from simulator.step.states import STATE_BYTES, States


def implementation_of(optimizer: Optimizer, framework: Framework) -> Implementation:
    """How an optimizer's update runs: as asked, or as the framework does by default.

    `foreach` stands in for a default of `fused` where the optimizer has no fused kernel.
    """
    default = framework.optimizer_implementation
    return optimizer.implementation or (default if optimizer.has_fused or default != "fused" else "foreach")


def update_traffic(step: TrainingStep, states: States) -> float:
    """HBM traffic of the update on one rank [B]."""
    if implementation_of(step.optimizer, step.framework) == "fused":
        return states.update_read + states.update_written
    separate, precision = step.optimizer.separate, step.precision
    updated, gradient = find(precision.updated).itemsize, find(precision.grads).itemsize
    each = separate.parameters * updated + separate.numbers * STATE_BYTES + separate.gradients * gradient
    # A working copy is cast by a kernel that reads the master copy again.
    cast = states.copied + states.updated * updated if states.copied else 0
    return states.updated * each + cast


def update_cost(timer: KernelTimer, states: States, tensors: int) -> KernelCost:
    """Cost of the update on one rank, whose parameters are so many tensors."""
    step = timer.step
    implementation = implementation_of(step.optimizer, step.framework)
    kernels = 1 if implementation == "fused" else step.optimizer.separate.kernels + bool(states.copied)
    launches = kernels * max(tensors, 1) if implementation == "for_loop" else kernels
    return timer.streamed("update", update_traffic(step, states), launches)


def temporary_bytes(step: TrainingStep, states: States) -> int:
    """Memory of the temporaries that an update over all tensors at once holds [B].

    An update of one tensor after the other holds those of one tensor, which is neglected.
    """
    held = step.optimizer.separate.temporaries if implementation_of(step.optimizer, step.framework) == "foreach" else 0
    return states.updated * held * STATE_BYTES
