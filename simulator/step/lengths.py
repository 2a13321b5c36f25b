"""How long are the documents of a training, and which does a rank get in each micro-batch?

A step's documents are drawn from a distribution of lengths, with a seed, and batched: padded to one length, or packed
into sequences in which queries see keys of their own document alone. Ranks then have unequal work, and whoever is
through waits for the slowest.

Example: documents of 5, 3, 3, 2 and 2 tokens, in sequences of 8 on two ranks:

    pad               5...  3...  3...  2...  2...       a sequence for each document: 15 of 40 tokens are used
    pack              5 3 | 3 2 2 .                      15 of 16
"""

from __future__ import annotations

import csv
from bisect import bisect_left, insort
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import heappop, heappush
from math import log
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from simulator.basics import counts, reading
from simulator.basics.arrays import Ints
from simulator.basics.spec import Frozen, Spec
from simulator.step.kernels.attention_time import BLOCK

Batching = Literal["pad", "pad_to_longest", "bucket", "pack", "pack_balanced"]
PACKING: Final = ("pack", "pack_balanced")
# Micro-batches that are padded to their longest sequence have a multiple of this number of tokens: what tensor cores
# want (Transformers, `pad_to_multiple_of` of its data collators).
MULTIPLE: Final = 8
# The longest context in a published model is ten million tokens.
_MOST_TOKENS: Final = 10**9
_MOST_SEED: Final = 2**31 - 1
# Most sequences of a step, whose documents are drawn one by one.
MOST_SEQUENCES: Final = 1_000_000
# Most steps of a scenario with other documents each.
_MOST_STEPS: Final = 1000


def _histogram() -> reading.ValueReader:
    """Return a validator for a mapping of length to weight."""
    length, weight = reading.count(1, _MOST_TOKENS, counts.TOKENS), reading.number(positive=True, most=1e12)

    def reader(value: Any) -> Frozen:
        if not isinstance(value, Mapping) or not value:
            raise ValueError(f"got {reading.shown(value)}; must map lengths to weights, such as {{512: 8, 4k: 1}}")
        return Frozen({length.reader(key): float(weight.reader(count)) for key, count in value.items()})

    schema = {"type": "object", "minProperties": 1, "additionalProperties": weight.schema()}
    return reading.ValueReader(reader, lambda: schema)


