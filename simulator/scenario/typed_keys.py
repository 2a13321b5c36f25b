"""Which keyword arguments does a scenario from Python take, and of which types? For editors and type checkers.

Written by `python -m tools.typed_keys` from the schema of scenario files; do not edit. Each class has the keys of a
mapping in a scenario file. Values are written like in a file: quantities are text with a unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict


class BudgetKeys(TypedDict, total=False):
    """Length and prices of a whole training."""

    tokens: float
    """Number of tokens to train on; alternative to steps."""
    steps: float
    """Number of optimizer steps; alternative to tokens."""
    price: float
    """Price per GPU hour, in any currency."""
    watts: float
    """Power per GPU [W], including its share of host, network and cooling."""


class EcmpKeys(TypedDict, total=False):
    """The choice among several equal routes (keys of ecmp)."""

    hash: Required[int]
    """Seed of the hash for the choice among equal routes."""


class EventKeys(TypedDict, total=False):
    """A link, GPU or node that slows down or fails during the step (an entry of events)."""

    at: Required[str]
    """When it begins."""
    lasts: str
    """How long it lasts; for good if omitted."""
    factor: float
    """Factor on the rate meanwhile; 0 is down or dead."""
    link: str
    """Link ('src->dst') or shell pattern of links."""
    rank: int
    """Rank whose GPU slows down."""
    node: int
    """Node whose GPUs slow down."""
    every: str
    """Time from one beginning to the next, for a link that flaps."""
    times: int
    """Number of times that it happens."""
    reroute_after: str
    """Time until transfers take other routes around a link that is down; they wait for it if omitted."""


class ExpertsKeys(TypedDict, total=False):
    """Dispatch of tokens to experts on other ranks (keys of parallelism.experts)."""

    dispatch: Literal["all_to_all", "all_gather", "deduplicated"]
    """Token dispatch: a copy per chosen expert (all_to_all), every token to every rank (all_gather), or a copy per
    node, and in the node per rank (deduplicated)."""
    routing: Literal["uniform", "round_robin"]
    """How tokens choose experts, for deduplicated: any experts are equally probable (uniform), or consecutive experts
    in turn, as balanced benchmarks do (round_robin)."""
    capacity: Literal["none"] | float
    """Capacity of an expert relative to its even share of tokens, with padding; no limit if omitted."""
    imbalance: float | Mapping[str, Any]
    """Load of the fullest rank relative to the mean; {zipf: exponent} for the popularity of experts, with walk
    (deviation by which its logarithm moves each step), steps and, if wanted, seed for a popularity that drifts; or
    {recorded: FILE} for a CSV file of counts with the columns expert and tokens, and layer and step if wanted."""
    dtype: Literal["auto", "bfloat16", "float8_e4m3fn"]
    """Token dtype during dispatch; auto: the activations' dtype."""
    overlap: bool
    """Whether a micro-batch's exchanges overlap with another micro-batch's kernels: a forward pass runs beside the
    preceding micro-batch's backward pass."""


class FaultKeys(TypedDict, total=False):
    """A fault injected in a single step (keys of an entry in faults, for real training)."""

    step: Required[int]
    """Step of the fault, counted from 0."""
    what: Required[Literal["dropped", "doubled", "stale", "bit_flip", "overflow", "stopped"]]
    """Kind of fault: a transfer is dropped, doubled, stale or has a bit_flip; a rank's gradient has an overflow; a rank
    has stopped."""
    collective: str
    """Collective with the faulty transfer; the first collective that sums gradients if omitted."""
    transfer: int
    """Number of the transfer in the collective."""
    element: int
    """Number of the element in the transfer, or in the head's gradient."""
    bit: int
    """Number of the bit in the element; 0 is the least significant bit."""
    rank: int
    """Rank that overflows or stops."""


