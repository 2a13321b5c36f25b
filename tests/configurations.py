"""A sample of every configuration format, with the scenario keys that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from simulator.importing.machine import Options


@dataclass(frozen=True, slots=True)
class Sample:
    """A configuration of a format.

    Attributes
    ----------
    file, text : str
        Name and text of the file; `{extra}` stands where a further setting may be written.
    expected : mapping of dotted key to value
        Scenario keys that follow from the file.
    unknown : str
        A setting that no table has, as written in the file; its name is `brand_new` or `--brand-new`.
    wrong : tuple of str
        A text of the file, and a text of a wrong type in its place.
    ignored : tuple of str
        Settings that change the step without being modelled.
    idle : tuple of str
        Settings that change no step.
    options : Options
        Options of the command.
    function : str
        Function of a Python file.
    """

    file: str
    text: str
    expected: Mapping[str, Any]
    unknown: str
    wrong: tuple[str, str]
    ignored: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    options: Options = field(default_factory=Options)
    function: str = ""

    def written(self, extra: str = "") -> str:
        """The file's text with a further setting."""
        return self.text.replace("{extra}", extra)


_MEGATRON: Final = """\
#!/bin/bash
#SBATCH --nodes=2
# A comment with --num-layers 7 inside.
TP=${TP:-4}
SEQ="4096"
GPUS=8
MODEL=(
    --num-layers 32            # layers
    --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --seq-length $SEQ --max-position-embeddings ${SEQ}
    --normalization RMSNorm --swiglu --position-embedding-type rope
    --untie-embeddings-and-output-weights --disable-bias-linear --vocab-size 128256
)
EXTRA="--attention-dropout 0.0 --hidden-dropout 0.0"
OTHER=( "--recompute-granularity full" )
OTHER+=( --recompute-method uniform --recompute-num-layers 1 )
if [ "$FAST" == "1" ]; then
    OTHER+=( --fp8-format hybrid )
fi
cat <<END > config.json
--num-layers 99
END
torchrun --nproc_per_node $GPUS --rdzv_id 7 pretrain_gpt.py "${MODEL[@]}" $EXTRA ${OTHER[@]} \\
    --tensor-model-parallel-size=$TP --sequence-parallel --use-distributed-optimizer --overlap-param-gather \\
    --micro-batch-size 2 --global-batch-size 64 --bf16 --lr 1e-4 --log-interval 1 {extra}
"""
_MEGATRON_YAML: Final = """\
ENV_VARS:
  CUDA_DEVICE_MAX_CONNECTIONS: 1
MODEL_ARGS:
  --num-layers: 24
  --hidden-size: 1024
  --num-attention-heads: 16
  --seq-length: 1024
  --max-position-embeddings: 1024
  --vocab-size: 50257
  --micro-batch-size: 4
  --global-batch-size: 32
  --pipeline-model-parallel-size: 2
  --num-layers-per-virtual-pipeline-stage: 3
  --fp16: true
  --data-path: ${DATA_PATH}
  {extra}
"""
_DEEPSPEED: Final = """\
{
  "train_batch_size": 64, {extra}
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 4,
  "bf16": {"enabled": true},
  "communication_data_type": "bf16",
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-4}},
  "zero_optimization": {
    "stage": 3,
    "stage3_prefetch_bucket_size": 5e7,
    "stage3_param_persistence_threshold": 1e5,
    "offload_optimizer": {"device": "cpu"},
    "offload_param": {"device": "cpu"}
  }
}
"""
_TORCHTITAN: Final = """\
[model]
name = "llama3"
flavor = "8B"
converters = ["float8"]

[training]
local_batch_size = 2
seq_len = 8192
compile = true
steps = 10
{extra}

[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 8
tensor_parallel_degree = 2
fsdp_reshard_after_forward = "never"

[activation_checkpoint]
mode = "selective"
selective_ac_option = "2"

[float8]
enable_fsdp_float8_all_gather = true
"""
_TORCHTITAN_PYTHON: Final = """\
def llama3_70b() -> Trainer.Config:
    return Trainer.Config(
        model_spec=model_registry("70B"),
        optimizer=OptimizersContainer.Config(lr=1.5e-4),
        training=TrainingConfig(local_batch_size=8, seq_len=8192, steps=1000),
        parallelism=ParallelismConfig(tensor_parallel_degree=8),
        activation_checkpoint=ActivationCheckpointConfig(mode="full"),
        {extra}
    )


def llama3_70b_long() -> Trainer.Config:
    config = llama3_70b()
    config.training.seq_len = 16384
    config.parallelism = ParallelismConfig(tensor_parallel_degree=4, context_parallel_degree=2)
    return config
"""
_NEMO: Final = """\
name: gpt
trainer: {devices: 8, num_nodes: 2, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 32
  tensor_model_parallel_size: 8
  sequence_parallel: true
  encoder_seq_length: 2048
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 40
  hidden_size: 6144
  num_attention_heads: 48
  hidden_dropout: 0.1
  {extra}
  optim: {name: distributed_fused_adam, lr: 2e-4}
"""
_BRIDGE: Final = """\
model:
  seq_length: 4096
  tensor_model_parallel_size: 2
  hf_model_id: meta-llama/Meta-Llama-3-70B
  {extra}
train: {global_batch_size: 64, micro_batch_size: 1}
ddp: {use_distributed_optimizer: true, overlap_grad_reduce: true, grad_reduce_in_fp32: true}
mixed_precision: bf16_with_fp8_current_scaling_mixed
optimizer: {lr: 0.00025}
"""
_TRAINER: Final = """\
{
  "model_name_or_path": "meta-llama/Llama-3.1-8B", {extra}
  "per_device_train_batch_size": 2,
  "gradient_accumulation_steps": 8,
  "max_seq_length": 4096,
  "bf16": true,
  "gradient_checkpointing": true,
  "fsdp": "full_shard auto_wrap",
  "optim": "adamw_torch_fused",
  "learning_rate": 1e-5
}
"""
_ACCELERATE: Final = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: SHARD_GRAD_OP
  fsdp_offload_params: false
