"""Kernel times: never faster than the roofs, never less for more work, and scaled by what communication takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from math import ceil, isinf
from operator import itemgetter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simulator.basics import registry
from simulator.basics.errors import UnknownNameError
from simulator.cluster.cluster import Gpu
from simulator.cluster.gpu_file import load_gpu
from simulator.model.kernel import Attention, Elementwise, Matmul
from simulator.step.kernels.attention_time import attention_bytes
from simulator.step.kernels.kernel_model import sm_rate
from simulator.step.kernels.kernel_time import (
    attention_generations,
    communication_sms,
    default_attention,
    duration,
    grouped_duration,
    kernel_model,
)
from simulator.step.kernels.matmul_time import FLOAT32_TILES, SLICES, STEP, TILES, MatmulConstants

GPUS = registry.names("gpu")
H100 = load_gpu("h100_sxm")
A100 = load_gpu("a100_sxm_80gb")
GB200 = load_gpu("gb200")


@cache
def known(name: str) -> Gpu:
    """Always the same object, for which constants are cached."""
    return load_gpu(name)


SIZES = st.one_of(st.integers(1, 600), st.integers(1, 20_000))
MATMULS = st.builds(Matmul, st.just("x"), SIZES, SIZES, SIZES, st.integers(1, 70))
HEADS = st.sampled_from([(1, 1), (4, 4), (16, 16), (32, 8)])
DTYPES = st.sampled_from(["bfloat16", "float16", "tf32", "float32", "float64", "float8_e4m3fn", "int8"])


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    heads, kv_heads = draw(HEADS)
    return Attention(
        "x", draw(st.integers(1, 64)), heads, kv_heads, draw(st.integers(1, 20_000)),
        draw(st.sampled_from([16, 64, 96, 128, 256])), draw(st.booleans()), draw(st.booleans()),
    )  # fmt: skip


@given(MATMULS, DTYPES)
def test_a_matmul_is_never_faster_than_the_peak_or_hbm(kernel: Matmul, dtype: str) -> None:
    itemsize = {"float64": 8, "float32": 4, "tf32": 4, "bfloat16": 2, "float16": 2}.get(dtype, 1)
    seconds = duration(kernel, H100, dtype)
    assert kernel.flops / seconds < H100.peak_flops[dtype]
    assert kernel.nbytes(itemsize) / seconds < H100.hbm_bandwidth


@given(MATMULS, DTYPES, st.sampled_from(["m", "n", "k", "batch"]), st.integers(1, 3000))
def test_a_larger_matmul_never_takes_less(kernel: Matmul, dtype: str, side: str, more: int) -> None:
    larger = replace(kernel, **{side: getattr(kernel, side) + more})
    assert duration(larger, H100, dtype) >= duration(kernel, H100, dtype)


@given(MATMULS, st.integers(0, 130), st.floats(0.05, 1.0))
def test_a_matmul_beside_communication_never_takes_less(kernel: Matmul, taken: int, share: float) -> None:
    alone = duration(kernel, H100, "bfloat16")
    assert duration(kernel, H100, "bfloat16", sms_taken=taken, hbm_share=share) >= alone


def by_the_page(c: MatmulConstants, rows: Sequence[int], n: int, k: int, taken: int = 0, share: float = 1.0) -> float:
    """docs/kernels.md, "Matmuls", in exact fractions but for the powers; every tile with every number of slices.

    `rows` has the rows of each group; groups of a batch are equal. The choice is the fastest with every SM and all of
    HBM's bandwidth.
    """
    bandwidth = Fraction(c.hbm_bandwidth) * Fraction(share)
    compute = []
    for a, b in FLOAT32_TILES if c.itemsize == 4 else TILES:
        tiles = sum(ceil(Fraction(m, a)) for m in rows) * ceil(Fraction(n, b))
        math = 2 * a * b / (Fraction(c.efficiency) * Fraction(c.peak_flops) / c.sms)
        fed = 0 if isinf(c.operand_rate) else (a + b) * Fraction(c.itemsize) / (Fraction(c.operand_rate) / c.sms)
        for slices in (1, *SLICES):
            # Another slice is for SMs that would idle: some do as long as the slices do not fill them twice.
            if slices > 1 and tiles * slices >= 2 * c.sms:
                continue
            steps = ceil(Fraction(k, STEP * slices)) * STEP
            tile = Fraction(c.prologue) + steps * max(math, Fraction(fed))
            # Sums of four bytes, written and read, by a kernel of their own.
            added = Fraction(c.launch), slices * 2 * 4 * sum(rows) * n / Fraction(c.hbm_bandwidth)
            alone, beside = (
                float(
                    ceil(Fraction(tiles * slices, c.sms - sms)) * tile
                    + (added[0] + added[1] / Fraction(part) if slices > 1 else 0)
                )
                for sms, part in ((0, 1), (taken, share))
            )
            compute.append((alone, beside))
    size, out = Fraction(c.itemsize), c.output_itemsize
    hbm = float(sum(size * k * (m + n) + out * m * n for m in rows) / bandwidth)
    least = min(compute, key=itemgetter(0))[1]
    hidden = max(least, hbm) if isinf(c.overlap) else (least**c.overlap + hbm**c.overlap) ** (1 / c.overlap)
    copied = float(Fraction(c.copies) * len(rows) * size * k * n / bandwidth)
    return c.launch + hidden + copied


# Small outputs with a long k are sliced, wide ones are bound by HBM.
SHAPES = st.tuples(st.integers(1, 700), st.integers(1, 700), st.integers(1, 20_000)) | st.tuples(SIZES, SIZES, SIZES)


@settings(max_examples=300, derandomize=True)
@given(
    SHAPES,
    st.sampled_from([1, 1, 3, 70]),
    st.sampled_from([0, 0, 20, 66, 131]),
    st.sampled_from([1.0, 0.9, 0.4, 0.05]),
    st.sampled_from(["bfloat16", "tf32", "float8_e4m3fn"]),
)
@example((444, 51, 6281), 4, 20, 1.0, "bfloat16")
@example((151, 681, 6262), 1, 0, 1.0, "bfloat16")
def test_a_matmul_takes_what_the_page_says(
    shape: tuple[int, int, int], batch: int, taken: int, share: float, dtype: str
) -> None:
    """The examples are sliced so that slices are more than the SMs, and fewer than twice as many."""
    kernel = Matmul("", *shape, batch)
    expected = by_the_page(kernel_model(H100).matmul(dtype), [kernel.m] * batch, kernel.n, kernel.k, taken, share)
    assert duration(kernel, H100, dtype, sms_taken=taken, hbm_share=share) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("gpu", "dtype", "blocks"), [
    ("h100_sxm", "bfloat16", False), ("h100_sxm", "float8_e4m3fn", True), ("gb200", "bfloat16", False),
    ("gb200", "float8_e4m3fn", False), ("gb200", "float8_e4m3fn", True), ("gb200", "float4_e2m1fn", False),
    ("a100_sxm_80gb", "bfloat16", False),
])  # fmt: skip
def test_groups_of_rows_take_what_the_page_says(gpu: str, dtype: str, *, blocks: bool) -> None:
    """Experts with unlike numbers of tokens share a kernel's tiles; one without tokens costs nothing."""
    constants = replace(kernel_model(load_gpu(gpu)).matmul(dtype, blocks=blocks, kind="grouped"), copies=0.0)
    for rows in ([4000, 130, 129, 128, 1], [64] * 32, [17], [0, 300, 0, 20_000]):
        expected = by_the_page(constants, [m for m in rows if m], 2048, 7168)
        found = grouped_duration(load_gpu(gpu), dtype, rows, 2048, 7168, blocks=blocks)
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("gpu", ["h100_sxm", "gb200", "mi300x"])
@given(rows=st.integers(1, 5000), groups=st.integers(1, 64), n=SIZES, k=SIZES)
def test_equal_groups_take_as_long_as_a_batch(gpu: str, rows: int, groups: int, n: int, k: int) -> None:
    batch = Matmul("", rows, n, k, groups, kind="grouped")
    alone = duration(batch, known(gpu), "bfloat16", ordered=True)
    assert grouped_duration(known(gpu), "bfloat16", [rows] * groups, n, k) == alone


