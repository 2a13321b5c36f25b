"""Real training with an own optimizer: its update in numpy gives the same bits in every sharding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.basics.errors import ScenarioError
from simulator.testing import check_optimizer

MODEL = {"model_type": "gpt2", "n_layer": 2, "n_embd": 16, "n_head": 2, "n_positions": 16, "vocab_size": 96}
# PyTorch's Adam, as the shipped rule computes it; every name is the paper's.
ADAM = """\
import numpy as np

from simulator.step.optimizers.optimizer import Optimizer, SeparateKernels


def numbers(parameters, gradient, states, constants):
    kind, (m, v) = parameters.dtype.type, states
    first, second = constants.betas
    if constants.decay:
        parameters *= kind(1.0 - constants.rate * constants.decay)
    m += (gradient - m) * kind(1.0 - first)
    v *= kind(second)
    v += kind(1.0 - second) * gradient * gradient
    root = np.sqrt(v) / kind(np.sqrt(1.0 - second**constants.step)) + kind(constants.eps)
    parameters -= kind(constants.rate / (1.0 - first**constants.step)) * m / root


OPTIMIZER = Optimizer("own_adam", 2, SeparateKernels(9, 4, 2, 17, temporaries=1), "here", numbers=numbers)
"""


def losses(optimizer: Any, strategy: str = "ddp", **learning: Any) -> list[float]:
    data = {
        "name": "own",
        "cluster": {"topology": "star_100g", "world_size": 4},
        "training": {
            "model": MODEL, "seq_len": 8, "numerics": True, "precision": "fp32", "steps": 4, "sharding": strategy,
            "optimizer": optimizer, "algorithm": "direct", "learning": {"rate": 0.01, **learning},
        },
    }  # fmt: skip
    learned = simulator.simulate(data).report.learning
    assert learned is not None
    return list(learned.losses)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(ADAM, encoding="utf-8")
    return tmp_path


def test_adam_in_an_own_file_learns_as_the_shipped_adam_does(folder: Path) -> None:
    keys = {"decay": 0.1, "betas": [0.8, 0.9], "eps": 1e-6, "warmup": 2}
    assert losses("./mine.py", **keys) == losses("adam", **keys)


def test_an_own_update_gives_the_same_bits_in_every_sharding(folder: Path) -> None:
    """`direct` adds gradients in rank order in every sharding."""
    first, *others = (losses("./mine.py", strategy) for strategy in ("ddp", "zero1", "zero2", "zero3"))
    assert len(set(first)) == 4
    assert all(other == first for other in others)


def test_an_update_that_looks_at_other_elements_breaks_the_law(folder: Path) -> None:
    """The largest gradient of a shard is not that of all parameters."""
    path = folder / "mine.py"
    path.write_text(
        ADAM.replace("m += (gradient - m)", "m += (gradient / np.abs(gradient).max() - m)"), encoding="utf-8"
    )
    (broken,) = [result.fault for result in check_optimizer(path).results if result.law == "numbers of each shard"]
    assert broken == "BROKEN: `numbers` gives other parameters in float64 if a shard ends at 1 of 97"


def test_an_update_that_returns_its_result_breaks_the_law(folder: Path) -> None:
    path = folder / "mine.py"
    path.write_text(
        ADAM.replace("    parameters -= kind", "    return parameters - kind").replace("if constants.decay", "if 0"),
        encoding="utf-8",
    )
    (broken,) = [result.fault for result in check_optimizer(path).results if result.law == "numbers of each shard"]
    assert broken.startswith("BROKEN: `numbers` changes no parameter")


def test_an_own_optimizer_without_numbers_is_told_what_to_define(folder: Path) -> None:
    (folder / "mine.py").write_text(ADAM.replace(", numbers=numbers)", ")"), encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"an own optimizer needs `numbers=\.\.\.` in its OPTIMIZER"):
        losses("./mine.py")


def test_an_error_in_an_own_update_is_told_with_its_line(folder: Path) -> None:
    (folder / "mine.py").write_text(ADAM.replace("v *= kind(second)", "v *= kind(missing)"), encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"mine\.py:12: NameError: name 'missing' is not defined"):
        losses("./mine.py")
