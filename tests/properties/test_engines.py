"""The compiled engine gives the events engine's answer to 1e-9, or none; and none only where flows really meet."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives import catalog
from simulator.collectives.algorithm import Request
from simulator.collectives.plan import Task
from simulator.collectives.plan import plan as plan_collective
from simulator.engine.compiled.declined import DeclinedError
from simulator.engine.compiled.engine import execute as compiled
from simulator.engine.events import execute as events
from simulator.engine.jitter import Jitter
from simulator.program import Compute, Program
from simulator.timeline import Timeline
from simulator.training.spec import LossScaling, Precision
from simulator.training.step import plan_step
from tests.engines import farthest
from tests.training import TINY, step

CLOSE = 1e-9
TOPOLOGIES = {"star_100g": 16, "dgx_h100": 16, "dgx_a100": 8, "h100_ethernet_100g": 16, "torus_4x4x4": 8}


def uneven(cluster: Cluster, generator: np.random.Generator) -> dict[str, float]:
    """Some links slower, each by its own share."""
    names = [cluster.router.link_name(link) for link in range(len(cluster.router.bandwidth))]
    chosen = generator.choice(len(names), max(1, len(names) // 3), replace=False)
    return {names[int(link)]: float(generator.uniform(0.4, 1.0)) for link in chosen}


def meet(timeline: Timeline, cluster: Cluster, link: int) -> bool:
    """Whether two flows were on a link, or added to a rank's HBM, at once in what the events engine played."""
    links, flows = len(cluster.router.bandwidth), []
    for log in timeline.logs:
        reduce, dst = log.transfers.reduce.tolist(), log.transfers.dst.tolist()
        for number, row in enumerate(log.route.tolist()):
            if link < links:
                there = link in log.routes[row]
            else:
                there = reduce[number] and log.vertices[dst[number]] == cluster.ranks[link - links]
            if there:
                flows.append((float(log.enter[number]), float(log.end[number])))
    flows.sort()
    return any(later[0] < first[1] * (1 - 1e-12) for first, later in pairwise(flows) if first[1] > first[0])


def compare(family: str, program: Program, cluster: Cluster, jitter: Jitter | None = None) -> None:
    """Play both ways."""
    expected = events(program, cluster, jitter=jitter, limit_memory=False)
    found = tried(program, cluster, jitter)
    if isinstance(found, Timeline):
        assert farthest(expected, found) <= CLOSE, family
    else:
        assert found is not None, family
        assert meet(expected, cluster, found), family


def tried(program: Program, cluster: Cluster, jitter: Jitter | None) -> Timeline | int | None:
    """The compiled engine's answer, or the link on which flows would meet."""
    try:
        return compiled(program, cluster, jitter=jitter, limit_memory=False)
    except DeclinedError as error:
        return error.link


def drawn_collective(seed: int) -> tuple[str, Program, Cluster, Jitter | None]:
    generator = np.random.default_rng([7, seed])
    name = str(generator.choice(list(TOPOLOGIES)))
    ranks = int(generator.integers(2, TOPOLOGIES[name] + 1))
    algorithm = str(generator.choice([a for a in catalog.names() if a != "nvls"]))
    operations = catalog.operations(algorithm)
    operation: Any = str(generator.choice(sorted(operations)))
    cluster = build(name, ranks, servers=1 if algorithm == "parameter_server" and name == "star_100g" else 0)
    if generator.random() < 0.5:
        cluster = build(name, ranks, link_factors=uneven(cluster, generator), servers=len(cluster.servers))
    on = {"servers_on": "own" if cluster.servers else "workers"} if algorithm == "parameter_server" else {}
    request = Request(operation, ranks, int(generator.integers(1, 5000)) * ranks, **on)
    planned = plan_collective(cluster, Task(request, algorithm, tuple(range(ranks)), "float32")).program
    late = generator.random(ranks) * float(generator.choice([0.0, 1e-6, 1e-3]))
    lists = [
        (Compute("late", float(late[rank]), stream="communication"), *ops) for rank, ops in enumerate(planned.ranks)
    ]
    luck = Jitter(0.0, 0.2, seed) if generator.random() < 0.3 else None
    return algorithm, Program(tuple(lists)), cluster, luck


def collectives(seeds: range) -> None:
    for seed in seeds:
        try:
            case = drawn_collective(seed)
        except ValueError:  # what an algorithm cannot do on such a cluster
            continue
        compare(*case)


@pytest.mark.parametrize("block", range(40))
def test_a_collective_of_any_kind_is_played_alike_or_not_at_all(block: int) -> None:
    collectives(range(block * 50, block * 50 + 50))


@pytest.mark.long
@pytest.mark.parametrize("block", range(40))
def test_many_collectives_are_played_alike_or_not_at_all(block: int) -> None:
    collectives(range(10_000 + block * 450, 10_000 + block * 450 + 450))


