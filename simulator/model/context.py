"""Attention over sequences that are cut among ranks: the kernels of each step, and what is exchanged around them.

Rule: counts only, as in layer.py. In units of a block of (s / 2 c)^2 scores a balanced ring computes two in each of its
c steps on every rank; a contiguous one computes (2 r + 1) / c of the mean on rank r, and its last rank holds up all.

References
----------
.. [1] Brandon et al., "Striped attention", 2023, arXiv:2311.09431, section 2 (why a contiguous ring is uneven).
.. [2] NVIDIA/TransformerEngine, transformer_engine/pytorch/attention/dot_product_attention/context_parallel.py: the
   balanced order, and what goes round in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from simulator.model.cut import Communication, Context, Cut
from simulator.model.kernel import Attention
from simulator.model.shape import Transformer


def attention_kernels(own: Attention, context: Context) -> tuple[Attention, ...]:
    """The forward kernels of one rank, step by step; `own` is the one over its own tokens."""
    if context.ring == 1:
        return (own,)
    tokens = own.seq_len
    if context.balanced:
        if context.gathers:
            return (replace(own, keys=tokens * context.ring),)
        # Of earlier ranks' keys all queries see the first half, of later ranks' the second half of them sees all.
        other = replace(own, causal=False, keys=tokens // 2)
        return (own, *[other] * (context.ring - 1))
    if context.gathers:
        earlier = replace(own, causal=False, keys=tokens * context.place)
        return (own, earlier) if context.place else (own,)
    # Keys of later ranks are masked: nothing is computed with them, but they pass by.
    return (own, *[replace(own, causal=False, keys=tokens)] * context.place)


def attention_communications(model: Transformer, tokens: int, cut: Cut, kernels: int) -> tuple[Communication, ...]:
    """What is exchanged around so many kernels over a rank's own tokens."""
    if cut.context.ranks == 1:
        return ()
    heads, own = model.num_heads // cut.tensor, cut.kv_heads(model)
    if model.latent is None:
        moved = _Moved(*(tokens * model.head_dim * count for count in (heads, 2 * own, heads)))
    else:
        key, value = model.latent.key_dim, model.latent.value_dim
        moved = _Moved(*(tokens * heads * width for width in (key, key + value, value)))
    return (
        *_handed_over(moved, cut.context, kernels),
        *(_gathered if cut.context.gathers else _round)(moved.keys, cut.context, kernels),
        *_handed_back(moved, cut.context, kernels),
    )


@dataclass(frozen=True, slots=True)
class _Moved:
    """Elements that a rank has of what others need.

    Attributes
    ----------
    queries, keys, output : int
        `keys` with the values.
    """

    queries: int
    keys: int
    output: int


def _handed_over(moved: _Moved, context: Context, kernels: int) -> Iterator[Communication]:
    """Ulysses, before the kernels: queries, keys and values forward, the output's gradient backward."""
    if context.ulysses > 1:
        there = moved.queries + moved.keys
        yield Communication("heads for tokens", "all_to_all", there, False, 0, 0, group="context")
        yield Communication("gradient's heads for tokens", "all_to_all", moved.output, True, 0, 0, group="context")


def _handed_back(moved: _Moved, context: Context, kernels: int) -> Iterator[Communication]:
    """Behind the kernels: the output forward, gradients of queries, keys and values backward."""
    if context.ulysses > 1:
        end = kernels, kernels
        yield Communication("tokens for heads", "all_to_all", moved.output, False, *end, group="context")
        back = moved.queries + moved.keys
        yield Communication("gradients' tokens for heads", "all_to_all", back, True, *end, group="context")


def _gathered(keys: int, context: Context, kernels: int) -> Iterator[Communication]:
    """Keys and values of all, gathered again for the backward pass, whose gradients of them are then scattered."""
    if context.ring > 1:
        whole = keys * context.ring
        yield Communication("gather keys", "all_gather", whole, False, 0, 0, group="context ring")
        yield Communication("gather keys again", "all_gather", whole, True, 0, 0, group="context ring")
        yield Communication(
            "scatter keys' gradients", "reduce_scatter", whole, True, kernels, kernels, group="context ring"
        )


def _round(keys: int, context: Context, kernels: int) -> Iterator[Communication]:
    """Keys and values go round while each step's kernel runs; backward their gradients follow them, and come home.

    All ranks issue them in one order, that of the steps, also those that compute nothing in some of them.
    """
    whole = keys * context.ring

    def shift(name: str, step: int, before: int, *, backward: bool) -> Communication:
        places = min(before, kernels), min(before + 1, kernels)
        return Communication(f"{name} {step}", "ring_shift", whole, backward, *places, group="context ring")

    for step in range(context.ring + 1 if context.ring > 1 else 0):
        if step < context.ring - 1:
            yield shift("keys", step + 1, step, backward=False)
            yield shift("keys again", step + 1, step, backward=True)
        if step > 0:
            # What has come is added to a step's own when that has been computed.
            yield shift("keys' gradients", step, step, backward=True)
