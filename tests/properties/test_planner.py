"""A plan finds what playing everything finds: bounds are below played times, and nothing that might win is left out."""

from __future__ import annotations

import itertools
import json
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import le
from pathlib import Path
from typing import Any

import pytest

from simulator.basics.errors import DeadlockError
from simulator.cluster.build import build
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.events import execute as events
from simulator.planner import space
from simulator.planner.bound import BoundCalculator, CollectiveLowerBounds
from simulator.planner.explain import step_difference
from simulator.planner.plan_report import ties
from simulator.planner.search import PlayedSetting, SearchResult, search
from simulator.planner.setting import PlanSetting, scenario_of
from simulator.planner.space import Choices, InfeasibleCounts
from simulator.planner.trace_bound import bound_from_ranks, rank_bound
from simulator.run.scenario_cluster import Clusters
from simulator.run.simulate import simulate
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario
from simulator.scenario.records import Point, Scenario
from simulator.scenario.resolve import resolved
from simulator.step.pipelines.schedule import SCHEDULES, PipelineShape
from simulator.step.plan import few_micro_batches
from simulator.step.spec import TrainingStep
from simulator.sweeps import player as one_by_one
from simulator.sweeps.outcome import play_point
from tests.commands import Command, commands_in
from tests.many import many

DENSE = {"model_type": "gpt2", "n_embd": 512, "n_layer": 8, "n_head": 8, "n_positions": 512, "vocab_size": 4096}
EXPERTS = {
    "model_type": "mixtral", "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 8, "intermediate_size": 1024, "num_local_experts": 8, "num_experts_per_tok": 2,
    "vocab_size": 4096, "max_position_embeddings": 512,
}  # fmt: skip
# For spaces with at most two stages: settings differ as with eight layers.
SHALLOW = DENSE | {"n_layer": 4}
WIDE = DENSE | {"n_embd": 2048, "n_head": 16}
# Layers that differ in their windows, and in experts and chunks; the second has three kinds of layers.
WINDOWS = {
    "model_type": "gemma3_text", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4, "head_dim": 256, "intermediate_size": 1024, "sliding_window": 16, "vocab_size": 4096,
    "sliding_window_pattern": 3,
}  # fmt: skip
UNLIKE = {
    "model_type": "llama4_text", "hidden_size": 512, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 8, "intermediate_size": 512, "intermediate_size_mlp": 4096, "num_local_experts": 8,
    "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "attention_chunk_size": 64, "vocab_size": 4096,
}  # fmt: skip
TOPOLOGIES = ("dgx_a100", "dgx_h100", "h100_ethernet_100g")


def base(model: dict[str, Any], topology: str, gpus: int, slow: float = 1.0, **training: Any) -> Scenario:
    return load_scenario(
        {
            "name": "plan",
            "cluster": {"topology": topology, "world_size": gpus, "stragglers": {1: slow} if slow < 1.0 else {}},
            # Bounds know no host, and launches of so small a model would take longer than its kernels.
            "training": {"model": model, "seq_len": 256, "cuda_graphs": "full_iteration"} | training,
            "plots": [],
        }
    )


def choices(gpus: int, **others: tuple[Any, ...]) -> Choices:
    wanted: dict[str, tuple[Any, ...]] = {
        "gpus": (gpus,), "tp": (1, 2, 4), "pp": (1, 2, 4), "cp": (1, 2), "ep": (1,),
        "schedule": tuple(SCHEDULES.names()), "virtual_stages": (2,),
        "sharding": ("ddp", "zero1", "zero2", "zero3"), "shard_size": (None, 2), "micro_batch": (1, 2, 4),
        "checkpointing": ("none", "selective_op", "full"), "offload": ("none", "optimizer"),
        "precision": (None,), "framework": (None,), "optimizer": (None,), "rank": (None,), "base": (None,),
    }  # fmt: skip
    return Choices(wanted | others)


def drawn(
    seed: int, models: Sequence[dict[str, Any]] = (DENSE, WIDE, EXPERTS), trained: Sequence[Any] = ("all",)
) -> tuple[Scenario, PlanSetting, float, int]:
    """A setting that can be, and bounds of its time and memory; `trained` has the values of `trainable` to draw."""
    draw = random.Random(seed)
    while True:
        case = _drawn(draw, models, trained)
        if case is not None:
            return case


def _drawn(
    draw: random.Random, models: Sequence[dict[str, Any]], trained: Sequence[Any]
) -> tuple[Scenario, PlanSetting, float, int] | None:
    gpus, model = draw.choice((8, 16, 16, 32)), draw.choice(models)
    one = {name: (draw.choice(values),) for name, values in choices(gpus).values.items()}
    one["ep"] = (draw.choice((1, 2, 4, 8)) if "num_local_experts" in model else 1,)
    wanted = {
        "precision": draw.choice(("bf16", "bf16", "fp16", "fp32")),
        "framework": draw.choice(("torchtitan", "bare", "megatron_2021", "nanotron")),
        "optimizer": draw.choice(("adam", "momentum")),
    }
    # A single value draws nothing: the other tests' cases stay.
    wanted |= {"trainable": draw.choice(trained)} if len(trained) > 1 else {}
    scenario = base(model, draw.choice(TOPOLOGIES), gpus, draw.choice((1.0, 1.0, 0.5)), **wanted)
    by_events = draw.random() < 0.5
    for setting, step in space.settings(Choices(one), scenario, draw.choice((16, 32, 64)), InfeasibleCounts()):
        try:
            load_scenario(told(scenario, setting))
            # Long steps take the events engine seconds.
            few = by_events and setting.micro_batches * setting.gpus <= 32
            scenario = scenario.replaced(engine="events" if few else "compiled")
            return scenario, setting, *bounds_of(scenario, setting, step)
        except ValueError:
            return None
    return None


