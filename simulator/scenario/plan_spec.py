"""Which keys say what a plan is asked for: `plan`, what may be chosen, and which key of a scenario each choice sets.

Rule: as in shape.py; values of choices are checked by the keys that they set, in plan_rules.py.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Any, Final

from pydantic import Field

from simulator.basics.counts import parse_days
from simulator.scenario import reading
from simulator.scenario.field_types import Listed, Spec
from simulator.scenario.global_batch import batch_of_step, sequences_of

# By the name of what may be chosen the key of a scenario that it sets.
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
    }
)
# What may be chosen among too, each value by a plan of its own: of several numbers of GPUs the largest is always the
# fastest, so that the best settings of each number are told apart.
GPUS: Final = "gpus"
# What a scenario may say for all settings, for a plan chooses it only where it is asked to.
SAID_OR_CHOSEN: Final = ("precision", "framework")
# Keys that follow from choices and the global batch, and from what.
FOLLOWS: Final = MappingProxyType(
    {
        "training.gradient_accumulation_steps": "follows from plan.global_batch",
        "training.global_batch": "is said by plan.global_batch",
        "training.parallelism.dp": "follows from the GPUs and the other sizes",
    }
)
# How many settings are told where nobody says it; and more than any plan would play.
BEST: Final = 10
_MOST_BEST: Final = 1000
# More days than anybody has.
_MOST_DAYS: Final = 1e6

ChoiceName = Annotated[str, reading.choice(tuple(KEYS))]
AmongName = Annotated[str, reading.choice((*KEYS, GPUS))]


def _days(value: Any) -> float:
    days = parse_days(value) if isinstance(value, str) else value
    return float(reading.number(positive=True, most=_MOST_DAYS).reader(days))


class PlanSpec(Spec):
    """What a plan chooses among, for which batch."""

    global_batch: Annotated[str, batch_of_step()] = Field(
        description="Batch of a step, all ranks together: tokens (4M, of which k is 1024) or sequences (512seq)."
    )
    fix: dict[ChoiceName, Any] = Field(default={}, description="By name what is chosen already.")
    among: dict[AmongName, Listed[Any]] = Field(default={}, description="By name the values to choose among.")
    without: Listed[Annotated[str, reading.text(r"\S+", "a value that may be chosen, such as zero3")]] = Field(
        default=(), description="Values to leave out."
    )
    best: Annotated[int, reading.whole(1, _MOST_BEST)] = Field(default=BEST, description="How many settings are told.")
    deadline: (
        Annotated[
            float,
            reading.ValueReader(
                _days, lambda: {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]}
            ),
        ]
        | None
    ) = Field(default=None, description="Days that the training may take: 30, 30d, 6w; needs `budget.tokens`.")
    sensitivity: bool = Field(
        default=False, description="Tell what twice the network, one more network card and twice the memory change."
    )

    @property
    def sequences(self) -> int:
        """Sequences of a step over all ranks; `load_scenario` has turned tokens into sequences."""
        return sequences_of(self.global_batch, 1)
