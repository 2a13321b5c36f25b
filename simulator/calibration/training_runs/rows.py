"""Which training runs were measured? Each row holds model, GPUs, settings, speed and source.

Facts are stored as printed by the source. The module also builds the training step and the cluster for a row; it
simulates nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, Literal, cast, get_args

from simulator.basics import registry
from simulator.basics.document import load
from simulator.basics.dtypes import find as find_dtype
from simulator.basics.dtypes import is_narrow
from simulator.basics.errors import UnknownNameError
from simulator.basics.measured_tables import read_table
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster, chip_of
from simulator.model.load import load_transformer
from simulator.model.shape import Transformer
from simulator.scenario.build_training import to_step
from simulator.scenario.records import Scenario
from simulator.step.framework import Framework, Implementation
from simulator.step.learning_spec import LossScaling
from simulator.step.parallelism import ALONE, Parallelism
from simulator.step.precision import Precision
from simulator.step.sharding import Sharding
from simulator.step.spec import TrainingStep, bare_step
from simulator.step.training_spec import TrainingSpec

GIB: Final = 2**30
# Larger than any rank's gradients [B]: gradients then travel at once, after the last is computed.
_ONE_BUCKET: Final = 2**50
# Keys in config.json for a shape's sizes, by family; fixed keys by family; and the key for the maximum sequence length.
_CONFIGS: Final[Mapping[str, Mapping[str, str]]] = {
    "gpt": {"n_layer": "layers", "n_embd": "hidden", "n_head": "heads", "n_inner": "ffn", "vocab_size": "vocab",
            "tie_word_embeddings": "tied"},
    "llama": {"num_hidden_layers": "layers", "hidden_size": "hidden", "num_attention_heads": "heads",
              "num_key_value_heads": "kv_heads", "intermediate_size": "ffn", "vocab_size": "vocab",
              "tie_word_embeddings": "tied"},
}  # fmt: skip
_FAMILY_KEYS: Final = {"gpt": {"model_type": "gpt2"}, "llama": {"model_type": "llama"}}
_POSITIONS: Final = {"gpt": "n_positions", "llama": "max_position_embeddings"}
# Later micro-batches all take equally long: this many are simulated, and the time of the rest is added.
MOST_PLAYED: Final = 3
# Memory that a source prints, by table; "allocated" for other tables. torchtitan prints max_reserved_gib
# (components/metrics.py, `DeviceMemoryMonitor`). nanotron's benchmarks print max_memory_reserved of rank 0, the first
# pipeline stage (e24d2483, helpers.py, `log_throughput`); its peak of allocated bytes is reset after each batch
# (logging.py, `log_memory`) and would not depend on the micro-batch, as the printed figures do.
PrintedMemory = Literal["allocated", "reserved", "reserved by rank 0"]
PRINTED_MEMORY: Final[Mapping[str, PrintedMemory]] = {
    "torchtitan": "reserved",
    "nanotron": "reserved by rank 0",
    "nanotron_cut": "reserved by rank 0",
}
# Cells of the column `optimizer_implementation`.
IMPLEMENTATIONS: Final[Mapping[str, Implementation | None]] = {"": None} | {
    name: name for name in get_args(Implementation)
}


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A measured model's sizes, stated by the source."""

    family: str  # "gpt", "llama", or a model in the catalog; then only `layers` counts
    # `layers`, `hidden`, `heads`, `kv_heads`, `ffn`, `vocab`: Sizes, named as in `simulator.model`.
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    tied: bool  # whether embedding and head share their weights

    def transformer(self, name: str, seq_len: int) -> Transformer:
        """Return the model with these sizes; for a catalog model its first layers, with at most one dense layer before
        expert layers.
        """
        if self.family not in _CONFIGS:
            model = load_transformer(self.family, seq_len)
            return replace(model, num_layers=self.layers, dense_layers=min(model.dense_layers, 1))
        # The equivalent config.json for the source's model.
        keys = {key: getattr(self, field) for key, field in _CONFIGS[self.family].items()}
        return load_transformer({**_FAMILY_KEYS[self.family], "name": name, **keys, _POSITIONS[self.family]: seq_len})


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """A measured training run."""

    table: str  # source: "foundry", "torchtitan", "nanotron", ...; training_cut.csv explains its own sources
    line: int  # line in the source, or number of the row
    # `framework`, `model`, `gpu`, `topology`: Catalog names: the constants for the simulation, and the nearest machine.
    framework: str
    model: str
    gpu: str
    topology: str
    seq_len: int
    gpus: int
    micro_batch_size: int
    accumulation: int
    precision: Precision
    sharding: str
    reshard: bool
    checkpointing: str | int
    compiled: bool
    tokens_per_s: float  # tokens per second, summed over the GPUs
    peak: float | None  # peak memory of a GPU [B]; None if not printed
    source: str
    parallelism: Parallelism = ALONE
    shape: ModelShape | None = None  # sizes of a model that the catalog lacks, or of a catalog model's first layers
    attention: str = "flash"  # "standard", "flash", or "flash3" for kernels of generation 3
    buckets: bool = True  # whether gradients travel in buckets during the backward pass, or at once after it
    fused_loss: bool = False  # whether the loss is a single kernel, in contrast to the framework's default
    # Implementation of the optimizer's update; None for the framework's default.
    optimizer_implementation: Implementation | None = None
    timed: bool = True  # whether a whole step was timed; otherwise the time is composed of profiled pieces
    shard_size: int | None = None  # ranks that share a copy of the sharded states; None: every data-parallel rank
    # Whether the simulated step holds what the run held; False if the run kept states on the host, or in dtypes that
    # the simulator does not have
    memory_simulated: bool = True
    # Meaning of `peak`: allocated or reserved bytes of the GPU with the most, or reserved bytes of the first rank.
    memory: PrintedMemory = "allocated"
    assumed: tuple[str, ...] = ()  # columns not stated by the source
    # Keys of the training step, for runs with settings that no other column states, such as adapters
    spec: TrainingSpec | None = None
    # All settings, of which other columns repeat some, for runs on a machine that `gpu` and `topology` do not name
    scenario: Scenario | None = None

    @property
    def transformer(self) -> Transformer:
        """The model of the measured run, with its adapters."""
        if self.spec is not None:
            return cast(Transformer, _of_spec(self, self.spec).model)
        if self.shape is None:
            return load_transformer(self.model, self.seq_len)
        return self.shape.transformer(self.model, self.seq_len)

    @property
    def replicas(self) -> int:
        """Number of model copies (dp)."""
        return self.gpus // self.parallelism.size

    def is_repeat(self, other: MeasuredRow) -> bool:
        """Return True if both runs have the same settings, whatever was measured."""
        return self == replace(
            other, table=self.table, line=self.line, source=self.source, tokens_per_s=self.tokens_per_s, peak=self.peak
        )

    @property
    def step_time(self) -> float:
        """Measured time per step [s]."""
        return self.seq_len * self.micro_batch_size * self.accumulation * self.replicas / self.tokens_per_s

    @property
    def eight_bit(self) -> bool:
        """True if the run's matmul inputs have at most eight bits."""
        return is_narrow(self.precision.matmul)

    @property
    def chip(self) -> str:
        """Name of the GPU's chip: "h100"."""
        return chip_of(self.gpu)

    @property
    def group(self) -> str:
        """Name of the row's group in the report: source, chip, and precision or number of nodes."""
        chip = self.chip.upper().replace("_", " ")
        if self.eight_bit:
            return f"{self.table}, {chip}, fp8"
        return f"{self.table}, {chip}, {'one node' if self.gpus <= 8 else 'several nodes'}"

    @property
    def name(self) -> str:
        """The measured run in a few words: model, chip, GPUs, batch and options; or its scenario's name."""
        if self.scenario is not None:
            return self.scenario.name
        policy = {"none": "", "full": " ckpt"}.get(str(self.checkpointing), f" ckpt {self.checkpointing}")
        compiled = " compiled" if self.compiled else ""
        chip = self.chip
        dtype = {8: " fp8", 4: " fp4"}.get(find_dtype(self.precision.matmul, stored=False).bits, "")
        sharding = "" if self.sharding == Sharding().strategy else f" {self.sharding}"
        sharding += f" over {self.shard_size}" if self.shard_size is not None else ""
        if self.spec is not None:
            lora, loss = self.spec.lora, self.spec.loss
            sharding += f" lora {lora.base}" if lora.rank else " full"
            sharding += "" if loss == "auto" else f" {loss} loss"
        return (
            f"{self.model} {chip} x{self.gpus}{self._cut} seq {self.seq_len} "
            f"mb {self.micro_batch_size}x{self.accumulation}{sharding}{policy}{compiled}{dtype}"
        )

    @property
    def _cut(self) -> str:
        cut = self.parallelism
        sizes = (("tp", cut.tp), ("pp", cut.pp), ("cp", cut.cp), ("ep", cut.ep))
        return "".join(f" {kind}{size}" for kind, size in sizes if size > 1)


