"""What is a real training told? Its loss scaling, learning (data, rate, optimizer's constants) and injected faults.

The keys of a scenario file are the step's records too; a TrainingTask adds what is read from files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_args

from pydantic import Field

from simulator.basics import counts, reading
from simulator.basics.spec import Count, LargeCount, Rank, Short, Spec

if TYPE_CHECKING:
    from simulator.basics.arrays import Array

FaultKind = Literal["dropped", "doubled", "stale", "bit_flip", "overflow", "stopped"]
ScheduleKind = Literal["constant", "linear", "cosine"]
# In a step, auto has become one of the others, and no record stands for none.
ScalingRule = Literal["auto", "none", "dynamic", "deepspeed", "static"]
_RULES: Final[tuple[str, ...]] = get_args(ScalingRule)
# Words for a rule; names from PyTorch get advice.
SHORT_SCALINGS: Final = Short(
    {rule: {"rule": rule} for rule in _RULES},
    {
        **dict.fromkeys(("grad_scaler", "amp", "pytorch"), "has the name dynamic here; write dynamic"),
        "fixed": "write static",
    },
)
_FAULTS: Final[tuple[str, ...]] = get_args(FaultKind)
_SCHEDULES: Final[tuple[str, ...]] = get_args(ScheduleKind)
# GPT-2's dropout probability (Radford et al. 2019, the released hyperparameters).
DROPOUT: Final = 0.1
# Upper bound for rates and constants; larger numbers are typing errors.
_MOST: Final = 1e6


def _tokens() -> reading.ValueReader:
    """Return a validator for training tokens: the path of a text or array, or token numbers as a list."""

    def reader(value: Any) -> str | tuple[int, ...]:
        if isinstance(value, str) and value.strip() and value.isprintable():
            return value
        if isinstance(value, list | tuple) and value:
            # `type(n) is not int` also refuses True and False.
            wrong = [n for n in value if type(n) is not int or n < 0]
            if not wrong:
                return tuple(value)
            raise ValueError(
                f"got {reading.shown(wrong[0])} in a list; must be token numbers, which are whole numbers of at least 0"
            )
        rule = "must be the path of a text or of a .npy file, or a list of token numbers"
        raise ValueError(f"got {reading.shown(value)}; {rule}")

    numbers = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
    return reading.ValueReader(reader, lambda: {"anyOf": [{"type": "string", "minLength": 1}, numbers]})


def _betas() -> reading.ValueReader:
    """Return a validator for two betas, numbers of at least 0 and below 1."""

    def reader(value: Any) -> tuple[float, float]:
        plain = [n for n in value if type(n) in (int, float) and 0 <= n < 1] if isinstance(value, list | tuple) else []
        if len(plain) != 2 or len(value) != 2:
            raise ValueError(
                f"got {reading.shown(value)}; must be two numbers of at least 0 and below 1, such as [0.9, 0.999]"
            )
        return float(plain[0]), float(plain[1])

    share = {"type": "number", "minimum": 0, "exclusiveMaximum": 1}
    return reading.ValueReader(reader, lambda: {"type": "array", "items": share, "minItems": 2, "maxItems": 2})


def _path(suffix: str) -> reading.ValueReader:
    """Return a validator for the path of a file with this suffix."""

    def reader(value: Any) -> str:
        if isinstance(value, str) and value.isprintable() and value.endswith(suffix):
            return value
        raise ValueError(f"got {reading.shown(value)}; must be the path of a file whose name ends in {suffix}")

    return reading.ValueReader(reader, lambda: {"type": "string", "pattern": rf"\{suffix}$"})


class LossScaling(Spec):
    """Scaling of the loss, to keep small gradients representable in float16 (keys of `loss_scaling`)."""

    rule: Annotated[ScalingRule, reading.choice(_RULES)] = Field(
        default="auto",
        description=(
            "dynamic: PyTorch's GradScaler; deepspeed: dynamic with hysteresis; static: constant scale; auto: "
            "dynamic for float16."
        ),
    )
    start: Annotated[float, reading.number(positive=True, most=2.0**60)] = Field(
        default=65536.0, description="Initial loss scale; the constant scale with static."
    )
    interval: Count | None = Field(
        default=None, description="Steps without overflow until the scale grows; the rule's default if omitted."
    )
    shared: Annotated[bool, reading.YES_NO] = Field(
        default=True, description="Whether an overflow on one rank makes every rank skip the step."
    )


class LearningSpec(Spec):
    """The data, the learning rate and the optimizer's constants (keys of `learning`, for real training)."""

    rate: Annotated[float, reading.number(positive=True, most=_MOST)] = Field(
        default=1e-3, description="Learning rate."
    )
    decay: Annotated[float, reading.number(positive=False, most=_MOST)] = Field(
        default=0.0,
        description="Weight decay: added to the gradient with sgd and momentum, otherwise applied to the parameters.",
    )
    momentum: Annotated[float, reading.number(positive=False, most=1.0)] | None = Field(
        default=None, description="Decay factor of the momentum per step; if omitted 0.95 for muon, else 0.9."
    )
    betas: Annotated[tuple[float, float], _betas()] | None = Field(
        default=None,
        description=(
            "Decay factors of both moving averages per step; if omitted [0.9, 0.99] for lion, else [0.9, 0.999]."
        ),
    )
    eps: Annotated[float, reading.number(positive=True, most=_MOST)] = Field(
        default=1e-8, description="Adam's epsilon, added to the root of the variance."
    )
    warmup: Annotated[int, reading.count(0, None, counts.THINGS)] = Field(
        default=0,
        description="Number of warm-up steps, in which the rate rises from 0 to `rate`; 1k is 1000.",
    )
    schedule: Annotated[ScheduleKind, reading.choice(_SCHEDULES)] = Field(
        default="constant",
        description="Course of the rate from the warm-up to the last step: constant, or a decay to 0.",
    )
    checkpoint: LargeCount | None = Field(
        default=None,
        description="Steps between checkpoints; when a rank stops, training goes on from the last, or else ends.",
    )
    # Paths are kept as text; files are read when the step is built, and checked in numerics_rules.py.
    tokens: Annotated[Any, _tokens()] = Field(
        default=None,
        description=(
            "Path of a text or .npy file, or a list of token numbers; a task generated from the seed if omitted."
        ),
    )
    batches: Annotated[str, _path(".npy")] | None = Field(
        default=None,
        description=(
            "Path of a .npy file with tokens, shape (steps, sequences of all ranks, seq_len + 1); alternative to "
            "`tokens`."
        ),
    )
    initial: Annotated[str, _path(".npz")] | None = Field(
        default=None,
        description=(
            "Path of an .npz file with initial parameters under PyTorch's names; generated from the seed if omitted."
        ),
    )

    @property
    def files(self) -> tuple[str, ...]:
        """Paths named by the keys `tokens`, `batches` and `initial`."""
        return tuple(path for path in (self.tokens, self.batches, self.initial) if isinstance(path, str))


