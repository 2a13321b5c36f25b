"""The records that describe one training step: model, sharding, precision, optimizer, offload, faults, in SI units.

Rule: nothing is computed here; scenario/ makes these from text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

from simulator.model.shape import Transformer
from simulator.step.framework import BARE, Framework, Implementation
from simulator.step.parallelism import ALONE, Parallelism

if TYPE_CHECKING:
    from simulator.basics.arrays import Array

FaultKind = Literal["dropped", "doubled", "stale", "bit_flip", "overflow", "stopped"]
ScheduleKind = Literal["constant", "linear", "cosine"]
# A policy for all layers, k for every k-th in full, those in full, or policies with the layers of each.
Checkpointing = str | int | tuple[int, ...] | tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Sharding:
    """How model states are spread over data-parallel ranks.

    Attributes
    ----------
    strategy : str
        A name of the strategies' catalog: "ddp", "zero3", ...
    reshard_after_forward : bool or int
        zero3: whether a layer's parameters are freed between forward and backward; or over how many neighbouring ranks
        they are spread meanwhile.
    prefetch : int
        zero3: units that are gathered ahead of the one at work.
    bucket_size : int
        Gradients that travel together, for all but zero3 [B].
    shard_size : int or None
        zero3: ranks that share one copy of the states (hybrid sharding); None for all.
    layers_per_unit : int
        zero3: layers that are gathered and freed together.
    keep_below : int
        zero3: tensors with fewer elements stay whole on every rank.
    gradient_sync : {"every", "shard", "last"}
        zero3, of several micro-batches: each sums its gradients over all ranks; each inside its shard group, and the
        last one over the copies; the last one alone, and whole gradients are kept until then.
    servers : int
        parameter_server: among how many servers parameters are divided.
    servers_on : {"own", "workers"}
        On machines of their own, or on workers: one in each node before a node gets a second.
    asynchronous : bool
        parameter_server: whether a gradient is applied as it arrives, and its worker goes on with what is there then.
    staleness : int or None
        asynchronous: by how many steps a worker may be ahead of the slowest; None: by any number.
    """

    strategy: str = "zero3"
    reshard_after_forward: bool | int = True
    prefetch: int = 1
    bucket_size: int = 25 * 2**20
    shard_size: int | None = None
    layers_per_unit: int = 1
    keep_below: int = 0
    gradient_sync: Literal["every", "shard", "last"] = "every"
    servers: int = 1
    servers_on: Literal["own", "workers"] = "own"
    asynchronous: bool = False
    staleness: int | None = None

    @property
    def mesh(self) -> int | None:
        """Ranks over which parameters are spread between forward and backward, where that is a number of its own."""
        return None if isinstance(self.reshard_after_forward, bool) else self.reshard_after_forward


@dataclass(frozen=True, slots=True)
class Precision:
    """Dtypes of a step.

    Attributes
    ----------
    params, grads : str
        Of the working parameters (and activations and matmuls), and of gradients as they are accumulated.
    reduce : str
        Of gradients on the wire.
    master : str or None
        Of the optimizer's copy of the parameters; None where params are it.
    matmul : str
        Of matmuls' inputs: params', or an fp8 dtype.
    """

    params: str = "bfloat16"
    grads: str = "bfloat16"
    reduce: str = "float32"
    master: str | None = "float32"
    matmul: str = "bfloat16"

    @property
    def updated(self) -> str:
        """Dtype of what the optimizer updates: the master copy, or working parameters where they are it."""
        return self.master or self.params


@dataclass(frozen=True, slots=True)
class SeparateKernels:
    """Kernels of an update that runs one kernel for each arithmetic operation, and their HBM traffic.

    Attributes
    ----------
    kernels : int
        Kernels for each tensor.
    parameters, gradients : int
        How often the number that is updated, and its gradient, are read or written.
    numbers : int
        How often a float32 number, which is a state or a temporary, is read or written for each parameter.
    temporaries : int
        Most float32 temporaries that are held at once for each parameter.
    """

    kernels: int
    parameters: int
    gradients: int
    numbers: int
    temporaries: int = 0


@dataclass(frozen=True, slots=True)
class Optimizer:
    """What an optimizer keeps and moves for each parameter.

    Attributes
    ----------
    name : str
    states : int
        float32 numbers kept for each parameter beside the master copy.
    separate : SeparateKernels
        Kernels of the implementations "foreach" and "for_loop".
    has_fused : bool
        Whether PyTorch or Apex has one kernel for the whole update.
    implementation : {"fused", "foreach", "for_loop"} or None
        One kernel that reads and writes everything once; a kernel for each arithmetic operation, over all tensors; such
        a kernel for each tensor. None: what the framework takes by default.
    """

    name: str
    states: int
    separate: SeparateKernels
    has_fused: bool = True
    implementation: Implementation | None = None


# Adam keeps momentum and variance; momentum SGD one of them. Adafactor keeps rows and columns, next to nothing
# (Shazeer & Stern, arXiv:1804.04235).
# Kernels as in PyTorch 2.5, torch/optim, without amsgrad, dampening and Nesterov's momentum; p parameter, g gradient,
# m and v Adam's moments, b the momentum buffer, d a temporary. Each access of a number by a kernel counts one.
# Adam (with decoupled decay): p *= c (p 2); m.lerp_(g) (m 2, g 1); v *= c (v 2); v.addcmul_(g, g) (v 2, g 1);
# d = sqrt(v) (v 1, d 1); d /= c (d 2); d += eps (d 2); p.addcdiv_(m, d) (p 2, m 1, d 1): 4 p, 2 g, 14 others.
# Momentum: b *= c (b 2); b += g (b 2, g 1); p -= rate b (p 2, b 1). SGD: p -= rate g (p 2, g 1).
# Adafactor: p *= c (p 2); norms of g by rows and by columns (g 2); d = rows x columns (d 1); d /= mean (d 2);
# d.clamp_() (d 2); d.rsqrt_() (d 2); d *= g (d 2, g 1); |d| (d 1); |p| (p 1); p -= rate d (p 2, d 1), and 9 kernels
# over rows or columns alone.
OPTIMIZERS = {
    one.name: one
    for one in (
        Optimizer("sgd", 0, SeparateKernels(1, 2, 1, 0)),
        Optimizer("momentum", 1, SeparateKernels(3, 2, 1, 5)),
        Optimizer("adam", 2, SeparateKernels(8, 4, 2, 14, temporaries=1)),
        Optimizer("adafactor", 0, SeparateKernels(20, 5, 3, 11, temporaries=1), has_fused=False),
    )
}


@dataclass(frozen=True, slots=True)
class Offload:
    """Optimizer states in the host's memory, and its processors to update them.

    Attributes
    ----------
    host_rate : float
        Bytes of states that a node's processors read and write each second while they update [B/s].
    """

    # Four nodes of A100 update 72.7 billion parameters, 28 bytes each, in some 10 s
    # (github.com/deepspeedai/DeepSpeed/issues/6834, Qwen 72B with ZeRO-3 on 32 A100). Others see from 0.4 to 4 billion
    # parameters a second and node, which is 11 to 110 GB/s.
    host_rate: float = 50e9


@dataclass(frozen=True, slots=True)
class LossScaling:
    """How the loss is scaled so that float16 holds small gradients.

    Attributes
    ----------
    rule : {"dynamic", "deepspeed", "static"}
        PyTorch's GradScaler, DeepSpeed's scaler, or always the same.
    start : float
        The first scale.
    interval : int or None
        Clean steps until it grows; None: the rule's own.
    shared : bool
        Whether ranks tell each other of an overflow, and all skip the step.
    """

    rule: Literal["dynamic", "deepspeed", "static"] = "dynamic"
    start: float = 65536.0
    interval: int | None = None
    shared: bool = True


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """Something that goes wrong in one step of real training.

    Attributes
    ----------
    step : int
        From 0.
    what : {"dropped", "doubled", "stale", "bit_flip", "overflow", "stopped"}
        A transfer does not arrive, is added twice, brings what it brought a step before, or with one bit turned; a
        gradient of a rank becomes infinite; a rank stops.
    collective : str or None
        Whose transfer; None: the first that sums gradients.
    transfer, element, bit : int
        Which transfer of it, element of what that brings, and bit of that, 0 the least. Of an overflow: which element,
        row after row, of the head's gradient, or of the last norm's bias where the head is tied.
    rank : int
        That stops, or whose gradient overflows.
    """

    step: int
    what: FaultKind
    collective: str | None = None
    transfer: int = 0
    element: int = 0
    bit: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Lesson:
    """What real training is about; times do not depend on it.

    Attributes
    ----------
    rate : float
        Of learning.
    decay : float
        Of weights: beside the gradient with adam, as part of it with sgd and momentum.
    momentum : float
        Of the optimizer of that name.
    betas, eps : tuple of float, float
        Adam's: how much of momentum and variance stays each step; what is added to the root of the variance.
    warmup, schedule : int, {"constant", "linear", "cosine"}
        Steps in which the rate rises, and how it falls from there; see `simulator.numerics.schedule`.
    dropout : float
    tokens : tuple of int, or None
        What to learn, one text; None: a seeded task.
    faults : tuple of InjectedFault
    initial : mapping of PyTorch's name to array, or None
        Parameters before the first step; None: from the seed.
    batches : int array, shape (steps, sequences of all ranks, seq_len + 1), or None
        What to learn, step by step.
    """

    rate: float = 1e-3
    decay: float = 0.0
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    warmup: int = 0
    schedule: ScheduleKind = "constant"
    dropout: float = 0.0
    tokens: tuple[int, ...] | None = None
    faults: tuple[InjectedFault, ...] = ()
    # Arrays have no one answer to "equal?", and too many numbers to be shown.
    initial: Mapping[str, Array] | None = field(default=None, compare=False, repr=False)
    batches: Array | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One optimizer step of every rank.

    Attributes
    ----------
    model : Transformer
    seq_len, micro_batch_size, accumulation : int
        Tokens a sequence, sequences a rank and micro-batch, micro-batches a step.
    parallelism : Parallelism
        How the model is cut over ranks.
    sharding : Sharding
    precision : Precision
    checkpointing : Checkpointing
        A policy's name, k for every k-th layer, the layers, or pairs of a policy and its layers.
    attention : {"flash", "standard"}
    attention_generation : int
        Of flash attention's kernels: 1, 2 or 3.
    optimizer : Optimizer
    collectives : {"auto", "played", "closed_form"}
    algorithm : str
        Of all collectives; "auto" for what the machine would take.
    compiled : bool
        Whether a compiler merges fusible kernels.
    dropout : bool
    allocator : {"caching", "expandable_segments"}
        How HBM is handed out.
    framework : Framework
        What it adds to bare kernels.
    offload : Offload or None
        Where optimizer states live: with the host, or on the GPU.
    loss_scaling : LossScaling or None
        With it, gradients are unscaled and checked for overflow before the update.
    clip_norm : float or None
        To which the gradient's norm is brought down where it is larger.
    steps : int
        How many of them workers take that wait for nobody, and a real training.
    lesson : Lesson or None
        Of a real training, whose arrays the program carries; None: times alone.
    """

    model: Transformer
    seq_len: int
    micro_batch_size: int
    accumulation: int = 1
    sharding: Sharding = Sharding()
    precision: Precision = Precision()
    checkpointing: Checkpointing = "none"
    attention: Literal["flash", "standard"] = "flash"
    attention_generation: int = 2
    optimizer: Optimizer = OPTIMIZERS["adam"]
    collectives: Literal["auto", "played", "closed_form"] = "auto"
    compiled: bool = False
    dropout: bool = False
    allocator: Literal["caching", "expandable_segments"] = "caching"
    framework: Framework = BARE
    offload: Offload | None = None
    loss_scaling: LossScaling | None = None
    clip_norm: float | None = None
    algorithm: str = "auto"
    steps: int = 20
    lesson: Lesson | None = None
    parallelism: Parallelism = ALONE

    @property
    def rounds(self) -> int:
        """Optimizer steps of a worker that one plan covers: where nobody waits, steps cannot be told apart."""
        return self.steps if self.sharding.asynchronous else 1


class State(Enum):
    """Model states, in the order in which ZeRO's stages shard them [1]_."""

    OPTIMIZER = "optimizer states"
    GRADIENTS = "gradients"
    PARAMETERS = "parameters"


class Updater(Enum):
    """Who runs the optimizer."""

    EVERY_RANK = "every rank updates the whole model"
    OWNERS = "every rank updates its own part"
    SERVERS = "servers update, each its own part"


class Gathering(Enum):
    """How parameters that others have updated reach a rank."""

    NOT_NEEDED = "every rank has updated all of them itself"
    AFTER_UPDATE = "one all-gather behind the update"
    BEFORE_USE = "each unit is gathered when its turn comes"
    PULLED = "workers pull them from the servers"


class Sending(Enum):
    """Which micro-batches of a step communicate gradients."""

    LAST = "the last micro-batch"
    EVERY = "every micro-batch"
