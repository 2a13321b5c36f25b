"""`simulator fit-check`: its verdicts are those of simulated steps, and its changes fit when they are simulated."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from simulator import fit_check, load_scenario, simulate
from simulator.basics.errors import OutOfMemoryError, ScenarioError
from simulator.basics.units import format_memory
from simulator.planner.sizing.answer import FitCheck
from simulator.planner.sizing.changes import TrainingChange, changes
from simulator.planner.sizing.fit_question import FitQuestion, Keys
from simulator.planner.sizing.search import _helpful
from simulator.planner.sizing.trials import Trial, Trials
from simulator.records.memory_margin import MemoryMargin
from tests.commands import Command, commands_in

LORA = {"full": {}, "lora": {"lora": {"rank": 16}}, "qlora": {"lora": {"rank": 16, "base": "nf4"}}}
# Drawn combinations in `make test`.
FEW = 5
MACHINES = {"rtx_4090": "geforce_server", "a100_sxm_40gb": "dgx_a100", "h100_sxm": "dgx_h100", "l40s": "pcie_server"}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def written(model: str, gpu: str, gpus: int, method: str, **training: Any) -> dict[str, Any]:
    """Return the scenario of a question, written here independently of the search."""
    return {
        "name": "written",
        "cluster": {"topology": MACHINES[gpu], "gpu": gpu, "world_size": gpus},
        "training": {
            "model": model, "seq_len": 1024, "framework": "transformers", "sharding": "zero3" if gpus > 1 else "ddp",
            **LORA[method], **training,
        },
    }  # fmt: skip


def runs(data: dict[str, Any]) -> bool:
    """Return True if a limited run of a scenario ends without running out of memory."""
    try:
        simulate(load_scenario(data))
    except OutOfMemoryError:
        return False
    return True


def drawn() -> list[tuple[str, str, int, str, str, int]]:
    """Return 14 combinations: model, card, cards, method, optimizer, sequences of a micro-batch."""
    source = random.Random(1)
    models = ("gpt2_xl", "qwen2_0.5b", "mpt_3b", "mistral_7b", "llama3_8b", "llama2_13b")
    sizes = ((1, 1), (1, 4), (2, 1), (4, 2))
    found = []
    for _ in range(14):
        model, gpu = source.choice(models), source.choice(sorted(MACHINES))
        gpus, sequences = source.choice(sizes)
        method, optimizer = source.choice(sorted(LORA)), source.choice(("adam", "adam_8bit", "lion", "sgd"))
        found.append((model, gpu, gpus, method, optimizer, sequences))
    return found


@pytest.mark.parametrize(
    ("model", "gpu", "gpus", "method", "optimizer", "sequences"),
    [pytest.param(*case, marks=[pytest.mark.long] * (number >= FEW)) for number, case in enumerate(drawn())],
)
@pytest.mark.one_of(5)
def test_the_verdict_is_that_of_a_run(
    model: str, gpu: str, gpus: int, method: str, optimizer: str, sequences: int
) -> None:
    found = fit_check(
        model, gpu=gpu, gpus=gpus, method=method, optimizer=optimizer, micro_batch_size=sequences, seq_len=1024
    )
    data = written(model, gpu, gpus, method, optimizer=optimizer, micro_batch_size=sequences)
    assert found.fits is runs(data)
    report = simulate(load_scenario(data), limit_memory=False).report
    assert (found.margin.reserved, found.margin.capacity) == (report.peak_reserved_bytes, report.capacity_bytes)
    assert found.margin.missing == report.shortfall_bytes
    check_changes(found, report.tokens_per_s_per_gpu)
    if found.fits:
        check_largest(found, data)


def check_changes(found: FitCheck, speed: float) -> None:
    """Every change, written into the scenario, runs within the card's memory, at the speed that is said."""
    assert found.fits or found.changes or found.fewest_gpus != found.question.gpus
    # Single changes first, then changes that keep the method, then the fastest.
    adapters = "training.lora"
    order = [(change.text.count(" and "), adapters in change.keys, -change.speed) for change in found.changes]
    assert order == sorted(order)
    assert len(order) <= 3
    for change in found.changes:
        data = found.question.document()
        for dotted, value in change.keys.items():
            section, key = dotted.split(".")
            data[section][key] = value
        report = simulate(load_scenario(data)).report
        assert report.fits
        # The process with its context and NCCL buffers fits, too.
        assert report.process_bytes <= report.capacity_bytes
        assert report.peak_reserved_bytes == change.margin.reserved
        assert report.process_bytes == change.margin.process
        assert bool(change.warning) is (report.capacity_bytes - report.process_bytes < 512 * 2**20)
        assert change.speed == pytest.approx(report.tokens_per_s_per_gpu / speed)


