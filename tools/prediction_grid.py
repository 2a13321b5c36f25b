"""Predictions over a fixed grid: times of kernels, collectives and training steps, and peaks of memory.

`python tools/prediction_grid.py FILE` writes a table of the imported package: kind, point, value and unit of each
prediction. tools/prediction_gate.py compares tables, also of earlier commits. Therefore this file imports nothing from
tools, calls the public names of the package wherever they suffice, and writes a refusal where a package lacks a name.
"""

from __future__ import annotations

import csv
import signal
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, Final

# First word of a value that the package refuses to compute; the name of the error follows.
REFUSED: Final = "refused:"
HEADER: Final = ("kind", "point", "value", "unit")

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the table of predictions."""

    kind: str  # "kernel", "collective", "step" or "memory"
    point: str  # what is predicted, unique in the table
    value: str  # six significant digits, or the refusal
    unit: str  # "s" or "B"


@dataclass(frozen=True, slots=True)
class Point:
    """A prediction of the grid, not computed yet."""

    kind: str
    sentence: str  # unique in the grid
    unit: str
    predict: Callable[[], float]

    def row(self) -> Row:
        """Compute the prediction; an error of the package becomes a refusal with the name of its class."""
        try:
            value = f"{self.predict():.6g}"
        except Exception as error:
            value = f"{REFUSED} {type(error).__name__}"
        return Row(self.kind, self.sentence, value, self.unit)


# Kernels

# Dtypes of matmuls on each GPU. The last dtypes of v100_sxm_32gb and of a100_sxm_80gb are refused: these GPUs have no
# rate for them.
_DTYPES: Final = {
    "v100_sxm_32gb": ("float16", "float32", "bfloat16"),
    "a100_sxm_80gb": ("bfloat16", "float16", "tf32", "float32", "float8_e4m3fn"),
    "h100_sxm": ("bfloat16", "float16", "tf32", "float8_e4m3fn"),
    "h200": ("bfloat16", "float16", "tf32", "float8_e4m3fn"),
    "b200": ("bfloat16", "float16", "tf32", "float8_e4m3fn", "float4_e2m1fn"),
    "gb200": ("bfloat16", "float16", "tf32", "float8_e4m3fn", "float4_e2m1fn"),
    "b300": ("bfloat16", "float16", "tf32", "float8_e4m3fn", "float4_e2m1fn"),
    "l40s": ("bfloat16", "float16", "tf32", "float8_e4m3fn"),
    "rtx_4090": ("bfloat16", "float16", "tf32", "float8_e4m3fn"),
    "mi300x": ("bfloat16", "float16", "tf32", "float8_e4m3fn"),
}
# Sizes m, n, k and batch of matmuls in training.
_SHAPES: Final = (
    (8192, 6144, 4096, 1),  # queries, keys and values of Llama 3 8B, 8,192 tokens
    (8192, 28672, 4096, 1),  # gate and up projection
    (8192, 4096, 14336, 1),  # down projection
    (8192, 128256, 4096, 1),  # head
    (4096, 14336, 8192, 1),  # gradient of a weight
    (4096, 1600, 1600, 1),  # GPT-2 XL
    (2048, 1024, 8192, 1),  # an eighth of a matrix under tensor parallelism
    (512, 1536, 2048, 16),  # experts of Qwen3 30B-A3B
    (1000, 3000, 777, 1),  # sizes that fill no tile
    (16384, 53248, 16384, 1),  # Llama 3 405B
)
# Fields of attention kernels: batch, heads, kv_heads, seq_len, head_dim, causal, and further ones.
_ATTENTIONS: Final[tuple[Settings, ...]] = (
    {"batch": 1, "heads": 32, "kv_heads": 8, "seq_len": 8192, "head_dim": 128, "causal": True},
    {"batch": 32, "heads": 16, "kv_heads": 16, "seq_len": 512, "head_dim": 64, "causal": False},
    {"batch": 1, "heads": 16, "kv_heads": 8, "seq_len": 8192, "head_dim": 256, "causal": True, "window": 4096},
    {"batch": 1, "heads": 8, "kv_heads": 1, "seq_len": 131072, "head_dim": 128, "causal": True},
    {"batch": 8, "heads": 25, "kv_heads": 25, "seq_len": 1024, "head_dim": 64, "causal": True},
)
# Fields of elementwise kernels: bytes read and written [B], and further ones.
_ELEMENTWISE: Final[tuple[Settings, ...]] = (
    {"read": 64 * 2**20, "written": 64 * 2**20},
    {"read": 16 * 2**10, "written": 16 * 2**10, "fusible": True},
    {"read": 30_000_000, "written": 120_000_000, "decoded": 60_000_000},
)
# Arguments of `duration` beside kernel, GPU and dtype, on one GPU and for one matmul and one attention kernel.
_CONDITIONS: Final[tuple[Settings, ...]] = (
    {"sms_taken": 20},
    {"hbm_share": 0.5},
    {"ordered": True},
    {"attention_generation": 1},
    {"attention_generation": 3},
    {"compiled": True},
)


@cache
def _gpu(name: str) -> Any:
    from simulator.cluster.gpu_file import load_gpu

    return load_gpu(name)


def _duration(gpu: str, dtype: str, kernel: str, fields: Settings, condition: Settings) -> float:
    """Return the duration of a kernel [s], given the class of the kernel by name."""
    from simulator.model import kernel as kernels
    from simulator.step.kernels.kernel_time import duration

    return duration(getattr(kernels, kernel)("", **fields), _gpu(gpu), dtype, **condition)


def _kernel(gpu: str, dtype: str, kernel: str, fields: Settings, condition: Settings | None = None) -> Point:
    words = _words(fields | (condition or {}))
    return Point(
        "kernel",
        f"{dtype} {kernel.lower()} on {gpu}, {words}",
        "s",
        partial(_duration, gpu, dtype, kernel, fields, condition or {}),
    )


def kernels() -> Iterator[Point]:
    """Yield the kernels: matmuls whose shapes take turns over GPUs and dtypes, attention and elementwise kernels."""
    for place, (gpu, dtypes) in enumerate(_DTYPES.items()):
        for number, dtype in enumerate(dtypes):
            for first in (0, len(_SHAPES) // 2):
                sizes = _SHAPES[(first + place + 2 * number) % len(_SHAPES)]
                yield _kernel(gpu, dtype, "Matmul", dict(zip(("m", "n", "k", "batch"), sizes, strict=True)))
        half = "float16" if gpu == "v100_sxm_32gb" else "bfloat16"
        for fields, backward in product(_ATTENTIONS, (False, True)):
            yield _kernel(gpu, half, "Attention", fields | {"backward": backward})
        # Kernels without matmuls ignore the dtype.
        for fields in _ELEMENTWISE:
            yield _kernel(gpu, half, "Elementwise", fields)
    matmul = dict(zip(("m", "n", "k", "batch"), _SHAPES[1], strict=True))
    attention = _ATTENTIONS[0] | {"backward": True}
    for condition in _CONDITIONS:
        for kernel, fields in (("Matmul", matmul), ("Attention", attention), ("Elementwise", _ELEMENTWISE[1])):
            yield _kernel("h100_sxm", "bfloat16", kernel, fields, condition)


# Collectives

# Numbers of ranks of each machine.
_RANKS: Final = {
    "dgx_a100": (8, 64),
    "dgx_h100": (8, 256),
    "dgx_b200": (4, 16),
    "gb200_nvl72": (8, 72),
    "aws_p5": (16,),
    "gcp_a3_mega": (32,),
    "h100_ethernet_100g": (16,),
    "mi300x_box": (8,),
    "pcie_server": (4,),
    "geforce_server": (2,),
    "star_100g": (5, 16),
    "leaf_spine_100g": (32,),
    "fat_tree_1024": (64,),
    "torus_2d": (16,),
}
_OPERATIONS: Final = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
# Two sizes for each pair of machine and operation, in turn.
_SIZES: Final = (("64 KiB", "256 MiB"), ("1 MiB", "1 GiB"), ("4 KiB", "16 MiB"))
# Algorithms by name and roots, beside what a machine chooses.
_ALGORITHMS: Final[tuple[Settings, ...]] = (
    {"operation": "all_reduce", "algorithm": "ring", "topology": "dgx_h100", "world_size": 8},
    {"operation": "all_reduce", "algorithm": "tree", "topology": "dgx_h100", "world_size": 8},
    {"operation": "all_reduce", "algorithm": "nvls", "topology": "dgx_h100", "world_size": 16},
    {"operation": "all_reduce", "algorithm": "double_binary_tree", "topology": "dgx_a100", "world_size": 16},
    {"operation": "all_reduce", "algorithm": "halving_doubling", "topology": "star_100g", "world_size": 12},
    {"operation": "all_reduce", "algorithm": "hierarchical", "topology": "dgx_a100", "world_size": 32},
    {"operation": "all_reduce", "algorithm": "blueconnect", "topology": "dgx_h100", "world_size": 64},
    {"operation": "all_reduce", "algorithm": "multi_ring", "topology": "dgx_a100", "world_size": 16},
    {"operation": "all_reduce", "algorithm": "parameter_server", "topology": "star_100g", "world_size": 16},
    {"operation": "all_reduce", "algorithm": "naive", "topology": "star_100g", "world_size": 8},
    {"operation": "broadcast", "algorithm": "chain", "topology": "dgx_a100", "world_size": 8, "chunks": 16},
    {"operation": "broadcast", "algorithm": "auto", "topology": "dgx_h100", "world_size": 16},
    {"operation": "reduce", "algorithm": "auto", "topology": "torus_3d", "world_size": 27},
    {"operation": "scatter", "algorithm": "auto", "topology": "pcie_switch_server", "world_size": 8},
    {"operation": "gather", "algorithm": "auto", "topology": "dragonfly", "world_size": 16},
)


def _collective_time(settings: Settings) -> float:
    """Return the time of a collective without payload [s]."""
    from simulator import collective_scenario, simulate

    return float(simulate(collective_scenario(payload=False, **settings)).report.to_dict()["time_s"])


def _collective(settings: Settings) -> Point:
    rest = {key: settings[key] for key in settings if key not in ("operation", "size", "topology", "world_size")}
    place = f"{settings['world_size']} GPUs of {settings['topology']}"
    sentence = ", ".join(filter(None, [f"{settings['operation']} of {settings['size']} on {place}", _words(rest)]))
    return Point("collective", sentence, "s", partial(_collective_time, settings))


def collectives() -> Iterator[Point]:
    """Yield the collectives: operations on machines, each with two sizes in turn, and algorithms by name."""
    places = [(topology, ranks) for topology, numbers in _RANKS.items() for ranks in numbers]
    for number, (topology, ranks) in enumerate(places):
        for turn, operation in enumerate(_OPERATIONS):
            for size in _SIZES[(number + turn) % len(_SIZES)]:
                yield _collective({"operation": operation, "size": size, "topology": topology, "world_size": ranks})
    for settings in _ALGORITHMS:
        yield _collective(settings | {"size": "2 MiB"})


# Training steps and their memory

_FSDP: Final[Settings] = {
    "model": "llama3_8b",
    "topology": "dgx_h100",
    "world_size": 8,
    "seq_len": 8192,
    "sharding": "zero3",
    "activation_checkpointing": "full",
}
_DDP: Final[Settings] = {
    "model": "gpt2_xl",
    "topology": "dgx_a100",
    "world_size": 8,
    "seq_len": 1024,
    "micro_batch_size": 4,
    "sharding": "ddp",
}
_TENSOR: Final[Settings] = {
    "model": "llama3_70b",
    "topology": "aws_p5",
    "world_size": 32,
    "seq_len": 8192,
    "sharding": "zero3",
    "activation_checkpointing": "selective_op",
    "parallelism": {"tp": 8},
}
_PIPELINE: Final[Settings] = {
    "model": "megatron_3.6b",
    "topology": "dgx_a100",
    "world_size": 16,
    "seq_len": 2048,
    "gradient_accumulation_steps": 8,
    "sharding": "zero1",
    "framework": "megatron_core",
    "parallelism": {"tp": 2, "pp": 4},
}
_EXPERTS: Final[Settings] = {
    "model": "qwen3_30b_a3b",
    "topology": "dgx_b200",
    "world_size": 16,
    "seq_len": 4096,
    "sharding": "zero1",
    "activation_checkpointing": "full",
    "parallelism": {"ep": 16},
}
# Settings in which a step differs from its base; `parallelism` is merged with the base's.
_VARIATIONS: Final[tuple[tuple[Settings, tuple[Settings, ...]], ...]] = (
    (
        _FSDP,
        (
            {},
            {"precision": "fp8"},
            {"precision": {"params": "float32", "matmul": "bfloat16"}},
            {"precision": {"params": "bfloat16", "matmul": "float8_e4m3fn", "scaling": "row"}},
            {"precision": "tf32"},
            {"activation_checkpointing": "none"},
            {"activation_checkpointing": "selective_op"},
            {"activation_checkpointing": "attention"},
            {"activation_checkpointing": "sqrt"},
            {"compile": True},
            {"compile": True, "precision": "fp8"},
            {"attention": "standard"},
            {"attention_generation": 3},
            {"sharding": "zero2"},
            {"sharding": "zero1"},
            {"sharding": "ddp"},
            {"sharding": {"strategy": "zero3", "reshard_after_forward": False}},
            {"sharding": {"strategy": "zero3", "prefetch": 0}},
            {"sharding": {"strategy": "zero3", "shard_size": 4}},
            {"micro_batch_size": 2},
            {"gradient_accumulation_steps": 4},
            {"optimizer": "adam_8bit"},
            {"optimizer": "muon"},
            {"optimizer": {"name": "adam", "implementation": "foreach"}},
            {"optimizer": "sgd"},
            {"offload": "optimizer"},
            {"offload": "activations"},
            {"optimizer": "adafactor"},
            {"optimizer": "lion"},
            {"optimizer": {"name": "adam", "state_dtype": "bfloat16"}},
            {"allocator": "expandable_segments"},
            {"checkpoint_traffic": "sharded", "storage": "20 GB/s"},
            {"loss": "chunked"},
            {"loss": "fused"},
            {"clip_norm": 1.0},
            {"dropout": True},
            {"lora": {"rank": 16}},
            {"lora": {"rank": 16, "base": "nf4"}},
            {"trainable": ["head", "layers 28-31"]},
            {"framework": "bare"},
            {"framework": "torchtune"},
            {"framework": "transformers"},
            {"framework": "llm_foundry"},
            {"framework": "nanotron"},
            {"parallelism": {"cp": 4}},
            {"parallelism": {"cp": 4, "context": "all_gather"}},
            {"parallelism": {"cp": 8, "context": "ulysses"}, "seq_len": 65536},
            {"gpu": "h200", "seq_len": 32768},
            {"world_size": 64},
            {"world_size": 16, "topology": "h100_ethernet_100g"},
            {"world_size": 8, "topology": "mi300x_box"},
            {"world_size": 8, "topology": "dgx_b200", "precision": "nvfp4"},
            {"world_size": 8, "topology": "dgx_b300"},
        ),
    ),
    (
        _DDP,
        (
            {},
            {"precision": "fp16"},
            {"precision": "fp32"},
            {"sharding": "zero1"},
            {"sharding": "zero3"},
            {"sharding": {"strategy": "ddp", "bucket_size": "100 MiB"}},
            {"sharding": {"strategy": "parameter_server", "servers": 2, "servers_on": "workers"}},
            {"attention": "eager", "framework": "transformers"},
            {"activation_checkpointing": "full"},
            {"framework": "deepspeed_2021"},
            {"algorithm": "ring"},
            {"algorithm": "tree"},
            {"stragglers": {3: 0.5}},
            {"link_factors": {"gpu0->*": 0.1}},
            {"world_size": 32},
            {"world_size": 4, "topology": "pcie_server"},
            {"world_size": 2, "topology": "geforce_server", "gpu": "rtx_4090", "micro_batch_size": 1},
            {"world_size": 4, "topology": "fully_connected_nvlink", "gpu": "v100_sxm_32gb", "precision": "fp16"},
        ),
    ),
    (
        _TENSOR,
        (
            {},
            {"parallelism": {"sequence_parallel": False}},
            {"parallelism": {"tp_overlap": "ring_exchange"}},
            {"parallelism": {"tp_overlap": "bulk"}},
            {"precision": "fp8"},
            {"activation_checkpointing": "full", "micro_batch_size": 2},
            {"parallelism": {"tp": 4, "cp": 2}},
            {"framework": "nemo"},
            {"compile": True},
            {"topology": "gb200_nvl72"},
        ),
    ),
    (
        _PIPELINE,
        (
            {},
            {"parallelism": {"schedule": "gpipe"}},
            {"parallelism": {"schedule": "interleaved", "virtual_stages": 2, "stages": [4, 4, 4, 4, 4, 4, 3, 3]}},
            {"parallelism": {"schedule": "zb_h1"}},
            {"parallelism": {"schedule": "zb_v"}},
            {"parallelism": {"schedule": "dualpipe_v"}},
            {"parallelism": {"schedule": "zb_h2"}},
            {"parallelism": {"schedule": "v_min"}},
            {"parallelism": {"schedule": "looped_bfs", "virtual_stages": 2, "stages": [4, 4, 4, 4, 4, 4, 3, 3]}},
            {"parallelism": {"tp": 1, "pp": 8}},
            {"parallelism": {"tp": 4, "pp": 2}},
            {"gradient_accumulation_steps": 2},
            {"activation_checkpointing": "full"},
            {"activation_checkpointing": "selective_op", "framework": "megatron_2021"},
            {"framework": "megatron_deepspeed"},
            {"sharding": "ddp"},
            {"precision": "fp16"},
            {"topology": "dgx_h100", "precision": "fp8"},
        ),
    ),
    (
        _EXPERTS,
        (
            {},
            {"precision": "fp8"},
            {"parallelism": {"ep": 8}},
            {"parallelism": {"ep": 8, "pp": 2}, "gradient_accumulation_steps": 4},
            {"parallelism": {"ep": 8, "experts": {"dispatch": "deduplicated"}}},
            {"parallelism": {"ep": 4, "tp": 2}},
            {"parallelism": {"ep": 4, "etp": 2, "tp": 2}},
            {"parallelism": {"experts": {"dispatch": "all_gather"}}},
            {"parallelism": {"experts": {"dispatch": "deduplicated", "dtype": "float8_e4m3fn"}}},
            {"framework": "megatron_core"},
            {"topology": "dgx_h100"},
        ),
    ),
)
# Models of the catalog on the fewest GPUs that do not slow this grid down: model, topology, GPUs, tokens, further keys.
_MODELS: Final[tuple[tuple[str, str, int, int, Settings], ...]] = (
    ("bert_large", "dgx_a100", 8, 512, {"micro_batch_size": 16, "sharding": "ddp"}),
    ("deepseek_v2", "dgx_h100", 32, 4096, {"parallelism": {"ep": 32}}),
    ("deepseek_v3", "dgx_h200", 128, 4096, {"parallelism": {"ep": 64}, "precision": "fp8"}),
    ("dit_xl_2", "dgx_a100", 8, 1, {"micro_batch_size": 32, "sharding": "ddp"}),
    ("gemma2_9b", "dgx_h100", 8, 8192, {}),
    ("gemma3_27b", "dgx_h100", 16, 8192, {}),
    ("gpt2", "dgx_a100", 8, 1024, {"micro_batch_size": 16, "sharding": "ddp"}),
    ("gpt2_large", "dgx_a100", 8, 1024, {"micro_batch_size": 8, "sharding": "ddp"}),
    ("gpt3_175b", "dgx_a100", 64, 2048, {"parallelism": {"tp": 8}}),
    ("gpt_oss_20b", "dgx_h100", 8, 8192, {"parallelism": {"ep": 8}, "sharding": "zero1"}),
    ("llama2_7b", "dgx_a100", 8, 4096, {}),
    ("llama2_13b", "dgx_a100", 16, 4096, {}),
    ("llama2_70b", "dgx_h100", 64, 4096, {"parallelism": {"tp": 4}}),
    ("llama3_2_1b", "geforce_server", 2, 2048, {"framework": "transformers"}),
    ("llama3_2_3b", "dgx_a100", 4, 8192, {}),
    ("llama3_70b", "gb200_nvl72", 72, 8192, {}),
    ("llama3_405b", "dgx_h100", 256, 8192, {"parallelism": {"tp": 8}}),
    ("llama4_scout", "dgx_h200", 64, 8192, {"parallelism": {"ep": 16}}),
    ("megatron_1.7b", "dgx_a100", 32, 2048, {"framework": "megatron_2021", "sharding": "ddp"}),
    ("megatron_18b", "dgx_a100", 64, 2048, {"framework": "megatron_2021", "parallelism": {"tp": 8}}),
    ("mistral_7b", "dgx_h100", 8, 32768, {"parallelism": {"cp": 2, "context": "ulysses"}}),
    ("mixtral_8x7b", "dgx_h100", 16, 4096, {"parallelism": {"ep": 8}}),
    ("mixtral_8x22b", "dgx_h100", 64, 4096, {"parallelism": {"ep": 8, "tp": 4}, "sharding": "zero1"}),
    ("mpt_125m", "dgx_a100", 8, 2048, {"framework": "llm_foundry", "micro_batch_size": 16}),
    ("mpt_7b", "dgx_a100", 8, 2048, {"framework": "llm_foundry", "micro_batch_size": 4}),
    ("mpt_30b", "dgx_h100", 64, 8192, {"framework": "llm_foundry"}),
    ("nanotron_1b", "dgx_h100", 8, 4096, {"framework": "nanotron", "sharding": "zero1"}),
    ("olmo2_7b", "dgx_h100", 8, 4096, {"compile": True}),
    ("phi4", "dgx_h100", 8, 16384, {}),
    ("qwen2.5_7b", "mi300x_box", 8, 8192, {}),
    ("qwen2_0.5b", "dgx_h100", 1, 4096, {"sharding": "ddp", "micro_batch_size": 4}),
    ("qwen2_72b", "dgx_b200", 32, 8192, {"parallelism": {"tp": 8}}),
    ("qwen3_8b", "dgx_b300", 8, 32768, {"precision": "fp8"}),
    ("qwen3_235b_a22b", "gb200_nvl72", 64, 4096, {"parallelism": {"ep": 32}}),
    ("resnet50", "dgx_a100", 8, 1, {"micro_batch_size": 128, "sharding": "ddp", "precision": "fp16"}),
    ("santacoder", "dgx_a100", 8, 2048, {"framework": "transformers"}),
    ("vit_b16", "dgx_a100", 8, 197, {"micro_batch_size": 64, "sharding": "ddp"}),
    ("vit_l16", "dgx_h100", 8, 197, {"micro_batch_size": 64, "sharding": "ddp"}),
)
# Figures of a report's memory: key, and its words in a point's sentence.
_MEMORY: Final = {"peak_memory_bytes": "peak of memory", "process_bytes": "memory of the process"}


def _report(settings: Settings) -> Mapping[str, Any]:
    """Return the report of a training step as plain data; a step that fits on no GPU has one, too."""
    from simulator import simulate, training_scenario

    return simulate(training_scenario(**settings), limit_memory=False).report.to_dict()


def _figure(report: Callable[[], Mapping[str, Any]], key: str, stage: int | None = None) -> float:
    """Return a figure of a step's report [s or B], or of one of its pipeline stages."""
    figure = report()[key]
    return float(figure if stage is None else figure[stage])


