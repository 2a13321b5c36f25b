"""Frozen matrices in 8 and 4 bits under adapters: bytes and kernels of a layer by hand, equal on both engines."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import pytest

from simulator.basics.errors import ScenarioError
from simulator.cluster.gpu_file import load_gpu
from simulator.model.adapters import TARGETS, Lora
from simulator.model.kernel import Elementwise, Matmul
from simulator.model.layer import layer_operations
from simulator.model.model import passed_bytes
from simulator.model.operation import Batch, Operation, saved_bytes
from simulator.model.parameters import modules
from simulator.model.shape import Transformer
from simulator.scenario.load import load_scenario
from simulator.step.framework import Framework, load_framework
from simulator.step.kernels.framework_operations import with_nf4_tensors
from simulator.step.kernels.kernel_time import duration
from simulator.step.units import units
from tests.combinations import accepted, simulated
from tests.training import step

# Width 64, 4 heads of 16, 2 heads of keys, feed-forward 256, gated.
SMALL: Final = Transformer("small", 3, 64, 4, 2, 16, 256, 512, 128, gated=True, positions="rotary", norm="rmsnorm",
                           tied=False, attention_bias=False, output_bias=False, mlp_bias=False)  # fmt: skip
# Outputs and inputs of the matrices: queries, keys and values together, output, gate and up together, down.
SHAPES: Final = ((64 + 2 * 32, 64), (64, 64), (2 * 256, 64), (64, 256))
TOKENS: Final = 2 * 128


def operation(name: str, base: str, *, float16: bool = False) -> Operation:
    batch = Batch(2, 128, adapters=Lora(rank=8, targets=(), dtype="bfloat16", base=base), float16=float16)
    return next(one for one in layer_operations(SMALL, batch) if one.name == name)


@pytest.mark.parametrize(
    ("base", "nbytes"),
    [
        # A byte for each parameter and a float32 for each output.
        ("int8", sum(n * k + 4 * n for n, k in SHAPES)),
        # Half a byte for each parameter; for 128 of them a float16 and half a byte.
        ("gptq", math.ceil(sum(n * k for n, k in SHAPES) * (0.5 + 2.5 / 128))),
    ],
)
def test_bytes_of_a_layer(base: str, nbytes: int) -> None:
    layer = modules(replace(SMALL, adapters=Lora(rank=8, targets=TARGETS, dtype="bfloat16", base=base)))[1]
    norms = 2 * 64
    assert layer.frozen(2) == norms + math.ceil(nbytes / 2)


def _hidden(*, wide: bool, dtype: str = "bfloat16") -> Batch:
    return Batch(
        2,
        128,
        adapters=Lora(
            rank=8,
            targets=("q", "k", "v", "o"),
            dtype=dtype,
            dropout=True,
            base="nf4",
            hidden="float32" if wide else "params",
        ),
    )


def test_hidden_states_in_float32_double_what_lies_between_matrices() -> None:
    """Two more bytes of: both norms' inputs, h each, and the output of gate and up, 2 f; adapters' inputs keep theirs.

    PEFT's prepare_model_for_kbit_training leaves norms in float32, whose output decides the dtype of what follows.
    """
    narrow, wide = (layer_operations(SMALL, _hidden(wide=own)) for own in (False, True))
    assert saved_bytes(wide) - saved_bytes(narrow) == 2 * TOKENS * (2 * 64 + 2 * 256)
    outputs = {op.name: op.output for op in narrow}
    more = {op.name for op in wide if op.output == 2 * outputs[op.name]}
    assert more == {"norm1", "qkv", "rotary", "residual1", "norm2", "up", "activation", "down", "residual2"}
    assert [op.output for op in wide if op.name in ("attention", "proj")] == [outputs["attention"], outputs["proj"]]
    # A layer receives its input in float32, which alone full checkpointing saves.
    assert passed_bytes(SMALL, 1, _hidden(wide=True)) == 4 * TOKENS * 64


def test_a_quantised_matrix_between_hidden_states_in_float32_casts_in_both_passes() -> None:
    """`down`, 64 outputs of 256 inputs: the operands in bfloat16, input and output in float32."""
    narrow, wide = (
        next(op for op in layer_operations(SMALL, _hidden(wide=own)) if op.name == "down") for own in (False, True)
    )
    entered, left = TOKENS * 256, TOKENS * 64
    casts = [[(4 * entered, 2 * entered), (2 * left, 4 * left)], [(4 * left, 2 * left), (2 * entered, 4 * entered)]]
    for kernels, plain, added in zip(
        (wide.forward, wide.backward), (narrow.forward, narrow.backward), casts, strict=True
    ):
        assert kernels[1:-1] == plain
        assert [(one.read, one.written) for one in (kernels[0], kernels[-1])] == added  # type: ignore[union-attr]


def test_full_checkpointing_keeps_the_input_of_a_layer_in_float32() -> None:
    """A rank's tokens, 64 numbers each, in 4 instead of 2 bytes."""
    kept = {}
    for wide in (False, True):
        adapters = Lora(rank=8, targets=TARGETS, dtype="bfloat16", base="nf4", hidden="float32" if wide else "params")
        asked = step("ddp", replace(SMALL, adapters=adapters), activation_checkpointing="full")
        kept[wide] = units(asked, load_gpu("h100_sxm"))[1].kept / (asked.keys.seq_len * asked.keys.micro_batch_size)
    assert kept == {False: 2 * 64, True: 4 * 64}


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"lora": {"rank": 4, "hidden": "float32"}}, "beside base params, whose norms PEFT leaves as they are"),
        ({"lora": {"rank": 4, "base": "gptq", "hidden": "float32"}}, "beside base gptq"),
        ({"parallelism": {"tp": 2}, "lora": {"rank": 4, "base": "nf4", "hidden": "float32"}}, "beside tp above 1"),
        ({"lora": {"rank": 4, "base": "nf4", "dora": True, "hidden": "float32"}}, "beside dora"),
    ],
)
def test_hidden_states_in_float32_are_refused_where_they_are_not_known(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        load_scenario(data("nf4", **keys))
    assert f"training.lora.hidden: got 'float32' {told}" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize("sharding", ["ddp", "zero3"])
def test_both_engines_agree_on_hidden_states_in_float32(sharding: str) -> None:
    drawn = accepted(data("nf4", sharding=sharding, lora={"rank": 4, "base": "nf4", "hidden": "float32"}))
    assert drawn is not None
    simulated(drawn)


def test_a_matrix_of_gptq_is_written_out_before_each_matmul() -> None:
    """Each pass reads 4.156 bits and writes 2 bytes of 64 x 256 elements; both matmuls take 16 bits."""
    down = operation("down", "gptq")
    for kernels in (down.forward, down.backward):
        wide, matmul = kernels
        assert isinstance(wide, Elementwise)
        assert (wide.read, wide.written) == (64 * 256 * (4 + 20 / 128) / 8, 2 * 64 * 256)
        assert isinstance(matmul, Matmul)
        assert (matmul.flops, matmul.dtype) == (2 * TOKENS * 64 * 256, None)
    assert down.saved == ()


@pytest.mark.parametrize("float16", [False, True])
def test_a_matrix_in_eight_bits_is_multiplied_in_eight_bits_beside_seven_outlier_columns(float16: bool) -> None:
    """bitsandbytes' kernels on the last matrix, 64 outputs and 256 inputs, for 256 tokens."""
    down, t, n, k, o = operation("down", "int8", float16=float16), TOKENS, 64, 256, 7
    matmuls = [(one.m, one.n, one.k, one.dtype) for one in down.forward if isinstance(one, Matmul)]
    assert matmuls == [(t, n, k, "int8"), (t, n, o, None)]
    # Casts between bfloat16 and float16 of the input and the output.
    casts = 0 if float16 else 2
    assert len(down.forward) == 11 + casts + 2
    moved = sum(one.read + one.written for one in down.forward if isinstance(one, Elementwise))
    entered = (0 if float16 else 2 + 2) + (2 + 2) + (2 + 1) + 1 + 1 + (2 + 1)
    left = (4 + 2) + (0 if float16 else 2 + 2) + (2 * 2 + 2)
    # The flag of any outlier, flags of columns, scales of rows; zeros and columns of the input; columns of the matrix.
    small = 1 + k + 4 * t + t * o + (2 + 2) * t * o + (1 + 1) * n * o + (1 + 2) * n * o + 4 * n
    # Scales of rows and of outputs.
    scales = 4 * (t + n)
    assert moved == t * k * entered + t * n * left + small + scales
    # Backward: eight bits to sixteen, a multiplication by the scales, and a matmul in sixteen bits.
    assert [type(one) for one in down.backward] == [Elementwise, Elementwise, Matmul]
    moved = sum(one.read + one.written for one in down.backward if isinstance(one, Elementwise))
    assert moved == n * k * (1 + 2) + n * k * (2 + 2) + 4 * n
    assert down.backward[-1].flops == 2 * t * n * k


def test_bitsandbytes_saves_the_input_of_a_matrix_in_eight_bits() -> None:
    """Each of four inputs once, and seven columns of it for each of seven matrices."""
    whole, narrow = (
        saved_bytes(
            layer_operations(SMALL, Batch(2, 128, adapters=Lora(rank=8, targets=(), dtype="bfloat16", base=base)))
        )
        for base in ("gptq", "int8")
    )
    # Attention's output is saved anyway.
    inputs = 64 + 64 + 256
    assert narrow - whole == 2 * TOKENS * (inputs + 7 * 7)


def data(base: str, **keys: Any) -> dict[str, Any]:
    model = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 192, "vocab_size": 96, "tie_word_embeddings": False,
    }  # fmt: skip
    training = {"model": model, "seq_len": 32, "lora": {"rank": 4, "base": base}, "collectives": "played"}
    cluster = {"topology": "dgx_h100", "world_size": 4}
    return {"name": "base", "cluster": cluster | keys.pop("cluster", {}), "training": training | keys}


