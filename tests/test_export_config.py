"""A scenario written for Megatron-LM or DeepSpeed and imported again is the same step, or the difference is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.importing.export.exporter import export
from simulator.scenario.load import load_scenario
from tests.commands import Command, commands_in

# What Megatron-LM and DeepSpeed do with bfloat16 unless told otherwise.
WIDE = {"params": "bfloat16", "grads": "float32", "reduce": "float32"}
NARROW = {"params": "bfloat16", "grads": "bfloat16", "reduce": "bfloat16"}


def scenario(gpus: int = 64, **training: Any) -> Any:
    step = {"model": "llama3_8b", "seq_len": 8192, "framework": "megatron_core", "precision": WIDE, **training}
    return load_scenario({"name": "x", "cluster": {"topology": "dgx_h100", "world_size": gpus}, "training": step})


def lost(program: str, **training: Any) -> dict[str, Any]:
    """Parts of a step that are lost by writing and importing it, with the scenario's values."""
    return {one.part: one.scenario for one in export(scenario(**training), program).differences}


ONE_BUCKET = {"bucket_size": "1 PiB"}
MEGATRON: dict[str, dict[str, Any]] = {
    "plain": {"sharding": {"strategy": "ddp", **ONE_BUCKET}},
    "overlap": {"sharding": {"strategy": "zero1", "bucket_size": "1 GiB"}, "gradient_accumulation_steps": 4},
    "instances": {"sharding": {"strategy": "zero1", "shard_size": 8, **ONE_BUCKET}},
    "fsdp": {"sharding": {"strategy": "zero3"}},
    "tensor": {
        "parallelism": {"tp": 8, "tp_overlap": "ring_exchange"}, "sharding": {"strategy": "zero1", **ONE_BUCKET},
    },
    "no sequence": {
        "parallelism": {"tp": 2, "sequence_parallel": False}, "sharding": {"strategy": "ddp", **ONE_BUCKET},
    },
    "pipeline": {
        "parallelism": {"pp": 4, "schedule": "interleaved", "virtual_stages": 2},
        "gradient_accumulation_steps": 8, "sharding": {"strategy": "zero1", **ONE_BUCKET},
    },
    "deferred": {
        "parallelism": {"pp": 4, "deferred_head_gradients": 3},
        "gradient_accumulation_steps": 8, "sharding": {"strategy": "zero1", **ONE_BUCKET},
    },
    "all deferred": {
        "parallelism": {"pp": 4, "deferred_head_gradients": "all"},
        "gradient_accumulation_steps": 8, "sharding": {"strategy": "zero1", **ONE_BUCKET},
    },
    "uneven": {
        "parallelism": {"pp": 4, "stages": [7, 9, 9, 7]}, "gradient_accumulation_steps": 8,
        "sharding": {"strategy": "zero1", **ONE_BUCKET},
    },
    "layout": {
        "parallelism": {"pp": 4, "schedule": "interleaved", "virtual_stages": 2, "stages": "Et|(t*6|)*5t|mL"},
        "gradient_accumulation_steps": 8, "mtp_layers": 1, "sharding": {"strategy": "zero1", **ONE_BUCKET},
    },
    "context": {"parallelism": {"cp": 4, "context": "ulysses"}, "sharding": {"strategy": "zero1", **ONE_BUCKET}},
    "both contexts": {
        "parallelism": {"cp": 4, "context": {"ulysses": 2, "ring": 2}}, "sharding": {"strategy": "zero1", **ONE_BUCKET},
    },
    "experts": {
        "model": "mixtral_8x7b", "sharding": {"strategy": "zero1", "bucket_size": "100 MiB"},
        "parallelism": {"ep": 8, "experts": {"dispatch": "deduplicated", "capacity": 1.25}},
    },
    "deepseek": {
        "model": "deepseek_v3", "sharding": {"strategy": "zero1", **ONE_BUCKET}, "parallelism": {"ep": 32, "pp": 1},
    },
    "fp8": {
        "precision": {**NARROW, "matmul": "float8_e4m3fn", "scaling": "block"},
        "sharding": {"strategy": "zero1", **ONE_BUCKET},
    },
    "fp16": {
        "precision": {"params": "float16", "grads": "float16", "reduce": "float16"},
        "sharding": {"strategy": "ddp", **ONE_BUCKET},
    },
    "fp32": {"precision": "fp32", "sharding": {"strategy": "ddp", **ONE_BUCKET}},
    "recompute": {"activation_checkpointing": "full", "sharding": {"strategy": "zero1", **ONE_BUCKET}},
    "feed forward": {"activation_checkpointing": "feed_forward", "sharding": {"strategy": "zero1", **ONE_BUCKET}},
    "dropout": {"dropout": True, "attention": "standard", "sharding": {"strategy": "zero1", **ONE_BUCKET}},
    "eager": {"attention": "eager", "sharding": {"strategy": "zero1", **ONE_BUCKET}},
    "local": {
        "attention": "standard", "framework": "megatron_local", "sharding": {"strategy": "zero1", **ONE_BUCKET},
    },
    "muon": {"optimizer": "muon", "sharding": {"strategy": "zero1", **ONE_BUCKET}},
    "host": {"offload": "optimizer", "sharding": {"strategy": "zero1", **ONE_BUCKET}},
    "loss": {"loss": "fused", "sharding": {"strategy": "zero1", **ONE_BUCKET}},
    "native loss": {"loss": "native", "sharding": {"strategy": "zero1", **ONE_BUCKET}},
    "gpt": {"model": "gpt2_xl", "seq_len": 1024, "sharding": {"strategy": "zero1", **ONE_BUCKET}},
    "hybrid": {"model": "nemotron_3_super", "sharding": {"strategy": "zero1", **ONE_BUCKET}, "parallelism": {"ep": 8}},
    "qwen": {"model": "qwen3_30b_a3b", "sharding": {"strategy": "zero1", **ONE_BUCKET}},
}  # fmt: skip
DEEPSPEED: dict[str, dict[str, Any]] = {
    "stage 0": {"sharding": "ddp"},
    "stage 1": {"sharding": {"strategy": "zero1", "bucket_size": "1 GB"}, "gradient_accumulation_steps": 2},
    "stage 2": {"sharding": {"strategy": "zero2", **ONE_BUCKET}, "precision": NARROW},
    "stage 3": {"sharding": {"strategy": "zero3", "keep_below": 100_000}, "micro_batch_size": 2},
    "no prefetch": {"sharding": {"strategy": "zero3", "prefetch": 0}},
    "second shard": {"sharding": {"strategy": "zero3", "reshard_after_forward": 8}},
    "host": {"sharding": "zero3", "offload": "optimizer"},
    "lion": {"optimizer": "lion", "compile": True},
}


