"""Which keyword arguments does a scenario from Python take, and of which types? For editors and type checkers.

One class for each mapping in records.py, with the same keys; a test compares them. The keys are explained in
records.py. Values are written like in a file, therefore quantities are text with a unit. Names listed from folders are
plain text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict

Dtype = Literal[
    "bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int32", "int64", "int8", "uint8"
]
Operation = Literal[
    "all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"
]
WorkingDtype = Literal["float64", "float32", "float16", "bfloat16"]
Finding = Literal["change", "best", "effect", "threshold", "value", "fit", "learned"]


class FindingKeys(TypedDict, total=False):
    """Types of the keys of an entry in `answer`, for scenarios made in Python."""

    finding: Required[Finding]
    of: Sequence[str]
    along: str
    between: Sequence[Any]
    margin: float  # a share: 0.05 is 5 %


class BudgetKeys(TypedDict, total=False):
    """Types of the keys of `budget`, for scenarios made in Python."""

    tokens: float
    steps: float
    price: float  # of a GPU hour
    watts: float  # of a GPU [W]


class PlanKeys(TypedDict, total=False):
    """Types of the keys of `plan`, for scenarios made in Python."""

    global_batch: Required[int | str]  # tokens: "4M"; sequences: "512seq"
    fix: Mapping[str, Any]
    among: Mapping[str, Sequence[Any]]
    without: Sequence[str]
    best: int
    deadline: float | str  # days: 30, "6w"
    sensitivity: bool


class PlotsKeys(TypedDict, total=False):
    """Types of the keys of `plots`, for scenarios made in Python."""

    kinds: Sequence[str]
    points: Literal["all"] | Sequence[Mapping[str, Any]]


class ScenarioKeys(TypedDict, total=False):
    """Types of the keys of the scenario itself, for scenarios made in Python."""

    name: str
    question: str
    seed: int
    engine: Literal["auto", "events", "compiled"]
    compare: Mapping[str, Sequence[Any]]  # dotted key: values
    sweep: Mapping[str, Sequence[Any]]
    plots: Sequence[str] | PlotsKeys
    baseline: Mapping[str, Any]
    answer: Sequence[Finding | FindingKeys]
    budget: BudgetKeys
    plan: PlanKeys


class JitterKeys(TypedDict, total=False):
    """Types of the keys of `jitter`: sigma of the log-normal factors on kernel times and latencies."""

    compute: float
    latency: float


class EcmpKeys(TypedDict):
    """Types of the keys of `ecmp`, for scenarios made in Python."""

    hash: int


class ClusterKeys(TypedDict, total=False):
    """Types of the keys of `cluster`, for scenarios made in Python."""

    topology: Required[str | Mapping[str, Any]]
    world_size: Required[int | str]  # or "16k", which is 16,000
    gpu: str | Mapping[str, Any]
    stragglers: Mapping[int, float]  # rank: factor on its speed
    link_factors: Mapping[str, float]  # "gpu0->switch0": factor on its bandwidth
    jitter: JitterKeys
    placement: Sequence[int]
    ecmp: EcmpKeys


class ServersKeys(TypedDict, total=False):
    """Types of the keys of a collective's `servers`, for scenarios made in Python."""

    count: int
    on: Literal["own", "workers"]


class FusionKeys(TypedDict, total=False):
    """Types of the keys of `fusion`, for scenarios made in Python."""

    buffer: str  # "64 MiB"
    cycle: str  # "5 ms"
    buckets: str  # "25 MiB"


class CollectiveKeys(ScenarioKeys, ClusterKeys, total=False):
    """Types of the keys of `collective`, `cluster` and the scenario, for scenarios made in Python."""

    operation: Required[Operation]
    algorithm: str
    size: str  # the whole array: "256 MiB"
    dtype: Dtype
    reduction: Literal["sum", "average", "max", "min", "product"]
    accumulate: Literal["payload", "float32"]
    payload: Literal["auto", True, False]
    servers: ServersKeys
    rank_order: Sequence[int]
    chunks: int
    root: int
    group: Sequence[int]
    group_size: int
    tensors: Sequence[str]  # ["4 MiB", "1 MiB"]
    fusion: FusionKeys


class ExpertsKeys(TypedDict, total=False):
    """Types of the keys of `parallelism.experts`, for scenarios made in Python."""

    dispatch: Literal["all_to_all", "all_gather", "deduplicated"]
    capacity: Literal["none"] | float
    imbalance: float | Mapping[str, float]
    dtype: Literal["auto", "bfloat16", "float8_e4m3fn"]


