"""Builds a training step's program: the operations of one rank, in the order in which it issues them.

Rule: only for writing; it refuses a name twice, for operations wait for each other by name.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from simulator.model.cut import Communication
from simulator.records.operation import HOST, ISSUE, Act, Allocate, Collective, Computation, Compute, Exchange, Free, Op
from simulator.step.communicator import Communicator, ServerOperation
from simulator.step.framework import BARE, Framework
from simulator.step.kernel_timer import KernelCost
from simulator.step.offload import CopyDirection, host_rate
from simulator.step.process_groups import Scope
from simulator.step.spec import Sharding
from simulator.step.streams import stream_of

# Groups that share states or sum gradients.
_OF_SHARDING: Final = ("all", "shard", "mesh", "replicate", "expert data")
# Operation, elements, dtype, scope and stream: collectives for which these are equal differ in names and acts alone.
_Asked = tuple[str, int, str, Scope, str]


@dataclass(slots=True)
class ProgramBuilder:
    """Operations noted so far.

    Attributes
    ----------
    communicator : Communicator
    rank : int
        Whose operations these are: the first of those that do the same.
    activations : str
        Dtype of what layers hand on.
    framework : Framework
        How its host issues what it does.
    ops : list of Op
    scopes : dict of str to Scope
        Which group each collective is among.
    last_kernels : str or None
        The last on the compute stream so far.
    assumed : dict of str to Allocate
        Allocations that are freed here and were made by passes that are not noted, by name.
    """

    communicator: Communicator
    rank: int = 0
    activations: str = "bfloat16"
    framework: Framework = BARE
    ops: list[Op] = field(default_factory=list)
    scopes: dict[str, Scope] = field(default_factory=dict)
    assumed: dict[str, Allocate] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    last_kernels: str | None = None
    _awaited: list[str] = field(default_factory=list)
    _blocking: list[str] = field(default_factory=list)
    _templates: dict[_Asked, Collective | None] = field(default_factory=dict)

    def compute(
        self,
        name: str,
        cost: KernelCost,
        kind: str,
        after: Iterable[str | None] = (),
        act: Act[Computation] | None = None,
    ) -> str:
        """Kernels on the compute stream; returns their name, for others to wait for."""
        work = (cost.alone, cost.flops, cost.nbytes, cost.contended)
        waits = [*after, *self.awaited(), self._issued(name, cost.launches)]
        self._note(Compute(name, *work, kind, after=_given(waits), act=act))
        self.last_kernels = name
        return name

    def _issued(self, name: str, launches: int, more: float = 0.0) -> str | None:
        """The host's work before kernels or a collective can begin: it goes on to the next without waiting for them."""
        if not self.framework.issue or not launches:
            return None
        waits, self._blocking = self._blocking, []
        seconds = self.framework.issue * launches + more
        return self._off_gpu(f"issue {name}", seconds, 0.0, ISSUE, ISSUE, waits)

    def _more_to_issue(self, scope: Scope) -> float:
        """What issuing an exchange within a stage takes besides, where stages stand on several nodes [s]."""
        groups, cluster = self.communicator.groups, self.communicator.cluster
        if scope != "tensor" or groups.grid.size("pp") == 1 or len(cluster.nodes) == 1:
            return 0.0
        return self.framework.issue_in_pipeline * (groups.size(scope) - 1)

    def awaited(self) -> list[str]:
        """What the next kernels wait for; once asked for, nobody else does."""
        awaited, self._awaited = self._awaited, []
        return awaited

    def await_next(self, exchanges: Iterable[str | None]) -> None:
        """Have the next kernels wait for exchanges that are under way."""
        self._awaited += [name for name in exchanges if name is not None]

    def exchange(
        self, name: str, exchange: Communication, after: Iterable[str | None] = (), act: Act[Exchange] | None = None
    ) -> str | None:
        """What ranks that a layer is cut over exchange, when the kernels before have ended."""
        dtype = exchange.dtype or self.activations
        return self.communicate(
            name, exchange.operation, exchange.elements, dtype, [*after, self.last_kernels], exchange.group, act
        )

    def send(
        self,
        name: str,
        elements: int,
        dtype: str,
        stages: tuple[int, int],
        after: Iterable[str | None],
        act: Act[Exchange] | None = None,
        *,
        blocks: bool,
    ) -> str:
        """Note a transfer from a rank of one stage to a rank of another; it stands in the lists of both.

        If it `blocks`, the receiver's host issues nothing more before it has arrived, and the sender's next kernels
        wait until it has left.
        """
        stream = name.rsplit(" ", 1)[0]
        key = "send", elements, dtype, stages, stream
        if key not in self._templates:
            planned = self.communicator.send(elements, dtype, stages, self.rank)
            self._templates[key] = replace(planned, stream=stream)
        template = self._templates[key]
        self._named(template, name, after, stages, act)
        if blocks and template is not None:
            # Next kernels wait for what a rank sends, but not its host, which has to post what neighbours send to it.
            (self._blocking if template.group[1] == self.rank else self._awaited).append(name)
        return name

    def communicate(
        self,
        name: str,
        operation: str,
        elements: int,
        dtype: str,
        after: Iterable[str | None] = (),
        scope: Scope = "all",
        act: Act[Exchange] | None = None,
        tensors: int = 1,
    ) -> str | None:
        """A collective of the rank's group on that group's stream; nothing where the group is one rank.

        Where a framework sends each of the `tensors` by itself it begins as often; where nothing overlaps it waits for
        the kernels before, and the next wait for it.
        """
        stream = stream_of(scope)
        pieces = tensors if self.framework.each_tensor else 1
        key = operation, elements, dtype, scope, f"{stream} {pieces}"
        if key not in self._templates:
            planned = self.communicator.plan(operation, elements, dtype, scope, self.rank)
            # Ranks of other stages come when their last micro-batch is through: until then nobody communicates.
            idle = scope in ("model", "ends")
            self._templates[key] = planned and _in_pieces(replace(planned, stream=stream, rendezvous=idle), pieces)
        if self.framework.overlaps or scope not in _OF_SHARDING:
            return self._named(self._templates[key], name, after, scope, act)
        noted = self._named(self._templates[key], name, [*after, self.last_kernels], scope, act)
        self.await_next([noted])
        return noted

    def serve(
        self,
        name: str,
        operation: ServerOperation,
        elements: int,
        dtype: str,
        sharding: Sharding,
        after: Iterable[str | None] = (),
        act: Act[Exchange] | None = None,
    ) -> str | None:
        """To the parameter servers or back, on a stream of its own; nothing for one worker."""
        template = self.communicator.serve(operation, elements, dtype, sharding)
        alone = template is not None and len(template.group) == 1
        return self._named(template and replace(template, act=act), name, after, "worker" if alone else "all")

    def copy(self, name: str, nbytes: int, direction: CopyDirection, after: Iterable[str | None] = ()) -> str:
        """Bytes to the host or back, on the stream of that direction."""
        made = self.communicator.copy(nbytes, direction)
        if isinstance(made, Collective):
            self._named(made, name, after, "own")
        else:
            self._off_gpu(name, made, nbytes, f"copy {direction}", f"copy {direction}", after)
        return name

    def on_host(
        self,
        name: str,
        nbytes: float,
        of_node: float,
        after: Iterable[str | None] = (),
        act: Act[Computation] | None = None,
    ) -> str:
        """Work of the host's processors: so many bytes read and written, at the rate of a whole node [B/s]."""
        seconds = nbytes / host_rate(self.communicator.cluster, of_node)
        return self._off_gpu(name, seconds, nbytes, "optimizer", HOST, after, act)

    def at_server(
        self, name: str, seconds: float, after: Iterable[str | None] = (), act: Act[Computation] | None = None
    ) -> str:
        """Work of the parameter servers that this rank waits for [s]."""
        return self._off_gpu(name, seconds, 0.0, "server update", "communication server", after, act)

    def _off_gpu(
        self,
        name: str,
        seconds: float,
        nbytes: float,
        kind: str,
        stream: str,
        after: Iterable[str | None],
        act: Act[Computation] | None = None,
    ) -> str:
        """Work that no kernel of the GPU does, so that neither a slow GPU nor communication makes it longer."""
        self._note(Compute(name, seconds, 0.0, nbytes, None, kind, stream, _given(after), act, on_gpu=False))
        return name

    def _named(
        self,
        template: Collective | None,
        name: str,
        after: Iterable[str | None],
        scope: Scope,
        act: Act[Exchange] | None = None,
    ) -> str | None:
        if template is None:
            return None
        self._note(
            template.named(
                name, _given([*after, self._issued(name, 1, self._more_to_issue(scope))]), template.group, act
            )
        )
        self.scopes[name] = scope
        return name

    def allocate(
        self, name: str, nbytes: int, category: str, *, stream: str = "compute", after: Iterable[str | None] = ()
    ) -> str:
        """Memory from when its stream gets there."""
        self._note(Allocate(name, nbytes, category, stream, _given(after)))
        return name

    def assume(self, name: str, nbytes: int, category: str, stream: str) -> None:
        """Take an allocation for made, if it is not noted, so that it can be freed."""
        if name not in self._names:
            self.assumed[name] = Allocate(name, nbytes, category, stream)

    def free(self, allocation: str, *, stream: str = "compute", after: Iterable[str | None] = ()) -> str:
        """Memory back when its stream gets there, after all that it waits for."""
        op = Free(allocation, stream, _given(after))
        self._note(op)
        return op.name

    def _note(self, op: Op) -> None:
        if op.name in self._names:
            raise ValueError(f"two operations are named {op.name!r}")
        self._names.add(op.name)
        self.ops.append(op)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Those noted so far."""
        return tuple(op for op in self.ops if isinstance(op, Collective))


def _in_pieces(op: Collective, pieces: int) -> Collective:
    """As many collectives one after the other, which together carry what one would."""
    more = (pieces - 1) * op.startup
    return replace(op, startup=op.startup + more, duration=None if op.duration is None else op.duration + more)


def _given(after: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in after if name is not None))
