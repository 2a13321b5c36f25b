"""Programs of frameworks launch what recordings of the real modules launch, with the same bytes and saved tensors."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any, Final, get_args

import pytest

import simulator.model.programs
from simulator.basics.errors import ScenarioError
from simulator.cluster.gpu_file import load_gpu
from simulator.model.adapters import Lora
from simulator.model.kernel import Attention, Elementwise, Kernel, Matmul
from simulator.model.layer import layer_operations, layer_program
from simulator.model.operation import Batch, Operation, ProgramName, saved_bytes
from simulator.model.partition import ModelPartition
from simulator.model.programs.aten import mul, transposed
from simulator.model.programs.tape import Tape
from simulator.model.programs.transformers import rms_norm, rotated
from simulator.model.shape import Transformer
from simulator.step.framework import load_framework
from simulator.step.kernels.kernel_time import duration
from simulator.step.kernels.losses import backward_bytes, loss_operations
from simulator.step.spec import bare_step

RECORDINGS: Final = Path(__file__).parent / "recordings"
# State of the random numbers that flash attention saves [B].
SEED: Final = 24
Launch = tuple[str, int, int]


def recording(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDINGS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def model_of(sizes: dict[str, int], **changes: Any) -> Transformer:
    """A Llama with the sizes of a recording."""
    return Transformer(
        "recorded", 1, sizes["hidden_size"], sizes["num_heads"], sizes["num_kv_heads"],
        sizes["hidden_size"] // sizes["num_heads"], sizes["ffn_size"], sizes["vocab_size"], 4096,
        norm="rmsnorm", gated=True, positions="rotary", attention_bias=False, output_bias=False, mlp_bias=False,
        **changes,
    )  # fmt: skip


def recorded(row: dict[str, Any]) -> list[Launch]:
    """The launches of a recorded operation: its name, and the bytes that it reads and writes."""
    name = row["op"].split(".")[1]
    read, written = (sum(array["nbytes"] for array in row[side]) for side in ("reads", "writes"))
    if name in ("slice_backward", "select_backward"):
        # One row, and on a GPU a fill of the whole and a copy of the part.
        return [("zeros", 0, written), ("copy_", read, read)]
    if "attention" in name:
        return [("attention", 0, 0)]
    return [("mm" if name in ("mm", "addmm") else name, read, written)]


def named(rows: list[dict[str, Any]], known: dict[str, str]) -> list[dict[str, Any]]:
    """The rows, with sums in place where only the recording's caller held the gradient of the output."""
    return [
        row | {"op": "aten.add_.Tensor"}
        if row["op"] == "aten.add.Tensor"
        and any(known.get(str(array["storage"]), "").startswith("input:gradient") for array in row["reads"])
        else row
        for row in rows
    ]


def simulated(kernel: Kernel) -> Launch:
    if isinstance(kernel, Elementwise):
        name = kernel.name.rpartition(" ")[2]
        return "_to_copy" if name == "cast" else name, round(kernel.read), round(kernel.written)
    if isinstance(kernel, Attention):
        return "attention", 0, 0
    assert isinstance(kernel, Matmul)
    return "mm", 2 * (kernel.m * kernel.k + kernel.k * kernel.n), 2 * kernel.m * kernel.n


def batch_of(name: str, sizes: dict[str, int], program: ProgramName) -> Batch:
    """The micro-batch of a recording, whose name says whether autocast was on."""
    autocast = name.endswith("autocast")
    return Batch(
        sizes["sequences"], sizes["seq_len"], itemsize=4 if autocast else 2, program=program, autocast=autocast
    )


def counts(operations: tuple[Operation, ...], phase: str) -> Counter[Launch]:
    return Counter(simulated(kernel) for op in operations for kernel in getattr(op, phase))


@pytest.mark.parametrize(
    ("program", "name", "changes"),
    [
        ("torchtitan", "torchtitan_llama3_sdpa", {}),
        ("torchtune", "torchtune_llama3", {}),
        ("transformers", "transformers_llama", {}),
        ("transformers", "transformers_llama_autocast", {}),
        ("transformers", "transformers_qwen3", {"qk_norm": "head"}),
    ],
)
def test_a_layer_launches_and_saves_what_the_recorded_one_does(
    program: ProgramName, name: str, changes: dict[str, Any]
) -> None:
    """Every launch by name and bytes in each pass; saved bytes; the most bytes in the forward pass."""
    facts = recording(name)
    sizes = facts["sizes"]
    found = layer_program(model_of(sizes, **changes), batch_of(name, sizes, program))
    for phase in ("forward", "backward"):
        rows = [row for row in named(facts["rows"], facts["known"]) if row["phase"] == phase]
        expected = Counter(launch for row in rows for launch in recorded(row))
        assert counts(found.operations, phase) == expected, phase
    # The layer's input is saved too; it existed before.
    entered = sizes["sequences"] * sizes["seq_len"] * sizes["hidden_size"] * (4 if name.endswith("autocast") else 2)
    saved = saved_bytes(found.operations)
    assert (
        saved
        == sum(array["allocated"] for array in facts["saved"])
        + entered * ("input:hidden" in facts["saved_inputs"])
        - SEED
    )
    most = max(row["live"] for row in facts["rows"] if row["phase"] == "forward")
    assert (
        found.temporaries + saved - entered * any(t.source == "input" for op in found.operations for t in op.saved)
        == most - SEED
    )