@pytest.mark.parametrize("name", MEGATRON)
def test_megatron_has_every_part_of_the_step(name: str) -> None:
    assert lost("megatron", **MEGATRON[name]) == {}


@pytest.mark.parametrize("name", DEEPSPEED)
def test_deepspeed_has_every_part_of_the_step(name: str) -> None:
    assert lost("deepspeed", **DEEPSPEED[name]) == {}


@pytest.mark.parametrize(
    ("program", "training", "expected"),
    [
        ("megatron", {"compile": True}, {"compile": True}),
        ("megatron", {"activation_checkpointing": "sqrt"}, {"activation_checkpointing": "sqrt"}),
        (
            "megatron",
            {"attention_generation": 3, "allocator": "expandable_segments"},
            {"attention_generation": 3, "allocator": "expandable_segments"},
        ),
        ("megatron", {"precision": "bf16"}, {"precision.reduce": "float32"}),
        ("megatron", {"sharding": {"strategy": "zero3", "prefetch": 3}}, {"sharding.prefetch": 3}),
        ("deepspeed", {"sharding": "zero3", "activation_checkpointing": "full"}, {"activation_checkpointing": "full"}),
        ("deepspeed", {"sharding": "ddp", "attention": "standard"}, {"attention": "standard"}),
        ("deepspeed", {"sharding": "ddp", "precision": "fp8"}, {"precision.matmul": "float8_e4m3fn"}),
    ],
)
def test_what_a_program_cannot_say_is_told(program: str, training: dict[str, Any], expected: dict[str, Any]) -> None:
    usual: dict[str, Any] = {"sharding": {"strategy": "zero1", **ONE_BUCKET}}
    assert lost(program, **{**usual, **training}) == expected


@pytest.mark.parametrize(
    ("program", "source", "message"),
    [
        ("nemo", {}, "--to: got 'nemo'; one of deepspeed, megatron"),
        ("megatron", {"model": "resnet50", "seq_len": 1, "sharding": "ddp"}, "resnet50 is a list of layers"),
    ],
)
def test_what_cannot_be_exported_is_refused(program: str, source: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        export(scenario(**source), program)


def test_several_points_are_refused() -> None:
    with pytest.raises(ScenarioError, match="has compare, and therefore several points"):
        export(load_scenario("megatron_3d"), "megatron")


def test_the_command_writes_a_script_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli: Command = commands_in(tmp_path, monkeypatch, capsys)
    answer = cli("export-config", "megatron_3d", "--to", "megatron", "--set", "compare={}")
    assert answer.code == 0, answer.err
    assert answer.out.endswith("train.sh: written\n")
    assert "precision.reduce  float32          bfloat16" in answer.out
    assert "--num-layers 40" in (tmp_path / "train.sh").read_text(encoding="utf-8")
    again = cli("export-config", "megatron_3d", "--to", "megatron", "--set", "compare={}")
    assert again.code == 2
    assert again.faults == ["train.sh: the file exists already; choose another name with --out"]