def drawn_step(seed: int) -> tuple[str, Program, Cluster, Jitter | None]:
    generator = np.random.default_rng([11, seed])
    pick = lambda *values: values[int(generator.integers(len(values)))]  # noqa: E731
    strategy = pick("ddp", "zero1", "zero2", "zero3", "zero3")
    name, ranks = pick(("star_100g", 4), ("dgx_h100", 8), ("dgx_h100", 16), ("dgx_a100", 8), ("star_100g", 3))
    facts: dict[str, Any] = {"accumulation": pick(1, 2), "checkpointing": pick("none", "full", "sqrt", 2)}
    facts["algorithm"] = pick(
        "auto", "ring", "halving_doubling" if ranks != 3 else "ring", "tree" if strategy == "ddp" else "ring"
    )
    facts["loss_scaling"] = pick(None, LossScaling())
    facts["precision"] = pick(Precision(), Precision("float32", "float32", "float32", None, "float32"))
    if strategy == "zero3":
        facts |= {"prefetch": pick(0, 1, 3), "reshard_after_forward": pick(True, False), "layers_per_unit": pick(1, 2)}
        if ranks % 2 == 0 and generator.random() < 0.3:
            facts["shard_size"] = ranks // 2
    slow = {int(generator.integers(ranks)): float(generator.uniform(0.3, 0.9))} if generator.random() < 0.4 else None
    cluster = build(name, ranks, stragglers=slow)
    planned = plan_step(cluster, step(strategy, TINY, **facts))
    luck = Jitter(0.05, 0.0, seed) if generator.random() < 0.3 else None
    return strategy, planned.program, cluster, luck


@pytest.mark.parametrize("block", range(20))
def test_a_training_step_is_played_alike_or_not_at_all(block: int) -> None:
    for seed in range(block * 20, block * 20 + 20):
        compare(*drawn_step(seed))


@pytest.mark.long
@pytest.mark.parametrize("block", range(40))
def test_many_training_steps_are_played_alike_or_not_at_all(block: int) -> None:
    for seed in range(10_000 + block * 100, 10_000 + block * 100 + 100):
        compare(*drawn_step(seed))


def test_a_crowd_that_enters_at_once_gets_its_exact_shares() -> None:
    """Three flows leave each port together, each at a third: direct's closed form on a star is 2 (a + 3 S / (4 B))."""
    cluster = build("star_100g", 4)
    request = Request("all_reduce", 4, 4_000_000)
    program = plan_collective(cluster, Task(request, "direct", (0, 1, 2, 3), "float32")).program
    found = compiled(program, cluster)
    assert farthest(events(program, cluster), found) <= CLOSE
    assert found.end == pytest.approx(2 * (10e-6 + 3 * 16e6 / 4 / 12.5e9), rel=1e-9)


def test_one_slow_link_changes_the_time_as_it_changes_the_events() -> None:
    for ranks in (2, 5, 16):
        cluster = build("star_100g", ranks, link_factors={"gpu1->switch0": 0.99})
        request = Request("all_reduce", ranks, 10_000 * ranks)
        program = plan_collective(cluster, Task(request, "ring", tuple(range(ranks)), "float32")).program
        assert farthest(events(program, cluster), compiled(program, cluster)) <= CLOSE


def test_what_meets_is_told_with_link_time_and_operations() -> None:
    cluster = build("star_100g", 4)
    request = Request("all_reduce", 4, 1000)
    planned = plan_collective(cluster, Task(request, "direct", (0, 1, 2, 3), "float32")).program
    lists = [(Compute("late", rank * 1e-7, stream="communication"), *ops) for rank, ops in enumerate(planned.ranks)]
    with pytest.raises(DeclinedError, match=r"flows of 'all_reduce' meet on .*gpu.* at .* s"):
        compiled(Program(tuple(lists)), cluster)


def test_ranks_that_do_different_things_are_for_the_events_engine() -> None:
    cluster = build("star_100g", 2)
    unlike = Program(((Compute("a", 1.0),), (Compute("a", 1.0), Compute("b", 1.0))))
    with pytest.raises(DeclinedError, match="unlike length"):
        compiled(unlike, cluster)


def test_most_of_what_is_drawn_is_accepted_and_something_of_every_kind() -> None:
    """Declining is allowed, declining everything would prove nothing."""
    drawn, accepted = Counter[str](), Counter[str]()
    cases = [drawn_step(seed) for seed in range(150)]
    for seed in range(400):
        with suppress(ValueError):
            cases.append(drawn_collective(seed))
    for family, program, cluster, luck in cases:
        drawn[family] += 1
        accepted[family] += isinstance(tried(program, cluster, luck), Timeline)
    told = ", ".join(f"{family} {accepted[family]} of {drawn[family]}" for family in sorted(drawn))
    assert accepted.total() >= 0.6 * drawn.total(), told
    assert all(accepted[family] >= 0.3 * drawn[family] for family in drawn), told
