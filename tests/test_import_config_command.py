"""`simulator import-config` on the command line: the file that it writes, its lists, its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.model.load import load_model
from simulator.model.parameters import is_expert, modules
from simulator.model.shape import Transformer
from simulator.scenario.load import load_scenario
from tests.commands import Command, commands_in
from tests.configurations import SAMPLES

SCRIPT = SAMPLES["Megatron-LM"][0].written()
SETTINGS = SAMPLES["DeepSpeed"][0].written()


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    (tmp_path / "train.sh").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "ds.json").write_text(SETTINGS, encoding="utf-8")
    return commands_in(tmp_path, monkeypatch, capsys)


def test_a_script_becomes_a_scenario_beside_it(cli: Command) -> None:
    answer = cli("import-config", "train.sh", "--topology", "dgx_h100")
    assert answer.code == 0
    assert answer.err == ""
    scenario = load_scenario("train.yaml")
    assert scenario.name == "train"
    assert scenario.cluster.world_size == 16
    assert scenario.training is not None
    assert scenario.training.parallelism.tp == 4
    out = " ".join(answer.out.split())
    assert "train.sh: read as Megatron-LM" in out
    assert "train.yaml: written; next: `simulator check train.yaml`, then `simulator run train.yaml`" in out


def test_the_lists_tell_what_became_of_every_setting(cli: Command) -> None:
    out = cli("import-config", "train.sh").out
    understood, missing, *others = out.split("\n\n")[1:]
    assert understood.startswith("Understood")
    (line,) = (number for number, row in enumerate(SCRIPT.split("\n"), 1) if "--tensor-model-parallel-size" in row)
    (row,) = (row for row in understood.split("\n") if "training.parallelism.tp " in row)
    place = f"train.sh:{line}, the default of ${{TP}}"
    assert " ".join(row.split()) == f"training.parallelism.tp 4 --tensor-model-parallel-size {place}"
    assert missing.startswith("Missing in the files, and assumed")
    assert "Megatron-LM's default for bfloat16" in missing
    not_modelled, conditional, idle, _ = others
    assert "--overlap-param-gather" in not_modelled
    assert "--fp8-format" in conditional
    assert "--log-interval" in idle


def test_json_has_the_same_lists(cli: Command) -> None:
    data = cli("import-config", "train.sh", "--json").data
    assert data["scenario"] == "train.yaml"
    assert data["formats"] == {"train.sh": "Megatron-LM"}
    (layers,) = (
        setting
        for one in data["understood"]
        if one["key"] == "training.model"
        for setting in one["settings"]
        if setting["key"] == "--num-layers"
    )
    # The line of the word in the script.
    assert SCRIPT.split("\n")[layers["line"] - 1].strip().startswith("--num-layers 32")
    assert {one["reason"] for one in data["ignored"]} == {
        "changes no step",
        "changes the step, but is not modelled",
        "stands under a condition of the script, which is not evaluated",
    }


def test_options_win_over_files(cli: Command) -> None:
    options = ("--gpu", "a100", "--nodes", "4", "--micro-batch-size", "1", "--framework", "megatron_2021")
    answer = cli("import-config", "train.sh", *options, "--define", "TP=2", "--out", "other.yaml")
    assert answer.code == 0, answer.err
    scenario = load_scenario("other.yaml")
    assert scenario.training is not None
    # A DGX A100 has slots for the GPU, and eight of them.
    assert (scenario.cluster.topology, scenario.cluster.world_size) == ("dgx_a100", 32)
    assert scenario.training.parallelism.tp == 2
    assert scenario.training.micro_batch_size == 1
    assert scenario.training.framework == "megatron_2021"


def test_an_option_replaces_a_value_that_a_script_does_not_assign(cli: Command) -> None:
    Path("train.sh").write_text(SCRIPT.replace("--micro-batch-size 2", "--micro-batch-size $MBS"), encoding="utf-8")
    refused = cli("import-config", "train.sh")
    assert refused.code == 2
    (line,) = refused.faults
    assert "--micro-batch-size: got $MBS, which has no plain value in this file" in line
    assert line.endswith("write the value in its place, or give --define NAME=VALUE")
    for number, options in enumerate((("--micro-batch-size", 4), ("--define", "MBS=4"))):
        answer = cli("import-config", "train.sh", *options, "--out", f"out{number}.yaml")
        assert answer.code == 0, answer.err
        scenario = load_scenario(f"out{number}.yaml")
        assert scenario.training is not None
        assert scenario.training.micro_batch_size == 4


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("nothing.sh",), "nothing.sh: cannot be read: No such file or directory"),
        (
            ("both.yaml", "--out", "x.yaml"),
            "both.yaml: no known configuration: its settings are name, cluster.topology",
        ),
        (("train.sh", "--gpus", "6"), "--gpus: 6 GPUs are no multiple of tp 4 = 4; write for example --gpus 4"),
        (
            ("train.sh", "ds.json"),
            "train.sh:26: --global-batch-size: got 64 sequences; micro-batch 2 x accumulation 4 x 4",
        ),
        (("train.sh", "--gpus", "8", "--nodes", "1"), "--nodes: excludes --gpus; give one of both"),
        (("train.sh", "--define", "TP"), "--define: got 'TP'; must be NAME=VALUE, such as TP=8"),
        (("train.sh", "--topology", "dgx_h10"), "topology: got 'dgx_h10'"),
        (("train.sh", "--framework", "megatron"), "--framework (training.framework): got 'megatron'"),
        (("train.sh", "--model", "nothing"), "--model (training.model): got 'nothing'"),
        (("train.sh", "--seq-len", "0"), "--seq-len (training.seq_len): got 0"),
    ],
)
def test_a_mistake_is_one_line(cli: Command, arguments: tuple[str, ...], line: str) -> None:
    answer = cli("import-config", *arguments)
    assert answer.code == 2
    assert answer.out == ""
    (told,) = answer.faults
    assert line in told
    assert not Path("train.yaml").exists()


def test_an_existing_file_is_kept(cli: Command) -> None:
    Path("train.yaml").write_text("mine", encoding="utf-8")
    answer = cli("import-config", "train.sh")
    assert answer.code == 2
    assert answer.faults == ["train.yaml: the file exists already; choose another name with --out, or remove the file"]
    assert Path("train.yaml").read_text(encoding="utf-8") == "mine"


def test_a_scenario_of_two_files_has_facts_of_both(cli: Command) -> None:
    settings = json.loads(SETTINGS)
    del settings["train_batch_size"], settings["gradient_accumulation_steps"]
    Path("ds.json").write_text(json.dumps(settings), encoding="utf-8")
    Path("args.txt").write_text(
        "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --bf16 --micro-batch-size 2\n"
        "--max-position-embeddings 1024 --vocab-size 50257 --deepspeed --deepspeed_config ds.json\n",
        encoding="utf-8",
    )
    answer = cli("import-config", "args.txt", "ds.json", "--gpus", "8")
    assert answer.code == 0, answer.err
    scenario = load_scenario("args.yaml")
    assert scenario.training is not None
    assert scenario.training.model == "gpt2_medium"
    assert scenario.training.sharding.strategy == "zero3"
    # The program whose arguments name the model tells the framework.
    assert scenario.training.framework == "megatron_core"


_TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 1
seq_len = 2048
max_norm = 1.0
[parallelism]
data_parallel_replicate_degree = {replicas}
data_parallel_shard_degree = -1
"""


