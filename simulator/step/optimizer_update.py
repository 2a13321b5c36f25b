"""How long does the optimizer's update take on a GPU, and how much temporary memory does it need, by implementation?

The update's own reads and writes are counted, hence no factor of a framework is added to them.

Worked example: Adam in float32 without a working copy. One fused kernel reads p, m, v and g and writes p, m and v: 28 B
per parameter. The same update with a kernel per operation (`foreach`) moves 4 p, 14 states and temporaries, and 2 g: 80
B.
"""

from __future__ import annotations

from simulator.basics.dtypes import find
from simulator.step.framework import Framework, Implementation
from simulator.step.kernel_timer import KernelCost, KernelTimer
from simulator.step.spec import Optimizer, TrainingStep
from simulator.step.states import States


def implementation_of(optimizer: Optimizer, framework: Framework) -> Implementation:
    """Return the implementation of an optimizer's update (fused, foreach, for_loop): the optimizer's setting, or else
    the framework's default.

    If the default is `fused` and the optimizer has no fused kernel, the implementation is `foreach`.
    """
    default = framework.optimizer_implementation
    return optimizer.implementation or (default if optimizer.has_fused or default != "fused" else "foreach")


def update_traffic(step: TrainingStep, states: States) -> float:
    """Return the bytes read from and written to HBM by the optimizer's update on a rank [B]."""
    if implementation_of(step.optimizer, step.framework) == "fused":
        return states.update_read + states.update_written
    separate, precision = step.optimizer.separate, step.precision
    updated, gradient = find(precision.updated).itemsize, find(precision.grads).itemsize
    each = (
        separate.parameters * updated + separate.numbers * step.optimizer.state_itemsize + separate.gradients * gradient
    )
    # Casting a working copy reads the master copy again.
    cast = states.copied + states.updated * updated if states.copied else 0
    return states.updated * each + cast


def update_cost(timer: KernelTimer, states: States, tensors: int) -> KernelCost:
    """Return the duration, traffic and kernel launches of a rank's update.

    Parameters
    ----------
    timer : KernelTimer
        Times kernels on the rank's GPU under the step's settings.
    states : States
        Bytes of the rank's model states, and the number of updated parameters.
    tensors : int
        Number of parameter tensors on the rank; `for_loop` launches its kernels for each tensor.
    """
    step = timer.step
    implementation = implementation_of(step.optimizer, step.framework)
    # A fused kernel also writes the working copy; otherwise the cast is a kernel of its own.
    kernels = 1 if implementation == "fused" else step.optimizer.separate.kernels + bool(states.copied)
    launches = kernels * max(tensors, 1) if implementation == "for_loop" else kernels
    return timer.streamed("update", update_traffic(step, states), launches)


def temporary_bytes(step: TrainingStep, states: States) -> int:
    """Return the bytes of temporary arrays allocated by a rank's update [B].

    `foreach` allocates temporaries for every parameter at once. `for_loop` allocates temporaries for a single tensor at
    a time; these bytes are neglected. `fused` allocates none.

    Parameters
    ----------
    step : TrainingStep
        Contains the optimizer and the framework.
    states : States
        Contains the number of updated parameters.
    """
    held = step.optimizer.separate.temporaries if implementation_of(step.optimizer, step.framework) == "foreach" else 0
    return states.updated * held * step.optimizer.state_itemsize
