"""Which 16-bit mixed precision does a GPU support? bfloat16 from Ampere on, float16 before."""

from __future__ import annotations

from simulator.cluster.cluster import Gpu


def mixed_precision(gpu: Gpu) -> str:
    """Return the name of the precision that mixed-precision training uses on a GPU: "bf16", or "fp16" without bfloat16.

    >>> from simulator.cluster.gpu_file import load_gpu
    >>> mixed_precision(load_gpu("h100_sxm")), mixed_precision(load_gpu("v100_sxm_32gb"))
    ('bf16', 'fp16')
    """
    return "bf16" if "bfloat16" in gpu.peak_flops else "fp16"
