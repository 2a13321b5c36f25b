"""A transformer layer, operation by operation: kernels forward and backward, and saved tensors.

Counts for a micro-batch, without GPU, sharding or schedule. After Korthikanti et al., "Reducing activation
recomputation in large transformer models", MLSys 2023: with dropout and scores in HBM a layer saves 16 b s d p + 2 b
s^2 H p + 2 b s d + b s^2 H bytes, plus the norms' statistics.
"""

from __future__ import annotations

from simulator.model.attention import attention_block
from simulator.model.feed_forward import feed_forward_block
from simulator.model.operation import Batch, Operation
from simulator.model.overlap import overlapped
from simulator.model.shape import Transformer


def layer_operations(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """Return a layer's operations on a micro-batch, in forward order; if layers differ, for the last layer."""
    operations = (*attention_block(model, batch), *feed_forward_block(model, batch))
    return tuple(overlapped(operation, batch.cut) for operation in operations)
