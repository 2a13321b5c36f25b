"""Keys without effect: which of a scenario's keys change no number, whatever they say, and what they would need.

Rule: what would be read as something that it is not is refused by the other rules; what is left here is a setting of
something that is not there, and is told in one line. Each generator names keys of one point; a key is told where it
says something in a point and no point of the scenario listens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.document import Key
from simulator.scenario.making import size
from simulator.scenario.payload import carries_payload
from simulator.scenario.shape import ClusterShape, CollectiveShape, ScenarioShape
from simulator.scenario.unused_training import unused as unused_in_training

if TYPE_CHECKING:
    from simulator.cluster.build import TopologyFacts

# Each sum is added up in one place, so that no partial sum travels in another dtype.
_ADD_AT_ONCE: Final = ("direct", "naive", "parameter_server")
_Said = tuple[Key, str]


@dataclass(slots=True)
class Unused:
    """What points of a scenario were seen to say in vain.

    Attributes
    ----------
    reasons : dict of (key, value) to str
        What a point said without effect, and why.
    heard : set of (key, value)
        What a point said with effect.
    """

    reasons: dict[_Said, str] = field(default_factory=dict)
    heard: set[_Said] = field(default_factory=set)

    def look_at(self, shape: ScenarioShape, facts: TopologyFacts | None) -> None:
        """Take note of one point; `facts` is None where the topology itself is at fault."""
        said = dict(_said(shape.model_dump(exclude_defaults=True, warnings=False), ()))
        vain = {key: why for key, why in _unused(shape, facts) if key in said}
        for key, value in said.items():
            if key in vain:
                self.reasons.setdefault((key, value), vain[key])
            else:
                self.heard.add((key, value))

    def told(self) -> dict[Key, str]:
        """Keys that no point listened to, and why."""
        return {said[0]: why for said, why in self.reasons.items() if said not in self.heard}


def _said(data: Mapping[str, Any], at: tuple[str, ...]) -> Iterator[_Said]:
    """Keys that say something, with what they say; lists and mappings with names of their own are one value."""
    for name, value in data.items():
        key = (*at, name)
        if isinstance(value, dict) and key not in _WHOLE:
            yield from _said(value, key)
        else:
            yield key, repr(value)


_WHOLE: Final = frozenset(
    {
        ("cluster", "topology"),
        ("cluster", "gpu"),
        ("cluster", "stragglers"),
        ("cluster", "link_factors"),
        ("training", "model"),
        ("compare",),
        ("sweep",),
    }
)


def _unused(shape: ScenarioShape, facts: TopologyFacts | None) -> Iterator[tuple[Key, str]]:
    yield from _seed(shape)
    if facts is not None and facts.one_route and shape.cluster.ecmp is not None:
        yield ("cluster", "ecmp", "hash"), f"topology {facts.name} has one route between any two"
    if shape.collective is not None:
        yield from _without_kernels(shape.collective, shape.cluster, facts)
        yield from _arithmetic(shape.collective, shape.cluster)
    if shape.training is not None:
        yield from unused_in_training(shape.training, shape.cluster.world_size)


def _seed(shape: ScenarioShape) -> Iterator[tuple[Key, str]]:
    jitter, training, collective = shape.cluster.jitter, shape.training, shape.collective
    if (jitter.compute, jitter.latency) != (0.0, 0.0) or (training is not None and training.numerics):
        return
    if collective is None or not _carries(collective, shape.cluster):
        yield ("seed",), "nothing is drawn by chance here: no payload, no numerics, no jitter"


def _carries(shape: CollectiveShape, cluster: ClusterShape) -> bool:
    ranks = cluster.world_size if shape.group is None else len(shape.group)
    return carries_payload(shape.payload, ranks * size(shape))


def _without_kernels(
    shape: CollectiveShape, cluster: ClusterShape, facts: TopologyFacts | None
) -> Iterator[tuple[Key, str]]:
    """Of a GPU a collective takes the bandwidth of its memory, and that only where it adds up."""
    yield ("cluster", "jitter", "compute"), "a collective has no kernels; latency is what may vary"
    why = _leaves_memory_alone(shape, cluster, facts)
    if why:
        yield ("cluster", "stragglers"), why
        # A topology without a GPU of its own needs one, and its own may be named again.
        if facts is not None and facts.gpu not in (None, cluster.gpu):
            yield ("cluster", "gpu"), why


def _leaves_memory_alone(shape: CollectiveShape, cluster: ClusterShape, facts: TopologyFacts | None) -> str:
    """Why no GPU reads and writes its memory to add up; empty where one may."""
    from simulator.collectives import catalog
    from simulator.collectives.algorithm import REDUCING, Auxiliary

    if shape.operation not in REDUCING:
        return f"{shape.operation} adds nothing up, so that no GPU's own speed counts"
    auxiliary = catalog.find(shape.algorithm).auxiliary if shape.algorithm in catalog.names() else Auxiliary.NONE
    if auxiliary is Auxiliary.SERVERS and (shape.servers is None or shape.servers.on == "own"):
        return "servers of their own add up, so that no GPU's own speed counts"
    node = None if facts is None else facts.node_size
    in_one_node = node is not None and cluster.world_size <= node and cluster.placement is None
    if auxiliary is Auxiliary.SWITCHES and in_one_node:
        return "the node's switch adds up, so that no GPU's own speed counts"
    return ""


def _arithmetic(shape: CollectiveShape, cluster: ClusterShape) -> Iterator[tuple[Key, str]]:
    if not _carries(shape, cluster):
        yield ("collective", "reduction"), "without payload nothing is added up; times are those of any reduction"
        if shape.algorithm in _ADD_AT_ONCE:
            yield ("collective", "accumulate"), f"without payload, and with {shape.algorithm} no partial sum travels"
    if shape.accumulate == shape.dtype:
        yield ("collective", "accumulate"), "the payload is float32 already"