def check_largest(found: FitCheck, data: dict[str, Any]) -> None:
    """The largest micro-batch fits and the next does not; so do the longest sequence and a tenth more."""
    micro_batch, tokens = found.largest_micro_batch, found.longest_sequence
    assert micro_batch is not None
    assert tokens is not None
    for training, fits in (
        ({"micro_batch_size": micro_batch}, True),
        ({"micro_batch_size": micro_batch + 1}, False),
        ({"seq_len": tokens}, True),
    ):
        assert runs(data | {"training": data["training"] | training}) is fits
    # GPT-2 has no more positions than it has learned.
    if data["training"]["model"] != "gpt2_xl":
        longer = int(1.13 * tokens)
        assert not runs(data | {"training": data["training"] | {"seq_len": longer}})


@pytest.mark.parametrize(
    ("model", "method"),
    [
        ("llama3_8b", "lora"),
        *(pytest.param(*case, marks=pytest.mark.long) for case in (("llama3_8b", "full"), ("llama2_13b", "qlora"))),
    ],
)
@pytest.mark.long
def test_more_cards_never_make_a_sharded_training_stop_fitting(model: str, method: str) -> None:
    """Each card holds 1 / N of the states, and as many activations on any number of cards."""
    found = [fit_check(model, gpu="h100_sxm", gpus=gpus, method=method, seq_len=1024) for gpus in (2, 4, 8, 16)]
    fits = [one.fits for one in found]
    assert fits == sorted(fits)
    reserved = [one.margin.reserved for one in found]
    assert reserved == sorted(reserved, reverse=True)


def test_the_fewest_cards_are_the_first_that_fit() -> None:
    """16 bytes and more a parameter of Llama 3 8B: 128 GB and activations need four H100 and fit on no two."""
    found = fit_check("llama3_8b", gpu="h100_sxm", gpus=1, seq_len=1024)
    assert not found.fits
    fitting = [gpus for gpus in (1, 2, 4, 8) if runs(written("llama3_8b", "h100_sxm", gpus, "full"))]
    assert found.fewest_gpus == fitting[0]


@pytest.mark.long
def test_changes_are_pairs_where_no_single_change_is_enough() -> None:
    """Full training of 8 billion parameters takes 16 bytes a parameter: five times an RTX 4090."""
    found = fit_check("llama3_8b", gpu="rtx_4090")
    assert 4 * found.margin.capacity < 16 * 8_030_261_248
    assert len(found.changes) == 3
    assert all(" and " in change.text for change in found.changes)
    check_changes(found, found.tokens_per_s_per_gpu)


def test_one_pair_that_keeps_the_method_comes_before_faster_ones() -> None:
    """A part alone never fits, every pair does. LoRA is fast: its pairs lead, except one that keeps the method."""
    speeds = {"a": 0.9, "b": 0.8, "c": 0.7, "method": 0.99}

    class Pairs(Trials):
        def simulated(self, keys: Keys) -> Trial:
            return Trial(MemoryMargin(1 if len(keys) == 2 else 3, 2), math.prod(speeds[key] for key in keys))

        def exists(self, keys: Keys) -> bool:
            return True

        may_fit = exists

    parts = [TrainingChange(kind, kind, {kind: True}) for kind in speeds]
    found = _helpful(Pairs(FitQuestion(model="gpt2", gpu="rtx_4090")), parts, 1.0)
    assert [change.text for change in found] == ["a and b", "a and method", "b and method"]
    assert [change.speed for change in found] == pytest.approx([0.9 * 0.8, 0.9 * 0.99, 0.8 * 0.99])