def bounds_of(scenario: Scenario, setting: PlanSetting, step: TrainingStep) -> tuple[float, int]:
    """The highest of all bounds of a step's time [s], and that of its memory [B]."""
    cluster = Clusters().of(scenario)
    bounds = BoundCalculator(cluster)
    passing, finer = bounds.of(setting, step), []
    for stages in ([0], None):
        noted = few_micro_batches(cluster, step, setting.gpus, closed_forms=True, stages=stages)
        finer.append(bound_from_ranks(passing, [rank_bound(notes, bounds.durations) for notes in noted]))
    return max(passing.busy_bound(), passing.schedule_bound(), *finer), passing.memory


def told(scenario: Scenario, setting: PlanSetting) -> dict[str, Any]:
    """The scenario as a file would have it."""
    data = resolved(scenario)
    data["training"].pop("parallelism")
    for key, value in setting.overrides().items():
        room, name = key.split(".")
        data[room][name] = value
    return data


def held_to_bounds(seeds: Sequence[int], *models: dict[str, Any], trained: Sequence[Any] = ("all",)) -> list[float]:
    shares = []
    for seed in seeds:
        scenario, setting, bound, memory = drawn(seed, models or (DENSE, WIDE, EXPERTS), trained)
        try:
            report = simulate(scenario_of(scenario, setting), limit_memory=False).report.to_dict()
        except DeadlockError:  # stages that wait for their sends, in an order where two wait for each other
            continue
        played = report["step_time_s"]
        # The bound is that of the process.
        beside = report["context_bytes"] + report["nccl_bytes"]
        assert memory <= report["peak_memory_bytes"] + beside, (seed, setting.text)
        assert bound <= played * (1 + 1e-9), (seed, setting.text)
        shares.append(bound / played)
    # `pytest -rP` shows it.
    print(f"{len(shares)} played, the bound is {statistics.median(shares):.3f} of the step in the median")  # noqa: T201
    return shares


def test_a_bound_is_never_above_the_played_time() -> None:
    assert len(held_to_bounds(range(4))) >= 3


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 6), marks=pytest.mark.long)])
@pytest.mark.long
def test_a_bound_holds_for_a_model_whose_layers_differ(seeds: range) -> None:
    assert len(held_to_bounds(seeds, WINDOWS, UNLIKE)) >= len(seeds) - 1


@pytest.mark.long
@pytest.mark.parametrize("block", range(many(10)))
def test_many_bounds_hold_for_models_whose_layers_differ(block: int) -> None:
    held_to_bounds(range(9000 + 40 * block, 9040 + 40 * block), WINDOWS, UNLIKE)


# The first trained parameter is in the first, a middle or the last stage; whole layers or parts of them are trained.
TRAINED = (["layers 6-7", "head", "embedding"], ["layers 4-7"], ["layers.7.attention.*"], ["layers.*.norm1.*"])


@pytest.mark.parametrize("seeds", [range(40, 46), pytest.param(range(46, 52), marks=pytest.mark.long)])
@pytest.mark.long
def test_a_bound_holds_where_parts_are_frozen(seeds: range) -> None:
    """Stages before the first trained parameter send and receive no gradient, and their backward passes wait for
    none.
    """
    assert len(held_to_bounds(seeds, trained=TRAINED)) >= len(seeds) - 1


@pytest.mark.long
@pytest.mark.parametrize("block", range(many(10)))
def test_many_bounds_hold_where_parts_are_frozen(block: int) -> None:
    held_to_bounds(range(20000 + 40 * block, 20040 + 40 * block), trained=TRAINED)


@pytest.mark.parametrize("algorithm", ["tree", "chain", "direct", "ring", "halving_doubling"])
@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "all_gather"])
def test_a_collective_is_bounded_by_the_rank_that_ends_first(algorithm: str, operation: str) -> None:
    """A bound by the rank that ends last would be above the time of steps whose other ranks go on: it loses winners."""
    if operation not in ALGORITHMS.operations(algorithm):
        pytest.skip(f"{algorithm} has no {operation}")
    cluster = build("star_100g", 8)
    request = CollectiveRequest(operation, 8, 80_000)  # type: ignore[arg-type]
    planned = plan(cluster, Task(request, algorithm, tuple(range(8)), "float32"))
    op = replace(planned.ops[0], duration=planned.predicted)
    first = min(span.end for span in events(planned.program, cluster).spans)
    assert CollectiveLowerBounds(cluster).of(op) <= first * (1 + 1e-9)


def test_a_rank_that_comes_late_finds_done_what_others_could_do_without_it() -> None:
    # Sums over all stages end for some ranks a microsecond before the others, and these then take longest.
    held_to_bounds([5251, 5370])


@pytest.mark.long
@pytest.mark.parametrize("block", range(many(52)))
def test_many_bounds_are_never_above_the_played_time(block: int) -> None:
    held_to_bounds(range(1000 + 100 * block, 1100 + 100 * block))


@pytest.mark.parametrize("schedule", SCHEDULES.names())
@pytest.mark.one_of(3)
def test_bounds_hold_where_the_bubble_is_most_of_a_step(schedule: str) -> None:
    model = WIDE | {"n_layer": 16}
    for pp, micro_batches in ((4, 8), (4, 16), (2, 4)):
        chosen = {name: (values[0],) for name, values in choices(pp).values.items()}
        chosen |= {"pp": (pp,), "schedule": (schedule,), "virtual_stages": (2,)}
        scenario = base(model, "dgx_h100", pp)
        (found,) = space.settings(Choices(chosen), scenario, micro_batches, InfeasibleCounts())
        bound, _ = bounds_of(scenario, *found)
        played = simulate(scenario_of(scenario, found[0])).report.to_dict()["step_time_s"]
        tight = 0.8 if SCHEDULES.find(schedule).pairs else 0.9
        assert tight * played < bound <= played * (1 + 1e-9), (pp, micro_batches)


def test_schedules_say_whether_they_have_two_passes_at_once() -> None:
    for name in SCHEDULES.names():
        schedule = SCHEDULES.find(name)
        order = schedule.order(PipelineShape(4, 8, schedule.chunks or 2, 4))
        assert schedule.pairs == any(len(slot) > 1 for slots in order for slot in slots), name