def measured(table: str | None = None) -> tuple[MeasuredRow, ...]:
    """Return the measured runs with models not partitioned over ranks, from every source or a single source.

    Raises
    ------
    UnknownNameError
        Unknown source.

    Examples
    --------
    >>> len(measured("torchtitan"))
    9
    """
    return of_source([_row(row) for row in read_table("training.csv")], table, "--source")


def of_source(rows: Sequence[MeasuredRow], source: str | None, key: str) -> tuple[MeasuredRow, ...]:
    """Return the measured runs of a source, or every run without a source; raise UnknownNameError, naming `key`, for an
    unknown source.
    """
    names = sorted({row.table for row in rows})
    if source is not None and source not in names:
        raise UnknownNameError(key, source, names)
    return tuple(row for row in rows if source in (None, row.table))


def gib(text: str) -> float | None:
    """Return the number of bytes in a table cell with a number of GiB; None for an empty cell.

    >>> gib("1.5"), gib("")
    (1610612736.0, None)
    """
    return float(text) * GIB if text else None


def _row(row: Mapping[str, str]) -> MeasuredRow:
    policy = row["checkpointing"]
    return MeasuredRow(
        table=row["table"],
        line=int(row["line"]),
        framework=row["framework"],
        model=row["model"],
        gpu=row["gpu"],
        topology=row["topology"],
        seq_len=int(row["seq_len"]),
        gpus=int(row["gpus"]),
        micro_batch_size=int(row["micro_batch_size"]),
        accumulation=int(row["accumulation"]),
        precision=Precision(grads="float32", reduce=row["reduce"], master="float32", matmul=row["matmul"]),
        sharding=row["sharding"],
        reshard=row["reshard"] == "true",
        checkpointing=int(policy) if policy.isdigit() else policy,
        compiled=row["compiled"] == "true",
        optimizer_implementation=IMPLEMENTATIONS[row["optimizer_implementation"]],
        tokens_per_s=float(row["tokens_per_s"]),
        peak=gib(row["peak_gib"]),
        memory=PRINTED_MEMORY.get(row["table"], "allocated"),
        source=row["source"],
    )


