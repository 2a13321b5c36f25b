"""Which records describe a training step? Model, sharding, precision, optimizer, offload and faults, in SI units.

The records contain no computation; scenario/ builds them from text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

from simulator.collectives.algorithm import Algorithm
from simulator.model.head import LogitShift
from simulator.model.model import Model
from simulator.model.operation import AttentionKernels
from simulator.model.shape import Transformer
from simulator.model.trained import TrainedParts
from simulator.step.framework import BARE, Framework
from simulator.step.optimizers.adam import ADAM
from simulator.step.optimizers.optimizer import Optimizer
from simulator.step.parallelism import ALONE, Parallelism
from simulator.step.sharding import ZERO3, Sharding

if TYPE_CHECKING:
    from simulator.basics.arrays import Array

FaultKind = Literal["dropped", "doubled", "stale", "bit_flip", "overflow", "stopped"]
ScheduleKind = Literal["constant", "linear", "cosine"]
LossKernels = Literal["separate", "narrow", "native", "fused", "in_place", "chunked"]
# A policy for every layer; k to recompute every k-th layer; layers to recompute; or pairs (policy, layers).
Checkpointing = str | int | tuple[int, ...] | tuple[tuple[str, tuple[int, ...]], ...]


Scaling = Literal["tensor", "row", "block"]


@dataclass(frozen=True, slots=True)
class Precision:
    """Dtypes of a step.

    Attributes
    ----------
    params : str
        Dtype of working parameters, activations and matmuls.
    grads : str
        Dtype of accumulated gradients.
    reduce : str
        Dtype of gradients on the wire.
    master : str or None
        Dtype of the optimizer's master copy; None if working parameters serve as master copy.
    matmul : str
        Dtype of matmul inputs: equal to `params`, or an fp8 dtype.
    scaling : {"tensor", "row", "block"}
        Scale of matmul inputs in eight bits: one for each tensor, for each row, or for each block (128 x 128 of
        weights, 1 x 128 of activations and gradients).
    """

    params: str = "bfloat16"
    grads: str = "bfloat16"
    reduce: str = "float32"
    master: str | None = "float32"
    matmul: str = "bfloat16"
    scaling: Scaling = "tensor"

    @property
    def updated(self) -> str:
        """Dtype of the numbers that the optimizer updates: the master copy, or working parameters without a master
        copy.
        """
        return self.master or self.params


@dataclass(frozen=True, slots=True)
class Offload:
    """Optimizer states kept in host memory and updated by the host's processors.

    Attributes
    ----------
    host_rate : float
        Rate at which a node's processors read and write states during the update [B/s].
    """

    # Four A100 nodes update 72.7 billion parameters, 28 bytes each, in about 10 s
    # (github.com/deepspeedai/DeepSpeed/issues/6834, Qwen 72B with ZeRO-3 on 32 A100). Other reports have 0.4 to 4
    # billion parameters per second and node: 11 to 110 GB/s.
    host_rate: float = 50e9


@dataclass(frozen=True, slots=True)
class LossScaling:
    """Scaling of the loss, which keeps small gradients representable in float16.

    Attributes
    ----------
    rule : {"dynamic", "deepspeed", "static"}
        PyTorch's GradScaler, DeepSpeed's scaler, or a constant scale.
    start : float
        First scale.
    interval : int or None
        Steps without overflow until the scale grows; None for the rule's default.
    shared : bool
        Whether ranks inform each other about an overflow, and every rank skips the step.
    """

    rule: Literal["dynamic", "deepspeed", "static"] = "dynamic"
    start: float = 65536.0
    interval: int | None = None
    shared: bool = True


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault in one step of real training.

    Attributes
    ----------
    step : int
        Number of the step, from 0.
    what : {"dropped", "doubled", "stale", "bit_flip", "overflow", "stopped"}
        dropped: a transfer does not arrive. doubled: it is added twice. stale: it brings the preceding step's data.
        bit_flip: a bit is flipped. overflow: a rank's gradient becomes infinite. stopped: a rank stops.
    collective : str or None
        Name of the transfer's collective; None for the first collective that sums gradients.
    transfer, element, bit : int
        Number of the transfer in the collective, of the element in the transfer, and of the bit in the element, 0 for
        the least significant. For an overflow: the element, in row-major order, of the head's gradient, or of the last
        norm's bias if the head is tied.
    rank : int
        The rank that stops, or whose gradient overflows.
    """

    step: int
    what: FaultKind
    collective: str | None = None
    transfer: int = 0
    element: int = 0
    bit: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """Task and hyperparameters of real training; times do not depend on them.

    Attributes
    ----------
    rate : float
        Learning rate.
    decay : float
        Weight decay: added to the gradient for sgd and momentum, otherwise applied to the parameters.
    momentum : float or None
        Factor by which a momentum shrinks per step; None for the optimizer's usual value.
    betas : tuple of float, or None
        Both decay rates of Adam or Lion; None for the optimizer's usual values.
    eps : float
        Number that Adam adds to the root of the variance.
    warmup, schedule : int, {"constant", "linear", "cosine"}
        Steps of learning-rate warm-up, and the decay afterwards; see `simulator.numerics.schedule`.
    tokens : tuple of int, or None
        Text to learn; None for a seeded task.
    initial : mapping of PyTorch's name to array, or None
        Parameters before the first step; None to draw them from the seed.
    checkpoint : int or None
        Steps between checkpoints, from the last of which a training goes on when a rank has stopped; None: it ends.
    batches : int array, shape (steps, sequences of all ranks, seq_len + 1), or None
        Sequences to learn, step by step.
    """

    rate: float = 1e-3
    decay: float = 0.0
    momentum: float | None = None
    betas: tuple[float, float] | None = None
    eps: float = 1e-8
    warmup: int = 0
    schedule: ScheduleKind = "constant"
    dropout: float = 0.0
    tokens: tuple[int, ...] | None = None
    faults: tuple[InjectedFault, ...] = ()
    checkpoint: int | None = None
    # Arrays cannot be compared with a single `==`, and are too large to print.
    initial: Mapping[str, Array] | None = field(default=None, compare=False, repr=False)
    batches: Array | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """Settings of a training step: model, batch, parallelism, precision, optimizer, framework.

    Attributes
    ----------
    seq_len, micro_batch_size, accumulation : int
        Tokens per sequence, sequences per rank and micro-batch, micro-batches per step.
    parallelism : Parallelism
        Sharding of the model itself over ranks.
    checkpointing : Checkpointing
        Name of a policy, k for every k-th layer, layers, or pairs of a policy and its layers.
    attention_generation : int
        Generation of the flash attention kernels: 1, 2 or 3.
    collectives : {"auto", "played", "closed_form"}
        Whether collectives are simulated or take their closed form; "auto" decides for each.
    algorithm : str or Algorithm
        Algorithm of every collective: its name, a file's absolute path, or its record; "auto" for the machine's choice.
    compiled : bool
        Whether a compiler merges fusible kernels.
    allocator : {"caching", "expandable_segments"}
        Strategy of the HBM allocator.
    framework : Framework
        Overheads added to bare kernels.
    offload : Offload or None
        Keep optimizer states in host memory; None to keep them on the GPU.
    activations_on_host : bool
        Whether saved activations of layers wait for the backward pass in host memory.
    loss_scaling : LossScaling or None
        If given, gradients are unscaled and checked for overflow before the update.
    loss : {"separate", "narrow", "native", "fused", "in_place", "chunked"} or None
        Kernels of the loss, see step/kernels/loss_operations.py; None for the framework's.
    logit_shift : {"none", "before_cast", "after_cast"}
        Copy of the logits without each sequence's last token.
    float32_outputs : bool
        Whether the model returns a float32 copy of its logits.
    use_cache : bool
        Whether recomputed layers return keys and values, which stay allocated until the loss has been computed.
    clip_norm : float or None
        Largest norm of the gradient; None for no clipping.
    steps : int
        Number of steps, for asynchronous workers and real training.
    lesson : TrainingTask or None
        Real training, whose arrays the program carries; None to simulate times only.
    trained : TrainedParts or None
        Trained parameters, others are frozen; None if all are trained.
    saves : bool
        Whether a checkpoint travels to the host and the storage during the step.
    paged_out : tuple of int
        Bytes of a paged optimizer's states that the ranks of each pipeline stage hold on the host between updates;
        empty if all states are on the GPU [B].
    tokens_used : float
        Share of the batch's tokens that are not padding, above 0 to 1; no time depends on it.
    """

    model: Model
    seq_len: int
    micro_batch_size: int
    accumulation: int = 1
    sharding: Sharding = ZERO3
    precision: Precision = Precision()
    checkpointing: Checkpointing = "none"
    attention: AttentionKernels = "flash"
    attention_generation: int = 2
    optimizer: Optimizer = ADAM
    collectives: Literal["auto", "played", "closed_form"] = "auto"
    compiled: bool = False
    dropout: bool = False
    allocator: Literal["caching", "expandable_segments"] = "caching"
    framework: Framework = BARE
    offload: Offload | None = None
    activations_on_host: bool = False
    loss_scaling: LossScaling | None = None
    loss: LossKernels | None = None
    logit_shift: LogitShift = "none"
    float32_outputs: bool = False
    use_cache: bool = False
    clip_norm: float | None = None
    algorithm: str | Algorithm = "auto"
    steps: int = 20
    lesson: TrainingTask | None = None
    parallelism: Parallelism = ALONE
    trained: TrainedParts | None = None
    tokens_used: float = 1.0
    paged_out: tuple[int, ...] = ()
    saves: bool = False

    @property
    def transformer(self) -> Transformer:
        """The model of a step that only a transformer can take.

        Raises
        ------
        TypeError
            The model is a list of layers.
        """
        if not isinstance(self.model, Transformer):
            raise TypeError(f"{self.model.name} is a list of layers; this needs a transformer")
        return self.model

    @property
    def copies_to_host(self) -> bool:
        """True if ranks copy arrays to their hosts and back."""
        return self.offload is not None or self.activations_on_host or any(self.paged_out)

    @property
    def loss_kernels(self) -> LossKernels:
        """Kernels of the loss: the chosen ones, or the framework's."""
        return self.loss or ("fused" if self.framework.fused_loss else "separate")

    @property
    def trained_dtype(self) -> str:
        """Dtype of the trained parameters: the adapters' own, or the working parameters'."""
        return self.precision.params if self.model.adapters is None else self.model.adapters.dtype

    @property
    def deferred(self) -> int:
        """Number of micro-batches of a step whose weight gradient of the head is computed after the last backward pass;
        0 without a pipeline.
        """
        asked = self.parallelism.deferred_head_gradients
        wanted = self.accumulation if asked == "all" else min(asked, self.accumulation)
        return wanted if self.parallelism.pp > 1 else 0

    @property
    def trains_head(self) -> bool:
        """True if a transformer's head has a weight gradient; a tied head has the embedding's token table."""
        if not isinstance(self.model, Transformer) or self.model.adapters is not None:
            return False
        name, parameter = ("embedding", "token") if self.model.tied else ("head", "head.weight")
        return self.trained is None or parameter in self.trained.of(name)

    @property
    def rounds(self) -> int:
        """Optimizer steps in a program: several for asynchronous workers, because their steps overlap; otherwise 1."""
        return self.steps if self.sharding.asynchronous else 1


class State(Enum):
    """Kind of model state (optimizer states, gradients, parameters), in the order in which ZeRO's stages shard them
    (Rajbhandari et al., SC 2020).
    """

    OPTIMIZER = "optimizer states"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"


class Updater(Enum):
    """Place of the optimizer's update: on every rank in full, on the rank that owns a shard, or on parameter
    servers.
    """

    EVERY_RANK = "every rank updates the whole model"
    OWNERS = "every rank updates its own part"
    SERVERS = "every server updates its own part"


class Gathering(Enum):
    """Way in which updated parameters reach a rank: by an all-gather after the update, by gathers before use, by a
    pull, or no gather at all.
    """

    NOT_NEEDED = "no gather, because every rank updates all parameters"
    AFTER_UPDATE = "a single all-gather after the update"
    BEFORE_USE = "each unit is gathered before its use"
    PULLED = "workers pull the parameters from the servers"


class GradientSync(Enum):
    """Micro-batches of a step that communicate gradients: every micro-batch, or only the last."""

    LAST = "the last micro-batch"
    EVERY = "every micro-batch"