def test_a_setting_is_the_scenario_that_a_file_says() -> None:
    compared = 0
    for seed in range(10):
        scenario, setting, *_ = drawn(seed)
        written, made = load_scenario(told(scenario, setting)), scenario_of(scenario, setting)
        assert written.training is not None
        assert made.training is not None
        assert made.training == written.training, setting.text
        assert made.cluster == written.cluster
        (found,) = space.settings(_only(setting), scenario, setting.dp * setting.micro_batch * setting.micro_batches,
                                  InfeasibleCounts())  # fmt: skip
        assert found == (setting, to_step(written.training, setting.gpus, written.base))
        compared += 1
    assert compared >= 10


def _only(setting: PlanSetting) -> Choices:
    """The choices that leave nothing but this."""
    return Choices({name: (getattr(setting, name),) for name in choices(setting.gpus).values})


def small_space(number: int) -> tuple[Scenario, Choices, int]:
    """At most some hundred settings, of every kind over all numbers."""
    draw = random.Random(number)
    gpus = draw.choice((8, 16, 32, 64))
    model = draw.choice((DENSE, WIDE, EXPERTS))
    chosen = choices(
        gpus,
        cp=(draw.choice((1, 2)),),
        ep=(1, 2) if model is EXPERTS else (1,),
        schedule=tuple(draw.sample(SCHEDULES.names(), 2)),
        sharding=tuple(draw.sample(("ddp", "zero1", "zero2", "zero3"), 2)),
        micro_batch=tuple(draw.sample((1, 2, 4), 2)),
        checkpointing=tuple(draw.sample(("none", "selective_op", "full"), 2)),
        offload=("none",) if draw.random() < 0.7 else ("none", "optimizer"),
        precision=(None,) if draw.random() < 0.7 else ("bf16", "fp32"),
        framework=(None,) if draw.random() < 0.7 else ("torchtitan", "nemo"),
    )
    return base(model, draw.choice(TOPOLOGIES), gpus), chosen, 64


def narrow_space() -> tuple[Scenario, Choices, int]:
    """Some tens of settings."""
    few: dict[str, tuple[Any, ...]] = {
        "tp": (1, 2), "pp": (1, 2), "cp": (1,), "schedule": ("1f1b", "zb_h1"), "sharding": ("zero1", "zero3"),
        "shard_size": (None,), "micro_batch": (1, 2), "checkpointing": ("none", "full"), "offload": ("none",),
    }  # fmt: skip
    return base(SHALLOW, "dgx_a100", 8), choices(8, **few), 16


def exhaustive(scenario: Scenario, chosen: Choices, sequences: int) -> list[tuple[PlanSetting, float]]:
    """All that can be played and fit, the fastest first; of equal ones the one that was written down first."""
    found, clusters = [], Clusters()
    for setting, _ in space.settings(chosen, scenario, sequences, InfeasibleCounts()):
        try:
            report = simulate(scenario_of(scenario, setting), limit_memory=False, clusters=clusters).report.to_dict()
        except ValueError:
            continue
        if report["fits"]:
            found.append((setting, float(report["step_time_s"])))
    return sorted(found, key=lambda one: one[1])


def last(plans: Any) -> SearchResult:
    *_, plan = plans
    assert isinstance(plan, SearchResult)
    return plan


def equal_to_exhaustive(of: tuple[Scenario, Choices, int]) -> None:
    scenario, chosen, sequences = of
    plan = last(search(scenario, sequences, chosen))
    expected = exhaustive(scenario, chosen, sequences)[:10]
    assert len(expected) > 1
    assert [(one.setting, one.step_time) for one in plan.best] == expected
    assert plan.ended


def test_the_best_are_those_that_playing_everything_finds() -> None:
    equal_to_exhaustive(narrow_space())


def fine_tuning_space(**others: tuple[Any, ...]) -> tuple[Scenario, Choices, int]:
    """Full training and adapters, formats of the frozen matrices, optimizers, and the optimizer's place."""
    few: dict[str, tuple[Any, ...]] = {
        "tp": (1, 2), "pp": (1, 2), "cp": (1,), "schedule": ("1f1b",), "sharding": ("ddp", "zero3"),
        "shard_size": (None,), "micro_batch": (2,), "checkpointing": ("none",), "offload": ("none", "optimizer"),
        "rank": (0, 4), "base": ("params", "nf4", "int8"), "optimizer": ("adam", "adam_8bit", "paged_adam"),
    }  # fmt: skip
    return base(SHALLOW, "dgx_a100", 4), choices(4, **(few | others)), 16


@pytest.mark.long
def test_the_best_of_fine_tunings_are_those_that_playing_everything_finds() -> None:
    equal_to_exhaustive(fine_tuning_space(optimizer=("adam", "paged_adam"), base=("params", "int8")))


@pytest.mark.parametrize("trainable", [["layers 2-3"], pytest.param(["layers.*.attention.*"], marks=pytest.mark.long)])
@pytest.mark.long
def test_the_best_with_frozen_parts_are_those_that_playing_everything_finds(trainable: list[str]) -> None:
    _, chosen, sequences = narrow_space()
    equal_to_exhaustive((base(SHALLOW, "dgx_a100", 8, trainable=trainable), chosen, sequences))


def test_a_bound_expects_no_gradients_on_stages_before_the_first_trained_parameter() -> None:
    """Four stages of two layers, and a norm of the last layer trained: the step ends with the last stage's own work.

    Gradients would be sent three times, each 1 MiB at 12.5 GB/s: 84 us. The update of a norm takes less.
    """
    chosen = {name: (values[0],) for name, values in choices(4).values.items()} | {"pp": (4,), "schedule": ("gpipe",)}
    scenario = base(WIDE, "star_100g", 4, trainable=["layers.7.norm2.*"])
    (found,) = space.settings(Choices(chosen), scenario, 1, InfeasibleCounts())
    bound, _ = bounds_of(scenario, *found)
    played = simulate(scenario_of(scenario, found[0])).report.to_dict()["step_time_s"]
    assert played - 3 * 2**20 / 12.5e9 < bound <= played * (1 + 1e-9)


