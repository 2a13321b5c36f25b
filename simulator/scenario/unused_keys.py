"""Which keys of a scenario change no number of its report, and why: each becomes one warning line.

Rule: a key that would mislead is refused by *_rules.py; here are keys that set something which the scenario does not
have. Each generator yields keys of one point with the reason. A key is warned of if some point sets it and it has an
effect in no point of the scenario. Keys of `training` are in unused_training_keys.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.document import Key
from simulator.scenario.payload import carries_payload
from simulator.scenario.records import ClusterSpec, CollectiveSpec, Scenario
from simulator.scenario.unused_training_keys import unused as unused_in_training

if TYPE_CHECKING:
    from simulator.cluster.build import TopologyFacts

# Algorithms in which each sum is added up in one place, so that no partial sum travels in another dtype.
_ADD_AT_ONCE: Final = ("direct", "naive", "parameter_server")
_KeyValue = tuple[Key, str]


@dataclass(slots=True)
class UnusedKeys:
    """Collects over the points of a scenario which keys had an effect.

    Attributes
    ----------
    reasons : dict of (key, value) to str
        Keys that some point set without effect, and why.
    effective : set of (key, value)
        Keys that some point set with effect.
    """

    reasons: dict[_KeyValue, str] = field(default_factory=dict)
    effective: set[_KeyValue] = field(default_factory=set)

    def add_point(self, shape: Scenario, facts: TopologyFacts | None) -> None:
        """Take note of one point; `facts` is None where the topology itself is at fault."""
        values = dict(_set_keys(shape.model_dump(exclude_defaults=True, warnings=False), ()))
        reasons = {key: why for key, why in _unused(shape, facts) if key in values}
        for key, value in values.items():
            if key in reasons:
                self.reasons.setdefault((key, value), reasons[key])
            else:
                self.effective.add((key, value))

    def reasons_by_key(self) -> dict[Key, str]:
        """Keys that had an effect in no point, and why."""
        return {
            key_and_value[0]: why for key_and_value, why in self.reasons.items() if key_and_value not in self.effective
        }


def _set_keys(data: Mapping[str, Any], at: tuple[str, ...]) -> Iterator[_KeyValue]:
    """Keys that are set, with their values as text; lists, and mappings in _WHOLE, are one value."""
    for name, value in data.items():
        key = (*at, name)
        if isinstance(value, dict) and key not in _WHOLE:
            yield from _set_keys(value, key)
        else:
            yield key, repr(value)


# Mappings whose keys are names of the user's, or of another file format.
_WHOLE: Final = frozenset(
    {
        ("cluster", "topology"),
        ("cluster", "gpu"),
        ("cluster", "stragglers"),
        ("cluster", "link_factors"),
        ("training", "model"),
        ("training", "parallelism", "stages"),
        ("training", "parallelism", "context"),
        ("training", "parallelism", "experts", "imbalance"),
        ("compare",),
        ("sweep",),
    }
)


def _unused(shape: Scenario, facts: TopologyFacts | None) -> Iterator[tuple[Key, str]]:
    yield from _seed(shape)
    if facts is not None and facts.one_route and shape.cluster.ecmp is not None:
        yield ("cluster", "ecmp", "hash"), f"topology {facts.name} has one route between any two"
    if shape.collective is not None:
        yield from _without_kernels(shape.collective, shape.cluster, facts)
        yield from _arithmetic(shape.collective, shape.cluster)
    # Settings of a plan read keys that the scenario, which leaves their sharding open, does not.
    if shape.training is not None and shape.plan is None:
        yield from unused_in_training(shape.training, shape.cluster.world_size)


def _seed(shape: Scenario) -> Iterator[tuple[Key, str]]:
    jitter, training, collective = shape.cluster.jitter, shape.training, shape.collective
    if (jitter.compute, jitter.latency) != (0.0, 0.0) or (training is not None and training.numerics):
        return
    if collective is None or not _carries(collective, shape.cluster):
        yield ("seed",), "nothing is drawn by chance here: no payload, no numerics, no jitter"


def _carries(shape: CollectiveSpec, cluster: ClusterSpec) -> bool:
    ranks = cluster.world_size if shape.group is None else len(shape.group)
    return carries_payload(shape.payload, ranks * shape.nbytes)


def _without_kernels(
    shape: CollectiveSpec, cluster: ClusterSpec, facts: TopologyFacts | None
) -> Iterator[tuple[Key, str]]:
    """A collective uses of a GPU only the bandwidth of its memory, and only where the GPU adds up."""
    yield ("cluster", "jitter", "compute"), "a collective has no kernels; latency is what may vary"
    why = _leaves_memory_alone(shape, cluster, facts)
    if why:
        yield ("cluster", "stragglers"), why
        # A topology without a GPU of its own needs one, and its own may be named again.
        if facts is not None and facts.gpu not in (None, cluster.gpu):
            yield ("cluster", "gpu"), why


def _leaves_memory_alone(shape: CollectiveSpec, cluster: ClusterSpec, facts: TopologyFacts | None) -> str:
    """Why no GPU reads and writes its memory to add up; empty if one may."""
    from simulator.collectives.algorithm import ALGORITHMS, REDUCING, Auxiliary

    if shape.operation not in REDUCING:
        return f"{shape.operation} adds nothing up, so that no GPU's own speed counts"
    auxiliary = ALGORITHMS.find(shape.algorithm).auxiliary if shape.algorithm in ALGORITHMS.names() else Auxiliary.NONE
    if auxiliary is Auxiliary.SERVERS and (shape.servers is None or shape.servers.on == "own"):
        return "servers of their own add up, so that no GPU's own speed counts"
    node = None if facts is None else facts.node_size
    in_one_node = node is not None and cluster.world_size <= node and cluster.placement is None
    if auxiliary is Auxiliary.SWITCHES and in_one_node:
        return "the node's switch adds up, so that no GPU's own speed counts"
    return ""


def _arithmetic(shape: CollectiveSpec, cluster: ClusterSpec) -> Iterator[tuple[Key, str]]:
    if not _carries(shape, cluster):
        yield ("collective", "reduction"), "without payload nothing is added up; times are those of any reduction"
        if shape.algorithm in _ADD_AT_ONCE:
            yield ("collective", "accumulate"), f"without payload, and with {shape.algorithm} no partial sum travels"
    if shape.accumulate == shape.dtype:
        yield ("collective", "accumulate"), "the payload is float32 already"
