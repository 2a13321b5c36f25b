"""How is a training step written as a script of Megatron-LM?

The inverse of `importing/formats/megatron.py`. An option that has its default is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

from simulator.basics import dtypes
from simulator.basics.dtypes import is_narrow
from simulator.model.shape import Transformer
from simulator.step.checkpointing import JOINED, MODULES
from simulator.step.parallelism import Parallelism
from simulator.step.spec import TrainingStep
from simulator.step.strategies.strategy import STRATEGIES

_OPTIMIZERS: Final = {"adam": "adam", "momentum": "sgd", "muon": "muon", "lion": "lion"}
# Strategies of Megatron FSDP, by the number of kinds of states that are sharded.
_SHARDED: Final = {2: "optim_grads", 3: "optim_grads_params"}
_RECOMPUTED: Final = {"attention": "core_attn", "feed_forward": "mlp", "activation": "moe_act"}
_RECIPES: Final = {"tensor": "tensorwise", "block": "blockwise"}
_DISPATCHERS: Final = {"all_to_all": "alltoall", "all_gather": "allgather", "deduplicated": "flex"}
_LOSSES: Final = {"fused": "te", "native": "native"}
_DTYPES: Final = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
# Larger than the gradients of any rank [B]: gradients travel at once, after the backward pass.
_ONE_BUCKET: Final = 2**50


def script(step: TrainingStep, world_size: int, node_size: int) -> str:
    """Return a script that runs a training step with Megatron-LM.

    Parameters
    ----------
    step : TrainingStep
        The step of a transformer.
    world_size, node_size : int
        Number of GPUs, and of GPUs in a node.
    """
    groups = {
        "MODEL_ARGS": list(_model(step.transformer, step.keys.seq_len)),
        "TRAINING_ARGS": list(_training(step, world_size)),
        "PARALLEL_ARGS": list(_parallelism(step.parallelism, step)),
    }
    lines = ["#!/bin/bash", f"GPUS_PER_NODE={min(node_size, world_size)}", f"NNODES={-(-world_size // node_size)}", ""]
    for name, options in groups.items():
        lines += [f"{name}=(", *(f"    {option}" for option in options), ")"]
    arrays = " ".join(f"${{{name}[@]}}" for name in groups)
    launcher = "torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
    program = "pretrain_mamba.py" if step.transformer.blocks else "pretrain_gpt.py"
    return "\n".join([*lines, "", f"{launcher} {program} \\", f"    {arrays}", ""])


def _model(model: Transformer, seq_len: int) -> Iterator[str]:
    layers = model.num_layers - model.mtp_layers
    yield f"--num-layers {layers} --hidden-size {model.hidden_size} --num-attention-heads {model.num_heads}"
    if model.mtp_layers:
        yield f"--mtp-num-layers {model.mtp_layers}"
    wide = model.dense_ffn_size if model.dense_layers or model.expert_every > 1 else model.ffn_size
    positions = model.max_positions if model.positions == "learned" else max(seq_len, model.max_positions)
    yield f"--ffn-hidden-size {wide} --seq-length {seq_len} --max-position-embeddings {positions}"
    yield f"--vocab-size {model.vocab_size}"
    if model.num_kv_heads != model.num_heads:
        yield f"--group-query-attention --num-query-groups {model.num_kv_heads}"
    if model.latent is None and model.head_dim * model.num_heads != model.hidden_size:
        yield f"--kv-channels {model.head_dim}"
    yield from _switches(model)
    if model.num_experts:
        yield f"--num-experts {model.num_experts} --moe-router-topk {model.active_experts}"
        yield f"--moe-ffn-hidden-size {model.ffn_size}"
        if model.shared_experts:
            yield f"--moe-shared-expert-intermediate-size {model.shared_experts * model.ffn_size}"
        if model.dense_layers:
            yield f"--moe-layer-freq '([0]*{model.dense_layers}+[1]*{layers - model.dense_layers})'"
        elif model.expert_every > 1:
            yield f"--moe-layer-freq {model.expert_every}"
        if model.expert_groups > 1:
            yield f"--moe-router-num-groups {model.expert_groups} --moe-router-group-topk {model.active_groups}"
        if model.router_bias:
            yield "--moe-router-enable-expert-bias"
    if model.blocks:
        yield f"--hybrid-override-pattern '{''.join(model.blocks[:layers])}'"
    if model.mamba is not None:
        sizes = model.mamba
        yield f"--mamba-num-heads {sizes.heads} --mamba-head-dim {sizes.head_dim}"
        yield f"--mamba-num-groups {sizes.groups} --mamba-state-dim {sizes.state}"
    if model.expert_latent:
        yield f"--moe-latent-size {model.expert_latent}"
    if model.latent is not None:
        latent = model.latent
        yield f"--multi-latent-attention --kv-lora-rank {latent.kv_rank}"
        if latent.query_rank:
            yield f"--q-lora-rank {latent.query_rank}"
        yield f"--qk-head-dim {latent.plain_dim} --qk-pos-emb-head-dim {latent.rotary_dim}"
        yield f"--v-head-dim {latent.value_dim}"


def _switches(model: Transformer) -> Iterator[str]:
    if model.norm == "rmsnorm":
        yield "--normalization RMSNorm"
    if model.gated:
        yield "--swiglu"
    if model.positions != "learned":
        yield f"--position-embedding-type {'rope' if model.positions == 'rotary' else 'none'}"
    if not model.tied:
        yield "--untie-embeddings-and-output-weights"
    if not model.mlp_bias:
        yield "--disable-bias-linear"
    if model.attention_bias and not model.mlp_bias:
        yield "--add-qkv-bias"
    if model.qk_norm != "none":
        yield "--qk-layernorm"


def _training(step: TrainingStep, world_size: int) -> Iterator[str]:
    """Yield the options of batch, precision, optimizer, sharding and recompute."""
    copies = world_size // step.parallelism.size
    batch = step.keys.micro_batch_size * step.accumulation * copies
    yield f"--micro-batch-size {step.keys.micro_batch_size} --global-batch-size {batch}"
    dropout = 0.1 if step.keys.dropout else 0.0
    yield f"--attention-dropout {dropout} --hidden-dropout {dropout}"
    # Only Megatron-Core's own layers read the options of the softmax.
    if step.keys.attention == "eager" or step.framework.origin == "megatron_local":
        yield "--transformer-impl local"
    if step.keys.attention == "eager":
        yield "--no-masked-softmax-fusion --attention-softmax-in-fp32"
    elif step.keys.attention == "flash" or step.framework.origin != "megatron_local":
        yield f"--attention-backend {'unfused' if step.keys.attention == 'standard' else 'flash'}"
    yield from _precision(step)
    if step.optimizer.name in _OPTIMIZERS and step.optimizer.name != "adam":
        yield f"--optimizer {_OPTIMIZERS[step.optimizer.name]}"
    if step.optimizer.state_dtype != "float32":
        moment = _DTYPES[step.optimizer.state_dtype]
        yield f"--use-precision-aware-optimizer --exp-avg-dtype {moment} --exp-avg-sq-dtype {moment}"
    if step.keys.offload.states:
        fraction = step.keys.offload.fraction
        yield "--optimizer-cpu-offload" + (f" --optimizer-offload-fraction {fraction:g}" if fraction < 1 else "")
    if step.keys.offload.activations:
        yield "--cpu-offloading"
    yield from _sharding(step, copies)
    policy = step.keys.activation_checkpointing
    if policy == "full":
        yield "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    elif isinstance(policy, str) and set(policy.split(JOINED)) <= set(MODULES):
        yield f"--recompute-granularity selective --recompute-modules {policy.replace(JOINED, ' ')}"
    elif isinstance(policy, str) and policy in _RECOMPUTED:
        yield f"--recompute-granularity selective --recompute-modules {_RECOMPUTED[policy]}"
    if step.keys.loss in _LOSSES:
        yield f"--cross-entropy-loss-fusion --cross-entropy-fusion-impl {_LOSSES[step.keys.loss]}"
    yield f"--clip-grad {0.0 if step.keys.clip_norm is None else step.keys.clip_norm}"


def _precision(step: TrainingStep) -> Iterator[str]:
    precision = step.precision
    if precision.params in ("bfloat16", "float16"):
        yield f"--{_DTYPES[precision.params]}"
    if precision.params == "bfloat16" and precision.grads == "bfloat16":
        yield "--grad-reduce-in-bf16"
    if precision.params == "float16" and precision.grads == "float32":
        yield "--accumulate-allreduce-grads-in-fp32"
    if is_narrow(precision.matmul):
        if dtypes.find(precision.matmul, stored=False).bits == 4:
            yield "--fp4-format e2m1"
        else:
            yield f"--fp8-format hybrid --fp8-recipe {_RECIPES.get(precision.scaling, 'tensorwise')}"


def _sharding(step: TrainingStep, copies: int) -> Iterator[str]:
    sharding = step.sharding
    kinds = len(STRATEGIES.find(sharding.strategy).shards)
    if kinds == 1:
        yield "--use-distributed-optimizer"
    elif kinds in _SHARDED:
        yield f"--use-megatron-fsdp --data-parallel-sharding-strategy {_SHARDED[kinds]}"
    if sharding.shard_size is not None and copies > sharding.shard_size:
        yield f"--num-distributed-optimizer-instances {copies // sharding.shard_size}"
    if sharding.bucket_size < _ONE_BUCKET:
        elements = max(1, sharding.bucket_size // dtypes.find(step.precision.grads).itemsize)
        yield f"--overlap-grad-reduce --ddp-bucket-size {elements}"


def _parallelism(cut: Parallelism, step: TrainingStep) -> Iterator[str]:
    """Yield the options of tensor, pipeline, context and expert parallelism."""
    yield f"--tensor-model-parallel-size {cut.tp} --pipeline-model-parallel-size {cut.pp}"
    if cut.sequence_parallel and cut.tp > 1:
        yield "--sequence-parallel"
    if cut.tp_overlap != "none":
        yield "--tp-comm-overlap"
    # A layout says the number of stages per rank, too.
    if cut.layers_of_stages:
        yield f"--pipeline-model-parallel-layout '{_layout(cut.layers_of_stages, step.model.mtp_layers)}'"
    elif cut.virtual_stages > 1:
        yield f"--num-virtual-stages-per-pipeline-rank {cut.virtual_stages}"
    if cut.microbatch_group is not None:
        yield f"--microbatch-group-size-per-virtual-pipeline-stage {cut.microbatch_group}"
    if cut.deferred_head_gradients:
        limit = 0 if cut.deferred_head_gradients == "all" else cut.deferred_head_gradients
        yield f"--defer-embedding-wgrad-compute --wgrad-deferral-limit {limit}"
    if cut.less[0]:
        yield "--account-for-embedding-in-pipeline-split"
    if cut.less[1]:
        yield "--account-for-loss-in-pipeline-split"
    if cut.cp > 1:
        ring = cut.cp // cut.ulysses
        kind = "a2a" if ring == 1 else "a2a+p2p" if cut.ulysses > 1 else "all_gather" if cut.gathers_keys else "p2p"
        yield f"--context-parallel-size {cut.cp} --cp-comm-type {kind}"
        if kind == "a2a+p2p":
            yield f"--hierarchical-context-parallel-sizes {cut.ulysses} {ring}"
    if step.transformer.num_experts:
        experts = cut.experts
        yield f"--expert-model-parallel-size {cut.ep} --expert-tensor-parallel-size {cut.expert_tensor}"
        yield f"--moe-token-dispatcher-type {_DISPATCHERS[experts.dispatch]}"
        if experts.capacity is not None:
            yield f"--moe-expert-capacity-factor {experts.capacity}"
    if cut.order[-1] == "dp":
        yield "--use-tp-pp-dp-mapping"


def _layout(stages: Sequence[int], mtp_layers: int) -> str:
    """Return the pipeline layout whose stages have these numbers of layers.

    >>> _layout([3, 2, 0], mtp_layers=1)
    'Ettt|tm|L'
    """
    layers = "t" * (sum(stages) - mtp_layers) + "m" * mtp_layers
    parts = (layers[end - size : end] for size, end in zip(stages, accumulate(stages), strict=True))
    return f"E{'|'.join(parts)}L"