def test_hidden_states_in_float32_are_planned_beside_whole_matrices_of_bitsandbytes_alone() -> None:
    scenario = base(DENSE, "dgx_a100", 4, lora={"rank": 4, "base": "nf4", "hidden": "float32"})
    _, chosen, sequences = fine_tuning_space(rank=(None,), base=("params", "nf4", "gptq"), optimizer=(None,))
    found = list(space.settings(chosen, scenario, sequences, InfeasibleCounts()))
    assert {(setting.tp, setting.base) for setting, _ in found} == {(1, "nf4")}


def test_adapters_are_no_choice_beside_trained_parts() -> None:
    _, chosen, sequences = fine_tuning_space(rank=(0, 4), base=("params",), optimizer=(None,), tp=(1,), pp=(1,))
    refused = InfeasibleCounts()
    found = list(
        space.settings(chosen, base(DENSE, "dgx_a100", 4, trainable=["head", "embedding"]), sequences, refused)
    )
    assert {setting.rank for setting, _ in found} == {0}
    assert any("trainable names trained parts" in example for example in refused.examples.values())


def test_a_plan_of_fine_tunings_leaves_out_what_a_scenario_refuses_and_what_is_the_same() -> None:
    scenario, chosen, sequences = fine_tuning_space(tp=(1,), pp=(1,))
    refused = InfeasibleCounts()
    found = [setting for setting, _ in space.settings(chosen, scenario, sequences, refused)]
    # Without adapters one format of three; ddp has no offload, and zero3 none for the paged one of three optimizers.
    assert len(found) == (1 + 3) * (3 + 3 + 2)
    assert len({(one.rank, one.base) for one in found}) == 1 + 3
    assert not [one for one in found if one.offload != "none" and one.optimizer == "paged_adam"]
    for setting in found:
        assert scenario_of(scenario, setting).training == load_scenario(told(scenario, setting)).training
    texts = {setting.text.partition("no checkpointing, ")[2] for setting in found if setting.offload == "none"}
    assert {"adam, full fine-tuning", "paged_adam, LoRA rank 4, base nf4"} <= texts
    assert refused.counts[space.SAME_BASE] > 0


def test_no_setting_of_adapters_with_lengths_cuts_their_matrices() -> None:
    scenario = base(DENSE, "dgx_a100", 4, lora={"rank": 4, "dora": True})
    _, chosen, sequences = fine_tuning_space(rank=(None,), base=(None,), optimizer=(None,))
    refused = InfeasibleCounts()
    found = list(space.settings(chosen, scenario, sequences, refused))
    assert {setting.tp for setting, _ in found} == {1}
    assert all(step.model.adapters is not None for _, step in found)
    assert any("DoRA needs whole matrices" in reason for reason in refused.counts)


# A list of layers without attention, which has no tensor parallelism.
LISTED = {
    "input": [512],
    "layers": [{"repeat": 4, "layers": ["layer_norm", {"mlp": 1024}]}, {"linear": [512, 16]}],
    "loss": "cross_entropy",
}  # fmt: skip
PARTS = {"tp": (1,), "pp": (1, 2), "cp": (1,), "schedule": ("1f1b", "gpipe"), "shard_size": (None, 2)}
# Model, topology, GPUs and sequences of a step, keys of the training, and the values of the space.
SPACES: dict[str, tuple[dict[str, Any], str, int, int, dict[str, Any], dict[str, tuple[Any, ...]]]] = {
    "experts": (EXPERTS, "dgx_h100", 8, 16, {}, {"tp": (1, 2), "pp": (1,), "cp": (1,), "ep": (1, 2, 4, 8)}),
    "experts on Ethernet": (EXPERTS, "h100_ethernet_100g", 16, 32, {}, {"tp": (1,), "cp": (1,), "ep": (2, 8)}),
    "experts and windows": (UNLIKE, "dgx_a100", 8, 16, {}, {"tp": (1, 2), "pp": (1, 2), "cp": (1,), "ep": (1, 4)}),
    "layers": (LISTED, "dgx_a100", 8, 64, {"seq_len": 1}, PARTS | {"checkpointing": ("none", "full")}),
    "layers and offload": (LISTED, "star_100g", 4, 32, {"seq_len": 1}, PARTS | {"offload": ("none", "optimizer")}),
    "adapters": (DENSE, "mi300x_box", 4, 16, {}, PARTS | {"tp": (1, 2), "rank": (0, 8), "optimizer": ("adam", "sgd")}),
    "quantised": (WIDE, "dgx_a100", 2, 8, {"lora": {"rank": 4}}, PARTS | {"base": ("params", "nf4", "int8", "gptq")}),
    "context": (DENSE, "leaf_spine_100g", 8, 8, {"seq_len": 512}, {"tp": (1, 2), "pp": (1,), "cp": (1, 2, 4, 8)}),
    "precision": (WIDE, "aws_p5", 8, 16, {}, PARTS | {"precision": ("bf16", "fp32", "fp8"), "offload": ("optimizer",)}),
    "frameworks": (
        SHALLOW, "torus_2d", 4, 16, {}, PARTS | {"framework": ("torchtitan", "nemo", "bare", "transformers")},
    ),
}  # fmt: skip


def chosen_space(name: str) -> tuple[Scenario, Choices, int]:
    """Return one of the ten spaces: the keys that it does not name have one or two values."""
    model, topology, gpus, sequences, training, wanted = SPACES[name]
    few: dict[str, tuple[Any, ...]] = {
        "schedule": ("1f1b", "zb_h1"), "sharding": ("ddp", "zero1", "zero3"), "shard_size": (None,),
        "micro_batch": (1, 4), "checkpointing": ("none",), "offload": ("none",),
    }  # fmt: skip
    return base(model, topology, gpus, **training), choices(gpus, **(few | wanted)), sequences


# Spaces whose settings take more than two seconds to simulate.
SLOW = ("experts", "experts on Ethernet", "experts and windows", "adapters", "context", "precision")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in SLOW)) for name in SPACES])
@pytest.mark.one_of(4)
def test_the_best_of_ten_spaces_are_those_that_playing_everything_finds(name: str) -> None:
    equal_to_exhaustive(chosen_space(name))


@pytest.mark.long
@pytest.mark.parametrize("number", range(many(30)))
def test_the_best_of_many_spaces_are_those_that_playing_everything_finds(number: int) -> None:
    equal_to_exhaustive(small_space(number))


