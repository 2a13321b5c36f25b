"""Keys that change no number are told once, where they stand, and only if no point of the scenario listens."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from simulator.basics.errors import ScenarioWarning
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario, points
from simulator.scenario.records import Scenario
from simulator.scenario.resolve import resolved
from simulator.sweeps.sweep import sweep
from tests.commands import commands_in

TINY = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 32}


def training(cluster: dict[str, Any] | None = None, axes: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    where = {"topology": "star_100g", "world_size": 2} | (cluster or {})
    return {"name": "demo", "cluster": where, "training": {"model": TINY, "seq_len": 8} | keys, **(axes or {})}


def collective(cluster: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    where = {"topology": "star_100g", "world_size": 4} | (cluster or {})
    return {"name": "demo", "cluster": where, "collective": {"operation": "all_gather", "size": "4 KiB"} | keys}


def told(data: dict[str, Any]) -> list[str]:
    return [line.removeprefix("<dict>: ").partition(":")[0] for line in load_scenario(data).warnings]


def test_real_trainings_keys_are_told_where_nothing_trains() -> None:
    lesson = {"steps": 50, "clip_norm": 1.0, "learning": {"rate": 0.1, "decay": 0.5}}
    assert told(training(**lesson)) == [
        "training.clip_norm",
        "training.learning.decay",
        "training.learning.rate",
        "training.steps",
    ]
    assert told(training(**lesson, numerics=True, precision="fp32")) == []


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("mixtral_8x7b", "needs ep above 1 and experts.dispatch: deduplicated"),
        ("llama3_8b", "llama3_8b has no experts"),
    ],
)
def test_a_key_of_experts_without_effect_says_all_that_it_needs(model: str, reason: str) -> None:
    data = training(model=model, parallelism={"experts": {"routing": "round_robin"}})
    assert load_scenario(data).warnings == (
        f"<dict>: training.parallelism.experts.routing: has no effect here: {reason}",
    )


def test_a_key_that_says_what_it_would_say_anyway_is_not_told() -> None:
    scenario = load_scenario(training(steps=20, learning={"rate": 1e-3}, loss_scaling={"start": 65536.0}))
    assert scenario.warnings == ()
    assert load_scenario(resolved(scenario)).warnings == ()


QUESTION = "From how many GPUs on is communication half of the step?"
SIZES: dict[str, Any] = {"sweep": {"cluster.world_size": [2, 4]}}
TWO = {"compare": {"training.sharding": ["ddp", "zero3"]}}
THRESHOLD = {"finding": "threshold", "of": ["exposed_share"], "along": "cluster.world_size", "above": 0.5}


def test_a_question_for_a_number_of_gpus_without_a_finding_that_searches_it_is_told() -> None:
    asks = training(axes=SIZES) | {"question": QUESTION}
    (warning,) = load_scenario(asks).warnings
    assert warning == (
        "<dict>: sweep.cluster.world_size: the question asks for a number of GPUs; to search it, write "
        "'answer: [{finding: threshold, of: [MEASURE], along: cluster.world_size, above: VALUE}]'"
    )
    assert told(asks | {"answer": ["effect"]}) == ["sweep.cluster.world_size"]


@pytest.mark.parametrize(
    "other",
    [
        {"answer": [THRESHOLD]},
        {"question": "What do more GPUs cost?"},
        {"sweep": {"training.micro_batch_size": [1, 2]}},
        TWO,  # whose best settings change at a number of GPUs
    ],
)
def test_a_question_that_a_finding_answers_is_not_told(other: dict[str, Any]) -> None:
    assert told(training(axes=SIZES) | {"question": QUESTION} | other) == []


def test_a_gpus_speed_counts_where_a_collective_adds_up_on_gpus() -> None:
    slow = {"gpu": "l4", "stragglers": {0: 0.5}, "jitter": {"compute": 0.1, "latency": 0.1}}
    assert told(collective(slow)) == ["cluster.gpu", "cluster.jitter.compute", "cluster.stragglers"]
    assert told(collective(slow, operation="all_reduce")) == ["cluster.jitter.compute"]
    assert told(collective({"gpu": "a100_sxm_80gb"})) == []  # the topology's own
    bare = {"builder": "star", "options": {"bandwidth": "100 Gb/s", "latency": "5 us"}}
    assert told(collective({"topology": bare, "gpu": "l4"})) == []  # which it needs
    servers = {"operation": "all_reduce", "algorithm": "parameter_server"}
    assert told(collective({"gpu": "l4"}, **servers)) == ["cluster.gpu"]
    assert told(collective({"gpu": "l4"}, **servers, servers={"on": "workers"})) == []


@pytest.mark.parametrize("policy", ["attention", {"attention": [0]}])
def test_scores_that_flash_attention_never_kept_are_not_made_again(policy: Any) -> None:
    assert told(training(activation_checkpointing=policy)) == ["training.activation_checkpointing"]
    assert told(training(activation_checkpointing=policy, attention="standard")) == []


def test_a_comparison_tells_what_none_of_its_points_listens_to() -> None:
    options = {"strategy": "zero3", "prefetch": 2, "servers": 2}
    compared = {"compare": {"training.sharding.strategy": ["zero3", "ddp"]}}
    assert told(training(axes=compared, sharding=options)) == ["training.sharding.servers"]
    assert told(training(axes={"compare": {"training.attention": ["flash", "standard"]}}, attention_generation=1)) == []
    assert told(training(axes={"compare": {"training.numerics": [True, False]}}, precision="fp32", steps=3)) == []


def test_one_idle_value_of_an_axis_is_told_though_others_act() -> None:
    """A point that is played like another one, under another name, would be read as a finding."""
    axis = {"compare": {"training.activation_checkpointing": ["none", "attention", "full"]}}
    (line,) = load_scenario(training(axes=axis)).warnings
    assert line.startswith(
        "<dict>: compare.training.activation_checkpointing: has no effect here: 'attention' recomputes"
    )


def test_a_sweep_tells_once_and_plays_on() -> None:
    with pytest.warns(ScenarioWarning, match=r"^<dict>: training\.steps: has no effect here") as caught:
        table = sweep(training(steps=50), {"training.micro_batch_size": [1, 2, 3]})
    assert len(caught) == 1
    assert table["error"].isna().all()
    assert [point.scenario.warnings for point in points(load_scenario(training(steps=50)))] == [()]


def test_a_single_run_warns_who_called_it() -> None:
    with pytest.warns(ScenarioWarning) as caught:
        simulate(load_scenario(training(steps=50)))
    assert [Path(warning.filename).name for warning in caught] == ["test_scenario_unused.py"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        simulate(load_scenario(training()))


def test_the_command_line_tells_place_and_key_on_stderr_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator = commands_in(tmp_path, monkeypatch, capsys)
    text = (tmp_path / "small.yaml").read_text().replace("world_size: 4\n", "world_size: 4\n  jitter: {compute: 0.1}\n")
    (tmp_path / "vain.yaml").write_text(text)
    told = "has no effect here: a collective has no kernels; only latency can vary"
    for command in ("run", "check"):
        answer = simulator(command, "vain.yaml")
        assert answer.code == 0
        assert answer.faults[0] == f"warning: vain.yaml:6:12: cluster.jitter.compute: {told}"
        assert answer.err.count("warning") == 1
    answer = simulator("sweep", "small.yaml", "--set", "cluster.jitter.compute=0.1,0.2", "--jobs", "1")
    assert answer.faults[0] == f"warning: --set cluster.jitter.compute=0.1,0.2: {told}"
    assert simulator("run", "small.yaml", "--set", "collective.size=8 KiB").err.count("warning") == 0


def test_a_table_of_sizes_tells_an_idle_option_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulator = commands_in(tmp_path, monkeypatch, capsys)
    sizes = ("--topology", "star_100g", "--world-size", 4, "--begin", "1K", "--end", "4K")
    (line,) = simulator("collective", "all_gather", *sizes, "--gpu", "l4").faults
    assert line == (
        "warning: --gpu: has no effect here: all_gather adds no elements, therefore the speed of GPUs has no influence"
    )
    assert simulator("collective", "all_reduce", *sizes, "--gpu", "l4").faults == []


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2"])
def test_a_bucket_size_below_every_unit_is_warned_of_and_changes_no_number(strategy: str) -> None:
    """A layer of Llama 3 8B has 218,112,000 parameters, 416 MiB of gradients in bfloat16."""

    def scenario(size: str) -> Scenario:
        training = {"model": "llama3_8b", "seq_len": 64, "sharding": {"strategy": strategy, "bucket_size": size}}
        return load_scenario({"name": "a", "cluster": {"topology": "dgx_a100", "world_size": 4}, "training": training})

    def step(size: str) -> object:
        return simulate(scenario(size).replaced(warnings=()), limit_memory=False).report.to_dict()

    (warning,) = scenario("100 MiB").warnings
    assert warning.endswith(
        "sharding.bucket_size: has no effect here: a bucket ends with a whole layer, and layer 0 alone has 416 MiB of "
        "gradients; 100 MiB therefore acts like the default of 25 MiB"
    )
    assert step("100 MiB") == step("25 MiB")
    assert scenario("1 GiB").warnings == ()
    assert step("1 GiB") != step("25 MiB")


def test_layers_per_unit_is_warned_of_where_experts_are_on_other_ranks() -> None:
    """A layer's experts are gathered by other ranks than its attention, so layers form no units."""
    model = {
        "model_type": "mixtral", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 2, "vocab_size": 32, "num_local_experts": 4, "num_experts_per_tok": 2,
    }  # fmt: skip

    def scenario(size: int, experts: int) -> Scenario:
        sharding = {"strategy": "zero3", "layers_per_unit": size}
        keys = {"model": model, "parallelism": {"ep": experts}, "sharding": sharding}
        return load_scenario(training({"world_size": 4}, **keys))

    def step(size: int, experts: int) -> object:
        return simulate(scenario(size, experts).replaced(warnings=())).report.to_dict()

    (warning,) = scenario(2, 2).warnings
    assert warning.endswith("layers_per_unit: has no effect here: with ep above 1, each layer is gathered on its own")
    assert step(2, 2) == step(1, 2)
    assert scenario(2, 1).warnings == ()
    assert step(2, 1) != step(1, 1)


