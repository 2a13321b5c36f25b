"""What a step needs of memory is known before it is played: nearly what playing it shows."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import load_scenario
from simulator.basics.errors import DeadlockError, OutOfMemoryError
from simulator.basics.units import format_time
from simulator.engine.compiled import engine
from simulator.engine.jitter import Jitter
from simulator.run.advice import advice
from simulator.run.memory_need import check_fits, checked_need, estimate_memory, least_need, simulated_alone
from simulator.run.scenario_cluster import Clusters
from simulator.run.simulate import simulate
from simulator.scenario.build_training import to_step

# Of a few buckets and gathered units, all that depends on when collectives end.
_ABOUT = 0.03


def scenario(
    world_size: int, model: str = "gpt2_xl", topology: str = "dgx_h100", **training: object
) -> dict[str, object]:
    step = {"model": model, "seq_len": 1024, **training}
    return {"name": "need", "cluster": {"topology": topology, "world_size": world_size}, "training": step}


SHARDINGS = [
    "ddp", "zero1", "zero2", "zero3", *({"strategy": name, "shard_size": 8} for name in ("zero1", "zero2", "zero3")),
]  # fmt: skip


@pytest.mark.one_of(3)
@pytest.mark.parametrize("topology", ["dgx_h100", "star_100g"])
@pytest.mark.parametrize("accumulation", [1, 3])
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("sharding", SHARDINGS, ids=str)
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
    told = estimate_memory(clusters.of(loaded), to_step(loaded.training, 16, loaded.base))
    assert told.nbytes == pytest.approx(played.peak_memory_bytes, rel=_ABOUT)
    assert told.reserved == pytest.approx(played.peak_reserved_bytes, rel=_ABOUT)
    assert told.fits == played.fits


def test_a_step_on_few_ranks_has_the_memory_of_its_simulation() -> None:
    """The estimate of a rank alone reserves no more, but may reserve a segment less, because ends of collectives are
    not exact in it.
    """
    loaded, clusters = load_scenario(scenario(8, "gpt2", sharding="ddp", seq_len=256)), Clusters()
    played = simulate(loaded, clusters=clusters).report
    assert loaded.training is not None
    step = to_step(loaded.training, 8, loaded.base)
    told = checked_need(clusters.of(loaded), step)
    assert (told.nbytes, told.reserved) == (played.peak_memory_bytes, played.peak_reserved_bytes)
    assert estimate_memory(clusters.of(loaded), step).reserved <= told.reserved


SHARDINGS: list[dict[str, object]] = [
    {"strategy": "ddp"},
    {"strategy": "zero1"},
    {"strategy": "zero2"},
    {"strategy": "zero3"},
    {"strategy": "zero1", "shard_size": 4},
    {"strategy": "zero2", "shard_size": 4},
    {"strategy": "zero3", "shard_size": 4},
    {"strategy": "zero3", "reshard_after_forward": False},
    {"strategy": "zero3", "gradient_sync": "last"},
    {"strategy": "parameter_server", "servers_on": "workers"},
    {"strategy": "parameter_server", "servers_on": "own", "asynchronous": True},
]


@settings(max_examples=40)
@given(
    st.sampled_from(SHARDINGS),
    st.sampled_from(["star_100g", "h100_ethernet_100g"]),
    st.sampled_from([{}, {"stragglers": {2: 0.4}}, {"jitter": {"compute": 0.2, "latency": 0.2}}]),
    st.sampled_from(["bf16", "fp16"]),
    st.sampled_from(["none", "full", "sqrt"]),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_nothing_is_refused_that_fits(
    sharding: dict[str, object],
    topology: str,
    cluster: dict[str, object],
    precision: str,
    checkpointing: str,
    accumulation: int,
    offload: bool,
) -> None:
    """Refusal rests on collectives that take no time: whenever they end, no rank needs less than that."""
    served = sharding["strategy"] == "parameter_server"
    facts: dict[str, object] = (
        {"offload": {"what": "optimizer"}} if offload and str(sharding["strategy"]).startswith("zero") else {}
    )
    made = scenario(
        8,
        "gpt2",
        "star_100g" if served else topology,
        sharding=sharding,
        precision=precision,
        activation_checkpointing=checkpointing,
        gradient_accumulation_steps=accumulation,
        micro_batch_size=1,
        **facts,
        **({"steps": 2} if sharding.get("asynchronous") else {}),
    )
    made["cluster"] |= cluster  # type: ignore[operator]
    loaded = load_scenario(made)
    clusters = Clusters()
    played = simulate(loaded, limit_memory=False, clusters=clusters).report
    assert loaded.training is not None
    told = least_need(clusters.of(loaded), to_step(loaded.training, 8, loaded.base))
    assert told <= (played.peak_memory_bytes + played.context_bytes + played.nccl_bytes) * (1 + 1e-9)


def test_a_large_step_that_does_not_fit_is_not_played(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[int] = []

    def noted(program: object, *_: object, **__: object) -> object:
        played.append(len(program.ranks))  # type: ignore[attr-defined]
        return whole(program, *_, **__)  # type: ignore[arg-type]

    whole = engine.execute
    monkeypatch.setattr("simulator.engine.play.compiled.execute", noted)
    monkeypatch.setattr("simulator.engine.play.library.is_there", lambda: True)
    # Activations are too many, which shows in the forward pass, not at the start.
    data = scenario(128, "llama3_8b", sharding="zero3", seq_len=8192, micro_batch_size=2)
    loaded = load_scenario(data)
    assert loaded.training is not None
    with pytest.raises(OutOfMemoryError):
        check_fits(Clusters().of(loaded), to_step(loaded.training, 128, loaded.base))
    assert set(played) == {1}
    caught = refusal(data)
    assert caught.time > 0
    assert "ran out of memory at about " in str(caught)
    assert "changes that make the step fit: activation_checkpointing: full (needs about " in str(caught)


def refusal(data: dict[str, object]) -> OutOfMemoryError:
    """Return the error of a step that does not fit; several tests read the same errors."""
    return _refusal(json.dumps(data))


@cache
def _refusal(text: str) -> OutOfMemoryError:
    with pytest.raises(OutOfMemoryError) as caught:
        simulate(load_scenario(json.loads(text)))
    return caught.value


_SETTING = r"([a-z_.]+): (?:([a-z_0-9]+)|\{([a-z_]+): ([0-9]+)\})"


def advised(error: OutOfMemoryError) -> list[tuple[dict[str, object], float]]:
    """Keys of `training` that each piece of advice sets, and the memory of the process that it needs [GiB]."""
    _, told, pieces = str(error).partition("changes that make the step fit: ")
    found = re.findall(r"([a-z].*?) \(needs about ([0-9.e+]+) GiB\)", pieces if told else "")
    return [
        (
            {
                key: {inner: int(size)} if inner else int(value) if value.isdigit() else value
                for key, value, inner, size in re.findall(_SETTING, text)
            },
            float(needed),
        )
        for text, needed in found
    ]


def deepseek(**training: object) -> dict[str, object]:
    """DeepSeek-V3 with multi-token prediction, whose layer makes the last of four stages the fullest."""
    return scenario(
        256,
        "deepseek_v3",
        seq_len=4096,
        global_batch="512seq",
        mtp_layers=1,
        activation_checkpointing="full",
        parallelism={"pp": 4, "ep": 64, "experts": {"dispatch": "deduplicated"}},
        **training,
    )


UNFIT = {
    "one key is enough": scenario(8, "llama3_8b", seq_len=2048, sharding="ddp"),
    "activations": scenario(8, "llama3_8b", seq_len=8192, micro_batch_size=8, sharding="zero3"),
    "two keys": scenario(8, "llama3_8b", seq_len=8192, micro_batch_size=4, sharding="ddp"),
    "the host too": scenario(8, "llama3_70b", seq_len=2048, sharding="ddp"),
    "many ranks": scenario(128, "llama3_8b", seq_len=8192, micro_batch_size=4, sharding="ddp"),
    "scores": scenario(8, "llama3_8b", seq_len=8192, sharding="zero3", attention="standard"),
    "a pipeline": scenario(
        8, "llama3_8b", seq_len=8192, micro_batch_size=4, sharding="ddp", gradient_accumulation_steps=4,
        parallelism={"pp": 2},
    ),
    "three keys": scenario(8, "llama3_8b", seq_len=8192, micro_batch_size=4, sharding="ddp") | {
        "cluster": {"topology": "dgx_h100", "gpu": "a100_sxm_40gb", "world_size": 8},
    },
    "three keys and the host": scenario(16, "llama3_70b", seq_len=2048, micro_batch_size=4, sharding="ddp"),
    "one long sequence": scenario(8, "llama3_8b", seq_len=131_072, sharding="zero3", activation_checkpointing="full"),
    "long sequences in two keys": scenario(8, "llama3_8b", seq_len=131_072, sharding="zero3"),
    "a last stage that is too full": deepseek(sharding="zero1"),
    "buckets that stay for longer than estimated": deepseek(sharding="zero2"),
}  # fmt: skip


# Of large models or many ranks, with advice of the kinds that the others have.
LARGE = (
    "many ranks", "long sequences in two keys", "three keys and the host", "buckets that stay for longer than estimated"
)  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LARGE)) for name in UNFIT])
@pytest.mark.one_of(3)
def test_what_is_advised_fits_when_it_is_played(name: str) -> None:
    error = refusal(UNFIT[name])
    pieces = advised(error)
    assert pieces, str(error)
    assert len(pieces) <= 3
    for keys, needed in pieces:
        training: dict[str, object] = UNFIT[name]["training"]  # type: ignore[assignment]
        stages = keys.pop("parallelism.stages", None)
        if stages is not None:
            keys["parallelism"] = {**training["parallelism"], "stages": stages}  # type: ignore[dict-item]
        played = simulate(load_scenario(UNFIT[name] | {"training": training | keys})).report
        assert played.fits
        # Three digits are told.
        assert played.process_bytes == pytest.approx(needed * 2**30, rel=0.006)


@pytest.mark.long
def test_a_change_that_the_estimate_alone_would_let_through_is_not_advised() -> None:
    """ZeRO-2 reserves 74.6 GiB by the estimate and 80.9 GiB in a run, where reduce-scatters end later."""
    told = [keys for keys, _ in advised(refusal(deepseek(sharding="zero1")))]
    assert {"sharding": "zero3"} in told
    assert {"sharding": "zero2"} not in told
    refusal(deepseek(sharding="zero2"))


def test_the_message_tells_the_time_without_the_limit() -> None:
    data = UNFIT["activations"]
    unlimited = simulate(load_scenario(data), limit_memory=False).report.step_time_s
    assert f"; without the limit the step takes {format_time(unlimited)}; " in str(refusal(data))


@pytest.mark.long
def test_the_message_names_the_stage_and_its_layers() -> None:
    """A further layer makes the last stage the fullest: 15 layers, and the one for multi-token prediction."""
    error = refusal(deepseek(sharding="zero2"))
    assert str(error).startswith("rank 192 (last stage, 16 of 62 layers) ran out of memory at ")
    # On many ranks a rank of each stage is simulated alone: its number is that of the cluster.
    error = refusal(deepseek(sharding="ddp"))
    assert str(error).startswith(f"rank {error.rank} (")
    assert error.rank % 64 == 0
    # Chunks of an interleaved pipeline lie on several stages.
    several = scenario(8, "llama3_8b", seq_len=8192, micro_batch_size=4, sharding="ddp", gradient_accumulation_steps=4,
                       parallelism={"pp": 2, "schedule": "interleaved", "virtual_stages": 2})  # fmt: skip
    assert str(refusal(several)).startswith("rank 0 (stages 0, 2 of 4, 16 of 32 layers) ")


def test_two_changes_are_combined_where_one_is_not_enough() -> None:
    error = refusal(UNFIT["two keys"])
    least = re.search(r"the whole step needs at least ([0-9.]+) GiB; changes that make the step fit: ", str(error))
    assert least is not None
    # 341 GB of tensors, rounded to three digits, context and buffers; the message rounds GiB to three digits too.
    beside = (534 + 832) * 2**20
    assert error.beside == beside
    assert float(least[1]) * 2**30 == pytest.approx(341e9 + beside, rel=0.5 / 319 + 0.5 / 341)
    # Context and buffers included.
    assert ({"activation_checkpointing": "full", "sharding": "zero3"}, 75.6) in advised(error)


def test_three_changes_are_combined_where_two_are_not_enough() -> None:
    """Without any of the three changes the step does not fit, and a smaller ZeRO stage does not fit either."""
    three = {"activation_checkpointing": "full", "micro_batch_size": 1, "sharding": "zero3"}
    [(keys, _)] = advised(refusal(UNFIT["three keys"]))
    assert keys == three | {"gradient_accumulation_steps": 4}
    training: dict[str, object] = UNFIT["three keys"]["training"]  # type: ignore[assignment]
    for left_out in three:
        rest = {key: value for key, value in keys.items() if key != left_out}
        refusal(UNFIT["three keys"] | {"training": training | rest})
    refusal(UNFIT["three keys"] | {"training": training | keys | {"sharding": "zero2"}})


def test_long_sequences_are_cut_over_ranks_with_the_same_global_batch() -> None:
    kinds = [keys for keys, _ in advised(refusal(UNFIT["one long sequence"]))]
    # 8 sequences a step before, on eight data-parallel ranks; now two copies compute 4 micro-batches each.
    assert {"parallelism": {"cp": 4}, "gradient_accumulation_steps": 4} in kinds
    assert {"parallelism": {"tp": 4}, "gradient_accumulation_steps": 4} in kinds


@pytest.mark.parametrize(
    "data",
    [
        scenario(1, "llama3_8b", seq_len=8192, micro_batch_size=4, sharding="ddp"),
        scenario(8, "llama3_405b", seq_len=2048, sharding="zero3", activation_checkpointing="full"),
    ],
)
@pytest.mark.one_of(2)
def test_what_comes_nearest_needs_less_than_what_failed(data: dict[str, object]) -> None:
    error = refusal(data)
    loaded = load_scenario(data)
    failed = simulate(loaded, limit_memory=False).report.process_bytes
    nearest = re.search(
        r"no tested combination of changes is enough; "
        r"the change with the smallest need: .* \(needs about ([0-9.e+]+) GiB\)",
        str(error),
    )
    assert nearest is not None, str(error)
    assert error.capacity < float(nearest[1]) * 2**30 < failed


def test_a_change_that_takes_long_to_try_is_named_with_what_it_needs_at_least() -> None:
    """A change to zero3 of 800 micro-batches was never looked at, and nothing smaller was said to be left."""
    data = scenario(8, "llama3_8b", seq_len=8192, sharding="ddp", gradient_accumulation_steps=800)
    loaded, clusters = load_scenario(data), Clusters()
    assert loaded.training is not None
    told = advice(clusters.of(loaded), to_step(loaded.training, 8, loaded.base), Jitter())
    nearest = re.search(
        r"changes with a long simulation were not tested; "
        r"the change with the smallest need: .*zero3.* \(needs at least ([0-9.]+) GiB\)$",
        told,
    )
    assert nearest is not None, told
    assert float(nearest[1]) < 80.0


@pytest.mark.long
def test_a_change_that_needs_more_than_the_gpu_has_is_not_proposed() -> None:
    data = scenario(8, "llama3_8b", seq_len=8192, sharding="zero3", micro_batch_size=1_000_000)
    loaded, clusters = load_scenario(data), Clusters()
    assert loaded.training is not None
    told = advice(clusters.of(loaded), to_step(loaded.training, 8, loaded.base), Jitter())
    assert "no tested combination of changes is enough; the change with the smallest need: " in told
    # A step of 10^6 sequences has millions of GiB, in words for such sizes.
    assert re.search(r"needs at least [0-9.]+ PiB; ", told)


def test_where_nothing_smaller_is_left_it_is_told() -> None:
    whole = scenario(1, "llama3_70b", seq_len=128, sharding="ddp", activation_checkpointing="full",
                     allocator="expandable_segments")  # fmt: skip
    assert str(refusal(whole)).endswith("; no change needs less memory on this GPU")


def test_parameters_that_do_not_fit_are_told_of_at_once_on_any_number_of_ranks() -> None:
    with pytest.raises(OutOfMemoryError, match=r"at 0 s: .* changes that make the step fit: sharding: zero1"):
        simulate(load_scenario(scenario(1024, "llama3_8b", sharding="ddp")))


@pytest.mark.parametrize(("slowed", "which"), [(0, 0), (3, None), (4, 1), (7, None)])
def test_a_rank_simulated_alone_keeps_its_events_and_speed(slowed: int, which: int | None) -> None:
    """Two stages on eight ranks: rank 0 is simulated for the first, rank 4 for the second; half speed doubles it."""
    ends = {}
    for name, slow in (
        ("healthy", {}),
        ("event", {"events": [{"at": "0 s", "rank": slowed, "factor": 0.5}]}),
        ("straggler", {"stragglers": {slowed: 0.5}}),
    ):
        data = scenario(8, "gpt2", parallelism={"pp": 2}, sharding="ddp", optimizer="sgd")
        data["cluster"] = {"topology": "star_100g", "world_size": 8} | slow
        loaded = load_scenario(data)
        assert loaded.training is not None
        step = to_step(loaded.training, 8, loaded.base)
        alone = simulated_alone(Clusters().of(loaded), step, limit=False)
        ends[name] = [sum(one.end - one.start for one in own.spans if one.kind == "optimizer") for own in alone]
    expected = [time * (2 if stage == which else 1) for stage, time in enumerate(ends["healthy"])]
    assert min(ends["healthy"]) > 0
    assert ends["event"] == pytest.approx(expected)
    assert ends["straggler"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("events", "training"),
    [
        ([{"at": "1 ms", "rank": 5, "factor": 0.5}], {"model": "llama3_8b", "seq_len": "8k", "sharding": "ddp"}),
        ([{"at": "1 us", "node": 0, "factor": 0.5}], {"model": "gpt2", "optimizer": "paged_adam"}),
    ],
)
@pytest.mark.parametrize("engine_name", ["events", "compiled"])
def test_events_beside_memory_that_is_looked_at_first(
    events: list[object], training: dict[str, object], engine_name: str
) -> None:
    """A step that does not fit is refused for its memory, whichever rank slows down."""
    data = scenario(8, **training) | {"engine": engine_name}  # type: ignore[arg-type]
    data["cluster"] = {"topology": "dgx_h100", "world_size": 8, "events": events}
    if training["model"] == "llama3_8b":
        with pytest.raises(OutOfMemoryError, match="changes that make the step fit"):
            simulate(load_scenario(data))
    else:
        assert simulate(load_scenario(data)).report.step_time_s > 0


def test_a_rank_that_dies_is_named_by_its_own_number() -> None:
    """Rank 4 is the lowest of the second stage, and the memory of a paged optimizer is looked at first."""
    data = scenario(8, "gpt2", parallelism={"pp": 2}, sharding="ddp", optimizer="paged_adam")
    data["cluster"] = {"topology": "dgx_h100", "world_size": 8, "events": [{"at": "1 us", "rank": 4, "factor": 0}]}
    with pytest.raises(DeadlockError, match=r"rank 4 dead for good.*: rank 4 \(compute\) waits"):
        simulate(load_scenario(data))