def test_parts_of_a_difference_add_up_to_it() -> None:
    scenario, chosen, sequences = narrow_space()
    best, *others = last(search(scenario, sequences, chosen)).best
    for other in others:
        difference = step_difference(best, other)
        assert sum(difference.parts.values()) == pytest.approx(difference.whole, abs=1e-9)
        assert difference.whole == other.step_time - best.step_time
    assert step_difference(best, best).text == ""


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "considered", "most"),
    [
        (("gpt2_xl", "--gpus", "16", "--seq-len", "1k", "--global-batch", "64seq"), 2936, 18),
        (("llama3_8b", "--gpus", "64", "--seq-len", "8k", "--global-batch", "128seq"), 6074, 18),
    ],
)
def test_bounds_stay_so_tight_that_few_settings_are_simulated(
    planned: PlanResult, arguments: tuple[str, ...], considered: int, most: int
) -> None:
    """A bound that forgets the update, or what hiding costs, is never wrong, and lets a plan simulate many more.

    The numbers are those of today: a change that raises one has loosened a bound.
    """
    plan = planned(DENSE)("plan", *arguments, "--topology", "dgx_h100", "--jobs", "1", "--json").data
    assert plan["considered"] == considered
    assert plan["played"] <= most


def test_equal_settings_are_told_in_the_order_in_which_they_are_written_down() -> None:
    scenario, chosen, sequences = narrow_space()
    once, again = (last(search(scenario, sequences, chosen, backend=jobs)).best for jobs in (1, 2))
    assert [_shown(one) for one in once] == [_shown(one) for one in again]


def _shown(one: PlayedSetting) -> tuple[str, str]:
    return one.setting.text, json.dumps(one.report, sort_keys=True)


USUAL = ("--topology", "dgx_a100", "--seq-len", "256", "--global-batch", "32seq", "--jobs", "1")
PlanResult = Callable[[dict[str, Any]], Command]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> PlanResult:
    """The command line in a folder that has a model of this shape."""

    def of(model: dict[str, Any]) -> Command:
        (tmp_path / "model.json").write_text(json.dumps(model), encoding="utf-8")
        return commands_in(tmp_path, monkeypatch, capsys)

    return of


def test_the_command_leaves_a_scenario_that_plays_to_the_same_report(tmp_path: Path, planned: PlanResult) -> None:
    cli = planned(DENSE)
    options = ["--gpus", "8", *USUAL]
    narrow = ["--among", "sharding=zero1,zero3", "--fix", "checkpointing=none", "--without", "interleaved"]
    answer = cli("plan", "model.json", *options, *narrow, "--out", "here")
    assert answer.code == 0
    assert "settings considered" in answer.out
    assert "The best setting ties with " in " ".join(answer.out.split())
    told = json.loads((tmp_path / "here" / "plan.json").read_text(encoding="utf-8"))
    run = simulate(load_scenario(tmp_path / "here" / "best.yaml"))
    assert json.dumps(run.report.to_dict()) == json.dumps(told["best"][0]["report"])
    assert told["played"] + sum(told["reasons"].values()) == told["considered"]
    assert next(one["number"] for one in told["front"]) == told["best"][0]["number"]