class FindingKeys(TypedDict, total=False):
    """A finding to report: kind, measures and axis (an entry in answer)."""

    finding: Required[str]
    """Kind of finding: a name, or the path of an own finding."""
    of: Sequence[str]
    """Measures of the report to describe; the finding's usual measures if omitted."""
    along: str
    """Key along which a threshold is searched."""
    above: float
    """threshold: value of the measure to search for, instead of a comparison with the baseline, in the units of the
    report: 0.5 for a share, seconds, bytes, tokens/s."""
    between: Sequence[Any]
    """First and last value of along, if this key is not swept."""
    margin: float
    """Smallest relative difference that counts as worse; 0.05 is 5 %."""


class FusionKeys(TypedDict, total=False):
    """Merging of tensors into a buffer, sent when full or after a time, or into buckets (keys of fusion)."""

    buffer: str
    """Size at which the buffer is sent."""
    cycle: str
    """Longest time until the buffer is sent."""
    buckets: str
    """Size of a bucket; buckets take tensors in order."""


class JitterKeys(TypedDict, total=False):
    """Random factors on kernel times and latencies (keys of jitter)."""

    compute: float
    """Spread sigma of kernel times: each time is multiplied by exp(sigma z)."""
    latency: float
    """Spread sigma of transfer latencies: each latency is multiplied by exp(sigma z)."""


class LearningKeys(TypedDict, total=False):
    """The data, the learning rate and the optimizer's constants (keys of learning, for real training)."""

    rate: float
    """Learning rate."""
    decay: float
    """Weight decay: added to the gradient with sgd and momentum, otherwise applied to the parameters."""
    momentum: float
    """Decay factor of the momentum per step; if omitted 0.95 for muon, else 0.9."""
    betas: Sequence[float]
    """Decay factors of both moving averages per step; if omitted [0.9, 0.99] for lion, else [0.9, 0.999]."""
    eps: float
    """Adam's epsilon, added to the root of the variance."""
    warmup: int | str
    """Number of warm-up steps, in which the rate rises from 0 to rate; 1k is 1000."""
    schedule: Literal["constant", "linear", "cosine"]
    """Course of the rate from the warm-up to the last step: constant, or a decay to 0."""
    checkpoint: int | str
    """Steps between checkpoints; when a rank stops, training goes on from the last, or else ends."""
    tokens: str | Sequence[int]
    """Path of a text or .npy file, or a list of token numbers; a task generated from the seed if omitted."""
    batches: str
    """Path of a .npy file with tokens, shape (steps, sequences of all ranks, seq_len + 1); alternative to tokens."""
    initial: str
    """Path of an .npz file with initial parameters under PyTorch's names; generated from the seed if omitted."""


class LengthsKeys(TypedDict, total=False):
    """Lengths of the documents of a training (keys of training.lengths): a distribution, a file, or a histogram."""

    distribution: Literal["lognormal"]
    """Distribution of lengths: lognormal, with median and sigma."""
    median: int | str
    """Median length in tokens, of a lognormal distribution."""
    sigma: float
    """Standard deviation of the logarithm of lengths; 1 to 1.5 is usual for web text."""
    file: str
    """Path of a CSV file with the column length, and count if a line stands for several."""
    histogram: Mapping[str, float]
    """Lengths with their weights, such as {512: 8, 4k: 1}."""
    max: int | str
    """Longest document; longer ones are cut. By default, and at most, seq_len."""
    seed: int
    """Seed of the drawn lengths and of their order."""
    steps: int
    """Steps with other documents that are simulated; the report is that of the median step."""


