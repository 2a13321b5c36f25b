"""How many sequences has a step? Global batch, micro-batch and accumulation, of which each may follow from the others.

The fact "sequences" is the global batch in sequences; "tokens" is the same in tokens.
"""

from __future__ import annotations

from typing import Final

from simulator.importing.facts import Facts
from simulator.importing.machine import WORLD, copies_of

_MICRO: Final = "training.micro_batch_size"
_STEPS: Final = "training.gradient_accumulation_steps"
_GLOBAL: Final = "training.global_batch"


def derive_batch(facts: Facts) -> None:
    """Add the keys of the batch, and check that they agree with the number of ranks."""
    copies = copies_of(facts)
    sequences = facts.value("sequences")
    # A file that gives a micro-batch without a value does not mean the largest one.
    if not facts.has(_MICRO) and sequences is not None and not facts.lost(_MICRO, _STEPS):
        steps = facts.value(_STEPS, 1)
        if sequences % (copies * steps) == 0 and sequences >= copies * steps:
            facts.derive(_MICRO, sequences // (copies * steps), "sequences", _STEPS, WORLD)
    if not facts.has(_MICRO):
        facts.assume(_MICRO, 1, "--micro-batch-size changes it")
    if sequences is None:
        if not facts.has(_STEPS):
            facts.assume(_STEPS, 1, "the files name neither a global batch nor an accumulation")
        return
    micro = facts.value(_MICRO, 1)
    if facts.has(_STEPS):
        steps = facts.value(_STEPS)
        if sequences != micro * steps * copies:
            facts.fault(
                f"got {sequences} sequences; micro-batch {micro} x accumulation {steps} x {copies} data-parallel ranks "
                f"are {micro * steps * copies}; change one of them, or give --gpus",
                "sequences",
            )
        return
    facts.derive(_GLOBAL, f"{sequences}seq", "sequences")
