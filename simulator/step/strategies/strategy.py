"""What a strategy file declares: which model states are sharded, who updates them, and who then gathers what is new.

Rule: all other code asks these fields and never a strategy's name. One shared test holds every strategy to what it
declares.

References
----------
.. [1] Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020, section 3.
.. [2] Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from simulator.basics.catalog import Catalog
from simulator.step.spec import Gathering, Sending, State, Updater

if TYPE_CHECKING:
    from simulator.step.passes import Passes
    from simulator.step.pipelines.schedule import Pass
    from simulator.step.program_builder import ProgramBuilder
    from simulator.step.spec import Sharding
    from simulator.step.stages import Chunk
    from simulator.step.units import Unit


class Planned(Protocol):
    """Notes passes in a program, with what is communicated for them; each returns what the next stage waits for."""

    def kind(self, one: Pass) -> Hashable:
        """Return what passes of one work and stage have in common if they do the same."""

    def forward(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """A micro-batch forward through a chunk."""

    def backward(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """A micro-batch backward through a chunk."""

    def input_gradient(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """The half of a backward pass that the stage before waits for."""

    def weight_gradient(self, micro: int, chunk: Chunk) -> None:
        """The other half."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to spread model states over data-parallel ranks.

    Attributes
    ----------
    name : str
        Its file's name, and its name in scenario files.
    shards : frozenset of State
        States of which a rank holds only its part.
    updater : Updater
    gathering : Gathering
    sending : Sending
        Where the user does not choose it.
    options : frozenset of str
        Fields of Sharding that it listens to.
    operations : tuple of str
        Collectives that a step is made of, with the sum of the gradient's norm.
    volume : function (units, sharding, accumulation, ranks) -> int
        Elements that all ranks together put on the wire in one step, without norms and flags, where padding adds
        nothing: one copy of the states, and every rank an equal part of each unit.
    plan : function (builder, passes) -> Planned
        How micro-batches pass through a rank's chunks; the update follows by itself.
    """

    name: str
    shards: frozenset[State]
    updater: Updater
    gathering: Gathering
    sending: Sending
    options: frozenset[str]
    operations: tuple[str, ...]
    volume: Callable[[tuple[Unit, ...], Sharding, int, int], int]
    plan: Callable[[ProgramBuilder, Passes], Planned]

    @property
    def shards_parameters(self) -> bool:
        """Whether a rank holds a part of the parameters only."""
        return State.PARAMETERS in self.shards

    def keeps_whole_gradients(self, sharding: Sharding) -> bool:
        """Whether whole gradients are summed up over micro-batches, instead of each rank's part of them."""
        return State.GRADIENTS not in self.shards or sharding.gradient_sync == "last"

    def servers(self, sharding: Sharding) -> int:
        """Parameter servers on machines of their own."""
        return sharding.servers if self.updater is Updater.SERVERS and sharding.servers_on == "own" else 0


class _Strategies(Catalog[Strategy]):
    """The sharding strategies that exist."""

    def listening(self, option: str) -> tuple[str, ...]:
        """Return the names of the strategies that read an option of `Sharding`."""
        return tuple(name for name, strategy in self.by_name.items() if option in strategy.options)


STRATEGIES: Final = _Strategies("simulator.step.strategies", "STRATEGY", Strategy, "strategy")
