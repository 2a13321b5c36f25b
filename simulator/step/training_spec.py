"""Which keys does `training` have in a scenario file, and what may each hold? One class for each mapping.

Each field is a key, and the field's type determines the allowed values. Short forms
(`sharding: zero3`, `precision: bf16`) are replaced by their mappings during reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import Field

from simulator.basics import counts, reading, registry
from simulator.basics.errors import one_of
from simulator.basics.spec import Count, LargeCount, Listed, Short, Spec
from simulator.collectives.algorithm_reading import algorithm_reader
from simulator.model.adapters import Lora
from simulator.model.experts_spec import ExpertsSpec
from simulator.model.head import LogitShift
from simulator.model.operation import FULL_ITERATION, GRAPH_SCOPES, AttentionKernels, LossKernels
from simulator.model.trainable import ALL, trained_parts
from simulator.step.checkpointing import Checkpointing
from simulator.step.framework import IMPLEMENTATIONS
from simulator.step.global_batch import batch_of_step
from simulator.step.layer_policies import checkpointing
from simulator.step.learning_spec import (
    SHORT_SCALINGS,
    FaultSpec,
    LearningSpec,
    LossScaling,
)
from simulator.step.lengths import Batching, Lengths
from simulator.step.optimizers.optimizer import DISTRIBUTIONS, OPTIMIZERS
from simulator.step.parallelism import Parallelism
from simulator.step.precision import SHORT_PRECISIONS, Precision
from simulator.step.sharding import SHARDINGS, Sharding


def frameworks() -> tuple[str, ...]:
    """Return the names of frameworks with fitted constants, and "bare" (no constants)."""
    return ("bare", *registry.names("framework"))


def _framework() -> reading.ValueReader:
    listed = registry.listed_by("framework")
    return reading.known_or_path(
        frameworks, (".yaml", ".yml"), listed, installed=lambda: registry.installed_files("framework")
    )


def _graphs() -> reading.ValueReader:
    """Return a validator for what is launched as CUDA graphs: a word, or a list of parts of a layer."""
    words = ("none", FULL_ITERATION)

    def reader(value: Any) -> Any:
        if isinstance(value, str) and value in words:
            return () if value == "none" else (value,)
        names = (value,) if isinstance(value, str) else value
        allowed = f"{one_of(words, '')}, or a list of {', '.join(GRAPH_SCOPES)}"
        if not isinstance(names, list | tuple):
            raise ValueError(f"got {reading.shown(value)}; {allowed}")
        unknown = next((name for name in names if name not in GRAPH_SCOPES), None)
        if unknown is not None and tuple(names) != (FULL_ITERATION,):
            raise ValueError(f"got {unknown!r}; {allowed}")
        return tuple(name for name in (*words, *GRAPH_SCOPES) if name in names)

    schema = {"type": "array", "items": {"enum": [*GRAPH_SCOPES]}}
    return reading.ValueReader(reader, lambda: {"anyOf": [{"enum": [*words, *GRAPH_SCOPES]}, schema]})


ALLOCATORS: Final = ("caching", "expandable_segments")
_STATE_DTYPES: Final = ("auto", "float32", "bfloat16", "float16")
# AdamW's decoupled weight decay changes neither states nor kernels.
_SAME_OPTIMIZERS: Final = {
    "adamw": "adam",
    "adamw_8bit": "adam_8bit",
    "paged_adamw": "paged_adam",
    "paged_adamw_32bit": "paged_adam",
    "paged_adamw_8bit": "paged_adam_8bit",
}
# Variants with equal states and kernels.
_OTHER_OPTIMIZERS: Final = {
    **dict.fromkeys(("nesterov", "sgdm"), "has the same states as momentum; write momentum"),
    **dict.fromkeys(("adamw_bnb_8bit", "adam8bit", "adamw8bit"), "did you mean 'adam_8bit'?"),
    **dict.fromkeys(("adamw_torch", "adamw_torch_fused", "fused_adam"), "did you mean 'adamw'?"),
    "dist_muon": "write optimizer: {name: muon, distribution: owners}",
}
# The longest context in a published model is ten million tokens; more than a billion is probably a typing error.
_MOST_TOKENS: Final = 10**9


_OTHER_ATTENTIONS: Final = {
    **dict.fromkeys(("sdpa", "flash_attention_2", "fused"), "write flash"),
    "unfused": "write standard, or eager for a softmax in float32",
}
_OTHER_LOSSES: Final = {
    **dict.fromkeys(("liger", "fused_linear", "fused_linear_cross_entropy", "cut_cross_entropy"), "write chunked"),
    "liger_cross_entropy": "write in_place",
    **dict.fromkeys(("cross_entropy", "eager", "unfused"), "write separate"),
}
OFFLOADS: Final[Mapping[str, Mapping[str, Any]]] = {
    "none": {"what": "none"},
    "optimizer": {"what": "optimizer"},
    "activations": {"activations": True},
}
_OTHER_OFFLOADS: Final = {
    **dict.fromkeys(("cpu", "host", "states", "zero_offload"), "write optimizer"),
    **dict.fromkeys(("parameters", "params"), "is not supported yet; the optimizer and activations can be offloaded"),
}
SHORT_OPTIMIZERS: Final = Short(
    {
        **{name: {"name": name} for name in OPTIMIZERS.names()},
        **{name: {"name": of} for name, of in _SAME_OPTIMIZERS.items()},
    },
    _OTHER_OPTIMIZERS,
    "name",
)
SHORT_OFFLOADS: Final = Short(OFFLOADS, _OTHER_OFFLOADS)
# Keys with a short form. An axis below such a key needs the mapping: sharding.shard_size under `sharding: zero3`.
SHORTS: Final[Mapping[tuple[str, ...], Short]] = MappingProxyType(
    {
        ("training", "sharding"): SHARDINGS,
        ("training", "precision"): SHORT_PRECISIONS,
        ("training", "optimizer"): SHORT_OPTIMIZERS,
        ("training", "offload"): SHORT_OFFLOADS,
        ("training", "loss_scaling"): SHORT_SCALINGS,
    }
)


def without_short_form(key: tuple[str, ...], value: Any) -> Any:
    """Return the mapping that a short form (word) under this key stands for; return any other value unchanged.

    >>> without_short_form(("training", "sharding"), "zero2")
    {'strategy': 'zero2'}
    """
    short = SHORTS.get(key)
    mapping = None if short is None else short.known(value)
    return value if mapping is None else mapping


_LOSS: Final = reading.choice(("auto", *get_args(LossKernels)), _OTHER_LOSSES)


class OptimizerSpec(Spec):
    """The optimizer, with an implementation for the update (keys of `optimizer`)."""

    # An alias is stored under its proper name: `adamw` becomes "adam".
    name: Annotated[str, reading.part(reading.choice(OPTIMIZERS.names(), _OTHER_OPTIMIZERS, _SAME_OPTIMIZERS))] = Field(
        default="adam",
        description=(
            "Optimizer (determines the states and kernels), or the path of an own optimizer; adamw means adam. States "
            "of a paged optimizer move to the host as far as the GPU lacks memory."
        ),
    )
    distribution: Annotated[
        Literal["auto", "replicated", "gathered", "owners", "all_to_all"], reading.choice(("auto", *DISTRIBUTIONS))
    ] = Field(
        default="auto",
        description=(
            "Where muon's whole matrices come together. replicated: on every rank (ddp); gathered: on every rank, from "
            "shards; owners: each on a rank that owns it (ddp, zero1); all_to_all: each on a rank, from shards and "
            "back; auto: replicated for ddp, else gathered."
        ),
    )
    iterations: Annotated[int, reading.whole(1, 100)] = Field(
        default=5, description="Newton-Schulz iterations of muon."
    )
    implementation: Annotated[
        Literal["auto", "fused", "foreach", "for_loop"], reading.choice(("auto", *IMPLEMENTATIONS))
    ] = Field(
        default="auto",
        description=(
            "fused: a single kernel; foreach: a kernel per arithmetic operation for all tensors; for_loop: a kernel "
            "per arithmetic operation and tensor; auto: the framework's default."
        ),
    )
    state_dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], reading.choice(_STATE_DTYPES)] = Field(
        default="auto",
        description=(
            "Dtype of the optimizer's states, such as Adam's moments; auto: float32, or the dtype of half-precision "
            "parameters without a master copy, as in PyTorch."
        ),
    )


class Offload(Spec):
    """State stored on the host instead of the GPU (keys of `offload`)."""

    what: Annotated[Literal["none", "optimizer"], reading.choice(("none", "optimizer"), _OTHER_OFFLOADS)] = Field(
        default="none",
        description="Data to offload to the host: none, or the optimizer's states and update (optimizer).",
    )
    fraction: Annotated[float, reading.number(positive=True, most=1.0)] = Field(
        default=1.0,
        description="Share of the parameters whose states the host keeps and updates; the GPU updates the others.",
    )
    activations: Annotated[bool, reading.YES_NO] = Field(
        default=False,
        description=(
            "Whether saved activations of layers wait in host memory for the backward pass, which fetches them a layer "
            "ahead; each stage's last layer keeps its activations on the GPU."
        ),
    )
    # Four A100 nodes update 72.7 billion parameters, 28 bytes each, in about 10 s
    # (github.com/deepspeedai/DeepSpeed/issues/6834, Qwen 72B with ZeRO-3 on 32 A100). Other reports have 0.4 to 4
    # billion parameters per second and node: 11 to 110 GB/s.
    host_rate: Annotated[float, reading.rate()] = Field(
        default=50e9, description="Memory bandwidth of a node's processors during the update."
    )

    @property
    def states(self) -> bool:
        """True if a node's processors keep and update the optimizer's states."""
        return self.what == "optimizer"


class TrainingSpec(Spec):
    """A single training step (keys of `training`)."""

    # The model's own keys are checked by `model/load.py`, for files and for inline models.
    model: Annotated[Any, reading.named_or_written_out("model", "the name of a model")] = Field(
        description=(
            "Model: a catalog name, the path of a Hugging Face config.json, of a file of layers or of a traced module, "
            "or the keys of such a file."
        )
    )
    seq_len: Annotated[int, reading.count(1, _MOST_TOKENS, counts.TOKENS)] = Field(
        description="Sequence length in tokens, 1 for images of a list of layers; 8k is 8192."
    )
    micro_batch_size: Count = Field(default=1, description="Number of sequences per micro-batch on each rank.")
    gradient_accumulation_steps: LargeCount = Field(
        default=1, description="Number of micro-batches per optimizer step; 1k is 1000."
    )
    # Stored as text: the number of sequences depends on `seq_len`, which may be an axis.
    global_batch: Annotated[str, batch_of_step()] | None = Field(
        default=None,
        description=(
            "Global batch of a step: in tokens (4M; k is 1024) or in sequences (512seq); alternative to "
            "gradient_accumulation_steps."
        ),
    )
    lengths: Lengths | None = Field(
        default=None, description="Lengths of the documents; by default, every document has seq_len tokens."
    )
    batching: Annotated[Batching, reading.choice(get_args(Batching))] = Field(
        default="pack",
        description=(
            "How documents of unequal lengths become sequences. pad: padded to seq_len; pad_to_longest: to the longest "
            "of a micro-batch; bucket: so, after sorting by length; pack: several in a sequence of seq_len, attention "
            "within each document; pack_balanced: so, with like work on all ranks."
        ),
    )
    tokens_used: Annotated[float, reading.number(positive=True, most=1.0)] = Field(
        default=1.0,
        description=(
            "Share of a batch's tokens that are not padding. Padding is computed like other tokens: the share changes "
            "no time, only the rate of useful tokens."
        ),
    )
    mtp_layers: Annotated[int, reading.whole(0, 16)] = Field(
        default=0,
        description=(
            "Layers behind the model's that each predict a further token (multi-token prediction); on the last "
            "pipeline stage, unless `stages` lists the layers of each stage."
        ),
    )
    parallelism: Parallelism = Field(
        default=Parallelism(), description="Sizes and options for each kind of parallelism."
    )
    sharding: Annotated[Sharding, SHARDINGS] = Field(
        default=Sharding(), description="Sharding of the model states; short form: a strategy's name."
    )
    precision: Annotated[Precision, SHORT_PRECISIONS] = Field(
        default=Precision(), description="Dtypes; short forms: fp64, fp32, tf32, fp16, bf16, fp8 and nvfp4."
    )
    activation_checkpointing: Annotated[Checkpointing, checkpointing()] = Field(
        default="none", description="Activations that are discarded and recomputed."
    )
    attention: Annotated[AttentionKernels, reading.choice(get_args(AttentionKernels), _OTHER_ATTENTIONS)] = Field(
        default="flash",
        description=(
            "Attention kernels: flash (scores stay on the chip), standard (scores go through HBM), or eager (as "
            "standard, with a softmax in float32 by separate kernels: Transformers' eager attention, Megatron-LM's "
            "--no-masked-softmax-fusion)."
        ),
    )
    attention_generation: Annotated[int | Literal["auto"], reading.whole_or("auto", 1, 4)] = Field(
        default="auto",
        description=(
            "Generation of the flash attention kernels: FlashAttention 1 to 3, 4 for Blackwell's kernels "
            "(FlashAttention-4, cuDNN); auto: 4 on Blackwell, else 2."
        ),
    )
    optimizer: Annotated[OptimizerSpec, SHORT_OPTIMIZERS] = Field(
        default=OptimizerSpec(),
        description="Optimizer and the implementation of its update; short form: the optimizer's name.",
    )
    collectives: Annotated[
        Literal["auto", "played", "closed_form"], reading.choice(("auto", "played", "closed_form"))
    ] = Field(
        default="auto",
        description=(
            "Collectives: simulated transfer by transfer (played), or by closed forms where exact (closed_form)."
        ),
    )
    algorithm: Annotated[str, algorithm_reader()] = Field(
        default="auto",
        description="Algorithm for every collective: a name, a path, or auto, the machine's choice.",
    )
    compile: Annotated[bool, reading.YES_NO] = Field(default=False, description="Whether a compiler merges kernels.")
    dropout: Annotated[bool | float, reading.yes_no_or_probability()] = Field(
        default=False, description="Dropout: true (probability 0.1), false, or a probability."
    )
    framework: Annotated[str, _framework()] = Field(
        default="torchtitan",
        description="Framework whose fitted constants slow down kernels: a catalog name, bare (no constants), or the "
        "path of a framework file, such as `simulator calibrate` writes.",
    )
    allocator: Annotated[Literal["caching", "expandable_segments"], reading.choice(ALLOCATORS)] = Field(
        default="caching", description="Allocator of GPU memory."
    )
    offload: Annotated[Offload, SHORT_OFFLOADS] = Field(
        default=Offload(), description="Data on the host: none, optimizer, activations."
    )
    checkpoint_traffic: Annotated[Literal["none", "sharded"], reading.choice(("none", "sharded"))] = Field(
        default="none",
        description="Checkpoint in flight during the step: none, or each rank's share to host and storage (sharded).",
    )
    trainable: Annotated[Any, trained_parts()] = Field(
        default=ALL,
        description=(
            "Trained parts of the model: all, or a list of embedding, head, layer 3, layers 28-31, and patterns of "
            "parameters such as layers.*.attention.*; other parts are frozen."
        ),
    )
    lora: Lora = Field(default=Lora(), description="Low-rank adapters on a frozen model.")
    loss: Annotated[LossKernels | Literal["auto"], _LOSS] = Field(
        default="auto",
        description=(
            "Kernels of the loss: PyTorch's cross entropy of a float32 copy (separate), or in the dtype of the logits "
            "(narrow); the same with every array moved once and gradients in place (ideal); Megatron-LM's unfused "
            "kernels (vocab_parallel), and nanotron's (sharded); compiled functions in float32 (native, Megatron-LM's "
            "native fusion); a kernel that overwrites the logits in the backward pass (fused), or already in the "
            "forward pass (in_place, Liger's cross entropy); head and loss together, a chunk of tokens at a time "
            "(chunked, Liger's fused linear cross entropy); auto: the framework's."
        ),
    )
    logit_shift: Annotated[LogitShift, reading.choice(get_args(LogitShift))] = Field(
        default="none",
        description=(
            "Copy of the logits without each sequence's last token, as in Transformers up to 4.48: none, or a copy "
            "before or after the cast to float32."
        ),
    )
    float32_outputs: Annotated[bool, reading.YES_NO] = Field(
        default=False,
        description="Whether the model returns a float32 copy of its logits, as Accelerate's mixed precision does.",
    )
    use_cache: Annotated[bool, reading.YES_NO] = Field(
        default=False,
        description=(
            "Whether recomputed layers return keys and values, which stay allocated until the loss is computed, as "
            "in GPT-BigCode of Transformers up to 4.48."
        ),
    )
    cuda_graphs: Annotated[tuple[str, ...], _graphs()] = Field(
        default=(),
        description=(
            "What the host launches as a CUDA graph, as a whole: none, full_iteration (a step), or a list of the parts "
            "of a layer attn, mamba, mlp, moe_router and moe_preprocess, as Megatron-Core names them."
        ),
    )
    loss_scaling: Annotated[LossScaling, SHORT_SCALINGS] = Field(
        default=LossScaling(), description="Loss scaling: rule and options; short form: the rule's name."
    )
    clip_norm: Annotated[float, reading.number(positive=True, most=1e30)] | None = Field(
        default=None, description="Maximum gradient norm; no clipping if omitted."
    )
    numerics: Annotated[bool, reading.YES_NO] = Field(
        default=False,
        description="Whether a real model trains during the simulation, with real arrays in every transfer.",
    )
    steps: Annotated[int, reading.count(1, 100_000, counts.THINGS)] = Field(
        default=20, description="Number of training steps, with numerics or asynchronous servers; 1k is 1000."
    )
    learning: LearningSpec = Field(default=LearningSpec(), description="numerics: training data and learning rate.")
    faults: Listed[FaultSpec] = Field(default=(), description="numerics: injected faults.")


# Mappings with dotted keys by their key path below `training`: their keys can be set and varied one by one.
MAPPINGS: Final[Mapping[tuple[str, ...], type[Spec]]] = MappingProxyType(
    {
        (): TrainingSpec,
        ("parallelism",): Parallelism,
        ("parallelism", "experts"): ExpertsSpec,
        ("sharding",): Sharding,
        ("precision",): Precision,
        ("optimizer",): OptimizerSpec,
        ("offload",): Offload,
        ("lora",): Lora,
        ("lengths",): Lengths,
        ("loss_scaling",): LossScaling,
        ("learning",): LearningSpec,
    }
)
