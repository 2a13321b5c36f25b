"""Which units lie on which stage of a pipeline, and which micro-batch is a stage's first and last.

Rule: embedding first, head last, and between them layers as asked or as equal as can be. Megatron-LM counts embedding
and head as layers if it is asked to (`account_for_embedding_in_pipeline_split`, `account_for_loss_in_pipeline_split`),
and Llama 3 405B was trained so [1]_: then the first stage may have the embedding alone, and the last one the head.

References
----------
.. [1] Llama Team, "The Llama 3 herd of models", 2024, arXiv:2407.21783, section 3.3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from simulator.step.units import Unit


@dataclass(frozen=True, slots=True)
class Chunk:
    """What a rank has of one stage.

    Attributes
    ----------
    stage : int
    units : tuple of Unit
    accumulation : int
        Micro-batches of a step.
    first, last : int
        The micro-batches whose gradients come first and last; most often 0 and the last one.
    """

    stage: int
    units: tuple[Unit, ...]
    accumulation: int
    first: int
    last: int

    def begins(self, micro: int) -> bool:
        """Whether a micro-batch's gradients are the first of a step."""
        return micro % self.accumulation == self.first

    def ends(self, micro: int) -> bool:
        """Whether they are the last."""
        return micro % self.accumulation == self.last


def layers_of_stages(layers: int, stages: int, first_less: int = 0, last_less: int = 0) -> tuple[int, ...]:
    """Return the number of layers of each stage, as equal as can be; a remainder goes to the first stages.

    The first and the last stage may be asked to have fewer layers than the others, down to none: then the first stage
    has the embedding alone, and the last stage the head.

    Raises
    ------
    ValueError
        A stage would have no layer, and was not asked to.

    Examples
    --------
    >>> layers_of_stages(126, 16, 1, 1)
    (7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7)
    >>> layers_of_stages(10, 4), layers_of_stages(4, 6, 1, 1), layers_of_stages(8, 2, 1, 1)
    ((3, 3, 2, 2), (0, 1, 1, 1, 1, 0), (4, 4))
    """
    full = layers + first_less + last_less
    sizes = [full // stages + (stage < full % stages) for stage in range(stages)]
    sizes[0] -= first_less
    sizes[-1] -= last_less
    # The stages that are not asked to have fewer layers have one at least.
    between = sizes[first_less > 0 : stages - (last_less > 0)]
    if min(sizes) < 0 or min(between, default=1) < 1:
        raise ValueError(f"got {stages} stages for {layers} layers; every stage must have a layer")
    return tuple(sizes)


def refusal_of_layers(asked: Sequence[int], stages: int, layers: int, model: str) -> str:
    """Return why stages cannot have the layers that are asked for; empty if they can.

    Parameters
    ----------
    asked : sequence of int
        Layers of each stage; the first and the last may have none.
    stages, layers : int
        Stages of the pipeline, and layers of the model.
    model : str
        Name of the model.
    """
    if len(asked) != stages or sum(asked) != layers:
        wanted = f"{stages} stages with the {layers} of {model}"
        return f"got {len(asked)} stages with {sum(asked)} layers; must be {wanted}"
    if 0 in asked[1:-1]:
        return f"got no layer for stage {asked[1:-1].index(0) + 1}; only the first and the last stage may have none"
    return ""


def units_of_stages(units: Sequence[Unit], layers: Sequence[int]) -> tuple[tuple[Unit, ...], ...]:
    """Embedding and head go with the first and the last stage."""
    return tuple(tuple(units[begin:end]) for begin, end in pairwise(cuts_of_stages(units, layers)))


def cuts_of_stages(units: Sequence[Unit], layers: Sequence[int]) -> list[int]:
    """Places among all units at which stages begin, and the end of all."""
    # Behind the embedding and behind each layer; experts stand before the layer that they are of.
    ends = [1, *(place + 1 for place, unit in enumerate(units) if unit.is_layer and not unit.spread)]
    return [0, *(ends[count] for count in list(accumulate(layers))[:-1]), len(units)]
