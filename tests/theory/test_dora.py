"""DoRA (PEFT's kernels): parameters, bytes and kernels of one matrix by hand, equal on both engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from simulator.basics.errors import ScenarioError
from simulator.model.adapters import TARGETS, AdapterKernels, Lora, adapter_kernels
from simulator.model.dora import dora_kernels, dora_peaks, kept_by_dora
from simulator.model.kernel import Elementwise, Matmul
from simulator.model.layer import layer_operations
from simulator.model.operation import Batch, Operation, Saved, linear, saved_bytes
from simulator.model.parameters import modules
from simulator.model.shape import Transformer
from simulator.records.operation import Allocate
from simulator.scenario.load import load_scenario
from simulator.step.activation_memory import temporaries_within, temporaries_without_saving
from simulator.step.framework import BARE
from tests.combinations import accepted, simulated
from tests.training import play, step

# Width 64, 4 heads of 16, 2 heads of keys, feed-forward 256, gated.
SMALL: Final = Transformer("small", 3, 64, 4, 2, 16, 256, 512, 128, gated=True, positions="rotary", norm="rmsnorm",
                           tied=False, attention_bias=False, output_bias=False, mlp_bias=False)  # fmt: skip
RANK, TOKENS, OUTPUTS, INPUTS = 8, 100, 64, 256
# Outputs of q, k, v, o, gate, up, down.
LENGTHS: Final = 64 + 32 + 32 + 64 + 256 + 256 + 64


def kernels(**facts: Any) -> AdapterKernels:
    """Kernels that DoRA adds to those of the adapter of the last matrix."""
    return dora_kernels(Lora(rank=RANK, targets=("down",), **facts, dora=True), "down", OUTPUTS, TOKENS, INPUTS, 2)


def moved(some: tuple[Any, ...]) -> float:
    """Bytes read and written by elementwise kernels."""
    return sum(one.read + one.written for one in some if isinstance(one, Elementwise))


def flops(some: tuple[Any, ...]) -> float:
    return sum(one.flops for one in some if isinstance(one, Matmul))


def test_each_output_has_a_trained_length() -> None:
    plain, dora = (
        modules(replace(SMALL, adapters=Lora(rank=RANK, targets=TARGETS, dora=dora)))[1] for dora in (False, True)
    )
    assert dora.elements - plain.elements == LENGTHS
    assert dora.frozen(2) == plain.frozen(2)


def test_the_product_of_both_matrices_is_computed_whole_in_each_forward_pass() -> None:
    """B (A I): 2 k k r + 2 k r n FLOPs for n outputs and k inputs, whatever the tokens; no matmul backward."""
    found, n, k = kernels(), OUTPUTS, INPUTS
    assert flops(found.forward) == 2 * k * k * RANK + 2 * k * RANK * n
    assert flops(found.inputs) == flops(found.weights) == 0
    w, s, t = 4, 2, TOKENS
    # The identity; W in float32; s B A; W + s B A; the norm of each row; f and f - 1.
    norm = w * k * k + (s + w) * n * k + 2 * w * n * k + 3 * w * n * k + w * (n * k + n) + 3 * w * n + 2 * w * n
    # (f - 1) W x, f B A x, and their sum, for each token and output.
    products = (s + w) * t * n + w * n + 2 * w * t * n + w * n + 3 * w * t * n
    assert moved(found.forward) == norm + products
    # Backward through both products, W x in bfloat16, and the sum of its two gradients.
    assert moved(found.inputs) == 2 * (2 * w * t * n + w * n) + (w + s) * t * n + 3 * s * t * n
    # Gradient of f: a product and a sum over tokens for each; the two added, and divided by the norm.
    assert moved(found.weights) == 3 * w * t * n + (w + s + w) * t * n + 2 * w * (t * n + n) + 2 * 3 * w * n
    assert all(one.of_weights for one in found.weights)


def test_with_dropout_the_frozen_matrix_multiplies_a_second_time() -> None:
    """Forward 2 t n k FLOPs in the adapter's dtype, and as many for the gradient of the input."""
    plain, dropped = kernels(dtype="bfloat16"), kernels(dtype="bfloat16", dropout=True)
    more = 2 * TOKENS * OUTPUTS * INPUTS
    assert flops(dropped.forward) - flops(plain.forward) == more
    assert flops(dropped.inputs) - flops(plain.inputs) == more
    # The input's two gradients are added in place of the output's.
    assert moved(dropped.inputs) - moved(plain.inputs) == 3 * 2 * TOKENS * (INPUTS - OUTPUTS)


