"""Attention over sequences cut among ranks: the kernels of each step, and the exchanges around these kernels.

Only counts, as in layer.py. In units of a block of (s / 2 c)^2 scores, every rank of a balanced ring computes two
blocks in each of its c steps. In a contiguous ring rank r computes (2 r + 1) / c of the mean, and every rank waits for
the last.

Example with c = 2 and pieces 0 to 3 of a sequence; x marks blocks with visible keys:

    balanced: rank 0 has pieces 0 and 3, rank 1 has pieces 1 and 2
              keys 0   1   2   3
    query 0       x                   rank 0
    query 1       x   x               rank 1
    query 2       x   x   x           rank 1
    query 3       x   x   x   x       rank 0

Diagonal blocks are half masked, so each rank computes 4 blocks: 2 with its own keys and 2 with the other rank's.

References
----------
.. [1] Brandon et al., "Striped attention", 2023, arXiv:2311.09431, section 2 (why a contiguous ring is uneven).
.. [2] NVIDIA/TransformerEngine, transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py: the
   balanced order, and the exchanges of the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.model.kernel import Attention
from simulator.model.partition import Communication, Context, ModelPartition
from simulator.model.shape import Transformer


def attention_kernels(kernel: Attention, context: Context) -> tuple[Attention, ...]:
    """Return a context-parallel rank's forward attention kernels, step by step; `kernel` is that over its own
    tokens.
    """
    if context.ring == 1:
        return (kernel,)
    tokens = kernel.seq_len
    if not kernel.causal:
        # Every query sees every key: a single kernel over gathered keys, or an equal kernel in each step.
        gathered = replace(kernel, keys=tokens * context.ring)
        return (gathered,) if context.gathers else _steps(kernel, replace(kernel, keys=tokens), context.ring)
    if context.balanced:
        if context.gathers:
            # A single kernel over every key; causal, because early and late pieces average to half of the keys.
            return (replace(kernel, keys=tokens * context.ring),)
        # With keys of an earlier rank, every query sees the early half of the keys; with keys of a later rank, the late
        # half of the queries sees every key. Both cost queries x keys / 2. On the last rank, all keys are of earlier
        # ranks: it merges results of every query in every step, and the other ranks wait for it.
        return _steps(kernel, replace(kernel, causal=False, keys=tokens // 2), context.ring)
    if context.gathers:
        # A contiguous rank sees its own keys causally, and earlier ranks' keys entirely.
        earlier = replace(kernel, causal=False, keys=tokens * context.place)
        return (kernel, earlier) if context.place else (kernel,)
    # Later ranks' keys are masked completely: no kernel, yet the keys pass by in the ring.
    return _steps(kernel, replace(kernel, causal=False, keys=tokens), context.place + 1)


def _steps(kernel: Attention, other: Attention, steps: int) -> tuple[Attention, ...]:
    """Return the kernels of this number of ring steps: over the rank's own keys, then over those of other ranks."""
    kernels = [kernel, *[replace(other, summed=True)] * (steps - 1)]
    kernels[0] = replace(kernels[0], opens=True)
    kernels[-1] = replace(kernels[-1], closes=True)
    return tuple(kernels)


def attention_communications(
    model: Transformer, tokens: int, cut: ModelPartition, kernels: int
) -> tuple[Communication, ...]:
    """Return the exchanges between context-parallel ranks around a rank's attention kernels.

    Parameters
    ----------
    tokens : int
        The rank's own tokens.
    kernels : int
        Number of attention kernels of a pass.
    """
    if cut.context.ranks == 1:
        return ()
    heads, kv_heads = model.num_heads // cut.tensor, cut.kv_heads(model)
    if model.latent is None:
        # Keys and values have as many heads as the rank's key heads; the output is as large as the queries.
        moved = _Moved(*(tokens * model.head_dim * count for count in (heads, 2 * kv_heads, heads)))
    else:
        key, value = model.latent.key_dim, model.latent.value_dim
        # Latent attention: keys and values of full width for every head.
        moved = _Moved(*(tokens * heads * width for width in (key, key + value, value)))
    return (
        *_handed_over(moved, cut.context, kernels),
        *(_gathered if cut.context.gathers else _round)(moved.keys, cut.context, kernels),
        *_handed_back(moved, cut.context, kernels),
    )


@dataclass(frozen=True, slots=True)
class _Moved:
    """Number of query, key, value and output elements on a rank that must reach other ranks."""

    queries: int
    keys: int  # keys and values together
    output: int


def _handed_over(moved: _Moved, context: Context, kernels: int) -> Iterator[Communication]:
    """Yield Ulysses' all-to-alls before the attention kernels: q, k and v; backward, the output's gradient."""
    if context.ulysses > 1:
        elements = moved.queries + moved.keys
        yield Communication("heads for tokens", "all_to_all", elements, False, 0, 0, group="context")
        yield Communication("gradient's heads for tokens", "all_to_all", moved.output, True, 0, 0, group="context")


def _handed_back(moved: _Moved, context: Context, kernels: int) -> Iterator[Communication]:
    """Yield Ulysses' all-to-alls after the attention kernels: the output; backward, the gradients of q, k and v."""
    if context.ulysses > 1:
        # Index beyond the last kernel: start after it, and let the next operation wait.
        end = kernels, kernels
        yield Communication("tokens for heads", "all_to_all", moved.output, False, *end, group="context")
        back = moved.queries + moved.keys
        yield Communication("gradients' tokens for heads", "all_to_all", back, True, *end, group="context")


def _gathered(keys: int, context: Context, kernels: int) -> Iterator[Communication]:
    """Yield the all-gathers of keys and values in both passes, and the reduce-scatter of their gradients."""
    if context.ring > 1:
        elements = keys * context.ring
        yield Communication("gather keys", "all_gather", elements, False, 0, 0, group="context ring")
        yield Communication("gather keys again", "all_gather", elements, True, 0, 0, group="context ring")
        yield Communication(
            "scatter keys' gradients", "reduce_scatter", elements, True, kernels, kernels, group="context ring"
        )


def _round(keys: int, context: Context, kernels: int) -> Iterator[Communication]:
    """Yield the shifts of ring attention: keys and values move to the next rank while each step's kernel runs.

    In the backward pass, the gradients of keys and values follow their keys and finally return home. Every rank issues
    the shifts in step order, even in steps where its block is masked, because a collective needs all ranks.
    """
    elements = keys * context.ring

    def shift(name: str, step: int, before: int, *, backward: bool) -> Communication:
        # A rank of a contiguous ring has fewer kernels than the ring has steps; later shifts come after its last
        # kernel.
        places = min(before, kernels), min(before + 1, kernels)
        return Communication(f"{name} {step}", "ring_shift", elements, backward, *places, group="context ring")

    for step in range(context.ring + 1 if context.ring > 1 else 0):
        if step < context.ring - 1:
            yield shift("keys", step + 1, step, backward=False)
            yield shift("keys again", step + 1, step, backward=True)
        if step > 0:
            # Shift s starts after kernel s - 1 and runs beside kernel s; shift s + 1 sends the sum of both.
            yield shift("keys' gradients", step, step, backward=True)