def test_groups_without_constants_of_their_own_take_those_of_plain_matmuls() -> None:
    model = kernel_model(H100)
    assert model.matmul_family("bfloat16", kind="grouped") == "grouped_bfloat16"
    plain = {name: each for name, each in model.constants.items() if not name.startswith("grouped_")}
    assert replace(model, constants=plain).matmul_family("bfloat16", kind="grouped") == "matmul_bfloat16"


@pytest.mark.parametrize(("gpu", "dtype", "blocks", "family"), [
    ("gb200", "float8_e4m3fn", True, "matmul_float8_e4m3fn_block"),
    ("gb200", "float8_e4m3fn", False, "matmul_float8_e4m3fn"),
    ("gb200", "float8_e5m2", True, "matmul_float8_e4m3fn_block"),
    ("gb200", "float4_e2m1fn", False, "matmul_float4_e2m1fn"),
    ("h100_sxm", "float8_e5m2", False, "matmul_float8_e4m3fn"),
    ("h100_sxm", "int8", False, "matmul_float8_e4m3fn"),
    ("h100_sxm", "float16", False, "matmul_bfloat16"),
    ("h100_sxm", "float64", False, "matmul_tf32"),
    ("h100_sxm", "float32", False, "matmul_tf32"),
])  # fmt: skip
def test_a_format_has_the_constants_of_the_nearest_fitted_format(
    gpu: str, dtype: str, family: str, *, blocks: bool
) -> None:
    assert kernel_model(load_gpu(gpu)).matmul_family(dtype, blocks=blocks) == family


