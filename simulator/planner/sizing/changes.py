"""Which changes may make a training fit on its cards? Keys of the scenario, in the documented order.

The order is that of the cost which users expect: recompute, smaller micro-batches, shorter sequences, smaller optimizer
states, adapters in place of full training, more cards, and at last the optimizer on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.counts import number_of
from simulator.planner.sizing.fit_question import METHODS, NAMES, RANK, FitQuestion, Keys, lora_keys, sharding

# Most cards of a change, as a multiple of the asked number.
_MOST_TIMES: Final = 8
# Optimizers with smaller states on the GPU than Adam in float32, with the states' bytes a parameter: 4, 2 and 4; then
# those whose states move to the host as far as the GPU lacks memory.
_OPTIMIZERS: Final[tuple[tuple[str, Any], ...]] = (
    ("bf16 states", {"name": "adam", "state_dtype": "bfloat16"}),
    ("adam_8bit", "adam_8bit"),
    ("lion", "lion"),
    ("paged_adam_8bit", "paged_adam_8bit"),
    ("paged_adam", "paged_adam"),
)


@dataclass(frozen=True, slots=True)
class TrainingChange:
    """A change to a training."""

    # The setting that changes; changes of one kind exclude each other.
    kind: str
    # The change in words: "full checkpointing".
    text: str
    keys: Keys  # what to write in the scenario


def changes(question: FitQuestion) -> list[TrainingChange]:
    """Return the changes that apply to a training, in the documented order.

    >>> asked = FitQuestion(model="llama3_8b", gpu="rtx_4090", method="lora", micro_batch=2)
    >>> [change.text for change in changes(asked)][1:3]
    ['full checkpointing', 'full checkpointing, inputs of layers on the host']
    """
    return list(_changes(question))


def _changes(question: FitQuestion) -> Iterator[TrainingChange]:
    for policy in ("selective_op", "full"):
        yield TrainingChange("checkpointing", f"{policy} checkpointing", {"training.activation_checkpointing": policy})
    on_host = {"training.activation_checkpointing": "full", "training.offload": "activations"}
    yield TrainingChange("checkpointing", "full checkpointing, inputs of layers on the host", on_host)
    for kernels in ("fused", "chunked"):
        yield TrainingChange("loss", f"{kernels} loss", {"training.loss": kernels})
    for number in _halves(question.micro_batch):
        times = question.micro_batch // number
        keys = {"training.micro_batch_size": number, "training.gradient_accumulation_steps": times}
        yield TrainingChange("micro_batch", f"micro-batch {number} with {times} micro-batches", keys)
    if question.seq_len > 1:
        shorter = 1 << (question.seq_len - 1).bit_length() - 1
        yield TrainingChange("seq_len", f"{shorter:,} tokens", {"training.seq_len": shorter})
    for name, value in _OPTIMIZERS:
        if value != question.optimizer:
            yield TrainingChange("optimizer", name, {"training.optimizer": value})
    for method in METHODS[METHODS.index(question.method) + 1 :]:
        rank = question.rank or RANK
        yield TrainingChange("method", f"{NAMES[method]} of rank {rank}", lora_keys(method, rank))
    if question.method != "qlora":
        rank = question.rank or RANK
        yield TrainingChange(
            "method", f"LoRA of rank {rank} on int8", {"training.lora": {"rank": rank, "base": "int8"}}
        )
    for cards in _doubles(question.gpus, _MOST_TIMES * question.gpus):
        yield TrainingChange("gpus", f"{number_of(cards, 'GPU')} with {sharding(cards)}", cards_keys(cards))
    # The host updates shards of the states: a single card counts as a group of one.
    on_host = {"training.offload": "optimizer", "training.sharding": "zero3"}
    yield TrainingChange("offload", "the optimizer on the host", on_host)


def cards_keys(cards: int) -> dict[str, Any]:
    """Return the scenario keys of a number of cards, with their sharding.

    >>> cards_keys(8)
    {'cluster.world_size': 8, 'training.sharding': 'zero3'}
    """
    return {"cluster.world_size": cards, "training.sharding": sharding(cards)}


def _halves(number: int) -> Iterator[int]:
    """Yield smaller divisors of a number: by two while it is even, and at last 1."""
    half = number
    while half % 2 == 0:
        half //= 2
        yield half
    if half > 1:
        yield 1


def _doubles(number: int, most: int) -> Iterator[int]:
    """Yield the powers of two above a number, up to `most`."""
    power = 1 << number.bit_length()
    while power <= most:
        yield power
        power *= 2
