"""Which numbers stand behind a played row, and where they come from.

Rule: counted from the records that are used, never from memory.
"""

from __future__ import annotations

from typing import Final

from simulator.cluster.cluster import Cluster
from simulator.training.framework import Framework
from simulator.training.kernel_model import kernel_model

_FRAMEWORK: Final = ("sustained", "attention_masked", "elementwise", "parameter_bytes")
_PUBLISHED: Final = ("hbm_efficiency", "attention_2_forward", "attention_2_backward", "attention_softmax")
_COMMUNICATION: Final = ("communication_sms", "communication_hbm")
# What a sharded step sends.
_OPERATIONS: Final = ("all_gather", "reduce_scatter")
_MACHINE: Final = ("startup", "rate_cap", "half_size", "exponent")


def counted(framework: Framework, cluster: Cluster, dtype: str = "bfloat16") -> dict[str, tuple[str, ...]]:
    """Name the constants of one GPU, dtype, machine and framework by origin.

    Returns
    -------
    dict of str to tuple of str
        "training rows", "matmul table", "published figures", "guesses", "collectives".
    """
    model = kernel_model(cluster.gpus[0])
    matmuls = tuple(name for name in model.constants if name.startswith(f"matmul_{dtype}_"))
    own = tuple(name for name in _FRAMEWORK if getattr(framework, name))
    return {
        "training rows": own,
        "matmul table": matmuls,
        "published figures": tuple(name for name in _PUBLISHED if name in model.constants),
        "guesses": _COMMUNICATION,
        "collectives": _of_collectives(cluster),
    }


def _of_collectives(cluster: Cluster) -> tuple[str, ...]:
    """Constants of the operations of a sharded step; one that two of them have in common counts once."""
    found: dict[tuple[str, float], str] = {}
    for operation in _OPERATIONS:
        machine = cluster.collectives.get(operation)
        for name in _MACHINE if machine else ():
            found.setdefault((name, getattr(machine, name)), f"{operation} {name}")
    return tuple(found.values())
