"""`simulator memory`: closed forms where a model is whole, and what each stage holds where it is cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator import load_scenario, simulate
from simulator.cli.commands.memory import _notes
from simulator.records.memory_margin import MemoryMargin
from tests.commands import Command, commands_in


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def test_a_whole_model_is_told_in_closed_forms(cli: Command) -> None:
    """Stage 3 of ZeRO over 8 ranks: 16 bytes a parameter, divided by 8 (Rajbhandari et al., 2020)."""
    answer = cli("memory", "llama3_8b", "--dp", 8)
    assert answer.code == 0
    assert "  paper, stage 3                         14.96 GiB" in answer.out.splitlines()
    assert cli("memory", "llama3_8b", "--dp", 8, "--json").data["states"]["paper, stage 3"] == 2 * 8_030_261_248


def test_what_fits_comes_first_and_every_word_of_the_table_is_explained(cli: Command) -> None:
    fits = cli("memory", "llama3_8b", "--dp", 64).out
    assert fits.startswith(
        "llama3_8b with a micro-batch of 1 x 2,048 tokens fits on 64 h100_sxm of 79.6 GiB with "
        "zero1 and no checkpointing, in torchtitan: reserved memory "
    )
    assert fits.splitlines()[0].endswith(" GiB free.")
    assert (
        "fits: reserved memory, CUDA context and NCCL buffers are within the GPU's memory; over: they are not" in fits
    )
    assert "attention equals none: --attention flash stores no scores" in fits
    standard = cli("memory", "llama3_8b", "--dp", 64, "--attention", "standard").out
    assert "attention is as none" not in standard
    short = cli("memory", "llama3_70b", "--dp", 8, "--gpu", "a100_sxm_80gb").out
    # 16 bytes of each of 70.55 billion parameters over 8 ranks are 131 GiB.
    assert short.startswith(
        "llama3_70b with a micro-batch of 1 x 2,048 tokens does not fit on 8 a100_sxm_80gb of 80 GiB; "
        "the smallest need is that of zero3 "
    )
    assert "and full checkpointing, in torchtitan: reserved memory 1" in short.splitlines()[0]
    # No article: "a" is wrong before some names, and "an" before others.
    assert "reserved memory of a simulated step in torchtitan on a100_sxm_80gb of 80.0 GiB" in short.splitlines()


def test_the_verdict_is_that_of_the_step_which_the_user_would_run(cli: Command) -> None:
    """The step's update has copies and buffers beside the paper's 4 + 12 / 8 bytes a parameter of ZeRO-1."""
    options = ("llama3_8b", "--dp", 8, "--gpu", "h100_sxm")
    told = cli("memory", *options, "--json").data
    formula = told["states"]["paper, stage 1"] + told["activations"]["full"]
    assert formula < told["simulated_reserved_bytes"]["zero1"]["full"]
    assert (told["sharding"], told["checkpointing"], told["fits"]) == ("zero1", "none", True)
    # The steps run on the machine that has the GPU: on slower links buffers live longer.
    for sharding, policy in (("zero1", "none"), ("ddp", "full")):
        training = {"model": "llama3_8b", "seq_len": 2048, "sharding": sharding, "activation_checkpointing": policy}
        cluster = {"topology": "dgx_h100", "world_size": 8}
        data = {"name": "same", "cluster": cluster, "training": training}
        report = simulate(load_scenario(data), limit_memory=False).report
        reserved = told["simulated_reserved_bytes"][sharding][policy]
        assert report.peak_reserved_bytes == pytest.approx(reserved, rel=0.03)
        assert report.fits is (sharding == "zero1")
    row = "zero1 and no checkpointing, in torchtitan: reserved memory "
    assert row in cli("memory", *options).out.splitlines()[0]


def test_memory_that_fits_tightly_is_warned_of(cli: Command) -> None:
    """A context of 437 MiB and a communicator over NVLink of 832 MiB leave 396 MiB that are not reserved; at 2,176
    tokens they take more than the card has.
    """
    told = " stay free beside the CUDA context and NCCL buffers: kernels that libraries load (not modelled) need up to "
    gpu = ("--gpu", "a100_sxm_40gb", "--dp", 8, "--micro-batch-size", 3, "--seq-len")
    assert told in " ".join(cli("memory", "llama3_8b", *gpu, 2048).out.split())
    longer = cli("memory", "llama3_8b", *gpu, 2176, "--json").data
    # PyTorch's memory alone fits with ZeRO-2.
    assert longer["simulated_reserved_bytes"]["zero2"]["full"] <= longer["capacity_bytes"]
    assert (longer["sharding"], longer["checkpointing"]) == ("zero3", "full")
    assert longer["process_bytes"] <= longer["capacity_bytes"]
    assert told not in " ".join(cli("memory", "llama3_8b", *gpu, 1792).out.split())
    cut = ("--gpu", "a100_sxm_40gb", "--dp", 4, "--tp", 2, "--sharding", "zero1", "--seq-len")
    # Four data-parallel ranks and two tensor-parallel ranks have a communicator each: 832 and 544 MiB.
    both = "the CUDA context (437 MiB) and NCCL buffers (1.34 GiB)"
    assert "does not fit in 39.5 GiB" in " ".join(cli("memory", "llama3_8b", *cut, 6144).out.split())
    shorter = cli("memory", "llama3_8b", *cut, 5632).out
    assert "does not fit" not in shorter
    assert f"with {both}." in " ".join(shorter.split())


@pytest.mark.parametrize(
    ("allocated", "reserved", "noted"),
    [
        (9.0, 12.1, True),
        (9.0, 12.0, False),
        # The table prints both as 12.0.
        (9.0, 12.04, False),
        # No tensors are saved: more reserved memory is no surprise.
        (10.0, 13.0, False),
        (11.0, 13.0, False),
    ],
)
def test_checkpointing_that_reserves_more_for_fewer_tensors_is_explained(
    allocated: float, reserved: float, noted: bool
) -> None:
    """Without checkpointing, tensors need 10 GiB and the allocator reserves 12 GiB."""

    def margin(reserved: float, allocated: float) -> MemoryMargin:
        return MemoryMargin(int(reserved * 2**30), 80 * 2**30, int(allocated * 2**30))

    usual = margin(12.0, 10.0)
    peaks = {
        name: dict.fromkeys(("none", "selective_op", "full"), usual) for name in ("ddp", "zero1", "zero2", "zero3")
    }
    peaks["zero1"]["full"] = margin(reserved, allocated)
    told = [note for note in _notes(peaks) if "reserves more than none" in note]
    assert len(told) == noted
    if told:
        assert told[0].startswith("full reserves more than none with zero1, although its tensors need less (9 GiB): ")


def test_more_reserved_memory_for_as_many_tensors_has_no_note(cli: Command) -> None:
    """On 64 tokens, the states are the peak with any checkpointing, and blocks of another layout are reserved."""
    size = ("gpt2", "--dp", 4, "--seq-len", 64)
    reserved = cli("memory", *size, "--json").data["simulated_reserved_bytes"]["ddp"]
    assert reserved["none"] < min(reserved["selective_op"], reserved["full"])
    assert "reserves more" not in cli("memory", *size).out


def test_the_process_is_what_nvidia_smi_prints(cli: Command) -> None:
    """Reserved memory, a context of 534 MiB on an H100 (torchcomms, pull request 777), and NCCL's buffers."""
    told = cli("memory", "llama3_8b", "--dp", 2, "--json").data
    beside = told["context_bytes"] + told["nccl_bytes"]
    # NCCL, issue 964: 544 MiB for an all-reduce of two GPUs over NVLink.
    assert (told["context_bytes"], told["nccl_bytes"]) == (534 * 2**20, 544 * 2**20)
    assert told["process_bytes"] == told["reserved_bytes"] + beside
    assert 0 < told["allocated_bytes"] <= told["reserved_bytes"]
    alone = cli("memory", "gpt2", "--dp", 1, "--json").data
    assert (alone["nccl_bytes"], alone["process_bytes"] - alone["reserved_bytes"]) == (0, 534 * 2**20)


