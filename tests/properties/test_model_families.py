"""Models of every family in training steps: both engines leave the same behind, with any cut, sharding, recompute."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError, ScenarioWarning
from simulator.model.families import FAMILIES
from simulator.model.layer import layer_operations
from simulator.model.load import load_model
from simulator.model.operation import Batch
from simulator.model.parameters import total
from tests.combinations import Draw, accepted, simulated
from tests.families import CONFIGS, small
from tests.many import many

LONG = 10


def scenario(name: str, seed: int) -> dict[str, Any]:
    """Return a training step of a small model like `name`, with drawn parallelism, sharding and checkpointing."""
    draw = Draw([77, list(CONFIGS).index(name), seed])
    tp, pp, dp = draw.pick(1, 2, 4), draw.pick(1, 2), draw.pick(1, 2)
    keys = small(name, draw.pick(2, 4, 5) * pp)
    model = load_model(keys)
    if model.patches is not None or keys["num_attention_heads" if "num_attention_heads" in keys else "n_head"] % tp:
        tp = 1
    parallelism: dict[str, Any] = {"tp": tp, "pp": pp}
    if model.num_experts:
        parallelism |= {"ep": draw.pick(1, dp)}
    elif tp > 1:
        parallelism |= draw.some(0.5, sequence_parallel=(True, False))
    training = {
        "model": keys,
        "seq_len": model.max_positions if model.patches is not None else 32,
        "gradient_accumulation_steps": pp,
        "parallelism": parallelism,
        "sharding": draw.pick("zero3", "zero3", "ddp", "zero1"),
        "activation_checkpointing": draw.pick(
            "none", "full", "selective_op", "attention", "feed_forward", "activation"
        ),
        "framework": draw.pick("torchtitan", "megatron_core", "transformers"),
        "dropout": draw.chance(0.2),
    } | draw.some(0.3, attention=("standard",), compile=(True,))
    if model.adapter_targets and draw.chance(0.2) and not model.patches:
        training |= {"lora": {"rank": 4}}
    topology = {"builder": "star", "options": {"bandwidth": "25 GB/s", "latency": "5 us"}}
    cluster = {"topology": topology, "world_size": tp * pp * dp, "gpu": "h100_sxm"}
    return {"name": "families", "seed": seed, "cluster": cluster, "training": training}


def compared(name: str, seed: int) -> bool:
    """Simulate a drawn scenario with both engines; return False if `check` refuses it."""
    data = scenario(name, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScenarioWarning)
        drawn = accepted(data)
    if drawn is None:
        return False
    try:
        simulated(drawn)
    except Exception as error:
        raise AssertionError(f"{name}, seed {seed}: {data}") from error
    return True


# One model of each family, and Falcons of each kind.
NAMES = [*{keys["model_type"]: name for name, keys in CONFIGS.items()}.values(), "falcon_7b", "falcon_40b"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_of(3)
def test_a_step_of_every_family_is_the_same_on_both_engines(name: str) -> None:
    assert CONFIGS[name]["model_type"] in FAMILIES
    assert compared(name, 0) or compared(name, 1) or compared(name, 2)


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_many_steps_of_every_family_are_the_same_on_both_engines(name: str) -> None:
    assert sum(compared(name, seed) for seed in range(3, 3 + LONG)) >= LONG // 3


# Values that a key may have by mistake, and keys that most configurations leave out.
WRONG: list[Any] = [
    None, 0, -1, 1, 3, 7, 64, 10**9, True, False, "x", 1.5, [], [1], [["a"]], {}, {"a": 1}, ["full_attention"],
    ["sliding_attention", "full_attention", "full_attention"], {"hidden_size": 64},
]  # fmt: skip
LEFT_OUT = (
    "layer_types", "sliding_window", "text_config", "mlp_only_layers", "moe_layers", "no_rope_layers", "id2label",
    "num_labels", "head_dim", "attn_logit_softcapping", "decoder_sparse_step", "interleave_moe_layer_step",
    "max_window_layers", "pad_token_id", "first_k_dense_replace", "num_ln_in_parallel_attn", "sliding_window_pattern",
)  # fmt: skip


def read_or_refused(seed: int) -> bool:
    """Read a configuration in which some keys have wrong values; return False if it is refused."""
    draw = Draw([78, seed])
    keys = small(draw.pick(*CONFIGS), 3)
    for _ in range(draw.pick(1, 2, 3)):
        key = draw.pick(*keys, *LEFT_OUT)
        keys[key] = draw.pick(*FAMILIES, "xyz") if key == "model_type" else draw.pick(*WRONG)
    try:
        model = load_model(keys)
    except ScenarioError:
        return False
    assert total(model) > 0
    assert all(layer_operations(kind, Batch(1, 32)) for kind in model.kinds)
    return True


def test_a_configuration_with_wrong_values_is_read_or_refused_in_lines() -> None:
    read = [read_or_refused(seed) for seed in range(500)]
    assert 50 < sum(read) < 450


@pytest.mark.long
@pytest.mark.parametrize("block", range(many(10)))
def test_many_configurations_with_wrong_values_are_read_or_refused(block: int) -> None:
    assert any(read_or_refused(seed) for seed in range(1000 * (block + 1), 1000 * (block + 2)))
