"""Which records describe a training step? Model, sharding, precision, optimizer, offload and faults, in SI units.

The records contain no computation; scenario/ builds them from a scenario's keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from simulator.collectives.algorithm import Algorithm
from simulator.model.head import LogitShift
from simulator.model.model import Model
from simulator.model.operation import AttentionKernels
from simulator.model.shape import Transformer
from simulator.model.trained import TrainedParts
from simulator.step.framework import BARE, Framework
from simulator.step.learning_spec import LossScaling, TrainingTask
from simulator.step.optimizers.adam import ADAM
from simulator.step.optimizers.optimizer import Optimizer
from simulator.step.parallelism import ALONE, Parallelism
from simulator.step.precision import MIXED, Precision
from simulator.step.sharding import ZERO3, Sharding

LossKernels = Literal["separate", "narrow", "native", "fused", "in_place", "chunked"]
# A policy for every layer; k to recompute every k-th layer; layers to recompute; or pairs (policy, layers).
Checkpointing = str | int | tuple[int, ...] | tuple[tuple[str, tuple[int, ...]], ...]


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
    experts_in_node : int
        Consecutive expert-parallel ranks on each node; 0 if nodes are unknown, or have unequal numbers of these ranks.
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
    precision: Precision = MIXED
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
    experts_in_node: int = 0

    @property
    def is_list_of_layers(self) -> bool:
        """Return True if the model is a list of layers, and no transformer."""
        return not isinstance(self.model, Transformer)

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
        setting = self.parallelism.deferred_head_gradients
        count = self.accumulation if setting == "all" else min(setting, self.accumulation)
        return count if self.parallelism.pp > 1 else 0

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