def test_an_interrupted_plan_goes_on_with_what_was_played(
    tmp_path: Path, planned: PlanResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = planned(DENSE)
    options = ["--gpus", "8", *USUAL]
    narrow = ["--fix", "pp=1", "--fix", "checkpointing=none", "--best", "4"]
    whole = cli("plan", "model.json", *options, *narrow, "--out", "whole")
    played = list[str]()

    def counted(index: int, point: Point, *others: Any) -> Any:
        played.append(point.scenario.name)
        if len(played) == 3:
            raise KeyboardInterrupt
        return play_point(index, point, *others)

    with monkeypatch.context() as patch:
        patch.setattr(one_by_one, "play_point", counted)
        ended = cli("plan", "model.json", *options, *narrow, "--out", "here")
    assert (whole.code, ended.code) == (0, 130)
    # The command that is named below is the one that goes on.
    assert ended.err.endswith(
        f"; to continue, use `simulator plan model.json {' '.join((*options, *narrow))} --resume --out here`\n"
    )
    assert sum(path.is_file() for path in (tmp_path / "here" / "outcomes").rglob("*")) == 2
    again = cli("plan", "model.json", *options, *narrow, "--out", "here")
    assert again.faults == [
        "--out: here exists and is not empty; choose a new directory, or continue the run with --resume"
    ]
    with monkeypatch.context() as patch:
        patch.setattr(one_by_one, "play_point", counted)
        on = cli("plan", "model.json", *options, *narrow, "--out", "here", "--resume")
    assert (on.code, on.out.replace("here", "whole")) == (0, whole.out)
    total = json.loads((tmp_path / "whole" / "plan.json").read_text(encoding="utf-8"))["played"]
    # The two that were kept are not played again.
    assert len(played) == 3 + total - 2
    for name in ("plan.json", "best.yaml", "report.html"):
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "here" / "outcomes").exists()
    assert cli("plan", "model.json", *options, "--out", "here", "--resume").faults == [
        "--resume: here holds no interrupted plan; omit --resume"
    ]
    assert cli("plan", "model.json", *options, "--resume").faults == [
        "--resume: needs the directory of the interrupted plan; give --out DIR"
    ]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--fix", "tp=3", "--fix", "tp=4"), "--fix tp=4: contradicts --fix tp=3; omit one"),
        (("--fix", "sharding=zero1", "--without", "zero1"),
         "--without zero1: leaves no sharding; contradicts --fix sharding=zero1"),
        (("--global-batch", "5000"), (
            "--global-batch 5000: 5,000 tokens are not a multiple of seq_len 2,048; write 4096, or 2seq; "
            "for 5,000 sequences write 5000seq"
        )),
        (("--fix", "tp"), "--fix tp: must be NAME=VALUE, such as --fix tp=8"),
        (("--fix", "tp=0"), "--fix tp=0: got 0; must be at least 1"),
        (("--tokens", "1e9", "--price", "0"), "--price: got 0.0; must be greater than 0"),
        (("--tokens", "1e9", "--watts", "2e6"), "--watts: got 2000000.0; must be at most 1e+06"),
        (("--fix", "offload=disk"), "--fix offload=disk: got 'disk'; one of none, optimizer"),
        (("--fix", "sharding=parameter_server"),
         (
             "--fix sharding=parameter_server: got 'parameter_server', whose servers hold states outside the ranks; "
             "a plan does not support servers"
         )),
        (("--set", "training.parallelism.tp=4"),
         "--set training.parallelism.tp: is chosen by the plan; write --fix tp=..., or --among"),
        (("--set", "training.sharding=zero1"),
         "--set training.sharding: is chosen by the plan; write --fix sharding=..., or --among"),
        (("--set", "cluster.jitter.compute=0.1"),
         "cluster.jitter: a plan excludes jitter, because random times may be shorter than any lower bound"),
        (("--fix", "schedule=interleaved", "--fix", "pp=1"),
         "--fix schedule=interleaved: has no effect, because --fix pp=1 excludes pipelines"),
        (("--fix", "virtual_stages=3", "--without", "interleaved"),
         (
             "--fix virtual_stages=3: has no effect, because each remaining schedule (1f1b) fixes the number of "
             "virtual stages"
         )),
        (("--fix", "shard_size=4", "--fix", "cp=1", "--fix", "sharding=zero1"),
         "--fix shard_size=4, --fix sharding=zero1: contradict each other with 8 GPUs and 2,048 sequences per step: "
         "zero1 on 8 data-parallel ranks cannot form shard groups of 4 ranks"),
        (("--fix", "tp=4", "--without", "zero3", "--fix", "pp=4", "--fix", "micro_batch=1"),
         "--fix tp=4, --fix pp=4: contradict each other with 8 GPUs and 2,048 sequences per step: "
         "tp 4 x pp 4 x cp 1 = 16 does not divide 8 GPUs"),
        (("--among", "schedule=zb_v,1f1b", "--fix", "tp=3", "--without", "zb_v"),
         (
             "--fix tp=3: is impossible with 8 GPUs and 2,048 sequences per step: tp 3 x pp 1 x cp 1 = 3 does not "
             "divide 8 GPUs; possible values of tp: 1, 2, 4, 8"
         )),
        (("--fix", "ep=2"),
         "--fix ep=2: is impossible with 8 GPUs and 2,048 sequences per step: parallelism.ep: got 2; llama3_8b has no "
         "experts; leave it at 1; possible values of ep: 1"),
        (("--fix", "micro_batch=6", "--fix", "pp=1"),
         "--fix micro_batch=6: is impossible with 8 GPUs and 2,048 sequences per step: "
         "dp 8 x micro-batch 6 = 48 does not divide 2,048 sequences"),
        (("--among", "gpus=4,16"), (
            "--gpus 8: contradicts --among gpus=4,16; write a number from this list (the report describes this "
            "number of GPUs in full)"
        )),
        (("--price", "2"), "--price: needs --tokens, the length of the training; write --tokens 1e12"),
        (("--among", "precision=bf16,int3"),
         "--among precision=bf16,int3: one of bf16, fp16, fp32, fp64, fp8, nvfp4, tf32"),
        (("--set", "training.dropout=true,false"), "training.dropout: a plan takes a single value of each key"),
        (("--set", "cluster.stragglers={1: 2}"),
         (
             "cluster.stragglers: a plan excludes factors above 1, because lower bounds assume the speed of the "
             "other ranks"
         )),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    fault: str,
) -> None:
    cli = commands_in(tmp_path, monkeypatch, capsys)
    answer = cli("plan", "llama3_8b", "--topology", "dgx_a100", "--gpus", "8", *options)
    assert (answer.code, answer.faults) == (2, [fault])


BIG = DENSE | {"n_embd": 16384, "n_layer": 12, "n_head": 64}


def test_where_nothing_fits_the_nearest_miss_and_what_would_fit_are_told(planned: PlanResult) -> None:
    cli = planned(BIG)
    options = ["--topology", "dgx_h100", "--seq-len", "256", "--global-batch", "16seq", "--fix", "pp=1", "--jobs", "1"]
    options += ["--among", "tp=1,4", "--fix", "micro_batch=1", "--among", "sharding=zero3"]
    answer = cli("plan", "model.json", "--gpus", "4", *options, "--out", "nothing")
    assert answer.code == 1
    assert "No setting of model.json fits on 4 GPUs. The setting with the smallest need takes" in answer.out
    # 38.7 billion parameters: 16 B each in all, 621 GB, over 4 GPUs 155 GB; with 12 B of them on the host 39 GB.
    assert "--among offload=optimizer: " in answer.out
    ways = json.loads(Path("nothing/plan.json").read_text(encoding="utf-8"))["ways"]
    wanted = [way["change"].split() for way in ways]
    more = next(words for words in wanted if words[0] == "--gpus")
    assert cli("plan", "model.json", *options, *more, "--best", "1").code == 0
    offload = next(words for words in wanted if "offload" in words[1])
    assert cli("plan", "model.json", "--gpus", "4", *options, *offload, "--best", "1").code == 0


@pytest.mark.long
def test_numbers_that_no_setting_has_are_told_with_possible_ones(planned: PlanResult) -> None:
    # 60 GPUs leave a multiple of 15 data-parallel ranks beside powers of two, which does not divide 64 sequences.
    cli = planned(DENSE)
    asked = ["plan", "model.json", "--topology", "dgx_h100", "--seq-len", "256", "--best", "1", "--jobs", "1"]
    gpus, batch = ["--gpus", "60"], ["--global-batch", "64seq"]
    answer = cli(*asked, *gpus, *batch, "--out", "nothing")
    possible = "--gpus 32, --gpus 64, --global-batch 60seq, --global-batch 75seq"
    assert answer.code == 1
    assert f"with 64 sequences per step; the reasons follow. Possible: {possible}." in " ".join(answer.out.split())
    told = json.loads(Path("nothing/plan.json").read_text(encoding="utf-8"))
    assert told["possible"] == possible.split(", ")
    assert "--global-batch 60seq" in Path("nothing/report.html").read_text(encoding="utf-8")
    assert cli(*asked, *told["possible"][1].split(), *batch).code == 0
    assert cli(*asked, *gpus, *told["possible"][2].split()).code == 0