def test_buckets_of_a_tied_model_hold_whole_layers_too() -> None:
    """The tied head is a norm of a few kilobytes, which joins the last layer's bucket at each of these sizes."""
    sizes = {"sweep": {"training.sharding.bucket_size": ["1 MiB", "25 MiB", "100 MiB"]}}
    scenario = load_scenario(training(axes=sizes, model="gpt2_xl", sharding="ddp"))
    (line,) = scenario.warnings
    assert "layer 0 alone has 58.6 MiB of gradients; 1 MiB therefore acts like the default of 25 MiB" in line
    small, usual, large = (simulate(point.scenario).report.step_time_s for point in points(scenario))
    assert small == usual != large


def test_nothing_is_exchanged_by_a_single_data_parallel_rank() -> None:
    cut = {"parallelism": {"tp": 2}}
    ddp, zero3 = {"strategy": "ddp", "bucket_size": "1 GiB"}, {"strategy": "zero3", "keep_below": 100}
    assert told(training(sharding=ddp, **cut)) == ["training.sharding.bucket_size"]
    assert told(training(sharding=zero3, **cut)) == ["training.sharding.keep_below"]
    assert told(training({"world_size": 4}, sharding={"strategy": "ddp", "bucket_size": "1 KiB"}, **cut)) == []
    assert told(training({"world_size": 4}, sharding=zero3, **cut)) == []


