"""Operations as a framework runs them: the loss in one pass, recomputation that ends early, casts to eight bits.

Rule: changes counts of kernels and kept bytes, never times.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from simulator.model.head import logits_memory
from simulator.model.kernel import Elementwise, Matmul
from simulator.model.operation import Batch, Operation, Saved
from simulator.model.shape import Transformer

_FLOAT32: Final = 4
# Bytes of an operand's number before and after the cast.
_WIDE: Final = 2
_NARROW: Final = 1


def fused_loss(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Put one pass over the logits in the place of their float32 copy and softmax.

    Forward reads them once, and keeps them; backward reads them and writes their gradient over them, as the loss of
    the flash-attention package does with `inplace_backward`.
    """
    replaced: list[Operation] = []
    for op in operations:
        replaced.append(op)
        if op.name == "logits":
            size = op.output
            return (
                *replaced,
                Operation(
                    "fused cross entropy",
                    (Elementwise("fused cross entropy", size, 0),),
                    (Elementwise("fused cross entropy gradient", size, size),),
                    (Saved("logits", size, "logits"),),
                    _FLOAT32,
                    # Where ranks have some of the logits each they tell each other as much as without fusing.
                    communications=operations[-1].communications,
                ),
            )
    return tuple(replaced)


def until_needed(operations: tuple[Operation, ...]) -> tuple[Operation, ...]:
    """Leave out what comes after the last tensor that a backward pass needs: the MLP's last matmul and its addition.

    PyTorch's checkpointing without reentry ends recomputation there (torch.utils.checkpoint, early stop, since 2.1).
    """
    end = len(operations)
    while end and operations[end - 1].name in ("residual2", "down"):
        end -= 1
    return operations[:end]


def second_maps(model: Transformer, batch: Batch) -> tuple[Matmul, ...]:
    """Maps that `selective_op` runs again beyond whole operations: keys of queries, keys, values; up of gate and up.

    torchtitan keeps every second matmul's output, and its layers multiply by each of these matrices apart.
    """
    keys = Matmul("keys", batch.tokens, model.kv_width, model.hidden_size)
    return (keys, Matmul("up", batch.tokens, model.ffn_size, model.hidden_size)) if model.gated else (keys,)


def with_copies(operations: tuple[Operation, ...], model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """A layer's operations with the copies that modules of eager PyTorch keep, and merged kernels do not.

    A gated activation keeps its function's output beside the product. Queries and keys with positions are new arrays,
    while the values are a view that keeps all of the array that the three were cut from; attention's output is copied
    into the order of tokens for the next matrix.
    """
    made = []
    for op in operations:
        saved = op.saved
        if op.name == "activation" and model.gated:
            saved += (Saved("activation function output", op.output, op.name),)
        if op.name == "attention":
            kept = {one.name: one for one in op.saved}
            beside = [kept[name].nbytes for name in ("queries", "keys") if name in kept]
            saved += (Saved("queries and keys without positions", sum(beside), "qkv"),)
            saved += (Saved("attention output by tokens", op.output, op.name),)
        made.append(replace(op, saved=saved))
    return tuple(made)


def loss_buffers(model: Transformer, batch: Batch, *, compiled: bool, logits: bool = False) -> int:
    """What the loss holds in its backward pass beyond what it kept from the forward pass [B]; `logits` too."""
    memory = logits_memory(model, batch)
    gradients = memory.backward_peak - memory.log_probabilities
    kept = memory.logits if logits else 0
    return kept + (gradients // 2 if compiled else gradients)


def eight_bit_casts(kernel: Matmul, *, once: bool = False) -> Elementwise:
    """Both operands read and written again with eight bits a number, each matmul in the order that it needs.

    Where a tensor is cast `once`, activations and gradients are read where they come first, and written in both orders;
    a weight is cast once a step, which is left out beside what every micro-batch costs (NVIDIA's Transformer Engine:
    `is_first_microbatch`, fused cast and transpose).
    """
    operands = kernel.batch * float(kernel.m * kernel.k + kernel.k * kernel.n)
    if once:
        operands = 0.0 if kernel.of_weights else kernel.batch * float(kernel.m * kernel.k)
        return Elementwise(f"{kernel.name} casts", _WIDE * operands, 2 * _NARROW * operands, fusible=False)
    return Elementwise(f"{kernel.name} casts", _WIDE * operands, _NARROW * operands, fusible=False)
