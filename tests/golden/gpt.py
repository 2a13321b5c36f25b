"""The small GPT whose trajectories PyTorch made, and a plain loop that trains it: the judge of what clusters do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from simulator.numerics.arithmetic import Array, arithmetic
from simulator.numerics.gpt import Gpt
from simulator.numerics.optimizer import Adam, fresh, step

HERE = Path(__file__).parent
STEPS, BATCH = 20, 16
# The key bias has a true gradient of zero: softmax does not see a shift. Adam turns its rounding noise into moves.
KEYS = slice(64, 128)


@cache
def golden(name: str) -> dict[str, Array]:
    with np.load(HERE / f"gpt_{name}.npz") as file:
        return dict(file)


def model(dtype: str) -> Gpt:
    return Gpt(vocabulary=128, width=64, heads=4, positions=32, depth=2, arithmetic=arithmetic(dtype))


def initial(gpt: Gpt) -> dict[str, dict[str, Array]]:
    stored = gpt.arithmetic.stored
    return {u: {name: golden("init")[name].astype(stored) for name in gpt.shapes(u)} for u in gpt.units}


def tokens(number: int) -> Array:
    found: Array = golden("batches")["tokens"][number].astype(np.int64)
    return found


@dataclass
class Trajectory:
    """Loss and gradient norm of each step, and the last parameters."""

    loss: list[float]
    norm: list[float]
    final: dict[str, Array]


def trained(dtype: str, ranks: int, steps: int = STEPS) -> Trajectory:
    """Train with so many ranks that sum in rank order."""
    gpt = model(dtype)
    parameters = initial(gpt)
    states = {name: fresh(Adam(), p) for unit in gpt.units for name, p in parameters[unit].items()}
    told = Trajectory([], [], {})
    for number in range(steps):
        parts = np.split(tokens(number), ranks)
        found = [gpt.gradients(parameters, rows) for rows in parts]
        mean = {name: _mean([g[name] for _, g in found]) for name in states}
        told.loss.append(float(np.mean([loss for loss, _ in found])))
        told.norm.append(float(np.sqrt(sum((g.astype(np.float64) ** 2).sum() for g in mean.values()))))
        for unit in gpt.units:
            for name, p in parameters[unit].items():
                step(Adam(), p, mean[name], states[name])
    told.final = {name: p for unit in gpt.units for name, p in parameters[unit].items()}
    return told


def _mean(parts: Sequence[Array]) -> Array:
    total = parts[0] / parts[0].dtype.type(len(parts))
    for part in parts[1:]:
        total = total + part / part.dtype.type(len(parts))
    return total


def farthest(final: dict[str, Array], reference: dict[str, Array]) -> float:
    """Largest distance of a parameter, the key bias apart."""
    found = 0.0
    for name, value in final.items():
        apart = np.abs(value.astype(np.float64) - reference[f"final/{name}"])
        found = max(found, float(np.delete(apart, KEYS).max() if name.endswith("qkv.bias") else apart.max()))
    return found