def test_the_stage_that_holds_most_is_named_first(cli: Command) -> None:
    answer = cli(
        "memory", "gpt2_xl", "--dp", 1, "--pp", 4, "--micro-batches", 8, "--sharding", "ddp", "--seq-len", 1024
    )
    assert (answer.code, answer.err) == (0, "")
    finding, asked, _, _, heads, *rows = answer.out.splitlines()
    assert finding.startswith("stage 0 of 4 needs the most memory: ")
    assert " of the memory of h100_sxm: fits in 79.6 GiB (reserved memory " in finding
    assert (
        "on 4 GPUs (dp 1, tp 1, pp 4, cp 1, ep 1), ddp, no checkpointing, 8 micro-batches of 1 x 1,024 tokens, 1f1b"
        in asked
    )
    assert heads.split()[:5] == ["stage", "parameters", "gradients", "optimizer", "activations"]
    assert [row.split()[0] for row in rows[:4]] == ["0", "1", "2", "3"]
    assert [row.split()[-3] for row in rows[:4]] == ["4", "3", "2", "1"]


def test_it_is_what_the_same_scenario_plays(cli: Command) -> None:
    sizes = {"tp": 2, "pp": 2, "schedule": "interleaved", "virtual_stages": 2, "stages": [5, 6, 7, 6]}
    training = {
        "model": "gpt2_medium",
        "seq_len": 1024,
        "micro_batch_size": 4,
        "gradient_accumulation_steps": 6,
        "sharding": "zero1",
        "activation_checkpointing": "selective_op",
        "precision": "fp32",
        "parallelism": sizes,
    }
    cluster = {"topology": "dgx_h100", "world_size": 8}
    played = simulate(load_scenario({"name": "same", "cluster": cluster, "training": training}), limit_memory=False)
    answer = cli(
        "memory", "gpt2_medium", "--dp", 2, "--tp", 2, "--pp", 2, "--schedule", "interleaved", "--virtual-stages", 2,
        "--stages", "[5, 6, 7, 6]", "--seq-len", 1024, "--micro-batch-size", 4, "--micro-batches", 6,
        "--sharding", "zero1", "--checkpointing", "selective_op", "--precision", "fp32", "--json",
    )  # fmt: skip
    assert answer.err == ""
    told = answer.data
    assert max(stage["total_bytes"] for stage in told["stages"]) == played.report.peak_memory_bytes
    assert told["stages"][told["largest_stage"]]["total_bytes"] == played.report.peak_memory_bytes
    assert all(sum(stage["by_category_bytes"].values()) == stage["total_bytes"] for stage in told["stages"])
    assert told["reserved_bytes"] == pytest.approx(played.report.peak_reserved_bytes, rel=0.03)
    assert told["fits"] == played.report.fits


