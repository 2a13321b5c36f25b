"""Start-up and rate caps of a measured machine, in formulas written out here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator.cluster.build import build
from simulator.cluster.caps import spare_of_cards
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.collectives.algorithm import CollectiveRequest
from tests.playing import assert_time, equal_nodes, nodes, planned, star

# Divisible by every number up to 16.
ELEMENTS = 720_720
S = 4.0 * ELEMENTS


def with_machine(cluster: Cluster, **facts: Any) -> Cluster:
    return replace(cluster, collectives={"all_reduce": MachineCollective(**facts)})


@pytest.mark.parametrize("n", [2, 5, 8])
def test_a_machine_pays_its_start_up_once_and_keeps_flows_below_its_cap(n: int) -> None:
    alpha, beta, cap, startup = 10e-6, 12.5e9, 5e9, 20e-6
    cluster = with_machine(star(n), algorithm="ring", startup=startup, rate_cap=cap)
    assert_time(
        startup + 2 * (n - 1) * (alpha + S / (n * cap)), cluster, "ring", CollectiveRequest("all_reduce", n, ELEMENTS)
    )
    # N - 1 flows share rank 0's port: the cap counts only while their shares are above it.
    share = min(beta / (n - 1), cap)
    assert_time(startup + 2 * (alpha + S / share), cluster, "naive", CollectiveRequest("all_reduce", n, ELEMENTS))
    assert_time(
        startup + 1 * (n - 1) * (alpha + S / (n * cap)), cluster, "ring", CollectiveRequest("all_gather", n, ELEMENTS)
    )


def test_a_cap_that_depends_on_the_size_is_half_at_the_half_size() -> None:
    n, alpha, cap = 4, 10e-6, 5e9
    cluster = with_machine(star(n), algorithm="ring", rate_cap=cap, half_size=S, exponent=1.5)
    assert_time(
        2 * (n - 1) * (alpha + S / (n * cap / 2)), cluster, "ring", CollectiveRequest("all_reduce", n, ELEMENTS)
    )
    factor = 1 / (1 + (S / (3 * S)) ** 1.5)
    hop = alpha + 3 * S / (n * cap * factor)
    assert_time(2 * (n - 1) * hop, cluster, "ring", CollectiveRequest("all_reduce", n, 3 * ELEMENTS))


def test_flows_that_leave_a_node_have_a_cap_of_their_own() -> None:
    m, g = 2, 4
    n = m * g
    cluster = with_machine(nodes(n, g), algorithm="hierarchical", startup=1e-5, rate_cap=100e9, cross_rate_cap=5e9)
    way = (g - 1) * (1e-6 + S / (g * 100e9)) + (m - 1) * (3e-6 + S / (g * m * 5e9))
    assert_time(1e-5 + 2 * way, cluster, "hierarchical", CollectiveRequest("all_reduce", n, ELEMENTS))
    # One rank of each node: every hop of the ring leaves a node.
    pair = CollectiveRequest("all_reduce", 2, ELEMENTS)
    assert_time(1e-5 + 2 * (3e-6 + S / 2 / 5e9), cluster, "ring", pair, group=(0, g))
    line = CollectiveRequest("broadcast", 2, ELEMENTS, chunks=1)
    assert_time(1e-5 + 3e-6 + S / 5e9, cluster, "chain", line, group=(0, g))


def test_a_rank_that_is_alone_at_its_card_has_the_caps_of_all_that_share_it() -> None:
    # Four GPUs of a node at two cards: fitted with all sending, 5 GB/s each are 10 GB/s a card.
    cluster = with_machine(nodes(8, 4, 2), algorithm="ring", cross_rate_cap=5e9)
    hop = 2 * (0.25e-6 + 0.25e-6 + 1e-6)
    pair = CollectiveRequest("all_reduce", 2, ELEMENTS)
    assert_time(2 * (hop + S / 2 / 10e9), cluster, "ring", pair, group=(0, 4))
    # Two of a node that share a card have 5 GB/s again, two at different cards 10.
    four = CollectiveRequest("all_reduce", 4, ELEMENTS)
    for group, cap in (((0, 1, 4, 5), 5e9), ((0, 2, 4, 6), 10e9)):
        made = planned(cluster, "hierarchical", four, group=group)
        assert made.ops[0].cross_rate_cap == pytest.approx(cap)


# GPUs for each network card, from the data sheets and instance descriptions of the machines.
@pytest.mark.parametrize(
    ("name", "sharing"),
    [
        ("dgx_a100", 1), ("dgx_b200", 1), ("dgx_b300", 1), ("dgx_h100", 1), ("gb200_nvl72", 1), ("mi300x_box", 1),
        ("aws_p5", 1), ("aws_p4de", 2), ("a100_roce_4x100g", 2),
    ],
)  # fmt: skip
def test_one_rank_of_each_node_has_the_share_of_all_gpus_at_its_card(name: str, sharing: int) -> None:
    size = len(build(name, 1024).nodes[0])
    cluster = build(name, 2 * size)
    assert [spare_of_cards(cluster, (rank, size + rank)) for rank in range(size)] == [sharing] * size
    assert spare_of_cards(cluster, range(2 * size)) == 1


def test_what_a_rank_sends_to_several_at_once_shares_its_caps() -> None:
    cluster = with_machine(nodes(8, 4), algorithm="ring", rate_cap=90e9, cross_rate_cap=12e9)
    everyone = CollectiveRequest("all_to_all", 8, ELEMENTS)
    (op,) = planned(cluster, "direct", everyone).ops
    # To three others of its node, and to the four of the other one.
    assert (op.rate_cap, op.cross_rate_cap) == (pytest.approx(30e9), pytest.approx(3e9))
    # In two trees over four ranks one that is inner in one of them has a parent and children there, and a parent here.
    (op,) = planned(cluster, "double_binary_tree", CollectiveRequest("all_reduce", 4, ELEMENTS), group=(0, 1, 2, 3)).ops
    ways = {(r, way) for part in op.schedule.rounds() for r, way in zip(part.src, part.channel, strict=True)}
    most = max(sum(src == rank for src, _ in ways) for rank in range(4))
    assert 90e9 / op.rate_cap == pytest.approx(most)


def test_constants_of_another_algorithm_are_turned_by_what_libraries_reach() -> None:
    """NCCL: 0.85 of a ring's bandwidth in switches on Hopper, 14 us a step over the network (src/graph/tuning.cc)."""
    cluster = build("dgx_h100", 16)
    sums = cluster.collectives["all_reduce"]
    (op,) = planned(cluster, "ring", CollectiveRequest("all_reduce", 16, ELEMENTS)).ops
    assert op.rate_cap == pytest.approx(sums.rate_cap / 0.85 * sums.factor(S))
    # A ring leaves each of two nodes once a round, as nvls does in its one level: no further step.
    assert op.startup == pytest.approx(sums.startup)
    four = build("dgx_h100", 32)
    (op,) = planned(four, "ring", CollectiveRequest("all_reduce", 32, ELEMENTS)).ops
    # Six steps from node to node against four.
    assert op.startup == pytest.approx(sums.startup + 2 * 14e-6)


def test_nodes_made_by_the_user_do_not_change_which_flows_leave_a_node() -> None:
    # Groups of 2 in a node of 4: the stage across stays inside the machine's node.
    cluster = with_machine(nodes(4, 4), algorithm="hierarchical", rate_cap=100e9, cross_rate_cap=5e9)
    request = CollectiveRequest("all_reduce", 4, ELEMENTS, nodes=equal_nodes(4, 2))
    assert_time(2 * (1e-6 + S / (2 * 100e9)) + 2 * (1e-6 + S / (4 * 100e9)), cluster, "hierarchical", request)