def test_scales_of_blocks_have_constants_of_their_own_where_they_are_measured() -> None:
    kernel = Matmul("", 4096, 4096, 7168)
    for name in ("gb200", "h100_sxm", "rtx_pro_6000"):
        gpu = load_gpu(name)
        constants = kernel_model(gpu).matmul("float8_e4m3fn", blocks=True)
        expected = by_the_page(constants, [4096], 4096, 7168)
        assert duration(kernel, gpu, "float8_e4m3fn", blocks=True) == pytest.approx(expected, rel=1e-12)
        assert duration(kernel, gpu, "float8_e4m3fn") != duration(kernel, gpu, "float8_e4m3fn", blocks=True)
    # Scales of blocks belong to eight bits.
    assert duration(kernel, H100, "bfloat16", blocks=True) == duration(kernel, H100, "bfloat16")


def test_a_board_measured_above_its_printed_peak_reaches_what_was_measured() -> None:
    """A GeForce RTX 5090 runs faster than the boost clock of its data sheet: 237 of 209.5 TFLOP/s in bfloat16."""
    gpu = load_gpu("rtx_5090")
    kernel = Matmul("", 10240, 10240, 10240)
    rate = kernel.flops / duration(kernel, gpu, "bfloat16")
    assert gpu.peak_flops["bfloat16"] < rate <= 237e12
    assert rate == pytest.approx(236.99e12, rel=0.05)
    assert kernel_model(gpu).peak_flops("float8_e4m3fn") == pytest.approx(419e12 * 236.99 / 209.5)


@pytest.mark.parametrize("name", ["rtx_4090", "l4", "l40s", "rtx_pro_6000", "gh200_144gb", "mi325x", "rtx_3090"])
def test_a_matmul_of_the_measured_shape_has_about_the_measured_rate(name: str) -> None:
    gpu = load_gpu(name)
    (m, n, k), flops = gpu.facts["best_matmul"]["bfloat16"]
    assert 2.0 * m * n * k / duration(Matmul("", m, n, k), gpu, "bfloat16") == pytest.approx(flops, rel=0.06)


@given(attentions(), st.sampled_from([1, 2, 3]))
def test_attention_is_never_faster_than_the_peak_or_hbm(kernel: Attention, generation: int) -> None:
    seconds = duration(kernel, H100, "bfloat16", attention_generation=generation)
    assert kernel.flops / seconds < H100.peak_flops["bfloat16"]
    assert kernel.nbytes(2) / seconds < H100.hbm_bandwidth


@given(attentions(), st.sampled_from([1, 2, 3]), st.sampled_from(["seq_len", "batch"]), st.integers(1, 500))
def test_more_attention_never_takes_less(kernel: Attention, generation: int, side: str, more: int) -> None:
    larger = replace(kernel, **{side: getattr(kernel, side) + more})
    times = [duration(a, H100, "bfloat16", attention_generation=generation) for a in (kernel, larger)]
    assert times[1] >= times[0]


