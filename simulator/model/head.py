"""The operations before the first layer and after the last: embedding, last norm, logits, cross entropy.

Counts for a micro-batch, as in layer.py. Logits are in the compute dtype; softmax reads a float32 copy, like PyTorch
under autocast. With a vocabulary of 128,256 this copy is larger than many a layer, so it is counted separately.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.model.operation import Batch, Operation, Saved
from simulator.model.partition import Communication, ModelPartition, around_columns, around_rows
from simulator.model.shape import Transformer

# Ids and labels are torch.int64.
_TOKEN_BYTES: Final = 8
_FLOAT32_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class LogitsMemory:
    """Sizes of the tensors with tokens x vocabulary elements [B].

    Attributes
    ----------
    logits : int
        In the compute dtype [B].
    float32_copy : int
        Input of softmax; 0 if the compute dtype is float32 [B].
    log_probabilities : int
        float32; the only tensor saved for the backward pass [B].
    loss_gradient, float32_gradient : int
        float32: gradient of the log-probabilities (only one entry per row is nonzero, yet all are stored), and gradient
        of the copy [B].
    gradient : int
        Gradient of the logits in the compute dtype; 0 if that is float32 [B].
    """

    logits: int
    float32_copy: int
    log_probabilities: int
    loss_gradient: int
    float32_gradient: int
    gradient: int

    @property
    def forward_peak(self) -> int:
        """Bytes of logits, float32 copy and log-probabilities after softmax, before anything is freed [B]."""
        return self.logits + self.float32_copy + self.log_probabilities

    @property
    def backward_peak(self) -> int:
        """Memory during the backward pass of softmax or of the cast, after logits and copy are freed [B]."""
        softmax = self.log_probabilities + self.loss_gradient + self.float32_gradient
        # Softmax's backward needs three float32 tensors at once, the cast a float32 and a narrow tensor.
        return max(softmax, self.float32_gradient + self.gradient)


def logits_memory(model: Transformer, batch: Batch) -> LogitsMemory:
    """Return the bytes in a micro-batch's tensors with tokens x vocabulary elements: logits, copy, gradients.

    Examples
    --------
    >>> from simulator.model.load import load_model
    >>> memory = logits_memory(load_model("llama3_8b"), Batch(sequences=1, seq_len=8192))
    >>> memory.logits, memory.forward_peak  # 2 bytes, and 2 + 4 + 4 bytes an element
    (2101346304, 10506731520)
    """
    elements = batch.tokens * _rows(model, batch)
    wide, narrow = _FLOAT32_BYTES * elements, batch.itemsize * elements
    cast = batch.itemsize != _FLOAT32_BYTES
    return LogitsMemory(narrow, wide if cast else 0, wide, wide, wide, narrow if cast else 0)


def _rows(model: Transformer, batch: Batch) -> int:
    """Return the number of rows of the token table on a tensor-parallel rank."""
    return batch.cut.vocabulary(model) // batch.cut.tensor


def embedding_operations(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """Return the operations for the embedding on a micro-batch: lookup of tokens, positions if learned, dropout.

    Returns
    -------
    tuple of Operation
        The token table's gradient has the table's size, however few rows were read: it is filled with zeros, then rows
        are added. If the head uses the same table, both gradients are added.
    """
    # Every rank looks up all its tokens, before the sequence is cut between matrices.
    rows = batch.tokens * model.hidden_size * batch.itemsize
    table = _rows(model, batch) * model.hidden_size * batch.itemsize
    ids, frozen = _TOKEN_BYTES * batch.tokens, batch.adapters is not None
    backward: list[Kernel] = [
        Elementwise("token gradient fill", 0, table, of_weights=True),
        Elementwise("token gradient", 2 * rows + ids, rows, of_weights=True),
    ]
    if model.tied:
        backward.append(Elementwise("tied gradient add", 2 * table, table, of_weights=True))
    lookup = Operation(
        "token embedding",
        (Elementwise("token embedding", rows + ids, rows),),
        () if frozen else tuple(backward),
        () if frozen else (Saved("token ids", ids, "input"),),
        rows,
        # The table is cut by rows: each rank has zeros for tokens in other ranks' rows, hence the sum.
        communications=around_rows("token embedding", batch.tokens * model.hidden_size, _wide(batch.cut)),
    )
    operations = [lookup]
    if model.positions == "learned":
        operations.append(_positions(model, batch))
    if batch.dropout:
        operations.append(_dropout(model, batch))
    return tuple(operations)


def _positions(model: Transformer, batch: Batch) -> Operation:
    """Return the operation that looks up learned positions and adds them to the token embeddings."""
    rows = batch.tokens_between * model.hidden_size * batch.itemsize
    read = batch.seq_len // batch.cut.along_sequence * model.hidden_size * batch.itemsize
    table = model.max_positions * model.hidden_size * batch.itemsize
    forward = Elementwise("position embedding add", rows + read, rows, fusible=True)
    # Every sequence of the micro-batch adds to the same rows; rows beyond the sequence stay zero.
    backward = Elementwise("position gradient", rows, table, of_weights=True)
    return Operation("position embedding", (forward,), () if batch.adapters else (backward,), output=rows)


def _dropout(model: Transformer, batch: Batch) -> Operation:
    """Return the operation for dropout of the embeddings; the mask takes 1 byte per element."""
    elements = batch.tokens_between * model.hidden_size
    size = elements * batch.itemsize
    return Operation(
        "embedding dropout",
        (Elementwise("embedding dropout", size, size + elements, fusible=True),),
        (Elementwise("embedding dropout gradient", size + elements, size, fusible=True),),
        (Saved("embedding dropout mask", elements, "embedding dropout"),),
        size,
    )


def head_operations(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """Return the head's operations on a micro-batch: last norm, logits, their float32 copy and cross entropy.

    A tied head multiplies by the embedding's table: the same kernels, without parameters of its own.
    """
    memory = logits_memory(model, batch)
    operations = [_norm(model, batch), _logits(model, batch)]
    if memory.float32_copy:
        operations.append(
            Operation(
                "logits to float32",
                (Elementwise("logits to float32", memory.logits, memory.float32_copy, fusible=True),),
                (Elementwise("logits gradient cast", memory.float32_gradient, memory.gradient, fusible=True),),
                output=memory.float32_copy,
            )
        )
    return (*operations, _cross_entropy(batch, memory))


def _norm(model: Transformer, batch: Batch) -> Operation:
    """Return the operation for the norm before the head, on a micro-batch."""
    size = batch.tokens_between * model.hidden_size * batch.itemsize
    # LayerNorm saves mean and deviation, RMSNorm only the deviation.
    means = 2 if model.norm == "layernorm" else 1
    statistics = means * batch.tokens_between * batch.statistics_itemsize
    return Operation(
        "norm",
        (Elementwise("norm", size, size + statistics, fusible=True),),
        (Elementwise("norm gradient", 2 * size + statistics, size, fusible=True),),
        (Saved("norm input", size, "input"), Saved("norm statistics", statistics, "norm")),
        size,
    )


def _logits(model: Transformer, batch: Batch) -> Operation:
    """Return the operation that multiplies by the token table and gives the logits of a micro-batch."""
    tokens, v, d = batch.tokens, _rows(model, batch), model.hidden_size
    frozen = batch.adapters is not None
    return Operation(
        "logits",
        (Matmul("logits", tokens, v, d),),
        (
            Matmul("logits input gradient", tokens, d, v),
            *(() if frozen else (Matmul("logits weight gradient", v, d, tokens, of_weights=True),)),
        ),
        () if frozen else (Saved("norm output", batch.tokens_between * d * batch.itemsize, "norm"),),
        tokens * v * batch.itemsize,
        communications=around_columns("logits", tokens * d, _wide(batch.cut), 1, 1 if frozen else 2),
    )


def _among_vocabulary(batch: Batch) -> tuple[Communication, ...]:
    """Return the exchanges for the cross entropy if ranks cut the vocabulary: three numbers per token, in float32 or
    wider.
    """
    if batch.cut.tensor == 1:
        return ()
    names = ("largest logit", "target's logit", "sum of exponentials")
    dtype = "float64" if batch.itemsize > _FLOAT32_BYTES else "float32"
    return tuple(Communication(name, "all_reduce", batch.tokens, False, 0, 0, dtype) for name in names)


def _cross_entropy(batch: Batch, memory: LogitsMemory) -> Operation:
    """Return the operation for log-softmax and the loss, from the sizes of the logits' tensors."""
    labels = _TOKEN_BYTES * batch.tokens
    # In float32 there is no copy, and softmax reads the logits.
    read = memory.float32_copy or memory.logits
    # 1 byte per token: does this rank hold the target's logit?
    whose = (Saved("target mask", batch.tokens, "cross entropy"),) if batch.cut.tensor > 1 else ()
    # Picking a log-probability per row is negligible beside the rows themselves.
    return Operation(
        "cross entropy",
        (Elementwise("log-softmax", read, memory.log_probabilities),),
        (
            # The gradient is written for every logit, although only the targets' entries are nonzero.
            Elementwise("loss gradient", labels, memory.loss_gradient, fusible=True),
            Elementwise(
                "log-softmax gradient", memory.log_probabilities + memory.loss_gradient, memory.float32_gradient
            ),
        ),
        (
            Saved("log-probabilities", memory.log_probabilities, "cross entropy"),
            Saved("labels", labels, "input"),
            *whose,
        ),
        _FLOAT32_BYTES,
        communications=_among_vocabulary(batch),
    )


def _wide(cut: ModelPartition) -> ModelPartition:
    """Return the partition without eight-bit gathers: embedding and head compute in the activations' dtype."""
    return replace(cut, gather_dtype=None)
