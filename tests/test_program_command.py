"""`simulator program`: the kernels of a layer in order of launch, what it saves, and what proves them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pytest

from simulator.cluster.gpu_file import load_gpu
from simulator.model.kernel import Attention, Kernel, Matmul, bytes_written
from simulator.model.load import load_model
from simulator.step.framework import load_framework
from simulator.step.spec import bare_step
from simulator.step.units import units
from tests.commands import Command, commands_in
from tests.test_recordings import RECORDINGS, Launch, named, recorded

LLAMA: Final = ("program", "llama3_8b", "--framework", "transformers")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def launches(document: dict[str, Any], run: str) -> list[tuple[str, int, int]]:
    """The kernels of a pass as a recording's launches: operation of PyTorch, and bytes read and written."""
    matmul = {"queries", "keys", "values", "proj", "gating", "up", "down"}
    return [
        ("attention", 0, 0)
        if row["part"] == "attention"
        else (
            "mm" if row["kernel"].partition(" ")[0] in matmul and row["flops"] else row["kernel"].split()[-1],
            row["read_bytes"],
            row["written_bytes"],
        )
        for row in document["kernels"]
        if row["pass"] == run
    ]


def test_a_llama_layer_of_transformers_launches_a_recording_in_its_order(cli: Command, tmp_path: Path) -> None:
    """Forward, every launch in its place; backward, too, but PyTorch computes a matrix's gradient before its input's.

    Attention saves a random state of 24 bytes besides.
    """
    facts = json.loads((RECORDINGS / "transformers_llama.json").read_text(encoding="utf-8"))
    sizes = facts["sizes"]
    config = {
        "model_type": "llama", "hidden_size": sizes["hidden_size"], "num_hidden_layers": 1,
        "num_attention_heads": sizes["num_heads"], "num_key_value_heads": sizes["num_kv_heads"],
        "intermediate_size": sizes["ffn_size"], "vocab_size": sizes["vocab_size"], "max_position_embeddings": 4096,
    }  # fmt: skip
    (tmp_path / "recorded.json").write_text(json.dumps(config), encoding="utf-8")
    options = ("--seq-len", sizes["seq_len"], "--micro-batch-size", sizes["sequences"], "--framework", "transformers")
    document = cli("program", "recorded.json", *options, "--json").data
    rows = named(facts["rows"], facts["known"])
    of_pass: dict[str, list[Launch]] = {
        run: [launch for row in rows if row["phase"] == run for launch in recorded(row)]
        for run in ("forward", "backward")
    }
    assert launches(document, "forward") == of_pass["forward"]
    swapped = launches(document, "backward")
    for place, pair in enumerate(pairwise(list(swapped))):
        kernels = [row["kernel"] for row in document["kernels"] if row["pass"] == "backward"][place : place + 2]
        if kernels[0].endswith("input gradient") and kernels[1].endswith("weight gradient"):
            swapped[place : place + 2] = pair[::-1]
    assert swapped == of_pass["backward"]
    assert document["launches"] == {run: len(found) for run, found in of_pass.items()}
    assert document["saved_bytes"] == sum(array["allocated"] for array in facts["saved"]) - 24


@pytest.mark.parametrize(
    ("part", "place"), [(("--layer", 3), 4), (("--part", "embedding"), 0), (("--part", "head"), -1)]
)
@pytest.mark.parametrize("framework", ["transformers", "nemo", "bare"])
def test_a_part_has_the_work_of_the_steps_unit(
    cli: Command, framework: str, part: tuple[object, ...], place: int
) -> None:
    """Bytes, FLOPs, launches and the host's time of both passes, and the saved bytes without recompute."""
    step = bare_step(load_model("llama3_8b"), 512, 2, framework=load_framework(framework))
    unit = units(step, load_gpu("h100_sxm"))[place]
    options = ("--seq-len", 512, "--micro-batch-size", 2, "--framework", framework, "--json")
    document = cli("program", "llama3_8b", *options, *part).data
    for run, pieces in (("forward", unit.forward), ("backward", unit.backward)):
        rows = [row for row in document["kernels"] if row["pass"] == run]
        assert sum(row["read_bytes"] + row["written_bytes"] for row in rows) == pytest.approx(pieces.cost.nbytes)
        assert sum(row["flops"] for row in rows) == pytest.approx(pieces.flops)
        assert (len(rows), document["host_seconds"][run]) == (pieces.cost.launches, pytest.approx(pieces.cost.host))
    assert sum(row["bytes"] for row in document["saved"]) == document["saved_bytes"] == unit.kept


