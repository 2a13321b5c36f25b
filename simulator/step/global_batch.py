"""How is the batch of a whole step written, and how many micro-batches does each rank then take?

`training.global_batch` and `plan.global_batch` are both read here. Example: 4M tokens are 512 sequences of 8192 tokens;
64 data-parallel ranks with micro_batch_size 2 take 512 / (64 x 2) = 4 micro-batches each.
"""

from __future__ import annotations

from typing import Any, Final

from simulator.basics import reading
from simulator.basics.counts import TOKENS, parse_count

# Unit of a global batch written in sequences; without unit it is in tokens.
SEQUENCES: Final = "seq"


def batch_of_step() -> reading.ValueReader:
    """Return a validator for a global batch in tokens ("4M") or sequences ("512seq"); it keeps the text as written."""
    schema = {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]}
    return reading.ValueReader(_batch, lambda: schema)


def _batch(value: Any) -> str:
    text = str(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else ""
    # YAML reads 4e6 as a float.
    if isinstance(value, float) and value.is_integer():
        text = str(int(value))
    if not text:
        raise ValueError(f"got {reading.shown(value)}; must be tokens, such as 4M, or sequences, such as 512seq")
    if parse_count(text.removesuffix(SEQUENCES).strip(), TOKENS) < 1:
        raise ValueError(f"got {reading.shown(value)}; must be at least 1")
    return text


def sequences_of(written: str, seq_len: int) -> int:
    """Return the number of sequences per step that a text ("4M" tokens, "512seq") means at a sequence length.

    Raises
    ------
    ValueError
        Not a number, or not a whole number of sequences.

    Examples
    --------
    >>> sequences_of("4M", 8192), sequences_of("512seq", 8192)
    (512, 512)
    """
    if written.endswith(SEQUENCES):
        return parse_count(written.removesuffix(SEQUENCES).strip(), TOKENS)
    tokens = parse_count(written, TOKENS)
    if tokens % seq_len:
        count = max(1, tokens // seq_len)
        raise ValueError(
            f"{tokens:,} tokens are not a multiple of seq_len {seq_len:,}; write {count * seq_len}, or "
            f"{count}{SEQUENCES}; for {tokens:,} sequences write {tokens}{SEQUENCES}"
        )
    return tokens // seq_len


def micro_batches(written: str, seq_len: int, data_parallel: int, micro_batch_size: int) -> int:
    """Return the micro-batches per data-parallel rank and step that make up a global batch such as "4M".

    Raises
    ------
    ValueError
        Ranks cannot share the batch evenly.

    Examples
    --------
    >>> micro_batches("4M", 8192, data_parallel=64, micro_batch_size=2)
    4
    """
    sequences, at_once = sequences_of(written, seq_len), data_parallel * micro_batch_size
    if sequences % at_once:
        # Suggest the multiples below and above.
        near = sorted({max(1, sequences // at_once) * at_once, (sequences // at_once + 1) * at_once})
        raise ValueError(
            f"got {written}, {sequences:,} sequences; must be a multiple of {at_once:,} "
            f"({data_parallel:,} data-parallel ranks x micro_batch_size {micro_batch_size}); "
            f"write {' or '.join(f'{number}{SEQUENCES}' for number in near)}, or another micro_batch_size"
        )
    return sequences // at_once
