"""Kernels of the loss, by hand: the head of Llama 3 8B has 4,096 inputs and 128,256 words; 8,192 tokens."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

import pytest

from simulator.cluster.gpu_file import load_gpu
from simulator.model.kernel import Elementwise, Kernel
from simulator.model.load import load_model
from simulator.model.operation import Batch, LossKernels
from simulator.model.trained import TrainedParts
from simulator.step.framework import Framework, load_framework
from simulator.step.kernels.kernel_time import duration
from simulator.step.kernels.losses import chunk_tokens, loss_operations
from simulator.step.learning_spec import LossScaling
from simulator.step.precision import Precision
from simulator.step.spec import TrainingStep, bare_step
from simulator.step.units import batch_of, units

H100 = load_gpu("h100_sxm")
LLAMA = load_model("llama3_8b", 8192)
TOKENS, WIDTH, WORDS = 8192, 4096, 128256


def step(loss: LossKernels | Literal["auto"], **facts: object) -> TrainingStep:
    return bare_step(LLAMA, 8192, 1, loss=loss, **facts)


BATCH = Batch(1, TOKENS)


def test_a_chunk_has_256_tokens() -> None:
    # Ceiling of 128256 / 4096 is 32 parts; 8192 / 32 = 256, a power of two.
    assert chunk_tokens(LLAMA, BATCH) == 256
    # 1000 tokens: 1000 / 32 = 31.25, the next power of two is 32.
    assert chunk_tokens(LLAMA, Batch(1, 1000)) == 32


def test_a_chunked_loss_runs_five_kernels_for_each_of_32_chunks_in_the_forward_pass() -> None:
    loss = loss_operations(step("chunked"), BATCH)[-1]
    assert len(loss.forward) == 32 * 5
    assert loss.backward == ()
    passes = [one for one in loss.forward if isinstance(one, Elementwise)]
    # Each chunk: logits read twice and written once; the weight gradient read, added and written.
    logits, table = 256 * WORDS * 2, WORDS * WIDTH * 2
    assert sum(one.read + one.written for one in passes) == 32 * (3 * logits + 3 * table)


@pytest.mark.parametrize("facts", [{"gradient_accumulation_steps": 2}, {"loss_scaling": LossScaling(rule="dynamic")}])
def test_a_factor_on_the_loss_multiplies_both_gradients_in_the_backward_pass(facts: dict[str, object]) -> None:
    loss = loss_operations(step("chunked", **facts), BATCH)[-1]
    read = sum(one.read for one in loss.backward if isinstance(one, Elementwise))
    assert read == 2 * (TOKENS * WIDTH + WORDS * WIDTH)


@pytest.mark.parametrize(
    "facts", [{}, {"gradient_accumulation_steps": 2}, {"loss_scaling": LossScaling(rule="dynamic")}]
)
def test_a_loss_in_place_overwrites_the_logits_in_the_forward_pass(facts: dict[str, object]) -> None:
    """Liger's kernel: two loads and a store of each logit; backward nothing, or a load and a store for a factor."""
    fused, in_place = (loss_operations(step(loss, **facts), BATCH)[-1] for loss in ("fused", "in_place"))
    logits = TOKENS * WORDS * 2
    assert [(one.read, one.written) for one in in_place.forward if isinstance(one, Elementwise)] == [
        (2 * logits, logits)
    ]
    factors = [(one.read, one.written) for one in in_place.backward if isinstance(one, Elementwise)]
    assert factors == ([(logits, logits)] if facts else [])
    # The memory is a fused loss's, and without a factor so are the bytes of both passes together.
    assert in_place.saved == fused.saved
    if not facts:
        both = [sum(one.nbytes(2) for one in (*op.forward, *op.backward)) for op in (fused, in_place)]
        assert both[0] == both[1] == 3 * logits


@pytest.mark.parametrize(("words", "measured"), [(65536, 6.805e-3), (131072, 15.009e-3)])
def test_a_loss_in_place_takes_what_was_measured(words: int, measured: float) -> None:
    """linkedin/Liger-Kernel ead96b618e, benchmark/data/all_benchmark_data.csv: cross_entropy, liger, forward, A100,
    16,384 rows in float32. Shorter rows of all SMs stay in L2 between the two loads.
    """
    logits = 16384 * words * 4
    kernel = Elementwise("in-place cross entropy", 2 * logits, logits)
    assert duration(kernel, load_gpu("a100_sxm_80gb"), "float32") == pytest.approx(measured, rel=0.08)


# Forward, and forward with backward [ms].
CROSS_ENTROPY = {
    4096: (0.875, 2.226), 8192: (1.188, 3.598), 16384: (1.952, 6.802), 32768: (5.317, 15.486), 65536: (10.615, 30.778),
    131072: (20.726, 60.438),
}  # fmt: skip