def test_the_finding_and_its_evidence_come_first(cli: Command) -> None:
    """38 + 75 launches of 25 us; a norm reads 16 MiB of bfloat16 and writes 32 MiB of float32."""
    first, second, *lines = cli(*LLAMA).out.splitlines()
    assert first.startswith("A layer of llama3_8b under transformers launches 38 kernels forward and 75 backward, ")
    assert first.endswith(" for a micro-batch of 1 x 2,048 tokens.")
    assert second.startswith("The host issues 113 launches in 2.825 ms: 25 us each. Tests compare program transformers")
    assert [line.split(":")[0].strip() for line in lines[:2]] == ["transformers_llama", "transformers_qwen3"]
    assert ["norm1", "forward", "norm1", "_to_copy", "16", "MiB", "32", "MiB"] in [line.split() for line in lines]
    assert [name for name in cli(*LLAMA, "--json").data["saved"] if "values" in name["saved_by"]] == [
        {"tensor": "norm1 output 4", "bytes": 2 * 2048 * 4096, "made_by": "norm1",
         "saved_by": ["queries", "keys", "values"]},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said", "recordings"),
    [
        ("llama3_8b --framework nemo", "Bare kernels: no recording.", 0),
        ("llama3_8b --framework nanotron", "Program nanotron: no recording; source: huggingface/nanotron e24d2483", 0),
        ("llama3_8b --framework nemo --compile", "whose bytes count 0.8 times (fitted to torchtitan).", 0),
        ("mixtral_8x7b --framework transformers", "Bare kernels, without recording: routing softmax, ", 5),
        ("llama3_8b --framework foak", "Program foak: no recording; source: foundation-model-stack/fms-", 0),
        ("llama3_8b --framework own.yaml", "Program foak: no recording; source: none.", 0),
        ("llama3_8b --part head", "Tests compare the kernels over logits of loss separate with recordings ", 3),
        ("deepseek_v3 --framework nemo --layer 5", "25 us each, but longer or shorter for norm1, ", 0),
    ],
)
def test_what_is_not_proven_is_said(cli: Command, tmp_path: Path, options: str, said: str, recordings: int) -> None:
    (tmp_path / "own.yaml").write_text("program: foak\n", encoding="utf-8")
    assert said in " ".join(cli("program", *options.split()).out.split())
    assert len(cli("program", *options.split(), "--json").data["recordings"]) == recordings


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("llama3_8b --layer 32", "--layer: got 32; llama3_8b has layers 0 to 31"),
        ("llama3_8b --layer -1", "--layer: got -1; llama3_8b has layers 0 to 31"),
        ("llama3_8b --part heads", "--part: got 'heads'; one of embedding, head, layer; did you mean 'head'?"),
        ("llama3_8b --precision fp8 --gpu a100_sxm_80gb", "which a100_sxm_80gb does not support"),
        ("llama3_8b --framework jax", "--framework: got 'jax'; `simulator list frameworks` lists all"),
    ],
)
def test_what_cannot_be_is_one_line(cli: Command, options: str, said: str) -> None:
    answer = cli("program", *options.split())
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert said in answer.err


@pytest.mark.parametrize(
    ("kernel", "written"),
    [
        (Matmul("up", 4, 8, 16, batch=2), 2 * 2 * 4 * 8),
        # Two sequences, 4 heads, 2 of keys, 8 tokens, a width of 16: outputs, and a sum of 4 bytes for each row.
        (Attention("attention", 2, 4, 2, 8, 16, causal=True, backward=False), 2 * 1024 + 4 * 64),
        # Gradients of queries, keys and values, an array as large as the queries, and sums of rows.
        (Attention("attention", 2, 4, 2, 8, 16, causal=True, backward=True), 2 * (2 * 1024 + 2 * 512) + 4 * 64),
    ],
)
def test_the_bytes_that_a_kernel_writes_follow_from_its_results(kernel: Kernel, written: int) -> None:
    assert bytes_written(kernel, 2) == written
