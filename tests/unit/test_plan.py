"""Planning and choosing: what decides, what is said about it, and what is planned when the first choice cannot be."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import ALGORITHMS, OPERATIONS, CollectiveRequest
from simulator.collectives.choose import Candidate, choose
from simulator.collectives.collective_plan import Plan, Task, plan
from simulator.collectives.constants import runs
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from tests.playing import equal_nodes, star

MEASURED = [name for name in registry.names("topology") if build(name, 2).collectives]
# Those of which sixteen ranks take two nodes, with measured sums; a rack of 72 GPUs is one.
OF_EIGHT = [
    name for name in MEASURED if len(build(name, 16).nodes) == 2 and "all_reduce" in build(name, 16).collectives
]


def chosen(cluster: Cluster, operation: str = "all_reduce", elements: int = 2**20, **facts: Any) -> Plan:
    group = facts.pop("group", tuple(range(cluster.world_size)))
    return plan(cluster, Task(CollectiveRequest(operation, len(group), elements, **facts), "auto", group))


def test_the_fastest_form_is_taken_and_the_three_best_are_told() -> None:
    known = [Candidate("a", 4e-3), Candidate("b", 1e-3), Candidate("c", 2e-3), Candidate("d", 3e-3)]
    assert choose(known) == ("b", "shortest time by formula: b 1 ms, c 2 ms, d 3 ms")


def test_a_reason_says_how_far_its_estimates_may_be_off() -> None:
    why = choose([Candidate("ring", 1e-3), Candidate("tree", 2e-3, exact=False)])[1]
    assert why == "shortest time by formula: ring 1 ms, tree about 2 ms (about: up to 25 % too short)"


def test_ties_go_to_the_first_name() -> None:
    assert choose([Candidate("tree", 1e-3), Candidate("chain", 1e-3)])[0] == "chain"


def test_what_has_no_form_is_named_and_never_guessed() -> None:
    name, why = choose([Candidate("tree", None), Candidate("ring", 1e-3)])
    assert (name, why) == ("ring", "shortest time by formula: ring 1 ms; without a formula: tree")


def test_without_any_form_the_ring_is_taken_or_the_first_there_is() -> None:
    assert choose([Candidate("direct", None), Candidate("ring", None)])[0] == "ring"
    assert choose([Candidate("chain", None), Candidate("tree", None)])[0] == "chain"


def test_nothing_to_choose_from_is_refused() -> None:
    with pytest.raises(ValueError, match="no algorithm supports this operation here"):
        choose([])


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", registry.names("topology"))
@pytest.mark.one_of(3)
def test_auto_finds_an_algorithm_for_any_number_of_ranks(name: str, operation: str) -> None:
    for world_size in (2, 3, 4):
        made = chosen(build(name, world_size), operation)
        assert operation in ALGORITHMS.operations(made.algorithm)
        assert made.why


def test_some_machines_were_measured() -> None:
    assert {"dgx_h100", "dgx_a100"} <= set(MEASURED)


@pytest.mark.parametrize("name", OF_EIGHT)
@pytest.mark.one_of(3)
def test_a_measured_machine_runs_what_it_runs_and_something_else_where_that_cannot_be(name: str) -> None:
    machine = build(name, 16).collectives["all_reduce"].algorithm
    made = chosen(build(name, 16))
    assert made.algorithm == machine
    assert made.why.startswith(f"{name} runs {machine} (")
    # One full node and half of another: what needs nodes of one size has none.
    uneven = chosen(build(name, 12))
    assert "hierarchical" != uneven.algorithm != "nvls"
    # A group within one node of the uneven cluster runs what ranks of a node alone run, as fast as there.
    alone = plan(build(name, 8), Task(CollectiveRequest("all_reduce", 8, 10**6), "auto", tuple(range(8))))
    beside = plan(build(name, 12), Task(CollectiveRequest("all_reduce", 8, 10**6), "auto", tuple(range(8))))
    assert (beside.algorithm, beside.ops[0].startup) == (alone.algorithm, alone.ops[0].startup)


@pytest.mark.parametrize(("in_node", "able"), [(1, False), (2, True), (8, True)])
def test_a_switch_has_nothing_to_add_where_each_node_has_one_rank(in_node: int, able: bool) -> None:
    """NCCL's rule (src/transport/nvls.cc, ncclNvlsInit) for copies of a shard that stand alone in their nodes."""
    cluster = build("dgx_h100", 32)
    group = tuple(8 * node + place for node in range(4) for place in range(in_node))
    request = CollectiveRequest("all_reduce", len(group), 2**20, nodes=equal_nodes(len(group), in_node))
    assert (runs(cluster, request, group) is not None) is able
    made = chosen(cluster, group=group)
    gathered = cluster.collectives["all_gather"]
    # Two levels of two nodes there and back, each step over the network; a ring would take 6.
    assert (made.ops[0].startup == gathered.startup + 4 * gathered.cross_step) is not able


