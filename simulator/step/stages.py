"""Which units lie on which pipeline stage, and which micro-batch is a stage's first and last?

The embedding comes first, the head last, and layers in between as requested or evenly. Megatron-LM can count embedding
and head as layers (`account_for_embedding_in_pipeline_split`, `account_for_loss_in_pipeline_split`), as for Llama 3
405B [1]_: the first stage may then hold only the embedding, and the last stage only the head.

References
----------
.. [1] Llama Team, "The Llama 3 herd of models", 2024, arXiv:2407.21783, section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from simulator.step.units import Unit

# Other schedules split every backward pass, or have the head on another place than the last rank; other strategies
# shard or send gradients after each micro-batch.
_DEFERRING_SCHEDULES: Final = ("1f1b", "interleaved")
_DEFERRING_STRATEGIES: Final = ("ddp", "zero1")


@dataclass(frozen=True, slots=True)
class Chunk:
    """A rank's units (embedding, layers, head) on a single pipeline stage."""

    stage: int
    units: tuple[Unit, ...]
    accumulation: int  # micro-batches per step
    # `first`, `last`: Micro-batches whose gradients come first and last; usually 0 and the last micro-batch.
    first: int
    last: int

    def begins(self, micro: int) -> bool:
        """Return True if the gradients of this micro-batch come first in a step on this stage."""
        return micro % self.accumulation == self.first

    def ends(self, micro: int) -> bool:
        """Return True if the gradients of this micro-batch come last in a step on this stage."""
        return micro % self.accumulation == self.last


def layers_of_stages(
    layers: int, stages: int, first_less: int = 0, last_less: int = 0, mtp_layers: int = 0
) -> tuple[int, ...]:
    """Return the number of layers on each pipeline stage, as even as possible; a remainder goes to the first stages.

    The first and the last stage may have fewer layers, down to none: the first stage then holds only the embedding, and
    the last stage only the head. The last `mtp_layers` of the layers, which predict further tokens, are on the last
    stage besides its even share, as in Megatron-LM.

    Raises
    ------
    ValueError
        A stage without a request for fewer layers would have none.

    Examples
    --------
    >>> layers_of_stages(126, 16, 1, 1)
    (7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7)
    >>> layers_of_stages(10, 4), layers_of_stages(4, 6, 1, 1), layers_of_stages(8, 2, 1, 1)
    ((3, 3, 2, 2), (0, 1, 1, 1, 1, 0), (4, 4))
    >>> layers_of_stages(9, 4, mtp_layers=1)
    (2, 2, 2, 3)
    """
    # Distribute evenly as if the first and last stage had their full share, then subtract.
    layers -= mtp_layers
    full = layers + first_less + last_less
    sizes = [full // stages + (stage < full % stages) for stage in range(stages)]
    sizes[0] -= first_less
    sizes[-1] -= last_less
    # Every other stage needs at least one layer.
    between = sizes[first_less > 0 : stages - (last_less > 0)]
    if min(sizes) < 0 or min(between, default=1) < 1:
        raise ValueError(f"got {stages} stages for {layers} layers; every stage must have a layer")
    sizes[-1] += mtp_layers
    return tuple(sizes)


def refusal_of_layers(sizes: Sequence[int], stages: int, layers: int, model: str) -> str:
    """Return a sentence telling why pipeline stages cannot have the requested numbers of layers; empty if possible.

    Parameters
    ----------
    sizes : sequence of int
        Layers of each stage; the first and the last may have none.
    stages, layers : int
        Stages of the pipeline, and layers of the model.
    model : str
        Name of the model.

    Examples
    --------
    >>> refusal_of_layers([2, 0, 2], 3, 4, "toy"), refusal_of_layers([0, 2, 2], 3, 4, "toy")
    ('got no layer for stage 1; only the first and the last stage may have no layer', '')
    """
    if len(sizes) != stages or sum(sizes) != layers:
        target = f"{stages} stages with the {layers} of {model}"
        return f"got {len(sizes)} stages with {sum(sizes)} layers; must be {target}"
    if 0 in sizes[1:-1]:
        return f"got no layer for stage {sizes[1:-1].index(0) + 1}; only the first and the last stage may have no layer"
    return ""


def refusal_of_deferral(schedule: str, strategy: str, *, chunked: bool) -> str:
    """Return a sentence telling why the head's weight gradients cannot be deferred; empty if possible.

    Parameters
    ----------
    schedule, strategy : str
        Names of the pipeline schedule and of the sharding strategy.
    chunked : bool
        Whether head and loss are computed together, a chunk of tokens at a time.

    Examples
    --------
    >>> refusal_of_deferral("gpipe", "ddp", chunked=False)
    "gpipe cannot defer the head's weight gradient; write schedule: 1f1b or interleaved"
    """
    able = {"schedule": _DEFERRING_SCHEDULES, "sharding": _DEFERRING_STRATEGIES}
    for (key, names), name in zip(able.items(), (schedule, strategy), strict=True):
        if name not in names:
            return f"{name} cannot defer the head's weight gradient; write {key}: {' or '.join(names)}"
    if chunked:
        return "a chunked loss computes the head's weight gradient in the forward pass; write loss: fused"
    return ""


def units_of_stages(units: Sequence[Unit], layers: Sequence[int]) -> tuple[tuple[Unit, ...], ...]:
    """Return the units (embedding, layers, head) of each pipeline stage, given the number of layers on each."""
    return tuple(tuple(units[begin:end]) for begin, end in pairwise(cuts_of_stages(units, layers)))


def cuts_of_stages(units: Sequence[Unit], layers: Sequence[int]) -> list[int]:
    """Return the index in `units` of the first unit of each pipeline stage, and the number of units at the end."""
    # A stage can begin after the embedding or after a layer. Expert units precede their layer, hence their ends are no
    # cuts.
    ends = [1, *(place + 1 for place, unit in enumerate(units) if unit.is_layer and not unit.spread)]
    return [0, *(ends[count] for count in list(accumulate(layers))[:-1]), len(units)]