def test_one_tile_more_than_sms_takes_a_second_wave() -> None:
    """132 tiles of 256 x 256 fill an H100 once; one column of numbers more needs more tiles than SMs."""
    full, over = (duration(Matmul("", 256 * 12, n, 2048), H100, "bfloat16") for n in (256 * 11, 256 * 11 + 1))
    assert over > 1.1 * full


def test_few_tiles_with_a_long_k_are_sliced() -> None:
    """16 tiles on 132 SMs: twice the k takes far less than twice the time."""
    short, long = (duration(Matmul("", 512, 512, k), H100, "bfloat16") for k in (4096, 8192))
    assert long < 1.6 * short


def test_a_tiny_matmul_costs_its_launch() -> None:
    launch = kernel_model(H100).value("launch")
    assert launch < duration(Matmul("", 16, 16, 16), H100, "bfloat16") < launch + 3e-6


def test_a_large_matmul_runs_at_the_rate_of_the_fastest_in_the_table() -> None:
    kernel = Matmul("", 16384, 16384, 16384)
    best = 823.3e12  # catalog/measured/matmul.csv, 16384 x 10240 x 5120
    assert kernel.flops / duration(kernel, H100, "bfloat16") == pytest.approx(best, rel=0.05)


@pytest.mark.parametrize("name", ["a100_pcie_80gb", "gh200_144gb", "h800_sxm"])
def test_a_gpu_without_fitted_matmuls_takes_the_efficiency_of_its_best_matmul(name: str) -> None:
    """Other formats change as bfloat16 does; a format that was searched, too, takes its own."""
    gpu = load_gpu(name)
    shape, rate = gpu.facts["best_matmul"]["bfloat16"]
    kernel = Matmul("", *shape)
    assert kernel.flops / duration(kernel, gpu, "bfloat16") == pytest.approx(rate, rel=1e-4)
    own, other = (kernel_model(each) for each in (gpu, load_gpu(gpu.facts["kernels_as"])))
    if "tf32" in gpu.peak_flops:
        changed = [m.value("matmul_tf32_efficiency") / m.value("matmul_bfloat16_efficiency") for m in (own, other)]
        assert changed[0] == pytest.approx(changed[1]) or own.value("matmul_tf32_efficiency") == 1.0


def test_an_elementwise_kernel_takes_its_bytes_over_the_reachable_bandwidth() -> None:
    model = kernel_model(A100)
    expected = model.value("launch") + 3e9 / (2039e9 * (1794 / 2039))  # triad over data sheet
    assert duration(Elementwise("", 2e9, 1e9), A100, "bfloat16") == pytest.approx(expected)


def test_half_the_hbm_doubles_the_streaming_time() -> None:
    launch = kernel_model(H100).value("launch")
    alone, beside = (duration(Elementwise("", 1e9, 1e9), H100, "bfloat16", hbm_share=s) for s in (1.0, 0.5))
    assert beside - launch == pytest.approx(2 * (alone - launch))


def test_a_compiler_takes_fusible_kernels_away_and_no_others() -> None:
    fusible, other = Elementwise("", 1e9, 1e9, fusible=True), Elementwise("", 1e9, 1e9)
    assert duration(fusible, H100, "bfloat16", compiled=True) == 0.0
    assert duration(fusible, H100, "bfloat16") == duration(other, H100, "bfloat16", compiled=True) > 0.0


@pytest.mark.parametrize("backward", [False, True])
def test_later_generations_of_attention_are_faster_on_an_h100(*, backward: bool) -> None:
    kernel = Attention("", 2, 32, 8, 8192, 128, causal=True, backward=backward)
    times = [duration(kernel, H100, "bfloat16", attention_generation=g) for g in (1, 2, 3)]
    assert times[0] > times[1] > times[2]


def test_causal_attention_takes_half_and_the_diagonal() -> None:
    """s / 128 = 64 strips: 64 x 65 / 2 of 64 x 64 tiles of scores."""
    launch = kernel_model(H100).value("launch")
    full, causal = (
        duration(Attention("", 33, 128, 128, 8192, 128, causal=c, backward=False), H100, "bfloat16") - launch
        for c in (False, True)
    )
    assert causal / full == pytest.approx(65 / 128)


