"""The operations before the first layer and after the last: embedding, last norm, logits, cross entropy.

Counts for a micro-batch, as in layer.py. Logits are in the compute dtype; softmax reads a float32 copy, like PyTorch
under autocast. With a vocabulary of 128,256 this copy is larger than many a layer, so it is counted separately.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from simulator.model.kernel import Elementwise, Kernel, Matmul
from simulator.model.operation import Batch, Operation, Saved, linear, norm, soft_cap, unquantised
from simulator.model.partition import Communication, ModelPartition, around_columns, around_rows
from simulator.model.shape import Patches, Transformer

# Ids and labels are torch.int64.
_TOKEN_BYTES: Final = 8
_FLOAT32_BYTES: Final = 4
# Copy of the logits without each sequence's last token, which has no next token: none, or of the logits before or after
# their cast to float32.
LogitShift = Literal["none", "before_cast", "after_cast"]


@dataclass(frozen=True, slots=True)
class LogitsMemory:
    """Sizes of the tensors with tokens x vocabulary elements [B]."""

    logits: int  # in the compute dtype, as their gradient [B]
    float32_copy: int  # input of softmax; 0 if softmax reads the logits [B]
    log_probabilities: (
        int  # in softmax's dtype, as both gradients in it; the only tensor saved for the backward pass [B]
    )


def logits_memory(model: Transformer, batch: Batch) -> LogitsMemory:
    """Return the bytes in a micro-batch's tensors with tokens x vocabulary elements: logits, copy, log-probabilities.

    >>> from simulator.model.load import load_model
    >>> logits_memory(load_model("llama3_8b"), Batch(sequences=1, seq_len=8192)).logits
    2101346304
    """
    elements = _scored(model, batch) * _rows(model, batch)
    narrow, wide = batch.narrow.itemsize * elements, _FLOAT32_BYTES * elements
    return LogitsMemory(narrow, wide if narrow != wide else 0, wide)


def _rows(model: Transformer, batch: Batch) -> int:
    """Return the number of rows of the token table on a tensor-parallel rank."""
    return batch.cut.vocabulary(model) // batch.cut.tensor


def _scored(model: Transformer, batch: Batch) -> int:
    """Return the number of a micro-batch's tokens that get logits: every token, or with patches the class tokens."""
    return batch.tokens if model.patches is None else batch.sequences


def embedding_operations(model: Transformer, batch: Batch) -> tuple[Operation, ...]:
    """Return the operations for the embedding on a micro-batch: lookup of tokens or embedding of patches, learned
    positions, token types, norm, dropout.

    Returns
    -------
    tuple of Operation
        The token table's gradient has the table's size, however few rows were read: it is filled with zeros, then rows
        are added. If the head uses the same table, both gradients are added.
    """
    operations = [lookup(model, batch) if model.patches is None else _patches(model, model.patches, batch)]
    if model.positions == "learned":
        read = batch.seq_len // batch.cut.along_sequence
        operations.append(_added("position", read, model.max_positions, model, batch))
    if model.token_types:
        operations.append(_added("token type", batch.tokens_between, model.token_types, model, batch))
    if model.embedding_norm:
        operations.append(norm("embedding norm", operations[-1].name, model, batch))
    if batch.dropout:
        operations.append(_dropout(model, batch))
    return tuple(operations)


def lookup(model: Transformer, batch: Batch, name: str = "token embedding") -> Operation:
    """Return the operation with this name that looks up a micro-batch's tokens in the token table."""
    # Every rank looks up all its tokens, before the sequence is cut between matrices.
    rows = batch.tokens * model.hidden_size * batch.itemsize
    table = _rows(model, batch) * model.hidden_size * batch.itemsize
    ids, frozen = _TOKEN_BYTES * batch.tokens, not batch.trains("token embedding.weight")
    backward: list[Kernel] = [
        Elementwise("token gradient fill", 0, table, of_weights=True),
        Elementwise("token gradient", 2 * rows + ids, rows, of_weights=True),
    ]
    if model.tied:
        backward.append(Elementwise("tied gradient add", 2 * table, table, of_weights=True))
    return Operation(
        name,
        (Elementwise(name, rows + ids, rows),),
        () if frozen else tuple(backward),
        () if frozen else (Saved("token ids", ids, "input"),),
        rows,
        # The table is cut by rows: each rank has zeros for tokens in other ranks' rows, hence the sum.
        communications=around_rows(name, batch.tokens * model.hidden_size, _wide(batch.cut)),
    )


def _patches(model: Transformer, patches: Patches, batch: Batch) -> Operation:
    """Return the patch embedding of a micro-batch's images, whole on every rank; no image needs a gradient."""
    pixels = Saved("patches", batch.sequences * patches.count * patches.width * batch.itemsize, "input")
    product = Matmul("patch embedding", batch.sequences * patches.count, model.hidden_size, patches.width)
    operation = linear(product, unquantised(batch), pixels, bias=True)
    return replace(operation, backward=tuple(kernel for kernel in operation.backward if kernel.of_weights))