class LoraKeys(TypedDict, total=False):
    """Low-rank adapters on a frozen model (keys of lora)."""

    rank: int
    """Rank of the adapters, which alone are trained; 0 trains every parameter."""
    dtype: Literal["float32", "bfloat16", "float16"]
    """Dtype of the adapters' parameters and arithmetic; PEFT's default is float32."""
    dropout: bool | float
    """Dropout of the adapters' inputs: true (probability 0.1), false, or a probability."""
    base: Literal["params", "nf4", "nf4_single", "gptq", "int8"]
    """Format of the frozen matrices of layers: the dtype of parameters, 4-bit NF4 with double (nf4) or single
    quantisation (QLoRA), 4-bit GPTQ in groups of 128, or 8 bits, multiplied in 8 bits (int8, LLM.int8())."""
    dora: bool
    """Whether each output of an adapted matrix has a trained length (DoRA), with PEFT's kernels."""
    hidden: Literal["params", "float32"]
    """Dtype of hidden states between matrices: the dtype of parameters (params), or float32, as after PEFT's
    prepare_model_for_kbit_training on nf4 and int8."""
    targets: (
        Literal["all", "attention", "feed_forward", "all-linear"]
        | Sequence[
            Literal[
                "q",
                "k",
                "v",
                "o",
                "gate",
                "up",
                "down",
                "q_proj",
                "k_proj",
                "v_proj",
                "o_proj",
                "gate_proj",
                "up_proj",
                "down_proj",
            ]
        ]
    )
    """Matrices with an adapter in every layer: all, attention, feed_forward, or a list of q, k, v, o, gate, up,
    down."""
    regather: bool
    """Under sequence parallelism, whether the backward pass gathers the input of an adapted matrix again, as that of a
    trained matrix; otherwise each rank keeps the whole input, as Megatron-Bridge by default."""


class LossScalingKeys(TypedDict, total=False):
    """Scaling of the loss, to keep small gradients representable in float16 (keys of loss_scaling)."""

    rule: Literal["auto", "none", "dynamic", "deepspeed", "static"]
    """dynamic: PyTorch's GradScaler; deepspeed: dynamic with hysteresis; static: constant scale; auto: dynamic for
    float16."""
    start: float
    """Initial loss scale; the constant scale with static."""
    interval: int
    """Steps without overflow until the scale grows; the rule's default if omitted."""
    shared: bool
    """Whether an overflow on one rank makes every rank skip the step."""


class OffloadKeys(TypedDict, total=False):
    """State stored on the host instead of the GPU (keys of offload)."""

    what: Literal["none", "optimizer"]
    """Data to offload to the host: none, or the optimizer's states and update (optimizer)."""
    fraction: float
    """Share of the parameters whose states the host keeps and updates; the GPU updates the others."""
    activations: bool
    """Whether saved activations of layers wait in host memory for the backward pass, which fetches them a layer ahead;
    each stage's last layer keeps its activations on the GPU."""
    host_rate: str
    """Memory bandwidth of a node's processors during the update."""


class OptimizerKeys(TypedDict, total=False):
    """The optimizer, with an implementation for the update (keys of optimizer)."""

    name: str
    """Optimizer (determines the states and kernels), or the path of an own optimizer; adamw means adam. States of a
    paged optimizer move to the host as far as the GPU lacks memory."""
    distribution: Literal["auto", "replicated", "gathered", "owners", "all_to_all"]
    """Where muon's whole matrices come together. replicated: on every rank (ddp); gathered: on every rank, from shards;
    owners: each on a rank that owns it (ddp, zero1); all_to_all: each on a rank, from shards and back; auto: replicated
    for ddp, else gathered."""
    iterations: int
    """Newton-Schulz iterations of muon."""
    implementation: Literal["auto", "fused", "foreach", "for_loop"]
    """fused: a single kernel; foreach: a kernel per arithmetic operation for all tensors; for_loop: a kernel per
    arithmetic operation and tensor; auto: the framework's default."""
    state_dtype: Literal["auto", "float32", "bfloat16", "float16"]
    """Dtype of the optimizer's states, such as Adam's moments; auto: float32, or the dtype of half-precision parameters
    without a master copy, as in PyTorch."""


