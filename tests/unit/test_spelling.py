"""Names that people write in another way, and words of other programs, lead to the name that is meant."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.basics.spelling import meant, plain
from simulator.collectives.algorithm import ALGORITHMS, OPERATIONS
from simulator.model.load import load_model
from simulator.scenario.key_names import ending, unknown_key
from simulator.scenario.load import load_scenario
from simulator.scenario.records import axis_keys, fields
from simulator.step.pipelines.schedule import SCHEDULES
from simulator.step.strategies.strategy import STRATEGIES

KINDS: tuple[registry.Kind, ...] = get_args(registry.Kind)
COLLECTIVE: dict[str, Any] = {
    "name": "demo",
    "cluster": {"topology": "star_100g", "world_size": 8},
    "collective": {"operation": "all_reduce", "algorithm": "ring", "size": "1 MiB"},
}
TRAINING: dict[str, Any] = {
    "name": "demo",
    "cluster": {"topology": "dgx_h100", "world_size": 8},
    "training": {"model": "gpt2", "seq_len": 512},
}


def told(data: dict[str, Any]) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(data)
    return [line.removeprefix("<dict>: ") for line in str(caught.value).splitlines()]


@pytest.mark.parametrize(
    ("kind", "written", "name"),
    [
        ("gpu", "L4", "l4"),
        ("gpu", "A100", "a100_sxm_80gb"),
        ("gpu", "A100 (80 GB)", "a100_sxm_80gb"),
        ("gpu", "A100-40GB", "a100_sxm_40gb"),
        ("gpu", "H100", "h100_sxm"),
        ("gpu", "NVIDIA A100-SXM4-80GB", "a100_sxm_80gb"),
        ("gpu", "RTX 4090", "rtx_4090"),
        ("model", "llama3-8b", "llama3_8b"),
        ("model", "Llama-3.1-8B", "llama3_8b"),
        ("model", "meta-llama/Llama-3.1-8B", "llama3_8b"),
        ("model", "gpt2-small", "gpt2"),
        ("model", "gpt2_small", "gpt2"),
        ("model", "openai-community/gpt2-medium", "gpt2_medium"),
        ("model", "meta-llama/Meta-Llama-3-70B-Instruct", "llama3_70b"),
        ("model", "gpt2-xl", "gpt2_xl"),
        ("model", "Qwen/Qwen2-0.5B", "qwen2_0.5b"),
        ("topology", "DGX H100", "dgx_h100"),
        ("framework", "TorchTitan", "torchtitan"),
        ("model", "megatron_17b", None),  # no megatron_1.7b
        ("gpu", "h100_sx", None),
        ("gpu", "my_gpu.yaml", None),
        ("model", "someone/else", None),
        ("gpu", "", None),
        ("gpu", "---", None),
    ],
)
def test_a_shipped_name_is_found_by_what_people_write(kind: registry.Kind, written: str, name: str | None) -> None:
    assert registry.shipped(kind, written) == name
    if name is not None:
        assert registry.find(kind, written) == registry.find(kind, name)


def test_a_file_wins_over_another_spelling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("L4").write_text("product: mine\n")
    assert registry.find("gpu", "L4") == Path("L4")
    assert registry.find("gpu", "l4").suffix == ".yaml"


@pytest.mark.parametrize("kind", KINDS)
def test_other_names_are_of_shipped_files_and_of_one_alone(kind: registry.Kind) -> None:
    others = registry.other_names(kind)
    assert set(others.values()) <= set(registry.names(kind))
    for other, name in others.items():
        assert meant(other, registry.names(kind), others) == name


@pytest.mark.parametrize(
    "names",
    [
        *map(registry.names, KINDS),
        ALGORITHMS.names(),
        OPERATIONS,
        STRATEGIES.names(),
        SCHEDULES.names(),
    ],
)
def test_no_two_names_differ_in_spelling_alone(names: tuple[str, ...]) -> None:
    assert len({plain(name) for name in names}) == len(names)


def test_a_scenario_holds_the_names_that_were_meant() -> None:
    data = COLLECTIVE | {"cluster": {"topology": "Star-100G", "world_size": 8, "gpu": "A100"}}
    data["collective"] = {"operation": "AllReduce", "algorithm": "Double Binary Tree", "size": "1 MiB"}
    scenario = load_scenario(data)
    assert scenario.collective is not None
    assert (scenario.cluster.topology, scenario.cluster.gpu) == ("star_100g", "a100_sxm_80gb")
    assert (scenario.collective.operation, scenario.collective.algorithm) == ("all_reduce", "double_binary_tree")
    training = {"model": "Llama-3.1-8B", "seq_len": 512, "sharding": "ZeRO-3", "parallelism": {"pp": 2}}
    training["parallelism"] |= {"schedule": "GPipe"}  # type: ignore[operator]
    step = load_scenario(TRAINING | {"training": training}).training
    assert step is not None
    assert (step.model, step.sharding.strategy, step.parallelism.schedule) == ("llama3_8b", "zero3", "gpipe")


def test_a_model_has_the_name_of_its_file_however_it_is_asked_for() -> None:
    assert load_model("meta-llama/Llama-3.1-8B").name == "llama3_8b"


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        (
            "global_batch_size",
            ("write global_batch: 512seq (sequences of all ranks together) or global_batch: 4M (tokens)"),
        ),
        ("batch_size", "or micro_batch_size for the sequences in a micro-batch of each rank"),
        ("learning_rate", "write learning: {rate: 1e-3}"),
        ("lr", "write learning: {rate: 1e-3}"),
        ("epochs", "one step is simulated; write the length of the training as budget: {tokens: 1e12}"),
        ("tensor_parallel_degree", "write parallelism: {tp: 8}"),
        ("virtual_stages", "did you mean 'training.parallelism.virtual_stages'?"),
        ("optimiser", "did you mean 'optimizer'?"),
    ],
)
def test_a_word_of_another_program_is_told_what_to_write(key: str, hint: str) -> None:
    (line,) = told(TRAINING | {"training": TRAINING["training"] | {key: 3}})
    # The hint stands before the long list of keys.
    names = ", ".join(sorted(fields(("training",))))
    assert line.startswith(f"training.{key}: unknown key; ")
    assert line.endswith(f"{hint}{'' if hint.endswith('?') else ';'} one of {names}")


def test_the_keys_that_there_are_stand_once() -> None:
    training = TRAINING["training"] | {"learning_rate": 1, "global_batch_size": 2, "optimiser": 3}
    first, *others = told(TRAINING | {"training": training, "cluster": TRAINING["cluster"] | {"gpus": 8}})
    names = ", ".join(sorted(fields(("training",))))
    lines = [first, *others]
    assert sum(names in line for line in lines) == 1
    assert sum(" one of " in line for line in lines) == 2  # once for `training`, once for `cluster`
    assert [line for line in lines if line.endswith("unknown key; did you mean 'optimizer'?")]


def test_a_hint_is_a_key_that_the_scenario_can_have() -> None:
    (line,) = told(COLLECTIVE | {"sweep": {"algorithm": ["ring"]}})
    assert line.endswith("did you mean 'collective.algorithm'?")
    (line,) = told(TRAINING | {"sweep": {"algorithm": ["ring"]}})
    assert line.endswith("did you mean 'training.algorithm'?")


def test_the_end_of_a_key_names_it_where_no_other_ends_so() -> None:
    assert ending("algorithm", axis_keys("collective")) == ("collective.algorithm",)
    assert ending("strategy", axis_keys("training")) == ("training.sharding.strategy",)
    assert ending("size", ["collective.size", "training.sharding.bucket_size"]) == ("collective.size",)
    assert unknown_key("x", ["collective.size"]).startswith("unknown key; one of collective.size")


def test_a_tab_is_told_as_one(tmp_path: Path) -> None:
    path = tmp_path / "tab.yaml"
    path.write_text("name: x\ncluster:\n\ttopology: star_100g\n")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path)
    assert str(caught.value) == f"{path}:3:1: line 3 is indented with a tab; use spaces"


def test_the_config_of_a_framework_is_answered_with_our_keys(tmp_path: Path) -> None:
    """DeepSpeed's JSON has no sections, and torchtitan's TOML is not YAML."""
    deepspeed = tmp_path / "ds.json"
    deepspeed.write_text('{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 4}')
    with pytest.raises(ScenarioError) as caught:
        load_scenario(deepspeed)
    assert "write sharding: zero3, zero2, zero1 or ddp, below training" in str(caught.value)
    assert "write micro_batch_size, below training" in str(caught.value)
    titan = tmp_path / "titan.toml"
    titan.write_text("[parallelism]\ntensor_parallel_degree = 2\n")
    with pytest.raises(ScenarioError, match=r"a TOML file is no scenario; .* `simulator import-config "):
        load_scenario(titan)


def test_other_names_of_adapters_are_told_the_key() -> None:
    (line,) = told(TRAINING | {"training": TRAINING["training"] | {"peft": {"rank": 8}}})
    assert "unknown key; write lora: {rank: 16}; one of " in line
