"""How many tokens does each expert receive? Counts of a real training are read from a CSV file, layer by layer and, if
wanted, step by step; or the popularity of the experts is drawn, and drifts.

step,layer,expert,tokens
0,3,0,4120
0,3,1,3877
"""

from __future__ import annotations

import csv
from functools import lru_cache
from pathlib import Path

import numpy as np

from simulator.basics.arrays import Floats


@lru_cache(maxsize=16)
def read_counts(path: str) -> Floats:
    """Return the tokens of each expert in each layer and step, shape (steps, layers, experts); lines of one expert are
    added up.

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
    by_layer: dict[tuple[str, str], dict[int, float]] = {}
    for row in reader:
        try:
            expert, tokens = int(row["expert"]), float(row["tokens"])
        except (TypeError, ValueError):
            expert, tokens = -1, -1.0
        if expert < 0 or not 0.0 <= tokens < 1e18:
            raise ValueError(f"{path} line {reader.line_num}: needs an expert from 0 on, and tokens of at least 0")
        counts = by_layer.setdefault((row.get("step") or "", row.get("layer") or ""), {})
        counts[expert] = counts.get(expert, 0.0) + tokens
    experts = 1 + max((expert for counts in by_layer.values() for expert in counts), default=-1)
    for (step, layer), counts in by_layer.items():
        if len(counts) < experts or not sum(counts.values()):
            name = " of ".join(f"{kind} {of}" for kind, of in (("layer", layer), ("step", step)) if of) or "the file"
            raise ValueError(f"{path}: {name} has tokens of {len(counts)} of {experts} experts; must list all of them")
    if not by_layer:
        raise ValueError(f"{path} has no counts")
    layers_of: dict[str, list[list[float]]] = {}
    for (step, _), counts in by_layer.items():
        layers_of.setdefault(step, []).append([counts[expert] for expert in range(experts)])
    if len({len(layers) for layers in layers_of.values()}) > 1:
        raise ValueError(f"{path}: steps have unequal numbers of layers")
    return np.array(list(layers_of.values()))


def fullest_ranks(counts: Floats, ranks: int) -> tuple[float, ...]:
    """Return the tokens of the fullest expert-parallel rank over the ranks' mean, for each step: the mean of each
    layer's ratio, because in each layer all ranks wait for the fullest.

    A token counts once for each expert that it chose. Rank r of R holds experts r E / R to (r + 1) E / R - 1 of E, as
    in Megatron-Core (NVIDIA/Megatron-LM, core/transformer/moe/moe_layer.py, `local_expert_indices`; recalled). Counts
    have the shape (steps, layers, experts).

    >>> fullest_ranks(np.array([[[3.0, 1.0, 2.0, 2.0]], [[1.0, 1.0, 1.0, 5.0]]]), 2)
    (1.0, 1.5)
    """
    of_ranks = counts.reshape(*counts.shape[:2], ranks, -1).sum(axis=3)
    ratios = of_ranks.max(axis=2) / of_ranks.mean(axis=2)
    return tuple(ratios.mean(axis=1).tolist())


@lru_cache(maxsize=16)
def walked_loads(
    zipf: float, walk: float, steps: int, seed: int, layers: int, experts: int, ranks: int
) -> tuple[float, ...]:
    """Return the tokens of the fullest rank over the ranks' mean for each training step, in the mean over the layers,
    if the experts' popularity drifts.

    The logarithm of an expert's popularity begins at -zipf ln n, for the n-th most popular expert, and moves by a
    normal number with deviation `walk` from step to step, in each layer by itself. The experts are dealt to the ranks
    in turn by their first popularity: rank r has the experts r, r + R, ...
    """
    first = -zipf * np.log(np.arange(1, experts + 1))
    moves = np.random.default_rng(seed).normal(scale=walk, size=(steps, layers, experts))
    moves[0] = 0.0
    # Rank by rank, as `fullest_ranks` reads them.
    dealt = np.arange(experts).reshape(-1, ranks).T.ravel()
    return fullest_ranks(np.exp(first + moves.cumsum(axis=0))[:, :, dealt], ranks)