class ParallelismKeys(TypedDict, total=False):
    """Ranks for each kind of parallelism; their product is world_size (keys of parallelism)."""

    dp: int | str
    """Data parallelism: number of ranks; if omitted, world_size divided by tp x pp x cp. 1k is 1000."""
    tp: int
    """Tensor parallelism: number of ranks that split every matrix."""
    pp: int
    """Pipeline parallelism: number of ranks that split the layers."""
    cp: int
    """Context parallelism: number of ranks that split every sequence."""
    ep: int
    """Expert parallelism: number of ranks in a stage that split the experts."""
    etp: int
    """Number of ranks that split each expert's matrices; tp if omitted."""
    experts: ExpertsKeys
    """ep: dispatch of tokens to experts."""
    sequence_parallel: bool
    """tp: whether activations between the matrices are split along the sequence."""
    tp_overlap: Literal["none", "ring_exchange", "bulk"]
    """tp: overlap of matmuls with communication: pieces of a matmul during a ring exchange, or whole exchanges beside
    matmuls (bulk)."""
    schedule: str
    """pp: order of passes through the stages: a schedule's name, or the path of an own schedule."""
    virtual_stages: int
    """pp: number of stages per rank, for schedules without a fixed number."""
    microbatch_group: int
    """interleaved: number of consecutive micro-batches in a chunk before the next chunk; pp if omitted."""
    deferred_head_gradients: int | Literal["all"]
    """1f1b and interleaved, with ddp or zero1: number of micro-batches, or all, whose weight gradient of the head is
    computed after the last backward pass, while other stages still compute."""
    stages: Literal["auto"] | Sequence[int] | str | Mapping[str, Any]
    """pp: number of layers of each stage, as a list or a layout of Megatron-Core; or how many layers fewer the first
    and the last stage have."""
    context: Literal["ring", "all_gather", "ulysses"] | Mapping[str, int]
    """cp: attention across ranks: keys and values pass round a ring, are gathered (all_gather), or heads are exchanged
    for tokens (ulysses); or ring with ulysses."""
    balanced: bool
    """cp: whether each rank has an early and a late piece of the sequence (zigzag), and equal work."""
    order: Sequence[Literal["tp", "cp", "ep", "dp", "pp"]]
    """Kinds of parallelism in rank order; the first kind varies fastest with the rank's number."""


class PlanKeys(TypedDict, total=False):
    """The batch size, and the settings to fix or to choose among (keys of plan)."""

    global_batch: Required[int | str]
    """Global batch of a step: in tokens (4M; k is 1024) or in sequences (512seq)."""
    fix: Mapping[str, Any]
    """Fixed values by name."""
    among: Mapping[str, Sequence[Any]]
    """Values to choose among, by name."""
    without: Sequence[str]
    """Values to exclude from the search."""
    best: int
    """Number of settings to report."""
    deadline: float | str
    """Longest allowed duration of the training: 30 (days), 30d, 6w; needs budget.tokens."""
    sensitivity: bool
    """Repeat the plan with twice the network bandwidth, one more network card, and twice the memory."""


class PlotsKeys(TypedDict, total=False):
    """Plots to draw, and the points for plots of a single point (keys of `plots`)."""

    kinds: Sequence[str]
    """Figures to draw: names, or paths of own plots; all if omitted."""
    points: Literal["all"] | Sequence[Mapping[str, Any]]
    """Points for figures of a single point: all, or a list of settings; the best point and the first setting if
    omitted."""


class PrecisionKeys(TypedDict, total=False):
    """Dtypes used in a training step (keys of precision)."""

    params: Literal["float64", "float32", "float16", "bfloat16"]
    """Dtype for working parameters and activations."""
    grads: Literal["float64", "float32", "float16", "bfloat16", "auto"]
    """Dtype for accumulated gradients; auto: the parameters' dtype."""
    reduce: Literal["float64", "float32", "float16", "bfloat16", "auto"]
    """Dtype for gradients in communication; auto: float32, or float64 for float64 gradients."""
    master: Literal["float64", "float32", "float16", "bfloat16", "auto", None, "none"]
    """Dtype for the optimizer's parameter copy; auto: float32 for narrower parameters."""
    matmul: Literal[
        "float64", "float32", "float16", "bfloat16", "tf32", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn", "auto"
    ]
    """Dtype for matmul inputs; auto: the parameters' dtype."""
    scaling: Literal["tensor", "row", "block"]
    """Scale of matmul inputs in eight bits: one for each tensor, for each row (torchao's rowwise), or for each block of
    128 (DeepSeek-V3)."""


class ServersKeys(TypedDict, total=False):
    """Number and place of the parameter servers (keys of a collective's servers)."""

    count: int | Literal["all"]
    """Number of parameter servers, each with a share of the array; all: one per worker."""
    on: Literal["own", "workers"]
    """Place of the servers: separate machines (own), or workers, one server per node before a second."""


