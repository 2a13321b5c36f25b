"""How many tokens has each expert received in a real training? Counts are read from a CSV file, layer by layer.

layer,expert,tokens
3,0,4120
3,1,3877
"""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path

import numpy as np

from simulator.basics.arrays import Floats


@lru_cache(maxsize=16)
def read_counts(path: str) -> Floats:
    """Return the tokens of each expert in each layer, shape (layers, experts); lines of one expert are added up.

    Raises
    ------
    ValueError
        The file cannot be read, a line is wrong, or a layer lacks an expert that another layer has.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    reader = csv.DictReader(lines)
    if not {"expert", "tokens"} <= set(reader.fieldnames or ()):
        raise ValueError(f"{path} line 1: got {', '.join(reader.fieldnames or ())}; must have expert and tokens")
    by_layer: dict[str, dict[int, float]] = {}
    for row in reader:
        try:
            expert, tokens = int(row["expert"]), float(row["tokens"])
        except (TypeError, ValueError):
            expert, tokens = -1, -1.0
        if expert < 0 or not 0.0 <= tokens < 1e18:
            raise ValueError(f"{path} line {reader.line_num}: needs an expert from 0 on, and tokens of at least 0")
        counts = by_layer.setdefault(row.get("layer") or "", {})
        counts[expert] = counts.get(expert, 0.0) + tokens
    experts = 1 + max((expert for counts in by_layer.values() for expert in counts), default=-1)
    for layer, counts in by_layer.items():
        if len(counts) < experts or not sum(counts.values()):
            name = f"layer {layer}" if layer else "the file"
            raise ValueError(f"{path}: {name} has tokens of {len(counts)} of {experts} experts; must list all of them")
    if not by_layer:
        raise ValueError(f"{path} has no counts")
    return np.array([[counts[expert] for expert in range(experts)] for counts in by_layer.values()])


def fullest_rank(path: str, ranks: int) -> float:
    """Return the tokens of the fullest expert-parallel rank, over the ranks' mean: the mean of each layer's ratio,
    because in each layer all ranks wait for the fullest.

    A token counts once for each expert that it chose. Rank r of R holds experts r E / R to (r + 1) E / R - 1 of E, as
    in Megatron-Core (NVIDIA/Megatron-LM, core/transformer/moe/moe_layer.py, `local_expert_indices`; recalled).
    """
    counts = read_counts(path)
    # Shape (layers, ranks).
    of_ranks = counts.reshape(len(counts), ranks, -1).sum(axis=2)
    return float((of_ranks.max(axis=1) / of_ranks.mean(axis=1)).mean())