LEARNING: Final = LearningSpec()


class FaultSpec(Spec):
    """A fault injected in a single step (keys of an entry in `faults`, for real training)."""

    step: Annotated[int, reading.whole(0)] = Field(description="Step of the fault, counted from 0.")
    what: Annotated[FaultKind, reading.choice(_FAULTS)] = Field(
        description=(
            "Kind of fault: a transfer is dropped, doubled, stale or has a bit_flip; a rank's gradient has an "
            "overflow; a rank has stopped."
        )
    )
    # Keys below apply to certain kinds of fault; numerics_rules.py refuses them elsewhere.
    collective: Annotated[str, reading.text(".+", "a collective's name")] | None = Field(
        default=None,
        description="Collective with the faulty transfer; the first collective that sums gradients if omitted.",
    )
    transfer: Annotated[int, reading.whole(0)] = Field(
        default=0, description="Number of the transfer in the collective."
    )
    element: Annotated[int, reading.whole(0)] = Field(
        default=0, description="Number of the element in the transfer, or in the head's gradient."
    )
    bit: Annotated[int, reading.whole(0, 63)] = Field(
        default=0, description="Number of the bit in the element; 0 is the least significant bit."
    )
    rank: Rank = Field(default=0, description="Rank that overflows or stops.")


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """A real training: its keys with the contents of their files; times do not depend on them.

    Attributes
    ----------
    learning : LearningSpec
        Keys of `learning`; their paths have been read.
    dropout : float
        Probability of dropout.
    text : tuple of int, or None
        Tokens to learn; None for a task drawn from the seed.
    faults : tuple of FaultSpec
        Faults, each in a single step.
    parameters : mapping of PyTorch's name to array, or None
        Parameters before the first step; None to draw them from the seed.
    sequences : int array, shape (steps, sequences of all ranks, seq_len + 1), or None
        Sequences to learn, step by step.
    """

    learning: LearningSpec = LEARNING
    dropout: float = 0.0
    text: tuple[int, ...] | None = None
    faults: tuple[FaultSpec, ...] = ()
    # Arrays cannot be compared with a single `==`, and are too large to print.
    parameters: Mapping[str, Array] | None = field(default=None, compare=False, repr=False)
    sequences: Array | None = field(default=None, compare=False, repr=False)