@pytest.mark.parametrize(
    ("schedule", "micros", "said"),
    [("1f1b", 16, "fits"), pytest.param("gpipe", 64, "does not fit", marks=pytest.mark.long)],
)
def test_thousands_of_gpus_and_a_step_that_does_not_fit(cli: Command, schedule: str, micros: int, said: str) -> None:
    """Llama 3 405B as in arXiv:2407.21783, table 4, with half of the sequence, because torchtitan's eager kernels save
    more: 1F1B with 16 micro-batches fits, GPipe with 64 does not.
    """
    cut = ("--dp", 128, "--tp", 8, "--pp", 16, "--sharding", "zero1", "--seq-len", 4096)
    answer = cli("memory", "llama3_405b", *cut, "--schedule", schedule, "--micro-batches", micros)
    assert f" of the memory of h100_sxm: {said} in 79.6 GiB (" in answer.out.splitlines()[0]
    assert "405,853,388,800 parameters on 16,384 GPUs" in answer.out


def test_sequence_parallelism_holds_less(cli: Command) -> None:
    cut = ("memory", "gpt2_medium", "--tp", 4, "--seq-len", 1024, "--json")
    held = [
        cli(*cut, option).data["stages"][0]["by_category_bytes"]["activations"]
        for option in ("--sequence-parallel", "--no-sequence-parallel")
    ]
    assert held[0] < held[1]
    assert cli(*cut).data["stages"][0]["by_category_bytes"]["activations"] == held[0]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("llama3_8b --tp 3", "--tp: got 3; must divide the 32 heads of llama3_8b: 1, 2, 4, 8, 16, 32"),
        ("llama3_8b --tp 0", "--tp: got 0; must be at least 1"),
        ("llama3_8b --pp 33", "--pp: got 33 stages for 32 layers; every stage must have a layer"),
        ("llama3_8b --pp 2 --schedule interlaved", "--schedule: got 'interlaved'; one of 1f1b, "),
        ("llama3_8b --pp 4 --schedule interleaved --micro-batches 2", "the micro-batches) (--micro-batches)"),
        ("llama3_8b --pp 2 --stages [3]", "--stages: got 1 stages with 3 layers; must be 2 stages with the 32 of"),
        ("llama3_8b --pp 2 --stages [3", "--stages:1:3: not YAML: "),
        ("llama3_8b --pp 4 --schedule dualpipe --micro-batches 4", "--schedule: dualpipe got 4 micro-batches; must be"),
        (
            "mixtral_8x7b --ep 3 --dp 6",
            "--ep: got 3; must divide the 8 experts of mixtral_8x7b and the 6 ranks of a stage: 1, 2",
        ),
        ("mixtral_8x7b --tp 2 --etp 3", "--etp: got 3; must divide the 14336 feed-forward width of mixtral_8x7b's"),
        (
            "mixtral_8x7b --dp 2 --tp 2 --ep 8",
            "--ep: got 8; must divide the 2 ranks of a stage (dp x cp x tp / etp 2): 1",
        ),
        ("llama3_8b --etp 2", "--etp: got 2; llama3_8b has no experts; omit the key"),
        ("llama3_8b --cp 3", "--cp: got 3; "),
        ("nope --tp 2", "MODEL: got 'nope'; `simulator list models` lists all"),
        ("llama3_8b --tp 2 --gpu h10", "--gpu: got 'h10'; did you mean "),
        ("llama3_8b --sharding parameter_server", "--sharding: got 'parameter_server', whose servers hold states"),
        ("llama3_8b --precision fp8 --gpu a100_sxm_80gb", "which a100_sxm_80gb does not support; one of "),
        ("llama3_8b --micro-batches 0", "--micro-batches: got 0; must be at least 1"),
    ],
)
def test_sizes_that_do_not_fit_are_one_line_each(cli: Command, options: str, said: str) -> None:
    answer = cli("memory", *options.split())
    assert answer.code == 2
    assert answer.out == ""
    assert len(answer.faults) == 1
    assert said in answer.err
    assert "training." not in answer.err


