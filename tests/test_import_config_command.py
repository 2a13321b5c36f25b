"""`simulator import-config` on the command line: the file that it writes, its lists, its refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.importing.syntax import python
from simulator.model.load import load_model
from simulator.model.parameters import is_expert, modules, total
from simulator.model.shape import Transformer
from simulator.scenario.load import load_scenario
from tests.commands import Answer, Command, commands_in
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


def test_a_value_that_a_script_does_not_assign_is_asked_for(cli: Command) -> None:
    Path("train.sh").write_text(SCRIPT.replace("--micro-batch-size 2", "--micro-batch-size $MBS"), encoding="utf-8")
    answer = cli("import-config", "train.sh", "--out", "rest.yaml")
    # The rest is read, and the assumed value is told with what replaces it.
    assert answer.code == 0
    assert (
        "--micro-batch-size: got $MBS, which has no value in this file; give --define MBS=VALUE; 1 is assumed"
        in " ".join(answer.err.split())
    )
    scenario = load_scenario("rest.yaml")
    assert scenario.training is not None
    assert (scenario.training.micro_batch_size, scenario.training.parallelism.tp) == (1, 4)
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


def test_statements_that_set_nothing_are_passed_over_in_python() -> None:
    """A docstring, `pass` and imports; a branch is not evaluated, and is told."""
    idle = 'def f():\n    """Words."""\n    pass\n    import os\n    from os import path\n'
    (found,) = python.read(f"{idle}    return Job(tp=2)\n", "job.py", None)
    assert [(setting.key, setting.value) for setting in found] == [("function", "f"), ("tp", 2)]
    (found,) = python.read(f"{idle}    if path:\n        pass\n    return Job(tp=2)\n", "job.py", None)
    assert [setting.key for setting in found] == ["function", "if in line 6", "tp"]


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


MODEL = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336 --swiglu --num-query-groups 8 "
    "--group-query-attention --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights "
    "--position-embedding-type rope --vocab-size 128256"
)


def script(cli: Command, text: str, *options: str) -> tuple[Answer, dict[str, Any]]:
    """The answer to a script's import, and the scenario's keys with their values."""
    Path("own.sh").write_text(text, encoding="utf-8")
    answer = cli("import-config", "own.sh", "--out", "own.yaml", "--json", *options)
    Path("own.yaml").unlink(missing_ok=True)
    data = answer.data if answer.code == 0 else {"understood": [], "missing": []}
    found = {one["key"]: one["value"] for one in data["understood"]}
    return answer, found | {one["key"]: one["assumed"] for one in data["missing"]}


def test_a_model_size_without_a_value_is_no_other_model(cli: Command) -> None:
    answer, _ = script(cli, f"torchrun pretrain_gpt.py {MODEL.replace('4096', '$HIDDEN')} --bf16 --seq-length 4096")
    assert answer.code == 2
    assert "hidden size are missing" in answer.err or "hidden size is missing" in answer.err
    assert "--define HIDDEN=VALUE" in " ".join(answer.err.split())
    only = "torchrun pretrain_gpt.py --num-layers $LAYERS --micro-batch-size 1 --seq-length 2048"
    answer, _ = script(cli, only)
    assert answer.code == 2
    assert "--define LAYERS=VALUE" in " ".join(answer.err.split())


@pytest.mark.parametrize(
    ("launch", "gpus"),
    [
        # One task for each node starts the launcher.
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nsrun torchrun --nproc_per_node 4 pretrain_gpt.py", 8),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\nsrun pretrain_gpt.py", 8),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gres=gpu:a100:4\nsrun pretrain_gpt.py", 8),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\nsrun pretrain_gpt.py", 16),
        # One task for each GPU.
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\nsrun pretrain_gpt.py", 8),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\nsrun pretrain_gpt.py", 8),
        ("torchrun --nnodes 2 --nproc_per_node gpu pretrain_gpt.py", 16),
    ],
)
def test_the_launcher_tells_the_gpus_of_a_node(cli: Command, launch: str, gpus: int) -> None:
    answer, found = script(cli, f"{launch} {MODEL} --bf16 --seq-length 4096 --micro-batch-size 1")
    assert answer.code == 0, answer.err
    assert found["cluster.world_size"] == gpus


def test_a_branch_is_taken_or_told(cli: Command) -> None:
    both = "if [ $X ]; then\n  ARGS=(--seq-length 8192)\nelse\n  ARGS=(--seq-length 4096)\nfi\n"
    run = f"torchrun pretrain_gpt.py {MODEL} --bf16 --micro-batch-size 1 ${{ARGS[@]}}"
    answer, found = script(cli, both + run)
    assert found["training.seq_len"] == 8192
    (other,) = [one for one in answer.data["ignored"] if one["key"] == "--seq-length"]
    assert (other["line"], other["reason"]) == (4, "stands under a condition of the script, which is not evaluated")
    answer, found = script(cli, f"[ $X ] && ARGS=(--seq-length 8192)\n{run}")
    assert found["training.seq_len"] == 2048
    (why,) = [one["why"] for one in answer.data["missing"] if one["key"] == "training.seq_len"]
    assert "own.sh:1: --seq-length: 8192 stands under a condition" in why


@pytest.mark.parametrize("form", ['ARGS="{}"', "ARGS=({})"])
def test_a_command_under_else_has_no_setting_of_the_other_branch(cli: Command, form: str) -> None:
    experts = form.format("--tensor-model-parallel-size 4 --sequence-parallel --num-experts 8 --moe-router-topk 2")
    dense = form.format("--tensor-model-parallel-size 2")
    run = f"torchrun pretrain_gpt.py {MODEL} --bf16 --seq-length 4096 --micro-batch-size 1 ${{ARGS[@]}}"
    for text in (
        f"if [ $X ]; then\n  {experts}\nelse\n  {dense}\n  {run}\nfi\n",
        f"case $X in\n  moe)\n    {experts}\n    ;;\n  *)\n    {dense}\n    {run}\n    ;;\nesac\n",
    ):
        answer, found = script(cli, text)
        assert answer.code == 0, answer.err
        assert found["training.parallelism.tp"] == 2
        assert "experts" not in json.dumps(answer.data["understood"])
        assert not answer.data["ignored"]


def test_other_commands_with_other_settings_are_named(cli: Command) -> None:
    """One of two commands is read; the other is named if it is a training with other settings."""
    run = f"torchrun pretrain_gpt.py {MODEL} --bf16 --seq-length 4096 --micro-batch-size"
    for second, told in (
        (f"{run} 2", ["own.sh:4: 1 command with other settings of Megatron-LM; read: the command in own.sh:2"]),
        (f"{run} 1", []),
        ("python tools/preprocess_data.py --seq-length 2048 --workers 8", []),
    ):
        answer, found = script(cli, f"if [ $X ]; then\n{run} 1\nelse\n{second}\nfi\n")
        assert answer.code == 0, answer.err
        assert found["training.micro_batch_size"] == 1
        assert [note for note in answer.data["warnings"] if "other settings" in note] == told


@pytest.mark.parametrize(
    ("options", "dtype"),
    [
        # Megatron-LM's arguments.py: sums in float32 are forced with bf16 while main gradients are float32.
        ("--bf16", "float32"),
        ("--bf16 --main-grads-dtype fp32 --use-precision-aware-optimizer", "float32"),
        ("--bf16 --main-grads-dtype bf16 --use-precision-aware-optimizer", "bfloat16"),
        ("--bf16 --grad-reduce-in-bf16", "bfloat16"),
    ],
)
def test_main_gradients_have_the_dtype_of_the_option(cli: Command, options: str, dtype: str) -> None:
    answer, found = script(cli, f"torchrun pretrain_gpt.py {MODEL} {options} --seq-length 4096 --micro-batch-size 1")
    assert answer.code == 0, answer.err
    assert found["training.precision.grads"] == found["training.precision.reduce"] == dtype
    assert "--main-grads-dtype" not in [one["key"] for one in answer.data["ignored"]]


@pytest.mark.parametrize(
    ("layout", "pp", "virtual", "stages"),
    [
        # The embedding and the loss have stages of their own; a shell may have quotes or backslashes.
        ("'E|(t*4|)*8L'", 10, None, [0, *[4] * 8, 0]),
        (r"Et*2\|\(t*5\|\)*6L", 4, 2, [2, *[5] * 6, 0]),
    ],
)
def test_a_layout_of_megatron_says_stages_and_their_layers(
    cli: Command, layout: str, pp: int, virtual: int | None, stages: list[int]
) -> None:
    options = f"--pipeline-model-parallel-layout {layout} --pipeline-model-parallel-size {pp} --bf16"
    text = f"torchrun pretrain_gpt.py {MODEL} {options} --seq-length 4096 --micro-batch-size 1 --global-batch-size 80"
    answer, found = script(cli, text, "--gpus", str(pp))
    assert answer.code == 0, answer.err
    assert found["training.parallelism.stages"] == stages
    assert found.get("training.parallelism.virtual_stages") == virtual
    assert not answer.data["ignored"]


@pytest.mark.parametrize(
    ("layout", "stages", "ignored"),
    [
        ("'Et*8|(t*8|)*2t*8mL'", [8, 8, 8, 9], []),
        (
            f"[[embedding], {json.dumps(['decoder'] * 32)}, [mtp], [loss]]", [0, 32, 1, 0],
            ["model.pipeline_model_parallel_layout"],
        ),
    ],
)  # fmt: skip
def test_a_layout_of_megatron_bridge_is_text_or_a_list_of_lists(
    cli: Command, layout: str, stages: list[int], ignored: list[str]
) -> None:
    """Logits of a further token are computed with the loss in Megatron-Core, and beside their layer here."""
    Path("bridge.yaml").write_text(
        "model: {hf_model_id: meta-llama/Meta-Llama-3-8B, seq_length: 4096, mtp_num_layers: 1, "
        f"pipeline_model_parallel_size: 4, pipeline_model_parallel_layout: {layout}}}\n"
        "train: {global_batch_size: 64, micro_batch_size: 1}\n",
        encoding="utf-8",
    )
    answer = cli("import-config", "bridge.yaml", "--gpus", 8, "--json", "--out", "out.yaml")
    assert answer.code == 0, answer.err
    found = {one["key"]: one["value"] for one in answer.data["understood"]}
    assert found["training.parallelism.stages"] == stages
    assert [one["key"] for one in answer.data["ignored"]] == ignored


def test_a_layout_whose_stages_do_not_fit_the_ranks_is_refused(cli: Command) -> None:
    options = "--pipeline-model-parallel-layout 'Et*16|t*16|L' --pipeline-model-parallel-size 2"
    answer, _ = script(cli, f"torchrun pretrain_gpt.py {MODEL} {options} --seq-length 4096 --micro-batch-size 1")
    assert answer.code == 2
    assert "--pipeline-model-parallel-layout: got 3 stages; must be a multiple of 2 ranks" in answer.err


@pytest.mark.parametrize(
    ("dtypes", "told"),
    [
        ("exp_avg_dtype: torch.bfloat16, exp_avg_sq_dtype: torch.bfloat16", "bfloat16"),
        # The default of the other moment is float32.
        ("exp_avg_dtype: torch.bfloat16", None),
    ],
)
def test_moments_of_megatron_bridge_have_one_dtype(cli: Command, dtypes: str, told: str | None) -> None:
    Path("bridge.yaml").write_text(
        "model: {hf_model_id: meta-llama/Meta-Llama-3-8B, seq_length: 4096}\n"
        f"train: {{global_batch_size: 64, micro_batch_size: 1}}\noptimizer: {{{dtypes}}}\n",
        encoding="utf-8",
    )
    answer = cli("import-config", "bridge.yaml", "--gpus", 8, "--json", "--out", "out.yaml")
    found = {one["key"]: one["value"] for one in answer.data["understood"]}
    assert found.get("training.optimizer.state_dtype") == told
    assert [one["key"] for one in answer.data["ignored"]] == ([] if told else ["optimizer.exp_avg_dtype"])


@pytest.mark.parametrize(
    ("components", "compiled"), [("", True), ('components = ["loss"]', False), ('components = ["model", "loss"]', True)]
)
def test_torchtitan_compiles_the_named_components(cli: Command, components: str, *, compiled: bool) -> None:
    text = (
        f'[model]\nname = "llama3"\nflavor = "8B"\n[training]\nseq_len = 4096\n[compile]\nenable = true\n{components}'
    )
    Path("titan.toml").write_text(text, encoding="utf-8")
    answer = cli("import-config", "titan.toml", "--json")
    found = {one["key"]: one["value"] for one in answer.data["understood"]}
    assert found.get("training.compile", False) is compiled


def axolotl(cli: Command, *lines: str) -> dict[str, Any]:
    """The import of an axolotl file with these lines."""
    text = "\n".join(("base_model: meta-llama/Llama-3.1-8B", "sequence_len: 4096", "bf16: true", *lines))
    Path("ax.yaml").write_text(text + "\n", encoding="utf-8")
    answer = cli("import-config", "ax.yaml", "--out", "out.yaml", "--json")
    Path("out.yaml").unlink()
    return answer.data


@pytest.mark.parametrize(
    ("keys", "params", "matmul"),
    [
        ({}, "float32", "bfloat16"),
        ({"fsdp": "full_shard auto_wrap"}, "bfloat16", None),
        ({"deepspeed": "other.json"}, "bfloat16", None),
    ],
)
def test_the_trainer_alone_leaves_parameters_in_float32_under_autocast(
    cli: Command, keys: dict[str, str], params: str, matmul: str | None
) -> None:
    arguments = {"output_dir": "out", "per_device_train_batch_size": 2, "bf16": True, "learning_rate": 1e-4} | keys
    Path("args.json").write_text(json.dumps(arguments), encoding="utf-8")
    answer = cli("import-config", "args.json", "--model", "llama3_8b", "--seq-len", 2048, "--json")
    found = {one["key"]: one["value"] for one in answer.data["understood"]}
    assert found["training.precision.params"] == params
    assert found.get("training.precision.matmul") == matmul


def test_samples_that_are_padded_or_packed_have_the_sequence_length(cli: Command) -> None:
    def told(*lines: str) -> list[str]:
        return [one["key"] for one in axolotl(cli, *lines)["ignored"] if "not modelled" in one["reason"]]

    assert told("sample_packing: true", "pad_to_sequence_len: true") == []
    assert told("sample_packing: false", "pad_to_sequence_len: true") == []
    assert told("sample_packing: false") == ["sample_packing"]


def test_fsdp_offload_says_that_parameters_stay(cli: Command) -> None:
    found = axolotl(cli, "fsdp: [full_shard]", "fsdp_config: {fsdp_offload_params: true}")
    (why,) = [one["why"] for one in found["ignored"] if one["key"] == "fsdp_config.fsdp_offload_params"]
    assert "parameters" in why
    assert "memory" in why


def test_the_constants_behind_a_deepspeed_file_are_named(cli: Command) -> None:
    answer = cli("import-config", "ds.json", "--model", "llama3_8b", "--out", "ds.yaml", "--json")
    (why,) = [one["why"] for one in answer.data["missing"] if one["key"] == "training.framework"]
    assert "FSDP" in why
    assert "deepspeed_2021" in why
    Path("group.json").write_text(
        '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, '
        '"zero_optimization": {"stage": 3, "sub_group_size": 1e8}}'
    )
    answer = cli("import-config", "group.json", "--model", "llama3_8b", "--json")
    (group,) = [one for one in answer.data["ignored"] if one["key"].endswith("sub_group_size")]
    assert "not modelled" in group["reason"]


def test_latent_attention_without_a_short_vector_of_queries(cli: Command) -> None:
    # Megatron-LM's default of --q-lora-rank is none: queries from the input, as in DeepSeek-V2-Lite.
    latent = (
        "--num-layers 27 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 10944 --swiglu --num-experts 64 "
        "--moe-router-topk 6 --moe-ffn-hidden-size 1408 --moe-shared-expert-intermediate-size 2816 "
        "--moe-layer-freq '([0]*1+[1]*26)' --multi-latent-attention --kv-lora-rank 512 --qk-head-dim 128 "
        "--qk-pos-emb-head-dim 64 --v-head-dim 128 --normalization RMSNorm --disable-bias-linear --vocab-size 102400 "
        "--untie-embeddings-and-output-weights --position-embedding-type rope"
    )
    answer, found = script(cli, f"torchrun pretrain_gpt.py {latent} --bf16 --seq-length 4096 --micro-batch-size 1")
    assert answer.code == 0, answer.err
    model = load_model(found["training.model"])
    assert total(model) == 15_706_484_224