@pytest.mark.parametrize(
    ("replicas", "deciding"),
    [(1, ["data_parallel_shard_degree"]), (2, ["data_parallel_shard_degree", "data_parallel_replicate_degree"])],
)
def test_the_shard_degree_decides_the_sharding_also_if_it_is_the_rest(
    cli: Command, replicas: int, deciding: list[str]
) -> None:
    """torchtitan's -1 stands for the ranks that are left: with 2 replicas of 8 GPUs, 4 ranks share the parameters."""
    Path("titan.toml").write_text(_TITAN.format(replicas=replicas), encoding="utf-8")
    told = json.loads(cli("import-config", "titan.toml", "--gpus", 8, "--json").out)
    understood = {one["key"]: one for one in told["understood"]}
    strategy = understood["training.sharding.strategy"]
    assert strategy["value"] == "zero3"
    assert [one["key"] for one in strategy["settings"]] == [f"parallelism.{name}" for name in deciding]
    assert understood.get("training.sharding.shard_size", {}).get("value") == (4 if replicas == 2 else None)


def test_a_known_setting_without_effect_has_a_reason(cli: Command) -> None:
    """The step computes the norm in any case; only a real training reads the bound."""
    Path("titan.toml").write_text(_TITAN.format(replicas=1), encoding="utf-8")
    lines = cli("import-config", "titan.toml", "--gpus", 8).out.splitlines()
    (line,) = [line for line in lines if "training.max_norm" in line]
    assert "titan.toml:8" in line
    assert "needs a real training" in line