def _step(settings: Settings, memory: Iterable[str]) -> Iterator[Point]:
    """Yield the time of a training step, and figures of its memory; peaks of the first and last of several stages."""
    rest = {key: settings[key] for key in settings if key not in ("model", "topology", "world_size")}
    sentence = f"{settings['model']} on {settings['world_size']} GPUs of {settings['topology']}, {_words(rest)}"
    # The step is simulated once for its time and its memory.
    report = cache(partial(_report, settings))
    yield Point("step", f"step of {sentence}", "s", partial(_figure, report, "step_time_s"))
    stages = settings.get("parallelism", {}).get("pp", 1)
    for key in memory:
        if key == "peak_memory_bytes" and stages > 1:
            for stage in (0, stages - 1):
                predict = partial(_figure, report, "peak_memory_by_stage", stage)
                yield Point("memory", f"{_MEMORY[key]} of stage {stage}, {sentence}", "B", predict)
        else:
            yield Point("memory", f"{_MEMORY[key]}, {sentence}", "B", partial(_figure, report, key))


def steps() -> Iterator[Point]:
    """Yield the training steps with their memory: variations of five steps, and models of the catalog."""
    for base, variations in _VARIATIONS:
        for number, variation in enumerate(variations):
            settings = {**base, **variation}
            if "parallelism" in base:
                settings["parallelism"] = {**base["parallelism"], **variation.get("parallelism", {})}
            # Every second variation predicts its memory, every sixth also that of the process.
            memory = ("peak_memory_bytes", "process_bytes")[: (number % 2 == 0) + (number % 6 == 0)]
            yield from _step(settings, memory)
    for model, topology, gpus, tokens, further in _MODELS:
        settings = {"model": model, "topology": topology, "world_size": gpus, "seq_len": tokens, **further}
        yield from _step(settings, ("peak_memory_bytes",))