PLAIN = ["--fix", "tp=1", "--fix", "pp=1", "--fix", "micro_batch=1", "--fix", "sharding=zero3", "--jobs", "1"]


def test_a_topology_without_more_gpus_is_told_without_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = commands_in(tmp_path, monkeypatch, capsys)
    workstation = ["--topology", "pcie_workstation", "--seq-len", "2048", "--global-batch", "32seq", *PLAIN]
    asked = ["plan", "llama3_8b", "--gpus", "4", *workstation]
    answer = cli(*asked, "--json", "--out", "nothing")
    assert (answer.code, answer.faults) == (1, [])
    told = json.loads(answer.out)
    # 16 B of states of 8.03 billion parameters over 4 GPUs: 32.1 GB of 25.8.
    assert told["nearest"]["needs_bytes"] > 16 * 8.03e9 / 4 > told["nearest"]["capacity_bytes"]
    assert [way["change"] for way in told["ways"]] == ["--among offload=optimizer"]
    assert {path.name for path in Path("nothing").iterdir()} == {"plan.json", "report.html"}
    assert json.loads(Path("nothing/plan.json").read_text(encoding="utf-8")) == told
    page = Path("nothing/report.html").read_text(encoding="utf-8")
    assert "Closest setting, and changes that would fit" in page
    assert "--among offload=optimizer" in page
    assert cli(*asked).code == 1


def test_two_changes_are_tried_where_one_is_not_enough(planned: PlanResult) -> None:
    # 25 billion parameters of 25.8 GB each GPU: with the optimizer on the host 2 B of each over 2 GPUs are 25 GB, which
    # leaves no room for the process; without it 16 B over all 4 GPUs of the machine 100 GB, and both together 12.5 GB.
    cli = planned(DENSE | {"n_embd": 8192, "n_layer": 31, "n_head": 64})
    small = ["--topology", "pcie_workstation", "--seq-len", "256", "--global-batch", "4seq", *PLAIN]
    asked = ["plan", "model.json", *small]
    told = json.loads(cli(*asked, "--gpus", "2", "--json").out)
    (way,) = told["ways"]
    assert way["change"] == "--among offload=optimizer --gpus 4"
    assert cli(*asked, *way["change"].split(), "--best", "1").code == 0


def test_holes_between_allocations_count_for_what_is_said_to_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Allocations alone would fit, but not with the holes that a caching allocator leaves (theory/test_fragmentation).
    cli = commands_in(tmp_path, monkeypatch, capsys)
    long = ["--topology", "dgx_h100", "--gpus", "8", "--seq-len", "35840", "--global-batch", "16seq", "--fix", "cp=1"]
    asked = ["plan", "llama3_8b", *long, *PLAIN, "--fix", "checkpointing=full"]
    told = json.loads(cli(*asked, "--json").out)
    assert told["best"] == []
    assert told["nearest"]["needs_bytes"] > told["nearest"]["capacity_bytes"]
    way = told["ways"][0]
    assert way["change"] == "--set training.allocator=expandable_segments"
    assert cli(*asked, *way["change"].split(), "--best", "1").code == 0


def test_what_waits_to_be_sent_counts_too(planned: PlanResult) -> None:
    # 24.4 GB of 25.8 GB if nothing took time; but units that are gathered wait for their turn on PCIe.
    cli = planned(DENSE | {"n_embd": 8192, "n_layer": 40, "n_head": 64})
    small = ["--topology", "pcie_workstation", "--seq-len", "256", "--global-batch", "4seq", *PLAIN]
    told = json.loads(cli("plan", "model.json", "--gpus", "4", *small, "--among", "offload=optimizer", "--json").out)
    assert told["best"] or told["nearest"]["needs_bytes"] > told["nearest"]["capacity_bytes"]


def test_the_best_can_be_run_where_the_host_has_the_optimizer(planned: PlanResult) -> None:
    # One data-parallel rank has nothing to share, but the host updates for ranks that own a part, as ddp's do not.
    cli = planned(DENSE)
    few = ["--fix", "tp=4", "--fix", "pp=1", "--fix", "checkpointing=none", "--fix", "micro_batch=1", "--best", "1"]
    answer = cli("plan", "model.json", "--gpus", "4", *USUAL, *few, "--among", "offload=optimizer", "--out", "planned")
    assert answer.code == 0
    assert cli("check", "planned/best.yaml").code == 0
    assert "strategy: zero1" in Path("planned/best.yaml").read_text(encoding="utf-8")


def test_a_training_takes_its_tokens_over_its_tokens_a_second(planned: PlanResult) -> None:
    cli = planned(DENSE)
    options = ["--gpus", "8", *USUAL]
    few = ["--fix", "tp=1", "--fix", "pp=1", "--fix", "checkpointing=none", "--best", "1"]
    asked = ["--tokens", "1T", "--price", "2.5", "--watts", "700", "--deadline", "6w"]
    told = json.loads(cli("plan", "model.json", *options, *few, *asked, "--json").out)
    (best,) = told["best"]
    seconds = 1e12 / best["report"]["tokens_per_s"]
    assert best["budget"]["days"] == pytest.approx(seconds / 86400)
    assert best["budget"]["gpu_hours"] == pytest.approx(8 * seconds / 3600)
    assert best["budget"]["cost"] == pytest.approx(2.5 * 8 * seconds / 3600)
    assert best["budget"]["energy_kwh"] == pytest.approx(0.7 * 8 * seconds / 3600)