def step_of(row: MeasuredRow, framework: Framework, accumulation: int | None = None) -> TrainingStep:
    """Return the measured run's training step, with `accumulation` micro-batches instead of its own if given."""
    if row.spec is not None:
        step = _of_spec(row, row.spec)
        return replace(
            step.with_keys(gradient_accumulation_steps=accumulation or row.accumulation), framework=framework
        )
    # Options not stated by any source keep their defaults.
    sharding = Sharding(strategy=row.sharding, reshard_after_forward=row.reshard, shard_size=row.shard_size)
    return bare_step(
        model=load_transformer(row.model, row.seq_len)
        if row.shape is None
        else row.shape.transformer(row.model, row.seq_len),
        seq_len=row.seq_len,
        micro_batch_size=row.micro_batch_size,
        gradient_accumulation_steps=row.accumulation if accumulation is None else accumulation,
        parallelism=row.parallelism,
        sharding=sharding if row.buckets else sharding.replaced(bucket_size=_ONE_BUCKET),
        precision=row.precision,
        activation_checkpointing=row.checkpointing,
        attention="standard" if row.attention == "standard" else "flash",
        attention_generation=3 if row.attention == "flash3" else "auto",
        compile=row.compiled,
        framework=_framework_of(row, framework),
        loss_scaling=LossScaling(rule="dynamic" if row.precision.params == "float16" else "none"),
    )


def _of_spec(row: MeasuredRow, spec: TrainingSpec) -> TrainingStep:
    return to_step(spec, row.gpus, None if row.scenario is None else row.scenario.base)


def _framework_of(row: MeasuredRow, framework: Framework) -> Framework:
    """Return the framework on a measured run's GPUs, with the loss and the optimizer that the run's source states."""
    framework = framework.on_ranks(row.gpus)
    if row.fused_loss:
        framework = replace(framework, loss="fused")
    if row.optimizer_implementation is not None:
        framework = replace(framework, optimizer_implementation=row.optimizer_implementation)
    return framework


Changes = tuple[tuple[str, float], ...]


@cache
def cluster_of(gpu: str, gpus: int, changes: Changes = (), topology: str = "", network_time: float = 1.0) -> Cluster:
    """Return the cluster most similar to a measured run's machine; `changes` are other values for the GPU's
    constants, and `network_time` is a factor on the time of every transfer.
    """
    # Rows without topology ran on boxes like NVIDIA's own.
    topology = topology or ("dgx_a100" if gpu.startswith("a100") else "dgx_h100")
    if not changes:
        return build(_topology(topology), gpus, gpu=_gpu(gpu), network_time=network_time)
    # Changed constants need a GPU written out in full.
    base = _gpu(gpu)
    data = dict(load(registry.find("gpu", base)).data) if isinstance(base, str) else base
    constants = {**data.get("constants", {}), **dict(changes)}
    return build(topology, gpus, gpu=data | {"constants": constants}, network_time=network_time)


def _topology(name: str) -> str | dict[str, Any]:
    """Return a shipped topology's name, or the keys of vTrain's box: a DGX A100, cards of half the rate, 800 Gb/s."""
    if name != "dgx_a100_800g":
        return name
    data = dict(load(registry.find("topology", "dgx_a100")).data)
    # Sums over two boxes are as slow as rings, which carry every byte over the cards almost twice.
    operations = data["collectives"]
    rings = {**operations["all_reduce"], "nodes": operations["all_gather"]["nodes"]}
    return data | {
        "options": {**data["options"], "nic_bandwidth": "100 Gb/s"},
        "collectives": {**operations, "all_reduce": rings},
    }


def _gpu(name: str) -> str | dict[str, Any]:
    """Return a catalog GPU's name, or the keys of torchtitan's H100, which has slower memory and less power."""
    if name in registry.names("gpu"):
        return name
    return dict(load(registry.find("gpu", "h100_sxm")).data) | {
        "product": "NVIDIA H100, 96 GB HBM2e, 500 W",
        "hbm_bytes": "96 GB",
        "hbm_bandwidth": "2.4 TB/s",
        "power": 500,
    }