def test_long_sequences_reach_the_published_share_of_the_peak() -> None:
    """FlashAttention-2 on A100, head_dim 128: 73 % forward, 63 % backward (Dao 2023, recalled), 2 and 5 parts of 7."""
    both = [Attention("", 27, 32, 32, 16384, 128, causal=False, backward=b) for b in (False, True)]
    together = sum(k.flops for k in both) / sum(duration(k, A100, "float16") for k in both)
    assert together == pytest.approx(7 / (2 / 0.73 + 5 / 0.63) * 312e12, rel=0.01)


def test_small_heads_spend_more_of_their_time_on_exponentials() -> None:
    """A score's 4 d FLOP take d / 512 clocks of an A100's SM (2048 FLOP a clock), its exponential 1 / 16: 32 of d."""
    rates = []
    for heads, head_dim in ((64, 64), (32, 128)):
        kernel = Attention("", 27, heads, heads, 16384, head_dim, causal=False, backward=False)
        rates.append(kernel.flops / duration(kernel, A100, "float16"))
    assert rates[0] / rates[1] == pytest.approx((64 / 96) / (128 / 160), rel=0.01)


def test_eight_bit_matmuls_on_an_h100_copy_b_and_those_on_a_b200_need_not() -> None:
    """Swapping m and n swaps which operand is copied; bfloat16 takes either order."""
    for gpu, dtype, alike in (("h100_sxm", "float8_e4m3fn", False), ("b200", "float8_e4m3fn", True),
                              ("h100_sxm", "bfloat16", True)):  # fmt: skip
        wide, tall = (duration(Matmul("", m, n, 4096), load_gpu(gpu), dtype) for m, n in ((512, 8192), (8192, 512)))
        assert (wide == pytest.approx(tall)) is alike


def by_the_tiles(kernel: Attention, name: str) -> float:
    """docs/kernels.md, "Flash attention", of a GB200's kernels: tiles, softmax and prologue beside HBM's bytes."""
    model = kernel_model(GB200)
    c = {end: model.value(f"{name}_{end}", 0.0) for end in ("efficiency", "softmax", "prologue", "masked")}
    sms, d = GB200.sms, kernel.head_dim
    strips, columns = ceil(kernel.seq_len / 128), ceil((kernel.keys or kernel.seq_len) / 128)
    heads = kernel.batch * kernel.heads
    if kernel.causal:
        before = ceil(kernel.window / 128) if kernel.window else columns
        # Strip i has its own tile and the earlier ones, as many as the window holds.
        seen = sum(min(i, before + 1) for i in range(1, columns + 1)) / columns
        full = (columns + 1) / 2
        mean = seen + (c["masked"] * (full - seen) if kernel.window else 0.0)
        longest = min(columns, before + 1) if kernel.window else columns
        tiles = max(heads * strips * mean / sms, longest)
    else:
        tiles = ceil(heads * strips / sms) * columns
    matmuls = 5 if kernel.backward else 2
    dtype, size = ("float8_e4m3fn", 1) if "float8" in name else ("bfloat16", 2)
    scores = 128 * 128
    exponentials = (2 if kernel.capped else 1) * c["softmax"] * scores / (16 * sm_rate(GB200) / sms)
    tile = 2 * matmuls * scores * d / (c["efficiency"] * model.peak_flops(dtype) / sms) + exponentials
    compute = tiles * tile + ceil(heads * strips / sms) * c["prologue"]
    moved = kernel.nbytes(size) / (GB200.hbm_bandwidth * model.value("hbm_efficiency"))
    return model.value("launch") + max(compute, moved)


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128, 192])
@pytest.mark.parametrize(
    "mask",
    [{"causal": False}, {"causal": True}, {"causal": True, "window": 1000}, {"causal": True, "capped": True}],
    ids=lambda mask: " ".join(mask),
)
def test_attention_of_blackwell_is_tiles_softmax_and_a_prologue(
    mask: dict[str, Any], head_dim: int, *, backward: bool
) -> None:
    name = f"attention_4_{'backward' if backward else 'forward'}"
    for seq_len in (512, 4096, 16_384):
        kernel = Attention("", 2, 24, 8, seq_len, head_dim, backward=backward, **mask)
        assert duration(kernel, GB200, "bfloat16") == pytest.approx(by_the_tiles(kernel, name), rel=1e-9)