def test_an_option_without_effect_is_told(cli: Command) -> None:
    answer = cli("memory", "gpt2", "--schedule", "gpipe", "--seq-len", 1024)
    assert answer.code == 0
    assert answer.faults == ["warning: --schedule: has no effect here: needs pp above 1"]


def test_all_faults_of_the_closed_forms_come_in_one_round(cli: Command) -> None:
    answer = cli("memory", "llama3_8bb", "--dp", 0, "--attention", "flsh", "--gpu", "b20", "--micro-batch-size", 0)
    assert (answer.code, answer.out) == (2, "")
    assert [line.partition(";")[0] for line in answer.faults] == [
        "--gpu: got 'b20'",
        "--dp: got 0",
        "--attention: got 'flsh'",
        "--micro-batch-size: got 0",
        "MODEL: got 'llama3_8bb'",
    ]


def test_more_tokens_than_a_model_has_positions_are_told_at_their_option(cli: Command) -> None:
    answer = cli("memory", "gpt2", "--seq-len", "2k")
    assert answer.code == 2
    assert answer.err.startswith("--seq-len: got 2048; gpt2 has learned 1024 positions; ")


@pytest.mark.parametrize("options", [("memory", "gpt2"), ("memory", "gpt2", "--pp", 2), ("kernels", "gpt2")])
def test_the_default_length_is_at_most_what_a_model_has_learned(cli: Command, options: tuple[str, ...]) -> None:
    """GPT-2 has 1,024 positions; the default of 2048 tokens was refused, though the user asked for no length."""
    answer = cli(*options)
    assert (answer.code, answer.err) == (0, "")
    assert "1 x 1,024 tokens" in answer.out


def test_a_gpu_without_its_form_is_printed_as_the_card_that_was_taken(cli: Command) -> None:
    told = cli("memory", "llama3_8b", "--dp", 8, "--gpu", "h100")
    assert told.out.startswith(
        "llama3_8b with a micro-batch of 1 x 2,048 tokens fits on 8 h100_sxm of 79.6 GiB with zero1 "
    )
    assert "step in torchtitan on h100_sxm of " in told.out
