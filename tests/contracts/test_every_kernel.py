"""Contract of every kind of kernel: time follows from what it computes and moves, and each field counts in both.

A new kind of kernel, or a new field of one, needs an entry in `EXAMPLES` and `LESS`; without it a test fails, because a
field that changes FLOPs and is forgotten in the time would go unseen.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import product
from typing import Any, Final, get_args

import pytest

from simulator.basics import registry
from simulator.cluster.gpu_file import load_gpu
from simulator.model.kernel import Attention, Elementwise, Kernel, Matmul
from simulator.step.kernels.kernel_model import kernel_model
from simulator.step.kernels.kernel_time import attention_generations, duration

# One large kernel of each kind, bound by arithmetic or by HBM and by nothing else: a quarter of it still fills the GPU.
EXAMPLES: Final[dict[type, Kernel]] = {
    Matmul: Matmul("matmul", 8192, 8192, 8192, 2),
    Attention: Attention("attention", 16, 32, 8, 8192, 128, causal=False, backward=False, keys=8192),
    Elementwise: Elementwise("copy", 2e9, 2e9),
}
# A quarter of each number that says how much there is to do.
LESS: Final[dict[type, dict[str, Any]]] = {
    Matmul: {"m": 2048, "n": 2048, "k": 2048, "batch": 1},
    Attention: {"batch": 4, "heads": 8, "seq_len": 2048, "head_dim": 32, "keys": 2048, "documents": (2048,) * 64},
    Elementwise: {"read": 5e8, "written": 5e8},
}
# Fields that say no amount.
WITHOUT_AMOUNT: Final[dict[type, set[str]]] = {
    # A convolution's repeated pixels take bytes away (tests/theory/test_layer_list.py). Groups of rows have
    # constants of their own (tests/unit/test_kernel_time.py).
    Matmul: {"name", "of_weights", "dtype", "reread", "kind"},
    # Fewer heads of keys and values move fewer bytes and compute as much. Sums of a ring's steps are kernels of their
    # own (tests/theory/test_model_parallel.py). Windows belong to causal kernels (tests/theory/test_model_families.py).
    Attention: {"name", "causal", "backward", "kv_heads", "summed", "opens", "closes", "window", "chunked", "capped"},
    # Decoded elements, and elements one by one, limit a kernel beside its bytes, which follow from them
    # (tests/theory/test_quantised_base.py, tests/test_recordings.py).
    Elementwise: {"name", "fusible", "of_weights", "decoded", "scattered"},
}
GPUS: Final = [load_gpu(name) for name in registry.names("gpu")]
# Every generation of attention, on a GPU that has it.
GENERATIONS: Final = [
    (name, number) for name in ("h100_sxm", "gb200") for number in attention_generations(load_gpu(name))
]
AMOUNTS: Final = [(kind, field) for kind, own in LESS.items() for field in own]


def test_every_kind_and_every_field_of_a_kernel_has_an_example() -> None:
    assert set(EXAMPLES) == set(get_args(Kernel)) == set(LESS) == set(WITHOUT_AMOUNT)
    for kind in EXAMPLES:
        assert {one.name for one in fields(kind)} == set(LESS[kind]) | WITHOUT_AMOUNT[kind], kind.__name__


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_no_kernel_is_faster_than_the_roofs(kind: type, gpu: Any) -> None:
    """FLOPs by the kind's own formula at the peak, and its bytes at HBM's bandwidth, whatever tiles it is made of."""
    kernel = EXAMPLES[kind]
    dtype = "bfloat16" if "bfloat16" in gpu.peak_flops else "float16"
    others = [replace(kernel, kind="grouped")] if isinstance(kernel, Matmul) else []
    for each, generation in product([kernel, *others], attention_generations(gpu)):
        seconds = duration(each, gpu, dtype, attention_generation=generation)
        assert seconds >= kernel.flops / kernel_model(gpu).peak_flops(dtype)
        assert seconds >= kernel.nbytes(2) / gpu.hbm_bandwidth


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("name", "generation"), GENERATIONS)
@pytest.mark.parametrize(("kind", "field"), AMOUNTS, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_a_quarter_of_an_amount_takes_less_of_everything(
    kind: type, field: str, name: str, generation: int, *, backward: bool
) -> None:
    """A kernel with a quarter of an amount has fewer FLOPs or bytes, and takes at most two thirds of the time.

    A window of a quarter of the keys that only counts fewer FLOPs would take the whole time.
    """
    gpu, whole = load_gpu(name), EXAMPLES[kind]
    whole = replace(whole, backward=backward) if isinstance(whole, Attention) else whole
    part = replace(whole, **{field: LESS[kind][field]})
    assert part.flops < whole.flops or part.nbytes(2) < whole.nbytes(2)
    times = [duration(one, gpu, "bfloat16", attention_generation=generation) for one in (whole, part)]
    # One of two equal streams is half of the traffic.
    assert times[1] <= (0.7 if kind is Elementwise else 2 / 3) * times[0]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(("name", "generation"), GENERATIONS)
def test_keys_as_long_as_the_sequence_are_all_keys(name: str, generation: int, *, causal: bool, backward: bool) -> None:
    gpu = load_gpu(name)
    limited = Attention("attention", 2, 16, 16, 4096, 128, causal=causal, backward=backward, keys=4096)
    plain = replace(limited, keys=None)
    assert limited.flops == plain.flops
    assert limited.nbytes(2) == plain.nbytes(2)
    times = [duration(one, gpu, "bfloat16", attention_generation=generation) for one in (limited, plain)]
    assert times[0] == times[1]
