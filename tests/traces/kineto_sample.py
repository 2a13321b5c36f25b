"""A trace in the form of PyTorch's profiler, written by hand: rank 3 of 8, three steps, an FSDP layer in each.

Times are microseconds on the host's clock. In each step the host launches everything within 100 us, and the GPU works
behind the host for longer: the operations of `WORK`, of which the first begins 50 us after the step's annotation.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, NamedTuple

RANK, STEPS, PERIOD_US, BEGIN_US = 3, (7, 8, 9), 1000.0, 6_120_133.5
# Begin of the GPU's work behind the step's annotation.
LAG_US = 50.0


class Kernel(NamedTuple):
    """An operation of a step: name, category, stream, begin behind the first operation [us], duration [us]."""

    name: str
    category: str
    stream: int
    start: float
    duration: float
    collective: str = ""
    elements: tuple[int, int] = (0, 0)
    in_optimizer: bool = False


GATHER = "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SCATTER = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4> >"
)
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
WORK = (
    Kernel(GATHER, "kernel", 24, 0.0, 60.0, "_allgather_base", (1_000, 8_000)),
    Kernel("triton_per_fused__to_copy_mean_pow_rsqrt_scaled_dot_product_attention_0", "kernel", 7, 40.0, 20.0),
    Kernel("nvjet_sm90_tst_256x128_64x4_2x1_v_bz_coopA_TNT", "kernel", 7, 60.0, 100.0),
    Kernel("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<...>>>", "kernel", 7, 160.0,
           50.0),
    Kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas", "kernel", 7, 215.0, 80.0),
    Kernel(ADD, "kernel", 7, 295.0, 5.0),
    Kernel("my_own_kernel", "kernel", 7, 300.0, 10.0),
    Kernel("Memcpy DtoD (Device -> Device)", "gpu_memcpy", 7, 310.0, 4.0),
    # 30 of 70 us are exposed: the elementwise kernel below runs from 330 on for 40 us.
    Kernel(SCATTER, "kernel", 25, 314.0, 70.0, "reduce_scatter_tensor_coalesced", (8_000, 1_000)),
    Kernel(ADD, "kernel", 7, 330.0, 40.0),
    Kernel(ADAM, "kernel", 7, 400.0, 33.0),
    # In the optimizer's step every kernel belongs to the optimizer.
    Kernel(ADD, "kernel", 7, 433.0, 7.0, in_optimizer=True),
    Kernel("Memcpy DtoH (Device -> Pinned)", "gpu_memcpy", 7, 445.0, 2.0),
)  # fmt: skip


def document() -> dict[str, Any]:
    """The trace as plain data."""
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "ts": BEGIN_US, "pid": 4711, "tid": 0, "args": {"name": "python"}},
        {"ph": "X", "cat": "Trace", "ts": BEGIN_US, "dur": 3e3, "pid": "Spans", "tid": "PyTorch Profiler", "name": "x"},
    ]
    correlation = 100
    for place, number in enumerate(STEPS):
        begin = BEGIN_US + place * PERIOD_US
        host = {"ph": "X", "pid": 4711, "tid": 4711}
        note = {**host, "cat": "user_annotation", "args": {"External id": number, "Ev Idx": 0}}
        events.append({**note, "name": f"ProfilerStep#{number}", "ts": begin, "dur": 200.0 + place})
        events.append({**note, "name": "Optimizer.step#AdamW.step", "ts": begin + 80.0, "dur": 15.0})
        events.append({**host, "cat": "cpu_op", "name": "aten::mm", "ts": begin + 10.0, "dur": 4.25,
                       "args": {"External id": 5, "Fwd thread id": 0}})  # fmt: skip
        for kernel in WORK:
            correlation += 1
            launched = begin + (90.0 if kernel.in_optimizer else 20.0)
            copies = kernel.category == "gpu_memcpy"
            events.append({**host, "cat": "cuda_runtime", "name": "cudaMemcpyAsync" if copies else "cudaLaunchKernel",
                           "ts": launched, "dur": 3.0, "args": {"cbid": 211, "correlation": correlation}})  # fmt: skip
            args: dict[str, Any] = {
                "External id": 5, "queued": 0, "device": 3, "context": 1, "stream": kernel.stream,
                "correlation": correlation, "registers per thread": 96, "block": [512, 1, 1],
            }  # fmt: skip
            if kernel.collective:
                sent, received = kernel.elements
                args |= {"Collective name": kernel.collective, "In msg nelems": sent, "Out msg nelems": received,
                         "Group size": 8, "dtype": "BFloat16", "Process Group Name": "0"}  # fmt: skip
            events.append({"ph": "X", "cat": kernel.category, "name": kernel.name, "pid": 3, "tid": kernel.stream,
                           "ts": begin + LAG_US + kernel.start, "dur": kernel.duration, "args": args})  # fmt: skip
            flow = {"id": correlation, "cat": "ac2g", "name": "ac2g"}
            events.append({"ph": "s", **flow, "pid": 4711, "tid": 4711, "ts": launched})
            events.append({"ph": "f", **flow, "pid": 3, "tid": kernel.stream, "ts": begin + LAG_US + kernel.start,
                           "bp": "e"})  # fmt: skip
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 3, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 84929347584}],
        "distributedInfo": {"backend": "nccl", "rank": RANK, "world_size": 8, "pg_count": 1, "nccl_version": "2.21.5"},
        "cupti_version": 24,
        "with_modules": 0,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": 1_717_800_000_000_000_000,
        "traceEvents": events,
        "traceName": "/checkpoints/iteration_10/rank3_trace.json",
    }


def written(folder: Path, data: Any = None, name: str = "rank3_trace.json.gz") -> Path:
    """Write the trace, or other data, gzipped if the name says so; return the file."""
    text = json.dumps(document() if data is None else data, indent=1).encode()
    path = folder / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    return path
