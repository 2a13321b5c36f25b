"""What one training step is: records, with SI numbers and resolved models.

Rule: nothing is computed here. The scenario boundary makes these from text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from simulator.model.shape import Transformer
from simulator.training.framework import BARE, Framework

Strategy = Literal["ddp", "zero1", "zero2", "zero3", "parameter_server"]
# A policy for all layers, k for every k-th in full, those in full, or policies with the layers of each.
Checkpointing = str | int | tuple[int, ...] | tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Sharding:
    """How model states are spread over data-parallel ranks.

    Attributes
    ----------
    strategy : {"ddp", "zero1", "zero2", "zero3", "parameter_server"}
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
        On machines of their own, or on the first workers' hosts.
    """

    strategy: Strategy = "zero3"
    reshard_after_forward: bool | int = True
    prefetch: int = 1
    bucket_size: int = 25 * 2**20
    shard_size: int | None = None
    layers_per_unit: int = 1
    keep_below: int = 0
    gradient_sync: Literal["every", "shard", "last"] = "every"
    servers: int = 1
    servers_on: Literal["own", "workers"] = "own"

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


@dataclass(frozen=True, slots=True)
class Optimizer:
    """States that an optimizer keeps for each parameter.

    Attributes
    ----------
    name : str
    states : int
        float32 numbers kept for each parameter beside the master copy.
    """

    name: str
    states: int


# Adam keeps momentum and variance; momentum SGD one of them. Adafactor keeps rows and columns, next to nothing
# (Shazeer & Stern, arXiv:1804.04235).
OPTIMIZERS = {
    o.name: o for o in (Optimizer("sgd", 0), Optimizer("momentum", 1), Optimizer("adam", 2), Optimizer("adafactor", 0))
}


@dataclass(frozen=True, slots=True)
class Offload:
    """Optimizer states in the host's memory, and its processors to update them.

    Attributes
    ----------
    host_rate : float
        Bytes of states that a box's processors read and write each second while they update [B/s].
    """

    # Four boxes of A100 update 72.7 billion parameters, 28 bytes each, in some 10 s
    # (github.com/deepspeedai/DeepSpeed/issues/6834, Qwen 72B with ZeRO-3 on 32 A100). Others see from 0.4 to 4 billion
    # parameters a second and box, which is 11 to 110 GB/s.
    host_rate: float = 50e9


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """One optimizer step of every rank.

    Attributes
    ----------
    model : Transformer
    seq_len, micro_batch_size, accumulation : int
        Tokens a sequence, sequences a rank and micro-batch, micro-batches a step.
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
    loss_scaling : bool
        Whether gradients are unscaled and checked for overflow before the update.
    steps : int
        Of real training, whose arrays the program carries; 0: times alone.
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
    loss_scaling: bool = False
    algorithm: str = "auto"
    steps: int = 0
