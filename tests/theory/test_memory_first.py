"""What a step needs of memory is known before it is played: nearly what playing it shows."""

from __future__ import annotations

import pytest

from simulator import load_scenario
from simulator.engine.compiled import engine
from simulator.errors import OutOfMemoryError
from simulator.playing.memory import need
from simulator.playing.scenario_cluster import Clusters
from simulator.run import simulate
from simulator.scenario.build_training import to_step

# Of a few buckets and gathered units, all that depends on when collectives end.
_ABOUT = 0.03


def scenario(
    world_size: int, model: str = "gpt2_xl", topology: str = "dgx_h100", **training: object
) -> dict[str, object]:
    step = {"model": model, "seq_len": 1024, **training}
    return {"name": "need", "cluster": {"topology": topology, "world_size": world_size}, "training": step}


@pytest.mark.parametrize("topology", ["dgx_h100", "star_100g"])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(
    "sharding", ["ddp", "zero1", "zero2", "zero3", {"strategy": "zero3", "shard_size": 8}], ids=str
)
def test_it_is_what_playing_shows(sharding: object, checkpointing: str, accumulation: int, topology: str) -> None:
    loaded = load_scenario(
        scenario(
            16,
            topology=topology,
            sharding=sharding,
            activation_checkpointing=checkpointing,
            gradient_accumulation_steps=accumulation,
            micro_batch_size=2,
        )
    )
    clusters = Clusters()
    played = simulate(loaded, limit_memory=False, clusters=clusters).report
    assert loaded.training is not None
    told = need(clusters.of(loaded), to_step(loaded.training, 16, loaded.base))
    assert told.nbytes == pytest.approx(played.peak_memory_bytes, rel=_ABOUT)
    assert told.reserved == pytest.approx(played.peak_reserved_bytes, rel=_ABOUT)
    assert told.fits == played.fits


def test_a_large_step_that_does_not_fit_is_not_played(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []

    def noted(program: object, *_: object, **__: object) -> object:
        played.append(len(program.ranks))  # type: ignore[attr-defined]
        return whole(program, *_, **__)  # type: ignore[arg-type]

    whole = engine.execute
    monkeypatch.setattr("simulator.engine.play.compiled.execute", noted)
    monkeypatch.setattr("simulator.engine.play.library.is_there", lambda: True)
    with pytest.raises(OutOfMemoryError) as caught:
        # Activations are too many, which shows in the forward pass, not at the start.
        simulate(load_scenario(scenario(128, "llama3_8b", sharding="zero3", seq_len=8192, micro_batch_size=2)))
    assert set(played) == {1}
    assert caught.value.time > 0
    assert "ran out of memory at about " in str(caught.value)
    assert "tried, and fits: activation_checkpointing: full (needs about " in str(caught.value)


def test_parameters_that_do_not_fit_are_told_of_at_once_on_any_number_of_ranks() -> None:
    with pytest.raises(OutOfMemoryError, match=r"at 0 s: .* tried, and fits: sharding: zero1"):
        simulate(load_scenario(scenario(1024, "llama3_8b", sharding="ddp")))