def test_attention_in_eight_bits_and_in_blocks_has_constants_of_its_own() -> None:
    kernel = Attention("", 2, 24, 8, 8192, 128, causal=True, backward=False)
    name = "attention_4_forward_float8_e4m3fn"
    plain, blocks = (duration(kernel, GB200, "float8_e4m3fn", blocks=each) for each in (False, True))
    assert plain == pytest.approx(by_the_tiles(kernel, name), rel=1e-9)
    assert blocks == pytest.approx(by_the_tiles(kernel, f"{name}_block"), rel=1e-9)


def test_masked_tiles_behind_a_window_count_by_a_share() -> None:
    """With a share of 1, a window takes as long as all earlier keys; half of it takes the mean of both."""
    windowed = Attention("", 8, 32, 8, 8192, 128, causal=True, backward=True, window=1024)
    name = "attention_4_backward"

    def taken(kernel: Attention, share: float) -> float:
        constants = {**GB200.facts["constants"], f"{name}_masked": share}
        return duration(kernel, replace(GB200, facts={**GB200.facts, "constants": constants}), "bfloat16")

    none, half, whole = (taken(windowed, share) for share in (0.0, 0.5, 1.0))
    assert whole == pytest.approx(taken(replace(windowed, window=0), 0.0))
    assert half == pytest.approx((none + whole) / 2)
    assert none < half


@pytest.mark.parametrize(
    ("name", "generations", "default"),
    [("a100_sxm_80gb", (1, 2), 2), ("h100_sxm", (1, 2, 3), 2), ("gb200", (1, 2, 4), 4), ("b200", (1, 2, 4), 4),
     ("b300", (1, 2, 4), 4), ("rtx_5090", (1, 2), 2), ("mi300x", (1, 2), 2)],
)  # fmt: skip
def test_the_default_attention_is_of_generation_four_on_blackwell_of_data_centres(
    name: str, generations: tuple[int, ...], default: int
) -> None:
    gpu = load_gpu(name)
    assert (attention_generations(gpu), default_attention(gpu)) == (generations, default)
    kernel = Attention("", 2, 32, 8, 4096, 128, causal=True, backward=False)
    assert duration(kernel, gpu, "float16") == duration(kernel, gpu, "float16", attention_generation=default)


def test_the_first_flash_attention_moves_what_its_algorithm_counts() -> None:
    """GPT-2 medium of Dao et al. 2022: each tensor 134 MB; 192 KB on chip: 3 walks, 100 KB: 6; plus statistics."""
    both = [Attention("", 64, 16, 16, 1024, 64, causal=False, backward=b) for b in (False, True)]
    tensor, row = 64 * 16 * 1024 * 64 * 2, 64 * 16 * 1024 * 4
    for on_chip, walks in ((192 * 1024, 3), (100 * 1024, 6)):
        expected = tensor * (2 + 3 * walks + 4 + 5 * walks) + row * walks * (4 + 2)
        assert sum(attention_bytes(a, 2, 1, on_chip) for a in both) == expected


def test_attention_at_a_share_of_hbm_and_sms_takes_longer() -> None:
    kernel = Attention("", 8, 32, 8, 4096, 128, causal=True, backward=False)
    alone = duration(kernel, H100, "bfloat16")
    assert duration(kernel, H100, "bfloat16", sms_taken=66) > 1.9 * alone - 5e-6


@pytest.mark.parametrize("share", [1e-3, 1e-4])
@pytest.mark.parametrize("backward", [False, True])
def test_attention_with_hardly_any_hbm_takes_its_bytes_over_what_is_left(share: float, *, backward: bool) -> None:
    """Q, K, V and the output pass once in bfloat16, and four bytes for each row of scores: 8 x 32 x 4096 of them.

    K and V are a quarter as large. Backward all of it passes again as gradients, and the output once more.
    """
    kernel = Attention("", 8, 32, 8, 4096, 128, causal=True, backward=backward)
    rows = 8 * 32 * 4096
    tensor = 2 * rows * 128
    moved = 2 * tensor + 2 * tensor / 4 + 4 * rows
    moved = 2 * moved + tensor if backward else moved
    model = kernel_model(H100)
    expected = model.value("launch") + moved / (3350e9 * model.value("hbm_efficiency") * share)
    assert duration(kernel, H100, "bfloat16", hbm_share=share) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_has_times_for_every_kind_of_kernel(name: str) -> None:
    gpu = load_gpu(name)
    kernels = (
        Matmul("", 4096, 4096, 4096),
        Attention("", 1, 32, 8, 4096, 128, causal=True, backward=True),
        Elementwise("", 1e8, 1e8),
    )
    dtype = "float16" if "float16" in gpu.peak_flops else "bfloat16"
    for kernel in kernels:
        assert kernel.flops / gpu.peak_flops[dtype] < duration(kernel, gpu, dtype) < 1.0
    # Links of TPUs move data without the vector units.
    least = 0 if name.startswith("tpu_") else 1
    assert least <= communication_sms(gpu) < gpu.sms


