"""Random programs by family, for tests that play them twice: collectives alone, training steps, groups side by side."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.jitter import Jitter
from simulator.records.operation import Collective, Compute, Op, content
from simulator.records.program import CollectiveGroupFamily, OperationLists, Program, RanksByList
from simulator.step.learning_spec import LossScaling
from simulator.step.plan import plan_step
from simulator.step.precision import Precision
from tests.training import TINY, WITHOUT_SERVERS, step

TOPOLOGIES = {"star_100g": 16, "dgx_h100": 16, "dgx_a100": 8, "h100_ethernet_100g": 16, "torus_2d": 9}
COPIED = ("star_100g", "dgx_h100", "dgx_a100", "h100_ethernet_100g", "leaf_spine_100g", "torus_2d")


@dataclass(frozen=True, slots=True)
class Case:
    """A program on a cluster, and its jitter."""

    program: Program
    cluster: Cluster
    jitter: Jitter | None = None


def uneven(cluster: Cluster, generator: np.random.Generator) -> dict[str, float]:
    """Some links slower, each by its own share."""
    names = [cluster.router.link_name(link) for link in range(len(cluster.router.bandwidth))]
    chosen = generator.choice(len(names), max(1, len(names) // 3), replace=False)
    return {names[int(link)]: float(generator.uniform(0.4, 1.0)) for link in chosen}


def drawn_cluster(generator: np.random.Generator, name: str, ranks: int, **more: Any) -> Cluster:
    """A shipped topology, in half of all cases with unlike links."""
    cluster = build(name, ranks, **more)
    if generator.random() < 0.5:
        return build(name, ranks, link_factors=uneven(cluster, generator), **more)
    return cluster


def late(program: Program, generator: np.random.Generator) -> Program:
    """Every rank comes when it comes: at once, within a microsecond or within a millisecond."""
    wait = generator.random(len(program.ranks)) * float(generator.choice([0.0, 1e-6, 1e-3]))
    lists = [
        (Compute("late", float(wait[rank]), stream="communication"), *ops) if ops else ()
        for rank, ops in enumerate(program.ranks)
    ]
    return Program(tuple(lists))


def collective(generator: np.random.Generator, algorithms: tuple[str, ...]) -> Case:
    """One collective, or two in a row, from any starts; sometimes over some of the ranks in any order."""
    name = str(generator.choice(list(TOPOLOGIES)))
    ranks = int(generator.integers(2, TOPOLOGIES[name] + 1))
    algorithm = str(generator.choice(algorithms))
    own = algorithm == "parameter_server" and name == "star_100g"
    cluster = drawn_cluster(generator, name, ranks, servers=1 if own else 0)
    operation: Any = str(generator.choice(sorted(ALGORITHMS.operations(algorithm))))
    facts: dict[str, Any] = {}
    if algorithm in ("hierarchical", "blueconnect"):
        size = int(generator.choice([s for s in range(1, ranks + 1) if ranks % s == 0]))
        facts["nodes"] = tuple(tuple(range(first, first + size)) for first in range(0, ranks, size))
    if algorithm == "nvls":
        name, ranks = "dgx_h100", int(generator.choice([8, 16, 32, 48]))
        cluster, operation = drawn_cluster(generator, name, ranks), "all_reduce"
    if algorithm == "parameter_server":
        facts["servers_on"] = "own" if own else "workers"
    if algorithm == "ring" and generator.random() < 0.3:
        facts["rank_order"] = tuple(int(place) for place in generator.permutation(ranks))
    elements = int(generator.integers(1, 5000)) * (ranks if generator.random() < 0.5 else 1)
    request = CollectiveRequest(operation, ranks, elements, **facts)
    planned = plan(cluster, Task(request, algorithm, tuple(range(ranks)), "float32"))
    ops: tuple[Op, ...] = planned.ops
    if generator.random() < 0.3:
        ops = (*ops, replace(planned.ops[0], name="again"))
    jitter = Jitter(0.0, 0.2, int(generator.integers(1000))) if generator.random() < 0.2 else None
    return Case(late(Program((ops,) * ranks), generator), cluster, jitter)


def training(generator: np.random.Generator, strategy: str, *, stragglers: bool = False) -> Case:
    """A step of a tiny model; with stragglers one rank is slower and kernels jitter."""
    pick = _picker(generator)
    name, ranks = pick(("star_100g", 4), ("dgx_h100", 8), ("dgx_h100", 16), ("dgx_a100", 8), ("star_100g", 3))
    facts: dict[str, Any] = {
        "gradient_accumulation_steps": pick(1, 2),
        "activation_checkpointing": pick("none", "full", "sqrt", 2),
    }
    small = "halving_doubling" if ranks != 3 else "ring"
    facts["algorithm"] = pick("auto", "ring", small, "tree" if strategy == "ddp" else "direct")
    facts["loss_scaling"] = pick(LossScaling(rule="none"), LossScaling(rule="dynamic"))
    facts["precision"] = pick(Precision().resolved(), Precision(params="float32").resolved())
    facts["collectives"] = pick("auto", "played")
    if strategy == "zero3":
        facts |= {"prefetch": pick(0, 1, 3), "reshard_after_forward": pick(True, False), "layers_per_unit": pick(1, 2)}
    if strategy in ("zero1", "zero2", "zero3") and ranks % 2 == 0 and generator.random() < 0.4:
        facts["shard_size"] = ranks // 2
    slow = None
    if stragglers:
        slow = {int(generator.integers(ranks)): float(generator.uniform(0.3, 0.9))}
    cluster = drawn_cluster(generator, name, ranks, stragglers=slow)
    jitter = Jitter(0.05, 0.0, int(generator.integers(1000))) if stragglers and generator.random() < 0.5 else None
    return Case(plan_step(cluster, step(strategy, TINY, **facts)).program, cluster, jitter)


def copies(generator: np.random.Generator) -> Case:
    """A zero3 step sharded over some ranks and copied over the rest, whose groups share cards, up to 32 ranks."""
    pick = _picker(generator)
    name = pick(*COPIED)
    ranks = pick(8, 16) if generator.random() < 0.9 else pick(24, 32)
    shards = [size for size in range(2, ranks // 2 + 1) if ranks % size == 0]
    facts: dict[str, Any] = {
        "shard_size": pick(*shards),
        "gradient_accumulation_steps": pick(1, 2, 3),
        "activation_checkpointing": pick("none", "full", "sqrt"),
        "algorithm": pick("auto", "ring", "halving_doubling", "direct"),
        "collectives": pick("auto", "played"),
        "prefetch": pick(0, 1, 2),
        "reshard_after_forward": pick(True, False),
        "layers_per_unit": pick(1, 2),
    }
    slow = {int(generator.integers(ranks)): float(generator.uniform(0.3, 0.9))} if generator.random() < 0.5 else None
    cluster = drawn_cluster(generator, name, ranks, stragglers=slow)
    return Case(plan_step(cluster, step("zero3", TINY, **facts)).program, cluster)


def side_by_side(generator: np.random.Generator) -> Case:
    """Tensor-parallel groups that sum over a node, and data-parallel groups that sum across nodes, on shared cards.

    Each rank computes a layer, sums it inside its group, and sums gradients with its like in the other nodes on another
    stream meanwhile; cards are shared where a node has fewer of them than GPUs.
    """
    pick = _picker(generator)
    name = pick("h100_ethernet_100g", "h100_ethernet_100g", "dgx_h100")
    size, nodes = 8, 2
    ranks = size * nodes
    cluster = drawn_cluster(generator, name, ranks)
    tensor = pick(2, 4, 8)
    inside = [tuple(range(first, first + tensor)) for first in range(0, ranks, tensor)]
    across = [tuple(range(place, ranks, size)) for place in range(size)]
    algorithm = pick("ring", "direct", "halving_doubling")
    elements = [int(generator.integers(1_000, 1_000_000)) for _ in range(2)]
    layers = int(generator.integers(1, 4))
    planned = {
        group: plan(
            cluster, Task(CollectiveRequest("all_reduce", len(group), count), algorithm, group, "bfloat16")
        ).ops[0]
        for groups, count in zip((inside, across), elements, strict=True)
        for group in groups
    }
    lists = []
    for rank in range(ranks):
        ops: list[Op] = []
        mine = [next(group for group in groups if rank in group) for groups in (inside, across)]
        pace = float(generator.uniform(1e-5, 1e-4)) if generator.random() < 0.3 else 5e-5
        for layer in range(layers):
            ops.append(Compute(f"layer {layer}", pace, contended=pace * 1.2))
            for kind, group in zip(("tensor", "data"), mine, strict=True):
                label = f"{kind} {layer} of {group[0]}"
                after = (f"layer {layer}",) if kind == "tensor" else (f"tensor {layer} of {mine[0][0]}",)
                ops.append(replace(planned[group], name=label, stream=kind, after=after))
        lists.append(tuple(ops))
    return Case(Program(tuple(lists)), cluster)


def same_for_all(ranks: int, places: Sequence[Op | tuple[Collective, ...]]) -> Program:
    """All ranks do the same; where a place has several collectives, each rank takes part in that of its group."""
    member = [{rank: op for op in place for rank in op.group} if isinstance(place, tuple) else {} for place in places]
    ops = tuple(place[0] if isinstance(place, tuple) else place for place in places)

    def own(place: int, rank: int) -> Op:
        return member[place].get(rank, ops[place])

    of_name = {place[0].name: place for place in places if isinstance(place, tuple)}

    def family(_: int, op: Collective) -> tuple[Hashable, Callable[[], CollectiveGroupFamily]]:
        groups = of_name[op.name]
        return op.name, lambda: CollectiveGroupFamily(tuple(map(content, groups)), len(groups), groups.__getitem__)

    lists = OperationLists.made((ops,), (0,) * ranks, family)
    return Program(RanksByList(lists, own, lambda place, rank: own(place, rank).name))


FAMILIES: dict[str, Callable[[np.random.Generator], Case]] = {
    "ring": lambda g: collective(g, ("ring", "chain", "multi_ring")),
    "tree": lambda g: collective(g, ("tree", "double_binary_tree", "halving_doubling")),
    "direct": lambda g: collective(g, ("direct", "naive", "parameter_server")),
    "hierarchical": lambda g: collective(g, ("hierarchical", "blueconnect", "nvls")),
    "zero3": lambda g: training(g, "zero3"),
    "ddp": lambda g: training(g, str(g.choice(["ddp", "zero1", "zero2"]))),
    "groups on shared cards": side_by_side,
    "stragglers": lambda g: training(g, str(g.choice(WITHOUT_SERVERS)), stragglers=True),
    "zero3 with copies": copies,
}


def drawn(family: str, seed: int) -> Case | None:
    """A case of a family; None where the draw asks for what an algorithm cannot do there."""
    generator = np.random.default_rng([list(FAMILIES).index(family), seed])
    try:
        return FAMILIES[family](generator)
    except ValueError:
        return None


def _picker(generator: np.random.Generator) -> Callable[..., Any]:
    return lambda *values: values[int(generator.integers(len(values)))]
