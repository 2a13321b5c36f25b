"""The key `training`: what it may hold, what it becomes, and where its faults are told."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.basics import document, registry, yaml_dialect
from simulator.basics.document import parse
from simulator.basics.errors import ScenarioError
from simulator.scenario import plot_names
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario, parse_scenario, points
from simulator.scenario.records import Scenario, axis_keys
from simulator.scenario.resolve import resolved, to_yaml
from simulator.scenario.template import template
from simulator.scenario.typed_keys import CollectiveKeys, FaultKeys, LearningKeys, TrainingKeys
from simulator.step.checkpointing import POLICIES
from simulator.step.learning_spec import FaultSpec, TrainingTask
from simulator.step.optimizers.optimizer import OPTIMIZERS
from simulator.step.parallelism import Parallelism
from simulator.step.precision import Precision
from simulator.step.sharding import Sharding
from simulator.step.spec import TrainingStep
from simulator.step.strategies.strategy import STRATEGIES
from simulator.step.training_spec import TrainingSpec
from tests.schemas import scenario_validator
from tests.training import WITHOUT_SERVERS

BASE: dict[str, Any] = {
    "name": "demo",
    "cluster": {"topology": "star_100g", "world_size": 8},
    "training": {"model": "gpt2", "seq_len": 512},
}
TINY = {"model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 128, "vocab_size": 1000}


def with_keys(training: dict[str, Any] | None = None, **keys: Any) -> dict[str, Any]:
    """BASE with more keys of `training` and of the file."""
    data = copy.deepcopy(BASE) | keys
    data["training"] |= training or {}
    return data


def loaded(training: dict[str, Any] | None = None, **keys: Any) -> TrainingSpec:
    spec = load_scenario(with_keys(training, **keys)).training
    assert spec is not None
    return spec


def step_of(training: dict[str, Any]) -> TrainingStep:
    return to_step(loaded(training), 8)


def told(data: dict[str, Any], overrides: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(data, overrides)
    assert caught.value.exit_code == 2
    return [line.removeprefix("<dict>: ") for line in str(caught.value).splitlines()]


def places(text: str) -> list[str]:
    """Line, column and key of each fault of a text."""
    with pytest.raises(ScenarioError) as caught:
        parse_scenario(parse(text, "f.yaml"), Path())
    return [":".join(line.split(":")[1:4]) for line in str(caught.value).splitlines()]


# ------------------------------------------------------------------------------------------------------- what it means


def test_a_model_and_a_sequence_length_are_enough() -> None:
    scenario = load_scenario(BASE)
    assert scenario.collective is None
    assert scenario.training == TrainingSpec(model="gpt2", seq_len=512)
    assert scenario.plotted.kinds == ()


def test_what_is_left_out_has_the_defaults_of_the_design() -> None:
    step = step_of({})
    assert (step.keys.micro_batch_size, step.accumulation, step.keys.activation_checkpointing) == (1, 1, "none")
    assert step.sharding == Sharding().replaced(
        strategy="zero3", reshard_after_forward=True, prefetch=1, bucket_size=25 * 2**20
    )
    assert step.precision == Precision(
        params="bfloat16", grads="bfloat16", reduce="float32", master="float32", matmul="bfloat16"
    )
    assert (step.keys.attention, step.keys.attention_generation) == ("flash", "auto")
    assert (step.keys.collectives, step.keys.compile, step.keys.dropout) == ("auto", False, False)
    assert step.optimizer == OPTIMIZERS.find("adam")
    assert step.model.num_layers == 12


def test_every_key_reaches_the_step() -> None:
    step = step_of(
        {
            "micro_batch_size": 3,
            "gradient_accumulation_steps": 4,
            "parallelism": {"dp": 8, "tp": 1},
            "sharding": {"strategy": "zero1", "reshard_after_forward": False, "prefetch": 0, "bucket_size": "1 MiB"},
            "precision": {"params": "float16", "grads": "float32", "reduce": "float16", "master": None},
            "activation_checkpointing": "sqrt",
            "attention": "standard",
            "attention_generation": 1,
            "optimizer": "sgd",
            "collectives": "played",
            "compile": True,
            "dropout": True,
        }
    )
    assert (step.keys.seq_len, step.keys.micro_batch_size, step.accumulation) == (512, 3, 4)
    assert step.sharding == Sharding().replaced(
        strategy="zero1", reshard_after_forward=False, prefetch=0, bucket_size=2**20
    )
    assert step.precision == Precision(
        params="float16", grads="float32", reduce="float16", master=None, matmul="float16"
    )
    assert (step.keys.activation_checkpointing, step.keys.attention, step.keys.attention_generation) == (
        "sqrt",
        "standard",
        1,
    )
    assert (step.optimizer, step.keys.collectives, step.keys.compile, step.keys.dropout) == (
        # Without a wide master copy, states have the parameters' dtype.
        replace(OPTIMIZERS.find("sgd"), state_dtype="float16"),
        "played",
        True,
        True,
    )


def test_adamw_is_adam_and_an_optimizer_may_say_how_it_updates() -> None:
    assert step_of({"optimizer": "AdamW"}).optimizer == OPTIMIZERS.find("adam")
    asked = step_of({"optimizer": {"name": "adamw", "implementation": "for_loop"}}).optimizer
    assert asked == replace(OPTIMIZERS.find("adam"), implementation="for_loop")


@pytest.mark.parametrize("strategy", WITHOUT_SERVERS)
def test_a_bare_strategy_is_short_for_the_mapping(strategy: str) -> None:
    assert loaded({"sharding": strategy}).sharding == Sharding(strategy=strategy)
    assert loaded({"sharding": {"strategy": strategy}}).sharding == Sharding(strategy=strategy)


@pytest.mark.parametrize(
    ("word", "precision"),
    [
        ("fp32", Precision(params="float32").resolved()),
        ("tf32", Precision(params="float32", grads="float32", reduce="float32", master=None, matmul="tf32")),
        ("fp16", Precision(params="float16", grads="float16", reduce="float32", master="float32", matmul="float16")),
        ("bf16", Precision(params="bfloat16", grads="bfloat16", reduce="float32", master="float32", matmul="bfloat16")),
        (
            "fp8",
            Precision(params="bfloat16", grads="bfloat16", reduce="float32", master="float32", matmul="float8_e4m3fn"),
        ),
    ],
)
def test_a_short_precision_means_these_dtypes(word: str, precision: Precision) -> None:
    cluster = {"topology": "dgx_h100", "world_size": 8}
    assert to_step(loaded({"precision": word}, cluster=cluster), 8).precision == precision


@pytest.mark.parametrize(
    ("written", "policy"),
    [("full", "full"), ({"every": 2}, 2), ([0, 3, 5], (0, 3, 5)), ([], ()), ("selective_op", "selective_op")],
)
def test_checkpointing_is_a_policy_or_a_step_or_layers(written: Any, policy: Any) -> None:
    assert step_of({"activation_checkpointing": written}).keys.activation_checkpointing == policy


def test_servers_are_a_sharding_and_no_algorithm_of_a_training() -> None:
    with pytest.raises(ScenarioError, match=r"servers hold a training's parameters: write sharding: parameter_server"):
        loaded({"algorithm": "parameter_server"})


def test_one_rank_may_train_alone() -> None:
    data = with_keys(cluster={"topology": "star_100g", "world_size": 1})
    spec = load_scenario(data).training
    assert spec is not None
    assert to_step(spec, 1).keys.seq_len == 512


def test_a_model_may_be_written_out_or_lie_beside_the_file(tmp_path: Path) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(TINY), encoding="utf-8")
    path = tmp_path / "mine.yaml"
    path.write_text(yaml_dialect.dump(with_keys({"model": "tiny.json", "seq_len": 64})), encoding="utf-8")
    spec = load_scenario(path).training
    assert spec is not None
    beside = to_step(spec, 8, tmp_path).model
    inline = step_of({"model": TINY, "seq_len": 64}).model
    assert (beside.hidden_size, inline.hidden_size) == (64, 64)
    assert (beside.num_layers, inline.num_layers) == (4, 4)


def test_groups_that_do_not_make_up_the_world_are_no_step() -> None:
    with pytest.raises(ValueError, match="got 4 ranks; must be 8"):
        to_step(TrainingSpec(model="gpt2", seq_len=512, parallelism=Parallelism(dp=4)), 8)


# ------------------------------------------------------------------------------------------------------- back and forth


def test_everything_is_written_out() -> None:
    assert resolved(load_scenario(BASE))["training"] == {
        "model": "gpt2",
        "seq_len": 512,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "parallelism": {
            "tp": 1, "pp": 1, "cp": 1, "ep": 1, "sequence_parallel": True, "tp_overlap": "none", "schedule": "1f1b",
            "virtual_stages": 1, "deferred_head_gradients": 0, "stages": "auto", "context": "ring", "balanced": True,
            "experts": {
                "dispatch": "all_to_all", "routing": "uniform", "capacity": "none", "imbalance": 1.0, "dtype": "auto",
                "overlap": False,
            },
            "order": ["tp", "cp", "ep", "dp", "pp"],
        },
        "sharding": {
            "strategy": "zero3", "reshard_after_forward": True, "prefetch": 1, "bucket_size": "25 MiB",
            "layers_per_unit": 1, "keep_below": 0, "gradient_sync": "every", "servers": 1, "servers_on": "own",
            "asynchronous": False,
        },
        "precision": {
            "params": "bfloat16", "grads": "auto", "reduce": "auto", "master": "auto", "matmul": "auto",
            "scaling": "tensor",
        },
        "activation_checkpointing": "none",
        "attention": "flash",
        "attention_generation": "auto",
        "optimizer": {
            "name": "adam", "distribution": "auto", "iterations": 5, "implementation": "auto", "state_dtype": "auto",
        },
        "trainable": "all",
        "lora": {
            "rank": 0, "dtype": "float32", "dropout": False, "base": "params", "dora": False, "hidden": "params",
            "targets": "all", "regather": False,
        },
        "collectives": "auto",
        "compile": False,
        "dropout": False,
        "framework": "torchtitan",
        "allocator": "caching",
        "offload": {"what": "none", "fraction": 1.0, "activations": False, "host_rate": "50 GB/s"},
        "checkpoint_traffic": "none",
        "loss": "auto",
        "logit_shift": "none",
        "float32_outputs": False,
        "use_cache": False,
        "cuda_graphs": (),
        "loss_scaling": {"rule": "auto", "start": 65536.0, "shared": True},
        "algorithm": "auto",
        "numerics": False,
        "steps": 20,
        "learning": {"rate": 0.001, "decay": 0.0, "eps": 1e-08, "warmup": 0, "schedule": "constant"},
        "faults": [],
    }  # fmt: skip


AXES = {
    "training.sharding": ["ddp", {"strategy": "zero3", "prefetch": 2}],
    "training.sharding.strategy": ["ddp", "zero2"],
    "training.sharding.bucket_size": ["1 MiB", "25 MiB"],
    "training.precision": ["fp16", "tf32", {"params": "float32"}],
    "training.precision.params": ["float32", "bfloat16"],
    "training.activation_checkpointing": ["none", {"every": 3}, [0, 1], {"full": [0], "attention": [1]}, "full"],
    "training.offload": ["none", {"what": "none", "host_rate": "1 GB/s"}],
    "training.offload.host_rate": ["20 GB/s", "400 Gb/s"],
    "training.sharding.reshard_after_forward": [True, False],
    "training.micro_batch_size": [1, 2],
    "training.model": ["gpt2", TINY],
    "cluster.world_size": [1, 2, 8],
}
KEYS = {
    "sharding": st.sampled_from(["zero1", {"strategy": "ddp", "prefetch": 0}, {"reshard_after_forward": False}]),
    "precision": st.sampled_from(["fp32", "bf16", {"params": "bfloat16", "grads": "float32"}]),
    "activation_checkpointing": st.sampled_from(["attention", [3, 1], {"every": 1}, {"selective_op": [0, 1]}]),
    "offload": st.sampled_from(["none", {"host_rate": "12.5 GB/s"}]),
    "loss_scaling": st.sampled_from(["auto", "none", {"rule": "static", "start": 8}, {"interval": 4, "shared": False}]),
    "clip_norm": st.sampled_from([None, 0.5]),
    "dropout": st.sampled_from([True, False, 0.25]),
    "learning": st.sampled_from([{}, {"rate": 0.1, "tokens": [1, 2, 3]}, {"betas": [0, 0.5], "schedule": "cosine"}]),
    "optimizer": st.sampled_from(OPTIMIZERS.names()),
    "compile": st.booleans(),
    "parallelism": st.just({"tp": 1, "dp": None}),
}


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    chosen = draw(st.lists(st.sampled_from(sorted(AXES)), max_size=3, unique=True))
    clear = [a for a in chosen if not any(a.startswith(f"{b}.") for b in chosen)]
    training = draw(st.fixed_dictionaries({}, optional=KEYS))
    data = with_keys({"seq_len": 128, **training})
    cut = draw(st.integers(0, len(clear)))
    return data | {"compare": {a: AXES[a] for a in clear[:cut]}, "sweep": {a: AXES[a] for a in clear[cut:]}}


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_a_scenario_and_each_point_load_back_from_what_they_resolve_to(data: dict[str, Any]) -> None:
    validator = scenario_validator()
    validator.validate(data)
    scenario = load_scenario(data)
    validator.validate(json.loads(json.dumps(resolved(scenario))))
    assert load_scenario(resolved(scenario)) == scenario
    assert parse_scenario(parse(to_yaml(scenario)), scenario.base) == scenario
    for point in points(scenario):
        assert load_scenario(resolved(point.scenario)) == point.scenario
        assert point.scenario.training is not None
        to_step(point.scenario.training, point.scenario.cluster.world_size)


def spec_of(point: Scenario) -> TrainingSpec:
    assert point.training is not None
    return point.training


def test_an_axis_goes_below_a_short_form() -> None:
    data = with_keys(
        {"sharding": "zero3", "precision": "bf16"},
        compare={"training.sharding.prefetch": [0, 2]},
        sweep={"training.precision.reduce": ["float32", "bfloat16"]},
    )
    specs = [spec_of(p.scenario) for p in points(load_scenario(data))]
    assert [(s.sharding.strategy, s.sharding.prefetch) for s in specs] == [("zero3", k) for k in (0, 0, 2, 2)]
    assert [s.precision.reduce for s in specs] == ["float32", "bfloat16"] * 2


def test_what_is_set_goes_below_a_short_form_too() -> None:
    scenario = load_scenario(with_keys({"sharding": "zero1"}), {"training.sharding.bucket_size": "1 MiB"})
    assert spec_of(scenario).sharding == Sharding(strategy="zero1", bucket_size="1 MiB")


def test_dtypes_that_follow_the_parameters_follow_an_axis() -> None:
    data = with_keys(compare={"training.precision.params": ["bfloat16", "float32"]})
    steps = [to_step(spec_of(p.scenario), 8) for p in points(load_scenario(data))]
    assert [(s.precision.master, s.precision.grads) for s in steps] == [
        ("float32", "bfloat16"),
        (None, "float32"),
    ]


def test_ranks_that_are_not_said_follow_the_world() -> None:
    data = with_keys(sweep={"cluster.world_size": [1, 2, 4]})
    for point in points(load_scenario(data)):
        assert to_step(spec_of(point.scenario), point.scenario.cluster.world_size).keys.seq_len == 512


def test_every_key_of_training_can_be_an_axis() -> None:
    keys = {key for key in axis_keys() if key.startswith("training.")}
    written = resolved(load_scenario(BASE))["training"]
    inner = {f"training.{a}.{b}" for a in ("parallelism", "sharding", "precision") for b in written[a]}
    assert {f"training.{key}" for key in written} | inner | {"training.parallelism.dp"} <= keys


def test_the_template_of_a_step_loads_as_it_stands_and_in_its_long_form() -> None:
    text = template("demo", "How fast is it?", "training")
    scenario = parse_scenario(document.parse(text), Path())
    assert scenario.training is not None
    assert scenario.plotted.kinds == plot_names.names_of("training")
    assert len(points(scenario)) == 2 * 3 * 2
    long = text.replace("  sharding: zero3 ", "  # ").replace("  precision: bf16 ", "  # ")
    long = long.replace("  # sharding:", "  sharding:").replace("  # precision:", "  precision:")
    assert (
        spec_of(parse_scenario(document.parse(long), Path())).precision
        == Precision(grads="bfloat16", reduce="float32", master="float32", matmul="bfloat16").resolved()
    )


def _literals(kind: Any) -> set[str]:
    """Return the words in a type: of "Literal['a', 'b'] | float" a and b."""
    if get_origin(kind) is Literal:
        return {word for word in get_args(kind) if isinstance(word, str)}
    return {word for part in get_args(kind) for word in _literals(part)}


# Keys whose words are names of files, or of parts that may come from elsewhere.
_NAMES: dict[str, set[str]] = {
    "framework": {*registry.names("framework"), "bare"},
    "optimizer": set(OPTIMIZERS.names()),
    "sharding": set(STRATEGIES.names()),
    "activation_checkpointing": set(POLICIES),
}


@pytest.mark.parametrize("kind", ["collective", "training"])
def test_the_template_lists_every_value_of_a_key(kind: Literal["collective", "training"]) -> None:
    keys = get_type_hints(TrainingKeys if kind == "training" else CollectiveKeys)
    section = template("demo", "?", kind).partition(f"\n{kind}:")[2].partition("\nengine:")[0]
    # A key, up to the next key of the same mapping; comments on following lines belong to it.
    shown = {found[1]: found[0] for found in re.finditer(r"^  (\w+):(?:.|\n(?!  \w+:|\S))*", section, re.MULTILINE)}
    assert shown.keys() <= keys.keys()
    for key, text in shown.items():
        allowed = _NAMES.get(key, _literals(keys[key]))
        assert "..." in text or allowed <= set(re.findall(r"\w+", text)), key
    if kind == "training":
        assert _NAMES.keys() <= shown.keys()
        assert _literals(get_type_hints(LearningKeys)["schedule"]) <= set(re.findall(r"\w+", shown["learning"]))
        assert _literals(get_type_hints(FaultKeys)["what"]) <= set(re.findall(r"\w+", shown["faults"]))


def test_the_schema_asks_for_a_collective_or_a_step() -> None:
    validator = scenario_validator()
    assert validator.is_valid(BASE)
    assert not validator.is_valid({k: v for k, v in BASE.items() if k != "training"})
    assert not validator.is_valid(BASE | {"collective": {"operation": "all_reduce", "size": "1 MiB"}})


# --------------------------------------------------------------------------------------------------------------- faults

DTYPES = "one of bfloat16, float16, float32, float64"


@pytest.mark.parametrize(
    ("training", "line"),
    [
        ({"model": 3}, "model: got 3; must be the name of a model, a path, or a mapping"),
        ({"seq_len": "512"}, "seq_len: got '512'; must be a whole number; remove the quotes"),
        ({"micro_batch_size": 0}, "micro_batch_size: got 0; must be at least 1"),
        (
            {"parallelism": {"dp": 4}},
            "parallelism.dp: got 4; dp x tp x pp x cp must be world_size 8; omit dp, or write 8",
        ),
        ({"parallelism": {"ep": 2}}, "parallelism.ep: got 2; gpt2 has no experts; leave it at 1"),
        ({"parallelism": {"tp": 0}}, "parallelism.tp: got 0; must be at least 1"),
        ({"parallelism": 8}, "parallelism: got 8; must be a mapping, such as 'parallelism: {dp: 8}'"),
        (
            {"sharding": "zero4"},
            "sharding: got 'zero4'; one of ddp, parameter_server, zero1, zero2, zero3; did you mean 'zero3'?",
        ),
        ({"sharding": "fsdp"}, "sharding: got 'fsdp'; has the name zero3 here; write zero3"),
        ({"sharding": 3}, "sharding: got 3; must be a mapping, or one of ddp, parameter_server, zero1, zero2, zero3, "
         "or the path of a file that ends in .py"),
        ({"sharding": {"strategy": "fsdp"}}, "sharding.strategy: got 'fsdp'; has the name zero3 here; write zero3"),
        ({"sharding": {"prefetch": -1}}, "sharding.prefetch: got -1; must be at least 0"),
        ({"sharding": {"reshard_after_forward": 1}}, "sharding.reshard_after_forward: got 1; must be at least 2"),
        (
            {"sharding": {"shard_size": 0}},
            "sharding.shard_size: got 0; must be at least 1",
        ),
        (
            {"sharding": {"bucket": 4}},
            "sharding.bucket: unknown key; one of asynchronous, bucket_size, gradient_sync, keep_below, "
            "layers_per_unit, prefetch, reshard_after_forward, servers, servers_on, shard_size, staleness, strategy; "
            "did you mean 'bucket_size'?",
        ),
        ({"precision": "bfloat16"}, "precision: got 'bfloat16'; did you mean 'bf16'?"),
        (
            {"precision": "fp15"},
            "precision: got 'fp15'; one of bf16, fp16, fp32, fp64, fp8, nvfp4, tf32; did you mean 'fp16'?",
        ),
        ({"precision": {"params": "bf16"}}, f"precision.params: got 'bf16'; {DTYPES}; did you mean 'bfloat16'?"),
        ({"precision": {"params": "tf32"}},
         "precision.params: got 'tf32', a dtype only for matmuls; write the dtype at training.precision.matmul"),
        ({"precision": {"reduce": None}}, f"precision.reduce: got nothing; {DTYPES.replace('of', 'of auto,')}"),
        ({"precision": {"master": "bfloat16"}},
         (
             "precision.master: got 'bfloat16', which is not wider than the parameters' bfloat16; omit the key for "
             "float32, or write none"
         )),
        ({"precision": {"matmul": "tf32"}},
         (
             "precision.matmul: got 'tf32', which takes float32 inputs, but params are bfloat16; omit the key, or "
             "write params: float32"
         )),
        ({"precision": {"matmul": "float32"}},
         "precision.matmul: got 'float32', which is not narrower than the parameters' bfloat16; omit the key"),
        ({"precision": "fp8"}, (
            "precision.matmul: got 'float8_e4m3fn', which a100_sxm_80gb does not support; one of bfloat16, float16, "
            "float32, float64, tf32"
        )),
        ({"activation_checkpointing": "ful"}, "activation_checkpointing: got 'ful'; "
         "one of activation, attention, feed_forward, full, none, selective_op, sqrt; did you mean 'full'?"),
        ({"activation_checkpointing": "selective"}, "activation_checkpointing: got 'selective'; "
         "write attention (Megatron's selective recomputation) or selective_op (torchtitan's)"),
        ({"activation_checkpointing": {"every": 0}}, "activation_checkpointing.every: got 0; must be at least 1"),
        ({"activation_checkpointing": {"evry": 1}}, None),
        ({"activation_checkpointing": [0, 12]},
         "activation_checkpointing.1: got layer 12; gpt2 has layers 0 .. 11"),
        ({"activation_checkpointing": [3, 3]}, "activation_checkpointing.1: got layer 3 twice; name each once"),
        ({"activation_checkpointing": [-1]}, "activation_checkpointing.0: got -1; must be at least 0"),
        ({"activation_checkpointing": None}, "activation_checkpointing: got nothing; must be one of none, full, sqrt, "
         "attention, selective_op, feed_forward, activation, or {every: 2}, or a list of layers or of modules ("
         "core_attn, layernorm, mla_up_proj, mlp, moe, moe_act, shared_experts)"),
        ({"attention": "flsh"}, "attention: got 'flsh'; one of eager, flash, standard; did you mean 'flash'?"),
        ({"attention_generation": 5}, "attention_generation: got 5; must be at most 4, or auto"),
        ({"attention_generation": "fast"}, "attention_generation: got 'fast'; must be a whole number, or auto"),
        ({"attention_generation": 4}, "attention_generation: got 4; a100_sxm_80gb runs flash attention generations 1, "
         "2, because generation 4 has kernels for Blackwell GPUs only"),
        ({"optimizer": "nesterov"}, "optimizer: got 'nesterov'; has the same states as momentum; write momentum"),
        (
            {"optimizer": {"implementation": "apex"}},
            "optimizer.implementation: got 'apex'; one of auto, for_loop, foreach, fused",
        ),
        (
            {"optimizer": {"name": "adafactor", "implementation": "fused"}},
            (
            "optimizer.implementation: got 'fused', but adafactor has no fused kernel (optimizers with a fused "
            "kernel: adam, adam_8bit, lion, momentum, muon, paged_adam, paged_adam_8bit, sgd); write foreach or "
            "for_loop"
            ),
        ),
        ({"collectives": "closed"}, None),
        ({"compile": "yes"}, "compile: got 'yes'; one of false, true"),
        ({"seq_len": 4096}, "seq_len: got 4096; gpt2 has learned 1024 positions; take at most that, or give a "
         "config.json with more"),
        ({"model": TINY | {"n_head": 7}, "seq_len": 64}, None),
    ],
)  # fmt: skip
def test_a_value_out_of_place_is_told_with_what_is_allowed(training: dict[str, Any], line: str | None) -> None:
    lines = told(with_keys(training))
    assert lines[0].startswith("training.")
    if line is not None:
        assert lines == [f"training.{line}"]


def test_an_unknown_model_is_told_with_the_one_that_was_meant() -> None:
    (line,) = told(with_keys({"model": "llama3_9b"}))
    assert line.startswith("training.model: got 'llama3_9b'; did you mean 'llama3_8b'")
    assert line.endswith("? `simulator list models` lists all; or give the path of a config.json")
    assert "llama3_8b" in registry.names("model")


def test_what_is_missing_is_told_with_an_example() -> None:
    assert told(BASE | {"training": {}}) == [
        "training.model: missing; write for example 'model: llama3_8b'",
        "training.seq_len: missing; write for example 'seq_len: 8192'",
    ]
    assert told({k: v for k, v in BASE.items() if k != "training"}) == [
        "collective: missing; write for example 'collective: {operation: all_reduce, size: 256 MiB}' "
        "or 'training: {model: llama3_8b, seq_len: 8192}'"
    ]
    assert told(BASE | {"training": None}) == [
        "training: got nothing; must be a mapping, such as 'training: {model: llama3_8b, seq_len: 8192}'"
    ]


def test_a_collective_and_a_step_exclude_each_other() -> None:
    both = BASE | {"collective": {"operation": "all_reduce", "size": "1 MiB"}}
    assert told(both) == ["training: excludes collective, because a scenario simulates one of the two; remove one"]
    assert told(with_keys(sweep={"collective.size": ["1 MiB"]})) == [
        "sweep.collective.size: this scenario simulates a training step and has no collective; remove the key"
    ]
    assert told(BASE, {"collective.size": "1 MiB"}) == [
        "--set collective.size=1 MiB: the scenario simulates a training step and has no collective; start from "
        "another scenario"
    ]


def test_figures_of_the_other_kind_are_faults() -> None:
    (line,) = told(with_keys(plots=["timeline", "steps"]))
    drawn = ", ".join(plot_names.names_of("training"))
    assert line == f"plots.1: got 'steps'; plots of a training step are {drawn}"
    collective = {k: v for k, v in BASE.items() if k != "training"}
    collective |= {"collective": {"operation": "all_reduce", "size": "1 MiB"}, "plots": ["memory"]}
    assert told(collective)[0].startswith("plots.0: got 'memory'; plots of a collective are bandwidth_utilization")


def test_a_gpu_that_cannot_compute_in_the_dtype_is_told() -> None:
    cluster = {"topology": "star_100g", "world_size": 8, "gpu": "v100_sxm_32gb"}
    assert told(with_keys(cluster=cluster)) == [
        "training.precision.params: got 'bfloat16', which v100_sxm_32gb does not support; one of float16, float32, "
        "float64"
    ]
    assert loaded({"precision": "fp16"}, cluster=cluster).precision.params == "float16"
    adapters = {"precision": "fp16", "lora": {"rank": 8, "dtype": "bfloat16"}}
    assert told(with_keys(adapters, cluster=cluster)) == [
        "training.lora.dtype: got 'bfloat16', which v100_sxm_32gb does not support; one of float16, float32, float64"
    ]
    assert told(with_keys({"precision": "fp16", "optimizer": "muon"}, cluster=cluster)) == [
        "training.optimizer.name: got 'muon', which multiplies in bfloat16; v100_sxm_32gb does not support it"
    ]


def test_a_broken_rule_of_a_point_is_told_at_its_axis() -> None:
    assert told(with_keys({"parallelism": {"dp": 8}}, sweep={"cluster.world_size": [8, 4]})) == [
        "sweep.cluster.world_size: with cluster.world_size 4: training.parallelism.dp: got 8; "
        "dp x tp x pp x cp must be world_size 4; omit dp, or write 4"
    ]
    assert told(with_keys(compare={"training.activation_checkpointing": ["none", [12]]}))[0].startswith(
        "compare.training.activation_checkpointing: with training.activation_checkpointing [12]: "
    )
    (line,) = told(with_keys(compare={"training.model": ["gpt2", "gpt3"]}))
    assert line.startswith("compare.training.model.1: got 'gpt3'; did you mean 'gpt3_175b'?")
    (line,) = told(with_keys({"seq_len": 512}, sweep={"training.seq_len": [512, 2048]}))
    assert line.startswith(
        "sweep.training.seq_len: with training.seq_len 2048: training.seq_len: got 2048; gpt2 has learned "
    )


def test_faults_are_told_where_they_stand() -> None:
    text = """\