@pytest.mark.parametrize("name", GPUS)
def test_only_gpus_with_tables_have_measured_matmuls(name: str) -> None:
    model = kernel_model(load_gpu(name))
    assert all(constant.source for constant in model.constants.values())
    tables = {"a100_sxm_80gb", "h100_sxm", "h200", "b200", "b300", "gb200", "rtx_pro_6000", "mi300x"}
    expected = "measured" if name in tables else "assumed" if name.startswith("tpu_") else "other_gpu"
    assert {model.constants[f"matmul_bfloat16_{end}"].grade for end in ("prologue", "overlap")} == {expected}


def test_a_carried_constant_says_where_it_is_from_and_only_operand_rates_are_scaled() -> None:
    h20, h100 = (kernel_model(load_gpu(name)) for name in ("h20", "h100_sxm"))
    for name in ("matmul_bfloat16_prologue", "matmul_bfloat16_overlap", "matmul_float8_e4m3fn_copies", "launch"):
        assert h20.constants[name].value == h100.constants[name].value
        assert h20.constants[name].source.startswith("as on h100_sxm: ")
    rate, scale = "matmul_bfloat16_operand_rate", sm_rate(h20.gpu) / sm_rate(h100.gpu)
    assert h20.value(rate) == pytest.approx(scale * h100.value(rate))
    assert h20.constants[rate].source.startswith("by SMs and clock, from h100_sxm: ")
    # A share that another GPU reached stands beside the data sheet's bandwidth.
    assert h20.constants["hbm_efficiency"].grade == "data_sheet"


def test_constants_are_carried_over_from_the_gpus_that_a_file_names_one_after_another() -> None:
    """A GB300 names a B300, which names a GB200: matmuls are the former's, attention the latter's."""
    own, near, far = (kernel_model(load_gpu(name)) for name in ("gb300", "b300", "gb200"))
    assert own.value("matmul_bfloat16_prologue") == near.value("matmul_bfloat16_prologue")
    assert own.value("attention_4_forward_softmax") == far.value("attention_4_forward_softmax")
    assert own.constants["attention_4_forward_softmax"].source.startswith("as on gb200: ")


def test_a_gpu_of_bare_figures_is_scaled_from_the_reference() -> None:
    """The same SMs and peak as an H100, no catalog behind it: its matmuls run alike."""
    bare = load_gpu(
        {"matrix_flops": {"bfloat16": "989.4 TFLOP/s"}, "hbm_bytes": "80 GiB", "hbm_bandwidth": "3350 GB/s",
         "sms": 132, "host_bandwidth": "63 GB/s"}
    )  # fmt: skip
    kernel = Matmul("", 4096, 4096, 4096)
    assert duration(kernel, bare, "bfloat16") == pytest.approx(duration(kernel, H100, "bfloat16"))


def test_a_dtype_without_a_rate_is_an_error_that_names_the_others() -> None:
    with pytest.raises(UnknownNameError, match="dtype of kernels on v100_sxm_32gb: got 'bfloat16'; one of"):
        duration(Matmul("", 64, 64, 64), load_gpu("v100_sxm_32gb"), "bfloat16")


def test_a_generation_of_attention_that_a_gpu_lacks_is_an_error() -> None:
    kernel = Attention("", 1, 1, 1, 128, 64, causal=True, backward=False)
    with pytest.raises(ValueError, match="generation 3; a100_sxm_80gb has kernels of 1, 2"):
        duration(kernel, A100, "float16", attention_generation=3)


@pytest.mark.parametrize(("taken", "share"), [(-1, 1.0), (132, 1.0), (0, 0.0), (0, 1.1)])
def test_no_sms_or_no_bandwidth_left_is_an_error(taken: int, share: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        duration(Matmul("", 64, 64, 64), H100, "bfloat16", sms_taken=taken, hbm_share=share)