_LOCAL = """torchrun pretrain_gpt.py --num-layers 2 --hidden-size 512 --num-attention-heads 8 --micro-batch-size 1 \\
    --max-position-embeddings 8192 --vocab-size 512 --fp16 --seq-length {}
"""


@pytest.mark.parametrize(
    ("options", "attention"),
    [
        ("1024 --attention-backend unfused", "standard"),
        # Megatron-Core's own layers: fused softmax kernels exist for 16 bits and up to 4,096 keys.
        ("1024 --transformer-impl local --attention-softmax-in-fp32", "standard"),
        ("8192 --transformer-impl local --attention-softmax-in-fp32", "eager"),
        ("1024 --transformer-impl local --apply-query-key-layer-scaling --no-masked-softmax-fusion", "eager"),
        ("1024 --transformer-impl local --no-masked-softmax-fusion", "standard"),
        # Transformer Engine does not read the option.
        ("1024 --attention-backend unfused --attention-softmax-in-fp32 --no-masked-softmax-fusion", "standard"),
    ],
)
def test_the_softmax_of_megatron_is_fused_where_a_kernel_exists(cli: Command, options: str, attention: str) -> None:
    Path("train.sh").write_text(_LOCAL.format(options), encoding="utf-8")
    told = json.loads(cli("import-config", "train.sh", "--gpus", 8, "--json").out)
    assert {one["value"] for one in told["understood"] if one["key"] == "training.attention"} == {attention}
    framework = "megatron_local" if "local" in options else "megatron_core"
    assert {one["assumed"] for one in told["missing"] if one["key"] == "training.framework"} == {framework}


def test_experts_without_a_gate_keep_their_size(cli: Command) -> None:
    """Each expert has 512 x 2048 up and down; a family with gated experts would have half as many parameters again."""
    text = _LOCAL.format("1024 --num-experts 4 --moe-router-topk 2 --disable-bias-linear")
    Path("train.sh").write_text(text, encoding="utf-8")
    told = json.loads(cli("import-config", "train.sh", "--gpus", 8, "--json").out)
    (model,) = (one["value"] for one in told["understood"] if one["key"] == "training.model")
    found = load_model(model, 1024)
    assert isinstance(found, Transformer)
    experts = [one for part in modules(found) for one in part.parameters if is_expert(one.name) and len(one.shape) == 2]
    assert sum(one.elements for one in experts) == 2 * 4 * 2 * 512 * 2048


@pytest.mark.parametrize(
    ("options", "dispatch"), [("", "all_gather"), (" --moe-token-dispatcher-type alltoall", "all_to_all")]
)
def test_tokens_are_gathered_for_experts_unless_megatron_is_told(cli: Command, options: str, dispatch: str) -> None:
    """allgather is the default of moe_token_dispatcher_type (megatron/core/transformer/transformer_config.py)."""
    text = _LOCAL.format(f"1024 --num-experts 4 --expert-model-parallel-size 4{options}")
    Path("train.sh").write_text(text, encoding="utf-8")
    cli("import-config", "train.sh", "--gpus", 8, "--out", "job.yaml")
    scenario = load_scenario("job.yaml")
    assert scenario.training is not None
    assert scenario.training.parallelism.experts.dispatch == dispatch