@pytest.mark.parametrize("base", ["int8", "gptq"])
@pytest.mark.parametrize("keys", [{"sharding": "zero3"}, {"sharding": "ddp", "parallelism": {"tp": 2}}])
def test_both_engines_agree(base: str, keys: dict[str, Any]) -> None:
    drawn = accepted(data(base, **keys))
    assert drawn is not None
    simulated(drawn)


def test_a_gpu_without_matmuls_in_int8_is_refused_in_one_line() -> None:
    with pytest.raises(ScenarioError) as refused:
        load_scenario(data("int8", cluster={"gpu": "b300"}))
    assert "training.lora.base: got 'int8', but b300 has no rate of matmuls in int8; write nf4" in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1


def test_an_nf4_matrix_is_decoded_by_sms_where_hbm_is_fast() -> None:
    """2.2 elements per SM and clock: 67 million take 0.2 ms on 108 SMs of an A100, and their 2.5 bytes 0.09 ms. On an
    RTX 4090, whose HBM is half as fast, bytes take longer than 128 SMs of 2.52 GHz.
    """
    n = 8192 * 8192
    kernel = Elementwise("dequantisation", n / 2, 2 * n, decoded=n)
    a100, rtx_4090 = load_gpu("a100_sxm_80gb"), load_gpu("rtx_4090")
    assert duration(kernel, a100, "bfloat16") - 2.94e-6 == pytest.approx(n / (2.2 * 108 * 1.41e9))
    assert duration(kernel, rtx_4090, "bfloat16") == duration(replace(kernel, decoded=0), rtx_4090, "bfloat16")
    # A collective takes half of the SMs, and the matrix twice the time; a plain copy is not slower.
    halved = duration(kernel, a100, "bfloat16", sms_taken=54) - 2.94e-6
    assert halved == pytest.approx(2 * n / (2.2 * 108 * 1.41e9))