def test_paged_optimizers_and_matrices_in_eight_bits_are_tried_where_they_can_help() -> None:
    """Llama 3.2 3B on 24 GB: 6.4 GB of parameters in bfloat16 and of gradients each, 12.8 GB of a master copy."""
    texts = [change.text for change in changes(FitQuestion(model="llama3_2_3b", gpu="rtx_4090"))]
    assert {"paged_adam_8bit", "paged_adam", "LoRA of rank 16 on int8"} <= set(texts)
    adapters = [change.text for change in changes(FitQuestion(model="llama3_2_3b", gpu="rtx_4090", method="qlora"))]
    assert not any("int8" in text or text.startswith("LoRA") for text in adapters)
    trials = Trials(FitQuestion(model="llama3_8b", gpu="rtx_4090", method="lora", micro_batch=2))
    whole, narrow = (
        trials.simulated({"training.activation_checkpointing": "full", "training.lora": {"rank": 16, "base": base}})
        for base in ("params", "int8")
    )
    # Of 8.03 billion parameters, 6.98 billion are matrices of layers: a byte less each.
    assert whole.margin.reserved - narrow.margin.reserved == pytest.approx(6.98e9, rel=0.1)


@pytest.mark.parametrize(
    ("model", "gpu", "gpus"),
    [("llama3_8b", "rtx_4090", 1), pytest.param("llama3_70b", "h100_sxm", 8, marks=pytest.mark.long)],
)
@pytest.mark.long
def test_few_steps_are_simulated(monkeypatch: pytest.MonkeyPatch, model: str, gpu: str, gpus: int) -> None:
    """At most the training, its changes, and as many pairs: a bound excludes the rest of more than 60 combinations."""
    simulated: list[Keys] = []
    whole = Trials.simulated

    def noted(trials: Trials, keys: Keys) -> Trial:
        simulated.append(keys)
        return whole(trials, keys)

    monkeypatch.setattr(Trials, "simulated", noted)
    found = fit_check(model, gpu=gpu, gpus=gpus)
    possible = changes(found.question)
    assert len(possible) * (len(possible) - 1) / 2 > 50
    assert len(simulated) <= 1 + 2 * len(possible)
    assert len({json.dumps(dict(keys), sort_keys=True) for keys in simulated}) == len(simulated)


def test_the_first_line_is_the_verdict_and_the_exit_code_follows_it(cli: Command) -> None:
    options = ("fit-check", "llama3_8b", "--gpu", "rtx_4090", "--method", "qlora")
    answer = cli(*options, "--seq-len", "1k")
    data = written("llama3_8b", "rtx_4090", 1, "qlora")
    report = simulate(load_scenario(data)).report
    reserved, process = report.peak_reserved_bytes, report.process_bytes
    assert answer.code == 0
    assert answer.out.splitlines()[0] == (
        "llama3_8b with QLoRA of rank 16 without checkpointing in transformers fits on 1 rtx_4090 of 24 GiB: "
        f"reserved memory {format_memory(reserved)}, process {format_memory(process)}, "
        f"{format_memory(report.capacity_bytes - process)} free."
    )
    longer = cli(*options, "--seq-len", "2k")
    assert longer.code == 1
    assert longer.out.startswith(
        "llama3_8b with QLoRA of rank 16 in transformers does not fit on 1 rtx_4090 of 24 GiB without checkpointing, "
        "but with selective_op checkpointing: memory of the process"
    )
    bare = cli(*options, "--seq-len", "1k", "--framework", "bare")
    assert bare.out.startswith("llama3_8b with QLoRA of rank 16 without checkpointing fits on 1 rtx_4090")
    assert longer.out.splitlines()[1].startswith("Without: reserved memory ")
    assert longer.out.splitlines()[1].endswith(" missing.")
    assert "selective_op checkpointing" in longer.out