@pytest.mark.parametrize(
    ("base", "nbytes"),
    [
        # Four bits and their scales are written out in bfloat16, and cast to float32.
        ("nf4", OUTPUTS * INPUTS * (4 + 8 / 64 + 32 / (64 * 256)) / 8 + OUTPUTS * INPUTS * 2),
        # Eight bits are written out in float32, then multiplied by 1 / 127; no cast from bfloat16.
        ("int8", OUTPUTS * INPUTS * (1 + 4 + 4 + 4) + 4 * OUTPUTS - OUTPUTS * INPUTS * (2 + 4)),
    ],
)
def test_a_quantised_matrix_is_written_out_for_the_norm(base: str, nbytes: float) -> None:
    assert moved(kernels(base=base).forward) - moved(kernels().forward) == pytest.approx(nbytes, rel=1e-12)


@pytest.mark.parametrize(
    ("facts", "each", "matrices"),
    [
        # W x in bfloat16, and the adapter's output in its dtype, for each token and output; with dropout also W.
        ({"dtype": "bfloat16"}, 2 + 2, 0),
        ({"dtype": "float32"}, 2 + 4, 0),
        ({"dtype": "float32", "dropout": True}, 4 + 4, 4),
        ({"dtype": "bfloat16", "dropout": True}, 2 + 2, 0),
        ({"dtype": "bfloat16", "dropout": True, "base": "nf4"}, 2 + 2, 2),
    ],
)
def test_a_layer_saves_both_products_of_each_matrix(facts: dict[str, Any], each: int, matrices: int) -> None:
    plain, dora = (
        saved_bytes(
            layer_operations(SMALL, Batch(2, 128, adapters=Lora(rank=RANK, targets=TARGETS, **facts, dora=dora)))
        )
        for dora in (False, True)
    )
    wide = 4 if facts["dtype"] == "float32" else 2
    elements = 64 * (64 + 2 * 32) + 64 * 64 + 64 * 512 + 256 * 64
    assert dora - plain == LENGTHS * (256 * each + 3 * wide) + matrices * elements


def test_the_peaks_of_one_matrix_by_hand() -> None:
    """n = 96 outputs, k = 64 inputs, rank 4, ten tokens; W and activations in bfloat16, the adapter in float32."""
    n, k, r, t, s, w = 96, 64, 4, 10, 2, 4
    # Forward at the sum: W x, the input in float32, I, A I, and B A, W in float32, s B A, W + s B A.
    forward = s * t * n + w * t * k + w * k * k + w * k * r + 4 * w * n * k
    # Backward: the gradient in float32, its copy in bfloat16, three arrays of the output's size, and a sum over tokens.
    backward = w * t * n + s * t * n + 3 * w * t * n + w * n
    assert dora_peaks(Lora(rank=r, targets=("q",), dora=True), n, t, k, s) == (forward, backward)
    # The adapter's dtype is W's: no copy of W, no casts.
    same = s * t * n + s * k * k + s * k * r + 3 * s * n * k, 3 * s * t * n + s * n
    assert dora_peaks(Lora(rank=r, targets=("q",), dtype="bfloat16", dora=True), n, t, k, s) == same
    # Four bits are written out even in the adapter's dtype.
    written = dora_peaks(Lora(rank=r, targets=("q",), dtype="bfloat16", base="nf4", dora=True), n, t, k, s)
    assert written == (same[0] + s * n * k, same[1])


# Most bytes of new storages in the forward and backward pass of peft.tuners.lora.layer.Linear with use_dora, counted
# with a TorchDispatchMode that follows each storage until it is freed (PyTorch 2.14.1, PEFT 0.14.0, on a CPU). Backward
# without gradients of parameters. Matrices with these outputs share an input.
LISTED: Final = [
    # tokens, inputs, outputs, dtype of adapters, forward, backward
    (10, 64, (96,), "float32", 120192, 17664),
    (10, 64, (96,), "bfloat16", 47488, 5952),
    (400, 64, (96,), "float32", 867712, 691584),
    (400, 64, (96,), "bfloat16", 408768, 230592),
    (300, 224, (64,), "float32", 938944, 345856),
    (300, 224, (64,), "bfloat16", 325600, 326048 - 2 * (4 * (224 + 64) + 64)),
    (400, 64, (64, 32, 32), "float32", 899328, 230528),
    (400, 64, (64, 32, 32), "bfloat16", 381568, 99840 - 2 * (4 * (64 + 32) + 32)),
    (300, 64, (224, 224), "float32", 2047872, 1210496),
    (300, 64, (224, 224), "bfloat16", 1120064, 403648),
]