class Lengths(Spec):
    """Lengths of the documents of a training (keys of `training.lengths`): a distribution, a file, or a histogram."""

    distribution: Annotated[Literal["lognormal"], reading.choice(("lognormal",))] | None = Field(
        default=None, description="Distribution of lengths: lognormal, with median and sigma."
    )
    median: Annotated[int, reading.count(1, _MOST_TOKENS, counts.TOKENS)] | None = Field(
        default=None, description="Median length in tokens, of a lognormal distribution."
    )
    sigma: Annotated[float, reading.number(positive=True, most=10)] | None = Field(
        default=None, description="Standard deviation of the logarithm of lengths; 1 to 1.5 is usual for web text."
    )
    file: str | None = Field(
        default=None, description="Path of a CSV file with the column length, and count if a line stands for several."
    )
    histogram: Annotated[Frozen, _histogram()] | None = Field(
        default=None, description="Lengths with their weights, such as {512: 8, 4k: 1}."
    )
    max: Annotated[int, reading.count(1, _MOST_TOKENS, counts.TOKENS)] | None = Field(
        default=None, description="Longest document; longer ones are cut. By default, and at most, seq_len."
    )
    seed: Annotated[int, reading.whole(0, _MOST_SEED)] = Field(
        default=0, description="Seed of the drawn lengths and of their order."
    )
    steps: Annotated[int, reading.whole(1, _MOST_STEPS)] = Field(
        default=1, description="Steps with other documents that are simulated; the report is that of the median step."
    )

    @model_validator(mode="after")
    def _one_source(self) -> Lengths:
        """Refuse no source of lengths, several sources, and a distribution without its numbers."""
        sources = [name for name in ("distribution", "file", "histogram") if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ValueError(f"needs one of distribution, file and histogram; got {' and '.join(sources) or 'none'}")
        if (self.distribution is None) != (self.median is None) or (self.median is None) != (self.sigma is None):
            raise ValueError("median and sigma belong to distribution: lognormal; write all three, or none")
        return self

    def located(self, base: Path | None) -> Lengths:
        """Return the keys with the path of the file under a folder."""
        return self if self.file is None or base is None else self.replaced(file=str(base / self.file))

    @property
    def source(self) -> Callable[[int, np.random.Generator], Ints]:
        """A function (count, generator) -> drawn lengths, shape (count,).

        Raises
        ------
        ValueError
            The file cannot be read as lengths.
        """
        if self.median is not None and self.sigma is not None:
            mean, sigma = log(self.median), self.sigma
            return lambda count, generator: np.maximum(1, np.rint(generator.lognormal(mean, sigma, count))).astype(int)
        weights = dict(self.histogram) if self.histogram is not None else read_lengths(self.file or "")
        lengths, shares = np.array(list(weights), np.int64), np.array(list(weights.values()))
        shares /= shares.sum()
        return lambda count, generator: generator.choice(lengths, count, p=shares)


def read_lengths(path: str) -> dict[int, float]:
    """Return the lengths in a CSV file, each with the number of documents; raise ValueError naming the wrong line."""
    weights: dict[int, float] = {}
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    reader = csv.DictReader(text.splitlines())
    if "length" not in (reader.fieldnames or ()):
        raise ValueError(f"{path} line 1: got {', '.join(reader.fieldnames or ())}; must have the column length")
    for row in reader:
        try:
            length, count = int(row["length"]), float(row.get("count") or 1)
        except (TypeError, ValueError):
            length, count = 0, 0.0
        if not 1 <= length <= _MOST_TOKENS or not 0.0 < count < 1e15:
            raise ValueError(f"{path} line {reader.line_num}: needs a length of at least 1, and a positive count")
        weights[length] = weights.get(length, 0.0) + count
    if not weights:
        raise ValueError(f"{path} has no lengths")
    return weights


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of a rank, as it is computed."""

    # `sequences`, `seq_len`: Number of sequences, and tokens of each, padding included.
    sequences: int
    seq_len: int
    used: int = field(compare=False)  # tokens that are not padding
    # Tokens of each packed document, the longest first; empty if every sequence is one document.
    documents: tuple[int, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens that are computed."""
        return self.sequences * self.seq_len

    @property
    def pairs(self) -> int:
        """Pairs of query and key within documents, in whole tiles, by which attention's work grows."""
        documents = self.documents or (self.seq_len,) * self.sequences
        return sum(_in_tiles(tokens) for tokens in documents)


def _in_tiles(tokens: int) -> int:
    """Return the pairs of query and key of a document, in whole tiles of the attention kernels.

    >>> _in_tiles(2), _in_tiles(256)
    (16384, 65536)
    """
    return (-(-tokens // BLOCK) * BLOCK) ** 2


# For each rank, its micro-batches in order.
Batches = tuple[tuple[MicroBatch, ...], ...]


@lru_cache(maxsize=64)
def batches(lengths: Lengths, batching: Batching, seq_len: int, sequences: int, shape: tuple[int, int]) -> Batches:
    """Return the micro-batches of a step's ranks, with drawn documents.

    Parameters
    ----------
    seq_len, sequences : int
        Tokens of a sequence at most, and sequences of a micro-batch.
    shape : (int, int)
        Data-parallel ranks, and micro-batches of each.

    Examples
    --------
    >>> fixed = Lengths(histogram={2: 1.0})
    >>> batches(fixed, "pad_to_longest", 16, 3, (1, 1))
    ((MicroBatch(sequences=3, seq_len=8, used=6, documents=()),),)
    >>> batches(fixed, "pack", 5, 1, (1, 1))
    ((MicroBatch(sequences=1, seq_len=5, used=4, documents=(2, 2)),),)
    """
    ranks, micros = shape
    generator, draw = np.random.default_rng(lengths.seed), lengths.source
    longest, rows = min(lengths.max or seq_len, seq_len), ranks * micros * sequences
    if batching in PACKING:
        packed = _packed(_to_fill(draw, rows * seq_len, longest, generator), rows, seq_len)
        # The fullest sequences came first.
        order = [packed[place] for place in generator.permutation(rows)]
        micro_batches = [_of_rows(order[place : place + sequences], seq_len) for place in range(0, rows, sequences)]
        balanced = batching == "pack_balanced"
        return _balanced(packed, micro_batches, seq_len, shape) if balanced else _dealt(micro_batches, shape)
    documents = np.minimum(draw(rows, generator), longest)
    if batching == "bucket":
        documents = np.sort(documents)[::-1]
    groups = documents.reshape(-1, sequences).tolist()
    return _dealt([_padded(group, seq_len if batching == "pad" else 0) for group in groups], shape)


def _to_fill(
    draw: Callable[[int, np.random.Generator], Ints], tokens: int, longest: int, generator: np.random.Generator
) -> list[int]:
    """Return drawn documents, cut to `longest` tokens, that together have at least a number of tokens."""
    documents = np.zeros(0, np.int64)
    while (total := int(documents.sum())) < tokens:
        mean = total / len(documents) if len(documents) else longest
        more = draw(int((tokens - total) / mean) + 16, generator)
        documents = np.concatenate([documents, np.minimum(more, longest)])
    enough: list[int] = documents[: int(np.searchsorted(np.cumsum(documents), tokens)) + 1].tolist()
    return enough


def _packed(documents: Sequence[int], rows: int, seq_len: int) -> list[list[int]]:
    """Return the lengths of the documents in each of `rows` sequences of `seq_len` tokens [tokens].

    The longest document comes first, and each goes into the fullest sequence in which so many tokens are left: best fit
    decreasing, as huggingface/trl does with `packing_strategy="bfd"` (trl/data_utils.py; recalled). No document is
    longer than a sequence. A document for which no sequence has tokens left is not part of this training step.

    >>> _packed([5, 3, 3, 2, 2], 2, 8)
    [[5, 3], [3, 2, 2]]
    """
    packed: list[list[int]] = [[] for _ in range(rows)]
    # Sequences by the room that they have left, as heaps: among equals, the first comes first. A list of all sequences
    # by room would take a time that grows with the square of their number.
    by_room, rooms = {seq_len: list(range(rows))}, [seq_len]
    for tokens in sorted(documents, reverse=True):
        place = bisect_left(rooms, tokens)
        if place == len(rooms):
            continue
        left = rooms[place]
        row = heappop(by_room[left])
        packed[row].append(tokens)
        if not by_room[left]:
            del by_room[left], rooms[place]
        if left - tokens not in by_room:
            by_room[left - tokens] = []
            insort(rooms, left - tokens)
        heappush(by_room[left - tokens], row)
    return packed


def _of_rows(rows: Sequence[Sequence[int]], seq_len: int) -> MicroBatch:
    """Return a micro-batch of packed sequences."""
    documents = sorted((tokens for row in rows for tokens in row), reverse=True)
    is_unpacked = documents == [seq_len] * len(rows)
    return MicroBatch(len(rows), seq_len, sum(documents), () if is_unpacked else tuple(documents))


def _padded(lengths: Sequence[int], seq_len: int) -> MicroBatch:
    """Return a micro-batch of sequences padded to `seq_len` tokens; 0: to the longest of them."""
    return MicroBatch(len(lengths), seq_len or -(-max(lengths) // MULTIPLE) * MULTIPLE, sum(lengths))


def _dealt(micro_batches: Sequence[MicroBatch], shape: tuple[int, int]) -> Batches:
    """Return micro-batches dealt to ranks: the first to each rank, then the second."""
    ranks, micros = shape
    return tuple(tuple(micro_batches[micro * ranks + rank] for micro in range(micros)) for rank in range(ranks))


def _balanced(
    packed: Sequence[Sequence[int]], unsorted: Sequence[MicroBatch], seq_len: int, shape: tuple[int, int]
) -> Batches:
    """Return packed sequences dealt so that micro-batches of one time have like work, and ranks over all their
    micro-batches; the micro-batches `unsorted` if no rank has less to do then.
    """
    rows = sorted(packed, key=lambda row: -sum(map(_in_tiles, row)))
    count = len(unsorted)
    # Turn by turn, back and forth: the heaviest sequence goes with the lightest ones.
    groups: list[list[Sequence[int]]] = [[] for _ in range(count)]
    for place, row in enumerate(rows):
        turn, group = divmod(place, count)
        groups[group if turn % 2 == 0 else count - 1 - group].append(row)
    heaviest = sorted((_of_rows(group, seq_len) for group in groups), key=lambda micro: -micro.pairs)
    ranks, micros = shape
    turns = [heaviest[turn * ranks : (turn + 1) * ranks][:: -1 if turn % 2 else 1] for turn in range(micros)]
    dealt = tuple(tuple(turn[rank] for turn in turns) for rank in range(ranks))
    return min(dealt, _dealt(unsorted, shape), key=most_work)


def used_share(ranks: Batches) -> float:
    """Return the share of all computed tokens that are not padding."""
    micros = [micro for rank in ranks for micro in rank]
    return sum(micro.used for micro in micros) / sum(micro.tokens for micro in micros)


def most_work(ranks: Batches) -> int:
    """Return the pairs of query and key of the rank with the most, over its micro-batches."""
    return max(sum(micro.pairs for micro in rank) for rank in ranks)