def test_a_change_that_leaves_little_memory_has_a_warning(cli: Command) -> None:
    """One sequence of 4,096 tokens needs 23.4 GiB, and the context 403 MiB: 211 MiB stay for loaded kernels."""
    asked = ("fit-check", "qwen2_0.5b", "--gpu", "rtx_4090", "--seq-len", "4k", "--micro-batch-size", 2)
    answer = cli(*asked)
    assert " ".join(answer.out.split()).endswith(
        "micro-batch 1 with 2 micro-batches: only 211 MiB of 24 GiB stay free beside the CUDA context and NCCL "
        "buffers: kernels that libraries load (not modelled) need up to 512 MiB."
    )
    warned = {one["change"]: one["warning"] for one in cli(*asked, "--json").data["changes"]}
    assert [change for change, warning in warned.items() if warning] == ["micro-batch 1 with 2 micro-batches"]


def test_the_json_contains_a_scenario_that_runs_to_the_same_memory(cli: Command) -> None:
    told = cli("fit-check", "mistral_7b", "--gpu", "l40s", "--method", "lora", "--rank", 8, "--json").data
    assert told["scenario"]["training"]["lora"] == {"rank": 8, "base": "params"}
    report = simulate(load_scenario(json.loads(json.dumps(told["scenario"])))).report
    assert told["reserved_bytes"] == report.peak_reserved_bytes
    assert told["free_bytes"] == report.capacity_bytes - report.process_bytes
    assert (told["fits"], told["missing_bytes"], told["changes"]) == (True, 0, [])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("llama3_8x --gpu rtx_4090", "MODEL: got 'llama3_8x'; did you mean 'llama3_8b'?"),
        ("llama3_8b --gpu rtx_4091", "--gpu: got 'rtx_4091'; did you mean 'rtx_4090'?"),
        ("llama3_8b --gpu rtx_4090 --method qlara", "--method: got 'qlara'; one of full, lora, qlora; did you mean"),
        ("llama3_8b --gpu rtx_4090 --rank 8", "--rank: got 8; full training has no adapters; write method lora or "),
        ("llama3_8b --gpu rtx_4090 --method lora --rank 0", "--rank: got 0; must be at least 1; "),
        ("llama3_8b --gpu rtx_4090 --optimizer adan", "--optimizer: got 'adan'; one of "),
        ("llama3_8b --gpu rtx_4090 --framework hf", "--framework: got 'hf'; `simulator list frameworks` lists all"),
        ("llama3_8b --gpu rtx_4090 --gpus 0", "--gpus: got 0; must be at least 1"),
        ("llama3_8b --gpu rtx_4090 --gpus 16", "--gpus: got 16; topology geforce_server has 8 GPUs; "),
        ("llama3_8b --gpu rtx_4090 --micro-batch-size 0", "--micro-batch-size: got 0; must be at least 1"),
        ("deepseek_v3 --gpu h200 --method qlora", "--method: adapters are not supported yet for the latent attention"),
    ],
)
def test_a_wrong_question_is_one_line(cli: Command, options: str, said: str) -> None:
    answer = cli("fit-check", *options.split())
    assert (answer.code, answer.out) == (2, "")
    assert len(answer.faults) == 1
    assert answer.err.startswith(said)


def test_python_raises_what_the_command_prints() -> None:
    with pytest.raises(ScenarioError, match=r"method: got 'all'; one of full, lora, qlora"):
        fit_check("llama3_8b", gpu="rtx_4090", method="all")
    found = fit_check("gpt2", gpu="v100_sxm_32gb", micro_batch_size=8)
    # Volta has no bfloat16, and GPT-2 no more than 1,024 positions.
    assert found.question.document()["training"]["precision"] == "fp16"
    assert (found.fits, found.longest_sequence) == (True, 1024)


def test_the_fewest_cards_and_the_verdict_mean_the_process() -> None:
    """QLoRA of Llama 3 8B, 2,048 tokens: eight cards hold what PyTorch reserves, and not context and buffers too."""
    found = fit_check("llama3_8b", gpu="rtx_4090", gpus=8, method="qlora", seq_len=2048)
    assert found.margin.reserved <= found.margin.capacity < found.margin.process
    assert (found.fits, found.fewest_gpus) == (False, None)
    assert all(one.margin.process <= one.margin.capacity for one in found.changes)
    assert found.changes
