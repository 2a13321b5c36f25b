"""Which keys does `plan` have, which settings may a plan choose, and which scenario key does each choice set?

Same form as records.py. plan_rules.py validates a choice's values with the validator for its scenario key.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import Field

from simulator.basics import reading
from simulator.basics.counts import parse_days
from simulator.basics.spec import Listed, Spec
from simulator.step.global_batch import batch_of_step, sequences_of

# Scenario key for each choice.
KEYS: Final = MappingProxyType(
    {
        "tp": "training.parallelism.tp",
        "pp": "training.parallelism.pp",
        "cp": "training.parallelism.cp",
        "ep": "training.parallelism.ep",
        "schedule": "training.parallelism.schedule",
        "virtual_stages": "training.parallelism.virtual_stages",
        "sharding": "training.sharding.strategy",
        "shard_size": "training.sharding.shard_size",
        "micro_batch": "training.micro_batch_size",
        "checkpointing": "training.activation_checkpointing",
        "offload": "training.offload.what",
        "precision": "training.precision",
        "framework": "training.framework",
        "optimizer": "training.optimizer.name",
        "rank": "training.lora.rank",
        "base": "training.lora.base",
    }
)
# May be listed in `among` too. Each number of GPUs gets its own plan: in a single plan the largest number would always
# be the fastest.
GPUS: Final = "gpus"
# The scenario sets these for every setting; a plan chooses them only if `fix` or `among` names them.
SAID_OR_CHOSEN: Final = ("precision", "framework", "optimizer", "rank", "base")
# Keys determined by choices and the global batch, with the reason.
FOLLOWS: Final = MappingProxyType(
    {
        "training.gradient_accumulation_steps": "follows from plan.global_batch",
        "training.global_batch": "is given by plan.global_batch",
        "training.parallelism.dp": "follows from the GPUs and the other sizes",
    }
)
# Default number of settings to report; more than the maximum is never needed.
BEST: Final = 10
_MOST_BEST: Final = 1000
# Longest deadline [days]; larger numbers are typing errors.
_MOST_DAYS: Final = 1e6

ChoiceName = Annotated[str, reading.choice(tuple(KEYS))]
AmongName = Annotated[str, reading.choice((*KEYS, GPUS))]


def _days(value: Any) -> float:
    days = parse_days(value) if isinstance(value, str) else value
    return float(reading.number(positive=True, most=_MOST_DAYS).reader(days))


class PlanSpec(Spec):
    """The batch size, and the settings to fix or to choose among (keys of `plan`)."""

    global_batch: Annotated[str, batch_of_step()] = Field(
        description="Global batch of a step: in tokens (4M; k is 1024) or in sequences (512seq)."
    )
    fix: dict[ChoiceName, Any] = Field(default={}, description="Fixed values by name.")
    among: dict[AmongName, Listed[Any]] = Field(default={}, description="Values to choose among, by name.")
    without: Listed[Annotated[str, reading.text(r"\S+", "a value of the search space, such as zero3")]] = Field(
        default=(), description="Values to exclude from the search."
    )
    best: Annotated[int, reading.whole(1, _MOST_BEST)] = Field(
        default=BEST, description="Number of settings to report."
    )
    deadline: (
        Annotated[
            float,
            reading.ValueReader(
                _days, lambda: {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}
            ),
        ]
        | None
    ) = Field(
        default=None,
        description="Longest allowed duration of the training: 30 (days), 30d, 6w; needs `budget.tokens`.",
    )
    sensitivity: bool = Field(
        default=False,
        description="Repeat the plan with twice the network bandwidth, one more network card, and twice the memory.",
    )

    @property
    def sequences(self) -> int:
        """Number of sequences per step over every rank; `load_scenario` has converted tokens into sequences."""
        return sequences_of(self.global_batch, 1)
