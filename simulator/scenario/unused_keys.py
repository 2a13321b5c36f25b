"""Which keys of a scenario change no number in its report, and why? Each such key becomes a warning line.

A key that would mislead is refused in *_rules.py. Here are keys that configure something absent from the scenario, such
as `stragglers` in a collective without sums. Each generator yields a point's keys with a reason. A warning is given if
some point sets the key and the key has an effect in no point. Keys of `training` are in unused_training_keys.py.

Example, with `compare: {collective.algorithm: [ring, direct]}`, no payload, and `accumulate: float32`::

    point     accumulate                               warning
    ring      effective: partial sums travel           none, because one point uses the value
    direct    unused: sums are formed in one place
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.document import Key
from simulator.basics.errors import ScenarioError
from simulator.scenario import own_parts
from simulator.scenario.collective_rules import chosen
from simulator.scenario.payload import carries_payload
from simulator.scenario.records import ClusterSpec, CollectiveSpec, Scenario

if TYPE_CHECKING:
    from simulator.cluster.build import TopologyFacts

# Algorithms that form each sum in one place; no partial sum travels in another dtype.
_ADD_AT_ONCE: Final = ("direct", "naive", "parameter_server")
_KeyValue = tuple[Key, str]


@dataclass(slots=True)
class UnusedKeys:
    """Collects, over a scenario's points, the keys with and without effect."""

    # Values set by some point without effect, with the reason.
    reasons: dict[_KeyValue, str] = field(default_factory=dict)
    effective: set[_KeyValue] = field(default_factory=set)  # values set by some point with effect

    def add_point(self, shape: Scenario, facts: TopologyFacts | None, base: Path) -> None:
        """Add a point's set keys, sorted into those with and without effect.

        `facts` is None if the topology is invalid; `base` is the scenario's folder.
        """
        # Values equal to their default say nothing, and are not counted as set. The value belongs to the dict key:
        # `servers.count` 1 and 2, from an axis, are judged separately.
        values = dict(_set_keys(shape.model_dump(exclude_defaults=True, warnings=False), ()))
        reasons = {key: why for key, why in _unused(shape, facts, base) if key in values}
        for key, value in values.items():
            if key in reasons:
                self.reasons.setdefault((key, value), reasons[key])
            else:
                self.effective.add((key, value))

    def reasons_by_key(self) -> dict[Key, str]:
        """Return {key: reason} for the keys with no effect in any point."""
        return {
            key_and_value[0]: why for key_and_value, why in self.reasons.items() if key_and_value not in self.effective
        }


def _set_keys(data: Mapping[str, Any], at: tuple[str, ...]) -> Iterator[_KeyValue]:
    """Yield (key, value's text) for each set key of nested data; mappings listed in _WHOLE are a single value."""
    for name, value in data.items():
        key = (*at, name)
        if isinstance(value, dict) and key not in _WHOLE:
            yield from _set_keys(value, key)
        else:
            yield key, repr(value)


# Mappings whose keys are the user's names (ranks, links, axes), or belong to another file format.
_WHOLE: Final = frozenset(
    {
        ("cluster", "topology"),
        ("cluster", "gpu"),
        ("cluster", "stragglers"),
        ("cluster", "link_factors"),
        ("cluster", "placement"),
        ("training", "model"),
        ("training", "parallelism", "stages"),
        ("training", "parallelism", "context"),
        ("training", "parallelism", "experts", "imbalance"),
        ("compare",),
        ("sweep",),
    }
)


def _unused(shape: Scenario, facts: TopologyFacts | None, base: Path) -> Iterator[tuple[Key, str]]:
    yield from _seed(shape)
    yield from _single_rank(shape)
    if facts is not None and facts.one_route and shape.cluster.ecmp is not None:
        yield ("cluster", "ecmp", "hash"), f"topology {facts.name} has one route between any two"
    if facts is not None and shape.cluster.world_size <= (facts.node_size or 0) and shape.cluster.placement is None:
        yield ("cluster", "transport"), "all ranks are in one node"
    if shape.training is None or shape.training.checkpoint_traffic == "none":
        yield ("cluster", "storage"), "nothing is saved; write training.checkpoint_traffic: sharded"
    if shape.collective is not None:
        yield from _without_kernels(shape.collective, shape.cluster, facts, base)
        yield from _arithmetic(shape.collective, shape.cluster)
    # A plan leaves the sharding open. Keys unused by this scenario may still be read by the plan's settings. The rules
    # report an unusable part.
    if shape.training is not None and shape.plan is None and not any(own_parts.unusable(shape.training, base)):
        from simulator.scenario.unused_training_keys import unused as unused_in_training

        yield from unused_in_training(own_parts.located(shape.training, base), shape.cluster.world_size, base)