def test_only_nf4_needs_a_table() -> None:
    decoded = {
        base: [kernel.decoded for kernel in operation("down", base).forward if isinstance(kernel, Elementwise)]
        for base in ("nf4", "nf4_single", "gptq")
    }
    assert decoded == {"nf4": [64 * 256], "nf4_single": [64 * 256], "gptq": [0]}


def test_eager_nf4_tensors_are_written_out_in_thirteen_kernels() -> None:
    """torchao's get_original_weight, bytes of each of n elements: unpacking twice 1, indices in int64 twice 4.5, the
    table twice 5, scales 3 / 64 and 4 / 64, repeated twice 1 + 2 / 128, scaling twice 3, stacking 4.
    """
    down = operation("down", "nf4")
    (apart,) = with_nf4_tensors((down,))
    n = 64 * 256
    by_hand = 2 * (1 + 4.5 + 5 + 1 + 2 / 64 + 3) + 7 / 64 + 4
    for before, after in ((down.forward, apart.forward), (down.backward, apart.backward)):
        assert len(after) == len(before) + 12
        (whole,) = (kernel for kernel in before if isinstance(kernel, Elementwise) and kernel.decoded)
        own = [kernel for kernel in after if kernel.name.startswith(whole.name)]
        assert sum(kernel.nbytes(2) for kernel in own) == pytest.approx(by_hand * n)
        assert [kernel for kernel in after if kernel not in own] == [kernel for kernel in before if kernel is not whole]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_compiler_merges_the_kernels_of_an_nf4_tensor(*, compiled: bool) -> None:
    """12 more kernels for each of a layer's seven matrices and each pass without a compiler; bitsandbytes has one
    kernel in both cases.
    """

    def launches(framework: Framework) -> int:
        model = replace(SMALL, adapters=Lora(rank=8, targets=(), dtype="bfloat16", base="nf4"))
        job = step(model=model, framework=framework, compile=compiled)
        layer = units(job, load_gpu("a100_sxm_80gb"))[1]
        return layer.forward.cost.launches + layer.input_gradient.cost.launches

    own = load_framework("torchtune").with_constants(nf4_tensors=False)
    assert launches(own.with_constants(nf4_tensors=True)) - launches(own) == (0 if compiled else 7 * 2 * 12)