name: demo
cluster: {topology: star_100g, world_size: 8}
training:
  model:
    model_type: gpt2
    n_embd: 64
    n_layer: 4
    n_head: 7
    n_positions: 128
    vocab_size: 1000
  seq_len: 64
  parallelism:
    dp: 3
  precision: {params: bfloat16,
    master: bfloat16}
  activation_checkpointing:
  - 1
  - 1
plots: [memory, steps]
"""
    assert places(text) == [
        "8:13: training.model.n_head",
        "13:9: training.parallelism.dp",
        "15:13: training.precision.master",
        "18:5: training.activation_checkpointing.1",
        "19:17: plots.1",
    ]


@pytest.mark.parametrize(
    ("sharding", "told"),
    [
        ({"strategy": "zero3", "shard_size": 3}, "got 3; must divide world_size 8; try 2"),
        ({"strategy": "ddp", "shard_size": 4}, "got 4, but ddp has no sharding groups"),
    ],
)
def test_a_shard_group_must_divide_the_ranks_of_stage_three(sharding: dict[str, Any], told: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(told)):
        load_scenario(with_keys({"sharding": sharding}))


SERVER = {"strategy": "parameter_server"}


@pytest.mark.parametrize(
    ("training", "cluster", "line"),
    [
        (
            {"sharding": {"reshard_after_forward": 3}},
            {},
            "sharding.reshard_after_forward: got 3; must divide the 8 ranks",
        ),
        (
            {"sharding": {"reshard_after_forward": 4, "shard_size": 2}},
            {},
            "sharding.reshard_after_forward: got 4; must",
        ),
        (
            {"sharding": {"strategy": "ddp", "reshard_after_forward": 2}},
            {},
            "sharding.reshard_after_forward: got 2, but",
        ),
        ({"sharding": {"reshard_after_forward": "yes"}}, {}, "sharding.reshard_after_forward: got 'yes'; must be true"),
        (
            {"sharding": {"strategy": "zero2", "gradient_sync": "last"}},
            {},
            "sharding.gradient_sync: got 'last', but zero2",
        ),
        (
            {"sharding": {"reshard_after_forward": 8}},
            {},
            "sharding.reshard_after_forward: got 8; must divide the 8 ranks",
        ),
        ({"sharding": {"layers_per_unit": 13}}, {}, "sharding.layers_per_unit: got 13; gpt2 has 12 layers"),
        ({"activation_checkpointing": {}}, {}, "activation_checkpointing: got an empty mapping; write {every: 2}"),
        ({"sharding": {"layers_per_unit": 0}}, {}, "sharding.layers_per_unit: got 0; must be at least 1"),
        ({"sharding": {"keep_below": -1}}, {}, "sharding.keep_below: got -1; must be at least 0"),
        ({"sharding": SERVER}, {"world_size": 1}, "sharding.strategy: got 'parameter_server', which needs at least 2"),
        (
            {"sharding": SERVER},
            {"topology": "dgx_h100"},
            "sharding.servers_on: got 'own', but topology dgx_h100 has",
        ),
        (
            {"sharding": {**SERVER, "servers": 9, "servers_on": "workers"}},
            {},
            "sharding.servers: got 9, which is more than the 8 workers",
        ),
        ({"offload": "optimizer", "sharding": "ddp"}, {}, "offload: got 'optimizer', but with ddp every rank updates"),
        (
            {"offload": "optimizer", "sharding": SERVER},
            {},
            "offload: got 'optimizer', but with parameter_server every server updates its own part",
        ),
        ({"offload": "cpu"}, {}, "offload: got 'cpu'; write optimizer"),
        (
            {"offload": {"what": "optimizer", "host_rate": 50}},
            {},
            "offload.host_rate: got 50, which has no unit; write",
        ),
        ({"algorithm": "tree"}, {}, "algorithm: got 'tree', which has no reduce_scatter; zero3 needs this operation"),
        ({"offload": {"host_rate": "0 GB/s"}}, {}, "offload.host_rate: got '0 GB/s'; must be above 0"),
        ({"loss_scaling": "half"}, {}, "loss_scaling: got 'half'; one of auto, deepspeed, dynamic, none, static"),
        ({"activation_checkpointing": {"full": [12]}}, {}, "activation_checkpointing.full.0: got layer 12; gpt2 has"),
        (
            {"activation_checkpointing": {"full": [1], "attention": [0, 1]}},
            {},
            "activation_checkpointing.attention.1: got layer 1 twice",
        ),
        (
            {"activation_checkpointing": {"every": 2, "full": [1]}},
            {},
            "activation_checkpointing: got every, full; write",
        ),
        (
            {"activation_checkpointing": {"sqrt": [1]}},
            {},
            "activation_checkpointing.sqrt: unknown key; one of activation",
        ),
    ],
)
def test_what_goes_together_is_told_with_what_would(training: Any, cluster: dict[str, Any], line: str) -> None:
    told_lines = told(with_keys(training, cluster={"topology": "star_100g", "world_size": 8} | cluster))
    assert [text for text in told_lines if text.startswith(f"training.{line}")], told_lines
    assert len(told_lines) == 1


def test_loss_scaling_follows_the_dtype_of_the_parameters() -> None:
    for keys, expected in (
        ({"precision": "fp16"}, True),
        ({"precision": "bf16"}, False),
        ({"precision": "fp16", "loss_scaling": "none"}, False),
        ({"precision": "bf16", "loss_scaling": "dynamic"}, True),
    ):
        assert (to_step(loaded(keys), 8).loss_scaling is not None) is expected


def test_policies_by_layer_reach_the_step() -> None:
    step = to_step(loaded({"activation_checkpointing": {"attention": [3], "full": [0, 2]}}), 8)
    assert step.keys.activation_checkpointing == (("full", (0, 2)), ("attention", (3,)))


def test_no_layers_of_a_policy_are_none() -> None:
    assert loaded({"activation_checkpointing": {"full": []}}).activation_checkpointing == "none"


SMALL = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 32}
LEARNS = {"model": {**SMALL, "tie_word_embeddings": False}, "seq_len": 8, "numerics": True, "precision": "fp32"}


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"model": "llama3_8b"}, "model: got llama3_8b; real training supports only GPT-2"),
        ({"sharding": {"keep_below": 9}}, "sharding.keep_below: got 9, which real training does not support yet"),
        (
            {"optimizer": "adafactor"},
            "optimizer: got 'adafactor'; real training supports adam, lion, momentum, muon, sgd",
        ),
        (
            {"optimizer": {"name": "muon", "distribution": "owners"}, "sharding": "zero1"},
            "optimizer.distribution: got 'owners', which real training does not support yet; with zero1: auto, "
            "gathered, all_to_all",
        ),
        ({"dropout": 1.5}, "dropout: got 1.5; must be at most 0.99"),
        ({"dropout": "some"}, "dropout: got 'some'; must be true, false, or a probability such as 0.1"),
        ({"learning": {"rate": 0}}, "learning.rate: got 0; must be greater than 0"),
        ({"learning": {"tokens": [1, 2]}}, "learning.tokens: has 2 tokens; a sequence and its next token need 9"),
        ({"learning": {"tokens": [99] * 9}}, "learning.tokens: has token 99; inline has 0 .. 31"),
        ({"learning": {"tokens": "no.txt"}}, "learning.tokens: no.txt: there is no such file"),
        ({"learning": {"tokens": 3}}, "learning.tokens: got 3; must be the path of a text"),
        ({"learning": {"initial": "x.pt"}}, "learning.initial: got 'x.pt'; must be the path of a file whose name ends"),
        ({"learning": {"initial": 3}}, "learning.initial: got 3; must be the path of a file whose name ends in .npz"),
        ({"learning": {"batches": "x.npz"}}, "learning.batches: got 'x.npz'; must be the path of a file whose name"),
        ({"learning": {"initial": "no.npz"}}, "learning.initial: no.npz: there is no such file; a path starts from"),
        ({"learning": {"batches": "no.npy"}}, "learning.batches: no.npy: there is no such file; a path starts from"),
        ({"learning": {"betas": [0.9]}}, "learning.betas: got a list; must be two numbers of at least 0 and below 1"),
        (
            {"learning": {"betas": [0.9, 1]}},
            "learning.betas: got a list; must be two numbers of at least 0 and below 1",
        ),
        ({"learning": {"betas": 0.9}}, "learning.betas: got 0.9; must be two numbers of at least 0 and below 1"),
        ({"learning": {"eps": 0}}, "learning.eps: got 0; must be greater than 0"),
        ({"learning": {"warmup": 21}}, "learning.warmup: got 21; must be at most steps, 20"),
        ({"learning": {"schedule": "cos"}}, "learning.schedule: got 'cos'; one of constant, cosine, linear"),
        (
            {"optimizer": "sgd", "learning": {"betas": [0.8, 0.9]}},
            "learning.betas: only for adam, lion, muon, but the optimizer is sgd; remove the key",
        ),
        (
            {"optimizer": "momentum", "learning": {"eps": 1e-6}},
            "learning.eps: only for adam, muon, but the optimizer is momentum; remove the key",
        ),
        (
            {"learning": {"momentum": 0.5}},
            ("learning.momentum: only for momentum, muon, but the optimizer is adam; remove the key"),
        ),
        ({"faults": [{"step": 20, "what": "dropped"}]}, "faults.0.step: got 20; must be below steps 20"),
        ({"faults": [{"step": 2, "what": "stopped", "rank": 4}]}, "faults.0.rank: got 4; the cluster has ranks 0 .. 3"),
        ({"faults": [{"step": 2, "what": "lost"}]}, "faults.0.what: got 'lost'; one of bit_flip, doubled, dropped"),
        (
            {"faults": [{"step": 1, "what": "stopped", "transfer": 3}]},
            "faults.0.transfer: does not apply to 'stopped'; its keys are rank",
        ),
        (
            {"faults": [{"step": 1, "what": "doubled", "rank": 1}]},
            "faults.0.rank: does not apply to 'doubled'; its keys are collective, transfer",
        ),
        ({"attention": "eager"}, "attention: got eager; real training has flash and standard attention"),
        ({"numerics": False, "faults": [{"step": 1, "what": "doubled"}]}, "faults: need real training"),
        ({"sharding": "parameter_server", "precision": "fp16"}, "loss_scaling: servers apply gradients without"),
        ({"sharding": "parameter_server", "clip_norm": 1.0}, "clip_norm: got 1, but servers update before"),
        ({"sharding": {"asynchronous": True}}, "sharding.asynchronous: got true, but ranks with zero3 sum"),
        (
            {"sharding": {"strategy": "parameter_server", "staleness": 2}},
            "sharding.staleness: got 2, but synchronous workers",
        ),
        (
            {"sharding": {"strategy": "parameter_server", "asynchronous": True, "servers_on": "workers"}},
            "sharding.servers_on: got 'workers'; asynchronous servers need separate machines",
        ),
        ({"precision": "fp8"}, "precision.matmul: got 'float8_e4m3fn', which real training does not support yet"),
        ({"steps": 0}, "steps: got 0; must be at least 1"),
    ],
)
def test_numbers_that_cannot_be_carried_are_told(changed: dict[str, Any], line: str) -> None:
    cluster = {"topology": "star_100g", "world_size": 4}
    found = told({"name": "x", "cluster": cluster, "training": LEARNS | changed})
    assert [text for text in found if text.startswith(f"training.{line}")], found


def test_numbers_are_carried_by_played_collectives() -> None:
    scenario = load_scenario({"name": "x", "cluster": {"topology": "star_100g", "world_size": 4}, "training": LEARNS})
    assert scenario.training is not None
    step = to_step(scenario.training, 4)
    assert (step.keys.steps, step.keys.collectives, step.lesson) == (20, "played", TrainingTask())
    assert to_step(loaded({}), 8).lesson is None


def written(data: dict[str, Any], folder: Path) -> Scenario:
    path = folder / "scenario.yaml"
    path.write_text(yaml_dialect.dump(data))
    return load_scenario(path)


def test_what_is_learned_reaches_the_step(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("abracadabra and so on")
    np.save(tmp_path / "numbers.npy", np.arange(20).reshape(2, 10))
    for tokens, expected in (
        ("text.txt", (1, 2, 7)),  # of " abcdnors"
        ("numbers.npy", (0, 1, 2)),
        ([3, 1, 2] * 5, (3, 1, 2)),
    ):
        learning = {"tokens": tokens, "rate": 0.5, "decay": 0.1}
        data = {"name": "x", "cluster": {"topology": "star_100g", "world_size": 2}}
        data["training"] = LEARNS | {"learning": learning, "dropout": True, "faults": [{"step": 1, "what": "stale"}]}
        scenario = written(data, tmp_path)
        assert scenario.training is not None
        assert written(resolved(scenario), tmp_path) == scenario
        lesson = to_step(scenario.training, 2, tmp_path).lesson
        assert lesson is not None
        assert lesson.text is not None
        assert lesson.text[:3] == expected
        assert (lesson.learning.rate, lesson.learning.decay, lesson.dropout) == (0.5, 0.1, 0.1)
        assert lesson.faults == (FaultSpec(step=1, what="stale"),)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("x.npy", b"no array", "x.npy: is not readable as a numpy array"),
        ("x.txt", b"\xff\xfe\x00", "x.txt: not a UTF-8 text file; the name of an array file must end in .npy"),
    ],
)
def test_tokens_that_cannot_be_read_are_told(tmp_path: Path, name: str, content: bytes, line: str) -> None:
    (tmp_path / name).write_bytes(content)
    data = {"name": "x", "cluster": {"topology": "star_100g", "world_size": 2}}
    with pytest.raises(ScenarioError, match=re.escape(f"training.learning.tokens: {line}")):
        written(data | {"training": LEARNS | {"learning": {"tokens": name}}}, tmp_path)
