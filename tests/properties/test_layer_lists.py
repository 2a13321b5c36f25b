"""Lists of layers and traced modules in training steps: both engines leave the same behind, whatever the layers, the
sharding, the pipeline and the recompute.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any, Final

import pytest

from simulator.basics.errors import ScenarioWarning
from simulator.cluster.build import build
from simulator.records.operation import Compute
from simulator.records.program import Program
from tests.combinations import Draw, accepted, simulated
from tests.engines import simulated_alike

TRACED: Final = sorted((Path(__file__).parents[1] / "traced").glob("*.json"))
SIZE: Final = 8


def layers(draw: Draw) -> list[Any]:
    """Return layers that follow one another on tokens of 64 numbers: blocks with shortcuts, or no blocks at all."""
    kinds = [
        {"linear": [64, 64]}, {"mlp": draw.pick(32, 96)}, {"attention": {"heads": draw.pick(2, 4)}}, "layer_norm",
        "rms_norm", "gelu", "relu", "dropout", "modulate", {"residual": ["layer_norm", {"mlp": 128}]},
        {"branch": {"input": [16], "layers": [{"linear": [16, 64]}, "silu"]}},
        {"cost": {"flops": 20_000, "parameters": 300, "activations": 512}},
    ]  # fmt: skip
    some = [draw.pick(*kinds) for _ in range(draw.pick(2, 4, 6))]
    if draw.chance(0.3):
        return [{"linear": [64, 64]}, *some, {"linear": [64, 8]}]
    blocks = [{"repeat": draw.pick(1, 2, 3), "layers": some}, {"block": [{"mlp": 48}, "relu"]}]
    ends = [{"linear": [64, 64]}], [{"linear": [64, 8]}]
    first, last = (end if draw.chance(0.8) else [] for end in ends)
    return [*first, *blocks, *blocks[: draw.pick(0, 1)], *last]


def scenario(seed: int) -> dict[str, Any]:
    """Return a training step of a drawn list of layers, or of a traced module."""
    draw = Draw([91, seed])
    if draw.chance(0.4):
        model = json.loads(draw.pick(*TRACED).read_text())
    else:
        model = {
            "input": [8, 64],
            "layers": layers(draw),
            "loss": draw.pick("cross_entropy", "mean_squared_error", "none"),
        }
    pp, dp = draw.pick(1, 1, 2), draw.pick(1, 2, 4)
    training = {
        "model": model,
        "seq_len": model.get("tokens", 1),
        "micro_batch_size": draw.pick(1, 3),
        "gradient_accumulation_steps": draw.pick(pp, 2 * pp),
        "parallelism": {"pp": pp} | (draw.some(0.5, schedule=("gpipe", "1f1b", "zb_h1")) if pp > 1 else {}),
        "sharding": draw.pick("zero3", "ddp", "zero1", "zero2", {"strategy": "zero3", "keep_below": 100}),
        "activation_checkpointing": draw.pick("none", "full", "selective_op", "attention", {"every": 2}),
        "framework": draw.pick("torchtitan", "megatron_core", "transformers", "bare"),
        "optimizer": draw.pick("adam", "sgd", "muon", "adam_8bit"),
        "precision": draw.pick("bf16", "fp32", "fp8"),
        "compile": draw.chance(0.3),
    }
    topology = {"builder": "star", "options": {"bandwidth": "25 GB/s", "latency": "5 us"}}
    cluster = {"topology": topology, "world_size": pp * dp, "gpu": "h100_sxm"}
    if draw.chance(0.3):
        cluster["stragglers"] = {0: 0.8}
    if draw.chance(0.3):
        cluster["jitter"] = {"compute": 0.05, "latency": 0.05}
    training |= draw.some(
        0.3, trainable=(["head"], ["layer 0"], ["embedding", "head"]), offload=("optimizer",), precision=("fp16",)
    )
    return {"name": "layers", "seed": seed, "cluster": cluster, "training": training}


def compared(seeds: range) -> int:
    """Simulate drawn scenarios with both engines; return how many were accepted."""
    count = 0
    for seed in seeds:
        data = scenario(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScenarioWarning)
            drawn = accepted(data)
        if drawn is not None:
            try:
                simulated(drawn)
            except Exception as error:
                shown = data["training"] | {"model": data["training"]["model"].get("name", data["training"]["model"])}
                raise AssertionError(f"seed {seed}: {shown}") from error
            count += 1
    return count


@pytest.mark.parametrize("block", range(2))
def test_both_engines_leave_the_same_behind_for_lists_of_layers(block: int) -> None:
    assert compared(range(block * SIZE, (block + 1) * SIZE)) >= SIZE // 2


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_both_engines_leave_the_same_behind_for_many_lists_of_layers(block: int) -> None:
    assert compared(range(1000 + block * SIZE, 1000 + (block + 1) * SIZE)) >= SIZE // 2


def test_a_step_without_any_transfer_is_the_same_on_both_engines() -> None:
    cluster = build("star_100g", 4)
    ops = (Compute("forward", 1e-3), Compute("backward", 2e-3))
    timeline, grew = simulated_alike(Program((ops,) * 4), cluster)
    assert (timeline.end, timeline.transfers, grew) == (3e-3, 0, 0)
