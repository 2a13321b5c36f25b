"""Memory of Megatron-LM's functional tests: bytes allocated after a step, and the peak, of the last of 8 A100.

Source: NVIDIA/Megatron-LM d98e8a64, tests/functional_tests/test_cases/gpt/NAME/golden_values_lts_dgx_a100.json, keys
mem-allocated-bytes and mem-max-allocated-bytes of the last step. A GPT of 12 layers with hidden size 512 and a
vocabulary of 50,257; steps of 32 sequences of 1,024 tokens, micro-batches of 4.

The simulation leaves out a mask of one byte for each pair of positions (4 MiB), received tensors that a pipeline keeps
(8 to 24 MiB), and remainders of blocks that PyTorch's allocator does not split (9 MiB with an unsharded optimizer).
"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.model.load import load_model
from simulator.step.framework import load_framework
from simulator.step.parallelism import Parallelism
from simulator.step.precision import Precision
from tests.training import play, step

MIB = 2**20
# --no-gradient-accumulation-fusion: gradients of matrices are arrays of their own.
PLAIN = load_framework("megatron_core").with_constants(placeholders=False)
# CUBLAS_WORKSPACE_CONFIG=:4096:8: two workspaces of 32 MiB, and Transformer Engine's 4 MiB.
DETERMINISTIC = PLAIN.with_constants(workspaces={"other": 68 * MIB})
# --transformer-impl local: no workspace of Transformer Engine, and scores in a buffer that is never freed.
LOCAL = load_framework("megatron_local").with_constants(placeholders=False, workspaces={"other": 64 * MIB})
HALF = Precision(params="float16", grads="float16", reduce="float16", matmul="float16").resolved()
CASES: dict[str, tuple[int, int, str, dict[str, Any]]] = {
    "gpt3_mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files":
        (552_128_512, 4_673_069_568, "zero1", {"attention": "standard"}),
    "gpt3_mcore_te_tp1_pp1_resume_torch_dist_dist_optimizer": (552_128_512, 2_713_665_024, "zero1", {}),
    "gpt3_mcore_te_tp1_pp1_resume_torch_dist_uniform_full_recompute":
        (1_234_585_088, 2_536_167_424, "ddp", {"activation_checkpointing": "full"}),
    "gpt3_mcore_te_tp1_pp4_resume_torch_dist_untie_embeddings_and_outputs":
        (734_056_960, 2_205_987_840, "ddp", {"pp": 4, "tied": False}),
    "gpt3_mcore_te_tp1_pp4_vp1_resume_torch_dist_dist_optimizer_overlap_grad_reduce_param_gather":
        (519_038_464, 2_436_866_048, "zero1", {"pp": 4, "schedule": "interleaved", "virtual_stages": 3}),
    "gpt3_mcore_te_tp2_pp1_resume_torch_dist_multi_dist_optimizer_instances":
        (462_388_736, 1_678_555_136, "zero1", {"tp": 2, "sequence_parallel": False, "shard_size": 2}),
    "gpt3_mcore_te_tp4_pp1_dist_optimizer_overlap_grad_reduce_param_gather":
        (269_842_944, 1_516_021_248, "zero1", {"tp": 4, "sequence_parallel": False, "attention": "standard"}),
    "gpt3_mcore_te_tp2_pp2_cp2_nondeterministic":
        (433_750_528, 858_314_240, "ddp",
         {"tp": 2, "pp": 2, "cp": 2, "dropout": False, "framework": PLAIN}),
    "gpt3_mcore_te_tp2_pp2_cross_entropy_loss_fusion":
        (435_716_608, 1_772_628_480, "ddp",
         {"tp": 2, "pp": 2, "sequence_parallel": False, "loss": "native", "framework": PLAIN}),
    # --wgrad-deferral-limit 2, and no --no-gradient-accumulation-fusion: the head's gradient has a placeholder.
    "gpt3_mcore_te_tp2_pp2_resume_torch_dist_defer_embedding_wgrad_compute":
        (516_063_744, 1_878_141_440, "ddp",
         {"tp": 2, "pp": 2, "sequence_parallel": False, "deferred_head_gradients": 2,
          "framework": DETERMINISTIC.with_constants(placeholders=True)}),
    "gpt3_mcore_tp1_pp4":
        (779_997_184, 2_746_575_872, "ddp", {"pp": 4, "attention": "standard", "framework": LOCAL}),
    "gpt3_mcore_tp4_pp1_resume_torch_dist":
        (416_513_536, 1_597_485_568, "ddp",
         {"tp": 4, "sequence_parallel": False, "attention": "standard", "framework": LOCAL, "precision": HALF}),
    # --no-masked-softmax-fusion, in float32 because of --apply-query-key-layer-scaling.
    "gpt3_mcore_tp2_pp2_uninstall_te":
        (560_548_864, 2_087_784_448, "ddp",
         {"tp": 2, "pp": 2, "sequence_parallel": False, "attention": "eager", "framework": LOCAL, "precision": HALF}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bytes_of_the_last_rank_are_those_of_megatron_lm_within_40_mib(name: str) -> None:
    allocated, peak, strategy, facts = CASES[name]
    given: dict[str, Any] = {"attention": "flash", "dropout": True, "framework": DETERMINISTIC} | facts
    given.setdefault("precision", Precision(grads="float32", reduce="float32").resolved())
    names = ("tp", "pp", "cp", "sequence_parallel", "schedule", "virtual_stages", "deferred_head_gradients")
    parallel = Parallelism(**{key: given.pop(key) for key in names if key in given})
    # The vocabulary is padded to a multiple of 128 x tp.
    vocabulary = -(-50257 // (128 * parallel.tp)) * 128 * parallel.tp
    model = {
        "model_type": "gpt2", "n_embd": 512, "n_layer": 12, "n_head": 8, "n_inner": 2048, "n_positions": 1024,
        "vocab_size": vocabulary, "tie_word_embeddings": given.pop("tied", True),
    }  # fmt: skip
    made = step(
        strategy,
        load_model(model, 1024),
        seq_len=1024,
        micro_batch_size=4,
        gradient_accumulation_steps=32 // 4 // (8 // parallel.size),
        parallelism=parallel,
        **given,
    )
    samples = [sample.nbytes for sample in play(made, 8, "dgx_a100").timeline.memory if sample.rank == 7]
    assert samples[-1] == pytest.approx(allocated, abs=40 * MIB)
    assert max(samples) == pytest.approx(peak, abs=40 * MIB)