def _words(settings: Settings, above: str = "") -> str:
    """Return settings as words: "causal, head_dim 64, parallelism.tp 8".

    >>> _words({"causal": True, "head_dim": 64, "compile": False, "parallelism": {"tp": 8}})
    'causal, head_dim 64, no compile, parallelism.tp 8'
    """
    words = []
    for key, value in settings.items():
        name = f"{above}{key}"
        if isinstance(value, dict):
            words.append(_words(value, f"{name}."))
        elif isinstance(value, bool):
            words.append(name if value else f"no {name}")
        else:
            words.append(f"{name} {value}")
    return ", ".join(words)


def points() -> tuple[Point, ...]:
    """Return the points of the grid; those of one training step follow one another."""
    return (*kernels(), *collectives(), *steps())


def share(grid: Iterable[Point], number: int = 10) -> list[Point]:
    """Return one of `number` points of each kind.

    Its place among as many neighbours changes, so that the values of every list above take turns.
    """
    counts: Counter[str] = Counter()
    members = []
    for point in grid:
        block, place = divmod(counts[point.kind], number)
        counts[point.kind] += 1
        if place == 3 * block % number:
            members.append(point)
    return members


def computed(grid: Iterable[Point], progress: Callable[[int], object] = lambda count: None) -> list[Row]:
    """Compute predictions; `progress` is called with the number of those that are computed."""
    rows = []
    with warnings.catch_warnings():
        # Keys without effect and long steps are of no concern here.
        warnings.simplefilter("ignore")
        for count, point in enumerate(grid, 1):
            rows.append(point.row())
            progress(count)
    return rows


