"""Which constants does a simulated row depend on, and where does each come from?

Rule: counted from the records that playing uses, never from a list written by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from simulator.cluster.cluster import Cluster
from simulator.step.framework import Framework
from simulator.step.kernels.kernel_model import BY_DTYPE, kernel_model

_FRAMEWORK: Final = ("sustained", "attention_masked", "elementwise", "parameter_bytes")
_KERNELS: Final = ("launch", "matmul_prologue")
_PUBLISHED: Final = ("hbm_efficiency", "attention_2")
_COMMUNICATION: Final = ("communication_sms",)
# An exponent of one half is part of the law's form, which was chosen; it was not fitted
# (simulator/calibration/machines/shipped.py).
_FORM: Final = ("exponent", 0.5)
# What a sharded step sends.
_OPERATIONS: Final = ("all_gather", "reduce_scatter")
_MACHINE: Final = ("startup", "rate_cap", "half_size", "exponent")


def counted(
    framework: Framework, cluster: Cluster, dtypes: Sequence[str] = ("bfloat16",)
) -> dict[str, tuple[str, ...]]:
    """Name the constants of one GPU, machine and framework, for matmuls of these dtypes, by origin.

    Returns
    -------
    dict of str to tuple of str
        "training rows", "matmul table", "published figures", "guesses", "collectives".
    """
    model = kernel_model(cluster.gpus[0])
    own = tuple(name for name in _FRAMEWORK if getattr(framework, name))
    by_dtype = tuple(f"matmul_{dtype}_{name}" for dtype in dtypes for name in BY_DTYPE)
    best = tuple(f"best_matmul {dtype}" for dtype in dtypes if dtype in model.gpu.facts["best_matmul"])
    return {
        "training rows": own,
        "matmul table": (*_KERNELS, *(name for name in by_dtype if name in model.constants)),
        "published figures": (*best, *(name for name in _PUBLISHED if name in model.constants)),
        "guesses": _COMMUNICATION,
        "collectives": _of_collectives(cluster),
    }


def _of_collectives(cluster: Cluster) -> tuple[str, ...]:
    """Constants of the operations of a sharded step; one that two of them have in common counts once."""
    by_value: dict[tuple[str, float], str] = {}
    for operation in _OPERATIONS:
        machine = cluster.collectives.get(operation)
        for name in _MACHINE if machine else ():
            if (name, getattr(machine, name)) == _FORM:
                continue
            by_value.setdefault((name, getattr(machine, name)), f"{operation} {name}")
    return tuple(by_value.values())
