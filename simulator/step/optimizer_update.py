"""Time and temporary memory of the optimizer's update on a GPU, for each implementation of the update.

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
    """Return the implementation of an optimizer's update: the scenario's choice, or else the framework's default.

    If the default is `fused` and the optimizer has no fused kernel, the implementation is `foreach`.
    """
    default = framework.optimizer_implementation
    return optimizer.implementation or (default if optimizer.has_fused or default != "fused" else "foreach")


def update_traffic(step: TrainingStep, states: States) -> float:
    """Return the bytes that one rank's update reads from HBM and writes to HBM [B]."""
    if implementation_of(step.optimizer, step.framework) == "fused":
        return states.update_read + states.update_written
    separate, precision = step.optimizer.separate, step.precision
    updated, gradient = find(precision.updated).itemsize, find(precision.grads).itemsize
    each = separate.parameters * updated + separate.numbers * STATE_BYTES + separate.gradients * gradient
    # A working copy is cast by a kernel that reads the master copy again.
    cast = states.copied + states.updated * updated if states.copied else 0
    return states.updated * each + cast


def update_cost(timer: KernelTimer, states: States, tensors: int) -> KernelCost:
    """Return the time, the bytes and the number of kernel launches of one rank's update.

    Parameters
    ----------
    timer : KernelTimer
        Times kernels on the rank's GPU under the step's settings.
    states : States
        Bytes of the model states that the rank holds, and the number of parameters that the rank updates.
    tensors : int
        Number of parameter tensors on the rank; `for_loop` launches its kernels for each tensor.
    """
    step = timer.step
    implementation = implementation_of(step.optimizer, step.framework)
    kernels = 1 if implementation == "fused" else step.optimizer.separate.kernels + bool(states.copied)
    launches = kernels * max(tensors, 1) if implementation == "for_loop" else kernels
    return timer.streamed("update", update_traffic(step, states), launches)


def temporary_bytes(step: TrainingStep, states: States) -> int:
    """Return the bytes of temporary arrays that one rank allocates during the update [B].

    `foreach` allocates temporary arrays for all parameters at once. `for_loop` allocates temporary arrays for one
    parameter tensor at a time; these bytes are neglected, and the function returns 0. `fused` allocates none.

    Parameters
    ----------
    step : TrainingStep
        Names the optimizer and the framework.
    states : States
        Gives the number of parameters that the rank updates.
    """
    held = step.optimizer.separate.temporaries if implementation_of(step.optimizer, step.framework) == "foreach" else 0
    return states.updated * held * STATE_BYTES