class ShardingKeys(TypedDict, total=False):
    """Sharding of model states over data-parallel ranks (keys of sharding)."""

    strategy: str
    """Sharded states: none (ddp), optimizer states (zero1), also gradients (zero2), also parameters (zero3); or the
    path of an own strategy."""
    reshard_after_forward: bool | int
    """zero3: whether gathered parameters are freed between forward and backward; a number: sharded over this number of
    neighbouring ranks in the meantime."""
    prefetch: int
    """zero3: number of units gathered ahead of the current unit."""
    bucket_size: str
    """Every strategy except zero3: gradient bucket size."""
    shard_size: int
    """zero1, zero2, zero3: number of ranks with a common copy of the states; all data-parallel ranks if omitted."""
    layers_per_unit: int
    """zero3: number of layers that are gathered and freed together."""
    keep_below: int
    """zero3: tensors with fewer elements are not sharded; DeepSpeed's default is 100000."""
    gradient_sync: Literal["every", "shard", "last"]
    """zero3: micro-batches after which gradients are summed: every micro-batch; every micro-batch within shard groups,
    but only the last over the copies (shard); only the last, with whole gradients in memory (last)."""
    servers: int | Literal["all"]
    """parameter_server: number of servers, each with a share of the parameters; all: one per worker."""
    servers_on: Literal["own", "workers"]
    """parameter_server: separate machines (own), or workers, one server per node before a second."""
    asynchronous: bool
    """parameter_server: whether servers apply each gradient on arrival."""
    staleness: int
    """asynchronous: number of steps that a worker may be ahead of the slowest worker; no limit if omitted."""


class ScenarioKeys(TypedDict, total=False):
    """Keys of a scenario."""

    name: str
    """Name of the run, also used for its folder."""
    question: str
    """Question that the scenario answers; a file usually has the question as its first comment."""
    seed: int
    """Random seed."""
    engine: Literal["auto", "events", "compiled"]
    """Simulation engine."""
    compare: Mapping[str, Sequence[Any]]
    """Values to compare, by key."""
    sweep: Mapping[str, Sequence[Any]]
    """Values to sweep, by key."""
    plots: Sequence[str] | PlotsKeys
    """Figures to draw as files, a list or a mapping; no files if omitted, because report.html shows every figure."""
    baseline: Mapping[str, Any]
    """Baseline of the comparison: a value for a key of compare; the first value if omitted."""
    answer: Sequence[str | FindingKeys]
    """Findings to report, in order; chosen automatically if omitted."""
    budget: BudgetKeys
    """Length and prices of the training, for days, GPU hours, cost and energy."""
    plan: PlanKeys
    """Search for the fastest training settings, instead of simulating points."""


class ClusterKeys(TypedDict, total=False):
    """The machine to simulate (keys of cluster)."""

    topology: Required[str | Mapping[str, Any]]
    """Topology: a shipped name, a path, or the topology's keys."""
    world_size: Required[int | str]
    """Number of ranks, each on its own GPU; 1k is 1000."""
    gpu: str | Mapping[str, Any]
    """GPU: a catalog name, a path, or the GPU's keys; the topology's GPU if omitted."""
    stragglers: Mapping[int, float]
    """Factor on the FLOP/s and HBM bandwidth of a rank, by rank."""
    link_factors: Mapping[str, float]
    """Factor on the bandwidth of a link, by link ('src->dst', one direction of a cable) or shell pattern ('gpu0->*',
    '*switch0*'). Names: simulator show TOPOLOGY --links."""
    jitter: JitterKeys
    """Random variation of times, drawn from the seed."""
    placement: Sequence[int] | Mapping[str, Any]
    """GPU number of each rank, or the number of GPUs used on each node (gpus_per_node), the first ones of each node in
    turn; the first GPUs in order if omitted."""
    ecmp: EcmpKeys
    """Choice among equal routes by a hash."""
    transport: Literal["rdma", "tcp"]
    """Transport of collectives between nodes: rdma, or tcp at half of the line rate; the topology's if omitted. Another
    than the topology's replaces what was measured over its nodes by the library's model."""
    events: Sequence[EventKeys]
    """Links, GPUs and nodes that slow down or fail at a time during the step."""
    storage: str
    """Rate at which a storage behind the network takes checkpoints; none if omitted."""
    watchdog: str
    """Time after which a collective that waits ends the job; never if omitted."""