mixed_precision: bf16
num_machines: 2
num_processes: 16
{extra}
"""
_LLAMA_FACTORY: Final = """\
model_name_or_path: meta-llama/Meta-Llama-3-8B-Instruct
stage: sft
finetuning_type: lora
lora_target: q_proj,v_proj
lora_rank: 16
quantization_bit: 4
cutoff_len: 2048
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
deepspeed: ds.json
bf16: true
pure_bf16: true
{extra}
"""
_AXOLOTL: Final = """\
base_model: NousResearch/Llama-2-7b-hf
sequence_len: 4096
micro_batch_size: 2
gradient_accumulation_steps: 4
optimizer: adamw_bnb_8bit
bf16: auto
gradient_checkpointing: true
flash_attention: true
liger_fused_linear_cross_entropy: true
adapter:
fsdp: [full_shard, auto_wrap]
sample_packing: false
learning_rate: 0.0002
{extra}
"""

SAMPLES: Final[Mapping[str, tuple[Sample, ...]]] = MappingProxyType(
    {
        "Megatron-LM": (
            Sample(
                "train.sh", _MEGATRON,
                {
                    "cluster.world_size": 16, "training.model": "llama3_8b", "training.seq_len": 4096,
                    "training.micro_batch_size": 2, "training.global_batch": "64seq", "training.dropout": False,
                    "training.parallelism.tp": 4, "training.parallelism.sequence_parallel": True,
                    "training.sharding.strategy": "zero1", "training.sharding.bucket_size": "1 PiB",
                    "training.activation_checkpointing": "full", "training.precision.params": "bfloat16",
                    "training.precision.grads": "float32", "training.framework": "megatron_core",
                },
                "--brand-new 7", ("--num-layers 32", "--num-layers many"), ("--overlap-param-gather",),
                ("--lr", "--log-interval", "--rdzv_id"),
            ),
            Sample(
                "model_config.yaml", _MEGATRON_YAML,
                {
                    "training.model": "gpt2_medium", "training.parallelism.pp": 2,
                    "training.parallelism.virtual_stages": 4, "training.parallelism.schedule": "interleaved",
                    "training.precision.params": "float16", "training.precision.grads": "float16",
                    "training.sharding.strategy": "ddp", "training.dropout": 0.1,
                },
                "--brand-new: 7", ("--seq-length: 1024", "--seq-length: [1024]"), (),
                ("MODEL_ARGS.--data-path", "ENV_VARS.CUDA_DEVICE_MAX_CONNECTIONS"), Options(gpus=8),
            ),
        ),
        "DeepSpeed": (
            Sample(
                "ds.json", _DEEPSPEED,
                {
                    "cluster.world_size": 8, "training.sharding.strategy": "zero3", "training.sharding.prefetch": 1,
                    "training.sharding.keep_below": 100_000, "training.offload": "optimizer",
                    "training.precision.params": "bfloat16", "training.precision.reduce": "bfloat16",
                    "training.optimizer.name": "adam", "training.micro_batch_size": 2,
                    "training.gradient_accumulation_steps": 4, "training.model": "llama2_7b",
                },
                '"brand_new": 7,', ('"stage": 3', '"stage": "three"'), ("zero_optimization.offload_param.device",),
                ("optimizer.params.lr",), Options(model="llama2_7b"),
            ),
        ),
        "torchtitan": (
            Sample(
                "train.toml", _TORCHTITAN,
                {
                    "cluster.world_size": 32, "training.model": "llama3_8b", "training.micro_batch_size": 2,
                    "training.parallelism.tp": 2, "training.sharding.shard_size": 8, "training.compile": True,
                    "training.sharding.reshard_after_forward": False, "training.precision.matmul": "float8_e4m3fn",
                    "training.activation_checkpointing": {"every": 2},
                },
                "brand_new = 7", ("seq_len = 8192", 'seq_len = "long"'), ("float8.enable_fsdp_float8_all_gather",),
                ("training.steps",),
            ),
            Sample(
                "config_registry.py", _TORCHTITAN_PYTHON,
                {
                    "training.model": "llama3_70b", "training.seq_len": 16384, "training.parallelism.tp": 4,
                    "training.parallelism.cp": 2, "training.activation_checkpointing": "full",
                    "training.micro_batch_size": 8, "cluster.world_size": 64,
                },
                "brand_new=7,", ("tensor_parallel_degree=4", "tensor_parallel_degree=[4]"), (), ("optimizer.lr",),
                Options(nodes=8),
                "llama3_70b_long",
            ),
        ),
        "NeMo and Megatron-Bridge": (
            Sample(
                "gpt.yaml", _NEMO,
                {
                    "cluster.world_size": 16, "training.model": "megatron_18b", "training.parallelism.tp": 8,
                    "training.sharding.strategy": "zero1", "training.precision.params": "bfloat16",
                    "training.global_batch": "32seq", "training.dropout": 0.1, "training.framework": "nemo",
                },
                "brand_new: 7", ("num_layers: 40", "num_layers: forty"), (), ("model.optim.lr",),
            ),
            Sample(
                "override.yaml", _BRIDGE,
                {
                    "training.model": "llama3_70b", "training.seq_len": 4096, "training.parallelism.tp": 2,
                    "training.precision.matmul": "float8_e4m3fn", "training.precision.reduce": "float32",
                    "training.global_batch": "64seq", "training.sharding.strategy": "zero1",
                },
                "brand_new: 7", ("seq_length: 4096", "seq_length: [4096]"), (), ("optimizer.lr",), Options(gpus=16),
            ),
        ),
        "Hugging Face Trainer": (
            Sample(
                "arguments.json", _TRAINER,
                {
                    "training.model": "llama3_8b", "training.micro_batch_size": 2, "training.seq_len": 4096,
                    "training.gradient_accumulation_steps": 8, "training.sharding.strategy": "zero3",
                    "training.activation_checkpointing": "full", "training.optimizer.implementation": "fused",
                    "training.precision.params": "bfloat16", "training.framework": "transformers",
                },
                '"brand_new": 7,', ('"max_seq_length": 4096', '"max_seq_length": "long"'), (), ("learning_rate",),
            ),
            Sample(
                "run.sh",
                "torchrun --nproc-per-node 4 run_clm.py --model_name_or_path=/models/Llama-3.1-8B --bf16 True "
                "--per_device_train_batch_size 2 --block_size 2048 --output_dir out {extra}\n",
                {
                    "cluster.world_size": 4, "training.model": "llama3_8b", "training.micro_batch_size": 2,
                    "training.seq_len": 2048, "training.sharding.strategy": "ddp",
                },
                "--brand_new 7", ("--block_size 2048", "--block_size long"), (), ("--output_dir",),
            ),
        ),
        "accelerate": (
            Sample(
                "accelerate.yaml", _ACCELERATE,
                {
                    "cluster.world_size": 16, "training.sharding.strategy": "zero3",
                    "training.sharding.reshard_after_forward": False, "training.precision.params": "bfloat16",
                },
                "brand_new: 7", ("num_processes: 16", "num_processes: many"), (), ("compute_environment",),
            ),
        ),
        "LLaMA-Factory": (
            Sample(
                "sft.yaml", _LLAMA_FACTORY,
                {
                    "training.model": "llama3_8b", "training.seq_len": 2048, "training.lora.rank": 16,
                    "training.lora.targets": ["q", "v"], "training.lora.base": "nf4",
                    "training.activation_checkpointing": "full", "training.micro_batch_size": 1,
                    "training.precision.master": None,
                },
                "brand_new: 7", ("cutoff_len: 2048", "cutoff_len: long"), ("deepspeed",), ("stage",),
            ),
        ),
        "axolotl": (
            Sample(
                "config.yml", _AXOLOTL,
                {
                    "training.model": "llama2_7b", "training.seq_len": 4096, "training.micro_batch_size": 2,
                    "training.gradient_accumulation_steps": 4, "training.optimizer.name": "adam_8bit",
                    "training.sharding.strategy": "zero3", "training.loss": "chunked",
                    "training.activation_checkpointing": "full",
                },
                "brand_new: 7", ("sequence_len: 4096", "sequence_len: long"), ("sample_packing",), ("learning_rate",),
            ),
        ),
    }
)  # fmt: skip