def test_a_bucket_that_holds_the_whole_model_is_told_as_such() -> None:
    (line,) = load_scenario(training(sharding={"strategy": "ddp", "bucket_size": "1 GiB"})).warnings
    assert "a single bucket holds all 7.72 KiB of gradients; 1 GiB therefore acts like the default of 25 MiB" in line


LONE: dict[str, Any] = {"strategy": "zero3", "reshard_after_forward": False, "prefetch": 2, "layers_per_unit": 2}
SHARED = {"model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 8, "n_positions": 64, "vocab_size": 256}
MIXTRAL = {
    "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 8, "vocab_size": 256, "num_local_experts": 4, "num_experts_per_tok": 2,
}  # fmt: skip


def on_a_node(sharding: dict[str, Any], world_size: int = 8, **keys: Any) -> Scenario:
    own = {"model": SHARED, "seq_len": 64, "gradient_accumulation_steps": 2, "sharding": sharding, **keys}
    return load_scenario({"name": "n", "cluster": {"topology": "dgx_a100", "world_size": world_size}, "training": own})


def report(scenario: Scenario) -> dict[str, Any]:
    return simulate(scenario.replaced(warnings=()), limit_memory=False).report.to_dict()


@pytest.mark.parametrize("offload", ["none", "optimizer"])
@pytest.mark.parametrize("alone", ["a single rank", "tp", "shard_size"])
def test_a_rank_that_shares_its_states_with_no_other_shards_nothing(alone: str, offload: str) -> None:
    """A single rank, eight tensor-parallel ranks of eight, and sharding groups of one rank, which sum their gradients.

    Updates on the host need an owner of the states, therefore ZeRO-3 is ZeRO-2 there, and DDP elsewhere.
    """
    keys: dict[str, Any] = {"offload": offload, "parallelism": {"tp": 8 if alone == "tp" else 1}}
    if alone == "a single rank":
        keys |= {"world_size": 1}
    alike = "ddp" if offload == "none" else "zero2"
    group = {"shard_size": 1} if alone == "shard_size" else {}
    scenario = on_a_node(LONE | group, **keys)
    why = f"has no effect here: a rank shares its states with no other, as under {alike}"
    assert scenario.warnings == tuple(
        f"<dict>: training.sharding.{key}: {why}" for key in ("layers_per_unit", "prefetch", "reshard_after_forward")
    )
    found = report(scenario)
    assert found == report(on_a_node({"strategy": alike} | (group if alike == "zero2" else {}), **keys))
    # Two ranks that share states heed the keys.
    shared = {"shard_size": 2} if alone == "shard_size" else {}
    keys |= {"parallelism": {"tp": 4}} if alone == "tp" else {}
    keys |= {"world_size": 2} if alone == "a single rank" else {}
    assert not any("shares its states" in line for line in on_a_node(LONE | shared, **keys).warnings)
    assert report(on_a_node(LONE | shared, **keys)) != report(on_a_node({"strategy": "zero3"} | shared, **keys))


def test_zero2_without_partners_is_ddp() -> None:
    cut = {"parallelism": {"tp": 8}}
    (warning,) = on_a_node({"strategy": "zero2"}, **cut).warnings
    assert warning.endswith(
        "sharding.strategy: has no effect here: a rank shares its states with no other, as under ddp"
    )
    assert report(on_a_node({"strategy": "zero2"}, **cut)) == report(on_a_node({"strategy": "ddp"}, **cut))
    # On the host, ZeRO-2 is what every such strategy becomes.
    assert on_a_node({"strategy": "zero2"}, **cut, offload="optimizer").warnings == ()


def test_experts_with_copies_on_tensor_parallel_ranks_are_sharded() -> None:
    """Eight tensor-parallel ranks with whole experts hold eight copies of the experts, and shard them."""
    keys: dict[str, Any] = {"model": MIXTRAL, "parallelism": {"tp": 8, "etp": 1}}
    assert on_a_node(LONE, **keys).warnings == ()
    assert report(on_a_node(LONE, **keys)) != report(on_a_node({"strategy": "zero3"}, **keys))
    assert report(on_a_node(LONE, **keys)) != report(on_a_node({"strategy": "ddp"}, **keys))


@pytest.mark.parametrize(("world_size", "cut"), [(1, 1), (8, 8)])
def test_an_own_strategy_stays_as_it_is_on_a_rank_without_partners(tmp_path: Path, world_size: int, cut: int) -> None:
    """A copy of ZeRO-3 keeps its gathered units, because its file alone says what it does."""
    own = tmp_path / "own_zero3.py"
    own.write_text("from simulator.step.strategies.zero3 import STRATEGY\n")
    keys: dict[str, Any] = {"world_size": world_size, "parallelism": {"tp": cut}}
    scenario = on_a_node(LONE | {"strategy": str(own)}, **keys)
    assert not any("shares its states" in line for line in scenario.warnings)
    assert report(scenario)["peak_memory_bytes"] > report(on_a_node({"strategy": "ddp"}, **keys))["peak_memory_bytes"]
    assert report(scenario) != report(on_a_node({"strategy": str(own)}, **keys))