def test_a_sum_over_half_of_each_node_is_chosen_by_time_and_one_over_whole_nodes_as_measured() -> None:
    cluster = build("dgx_h100", 32)
    half = chosen(cluster, group=tuple(rank for rank in range(32) if rank % 8 < 4))
    assert half.why.startswith("shortest time by formula")
    assert chosen(cluster).why.startswith("dgx_h100 runs nvls")


def test_an_algorithm_that_was_asked_for_is_never_replaced() -> None:
    with pytest.raises(
        ScenarioError, match=r"collective\.algorithm: nvls: nodes must be of one size, got sizes \[8, 4\]"
    ):
        plan(build("dgx_h100", 12), Task(CollectiveRequest("all_reduce", 12, 1024), "nvls", tuple(range(12))))


def test_an_algorithm_without_the_operation_says_what_it_has() -> None:
    with pytest.raises(
        ScenarioError,
        match=("got 'ring', which has no broadcast; its operations are all_reduce, reduce_scatter, all_gather"),
    ):
        plan(star(4), Task(CollectiveRequest("broadcast", 4, 1024), "ring", (0, 1, 2, 3)))


def test_the_reason_of_a_choice_names_the_time_that_was_foreseen(eight_gpus: Cluster) -> None:
    made = chosen(eight_gpus)
    assert made.predicted is not None
    assert made.why.startswith(f"shortest time by formula: {made.algorithm} ")
    every = [
        plan(eight_gpus, Task(CollectiveRequest("all_reduce", 8, 2**20), name, tuple(range(8))))
        for name in ("ring", "tree", "naive")
    ]
    assert all(made.predicted <= other.predicted for other in every if other.predicted is not None)


def test_ranks_outside_of_the_group_have_nothing_to_do(eight_gpus: Cluster) -> None:
    made = chosen(eight_gpus, group=(1, 5, 3))
    assert [len(ops) for ops in made.program.ranks] == [0, 1, 0, 1, 0, 1, 0, 0]


def test_auto_is_within_a_third_of_the_fastest_where_no_closed_form_is_exact() -> None:
    """Whatever libraries run is simulated; the estimates that chose are never shown as times."""
    for topology, world_size in (("torus_2d", 8), ("leaf_spine_100g", 8), ("hypercube", 8)):
        for size in ("16 KiB", "4 MiB"):
            times = {}
            nodes = build(topology, world_size)
            request = CollectiveRequest("all_reduce", world_size, 4096, nodes=() if nodes.flat else nodes.nodes)
            for name in ("auto", *(n for n in ALGORITHMS.names() if ALGORITHMS.find(n).in_libraries(request))):
                scenario = {
                    "name": "auto",
                    "cluster": {"topology": topology, "world_size": world_size},
                    "collective": {"operation": "all_reduce", "algorithm": name, "size": size, "payload": False},
                }
                with contextlib.suppress(ScenarioError):  # what cannot be done here
                    times[name] = simulate(load_scenario(scenario)).report.time_s
            assert times["auto"] <= 4 / 3 * min(times.values())
