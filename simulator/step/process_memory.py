"""How much GPU memory does a process take beside PyTorch's allocator? The CUDA context, and buffers of NCCL.

`torch.cuda.max_memory_allocated` counts tensors, `max_memory_reserved` adds fragments and cached segments, and
nvidia-smi adds the context and NCCL's buffers. Workspaces of cuBLAS are tensors of PyTorch
(`MemoryConstants.workspaces`).

A context holds stack and local memory of all threads that fit on the GPU at once, and so grows with the number of
multiprocessors: 3.1 MiB for each on RTX 3090 and RTX 4060 Ti (1,536 threads), 4.0 MiB on H100 (2,048 threads). Each GPU
file has the figure and its source. Kernels that libraries load later are not included.

NCCL allocates a buffer of each protocol for each communicator, channel and neighbour [1]_: 512 KiB (LL), 4,800 KiB
(LL128) and 4 MiB (Simple, NCCL_BUFFSIZE). Either the receiver holds all three, or the sender holds that of Simple; with
allocations rounded up to 2 MiB, both hold 12 MiB together. A rank of a ring or chain has a neighbour on each side, and
in a group of two the same neighbour.

Example: an all-reduce of two A100 over NVLink with 24 channels [2]_ takes 544 MiB [3]_: 24 x 12 MiB, and 256 MiB that
do not depend on the channels. With four A100, the first rank of the chain receives from two neighbours and sends to
one: 24 x 18 MiB and the same 256 MiB are the 688 MiB measured there.

References
----------
.. [1] NVIDIA/nccl, src/init.cc (DEFAULT_BUFFSIZE), src/transport/p2p.cc (recvSize), src/include/device.h; issue 1685
   lists allocations of 10 and 2 MiB.
.. [2] NVIDIA/nccl-tests, issue 100: "Channel 00/24" on eight A100; issue 307: two rings on eight RTX 4090.
.. [3] NVIDIA/nccl, issue 964.
"""

from __future__ import annotations

from typing import Final

from simulator.cluster.cluster import Gpu
from simulator.records.program import ProcessMemory
from simulator.step.process_groups import Groups
from simulator.step.spec import TrainingStep

_MIB: Final = 2**20
# Buffers for a channel and a neighbour to receive from and send to, and memory of a communicator without channels [B].
_NEIGHBOUR: Final = 12 * _MIB
_COMMUNICATOR: Final = 256 * _MIB
# Channels of a communicator over NVLink, and over PCIe.
_NVLINK_CHANNELS: Final = 24
_PCIE_CHANNELS: Final = 2


def process_memory(gpu: Gpu, step: TrainingStep, groups: Groups) -> ProcessMemory:
    """Return the memory of a rank's process beside PyTorch's allocator.

    Parameters
    ----------
    gpu : Gpu
        GPU of the rank.
    step : TrainingStep
        The step.
    groups : Groups
        Process groups of the step, each with a communicator.
    """
    channels = _NVLINK_CHANNELS if gpu.scale_up_bandwidth else _PCIE_CHANNELS
    return ProcessMemory(
        gpu.context_bytes, sum(communicator_bytes(ranks, channels) for ranks in _communicators(step, groups))
    )


def communicator_bytes(ranks: int, channels: int) -> int:
    """Return the memory of a communicator in the middle of a chain [B].

    >>> [communicator_bytes(ranks, channels=24) // 2**20 for ranks in (1, 2, 8)]
    [0, 544, 832]
    """
    neighbours = min(ranks - 1, 2)
    return _COMMUNICATOR + channels * neighbours * _NEIGHBOUR if neighbours else 0


def _communicators(step: TrainingStep, groups: Groups) -> list[int]:
    """Return the number of ranks of each communicator that a rank takes part in; groups of one rank have none."""
    sizes = [groups.size("shard"), groups.size("replicate")] if groups.hybrid else [groups.size("all")]
    if groups.mesh_size not in (None, groups.shard_size):
        sizes.append(groups.size("mesh"))
    sizes += [groups.size("tensor"), groups.size("context"), groups.size("context ring"), groups.grid.size("pp")]
    if step.model.num_experts:
        sizes += [groups.size("experts"), groups.size("expert tensor"), groups.size("expert data")]
    return [size for size in sizes if size > 1]