def write(rows: Iterable[Row], file: Path) -> None:
    """Write a table of predictions."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream, lineterminator="\n")
        table.writerow(HEADER)
        table.writerows((row.kind, row.point, row.value, row.unit) for row in rows)


def read(file: Path) -> list[Row]:
    """Read a table of predictions.

    Raises
    ------
    ValueError
        The file is no such table.
    """
    with file.open(encoding="utf-8", newline="") as stream:
        header, *lines = list(csv.reader(stream)) or [[]]
    if tuple(header) != HEADER or any(len(line) != len(HEADER) for line in lines):
        raise ValueError(f"{file} is no table of predictions; its columns must be {', '.join(HEADER)}")
    return [Row(*line) for line in lines]


def _show(total: int, count: int) -> None:
    """Show progress on one line of a terminal."""
    print(f"\r{count} of {total} predictions", end="" if count < total else "\n", file=sys.stderr, flush=True)


def main(file: Path) -> None:
    """Write the table of the imported package; steps and their memory are computed together and written by kind."""
    grid = points()
    rows = computed(grid, partial(_show, len(grid))) if sys.stderr.isatty() else computed(grid)
    kinds = list(dict.fromkeys(row.kind for row in rows))
    write(sorted(rows, key=lambda row: kinds.index(row.kind)), file)


if __name__ == "__main__":
    # Ctrl-C ends without a traceback, because tools/prediction_gate.py reports it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    main(Path(sys.argv[1]))