class CollectiveKeys(ScenarioKeys, ClusterKeys, total=False):
    """A single collective operation (keys of collective)."""

    operation: Required[
        Literal["all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "reduce", "reduce_scatter", "scatter"]
    ]
    """Collective operation."""
    algorithm: str
    """Algorithm: ring, tree, ..., auto, or the path of an own algorithm."""
    size: str
    """Size of the whole array; optional with tensors."""
    dtype: Literal[
        "bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2", "int32", "int64", "int8", "uint8"
    ]
    """Data type of the elements."""
    reduction: Literal["sum", "average", "max", "min", "product"]
    """Reduction of the ranks' elements."""
    accumulate: Literal["payload", "float32"]
    """Dtype of partial sums: the payload's dtype, or float32."""
    payload: Literal["auto", True, False]
    """Whether real arrays move; auto: while world_size x size is at most 256 MiB."""
    servers: ServersKeys
    """Servers of the algorithm parameter_server."""
    rank_order: Sequence[int]
    """Rank order of the algorithms ring and chain."""
    chunks: int
    """Number of pipeline pieces, for pipelined algorithms."""
    root: int
    """Position of the root in the group, for broadcast, reduce, scatter and gather."""
    group: Sequence[int]
    """Participating ranks; every rank if omitted."""
    group_size: int
    """Number of ranks per node, for hierarchical and multi_ring."""
    tensors: Sequence[str]
    """Sizes of the tensors, in order."""
    fusion: FusionKeys
    """Fusion of tensors before sending."""


class TrainingKeys(ScenarioKeys, ClusterKeys, total=False):
    """A single training step (keys of training)."""

    model: Required[str | Mapping[str, Any]]
    """Model: a catalog name, the path of a Hugging Face config.json, of a file of layers or of a traced module, or the
    keys of such a file."""
    seq_len: Required[int | str]
    """Sequence length in tokens, 1 for images of a list of layers; 8k is 8192."""
    micro_batch_size: int
    """Number of sequences per micro-batch on each rank."""
    gradient_accumulation_steps: int | str
    """Number of micro-batches per optimizer step; 1k is 1000."""
    global_batch: int | str
    """Global batch of a step: in tokens (4M; k is 1024) or in sequences (512seq); alternative to
    gradient_accumulation_steps."""
    lengths: LengthsKeys
    """Lengths of the documents; by default, every document has seq_len tokens."""
    batching: Literal["pad", "pad_to_longest", "bucket", "pack", "pack_balanced"]
    """How documents of unequal lengths become sequences. pad: padded to seq_len; pad_to_longest: to the longest of a
    micro-batch; bucket: so, after sorting by length; pack: several in a sequence of seq_len, attention within each
    document; pack_balanced: so, with like work on all ranks."""
    tokens_used: float
    """Share of a batch's tokens that are not padding. Padding is computed like other tokens: the share changes no time,
    only the rate of useful tokens."""
    mtp_layers: int
    """Layers behind the model's that each predict a further token (multi-token prediction); on the last pipeline stage,
    unless stages lists the layers of each stage."""
    parallelism: ParallelismKeys
    """Sizes and options for each kind of parallelism."""
    sharding: str | ShardingKeys
    """Sharding of the model states; short form: a strategy's name."""
    precision: Literal["fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "nvfp4"] | PrecisionKeys
    """Dtypes; short forms: fp64, fp32, tf32, fp16, bf16, fp8 and nvfp4."""
    activation_checkpointing: str | Mapping[str, Any] | Sequence[int] | Sequence[str]
    """Activations that are discarded and recomputed."""
    attention: Literal["flash", "standard", "eager"]
    """Attention kernels: flash (scores stay on the chip), standard (scores go through HBM), or eager (as standard, with
    a softmax in float32 by separate kernels: Transformers' eager attention, Megatron-LM's --no-masked-softmax-
    fusion)."""
    attention_generation: int | Literal["auto"]
    """Generation of the flash attention kernels: FlashAttention 1 to 3, 4 for Blackwell's kernels (FlashAttention-4,
    cuDNN); auto: 4 on Blackwell, else 2."""
    optimizer: str | OptimizerKeys
    """Optimizer and the implementation of its update; short form: the optimizer's name."""
    collectives: Literal["auto", "played", "closed_form"]
    """Collectives: simulated transfer by transfer (played), or by closed forms where exact (closed_form)."""
    algorithm: str
    """Algorithm for every collective: a name, a path, or auto, the machine's choice."""
    compile: bool
    """Whether a compiler merges kernels."""
    dropout: bool | float
    """Dropout: true (probability 0.1), false, or a probability."""
    framework: str
    """Framework whose fitted constants slow down kernels: a catalog name, bare (no constants), or the path of a
    framework file, such as simulator calibrate writes."""
    allocator: Literal["caching", "expandable_segments"]
    """Allocator of GPU memory."""
    offload: Literal["none", "optimizer", "activations"] | OffloadKeys
    """Data on the host: none, optimizer, activations."""
    checkpoint_traffic: Literal["none", "sharded"]
    """Checkpoint in flight during the step: none, or each rank's share to host and storage (sharded)."""
    trainable: Literal["all"] | str | Sequence[str]
    """Trained parts of the model: all, or a list of embedding, head, layer 3, layers 28-31, and patterns of parameters
    such as layers.*.attention.*; other parts are frozen."""
    lora: LoraKeys
    """Low-rank adapters on a frozen model."""
    loss: Literal[
        "auto", "ideal", "separate", "narrow", "vocab_parallel", "sharded", "native", "fused", "in_place", "chunked"
    ]
    """Kernels of the loss: PyTorch's cross entropy of a float32 copy (separate), or in the dtype of the logits
    (narrow); the same with every array moved once and gradients in place (ideal); Megatron-LM's unfused kernels
    (vocab_parallel), and nanotron's (sharded); compiled functions in float32 (native, Megatron-LM's native fusion); a
    kernel that overwrites the logits in the backward pass (fused), or already in the forward pass (in_place, Liger's
    cross entropy); head and loss together, a chunk of tokens at a time (chunked, Liger's fused linear cross entropy);
    auto: the framework's."""
    logit_shift: Literal["none", "before_cast", "after_cast"]
    """Copy of the logits without each sequence's last token, as in Transformers up to 4.48: none, or a copy before or
    after the cast to float32."""
    float32_outputs: bool
    """Whether the model returns a float32 copy of its logits, as Accelerate's mixed precision does."""
    use_cache: bool
    """Whether recomputed layers return keys and values, which stay allocated until the loss is computed, as in GPT-
    BigCode of Transformers up to 4.48."""
    cuda_graphs: (
        Literal["none", "full_iteration", "attn", "mamba", "mlp", "moe_router", "moe_preprocess"]
        | Sequence[Literal["attn", "mamba", "mlp", "moe_router", "moe_preprocess"]]
    )
    """What the host launches as a CUDA graph, as a whole: none, full_iteration (a step), or a list of the parts of a
    layer attn, mamba, mlp, moe_router and moe_preprocess, as Megatron-Core names them."""
    loss_scaling: Literal["auto", "none", "dynamic", "deepspeed", "static"] | LossScalingKeys
    """Loss scaling: rule and options; short form: the rule's name."""
    clip_norm: float
    """Maximum gradient norm; no clipping if omitted."""
    numerics: bool
    """Whether a real model trains during the simulation, with real arrays in every transfer."""
    steps: int | str
    """Number of training steps, with numerics or asynchronous servers; 1k is 1000."""
    learning: LearningKeys
    """numerics: training data and learning rate."""
    faults: Sequence[FaultKeys]
    """numerics: injected faults."""
