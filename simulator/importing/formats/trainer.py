"""Hugging Face Trainer: TrainingArguments on a command line, in JSON or in YAML, and options of example scripts."""

from __future__ import annotations

from typing import Final

from simulator.importing.format import Format
from simulator.importing.hugging_face import TRAINER_IDLE, TRAINER_TABLE, derive_trainer
from simulator.importing.launchers import IDLE, LAUNCHERS

_LAUNCHERS: Final = {name.replace("-", "_"): rule for name, rule in LAUNCHERS.items()}
_IDLE: Final = tuple(pattern.replace("-", "_") for pattern in IDLE)


def plain_option(key: str) -> str:
    """Return a setting's name as in TrainingArguments, for a key or an option of a command line.

    >>> plain_option("--gradient-accumulation-steps")
    'gradient_accumulation_steps'
    """
    return key.lstrip("-").replace("-", "_")


FORMAT: Final = Format(
    name="Hugging Face Trainer",
    syntaxes=("shell", "mapping"),
    table={**_LAUNCHERS, **TRAINER_TABLE},
    marks=frozenset({"per_device_train_batch_size", "model_name_or_path", "num_train_epochs"}),
    derive=derive_trainer,
    idle=(*TRAINER_IDLE, *_IDLE, "config_file", "deepspeed_config_file", "use_deepspeed", "use_fsdp"),
    plain=plain_option,
    framework="transformers",
)
