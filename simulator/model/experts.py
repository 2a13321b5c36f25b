"""What ranks exchange so that tokens get to their experts, which other ranks have, and back.

Ranks that cut an expert's matrices gather what each has been handed, and sum and scatter what comes out.

Rule: counts only, as in operation.py: with even choices a rank hands on T k tokens of h numbers and keeps the e-th of
them, there and back, and as much again for gradients: 4 (e-1)/e T k h w bytes a layer [1]_.

References
----------
.. [1] NVIDIA/Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py.
"""

from __future__ import annotations

from typing import Final

from simulator.model.cut import Communication, ExpertCut
from simulator.model.shape import Transformer

Communications = tuple[Communication, ...]
_CUT: Final = "expert tensor"


def expert_communications(model: Transformer, tokens: int, cut: ExpertCut) -> tuple[Communications, Communications]:
    """Those of the operation that hands tokens to experts, and of the one that takes them back.

    The first sends what its kernel has put in order; the second orders what it has been sent. Backward it is the other
    way round.
    """
    if cut.ranks == 1:
        return (), ()
    if cut.dispatch == "all_gather":
        whole = tokens * model.hidden_size * cut.ranks
        there = (
            _moved("tokens of all", "all_gather", whole, cut.dtype, backward=False, after=False),
            _moved("gradients of all tokens' sum", "reduce_scatter", whole, None, backward=True, after=True),
        )
        back = (
            _moved("sum of experts' outputs", "reduce_scatter", whole, None, backward=False, after=True),
            _moved("gradients of all", "all_gather", whole, None, backward=True, after=False),
        )
        return there, back
    copies = cut.chosen(model, tokens)
    if cut.dispatch == "deduplicated":
        copies = round(tokens * cut.distinct_ranks(model))
    elements = copies * model.hidden_size
    there = (
        _moved("tokens to experts", "all_to_all", elements, cut.dtype, backward=False, after=True),
        _moved("tokens' gradients from experts", "all_to_all", elements, None, backward=True, after=False),
    )
    back = (
        _moved("tokens from experts", "all_to_all", elements, None, backward=False, after=False),
        _moved("tokens' gradients to experts", "all_to_all", elements, cut.dtype, backward=True, after=True),
    )
    return there, back


def around_expert_columns(tokens: int, model: Transformer, cut: ExpertCut, backward_kernels: int) -> Communications:
    """Those of the matrices in front; `tokens` are all that the experts of these ranks get."""
    if cut.tensor == 1:
        return ()
    elements, after = tokens * model.hidden_size, backward_kernels
    return (
        Communication("gather experts' tokens", "all_gather", elements, False, 0, 0, group=_CUT),
        Communication("scatter experts' tokens gradient", "reduce_scatter", elements, True, after, after, group=_CUT),
    )


def around_expert_rows(tokens: int, model: Transformer, cut: ExpertCut) -> Communications:
    """Those of the matrices behind."""
    if cut.tensor == 1:
        return ()
    elements = tokens * model.hidden_size
    return (
        Communication("scatter experts' outputs", "reduce_scatter", elements, False, 1, 1, group=_CUT),
        Communication("gather experts' outputs gradient", "all_gather", elements, True, 0, 0, group=_CUT),
    )


def _moved(
    name: str,
    operation: str,
    elements: int,
    dtype: str | None,
    *,
    backward: bool,
    after: bool,
) -> Communication:
    """An exchange before or after the operation's one kernel, which nothing hides."""
    place = int(after)
    return Communication(name, operation, elements, backward, place, place, dtype, "experts")  # type: ignore[arg-type]
