"""Memory of a process beside PyTorch's allocator, against figures that nvidia-smi and NCCL's users report."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.basics import registry
from simulator.cluster.gpu_file import load_gpu
from simulator.model.load import load_model
from simulator.step.parallelism import Parallelism
from simulator.step.plan import groups_of
from simulator.step.process_memory import communicator_bytes, process_memory
from simulator.step.sharding import Sharding
from tests.training import TINY, step

MIB = 2**20
H100 = load_gpu("h100_sxm")


def nccl(ranks: int, gpu: str = "h100_sxm", *, shard: int | None = None, **cut: int) -> int:
    """Return the buffers of NCCL of a ZeRO-3 step on so many ranks [MiB]."""
    made = step("zero3", TINY, parallelism=Parallelism(**cut))
    made = made.with_keys(sharding=Sharding(strategy="zero3", shard_size=shard))
    return process_memory(load_gpu(gpu), made, groups_of(made, ranks)).nccl // MIB


def test_contexts_grow_with_the_multiprocessors_and_their_threads() -> None:
    """Measured: 256 MiB on 82 SMs of 1,536 threads, 534 MiB on 132 of 2,048, 555 MiB on 188 of 1,536."""
    for name, threads in (("rtx_3090", 1536), ("h100_sxm", 2048), ("rtx_pro_6000", 1536)):
        gpu = load_gpu(name)
        assert gpu.context_bytes / (gpu.sms * threads) == pytest.approx(2.06 * 1024, rel=0.05)


@pytest.mark.parametrize("name", registry.names("gpu"))
def test_every_gpu_has_the_context_of_its_threads(name: str) -> None:
    gpu = load_gpu(name)
    assert "context_bytes" in gpu.facts["sources"]
    if not name.startswith(("mi", "tpu_")):
        # A resident thread takes 2 KiB: 1,024 of them an SM on Turing, 1,536 on Ada and on Ampere and Blackwell cards
        # with GDDR, else 2,048.
        with_gddr = name in ("a10", "a40") or name.startswith(("rtx", "l4"))
        threads = 1024 if name in ("t4", "rtx_2080_ti") else 1536 if with_gddr else 2048
        assert gpu.context_bytes / (gpu.sms * threads) == pytest.approx(2.06 * 1024, rel=0.05)


def test_a_gpu_without_a_figure_has_the_context_of_an_h100_by_multiprocessor() -> None:
    own = replace(H100, facts={key: value for key, value in H100.facts.items() if key != "context_bytes"})
    assert own.context_bytes == pytest.approx(H100.context_bytes, rel=0.02)


def test_buffers_of_a_communicator_are_those_measured() -> None:
    """NCCL, issue 964: 544 MiB for two A100, 688 MiB for the first of four, which sends to one neighbour alone."""
    protocols = 8 * 512 * 8 * 16 + 120 * 640 * 8 * 8 + 4 * MIB
    assert protocols == 9_633_792
    # Allocations of 2 MiB: 10 MiB to receive, 2 MiB to send (issue 1685).
    pair = -(-protocols // (2 * MIB)) * 2 + 2
    assert communicator_bytes(2, 24) == (256 + 24 * pair) * MIB == 544 * MIB
    first = communicator_bytes(4, 24) - 24 * pair // 2 * MIB
    assert first == 688 * MIB


def test_every_process_group_has_a_communicator() -> None:
    assert [nccl(ranks) for ranks in (1, 2, 8)] == [0, 544, 832]
    assert nccl(8, tp=2) == 832 + 544
    assert nccl(16, tp=2, pp=2) == 832 + 2 * 544
    # Shard groups of two ranks, and replicate groups of four.
    assert nccl(8, shard=2) == 544 + 832
    # Two channels over PCIe.
    assert nccl(8, "l4") == 256 + 2 * 2 * 12


def test_experts_add_groups_of_their_own() -> None:
    """Eight ranks, four with different experts: groups of eight, of four, and of two with the same experts."""
    experts = Parallelism(ep=4)
    made = step("zero1", load_model("mixtral_8x7b", 512), parallelism=experts)
    assert process_memory(H100, made, groups_of(made, 8)).nccl // MIB == 832 + 832 + 544
