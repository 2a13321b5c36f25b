"""How large are the steps simulated by a plan? Estimated before the cluster is built.

A plan is refused if even a setting's smallest step is too large for this machine, and warned about if an ordinary step
is. Each setting's step is checked again when the search simulates the setting.
"""

from __future__ import annotations

from typing import Final

from simulator.basics.errors import TooLargeError
from simulator.basics.host_memory import shortage_text
from simulator.run.size_estimate import SizeEstimate, size_of
from simulator.scenario.records import Scenario

# A search takes long if a step has more micro-batches.
_MANY: Final = 1000


def refuse_too_large(base: Scenario, sequences: int, micro_batch: int) -> None:
    """Raise TooLargeError if this machine cannot hold even the smallest simulated step: no model parallelism, this
    micro-batch.
    """
    try:
        _step_of(base, sequences, micro_batch).refuse_larger_than_memory()
    except TooLargeError as error:
        raise TooLargeError(f"{_asked(base, sequences)}: {error}") from error


def warning_of(base: Scenario, sequences: int) -> str:
    """Return a warning if a plan's search takes long or skips many settings; otherwise an empty text."""
    subject, micro_batches = _asked(base, sequences), sequences // base.cluster.world_size
    step = _step_of(base, sequences, 1)
    if shortage_text(step.nbytes):
        return (
            f"{subject}: this machine has too little memory to simulate settings with micro-batches of one sequence; "
            "the plan omits these settings; take fewer sequences per step"
        )
    if step.warning:
        return f"{subject}, for each setting: {step.warning}"
    if micro_batches < _MANY:
        return ""
    return (
        f"{subject} has {micro_batches:,} micro-batches of one sequence on each GPU; the search may take hours; take "
        "fewer sequences per step"
    )


def _asked(base: Scenario, sequences: int) -> str:
    """Return a phrase with a step's size: its sequences and GPUs."""
    return f"a step of {sequences:,} sequences on {base.cluster.world_size:,} GPUs"


def _step_of(base: Scenario, sequences: int, micro_batch: int) -> SizeEstimate:
    """Return the size of a simulated step without model parallelism, in micro-batches of `micro_batch` sequences."""
    if base.training is None:
        raise TypeError("a plan is of a training step")
    micro_batches = max(1, sequences // (base.cluster.world_size * micro_batch))
    training = base.training.replaced(micro_batch_size=micro_batch, gradient_accumulation_steps=micro_batches)
    return size_of(base.replaced(training=training))
