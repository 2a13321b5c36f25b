"""How long a flash attention kernel takes, by its generation: blocks of rows on SMs, and what passes HBM.

Rule: numbers in, seconds out; efficiencies are published figures that the catalog holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simulator.model.kernel import Attention

Generation = Literal[1, 2, 3]

# Rows of Q that a block of threads takes at a time (recalled: 64 to 128, by head_dim and generation).
BLOCK: Final = 128
# The head_dim for which efficiencies are published.
_PUBLISHED: Final = 128
# FLOP of the two matmuls of a score, for each head dimension.
_OF_A_SCORE: Final = 4


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """One GPU, dtype and generation.

    Attributes
    ----------
    peak_flops : float
        [FLOP/s]
    sms : int
    hbm_bandwidth : float
        What kernels reach of it [B/s].
    launch : float
        [s]
    efficiency : float
        Share of the peak at head_dim 128, long sequences, forward and backward together, 0 to 1.
    exponentials : float
        How many the GPU computes [1/s]: each score needs one, however few dimensions a head has.
    generation : {1, 2, 3}
    on_chip : float
        Shared memory of an SM [B].
    itemsize : int
        [B]
    """

    peak_flops: float
    sms: int
    hbm_bandwidth: float
    launch: float
    efficiency: float
    exponentials: float
    generation: Generation
    on_chip: float
    itemsize: int


def attention_time(
    constants: AttentionConstants, kernel: Attention, sms_taken: int = 0, hbm_share: float = 1.0
) -> float:
    """Time one attention kernel: the slower of its blocks on the SMs and its bytes in HBM.

    Parameters
    ----------
    constants : AttentionConstants
    kernel : Attention
    sms_taken : int
    hbm_share : float

    Returns
    -------
    float
        [s]

    Notes
    -----
    compute = max(blocks x mean block / free SMs, longest block) / rate of an SM where blocks are unlike (causal), else
    whole waves. Generation 1 gives each head of each sequence to one SM; later ones each strip of 128 rows.
    """
    c = constants
    free = c.sms - sms_taken
    compute = _block_steps(kernel, c.generation, free) * _flops_of_step(kernel) / _sm_rate(c, kernel.head_dim)
    moved = attention_bytes(kernel, c.itemsize, c.generation, c.on_chip) / (c.hbm_bandwidth * hbm_share)
    return c.launch + max(compute, moved)


def _block_steps(kernel: Attention, generation: Generation, free: int) -> float:
    """Tiles of scores, BLOCK x BLOCK, that the busiest SM computes."""
    strips, columns = -(-kernel.seq_len // BLOCK), -(-kernel.attended // BLOCK)
    heads = kernel.batch * kernel.heads
    # The diagonal's tiles are computed whole.
    per_head = strips * (columns + 1) / 2 if kernel.causal else float(strips * columns)
    if generation == 1:
        return -(-heads // free) * per_head
    if kernel.causal:
        return max(heads * per_head / free, float(columns))
    return -(-heads * strips // free) * float(columns)


def _flops_of_step(kernel: Attention) -> float:
    return 2.0 * (5 if kernel.backward else 2) * BLOCK * BLOCK * kernel.head_dim


def _sm_rate(c: AttentionConstants, head_dim: int) -> float:
    """An SM's rate [FLOP/s]: published for heads of 128; others spend another share of their time on exponentials."""
    exponential = c.peak_flops / (_OF_A_SCORE * c.exponentials)  # in head dimensions, which take as long
    share = head_dim / (head_dim + exponential) * (_PUBLISHED + exponential) / _PUBLISHED
    return min(1.0, c.efficiency * share) * c.peak_flops / c.sms


def attention_bytes(kernel: Attention, itemsize: int, generation: Generation, on_chip: float) -> float:
    """Count what a generation's kernel moves through HBM [B].

    Generation 1 walks over blocks of K and V outside, ceil(M/4d) rows each for M elements on chip, and reads Q and
    reads and writes the output again for each of them (Dao et al. 2022, algorithm 1; algorithm 4 backward). Later ones
    keep a strip of the output on chip and find K and V in L2: every array passes once.

    Examples
    --------
    GPT-2 medium, forward and backward, with 192 KB on chip: 4 GB.

    >>> both = [Attention("", 64, 16, 16, 1024, 64, causal=False, backward=b) for b in (False, True)]
    >>> round(sum(attention_bytes(a, 2, 1, 192 * 1024) for a in both) / 1e9, 1)
    4.1
    """
    if generation != 1:
        return kernel.nbytes(itemsize)
    q = float(kernel.batch * kernel.seq_len * kernel.heads * kernel.head_dim * itemsize)
    kv = q * kernel.kv_heads / kernel.heads * kernel.attended / kernel.seq_len
    statistics = 4.0 * kernel.batch * kernel.seq_len * kernel.heads
    columns = -(-int(on_chip / itemsize) // (4 * kernel.head_dim))
    walks = float(-(-kernel.attended // columns))
    if kernel.causal:
        walks = (walks + 1) / 2
    if kernel.backward:
        return 4 * kv + walks * (5 * q + 2 * statistics)
    return 2 * kv + walks * (3 * q + 4 * statistics)
