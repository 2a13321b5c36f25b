"""How long does a flash attention kernel take? The slower of its tiles on the SMs and its bytes through HBM.

This module turns numbers into seconds; efficiencies are published figures stored in the GPU catalog.

Example: 512 causal queries form 4 strips of 128 rows. Strip i attends to i tiles of 128 keys, the diagonal's tile
included, hence a head has 1 + 2 + 3 + 4 = 10 tiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simulator.model.kernel import Attention, keys_of_query

# Generations 1 to 3 are FlashAttention's; 3 are kernels for Hopper's units, 4 those for Blackwell's (FlashAttention-4,
# cuDNN).
Generation = Literal[1, 2, 3, 4]

# Query rows of a thread block (recalled: 64 to 128, by head_dim and generation).
BLOCK: Final = 128
# Published efficiencies are for this head_dim.
_PUBLISHED: Final = 128
# FLOP per score and head dimension: two matmuls with a multiplication and an addition each.
_OF_A_SCORE: Final = 4


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """Constants of attention kernels on a GPU, for a dtype and generation."""

    peak_flops: float  # peak rate in this dtype [FLOP/s]
    sms: int  # number of SMs
    hbm_bandwidth: float  # HBM bandwidth reached by kernels [B/s]
    launch: float  # launch overhead [s]
    # Share of the peak, 0 to 1: in the matmuls of a tile if `softmax` is given, else in whole kernels at head_dim 128
    # and long sequences, forward and backward together
    efficiency: float
    # Exponentials computed by the GPU [1/s]; each score needs an exponential, whatever the head_dim
    exponentials: float
    generation: Generation
    on_chip: float  # shared memory of an SM [B]
    itemsize: int  # bytes of an element [B]
    # Time of a score's softmax beside its matmuls, in exponentials; None: published efficiencies contain it
    softmax: float | None = None
    prologue: float = 0.0  # overhead paid once per strip of queries [s]
    # Share of the tiles behind a window that the kernel computes in vain, 0 to 1
    masked: float = 0.0


def attention_time(
    constants: AttentionConstants, kernel: Attention, sms_taken: int = 0, hbm_share: float = 1.0
) -> float:
    """Return the duration of an attention kernel [s]: the slower of its tiles on the SMs and its bytes in HBM.

    Parameters
    ----------
    sms_taken : int
        SMs taken by a collective.
    hbm_share : float
        Share of HBM bandwidth left to the kernel.

    Notes
    -----
    compute = (tiles on the busiest SM) x (FLOP of a tile) / (an SM's rate). Causal strips have unequal lengths and
    balance over SMs, hence the mean counts, and at least the longest strip; equal strips run in whole waves. Generation
    1 assigns a whole head of a sequence to an SM, later generations a strip of 128 rows, each with a prologue.
    """
    c = constants
    free = c.sms - sms_taken
    compute = _block_steps(kernel, c, free) * _tile_time(c, kernel)
    if c.prologue:
        strips = sum(count * -(-queries // BLOCK) for count, queries, _ in kernel.blocks)
        compute += -(-kernel.heads * strips // free) * c.prologue
    moved = attention_bytes(kernel, c.itemsize, c.generation, c.on_chip) / (c.hbm_bandwidth * hbm_share)
    return c.launch + max(compute, moved)


def _block_steps(kernel: Attention, c: AttentionConstants, free: int) -> float:
    """Return the tiles (BLOCK x BLOCK scores) that the busiest of `free` SMs computes."""
    total = longest_strip = 0.0
    heads, strips = kernel.batch * kernel.heads, 0
    # Masked scores inside the diagonal's tiles are computed too; a window covers its own tiles and the diagonal's.
    tiles = -(-kernel.window // BLOCK)
    for count, queries, keys in kernel.blocks:
        rows, columns = -(-queries // BLOCK), -(-keys // BLOCK)
        per_strip = (
            keys_of_query(columns, tiles, chunked=kernel.chunked, diagonal=1) if kernel.causal else float(columns)
        )
        if tiles and c.masked:
            per_strip += c.masked * (keys_of_query(columns, diagonal=1) - per_strip)
        longest = min(columns, tiles + (not kernel.chunked)) if tiles else columns
        total, longest_strip = total + count * rows * per_strip, max(longest_strip, float(longest))
        strips += count * rows
    per_head = total / kernel.batch
    # A whole head runs on one SM: few heads leave SMs idle.
    if c.generation == 1:
        return -(-heads // free) * per_head
    if kernel.causal or kernel.documents:
        # The longest strip runs on one SM, even if every other SM is idle.
        return max(kernel.heads * total / free, longest_strip)
    # Wave quantisation: the last wave takes as long as a full wave.
    return -(-kernel.heads * strips // free) * longest_strip


def _tile_time(c: AttentionConstants, kernel: Attention) -> float:
    """Return the time of a tile of BLOCK x BLOCK scores on an SM [s]: matmuls (two forward, five backward), softmax."""
    scores = float(BLOCK * BLOCK)
    flops = 2.0 * (5 if kernel.backward else 2) * scores * kernel.head_dim
    rate = c.peak_flops / c.sms
    # A soft-cap's tanh takes as long as an exponential.
    exponentials = 2 if kernel.capped else 1
    if c.softmax is not None:
        return flops / (c.efficiency * rate) + exponentials * c.softmax * scores * c.sms / c.exponentials
    exponential = c.peak_flops / (_OF_A_SCORE * c.exponentials)  # an exponential's duration, in head dimensions
    softmax = exponentials * exponential
    # The fraction of time spent in matmuls, relative to the published head_dim 128.
    share = kernel.head_dim / (kernel.head_dim + softmax) * (_PUBLISHED + exponential) / _PUBLISHED
    return flops / (min(1.0, c.efficiency * share) * rate)


def attention_bytes(kernel: Attention, itemsize: int, generation: Generation, on_chip: float) -> float:
    """Return the bytes that an attention kernel of a FlashAttention generation (1, 2 or 3) moves through HBM [B].

    Generation 1 has an outer loop over tiles of K and V with ceil(M / 4 d) rows each, for M elements on chip; for each
    tile, Q is read, and the output is read and written (Dao et al. 2022, algorithm 1; algorithm 4 backward). Later
    generations keep a strip of the output on chip and find K and V in L2: every array passes HBM once.

    Examples
    --------
    GPT-2 medium, forward and backward, with 192 KB on chip: 4 GB.

    >>> both = [Attention("", 64, 16, 16, 1024, 64, causal=False, backward=b) for b in (False, True)]
    >>> round(sum(attention_bytes(a, 2, 1, 192 * 1024) for a in both) / 1e9, 1)
    4.1
    """
    if generation != 1:
        return kernel.nbytes(itemsize)
    # The output has Q's size. K and V are smaller with grouped-query attention.
    q = float(kernel.batch * kernel.seq_len * kernel.heads * kernel.head_dim * itemsize)
    kv = q * kernel.kv_heads / kernel.heads * kernel.attended / kernel.seq_len
    # Row maxima and row sums are float32.
    statistics = 4.0 * kernel.batch * kernel.seq_len * kernel.heads
    columns = -(-int(on_chip / itemsize) // (4 * kernel.head_dim))
    walks = float(-(-kernel.attended // columns))
    if kernel.causal:
        # On average, causal masking skips half of the tiles.
        walks = (walks + 1) / 2
    if kernel.backward:
        return 4 * kv + walks * (5 * q + 2 * statistics)
    return 2 * kv + walks * (3 * q + 4 * statistics)
