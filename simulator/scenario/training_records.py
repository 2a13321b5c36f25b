"""What `training` says in a scenario, as frozen records whose fields are named like the keys of the file.

Rule: as in records.py; the model is still a name, and what follows from another key is still "auto".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from simulator.step.rank_grid import ORDER
from simulator.step.spec import Checkpointing, InjectedFault, Lesson, LossScaling, Offload, ScheduleKind, Sharding


@dataclass(frozen=True, slots=True)
class ExpertsSpec:
    """How tokens get to experts; see `simulator.model.cut.ExpertCut`.

    Attributes
    ----------
    dispatch : str
    capacity : float or None
    imbalance : float or mapping
    dtype : str
        "auto" for that of activations.
    """

    dispatch: Literal["all_to_all", "all_gather", "deduplicated"] = "all_to_all"
    capacity: float | None = None
    imbalance: float | Mapping[str, float] = 1.0
    dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class ParallelismSpec:
    """Ranks of each kind of parallelism, and how they work together; see `simulator.step.parallelism.Parallelism`.

    Attributes
    ----------
    dp : int or None
        Data-parallel ranks; None: all that the others leave.
    tp, pp, cp, ep : int
    etp : int or None
        Ranks that cut the matrices of one expert; None: tp.
    sequence_parallel : bool
    tp_overlap, schedule : str
    virtual_stages : int
    microbatch_group : int or None
    stages : "auto", tuple of int, or mapping
        Layers of each stage, or how many less the first and the last have.
    experts : ExpertsSpec
    context : str or mapping
        How attention sees sequences that are cut.
    balanced : bool
    order : tuple of str
    """

    dp: int | None = None
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    sequence_parallel: bool = True
    tp_overlap: str = "none"
    schedule: str = "1f1b"
    virtual_stages: int = 1
    microbatch_group: int | None = None
    stages: str | tuple[int, ...] | Mapping[str, int] = "auto"
    experts: ExpertsSpec = ExpertsSpec()
    context: str | Mapping[str, int] = "ring"
    balanced: bool = True
    order: tuple[str, ...] = ORDER


@dataclass(frozen=True, slots=True)
class PrecisionSpec:
    """Dtypes of a step; "auto" follows `params`, which an axis may change, or of `reduce` `grads`.

    Attributes
    ----------
    params, grads, reduce : str
    master : str or None
        None where there is no copy.
    matmul : str
    """

    params: str = "bfloat16"
    grads: str = "auto"
    reduce: str = "auto"
    master: str | None = "auto"
    matmul: str = "auto"


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """Which optimizer, and how its update runs; see `simulator.step.spec.Optimizer`.

    Attributes
    ----------
    name : str
    implementation : {"auto", "fused", "foreach", "for_loop"}
        auto: what the framework takes by default.
    """

    name: str = "adam"
    implementation: Literal["auto", "fused", "foreach", "for_loop"] = "auto"


@dataclass(frozen=True, slots=True)
class OffloadSpec:
    """What the host keeps; see `simulator.step.spec.Offload`.

    Attributes
    ----------
    what : {"none", "optimizer"}
    host_rate : float
        [B/s]
    """

    what: Literal["none", "optimizer"] = "none"
    host_rate: float = Offload().host_rate


@dataclass(frozen=True, slots=True)
class LossScalingSpec:
    """How the loss is scaled; see `training.spec.LossScaling`.

    Attributes
    ----------
    rule : {"auto", "none", "dynamic", "deepspeed", "static"}
        auto: dynamic where parameters are float16, else none.
    start : float
    interval : int or None
    shared : bool
    """

    rule: Literal["auto", "none", "dynamic", "deepspeed", "static"] = "auto"
    start: float = LossScaling().start
    interval: int | None = None
    shared: bool = True


@dataclass(frozen=True, slots=True)
class LearningSpec:
    """What is learned, and how fast; see `training.spec.Lesson`.

    Attributes
    ----------
    rate, decay, momentum : float
    betas : tuple of float
    eps : float
    warmup : int
    schedule : {"constant", "linear", "cosine"}
    tokens : str, tuple of int, or None
        A path, token numbers, or a seeded task.
    batches, initial : str or None
        Paths of an .npy and an .npz file.
    """

    rate: float = Lesson().rate
    decay: float = Lesson().decay
    momentum: float = Lesson().momentum
    betas: tuple[float, float] = Lesson().betas
    eps: float = Lesson().eps
    warmup: int = Lesson().warmup
    schedule: ScheduleKind = Lesson().schedule
    tokens: str | tuple[int, ...] | None = None
    batches: str | None = None
    initial: str | None = None

    @property
    def files(self) -> tuple[str, ...]:
        """Paths that it names."""
        return tuple(path for path in (self.tokens, self.batches, self.initial) if isinstance(path, str))


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """One training step, as in the file; `to_step` makes the record that is planned.

    Attributes
    ----------
    model : str or mapping
        A catalog name, a path, or the keys of a config.json.
    seq_len, micro_batch_size, gradient_accumulation_steps : int
    global_batch : str or None
        As it was written; then the steps of accumulation are those that follow from it.
    parallelism : ParallelismSpec
    sharding : Sharding
    precision : PrecisionSpec
    activation_checkpointing : Checkpointing
        A policy's name, k for every k-th layer, the layers, or pairs of a policy and its layers.
    attention : {"flash", "standard"}
    attention_generation : int
    optimizer : OptimizerSpec
    collectives : {"auto", "played", "closed_form"}
    framework : str
        Whose fitted constants slow kernels down; "bare" for none.
    allocator : {"caching", "expandable_segments"}
    compile : bool
    dropout : bool or float
        Whether there is any, or its probability.
    offload : OffloadSpec
    loss_scaling : LossScalingSpec
    clip_norm : float or None
    algorithm : str
        Of all collectives.
    numerics : bool
        Whether a real model trains.
    steps : int
        For so many steps; also of workers that do not wait for each other.
    learning : LearningSpec
    faults : tuple of InjectedFault
    """

    model: str | Mapping[str, Any]
    seq_len: int
    micro_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    global_batch: str | None = None
    parallelism: ParallelismSpec = field(default_factory=ParallelismSpec)
    sharding: Sharding = field(default_factory=Sharding)
    precision: PrecisionSpec = PrecisionSpec()
    activation_checkpointing: Checkpointing = "none"
    attention: Literal["flash", "standard"] = "flash"
    attention_generation: int = 2
    optimizer: OptimizerSpec = OptimizerSpec()
    collectives: Literal["auto", "played", "closed_form"] = "auto"
    compile: bool = False
    dropout: bool | float = False
    framework: str = "torchtitan"
    allocator: Literal["caching", "expandable_segments"] = "caching"
    offload: OffloadSpec = OffloadSpec()
    loss_scaling: LossScalingSpec = LossScalingSpec()
    clip_norm: float | None = None
    algorithm: str = "auto"
    numerics: bool = False
    steps: int = 20
    learning: LearningSpec = LearningSpec()
    faults: tuple[InjectedFault, ...] = ()
