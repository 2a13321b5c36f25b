"""Real training goes on from a checkpoint after a rank has stopped, with the same numbers to the bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from simulator import load_scenario, simulate
from simulator.basics.errors import ScenarioError

TINY = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 32}
STOP = {"step": 5, "what": "stopped", "rank": 1}
SHARDINGS: dict[str, Any] = {
    "ddp": {"sharding": "ddp"},
    "zero1": {"sharding": "zero1"},
    "zero2": {"sharding": "zero2", "gradient_accumulation_steps": 2},
    "zero3": {"sharding": "zero3"},
    "hybrid": {"sharding": {"strategy": "zero3", "shard_size": 2}},
    "servers": {"sharding": "parameter_server"},
    "dropout": {"sharding": "zero1", "dropout": 0.2},
    "half": {"sharding": "zero2", "precision": "fp16", "loss_scaling": {"rule": "dynamic", "interval": 2}},
    "momentum": {"sharding": "zero1", "optimizer": "momentum"},
    "muon": {"sharding": "zero1", "optimizer": "muon"},
    "cosine": {"sharding": "zero3", "learning": {"schedule": "cosine", "warmup": 2}},
}


def trained(checkpoint: int | None = None, faults: Any = (), **keys: Any) -> Any:
    learning = dict(keys.pop("learning", {}))
    if checkpoint is not None:
        learning["checkpoint"] = checkpoint
    training = {
        "model": TINY, "seq_len": 8, "micro_batch_size": 2, "precision": "fp32", "numerics": True, "steps": 8,
        "learning": learning, "faults": list(faults),
    }  # fmt: skip
    cluster = {"topology": "dgx_h100", "world_size": 4}
    if keys.get("sharding") == "parameter_server":
        cluster = {"topology": "star_100g", "world_size": 4}
    return simulate(load_scenario({"name": "t", "cluster": cluster, "training": training | keys}))


@pytest.mark.parametrize("name", SHARDINGS)
@pytest.mark.parametrize("checkpoint", [1, 3, 8])
@pytest.mark.one_of(3)
def test_a_rollback_gives_the_same_curve_to_the_bit(name: str, checkpoint: int) -> None:
    undisturbed, again = trained(**SHARDINGS[name]), trained(checkpoint, [STOP], **SHARDINGS[name])
    one, other = undisturbed.report.learning, again.report.learning
    assert other.losses == one.losses
    assert (other.gradient_norms, other.loss_scales, other.skipped) == (
        one.gradient_norms,
        one.loss_scales,
        one.skipped,
    )
    assert other.losses_by_rank == one.losses_by_rank
    for key, array in undisturbed.parameters.items():
        assert np.array_equal(array, again.parameters[key])
    # Step 5 fails: back to the last multiple of the interval.
    assert other.repeated_steps == 5 - 5 // checkpoint * checkpoint
    assert (other.stopped, other.seen["watchdog"]) == ("", 5)


def test_without_checkpoints_the_training_ends() -> None:
    learning = trained(None, [STOP], sharding="zero1").report.learning
    assert (len(learning.losses), learning.repeated_steps) == (5, 0)
    assert learning.stopped.startswith("rank 1 has stopped")


def test_several_failures_and_a_fault_that_happens_once() -> None:
    flip = {"step": 4, "what": "bit_flip", "bit": 30}
    stops = [STOP, {"step": 6, "what": "stopped", "rank": 0}]
    alone = trained(None, [flip], sharding="zero1").report.learning
    learning = trained(2, [flip, *stops], sharding="zero1").report.learning
    # Stop in step 5: back to 4, which is repeated without the flip, because a flip happens once. Stop in step 6: at a
    # checkpoint, nothing is repeated.
    clean = trained(sharding="zero1").report.learning
    assert learning.repeated_steps == 1
    assert learning.losses[:4] == clean.losses[:4] == alone.losses[:4]
    assert learning.losses == clean.losses != alone.losses


def test_a_checkpoint_that_forgets_something_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from simulator.learning import checkpoint

    clean = trained(sharding="zero1").report.learning.losses
    for forgotten in ("states", "parts"):
        kept = tuple(name for name in checkpoint._SAVED if name != forgotten)
        monkeypatch.setattr(checkpoint, "_SAVED", kept)
        try:
            assert trained(3, [STOP], sharding="zero1").report.learning.losses != clean
        # Without its shards a rank has nothing to update.
        except KeyError:
            assert forgotten == "parts"
        monkeypatch.undo()


def test_asynchronous_workers_have_no_common_checkpoint() -> None:
    with pytest.raises(ScenarioError, match=r"learning\.checkpoint: asynchronous workers have no common step"):
        trained(2, [STOP], sharding={"strategy": "parameter_server", "asynchronous": True})
