"""One transformer layer, operation by operation: kernels forward and backward, and what is kept in between.

Rule: counts of one micro-batch; knows no GPU, no sharding, no schedule. After Korthikanti et al., "Reducing activation
recomputation in large transformer models", MLSys 2023: with dropout and scores in HBM a layer keeps 16 b s d p +
2 b s^2 H p + 2 b s d + b s^2 H bytes, and the norms' statistics.
"""

from __future__ import annotations

from simulator.model.attention import attention_block
from simulator.model.feed_forward import feed_forward_block
from simulator.model.operation import Batch, Operation
from simulator.model.overlap import overlapped
from simulator.model.shape import Transformer


def layer_operations(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """A layer's operations in the order of the forward pass; of a model whose layers differ those of its last."""
    operations = (*attention_block(model, batch), *feed_forward_block(model, batch))
    return tuple(overlapped(operation, batch.cut) for operation in operations)
