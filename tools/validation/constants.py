"""Which constants does a simulated row depend on, and where does each constant come from?

Counted from the records used in the simulation, never from a list written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.cluster.cluster import Gpu
from simulator.step.kernels.kernel_model import MATMUL, kernel_model

# Kernel constants besides those of matmuls, by origin: fitted to kernels, published figures, or guessed.
_KERNELS: Final = ("launch",)
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
        "training rows", "kernels", "published figures", "guesses", "collectives".
    """
    model = kernel_model(gpu)
    matmuls = (f"{model.matmul_family(dtype)}_{name}" for dtype in dtypes for name in MATMUL)
    fitted = [name for name in dict.fromkeys(matmuls) if name in model.constants]
    # Without an efficiency of its own, a GPU has those that follow from its best matmul.
    best: tuple[str, ...] = ()
    if "matmul_bfloat16_efficiency" not in gpu.facts["constants"] and "bfloat16" in gpu.facts["best_matmul"]:
        best = tuple(f"best_matmul {dtype}" for dtype in dtypes if dtype in gpu.facts["best_matmul"])
        fitted = [name for name in fitted if not name.endswith("_efficiency")]
    return {
        "training rows": tuple(own),
        "kernels": (*_KERNELS, *fitted),
        "published figures": (*best, *(name for name in _PUBLISHED if name in model.constants)),
        "guesses": _COMMUNICATION,
        "collectives": tuple(machine),
    }