@pytest.mark.parametrize(("tokens", "inputs", "outputs", "dtype", "forward", "backward"), LISTED)
def test_the_peaks_are_those_that_pytorch_lists(
    tokens: int, inputs: int, outputs: tuple[int, ...], dtype: str, forward: int, backward: int
) -> None:
    found = linear(
        Matmul("qkv", tokens, sum(outputs), inputs),
        Batch(1, tokens, adapters=Lora(rank=4, targets=TARGETS, dtype=dtype, dora=True)),
        Saved("input", 2 * tokens * inputs, "norm1"), bias=False, parts=tuple(zip(TARGETS, outputs, strict=False)),
    )  # fmt: skip
    assert (found.forward_peak, found.backward_peak) == (forward, backward)


def test_the_example_of_temporaries_in_a_layer_holds() -> None:
    inputs = (("first", 4, "input", 0), ("second", 6, "first", 25), ("third", 10, "second", 0))
    layer = tuple(
        Operation(name, (), (), (Saved(f"{name} input", nbytes, source),), forward_peak=peak)
        for name, nbytes, source, peak in inputs
    )
    assert temporaries_within(layer, layer) == 4 + 6 + 25 - 20
    assert temporaries_within(layer, layer[2:]) == 0
    assert temporaries_without_saving(layer) == 25


@pytest.mark.parametrize("policy", ["none", "full"])
def test_the_temporaries_of_the_last_matrix_come_on_top_of_a_layer(policy: str) -> None:
    """DoRA of `down` alone, 64 outputs of 256 inputs: its input, which no adapter in float32 saves, and its arrays."""
    own = Lora(rank=RANK, targets=("down",), dora=True)
    run = play(
        step(
            "ddp",
            replace(SMALL, adapters=own),
            activation_checkpointing=policy,
            framework=BARE.with_constants(activation_gradients=True),
        ),
        1,
    )
    ops = next(iter(run.plan.program.ranks))
    found = {op.name: op.nbytes for op in ops if isinstance(op, Allocate) and op.category == "temporaries"}
    tokens = run.plan.step.keys.seq_len * run.plan.step.keys.micro_batch_size
    entered, peak = tokens * 256 * 2, dora_peaks(own, 64, tokens, 256, 2)[0]
    saved = kept_by_dora(own, 64, tokens, 256, 2) + tokens * 256 * 4 + tokens * RANK * 4
    # Saved tensors of `down` are counted among the activations, unless the forward pass saves nothing.
    assert found["layer 1 temporaries 0"] == entered + peak - (saved if policy == "none" else 0)
    if policy == "full":
        assert found["layer 1 recompute temporaries 0"] == entered + peak - saved
    assert run.report.peak_memory_bytes > 0


def test_an_adapter_without_dora_is_as_before() -> None:
    own = Lora(rank=RANK, targets=("down",))
    with_dora = own.replaced(dora=True)
    assert adapter_kernels(own, "down", 64, 9, 32, 2) == adapter_kernels(with_dora, "down", 64, 9, 32, 2)


def data(**keys: Any) -> dict[str, Any]:
    model = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 192, "vocab_size": 96, "tie_word_embeddings": False,
    }  # fmt: skip
    lora = {"rank": 4, "dora": True} | keys.pop("lora", {})
    training = {"model": model, "seq_len": 32, "lora": lora, "collectives": "played"}
    cluster = {"topology": "dgx_h100", "world_size": 4}
    return {"name": "dora", "cluster": cluster, "training": training | keys}


@pytest.mark.parametrize("sharding", ["ddp", "zero3"])
@pytest.mark.parametrize("lora", [{}, {"base": "nf4", "dropout": 0.1}])
def test_both_engines_agree(sharding: str, lora: dict[str, Any]) -> None:
    drawn = accepted(data(sharding=sharding, lora=lora))
    assert drawn is not None
    simulated(drawn)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"parallelism": {"tp": 2}}, "training.lora.dora: got true with tp above 1"),
        ({"lora": {"base": "gptq"}}, "training.lora.dora: got true, but PEFT has no DoRA beside gptq"),
    ],
)
def test_what_peft_cannot_do_is_refused_in_one_line(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load_scenario(data(**keys))
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
