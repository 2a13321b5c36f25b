"""Which facts does a sharding strategy's file declare? Its sharded states, who updates them, and how updates spread.

Other code reads these fields and never compares a strategy's name. A shared test holds every strategy to its
declaration.

References
----------
.. [1] Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC 2020, section 3.
.. [2] Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, cast

from simulator.basics.catalog import Catalog
from simulator.basics.foreign_code import GuardedObject, Origin
from simulator.step.spec import Gathering, GradientSync, State, Updater

if TYPE_CHECKING:
    from simulator.step.passes import Passes
    from simulator.step.pipelines.schedule import Pass
    from simulator.step.program_builder import ProgramBuilder
    from simulator.step.sharding import Sharding
    from simulator.step.stages import Chunk
    from simulator.step.units import Unit


class PassPlanner(Protocol):
    """Interface for planners: write a rank's passes into a program, with the sharding strategy's communication."""

    def kind(self, one: Pass) -> Hashable:
        """Return a key that is equal for passes with the same operations, among passes of equal work and stage."""

    def forward(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """Write a micro-batch's forward pass through a chunk; return the operation for which the next stage waits."""

    def backward(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """Write a backward pass through a chunk; return the operation for which the preceding stage waits."""

    def input_gradient(self, micro: int, chunk: Chunk, after: list[str | None]) -> str:
        """Write the input-gradient half of a backward pass through a chunk; return the operation for which the
        preceding stage waits.
        """

    def weight_gradient(self, micro: int, chunk: Chunk) -> None:
        """Write the weight-gradient half of a micro-batch's backward pass through a chunk."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """A way to shard model states over data-parallel ranks."""

    name: str  # name of the file, and in scenario files
    shards: frozenset[State]  # model states that are sharded
    updater: Updater
    gathering: Gathering
    sending: GradientSync  # micro-batches with gradient communication, unless the user chooses
    options: frozenset[str]  # fields of `Sharding` read by the strategy
    operations: tuple[str, ...]  # collectives in a step, including the sum of the gradient's norm
    # Elements sent in a step by every rank together, without norms and flags. Assumes one copy of the states and no
    # padding: every rank holds an equal shard of each unit.
    volume: Callable[[tuple[Unit, ...], Sharding, int, int], int]
    plan: Callable[[ProgramBuilder, Passes], PassPlanner]  # return the planner for a rank's passes

    @property
    def shards_parameters(self) -> bool:
        """True if parameters are sharded."""
        return State.PARAMETERS in self.shards

    def keeps_whole_gradients(self, sharding: Sharding) -> bool:
        """Return True if whole gradients, rather than each rank's shard, are accumulated over micro-batches."""
        # FSDP's `no_sync` accumulates whole gradients until the last micro-batch.
        return State.GRADIENTS not in self.shards or sharding.gradient_sync == "last"

    def servers(self, sharding: Sharding) -> int:
        """Return the number of parameter servers with their own machines: 0 without servers, or if workers host the
        servers.
        """
        return sharding.server_count if self.updater is Updater.SERVERS and sharding.servers_on == "own" else 0


class _Strategies(Catalog[Strategy]):
    """Catalog of the sharding strategies, by name."""

    def _guarded(self, declared: Strategy, origin: Origin) -> Strategy:
        """Return a foreign strategy whose functions and planners raise ScenarioErrors."""
        guarded = super()._guarded(declared, origin)

        def plan(builder: ProgramBuilder, passes: Passes) -> PassPlanner:
            return cast(PassPlanner, GuardedObject(guarded.plan(builder, passes), origin))

        return replace(guarded, plan=plan)

    def listening(self, option: str) -> tuple[str, ...]:
        """Return the names of strategies using a field of `Sharding`."""
        return tuple(name for name, strategy in self.by_name.items() if option in strategy.options)


STRATEGIES: Final = _Strategies("simulator.step.strategies", "STRATEGY", Strategy, "strategy")


def shards_gradients(name: str) -> bool:
    """Return True if a shipped strategy shards gradients; False for a strategy from outside the package.

    With a single rank that would share them, such a strategy gathers and reduces nothing.

    >>> shards_gradients("zero1"), shards_gradients("zero2")
    (False, True)
    """
    return name in STRATEGIES.names() and State.GRADIENTS in STRATEGIES.find(name).shards