def _single_rank(shape: Scenario) -> Iterator[tuple[Key, str]]:
    """Yield (key, reason) for the keys of links and collectives that change no number of a single rank."""
    if shape.cluster.world_size > 1:
        return
    yield ("cluster", "watchdog"), "one rank has no collectives"
    if all(event.link is not None for event in shape.cluster.events):
        yield ("cluster", "events"), "one rank sends nothing over links"


def _seed(shape: Scenario) -> Iterator[tuple[Key, str]]:
    jitter, training, collective = shape.cluster.jitter, shape.training, shape.collective
    if (jitter.compute, jitter.latency) != (0.0, 0.0) or (training is not None and training.numerics):
        return
    if collective is None or not _carries(collective, shape.cluster):
        yield ("seed",), "the scenario has no random numbers: no payload, no numerics, no jitter"


def _carries(shape: CollectiveSpec, cluster: ClusterSpec) -> bool:
    ranks = cluster.world_size if shape.group is None else len(shape.group)
    return carries_payload(shape.payload, ranks * shape.nbytes)


def _without_kernels(
    shape: CollectiveSpec, cluster: ClusterSpec, facts: TopologyFacts | None, base: Path
) -> Iterator[tuple[Key, str]]:
    """Yield (key, reason) for GPU keys without effect; only memory bandwidth matters, if GPUs compute sums."""
    yield ("cluster", "jitter", "compute"), "a collective has no kernels; only latency can vary"
    why = _leaves_memory_alone(shape, cluster, facts, base)
    if why:
        yield ("cluster", "stragglers"), why
        # A dead GPU does not send.
        if all(event.link is None and event.factor > 0.0 for event in cluster.events):
            yield ("cluster", "events"), why
        # A topology without GPU needs `cluster.gpu`, and naming the topology's own GPU again is harmless.
        if facts is not None and facts.gpu not in (None, cluster.gpu):
            yield ("cluster", "gpu"), why


def _leaves_memory_alone(shape: CollectiveSpec, cluster: ClusterSpec, facts: TopologyFacts | None, base: Path) -> str:
    """Return the reason why a collective uses no GPU's memory for sums; empty if it may."""
    from simulator.collectives.algorithm import REDUCING, Auxiliary

    if shape.operation not in REDUCING:
        return f"{shape.operation} adds no elements, therefore the speed of GPUs has no influence"
    try:
        algorithm = chosen(shape.algorithm, base)
    # The rules report an unusable algorithm.
    except ScenarioError:
        return ""
    auxiliary = Auxiliary.NONE if algorithm is None else algorithm.auxiliary
    if auxiliary is Auxiliary.SERVERS and (shape.servers is None or shape.servers.on == "own"):
        return "separate servers add the elements, therefore the speed of GPUs has no influence"
    node = None if facts is None else facts.node_size
    # Without placement, the first ranks fill the first node; with placement, ranks may be anywhere.
    in_one_node = node is not None and cluster.world_size <= node and cluster.placement is None
    if auxiliary is Auxiliary.SWITCHES and in_one_node:
        return "the node's switch adds the elements, therefore the speed of GPUs has no influence"
    return ""


def _arithmetic(shape: CollectiveSpec, cluster: ClusterSpec) -> Iterator[tuple[Key, str]]:
    if not _carries(shape, cluster):
        yield (
            ("collective", "reduction"),
            ("without payload no elements are added, and every reduction takes the same time"),
        )
        if shape.algorithm in _ADD_AT_ONCE:
            yield ("collective", "accumulate"), f"without payload, and with {shape.algorithm} no partial sum travels"
    if shape.accumulate == shape.dtype:
        yield ("collective", "accumulate"), "the payload is already float32"