@pytest.mark.parametrize("words", CROSS_ENTROPY)
def test_pytorchs_loss_takes_what_was_measured(words: int) -> None:
    """The same table, torch.nn.CrossEntropyLoss: 16,384 rows in float32.

    `nll_loss` sums the rows in one block of 32 threads, which takes half a millisecond for any number of words. After
    the backward pass, PyTorch adds the gradient to that of the run before: two arrays read and one written.
    """
    given = bare_step(
        replace(LLAMA, vocab_size=words), 8192, 2, loss="separate", precision=Precision(params="float32").resolved()
    )
    loss, a100 = loss_operations(given, Batch(2, 8192, 4))[-1], load_gpu("a100_sxm_80gb")
    array = 4 * 16384 * words

    def milliseconds(kernels: Iterable[Kernel]) -> float:
        return 1e3 * sum(duration(kernel, a100, "float32") for kernel in kernels)

    forward = 0.5 + milliseconds(loss.forward)
    both = forward + milliseconds([*loss.backward, Elementwise("gradient add", 2 * array, array)])
    assert (forward, both) == pytest.approx(CROSS_ENTROPY[words], rel=0.06 if words > 16384 else 0.18)


def test_memory_of_each_kind_of_loss_to_the_byte() -> None:
    # Saved: input and statistics of the norm, its output if a later matmul needs it, and what the loss saves.
    hidden, logits = TOKENS * WIDTH * 2, TOKENS * WORDS * 2
    norm, labels = hidden + 4 * TOKENS, 8 * TOKENS
    heads = {loss: units(step(loss), H100)[-1] for loss in ("separate", "fused", "chunked")}
    assert heads["separate"].kept == norm + hidden + 2 * logits + labels
    assert heads["fused"].kept == norm + hidden + logits + labels
    # The gradient of the head's input, of the size of the input, in place of the input.
    assert heads["chunked"].kept == norm + hidden + labels
    # Buffers: two float32 gradients; nothing; a chunk's logits and a chunk's weight gradient.
    assert heads["separate"].recomputed == 4 * logits
    assert heads["fused"].recomputed == 0
    assert heads["chunked"].recomputed == 256 * WORDS * 2 + WORDS * WIDTH * 2


def test_a_narrow_loss_holds_and_moves_numbers_of_the_logits_dtype_alone() -> None:
    """PyTorch's cross entropy on logits in bfloat16: log-probabilities and two gradients as large as the logits."""
    hidden, logits = TOKENS * WIDTH * 2, TOKENS * WORDS * 2
    plain = step("narrow")
    head = units(plain, H100)[-1]
    assert head.kept == hidden + 4 * TOKENS + hidden + logits + 8 * TOKENS
    assert head.recomputed == 2 * logits
    # All but the gradient of the logits is free when the backward matmuls begin.
    assert head.freed_early == 2 * logits
    moved = {
        kernel.name: (kernel.read, kernel.written)
        for op in loss_operations(plain, BATCH)
        for kernel in (*op.forward, *op.backward)
        if isinstance(kernel, Elementwise) and "norm" not in kernel.name
    }
    assert moved == {
        "log-softmax": (3 * logits, logits),
        "loss gradient": (0, logits),
        "log-softmax gradient": (3 * logits, logits),
    }
    # In float32 both are the same.
    wide = Precision(params="float32").resolved()
    one, other = (loss_operations(step(loss, precision=wide), replace(BATCH, itemsize=4))
                  for loss in ("narrow", "separate"))  # fmt: skip
    assert one == other


@pytest.mark.parametrize("framework", [Framework(), Framework(loss="vocab_parallel")])
def test_a_native_loss_holds_two_float32_arrays_and_the_gradient_of_the_logits(framework: Framework) -> None:
    """Megatron-LM's compiled loss: softmax saved, its copy and the cast in the backward pass, with every framework."""
    hidden, logits = TOKENS * WIDTH * 2, TOKENS * WORDS * 2
    head = units(replace(step("native"), framework=framework), H100)[-1]
    # Norm: input and a float32 number for each token. Logits: the norm's output. Loss: float32 softmax and labels.
    assert head.kept == hidden + 4 * TOKENS + hidden + 2 * logits + 8 * TOKENS
    assert head.recomputed == 2 * logits + logits
    # The gradient of the logits alone is alive when the backward matmuls begin.
    assert head.freed_early == 2 * logits + 2 * logits