@pytest.mark.parametrize("name", ["transformers_gpt2", "transformers_gpt2_autocast"])
def test_a_layer_of_gpt2_launches_and_saves_what_the_recorded_one_does(name: str) -> None:
    """LayerNorm, biases and `gelu_new`: every launch beside matmuls by name and bytes; saved bytes."""
    facts = recording(name)
    sizes = facts["sizes"]
    model = Transformer(
        "gpt2", 1, sizes["hidden_size"], sizes["num_heads"], sizes["num_kv_heads"],
        sizes["hidden_size"] // sizes["num_heads"], sizes["ffn_size"], sizes["vocab_size"], 4096,
    )  # fmt: skip
    batch = batch_of(name, sizes, "transformers")
    program = layer_program(model, batch)
    for phase in ("forward", "backward"):
        rows = [row for row in named(facts["rows"], facts["known"]) if row["phase"] == phase]
        expected = Counter(launch for row in rows for launch in recorded(row) if launch[0] not in ("mm", "attention"))
        launches = Counter(
            # A bias' gradient is a sum.
            (name.replace("gradient", "sum"), read, written)
            for (name, read, written), count in counts(program.operations, phase).items()
            for _ in range(count)
            if name not in ("mm", "attention")
        )
        assert launches == expected, phase
    entered = sizes["sequences"] * sizes["seq_len"] * sizes["hidden_size"] * batch.itemsize
    saved = sum(array["allocated"] for array in facts["saved"])
    assert saved_bytes(program.operations) == saved + entered - SEED


@pytest.mark.parametrize("name", ["torchtitan_head", "transformers_head", "transformers_head_items"])
def test_a_head_launches_and_holds_what_the_recorded_one_does(name: str) -> None:
    """Every launch over logits by name and bytes; the most bytes while the loss goes backward.

    The rows have 4,096 words, which a kernel reads once. That `nll_loss` reads the log-probabilities is no traffic: it
    picks one in each row.
    """
    facts = recording(name)
    sizes = facts["sizes"]
    batch = Batch(sizes["sequences"], sizes["seq_len"])
    given = bare_step(model_of(sizes), sizes["seq_len"], sizes["sequences"], loss="separate")
    operations = loss_operations(given, batch)[1:]
    words = {"logits": "mm", "logits to float32": "_to_copy", "logits gradient cast": "_to_copy",
             "log-softmax": "_log_softmax", "log-softmax gradient": "_log_softmax_backward_data",
             "loss gradient": "nll_loss_backward"}  # fmt: skip
    for phase in ("forward", "backward"):
        rows = [row for row in facts["rows"] if row["phase"] == phase and row["writes"][0]["nbytes"] > 10**5]
        launches = [launch for row in rows for launch in recorded(row)]
        expected = Counter((op, 0 if op == "nll_loss_backward" else read, written) for op, read, written in launches)
        found = [kernel for op in operations for kernel in getattr(op, phase)]
        assert Counter((words.get(kernel.name, "mm"), *simulated(kernel)[1:]) for kernel in found) == expected
    most = max(row["live"] for row in facts["rows"] if row["phase"] == "backward")
    labels = 8 * batch.tokens
    assert saved_bytes(operations[1:]) - labels + backward_bytes(given, batch) == pytest.approx(most, abs=16)


def test_every_program_is_named_and_has_a_recording() -> None:
    """Bare kernels are no framework's, and FOAK's, of Triton, are no operations of PyTorch."""
    folder = Path(simulator.model.programs.__file__).parent
    programs = {file.stem for file in folder.glob("*.py") if "\nPARTS" in file.read_text(encoding="utf-8")}
    assert programs == set(get_args(ProgramName))
    # Programs after a framework's code of years ago have its lines as source (tests/theory/test_programs.py).
    old = {"internevo", "llm_foundry", "nanotron", "torchtitan_2024"}
    assert programs - {"bare", "foak"} - old <= {file.stem.partition("_")[0] for file in RECORDINGS.glob("*.json")}


def test_a_framework_file_names_a_program() -> None:
    assert load_framework({"based_on": "transformers", "program": "transformers"}).program == "transformers"
    with pytest.raises(ScenarioError, match="program"):
        load_framework({"program": "jax"})


