"""Which sharding strategy is a stage of ZeRO? Shared by the programs that name a stage of DeepSpeed."""

from __future__ import annotations

from typing import Final

from simulator.importing.facts import Facts
from simulator.importing.rules import choice

# Fact of the stage, 0 to 3.
STAGE: Final = "zero_stage"
STAGES: Final = choice({"0": 0, "1": 1, "2": 2, "3": 3})
_STRATEGIES: Final = ("ddp", "zero1", "zero2", "zero3")


def derive_strategy(facts: Facts) -> None:
    """Add the sharding strategy of a known stage."""
    if facts.has(STAGE):
        facts.derive("training.sharding.strategy", _STRATEGIES[facts.value(STAGE)], STAGE)