class ParallelismKeys(TypedDict, total=False):
    """Types of the keys of `parallelism`; sizes in ranks, for scenarios made in Python."""

    dp: int | str
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    experts: ExpertsKeys
    sequence_parallel: bool
    tp_overlap: Literal["none", "ring_exchange", "bulk"]
    schedule: str
    virtual_stages: int
    microbatch_group: int
    stages: Literal["auto"] | Sequence[int] | Mapping[str, int]
    context: Literal["ring", "all_gather", "ulysses"] | Mapping[str, int]
    balanced: bool
    order: Sequence[Literal["tp", "cp", "ep", "dp", "pp"]]


class ShardingKeys(TypedDict, total=False):
    """Types of the keys of `sharding`, for scenarios made in Python."""

    strategy: str
    reshard_after_forward: bool | int
    prefetch: int
    bucket_size: str  # "25 MiB"
    shard_size: int
    layers_per_unit: int
    keep_below: int
    gradient_sync: Literal["every", "shard", "last"]
    servers: int
    servers_on: Literal["own", "workers"]
    asynchronous: bool
    staleness: int


class PrecisionKeys(TypedDict, total=False):
    """Types of the keys of `precision`, for scenarios made in Python."""

    params: WorkingDtype
    grads: WorkingDtype | Literal["auto"]
    reduce: WorkingDtype | Literal["auto"]
    master: WorkingDtype | Literal["auto"] | None
    matmul: WorkingDtype | Literal["tf32", "float8_e4m3fn", "float8_e5m2", "auto"]


class OptimizerKeys(TypedDict, total=False):
    """Types of the keys of `optimizer`, for scenarios made in Python."""

    name: Literal["sgd", "momentum", "adam", "adamw", "adafactor"]
    implementation: Literal["auto", "fused", "foreach", "for_loop"]


class OffloadKeys(TypedDict, total=False):
    """Types of the keys of `offload`, for scenarios made in Python."""

    what: Literal["none", "optimizer"]
    host_rate: str  # "100 GB/s"


class LossScalingKeys(TypedDict, total=False):
    """Types of the keys of `loss_scaling`, for scenarios made in Python."""

    rule: Literal["auto", "none", "dynamic", "deepspeed", "static"]
    start: float
    interval: int
    shared: bool


class LearningKeys(TypedDict, total=False):
    """Types of the keys of `learning`, for scenarios made in Python."""

    rate: float
    decay: float
    momentum: float
    betas: Sequence[float]
    eps: float
    warmup: int | str
    schedule: Literal["constant", "linear", "cosine"]
    tokens: str | Sequence[int]
    batches: str
    initial: str


class FaultKeys(TypedDict, total=False):
    """Types of the keys of an entry in `faults`, for scenarios made in Python."""

    step: Required[int]
    what: Required[Literal["dropped", "doubled", "stale", "bit_flip", "overflow", "stopped"]]
    collective: str
    transfer: int
    element: int
    bit: int
    rank: int


class TrainingKeys(ScenarioKeys, ClusterKeys, total=False):
    """Types of the keys of `training`, `cluster` and the scenario, for scenarios made in Python."""

    model: Required[str | Mapping[str, Any]]
    seq_len: Required[int | str]  # tokens; or "8k", which is 8,192
    micro_batch_size: int
    gradient_accumulation_steps: int | str
    global_batch: int | str  # tokens: "4M"; sequences: "512seq"
    parallelism: ParallelismKeys
    sharding: str | ShardingKeys
    precision: Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"] | PrecisionKeys
    activation_checkpointing: str | Mapping[str, Any] | Sequence[int]
    attention: Literal["flash", "standard"]
    attention_generation: int
    optimizer: Literal["sgd", "momentum", "adam", "adamw", "adafactor"] | OptimizerKeys
    collectives: Literal["auto", "played", "closed_form"]
    algorithm: str
    compile: bool
    dropout: bool | float
    framework: str
    allocator: Literal["caching", "expandable_segments"]
    offload: Literal["none", "optimizer"] | OffloadKeys
    loss_scaling: Literal["auto", "none", "dynamic", "deepspeed", "static"] | LossScalingKeys
    clip_norm: float
    numerics: bool
    steps: int | str
    learning: LearningKeys
    faults: Sequence[FaultKeys]
