"""Kernels beside a collective: what NCCL takes from them on an A100, by hand and against a user's profile.

The profile (NVIDIA/nccl#1428, 2024-09-05, GPT on A100-SXM4-80GB): kernels alone and beside an all-gather [ms].
"""

from __future__ import annotations

import pytest

from simulator.cluster.build import build
from simulator.cluster.gpu_file import load_gpu
from simulator.model.kernel import Attention, Elementwise, Kernel, Matmul
from simulator.step.kernels.contention import arriving, hbm_left
from simulator.step.kernels.kernel_time import communication_sms, duration

A100 = load_gpu("a100_sxm_80gb")
# Sizes are not reported: these kernels of GPT models take the reported times alone.
ATTENTION = Attention("attention", 1, 32, 32, 2048, 128, causal=True, backward=False)
MATMUL = Matmul("matmul", 6144, 6144, 4096)
ELEMENTWISE = Elementwise("elementwise", 16e6, 16e6)
PROFILE = [(ATTENTION, 0.18, 0.33), (MATMUL, 1.18, 2.08), (ELEMENTWISE, 0.02, 0.05)]


def slowdown(kernel: Kernel) -> float:
    """Return a kernel's time beside a ring over a DGX A100, relative to its time alone."""
    left, taken = hbm_left(build("dgx_a100", 8)), communication_sms(A100)
    beside = duration(kernel, A100, "bfloat16", sms_taken=taken, hbm_share=left)
    return beside / duration(kernel, A100, "bfloat16")


def test_a_ring_on_a_dgx_a100_takes_24_sms_and_three_passes_over_hbm() -> None:
    """24 channels, a thread block each; a byte that arrives is written, read, and written or added."""
    assert communication_sms(A100) == 24
    machine = build("dgx_a100", 8)
    assert 200e9 < arriving(machine) < 300e9
    assert hbm_left(machine) == pytest.approx(1 - 3 * arriving(machine) / 2039e9)


@pytest.mark.parametrize(("kernel", "alone", "beside"), PROFILE, ids=lambda part: getattr(part, "name", ""))
def test_kernels_slow_down_as_in_a_profile_but_less(kernel: Kernel, alone: float, beside: float) -> None:
    """At least 30 % of the profile's excess follows from SMs and HBM; no more than all of it."""
    assert duration(kernel, A100, "bfloat16") * 1e3 == pytest.approx(alone, rel=0.1)
    assert 0.3 * (beside / alone - 1) <= slowdown(kernel) - 1 <= beside / alone - 1


def test_a_tile_is_chosen_as_if_no_collective_were_in_flight() -> None:
    """1,024 tiles of 128 x 128 take 10 waves of 108 SMs, 13 of 84; of 256 x 128, 512 tiles 5 and 7 waves: both 1.3 to
    1.4. A free choice among tiles could never be slower than the chosen tile.
    """
    square = Matmul("square", 4096, 4096, 4096)
    waves = [(-(-tiles // 84)) / (-(-tiles // 108)) for tiles in (1024, 512)]
    taken = duration(square, A100, "bfloat16", sms_taken=24) / duration(square, A100, "bfloat16")
    assert min(waves) - 0.03 <= taken <= max(waves)
