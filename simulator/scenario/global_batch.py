"""How is the batch of a whole step written, and how many micro-batches does each rank then take?

Rule: `training.global_batch` and `plan.global_batch` are read here alone.
"""

from __future__ import annotations

from typing import Any, Final

from simulator.basics.counts import TOKENS, parse_count
from simulator.scenario import reading

# What the global batch is written in, where it is not in tokens.
SEQUENCES: Final = "seq"


def batch_of_step() -> reading.ValueReader:
    """Read a number of tokens or of sequences, and keep it as it was written."""
    schema = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}
    return reading.ValueReader(_batch, lambda: schema)


def _batch(value: Any) -> str:
    text = str(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
    if isinstance(value, float) and value.is_integer():
        text = str(int(value))
    if not text:
        raise ValueError(f"got {reading.shown(value)}; must be tokens, such as 4M, or sequences, such as 512seq")
    if parse_count(text.removesuffix(SEQUENCES).strip(), TOKENS) < 1:
        raise ValueError(f"got {reading.shown(value)}; must be at least 1")
    return text


def sequences_of(written: str, seq_len: int) -> int:
    """Sequences of a step, from a number of tokens, or of sequences.

    Raises
    ------
    ValueError
        It is no number, or no whole number of sequences.

    Examples
    --------
    >>> sequences_of("4M", 8192), sequences_of("512seq", 8192)
    (512, 512)
    """
    if written.endswith(SEQUENCES):
        return parse_count(written.removesuffix(SEQUENCES).strip(), TOKENS)
    tokens = parse_count(written, TOKENS)
    if tokens % seq_len:
        whole = max(1, tokens // seq_len)
        raise ValueError(
            f"{tokens:,} tokens are no whole number of sequences of {seq_len:,}; write {whole * seq_len}, or "
            f"{whole}{SEQUENCES}"
        )
    return tokens // seq_len


def micro_batches(written: str, seq_len: int, data_parallel: int, micro_batch_size: int) -> int:
    """Micro-batches that each data-parallel rank takes in a step of a global batch.

    Raises
    ------
    ValueError
        The ranks cannot share the batch evenly.

    Examples
    --------
    >>> micro_batches("4M", 8192, data_parallel=64, micro_batch_size=2)
    4
    """
    sequences, at_once = sequences_of(written, seq_len), data_parallel * micro_batch_size
    if sequences % at_once:
        near = sorted({max(1, sequences // at_once) * at_once, (sequences // at_once + 1) * at_once})
        raise ValueError(
            f"got {written}, {sequences:,} sequences; must be a multiple of {at_once:,} "
            f"({data_parallel:,} data-parallel ranks x micro_batch_size {micro_batch_size}); "
            f"write {' or '.join(f'{number}{SEQUENCES}' for number in near)}, or another micro_batch_size"
        )
    return sequences // at_once
