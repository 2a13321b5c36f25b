"""What does recomputing a module of a layer free, and what does it run again? Sizes by hand, in arrays of h bytes.

A layer of 64 tokens, bfloat16: hidden states have h = 64 x 256 x 2 bytes, and so have the norms' outputs.
"""

from __future__ import annotations

import pytest

from simulator.basics.errors import ScenarioError
from simulator.model.layer import layer_operations
from simulator.model.operation import Batch, saved_bytes
from simulator.model.shape import LatentAttention, Transformer
from simulator.scenario.load import load_scenario
from simulator.step.checkpointing import KeptActivations, kept
from tests.schemas import scenario_validator

TOKENS, WIDTH, FFN = 64, 256, 512
H = TOKENS * WIDTH * 2
DENSE = Transformer(
    "dense", 2, WIDTH, 4, 4, WIDTH // 4, FFN, 512, TOKENS, gated=True, positions="rotary", norm="rmsnorm"
)
EXPERTS = Transformer(
    "experts", 2, WIDTH, 4, 4, WIDTH // 4, FFN, 512, TOKENS, gated=True, positions="rotary", norm="rmsnorm",
    num_experts=4, active_experts=2,
)  # fmt: skip


def recomputed(model: Transformer, policy: str) -> tuple[KeptActivations, int]:
    operations = layer_operations(model, Batch(1, TOKENS))
    found = kept(policy, 0, model, operations, H)
    assert found.nbytes + found.recomputed == saved_bytes(operations)
    return found, saved_bytes(operations)


def test_norms_make_their_outputs_again() -> None:
    """Two outputs of h, and a deviation of four bytes for each token and norm."""
    found, _ = recomputed(DENSE, "layernorm")
    assert found.recomputed == 2 * (H + 4 * TOKENS)
    assert [op.name for op in found.operations] == ["norm1", "norm2"]
    assert found.calls == 2


def test_an_activation_of_experts_makes_its_product_again() -> None:
    """Two experts a token: twice the tokens, each FFN wide. Dense layers have no experts."""
    found, _ = recomputed(EXPERTS, "moe_act")
    assert found.recomputed == 2 * TOKENS * FFN * 2
    assert [op.name for op in found.operations] == ["activation"]
    assert recomputed(DENSE, "moe_act")[0].recomputed == 0


def test_attention_keeps_its_output_and_loses_statistics() -> None:
    """Logarithms of sums, four bytes for each token and head."""
    found, _ = recomputed(DENSE, "core_attn")
    assert found.recomputed == 4 * TOKENS * DENSE.num_heads
    assert [op.name for op in found.operations] == ["attention"]


def test_modules_together_free_what_each_frees() -> None:
    apart = sum(recomputed(EXPERTS, name)[0].recomputed for name in ("layernorm", "moe_act"))
    assert recomputed(EXPERTS, "layernorm+moe_act")[0].recomputed == apart
    # All of the experts' layer contains their activation.
    whole = recomputed(EXPERTS, "moe")[0].recomputed
    assert recomputed(EXPERTS, "moe+moe_act")[0].recomputed == whole > apart


def test_up_projections_of_latent_attention_leave_short_vectors() -> None:
    latent = LatentAttention(query_rank=0, kv_rank=64, plain_dim=64, rotary_dim=16, value_dim=64)
    model = Transformer(
        "latent", 2, WIDTH, 4, 4, 80, FFN, 512, TOKENS, gated=True, positions="rotary", norm="rmsnorm", latent=latent
    )
    found, everything = recomputed(model, "mla_up_proj")
    operations = {op.name: op for op in layer_operations(model, Batch(1, TOKENS))}
    read = {tensor.name: tensor.nbytes for tensor in operations["attention"].saved}
    # Attention's queries, keys and values are made again, and the norm's output before them; not its own output.
    assert found.recomputed >= read["queries"] + read["keys"]
    assert found.recomputed < everything - H


def test_modules_are_a_list_of_names() -> None:
    data = {
        "name": "modules",
        "cluster": {"topology": "star_100g", "world_size": 2},
        "training": {"model": "gpt2", "seq_len": 64, "micro_batch_size": 1},
    }
    training = data["training"]
    assert isinstance(training, dict)
    training["activation_checkpointing"] = ["core_attn", "layernorm"]
    shape = load_scenario(data).training
    assert shape is not None
    assert shape.activation_checkpointing == "core_attn+layernorm"
    training["activation_checkpointing"] = ["core_attn", "norm"]
    with pytest.raises(ScenarioError, match="got 'norm'; one of core_attn, layernorm"):
        load_scenario(data)


@pytest.mark.parametrize(
    ("written", "valid"),
    [
        ("full", True), ("moe_act", True), (["layernorm", "moe_act"], True), ([0, 1], True), ({"every": 2}, True),
        ({"full": [0]}, True), ({}, False), (["norm"], False), ({"every": 0}, False), ({"all": [0]}, False),
    ],
)  # fmt: skip
def test_an_editor_tells_what_checkpointing_may_be(written: object, valid: bool) -> None:
    """The schema of a scenario file holds what the reader takes: an empty mapping says nothing."""
    data = {
        "name": "schema",
        "cluster": {"topology": "star_100g", "world_size": 2},
        "training": {"model": "gpt2", "seq_len": 64, "micro_batch_size": 1, "activation_checkpointing": written},
    }
    assert scenario_validator().is_valid(data) is valid
