"""Of which kind is a GPU kernel, by its name: matmul, attention, elementwise, optimizer, or a collective?

Names are those of PyTorch, cuBLAS, CUTLASS, cuDNN, Triton, Flash Attention, Transformer Engine, NCCL and RCCL. The
first pattern that is found in the name decides.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from simulator.traces.gpu_work import OTHER, SENDS

# A kernel that libraries of collectives run.
_COLLECTIVE: Final = re.compile(r"^(nccl|rccl|msccl|(void )?deep_ep::)", re.IGNORECASE)
_FUNCTIONS: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": SENDS,
    "reduce": "reduce",
    # DeepEP exchanges the tokens of experts.
    "deepep": "all_to_all",
}
# PyTorch's names of operations ("Collective name" of record_param_comms), without underscores.
_OPERATIONS: Final = {
    "allreduce": "all_reduce",
    "allreducecoalesced": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherintotensor": "all_gather",
    "allgatherintotensorcoalesced": "all_gather",
    "allgathercoalesced": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "reducescattertensorcoalesced": "reduce_scatter",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "broadcastoop": "broadcast",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallv": "all_to_all",
    "send": SENDS,
    "recv": SENDS,
    "ringshift": SENDS,
    "barrier": "barrier",
}
_PATTERNS: Final = tuple(
    (kind, re.compile("|".join(words.split()), re.IGNORECASE))
    for kind, words in (
        # Inductor names a fused kernel after all its operations; the first word is its form.
        ("elementwise", "^triton_(poi|red|per)_"),
        ("optimizer", "^triton_for_"),
        ("attention", "flash fmha attn attention sdpa mem_?eff"),
        # Tensor lists are updated by optimizers, and copied by FSDP.
        ("elementwise", "multi_tensor_apply.*copy foreach_copy"),
        ("optimizer", "multi_tensor adam lamb_ lion adagrad sgd optimizer lpnorm l2norm"),
        # FBGEMM is the name of a library, whose kernels for embeddings are no matmuls.
        ("elementwise", "embedding jagged"),
        ("matmul", "(?<!fb)gemm gemv cutlass cublas nvjet cijk_ splitk wgmma xmma (^|_)mm(_|$) [db]mm matmul"),
        ("matmul", "wgrad dgrad fprop implicit_conv conv[12]d convolve winograd scudnn fft2d cask_cudnn"),
        ("elementwise", "elementwise reduce_?kernel softmax norm vectorized triton ind(ex|ices) scatter gather"),
        ("elementwise", "dropout gelu silu swiglu relu activation cat_?array copy fill zero cast transpose permute"),
        ("elementwise", "loss cross_entropy rope rotary bias sort scan cub:: arange where topk masked bn_ pool random"),
        ("elementwise", "distribution quant nchw nhwc moments gammabeta packedtensor fbgemm to_dense"),
    )
)
# Names of CUDA, and of ROCm: MEMORY_COPY_HOST_TO_DEVICE (rocprofiler-sdk), CopyHostToDevice (roctracer).
_WITH_HOST: Final = re.compile(r"HtoD|DtoH|host_?to_?device|device_?to_?host", re.IGNORECASE)


@lru_cache(maxsize=100_000)
def kind_of_kernel(name: str) -> str:
    """Return the kind of a kernel.

    >>> kind_of_kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas")
    'matmul'
    >>> kind_of_kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all_reduce'
    """
    if is_collective(name):
        return _kind_of_function(name)
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), OTHER)


def is_collective(name: str) -> bool:
    """Return True for a kernel of a library of collectives.

    >>> is_collective("ncclDevKernel_AllReduce_Sum_bf16_RING_LL"), is_collective("ampere_bf16_gemm")
    (True, False)
    """
    return bool(_COLLECTIVE.match(name))


def kind_of_collective(operation: str, kernel: str = "") -> str:
    """Return the kind of a collective, from PyTorch's name of the operation, or else from its kernel's name.

    >>> kind_of_collective("_allgather_base"), kind_of_collective("", "ncclDevKernel_SendRecv(ncclDevKernelArgs)")
    ('all_gather', 'send/receive')
    """
    # "nccl:_all_gather_base", "nccl:send 0->1"
    plain = operation.lower().replace("_", "").split(":")[-1].strip().partition(" ")[0]
    return _OPERATIONS.get(plain) or (_kind_of_function(kernel) if kernel else operation or "collective")


def is_send_of_any_purpose(operation: str, kernel: str) -> bool:
    """Return True for a kernel of sends and receives whose operation is not known: an exchange, a gather, or a send.

    >>> is_send_of_any_purpose("", "ncclDevKernel_SendRecv"), is_send_of_any_purpose("send", "ncclDevKernel_SendRecv")
    (True, False)
    """
    return not operation and kind_of_collective("", kernel) == SENDS


def partners_of_copy(name: str) -> tuple[bool, bool]:
    """Return whether a copy or memset moves bytes between GPUs, and whether between GPU and host.

    >>> partners_of_copy("Memcpy DtoH (Device -> Pinned)"), partners_of_copy("Memset (Device)")
    ((False, True), (False, False))
    """
    return "PtoP" in name or "Peer" in name, bool(_WITH_HOST.search(name))


def _kind_of_function(kernel: str) -> str:
    """Return the kind of a collective from its kernel's name; "collective" if the name does not say."""
    plain = kernel.lower().replace("_", "")
    return next((kind for name, kind in _FUNCTIONS.items() if name in plain), "collective")