def test_a_deadline_tells_the_fewest_gpus_that_meet_it(planned: PlanResult) -> None:
    cli = planned(WIDE)
    options = ["--gpus", "4", *USUAL]
    few = ["--fix", "tp=1", "--fix", "pp=1", "--fix", "checkpointing=none", "--best", "1", "--tokens", "1T", "--json"]
    (best,) = json.loads(cli("plan", "model.json", *options, *few).out)["best"]
    days = best["budget"]["days"]
    # With half as many GPUs it takes between one and two times as long and a little more.
    answers = [cli("plan", "model.json", *options, *few, "--deadline", f"{times * days:.6f}") for times in (2.5, 0.9)]
    loose, tight = (json.loads(answer.out)["sizes"] for answer in answers)
    assert [(one["gpus"], one["meets"]) for one in loose] == [(4, True), (2, True), (1, False)]
    assert tight[0] == {"gpus": 4, "meets": False, **{k: loose[0][k] for k in loose[0] if k not in ("gpus", "meets")}}
    assert [one["gpus"] for one in tight] == [4, 8]
    assert all(one["days"] == pytest.approx(one["gpu_hours"] / one["gpus"] / 24) for one in [*loose, *tight])
    said = cli("plan", "model.json", *options, *few[:-1], "--deadline", f"{2.5 * days:.6f}").out
    assert "The deadline needs at least 2 GPUs (tested: 1, 2, 4)." in said


@pytest.mark.long
def test_each_number_of_gpus_is_planned_by_itself(planned: PlanResult) -> None:
    cli = planned(WIDE)
    few = ["--fix", "tp=1", "--fix", "pp=1", "--fix", "checkpointing=none", "--best", "2", "--json"]
    told = json.loads(cli("plan", "model.json", "--among", "gpus=4,3,1,2", *USUAL, *few).out)
    alone = {gpus: json.loads(cli("plan", "model.json", "--gpus", str(gpus), *USUAL, *few).out) for gpus in (1, 2, 4)}
    # The largest is told whole, as if nothing else had been asked for.
    assert told["best"] == alone[4]["best"]
    assert {name: told[name] for name in ("considered", "played", "reasons")} == {
        name: alone[4][name] for name in ("considered", "played", "reasons")
    }
    assert {one["gpus"]: one["setting"] for one in told["sizes"]} == {
        3: None, **{gpus: one["best"][0]["text"] for gpus, one in alone.items()}
    }  # fmt: skip
    missing = next(one["missing"] for one in told["sizes"] if one["gpus"] == 3)
    assert missing == "no setting is possible: data-parallel ranks x micro-batch do not divide the global batch"
    every = [one for own in alone.values() for one in own["all_played"]]
    assert sorted((one["gpus"], one["setting"], one["step_time_s"]) for one in told["all_played"]) == sorted(
        (one["gpus"], one["setting"], one["step_time_s"]) for one in every
    )
    assert len({one["number"] for one in told["all_played"]}) == len(every)


def test_on_the_front_no_other_is_as_fast_as_small_and_on_as_few_gpus(planned: PlanResult) -> None:
    cli = planned(WIDE)
    few = ["--fix", "tp=1", "--fix", "pp=1", "--best", "3", "--json"]
    told = json.loads(cli("plan", "model.json", "--among", "gpus=1,2,4", *USUAL, *few).out)

    def measures(one: dict[str, Any]) -> tuple[float, ...]:
        return one["step_time_s"], one["peak_memory_bytes"], one["gpus"]

    known = {measures(one) for one in told["all_played"] if one["fits"]}
    not_beaten = {one for one in known if not any(all(map(le, other, one)) for other in known - {one})}
    assert {measures(one) for one in told["front"]} == not_beaten
    assert {one["gpus"] for one in told["front"]} == {1, 2, 4}


def test_settings_within_the_uncertainty_of_the_best_tie_with_it() -> None:
    def played(number: int, seconds: float) -> PlayedSetting:
        ends = {"step_time_s_80_low": seconds / 1.1, "step_time_s_80_high": seconds * 1.1}
        nothing: Any = None
        return PlayedSetting(nothing, number, 0.0, {"step_time_s": seconds, "intervals": ends})

    best = [played(number, seconds) for number, seconds in enumerate((1.0, 1.009, 1.09, 1.11, 2.0))]
    assert [one.number for one in ties(best)] == [1, 2]


def test_every_setting_is_counted_once() -> None:
    scenario, chosen, sequences = narrow_space()
    refused = InfeasibleCounts()
    there = sum(1 for _ in space.settings(chosen, scenario, sequences, refused))
    plan = last(search(scenario, sequences, chosen))
    failed = sum(plan.failed.values())
    assert plan.considered == there + sum(refused.counts.values())
    ended = len(plan.played) + failed + plan.do_not_fit + plan.slower + plan.pending + sum(plan.refused.counts.values())
    assert ended == plan.considered
    assert len(set(itertools.chain(one.setting for one in plan.played))) == len(plan.played)


@pytest.mark.parametrize("shared", ["slow.yaml", "quick.yaml"])
@pytest.mark.one_of(2)
def test_a_plan_among_frameworks_equals_the_better_of_their_plans(tmp_path: Path, shared: str) -> None:
    """Each framework has its own times of transfers; bounds with those of another would prune the fastest setting."""
    (tmp_path / "slow.yaml").write_text("based_on: torchtitan\nnetwork_time: 20\n", encoding="utf-8")
    quick = "based_on: torchtitan\nnetwork_time: 0.5\nkernel_time: 1.02\n"
    (tmp_path / "quick.yaml").write_text(quick, encoding="utf-8")
    names = tuple(str(tmp_path / name) for name in ("slow.yaml", "quick.yaml"))
    own = base(WIDE, "h100_ethernet_100g", 4, framework=str(tmp_path / shared))

    def found(*frameworks: str) -> SearchResult:
        few = {"tp": (2, 4), "pp": (1, 2), "cp": (1,), "schedule": ("1f1b",), "shard_size": (None,)}
        *_, last = search(own, 16, choices(4, **few, framework=frameworks), best=1)
        assert last.ended
        return last

    alone = [found(name).best[0] for name in names]
    best = min(alone, key=lambda one: one.step_time)
    together = found(*names)
    assert together.best[0].step_time == pytest.approx(best.step_time, rel=1e-12)
    assert together.best[0].setting == best.setting
    # Every bound is below the simulated time.
    assert all(one.bound <= one.step_time * (1 + 1e-9) for one in together.played)
