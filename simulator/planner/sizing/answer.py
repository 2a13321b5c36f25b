"""What is answered: whether a training fits, on how many cards, after which changes, and up to which sizes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from simulator.basics.sentence import started
from simulator.basics.units import format_memory
from simulator.basics.work_unit import SAMPLE
from simulator.planner.sizing.fit_question import FitQuestion, Keys, sharding
from simulator.records.memory_margin import MemoryMargin


@dataclass(frozen=True, slots=True)
class FitChange:
    """One or two changes after which a training fits."""

    # The changes in words: "full checkpointing and QLoRA of rank 16".
    text: str
    kinds: tuple[str, ...]  # the settings that change
    keys: Keys  # what to write in the scenario
    margin: MemoryMargin  # reserved and free memory after the changes
    tokens_per_s_per_gpu: float  # speed after the changes
    speed: float  # the same speed, relative to the training without the changes

    @property
    def order(self) -> tuple[int, bool, float]:
        """Sort key: single changes first, then changes that keep the method, then the smallest loss of speed."""
        return len(self.kinds), "method" in self.kinds, -self.speed

    @property
    def warning(self) -> str:
        """A sentence that the change leaves little memory beside the process; "" if it leaves enough."""
        return f"{started(self.text)}: {self.margin.warning}." if self.margin.warning else ""

    def to_dict(self) -> dict[str, Any]:
        """Return the change as a plain dict."""
        return {
            "change": self.text,
            "keys": dict(self.keys),
            **_memory(self.margin),
            "warning": self.warning,
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "relative_speed": self.speed,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FitCheck:
    """Whether a training fits on its cards, and what to change.

    Attributes
    ----------
    question : FitQuestion
        The training and its cards.
    margin : MemoryMargin
        Reserved memory of the fullest card, and free or missing memory.
    tokens_per_s_per_gpu : float
        Speed of the simulated step; without a memory limit if the training does not fit.
    fewest_gpus : int or None
        Fewest cards, of 1, 2, 4, ..., on which the training fits; None if it fits on no searched number.
    most_gpus : int
        Largest number of cards that was searched.
    changes : tuple of FitChange
        Changes that make the training fit, in their `order`; empty if it fits without.
    largest_micro_batch, longest_sequence : int or None
        Largest micro-batch with the question's sequences, and longest sequence [tokens] with its micro-batch, that fit;
        None if the training does not fit.
    """

    question: FitQuestion
    margin: MemoryMargin
    tokens_per_s_per_gpu: float
    fewest_gpus: int | None
    most_gpus: int
    changes: tuple[FitChange, ...] = ()
    largest_micro_batch: int | None = None
    longest_sequence: int | None = None

    @property
    def fits(self) -> bool:
        """True if the training fits."""
        return self.margin.fits

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer in whole sentences, the verdict first."""
        question = self.question
        verdict = "fits" if self.fits else "does not fit"
        cards = f"{question.gpus:,} {question.card} of {format_memory(self.margin.capacity)}"
        if (variant := self._kept()) is not None:
            needs, speed = format_memory(variant.margin.process), f"{100 * variant.speed:.0f} %"
            lines = [
                f"{started(question.text)}{question.place} {verdict} on {cards} without checkpointing, but with "
                f"{variant.text}: memory of the process {needs}, {speed} of the speed.",
                f"Without: {self.margin.text}.",
            ]
        else:
            how = f"without checkpointing{question.place}"
            lines = [f"{started(question.text)} {how} {verdict} on {cards}: {self.margin.text}."]
        if self.margin.warning:
            lines.append(f"{started(self.margin.warning)}.")
        if self.fits:
            lines.append(f"{self.margin.figures}.")
        lines.append(self._cards())
        if self.fits:
            lines.append(self._sizes())
        elif not self.changes:
            lines.append("No tested change makes it fit, alone or in pairs.")
        return tuple(lines)

    def _kept(self) -> FitChange | None:
        """Return the first change that keeps what was asked: the sequence, the method and the cards."""
        others = {"training.seq_len", "training.lora", "cluster.world_size"}
        return next((change for change in self.changes if not others & set(change.keys)), None)

    def _cards(self) -> str:
        if self.fewest_gpus is None:
            return f"Without changes it fits on no tested number of these cards, up to {self.most_gpus:,}."
        how = f"with {sharding(self.fewest_gpus)}" if self.fewest_gpus > 1 else "without sharding"
        return f"The fewest cards on which it fits: {self.fewest_gpus:,}, {how}."

    def _sizes(self) -> str:
        question, most = self.question, f"The largest micro-batch that fits: {self.largest_micro_batch:,}"
        if question.work_unit == SAMPLE:
            return f"{most} samples."
        return (
            f"{most}, with {question.seq_len:,} tokens; the longest sequence: {self.longest_sequence:,} tokens, with a "
            f"micro-batch of {question.micro_batch}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as a plain dict, with the scenario that was simulated."""
        return {
            "answer": list(self.sentences),
            "scenario": self.question.document(),
            "fits": self.fits,
            **_memory(self.margin),
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "fewest_gpus": self.fewest_gpus,
            "most_gpus": self.most_gpus,
            "changes": [change.to_dict() for change in self.changes],
            "largest_micro_batch": self.largest_micro_batch,
            "longest_sequence": self.longest_sequence,
        }


def _memory(margin: MemoryMargin) -> dict[str, int]:
    return {
        "reserved_bytes": margin.reserved,
        "capacity_bytes": margin.capacity,
        "allocated_bytes": margin.allocated,
        "context_bytes": margin.context,
        "nccl_bytes": margin.nccl,
        "process_bytes": margin.process,
        "free_bytes": margin.free,
        "missing_bytes": margin.missing,
    }
