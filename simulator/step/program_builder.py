"""How is a training step's program written? A builder appends the operations of a rank in order of issue.

Operations wait for each other by name, therefore the builder refuses duplicate names.

Example: `compute` on a framework with a slow host (`issue` > 0) appends two operations::

    stream issue      issue layer 0 forward 0
    stream compute    layer 0 forward 0          after: issue layer 0 forward 0
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, cast

from simulator.model.partition import Communication
from simulator.records.operation import (
    HOST,
    ISSUE,
    Allocate,
    Collective,
    Computation,
    Compute,
    Exchange,
    Free,
    NumericAction,
    Op,
)
from simulator.step.checkpoint_traffic import SAVE
from simulator.step.communicator import Communicator, ServerOperation
from simulator.step.framework import BARE, Framework
from simulator.step.kernel_timer import KernelCost
from simulator.step.offload import CopyDirection, host_rate
from simulator.step.pass_pieces import PieceAt
from simulator.step.process_groups import Scope
from simulator.step.sharding import Sharding
from simulator.step.streams import stream_of

# Scopes that gather parameters or sum gradients. Other exchanges lie on the critical path of a pass.
_OF_SHARDING: Final = ("all", "shard", "mesh", "replicate", "expert data")
# Operation, elements, dtype, scope, and the stream of a send or the pieces and additional seconds of a collective.
# Collectives with equal keys differ only in names and acts.
_Asked = tuple[str, int, str, Scope, str] | tuple[str, int, str, Scope, int, float]


@dataclass(slots=True)
class ProgramBuilder:
    """Writes the program of a rank: appends operations in issue order."""

    communicator: Communicator  # plans collectives
    rank: int = 0  # rank of these operations: the lowest rank with this list
    activations: str = "bfloat16"  # dtype of activations between layers
    framework: Framework = BARE  # decides how the host issues operations
    ops: list[Op] = field(default_factory=list)  # operations in order of issue
    scopes: dict[str, Scope] = field(default_factory=dict)  # process group of each collective, by name
    # Allocations made by passes that are not recorded and freed by recorded passes, by name
    assumed: dict[str, Allocate] = field(default_factory=dict)
    # Piece of a pass that each kernel computes, by name
    pieces: dict[str, PieceAt] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)
    last_kernels: str | None = None  # last operation on the compute stream
    # Exchanges before the next kernels, and receives before the host's next issue.
    _awaited: list[str] = field(default_factory=list)
    _blocking: list[str] = field(default_factory=list)
    # Planned once per key: copies differ only in name, `after` and act.
    _templates: dict[_Asked, Collective | None] = field(default_factory=dict)
    # Additional time to issue a tensor-parallel exchange [s].
    _more_for_tensor: float = field(init=False)
    # Time that the host still needs for the last operation's kernels after its first one [s].
    _still_issuing: float = 0.0

    def __post_init__(self) -> None:
        groups, nodes = self.communicator.groups, self.communicator.cluster.nodes
        # Fitted to nanotron's runs with tensor parallelism in pipelines over several nodes; the cause is unknown.
        applies = groups.grid.size("pp") > 1 and len(nodes) > 1
        self._more_for_tensor = self.framework.host.issue_in_pipeline * (groups.size("tensor") - 1) if applies else 0.0

    def compute(
        self,
        name: str,
        cost: KernelCost,
        kind: str,
        after: Iterable[str | None] = (),
        act: NumericAction[Computation] | None = None,
    ) -> str:
        """Append kernels with a given cost on the compute stream, after the named operations; return the
        kernels' name.
        """
        work = (cost.alone, cost.flops, cost.nbytes, cost.contended)
        # Kernels start after the host has issued them: a slow host makes the step host-bound.
        waits = [*after, *self.awaited(), self._issued(name, cost.host, cost.launches)]
        self._note(Compute(name, *work, kind, after=_distinct(waits), act=act, parts=cost.parts))
        # Exchanges inside a pass follow these kernels.
        self.last_kernels = name
        return name

    def _issued(self, name: str, seconds: float, launches: int = 1) -> str | None:
        """Append the launch of the kernels or the collective `name` to the rank's program, on the stream `issue`;
        return the launch's name, for which they wait, or None for a host whose time is not simulated.

        The host needs `seconds` for all `launches` kernels, the same for each. The first kernel starts after its own
        launch; the others are launched while it runs, in the time of the next operation on the stream. A host waits for
        no kernels but those of `synchronize`, and a collective is one launch.
        """
        if not seconds or not self.framework.host.issue:
            return None
        # A host that waits for a receive issues its next operation after the receive.
        waits, self._blocking = self._blocking, []
        first = seconds / max(launches, 1)
        seconds, self._still_issuing = self._still_issuing + first, seconds - first
        return self._off_gpu(f"issue {name}", seconds, 0.0, ISSUE, ISSUE, waits)

    def synchronize(self, name: str) -> None:
        """Make the rank's host wait for the end of the kernels `name`, of which it has launched every one, before it
        launches any other kernel or collective.
        """
        if not self.framework.host.issue:
            return
        if self._still_issuing:
            rest, self._still_issuing = self._still_issuing, 0.0
            self._off_gpu(f"issue the rest of {name}", rest, 0.0, ISSUE, ISSUE, ())
        self._blocking.append(name)

    def awaited(self) -> list[str]:
        """Return the names of exchanges for which the next kernels wait, and clear the list."""
        # The next kernels alone wait: later kernels follow on the same stream.
        awaited, self._awaited = self._awaited, []
        return awaited

    def await_next(self, exchanges: Iterable[str | None]) -> None:
        """Make the next kernels wait for the named exchanges in flight; None is ignored."""
        self._awaited += [name for name in exchanges if name is not None]

    def exchange(
        self,
        name: str,
        exchange: Communication,
        after: Iterable[str | None] = (),
        act: NumericAction[Exchange] | None = None,
    ) -> str | None:
        """Append an exchange between model-parallel ranks, after the preceding kernels; return the name, or None for a
        single rank.
        """
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
        act: NumericAction[Exchange] | None = None,
        *,
        blocks: bool,
    ) -> str:
        """Append a send of `elements` elements from a rank of one pipeline stage to a rank of another; return the name.

        In the program, the lists of both ranks contain the operation. With `blocks`, the receiver's host issues nothing
        before the arrival, and the sender's next kernels wait for the departure.
        """
        # A stream for each boundary and direction: the name without the micro-batch.
        stream = name.rsplit(" ", 1)[0]
        pair = self.communicator.groups.with_rank(stages, self.rank)
        key = "send", elements, dtype, stages, stream
        if key not in self._templates:
            self._templates[key] = replace(self.communicator.send(elements, dtype, pair), stream=stream)
        self._append(self._templates[key], name, after, stages, act)
        if blocks:
            # The sender's host must continue, because it has to post receives from its neighbours; only its kernels
            # wait.
            (self._blocking if pair[1] == self.rank else self._awaited).append(name)
        return name

    def communicate(
        self,
        name: str,
        operation: str,
        elements: int,
        dtype: str,
        after: Iterable[str | None] = (),
        scope: Scope = "all",
        act: NumericAction[Exchange] | None = None,
        tensors: int = 1,
        owners: int = 0,
    ) -> str | None:
        """Append a collective in the rank's process group, on the scope's stream; return the name, or None for a
        single-rank group.

        A framework with `each_tensor` sends each of the `tensors` separately and pays the start-up for each. With
        `per_owner`, ZeRO-1 and ZeRO-2 pay this time for each of the `owners` of tensors. A framework without overlap
        makes the collective wait for the preceding kernels, and the next kernels wait for the collective.
        """
        pieces = tensors if self.framework.sharding.each_tensor else 1
        more = owners * self.framework.sharding.per_owner
        key = operation, elements, dtype, scope, pieces, more
        if key not in self._templates:
            planned = self.communicator.plan(operation, elements, dtype, scope, self.rank)
            # Ranks of other stages arrive after their last micro-batch; an early rank is idle meanwhile.
            idle = scope in ("model", "ends")
            self._templates[key] = planned and _in_pieces(
                replace(planned, stream=stream_of(scope), rendezvous=idle), pieces, more
            )
        # Exchanges inside a pass state their own dependencies, also for frameworks without overlap.
        if self.framework.sharding.overlaps or scope not in _OF_SHARDING:
            return self._append(self._templates[key], name, after, scope, act)
        noted = self._append(self._templates[key], name, [*after, self.last_kernels], scope, act)
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
        act: NumericAction[Exchange] | None = None,
    ) -> str | None:
        """Append a push, pull or clock exchange with the parameter servers; return the name, or None for a single
        worker.
        """
        template = self.communicator.serve(operation, elements, dtype, sharding)
        is_single = template is not None and len(template.group) == 1
        # An asynchronous worker exchanges data with the servers alone, without other workers.
        return self._append(template and replace(template, act=act), name, after, "worker" if is_single else "all")

    def copy(
        self,
        name: str,
        nbytes: int,
        direction: CopyDirection,
        after: Iterable[str | None] = (),
        *,
        paged: bool = False,
    ) -> str:
        """Append a copy of `nbytes` bytes to the host or back, page by page if `paged`, on the stream of its direction;
        return the name.
        """
        operation = self.communicator.copy(nbytes, direction, paged=paged)
        # A copy that shares PCIe links with other traffic is simulated; otherwise its duration is known.
        if isinstance(operation, Collective):
            self._append(operation, name, after, "own")
        else:
            self._off_gpu(name, operation, nbytes, f"copy {direction}", f"copy {direction}", after)
        return name

    def save(self, nbytes: int) -> str | None:
        """Append the copy of a rank's share of a checkpoint to the host, and its write to the storage behind it; return
        the name, or None for a rank alone.
        """
        return self._append(self.communicator.save(nbytes), SAVE, (), "own")

    def on_host(
        self,
        name: str,
        nbytes: float,
        of_node: float,
        after: Iterable[str | None] = (),
        act: NumericAction[Computation] | None = None,
    ) -> str:
        """Append work of the host's processors that reads and writes `nbytes` bytes at the whole node's rate `of_node`
        [B/s]; return the name.
        """
        # Ranks on a node share its processors.
        seconds = nbytes / host_rate(self.communicator.cluster, of_node)
        return self._off_gpu(name, seconds, nbytes, "optimizer", HOST, after, act)

    def at_server(
        self, name: str, seconds: float, after: Iterable[str | None] = (), act: NumericAction[Computation] | None = None
    ) -> str:
        """Append the parameter servers' update before a pull, which takes `seconds`; return the name."""
        # Servers update buckets in sequence, hence a single stream.
        return self._off_gpu(name, seconds, 0.0, "server update", "communication server", after, act)

    def _off_gpu(
        self,
        name: str,
        seconds: float,
        nbytes: float,
        kind: str,
        stream: str,
        after: Iterable[str | None],
        act: NumericAction[Computation] | None = None,
    ) -> str:
        """Append work outside the GPU, whose time neither a slow GPU nor a collective changes; return its name."""
        self._note(Compute(name, seconds, 0.0, nbytes, None, kind, stream, _distinct(after), act, on_gpu=False))
        return name

    def _append(
        self,
        template: Collective | None,
        name: str,
        after: Iterable[str | None],
        scope: Scope,
        act: NumericAction[Exchange] | None = None,
    ) -> str | None:
        """Append a planned collective under a new name; return the name, or None without a collective."""
        # A single rank has no collective.
        if template is None:
            return None
        issued = self._issued(name, self._host_of(template, scope))
        self._note(template.named(name, _distinct([*after, issued]), template.group, act))
        # `for_every_rank` needs the scope to find other ranks' groups.
        self.scopes[name] = scope
        return name

    def _host_of(self, collective: Collective, scope: Scope) -> float:
        """Return the host's time to issue a collective [s]."""
        times = self.framework.host.parts.get("sharding" if scope in _OF_SHARDING else "exchange")
        if times is None:
            return self.framework.host.issue + (self._more_for_tensor if scope == "tensor" else 0.0)
        launches = times.backward if collective.schedule.operation.startswith("reduce") else times.forward
        return self.framework.host.issue * launches

    def allocate(
        self, name: str, nbytes: int, category: str, *, stream: str = "compute", after: Iterable[str | None] = ()
    ) -> str:
        """Append an allocation of `nbytes` bytes, in stream order and after the operations in `after`; return
        the name.
        """
        self._note(Allocate(name, nbytes, category, stream, _distinct(after)))
        return name

    def assume(self, name: str, nbytes: int, category: str, stream: str) -> None:
        """Record an allocation made by a pass outside the recorded passes, to be freed later; nothing if a recorded
        pass made it.
        """
        # A recorded pass has made its allocation itself.
        if name not in self._names:
            self.assumed[name] = Allocate(name, nbytes, category, stream)

    def free(self, allocation: str, *, stream: str = "compute", after: Iterable[str | None] = ()) -> str:
        """Append the free of a named allocation, in stream order and after the operations in `after`; return the
        operation's name.
        """
        op = Free(allocation, stream, _distinct(after))
        self._note(op)
        return op.name

    def _note(self, op: Op) -> None:
        """Append an operation to the program; raise ValueError for a duplicate name."""
        name = op.name
        if name in self._names:
            raise ValueError(f"two operations have the name {name!r}")
        self._names.add(name)
        self.ops.append(op)

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Collectives in the program so far."""
        return tuple(op for op in self.ops if isinstance(op, Collective))


def _in_pieces(op: Collective, pieces: int, more: float) -> Collective:
    """Return a collective sent in `pieces`: equal bytes, `pieces` times the start-up, and then `more` seconds."""
    # The first start-up is already part of the collective.
    more += (pieces - 1) * op.startup
    return replace(op, startup=op.startup + more, duration=None if op.duration is None else op.duration + more)


def _distinct(after: Iterable[str | None]) -> tuple[str, ...]:
    """Return the operation names without None and duplicates, in order."""
    # A dict keeps the first occurrence's order. A step has millions of operations: no loop in Python.
    names = dict.fromkeys(after)
    names.pop(None, None)
    return cast(tuple[str, ...], tuple(names))