def _added(name: str, read: int, rows: int, model: Transformer, batch: Batch) -> Operation:
    """Return the operation that looks up rows of a further table (positions, token types) and adds them to the token
    embeddings.

    Parameters
    ----------
    read, rows : int
        Number of rows that are read, and rows of the table.
    """
    width = model.hidden_size * batch.itemsize
    size = batch.tokens_between * width
    forward = Elementwise(f"{name} embedding add", size + read * width, size, fusible=True)
    # Every sequence of the micro-batch adds to the same rows; rows that no token has stay zero.
    backward = Elementwise(f"{name} gradient", size, rows * width, of_weights=True)
    trained = batch.trains(f"{name} embedding.weight")
    return Operation(f"{name} embedding", (forward,), (backward,) if trained else (), output=size)


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
    """Return the head's operations on a micro-batch: square matrix and activation if the head has them, last norm,
    logits, their limit, their float32 copy, and cross entropy, which moves each array once.

    A tied head multiplies by the embedding's table: the same kernels, without parameters of its own.
    """
    memory = logits_memory(model, batch)
    operations = _transform(model, batch) if model.head_transform else []
    source = operations[-1].name if operations else "input"
    operations += [norm("norm", source, model, batch.stream), _logits(model, batch.narrow)]
    if model.logit_cap:
        operations.append(soft_cap("logit soft-cap", memory.logits))
    if memory.float32_copy:
        operations.append(
            Operation(
                "logits to float32",
                (Elementwise("logits to float32", memory.logits, memory.float32_copy, fusible=True),),
                (Elementwise("logits gradient cast", memory.float32_copy, memory.logits, fusible=True),),
                output=memory.float32_copy,
            )
        )
    return (*operations, _cross_entropy(batch, memory.log_probabilities, _scored(model, batch)))


def _transform(model: Transformer, batch: Batch) -> list[Operation]:
    """Return the operations of the head's square matrix, whole on every rank, and of its activation."""
    tokens, d = batch.tokens_between, model.hidden_size
    size = tokens * d * batch.itemsize
    name = "transform activation"
    activation = Operation(
        name,
        (Elementwise(name, size, size, fusible=True),),
        (Elementwise(f"{name} gradient", 2 * size, size, fusible=True),),
        (Saved(f"{name} input", size, "transform"),),
        size,
    )
    entered = Saved("head input", size, "input")
    return [linear(Matmul("transform", tokens, d, d), unquantised(batch), entered, bias=True), activation]


def _logits(model: Transformer, batch: Batch) -> Operation:
    """Return the operation that multiplies by the token table and gives the logits of a micro-batch."""
    tokens, v, d = _scored(model, batch), _rows(model, batch), model.hidden_size
    frozen = not batch.trains("logits.weight")
    # Class tokens are few and whole on every rank.
    normed = d * batch.itemsize * (batch.tokens_between if model.patches is None else tokens)
    size = tokens * v * batch.itemsize
    of_weights: tuple[Kernel, ...] = (
        () if frozen else (Matmul("logits weight gradient", v, d, tokens, of_weights=True),)
    )
    if model.head_bias and batch.trains("logits.bias"):
        of_weights += (Elementwise("logits bias gradient", size, v * batch.itemsize, of_weights=True),)
    forward: tuple[Kernel, ...] = (Matmul("logits", tokens, v, d),)
    if batch.autocast:
        casts = Elementwise("logits casts", _FLOAT32_BYTES * (tokens + v) * d, batch.itemsize * (tokens + v) * d)
        forward = (casts, *forward)
        of_weights += (replace(casts, name="logits gradient casts", read=casts.written, written=casts.read),)
    return Operation(
        "logits",
        forward,
        (Matmul("logits input gradient", tokens, d, v), *of_weights),
        () if frozen else (Saved("norm output", normed, "norm"),),
        size,
        communications=around_columns("logits", tokens * d, _wide(batch.cut), 1, 1 + len(of_weights)),
    )


def _among_vocabulary(batch: Batch, tokens: int) -> tuple[Communication, ...]:
    """Return a cut vocabulary's exchanges for the loss: three numbers per token with logits, in float32 or wider."""
    if batch.cut.tensor == 1:
        return ()
    names = ("largest logit", "target's logit", "sum of exponentials")
    dtype = "float64" if batch.itemsize > _FLOAT32_BYTES else "float32"
    return tuple(Communication(name, "all_reduce", tokens, False, 0, 0, dtype) for name in names)


def _cross_entropy(batch: Batch, size: int, tokens: int) -> Operation:
    """Return the operation for log-softmax and the loss of `tokens` tokens, whose logits have `size` bytes."""
    labels = _TOKEN_BYTES * tokens
    # 1 byte per token: does this rank hold the target's logit?
    whose = (Saved("target mask", tokens, "cross entropy"),) if batch.cut.tensor > 1 else ()
    # Picking a log-probability per row is negligible beside the rows themselves.
    return Operation(
        "cross entropy",
        (Elementwise("log-softmax", size, size),),
        (
            # The gradient is written for every logit, although only the targets' entries are nonzero.
            Elementwise("loss gradient", labels, size, fusible=True),
            Elementwise("log-softmax gradient", 2 * size, size),
        ),
        (Saved("log-probabilities", size, "cross entropy"), Saved("labels", labels, "input"), *whose),
        _FLOAT32_BYTES,
        communications=_among_vocabulary(batch, tokens),
    )


def _wide(cut: ModelPartition) -> ModelPartition:
    """Return the partition without eight-bit gathers: embedding and head compute in the activations' dtype."""
    return replace(cut, gather_dtype=None)
