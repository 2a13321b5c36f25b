"""What does a real training save, and how does it go on from there after a rank has stopped?

A checkpoint holds what a framework writes: parameters, shards of the master weights, optimizer states, loss scales and
the number of steps taken. Everything else of a rank (gradients, saved tensors) is made anew by the next step.

Example: checkpoints before steps 0, 4 and 8, and a rank that stops in step 6. The training goes back to step 4, and
repeats steps 4 and 5 with the same numbers.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from simulator.learning.parameter_servers import ParameterServers
from simulator.learning.state import Rank
from simulator.learning.training import Training

# Fields of a rank that a checkpoint holds.
_SAVED = ("scale", "working", "parts", "states", "momenta")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """State of a training between two steps."""

    done: int  # steps taken
    # For each rank its number, loss scale, parameters, shards, optimizer states and momenta
    ranks: tuple[dict[str, Any], ...]
    servers: dict[Any, Any] | None  # the parameter servers' parameters and states, if the training has servers


def saved(training: Training) -> Checkpoint:
    """Return a checkpoint of a training between two steps; later steps do not change it."""
    ranks = tuple(
        {"number": rank.number} | {name: deepcopy(getattr(rank, name)) for name in _SAVED} for rank in training.ranks
    )
    return Checkpoint(training.done, ranks, None if training.serving is None else deepcopy(training.serving.servers))


def restored(training: Training, checkpoint: Checkpoint) -> Training:
    """Return a training that goes on from a checkpoint; what its checks have found so far stays known."""
    ranks = [Rank(**deepcopy(state)) for state in checkpoint.ranks]
    servers = None if checkpoint.servers is None else ParameterServers(deepcopy(checkpoint.servers))
    return replace(training, ranks=ranks, serving=servers, done=checkpoint.done)
