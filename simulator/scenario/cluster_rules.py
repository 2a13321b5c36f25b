"""Rules between keys of `cluster` and the topology.

A generator covers one topic in a few lines. Every generator runs, therefore all faults in a file are reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simulator.basics import registry
from simulator.basics.errors import ScenarioError, UnknownNameError
from simulator.cluster.changes import EventSpec
from simulator.scenario.caching import memoized
from simulator.scenario.records import PLACEMENT, ClusterSpec
from simulator.scenario.rule_violation import RuleViolation, first_duplicate

if TYPE_CHECKING:
    from simulator.cluster.build import TopologyFacts

# Larger topologies named in a message.
_MOST_LARGER: Final = 3

FactsReader = Callable[[Any], "TopologyFacts"]


@cache
def _shipped(topology: str) -> TopologyFacts:
    """Return the facts of a shipped topology (GPU, node size ...); each file is read once per process."""
    from simulator.cluster.build import facts

    return facts(topology)


def facts_reader(base: Path) -> FactsReader:
    """Return a function from a topology to its facts (GPU, node size ...); each file is read once.

    `base` is the folder for relative paths.
    """
    from simulator.cluster.build import facts

    read_once = memoized(lambda topology: facts(topology, base))

    def read_facts(topology: Any) -> TopologyFacts:
        # Shipped files are shared by every scenario of the process; a user's file may change between two scenarios.
        if isinstance(topology, str) and topology in registry.names("topology"):
            return _shipped(topology)
        return read_once(topology)

    return read_facts


def conflicts(cluster: ClusterSpec, facts: TopologyFacts | None, base: Path) -> Iterator[RuleViolation]:
    """Yield a violation for each broken rule between the keys of `cluster`.

    `facts` is None if the topology is invalid.
    """
    yield from _gpu(cluster, facts, base)
    yield from _size(cluster, facts)
    yield from _placement(cluster, facts)
    yield from _events(cluster, facts)
    if cluster.transport is not None and facts is not None and not facts.library:
        message = f"got {cluster.transport!r}; topology {facts.name} has no model of a library, which needs nodes"
        yield RuleViolation(("cluster", "transport"), message, ("cluster.transport", "cluster.topology"))


def unusable(error: ScenarioError, name: str) -> Iterator[RuleViolation]:
    """Yield a violation for each reason in `error` why the topology or GPU at `cluster.NAME` cannot be used."""
    text = str(error).removeprefix(f"{error.kind}: ") if isinstance(error, UnknownNameError) else str(error)
    for line in text.splitlines():
        yield RuleViolation(("cluster", name), line, (f"cluster.{name}",))


def _gpu(cluster: ClusterSpec, facts: TopologyFacts | None, base: Path) -> Iterator[RuleViolation]:
    from simulator.cluster.gpu_file import load_gpu

    # Topologies without a GPU of their own need `cluster.gpu`.
    if cluster.gpu is None:
        if facts is not None and facts.gpu is None:
            message = f"topology {facts.name} has no GPU; write for example 'gpu: a100_sxm_80gb'"
            yield RuleViolation(("cluster", "gpu"), message, ("cluster.gpu", "cluster.topology"))
        return
    # Shipped GPUs are valid.
    if isinstance(cluster.gpu, str) and cluster.gpu in registry.names("gpu"):
        return
    try:
        load_gpu(cluster.gpu, base)
    except ScenarioError as error:
        yield from unusable(error, "gpu")
    # Wrong content in a GPU file may raise any of these; the text is reported at the key.
    except (OSError, ValueError, TypeError) as error:
        yield from unusable(ScenarioError(f"cannot be used: {error}"), "gpu")


def _size(cluster: ClusterSpec, facts: TopologyFacts | None) -> Iterator[RuleViolation]:
    # max_ranks is None for topologies that grow with the number of ranks.
    if facts is not None and facts.max_ranks is not None and cluster.world_size > facts.max_ranks:
        yield RuleViolation(
            ("cluster", "world_size"),
            f"got {cluster.world_size}; topology {facts.name} has {facts.max_ranks} GPUs; take fewer ranks"
            f"{_larger(facts, cluster.world_size)}, or write a topology file (docs/start/your_cluster.md)",
            ("cluster.world_size", "cluster.topology"),
        )
    allowed = f"must be one of 0 .. {cluster.world_size - 1}, because world_size is {cluster.world_size}"
    for rank in cluster.stragglers:
        if rank >= cluster.world_size:
            yield RuleViolation(
                ("cluster", "stragglers", rank),
                f"got rank {rank}; {allowed}",
                ("cluster.stragglers", "cluster.world_size"),
                of_key=True,
            )


def _events(cluster: ClusterSpec, facts: TopologyFacts | None) -> Iterator[RuleViolation]:
    for number, event in enumerate(cluster.events):
        key = ("cluster", "events", number)
        involved = ("cluster.events", "cluster.world_size", "cluster.topology")
        targets = [name for name in ("link", "rank", "node") if getattr(event, name) is not None]
        if len(targets) != 1:
            text = f"names {' and '.join(targets)}" if targets else "names nothing"
            yield RuleViolation(key, f"{text}; name one of link, rank, node", involved[:1])
        if event.rank is not None and event.rank >= cluster.world_size:
            message = f"got rank {event.rank}; must be one of 0 .. {cluster.world_size - 1}"
            yield RuleViolation((*key, "rank"), message, involved[:2])
        if event.node is not None and facts is not None:
            size = facts.node_size or cluster.world_size
            nodes = -(-cluster.world_size // size)
            if event.node >= nodes:
                message = f"got node {event.node}; must be one of 0 .. {nodes - 1}"
                yield RuleViolation((*key, "node"), message, involved)
        if event.times > 1 and event.every is None:
            yield RuleViolation((*key, "times"), f"got {event.times}; needs every, the time between two", involved[:1])
        if event.every is not None and event.times == 1:
            yield RuleViolation((*key, "every"), "has no effect without times", involved[:1], of_key=True)
        if event.every is not None and event.lasts is not None and event.lasts > event.every:
            yield RuleViolation((*key, "lasts"), "must not be longer than every", involved[:1])
        if event.times > 1 and event.lasts is None:
            yield RuleViolation((*key, "times"), f"got {event.times}; needs lasts, how long each takes", involved[:1])
        yield from _rerouting(event, key)
        if event.factor == 1.0:
            yield RuleViolation((*key, "factor"), "got 1; must be below 1, because 1 changes nothing", involved[:1])


def _rerouting(event: EventSpec, key: tuple[str | int, ...]) -> Iterator[RuleViolation]:
    """Yield a violation if an event has a time of rerouting that has no effect."""
    if event.reroute_after is None:
        return
    where, involved = (*key, "reroute_after"), ("cluster.events",)
    if event.link is None:
        yield RuleViolation(where, "has no effect without link: no route leads around a GPU", involved, of_key=True)
    elif event.factor > 0.0:
        yield RuleViolation(where, "has no effect on a slow link; write factor: 0", involved, of_key=True)
    elif event.lasts is not None and event.reroute_after >= event.lasts:
        yield RuleViolation(where, "has no effect: the link is up again before; must be shorter than lasts", involved)


def _larger(small: TopologyFacts, world_size: int) -> str:
    """Return the names of shipped machines with enough GPUs, similar machines first: ', a larger topology (...)'."""
    every = [_shipped(name) for name in registry.names("topology")]
    # Graphs without nodes are invented, and many accept only some numbers of GPUs.
    enough = [
        facts for facts in every if facts.node_size and (facts.max_ranks is None or facts.max_ranks >= world_size)
    ]
    enough.sort(key=lambda facts: (facts.gpu != small.gpu, facts.node_size != small.node_size))
    names = [facts.name for facts in enough[:_MOST_LARGER]]
    return f", a larger topology (such as {', '.join(names)})" if names else ""


def _placement(cluster: ClusterSpec, facts: TopologyFacts | None) -> Iterator[RuleViolation]:
    placement, key = cluster.placement, ("cluster", "placement")
    if placement is None:
        return
    if not isinstance(placement, tuple):
        yield from _per_node(placement[PLACEMENT.key], cluster.world_size, facts)
        return
    twice = first_duplicate(placement)
    if twice is not None:
        yield RuleViolation(
            (*key, twice), (f"got GPU {placement[twice]} twice; each GPU holds a single rank"), ("cluster.placement",)
        )
    if len(placement) != cluster.world_size:
        yield RuleViolation(
            key,
            f"got {len(placement)} GPUs; must be one for each rank, and world_size is {cluster.world_size}",
            ("cluster.placement", "cluster.world_size"),
        )
    most = None if facts is None else facts.max_ranks
    for i, gpu in enumerate(placement):
        if most is not None and gpu >= most:
            yield RuleViolation(
                (*key, i),
                f"got GPU {gpu}; must be one of 0 .. {most - 1}",
                ("cluster.placement", "cluster.topology"),
            )


def _per_node(used: int, world_size: int, facts: TopologyFacts | None) -> Iterator[RuleViolation]:
    """Yield a violation if the nodes cannot give `used` GPUs each to `world_size` ranks."""
    if facts is None:
        return
    size, nodes, refused = facts.node_size, -(-world_size // used), ""
    if size is None:
        refused = f"topology {facts.name} has no nodes of one size; write the GPU number of each rank"
    elif used > size:
        refused = f"a node of {facts.name} has {size} GPUs"
    elif facts.max_ranks is not None and nodes * size > facts.max_ranks:
        refused = f"{world_size} ranks then need {nodes} nodes, and {facts.name} has {facts.max_ranks // size}"
    if refused:
        involved = ("cluster.placement", "cluster.topology", "cluster.world_size")
        yield RuleViolation(("cluster", "placement"), f"got {used} GPUs of each node; {refused}", involved)
