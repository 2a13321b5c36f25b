"""How long does the optimizer's update take on a GPU, and how much temporary memory does it need, by implementation?

The update's own reads and writes are counted, hence no factor of a framework is added to them.

Worked example: Adam in float32 without a working copy. One fused kernel reads p, m, v and g and writes p, m and v: 28 B
per parameter. The same update with a kernel per operation (`foreach`) moves 4 p, 14 states and temporaries, and 2 g: 80
B.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulator.basics.dtypes import find
from simulator.model.kernel import Matmul
from simulator.step.framework import Framework, Implementation
from simulator.step.kernel_timer import KernelCost, KernelTimer
from simulator.step.optimizers.optimizer import MatrixRule, Optimizer, Shape
from simulator.step.spec import TrainingStep
from simulator.step.states import States


def implementation_of(optimizer: Optimizer, framework: Framework) -> Implementation:
    """Return the implementation of an optimizer's update (fused, foreach, for_loop): the optimizer's setting, or else
    the framework's default.

    If the default is `fused` and the optimizer has no fused kernel, the implementation is `foreach`; an optimizer
    without separate kernels is `fused`.
    """
    if optimizer.separate is None:
        return "fused"
    default = framework.optimizer_implementation
    return optimizer.implementation or (default if optimizer.has_fused or default != "fused" else "foreach")


def update_traffic(step: TrainingStep, states: States) -> float:
    """Return the bytes read from and written to HBM by the optimizer's update on a rank [B], matrices with a rule of
    their own aside.
    """
    separate, precision = step.optimizer.separate, step.precision
    if separate is None or implementation_of(step.optimizer, step.framework) == "fused":
        return states.update_read + states.update_written
    updated, gradient = find(precision.updated).itemsize, find(precision.grads).itemsize
    each = (
        separate.parameters * updated + separate.numbers * step.optimizer.state_itemsize + separate.gradients * gradient
    )
    return (states.updated - states.applied) * (each + _cast(step, states))


def _cast(step: TrainingStep, states: States) -> int:
    """Return the bytes per parameter that a cast of the master copy to the working copy moves [B]; 0 without copies."""
    precision = step.precision
    return find(step.trained_dtype).itemsize + find(precision.updated).itemsize if states.copied else 0


def update_cost(timer: KernelTimer, states: States, tensors: int) -> KernelCost:
    """Return the duration, traffic and kernel launches of a rank's update, matrices with a rule of their own aside.

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
    implementation, separate = implementation_of(step.optimizer, step.framework), step.optimizer.separate
    # A fused kernel also writes the working copy; otherwise the cast is a kernel of its own.
    kernels = 1 if implementation == "fused" or separate is None else separate.kernels + bool(states.copied)
    launches = kernels * max(tensors, 1) if implementation == "for_loop" else kernels
    return timer.streamed("update", update_traffic(step, states), launches)


def average_cost(timer: KernelTimer, states: States, rule: MatrixRule, matrices: int) -> KernelCost:
    """Return the cost of averaging gradients into the momentum of a rank's matrices, `matrices` in number (Muon)."""
    step, kernels = timer.step, rule.average
    gradient = find(step.precision.grads).itemsize
    each = kernels.gradients * gradient + kernels.numbers * step.optimizer.state_itemsize
    return timer.streamed("average", states.averaged * each, kernels.kernels * max(matrices, 1))


def orthogonal_cost(timer: KernelTimer, rule: MatrixRule, shapes: Sequence[tuple[Shape, int]]) -> KernelCost:
    """Return the cost of making matrices orthogonal, one after the other; `shapes` has their shapes with counts."""
    total = KernelCost(0.0, 0.0, 0.0, 0.0)
    for (rows, columns), count in shapes:
        matmuls = rule.matmuls(rows, columns)
        cost = timer.cost([Matmul("orthogonalise", m, n, k, dtype=rule.dtype) for m, n, k in matmuls])
        total += cost.times(count)
    return total


def apply_cost(timer: KernelTimer, states: States, rule: MatrixRule, matrices: int) -> KernelCost:
    """Return the cost of applying orthogonal updates to a rank's matrices, `matrices` in number."""
    step, kernels = timer.step, rule.apply
    updated = find(step.precision.updated).itemsize
    each = kernels.parameters * updated + kernels.numbers * rule.itemsize + _cast(step, states)
    return timer.streamed("apply", states.applied * each, (kernels.kernels + bool(states.copied)) * max(matrices, 1))


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
    separate = step.optimizer.separate
    if separate is None or implementation_of(step.optimizer, step.framework) != "foreach":
        return 0
    return round((states.updated - states.applied) * separate.temporaries * step.optimizer.state_itemsize)