# Medians of linkedin/Liger-Kernel ead96b618e, benchmark/data/all_benchmark_data.csv, provider huggingface, on an A100
# of 80 GB [ms]: a norm of 2,048 rows of bfloat16 with weights in float32, by width; rotary positions of 32 heads of
# queries and 8 of keys with 8,192 wide hidden states in bfloat16, by tokens.
NORMS: Final = {4096: (0.2799, 0.7404), 16384: (0.9856, 2.5696), 32768: (1.9191, 5.0147)}
ROTARY: Final = {2048: (0.5160, 0.6210), 8192: (1.933, 2.321), 16384: (3.817, 4.557)}


def timed(kernels: list[Kernel]) -> float:
    return 1e3 * sum(duration(kernel, load_gpu("a100_sxm_80gb"), "bfloat16") for kernel in kernels)


@pytest.mark.parametrize("width", NORMS)
def test_an_eager_norm_takes_what_was_measured(width: int) -> None:
    tape = Tape()
    with tape.named("norm") as part:
        hidden = tape.leaf("hidden", (2048, width), "bfloat16", kind="input")
        output = rms_norm(hidden, tape.leaf("weight", (width,), "float32"))
    tape.backward(output)
    assert (timed(part.forward), timed(part.backward)) == pytest.approx(NORMS[width], rel=0.2)


@pytest.mark.parametrize("tokens", ROTARY)
def test_eager_rotary_positions_take_what_was_measured(tokens: int) -> None:
    tape = Tape()
    with tape.named("rotary") as part:
        cos, sin = (tape.leaf(name, (1, 1, tokens, 256), "bfloat16", trained=False) for name in ("cos", "sin"))
        arrays = [
            transposed(tape.leaf(f"{heads} heads", (1, tokens, heads, 256), "bfloat16", kind="input"), 1, 2)
            for heads in (32, 8)
        ]
        queries, keys = (rotated(array, cos, sin) for array in arrays)
    tape.backward(queries)
    tape.backward(keys)
    assert (timed(part.forward), timed(part.backward)) == pytest.approx(ROTARY[tokens], rel=0.2)


def test_the_tape_frees_what_is_no_longer_named() -> None:
    """The example of the module: 6 elements of float32; the factors exist before and are not counted."""
    tape = Tape()
    x, weight = tape.leaf("x", (2, 3), "float32", kind="input"), tape.leaf("w", (2, 3), "float32")
    with tape.named("product") as part:
        product = mul(x, weight)
        del product
    assert (tape.live, tape.most) == (0, 24)
    assert [kernel.nbytes(4) for kernel in part.forward] == [72]
    with tape.named("again") as part:
        tape.backward(mul(x, weight))
    assert [kernel.nbytes(4) for kernel in part.backward] == [72, 72]


@pytest.mark.parametrize("program", get_args(ProgramName))
def test_ranks_that_share_a_key_head_have_it_whole(program: ProgramName) -> None:
    """Two heads of keys on four tensor-parallel ranks: each rank reads one."""
    model = model_of(recording("transformers_llama")["sizes"])
    found = layer_program(model, Batch(2, 192, cut=ModelPartition(4), program=program))
    (kernel,) = (kernel for op in found.operations for kernel in op.forward if isinstance(kernel, Attention))
    saved = {tensor.name: tensor.nbytes for op in found.operations if op.name == "attention" for tensor in op.saved}
    assert kernel.heads == 2
    # Bytes of a head's queries, keys or values: tokens x width x 2.
    assert saved["queries"] == 2 * 384 * 64 * 2
    repeated = 2 if program in ("torchtune", "torchtitan_2024") else 1
    # Values that are a view of the product of one matrix, or packed with the keys, are saved with it.
    if program not in ("llm_foundry", "nanotron"):
        assert saved["keys"] == saved["values"] == repeated * 384 * 64 * 2


def test_fused_kernels_launch_once_for_norms_positions_and_an_adapted_gate() -> None:
    """A norm reads and writes its input once, 2 bytes an element; the gate and its product are saved, not the silu."""
    model = model_of(recording("transformers_llama")["sizes"])
    adapters = Lora(rank=8, targets=("gate", "up"))
    eager, fused = (
        {op.name: op for op in layer_operations(model, Batch(2, 192, program=program, adapters=adapters))}
        for program in ("transformers", "foak")
    )
    assert (len(eager["norm1"].forward), len(fused["norm1"].forward)) == (8, 1)
    assert (len(eager["rotary"].forward), len(fused["rotary"].forward)) == (10, 1)
    # Forward: two arrays read and one written; backward: three read and two written.
    wide = 384 * model.ffn_size * 2
    assert [k.nbytes(2) for k in (*fused["activation"].forward, *fused["activation"].backward)] == [3 * wide, 5 * wide]
    assert "activation product" in eager
    assert "activation product" not in fused
