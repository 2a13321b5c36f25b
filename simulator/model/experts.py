"""Which exchanges bring tokens to remote experts and back? Two all-to-alls per layer and pass, or gathers.

Ranks that cut an expert's matrices also gather the tokens handed to each, and reduce-scatter the outputs.

Only counts, as in operation.py: with even choices a rank sends T k tokens of h numbers and keeps 1 / e of them, there
and back, and the same again for gradients: 4 (e-1)/e T k h w bytes a layer [1]_.

References
----------
.. [1] NVIDIA/Megatron-LM, megatron/core/transformer/moe/token_dispatcher.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, Literal

from simulator.model.expert_partition import ExpertPartition
from simulator.model.partition import Communication
from simulator.model.shape import Transformer

ExpertGroup = Literal["experts", "experts node", "experts rail"]
Communications = tuple[Communication, ...]
_CUT: Final = "expert tensor"


def expert_communications(
    model: Transformer, tokens: int, cut: ExpertPartition
) -> tuple[Communications, Communications]:
    """Return the exchanges for the operations "dispatch" (tokens to experts) and "combine" (outputs back), for a rank's
    `tokens`.

    Dispatch sends after its kernel has sorted the tokens; combine sorts after receiving. In the backward pass the order
    is reversed.
    """
    # Every expert is on this rank.
    if cut.ranks == 1:
        return (), ()
    # Every rank receives every token and drops the tokens of other ranks' experts; outputs are summed by a
    # reduce-scatter.
    if cut.exchange.dispatch == "all_gather":
        elements = tokens * model.expert_width * cut.ranks
        dispatch = (
            _moved("tokens of all", "all_gather", elements, cut.exchange.sent_dtype, backward=False, after=False),
            _moved("gradients of all tokens' sum", "reduce_scatter", elements, None, backward=True, after=True),
        )
        back = (
            _moved("sum of experts' outputs", "reduce_scatter", elements, None, backward=False, after=True),
            _moved("gradients of all", "all_gather", elements, None, backward=True, after=False),
        )
        return dispatch, back
    sent = tuple(_sent(model, tokens, cut))
    # Only the way to the experts uses the narrower dtype: tokens forward, output gradients backward.
    handed = (
        *_exchanged("tokens to experts", sent, cut.exchange.sent_dtype, backward=False, after=True),
        *_exchanged("tokens' gradients from experts", sent, None, backward=True, after=False),
    )
    returned = (
        *_exchanged("tokens from experts", sent, None, backward=False, after=False),
        *_exchanged("tokens' gradients to experts", sent, cut.exchange.sent_dtype, backward=True, after=True),
    )
    return handed, returned


def _sent(model: Transformer, tokens: int, cut: ExpertPartition) -> Iterator[tuple[ExpertGroup, int]]:
    """Yield the process groups in which a rank's `tokens` are exchanged concurrently, each with the number of elements
    (copies of tokens x width) that the rank sends in the group, the part for the rank itself included.

    `cut` distributes the experts over ranks and names the dispatch. With the dispatch "deduplicated", a token is sent
    once to each node with at least one of the token's experts, and is forwarded there once to each rank with such an
    expert. A rank forwards the tokens of the ranks with the same index on every node: on average as many tokens as the
    rank has itself. Tokens are forwarded as they arrive, hence both exchanges run at the same time. With other
    dispatches a token is sent once for each chosen expert, in one exchange.
    """
    if cut.exchange.dispatch != "deduplicated":
        yield "experts", cut.chosen(model, tokens) * model.expert_width
        return
    if cut.nodes > 1:
        yield "experts rail", round(tokens * cut.distinct(model, cut.nodes)) * model.expert_width
    group: ExpertGroup = "experts node" if cut.nodes > 1 else "experts"
    yield group, round(tokens * cut.distinct(model, cut.ranks)) * model.expert_width


def _exchanged(
    name: str, sent: Iterable[tuple[ExpertGroup, int]], dtype: str | None, *, backward: bool, after: bool
) -> Iterator[Communication]:
    """Yield the all-to-alls in expert-parallel groups, given with the elements that a rank sends in each."""
    for group, elements in sent:
        where = " across nodes" if group == "experts rail" else ""
        yield _moved(name + where, "all_to_all", elements, dtype, backward=backward, after=after, group=group)


def around_expert_columns(
    tokens: int, model: Transformer, cut: ExpertPartition, backward_kernels: int
) -> Communications:
    """Return the exchanges around experts' first matrices, if cut over ranks; `tokens` counts the gathered tokens."""
    if cut.tensor == 1:
        return ()
    elements, after = tokens * model.expert_width, backward_kernels
    return (
        Communication("gather experts' tokens", "all_gather", elements, False, 0, 0, group=_CUT),
        Communication("scatter experts' tokens gradient", "reduce_scatter", elements, True, after, after, group=_CUT),
    )


def around_expert_rows(tokens: int, model: Transformer, cut: ExpertPartition) -> Communications:
    """Return the exchanges around experts' second matrices, if cut over ranks; `tokens` counts the gathered tokens."""
    if cut.tensor == 1:
        return ()
    elements = tokens * model.expert_width
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
    group: ExpertGroup = "experts",
) -> Communication:
    """Return an exchange of tokens or gradients, hidden by nothing, before the only kernel, or after it if `after`."""
    place = int(after)
    return Communication(name, operation, elements, backward, place, place, dtype, group)  # type: ignore[arg-type]
