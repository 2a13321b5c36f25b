"""The small GPT whose trajectories PyTorch made, and how a scenario trains it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.gpt import Gpt
from simulator.records.learning import Learning
from simulator.run.simulate import simulate
from simulator.scenario.load import check_scenario

HERE = Path(__file__).parent
INITIAL = HERE.resolve() / "gpt_init.npz"
MODEL = {
    "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 128,
    "tie_word_embeddings": False,
}  # fmt: skip
Parameters = Mapping[str, Array]
STEPS, BATCH = 20, 16
# The key bias has a true gradient of zero: softmax does not see a shift. Adam turns its rounding noise into moves.
KEYS = slice(64, 128)


@cache
def golden(name: str) -> dict[str, Array]:
    with np.load(HERE / f"gpt_{name}.npz") as file:
        return dict(file)


def model(dtype: str) -> Gpt:
    """The inside, for tests that look at a rank's own gradients."""
    return Gpt(vocabulary=128, width=64, heads=4, positions=32, depth=2, arithmetic=arithmetic(dtype))


def initial(gpt: Gpt) -> dict[str, dict[str, Array]]:
    stored = gpt.arithmetic.stored
    return {u: {name: golden("init")[name].astype(stored) for name in gpt.shapes(u)} for u in gpt.units}


def tokens(number: int) -> Array:
    found: Array = golden("batches")["tokens"][number].astype(np.int64)
    return found


def trained(folder: Path, precision: Any, ranks: int, steps: int = STEPS, **keys: Any) -> tuple[Learning, Parameters]:
    """Train as any user can: PyTorch's first parameters and its tokens in, what was told and the last parameters out.

    Parameters
    ----------
    folder : Path
        An empty one, for the tokens as .npy.
    precision : str or mapping
    ranks, steps : int
    **keys
        Of `training`, in place of these.
    """
    np.save(folder / "tokens.npy", golden("batches")["tokens"])
    training = {"model": MODEL, "seq_len": 32, "micro_batch_size": BATCH // ranks, "numerics": True, "steps": steps}
    training |= {"precision": precision, "learning": {"initial": str(INITIAL), "batches": "tokens.npy"}} | keys
    cluster = {"topology": "star_100g", "world_size": ranks}
    run = simulate(check_scenario({"name": "golden", "cluster": cluster, "training": training}, "golden", folder))
    told = run.report.learning  # type: ignore[union-attr]
    assert told is not None
    assert run.parameters is not None
    return told, run.parameters


def farthest(final: Parameters, reference: Parameters) -> float:
    """Largest distance of a parameter, the key bias apart."""
    found = 0.0
    for name, value in final.items():
        apart = np.abs(value.astype(np.float64) - reference[f"final/{name}"])
        found = max(found, float(np.delete(apart, KEYS).max() if name.endswith("qkv.bias") else apart.max()))
    return found


def update_difference(final: Parameters, reference: Parameters) -> float:
    """Root mean square of how updates differ, over that of the updates; the key bias apart."""
    apart, moved = [], []
    for name, value in final.items():
        update, expected = value - golden("init")[name], reference[f"master/{name}"] - golden("init")[name]
        keep = np.delete(np.arange(update.size), KEYS) if name.endswith("qkv.bias") else slice(None)
        apart.append((update - expected).ravel()[keep])
        moved.append(expected.ravel()[keep])
    return float(np.sqrt((np.concatenate(apart) ** 2).mean() / (np.concatenate(moved) ** 2).mean()))
