"""Which parts of a simulated scenario can be used alone? Schedules, models, kernels and arithmetic, by name.

Each name is imported from its module on first use; `simulator` runs whole scenarios with the same parts.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

_HOMES: Final[dict[str, str | tuple[str, str]]] = {
    # Collectives without a clock: an algorithm's transfers, and their verification.
    "OPERATIONS": "simulator.collectives.algorithm",
    "Request": ("simulator.collectives.algorithm", "CollectiveRequest"),
    "least_volume": "simulator.collectives.algorithm",
    "algorithms": ("simulator.collectives.algorithm", "ALGORITHMS"),
    "verify": "simulator.collectives.verify",
    "write_out": "simulator.records.transfers",
    "chunk_sizes": "simulator.records.chunks",
    "transfer_elements": "simulator.records.chunks",
    # Arrays of collectives: inputs, exact results, and a schedule's additions.
    "DTYPES": "simulator.basics.dtypes",
    "buffers": "simulator.collectives.payload.inputs",
    "exact": "simulator.collectives.payload.reduction",
    "Payload": "simulator.collectives.payload.carry",
    "carry": "simulator.collectives.payload.carry",
    # Times of collectives: points of a sweep, crossovers, and a ring over unequal links.
    "ScalingPoint": "simulator.report.numbers.algorithm_crossovers",
    "crossings": "simulator.report.numbers.algorithm_crossovers",
    "finding": "simulator.report.numbers.algorithm_crossovers",
    "advance": "simulator.collectives.recurrence",
    "by_rounds": "simulator.collectives.recurrence",
    # Models: shapes, operations, parameters and saved tensors.
    "Batch": "simulator.model.operation",
    "active": "simulator.model.parameters",
    "conventions": "simulator.model.conventions",
    "head_operations": ("simulator.model.model", "last_operations"),
    "layer_operations": "simulator.model.model",
    "load_model": "simulator.model.load",
    "logits_memory": "simulator.model.head",
    "modules": "simulator.model.model",
    "saved_bytes": "simulator.model.operation",
    "total": "simulator.model.model",
    # Kernels: HBM traffic and durations.
    "Attention": "simulator.model.kernel",
    "attention_bytes": "simulator.step.kernels.attention_time",
    "duration": "simulator.step.kernels.kernel_time",
    "load_gpu": "simulator.cluster.gpu_file",
    # Training steps: allocations at a time, and pipeline orders.
    "held_at": ("simulator.report.numbers.memory_at", "allocations_at"),
    "PassTimes": "simulator.step.pipelines.schedule",
    "PipelineShape": "simulator.step.pipelines.schedule",
    "pipelines": ("simulator.step.pipelines.schedule", "SCHEDULES"),
    # Arithmetic of real training.
    "Gpt": "simulator.numerics.gpt",
    "HbmCounter": "simulator.numerics.hbm_counter",
    "arithmetic": "simulator.numerics.arithmetic",
    "flash": "simulator.numerics.flash",
    "flash_backward": "simulator.numerics.flash",
    "fused": "simulator.numerics.softmax",
    "online": "simulator.numerics.softmax",
    "scored": ("simulator.numerics.unfused_attention", "unfused_attention"),
    "scored_backward": ("simulator.numerics.unfused_attention", "unfused_attention_backward"),
    "task": "simulator.numerics.task",
    "three_pass": "simulator.numerics.softmax",
    "tiles": "simulator.numerics.flash",
}
# Names of whole modules, with functions `names`, `find` and so on.
_MODULES: Final = ("conventions", "task")

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'simulator.parts' has no attribute {name!r}; it has {', '.join(__all__)}")
    home = _HOMES[name]
    module, attribute = home if isinstance(home, tuple) else (home, name)
    loaded = import_module(module)
    return loaded if name in _MODULES else getattr(loaded, attribute)