def test_nanotron_holds_logits_and_their_copy_beside_the_softmax() -> None:
    """sharded_cross_entropy: 4 bytes a logit are saved; logits and float32 copy are alive in the forward pass alone."""
    nanotron = load_framework("nanotron")
    head = units(replace(step("auto"), framework=nanotron), H100)[-1]
    assert head.temporaries == (2 + 4) * TOKENS * WORDS
    # The backward pass writes the gradient over the softmax, and casts it.
    assert head.recomputed == 2 * TOKENS * WORDS
    assert units(replace(step("fused"), framework=nanotron), H100)[-1].temporaries == 0


def test_a_frozen_head_has_no_weight_gradient_in_its_chunks() -> None:
    frozen = step("chunked", trained=TrainedParts((("layer 31", frozenset({"qkv.weight"})),)))
    trained, still = units(step("chunked"), H100)[-1], units(frozen, H100)[-1]
    # A third of the matmuls is left out, and the buffer of a chunk's weight gradient.
    assert still.forward.flops == pytest.approx(trained.forward.flops * 2 / 3)
    assert still.recomputed == 256 * WORDS * 2
    assert still.trained == 0


@pytest.mark.parametrize(
    ("loss", "facts", "arrays"),
    [
        ("narrow", {"logit_shift": "before_cast"}, 1 + 1 + 1),
        ("separate", {"logit_shift": "before_cast"}, 1 + 1 + 2 + 2),
        # ForCausalLMLoss casts first: logits, cast, copy in float32, log-probabilities.
        ("separate", {"logit_shift": "after_cast"}, 1 + 2 + 2 + 2),
        # A fused kernel saves the copy that it reads.
        ("fused", {"logit_shift": "before_cast"}, 1 + 1),
        ("fused", {"logit_shift": "after_cast"}, 1 + 2 + 2),
        # When the loss is there, logits and their float32 copy exist beside the saved tensor.
        ("fused", {"logit_shift": "before_cast", "float32_outputs": True}, 1 + 2 + 1),
        ("narrow", {"logit_shift": "before_cast", "float32_outputs": True}, 1 + 2 + 1),
        ("fused", {}, 1),
    ],
)
def test_the_forward_pass_of_the_head_holds_copies_of_the_logits(
    loss: LossKernels, facts: dict[str, object], arrays: int
) -> None:
    """Arrays of tokens x words in two bytes an element that exist at once.

    Of the first two cases, PyTorch 2.13 with Transformers 4.48's GPT-BigCode on a CPU shows 3 and 6 to a
    TorchDispatchMode: logits, the copy without last tokens, under autocast its cast, and log-probabilities.
    """
    head = units(step(loss, **facts), H100)[-1]
    # Besides, the head saves input and output of its norm, of 2 B an element, and statistics and labels.
    rest = 2 * 2 * TOKENS * WIDTH
    assert head.kept + head.temporaries - rest == pytest.approx(arrays * 2 * TOKENS * WORDS, rel=1e-4)


def test_returned_keys_and_values_keep_their_matrixs_output_until_the_loss() -> None:
    """Keys and values of GPT-2 are views of 3 x 768 outputs; those of Llama, rotated, are 2 x 1,024 elements."""

    def returned(name: str, **facts: object) -> int:
        return units(bare_step(load_model(name, 512), 512, **facts), H100)[-1].temporaries

    assert returned("gpt2", use_cache=True, activation_checkpointing="full") == 12 * 512 * 3 * 768 * 2
    assert returned("gpt2", use_cache=True, activation_checkpointing=(0, 5)) == 2 * 512 * 3 * 768 * 2
    assert returned("llama3_8b", use_cache=True, activation_checkpointing="full") == 32 * 512 * 2 * 1024 * 2
    for facts in ({"use_cache": True, "activation_checkpointing": "none"}, {"activation_checkpointing": "full"}):
        assert returned("gpt2", **facts) == 0


def test_logits_have_two_bytes_under_autocast_and_the_hidden_states_four() -> None:
    """GPT-2 on 2 x 192 tokens: logits and their copy, and the kernel that casts hidden states and weights."""
    model, tokens, words, width = load_model("gpt2"), 2 * 192, 50257, 768
    given = bare_step(model, 192, 2, precision=Precision(params="float32", matmul="bfloat16"), loss="separate")
    assert given.autocasts
    operations = {op.name: op for op in loss_operations(given, batch_of(given))}
    assert operations["logits"].output == 2 * tokens * words
    assert operations["logits to float32"].forward[0].nbytes(4) == 6 * tokens * words
    assert operations["logits"].forward[0].nbytes(4) == 6 * (tokens + words) * width
    assert operations["norm"].forward[0].nbytes(4) == 4 * 2 * tokens * width + 8 * tokens
