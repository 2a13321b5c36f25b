"""Which constants does a simulated row depend on, and where does each constant come from?

Counted from the records used in the simulation, never from a list written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.cluster.cluster import Gpu
from simulator.step.kernels.kernel_model import BY_DTYPE, kernel_model

# Kernel constants by origin: fitted to the matmul table, published figures, or guessed.
_KERNELS: Final = ("launch", "matmul_prologue")
_PUBLISHED: Final = ("hbm_efficiency", "attention_2")
_COMMUNICATION: Final = ("communication_sms",)


def counted(
    own: Sequence[str], machine: Sequence[str], gpu: Gpu, dtypes: Sequence[str] = ("bfloat16",)
) -> dict[str, tuple[str, ...]]:
    """Return the names of the constants on which a row's simulated time depends, by origin.

    Parameters
    ----------
    own, machine : sequence of str
        Constants of the framework and of the machine that the row depends on, from `ablation.behind`.
    gpu : Gpu
        GPU with the kernel constants.
    dtypes : sequence of str
        Dtypes of the row's matmuls.

    Returns
    -------
    dict of str to tuple of str
        "training rows", "matmul table", "published figures", "guesses", "collectives".
    """
    model = kernel_model(gpu)
    by_dtype = tuple(f"matmul_{dtype}_{name}" for dtype in dtypes for name in BY_DTYPE)
    best = tuple(f"best_matmul {dtype}" for dtype in dtypes if dtype in model.gpu.facts["best_matmul"])
    return {
        "training rows": tuple(own),
        "matmul table": (*_KERNELS, *(name for name in by_dtype if name in model.constants)),
        "published figures": (*best, *(name for name in _PUBLISHED if name in model.constants)),
        "guesses": _COMMUNICATION,
        "collectives": tuple(machine),
    }
