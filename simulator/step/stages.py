"""Which units lie on which stage of a pipeline, and which micro-batch is a stage's first and last.

Rule: embedding first, head last, and between them layers as asked or as equal as can be.
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
    """Layers of each stage, as equal as can be; where they do not divide the first stages have one more.

    The first and the last stage may be asked to have less than the others.

    Raises
    ------
    ValueError
        A stage would have no layer.

    Examples
    --------
    >>> layers_of_stages(126, 16, 1, 1)
    (7, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 7)
    """
    full = layers + first_less + last_less
    sizes = [full // stages + (stage < full % stages) for stage in range(stages)]
    sizes[0] -= first_less
    sizes[-1] -= last_less
    if min(sizes) < 1:
        raise ValueError(f"got {stages} stages for {layers} layers; every stage must have a layer")
    return tuple(sizes)


def units_of_stages(units: Sequence[Unit], layers: Sequence[int]) -> tuple[tuple[Unit, ...], ...]:
    """Embedding and head go with the first and the last stage."""
    return tuple(tuple(units[begin:end]) for begin, end in pairwise(cuts_of_stages(units, layers)))


def cuts_of_stages(units: Sequence[Unit], layers: Sequence[int]) -> list[int]:
    """Places among all units at which stages begin, and the end of all."""
    # Experts stand before the layer that they are of.
    ends = [place + 1 for place, unit in enumerate(units) if unit.is_layer and not unit.spread]
    return [0, *(ends[count - 1] for count in list(accumulate(layers))[:-1]), len(units)]
