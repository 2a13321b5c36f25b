"""NCCL's graph XML beside its topology: the order of the ranks, and the rate of the rings."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.basics.errors import ScenarioError
from simulator.importing.settings import Reason
from tests.machines import cluster, imported, read, sample

TOPOLOGY = sample("nccl_topology/azure_ncv4-topo.xml")
GRAPH = sample("nccl_topology/azure_ncv4-graph.xml")


def written(folder: Path, *orders: str, count: int = 2, speed: str = "12") -> str:
    """A graph file with a channel for each order, such as "0 2 1 3"."""
    gpus = ["".join(f'<gpu dev="{number}"/>' for number in order.split()) for order in orders]
    channels = "".join(f"<channel>{each}</channel>" for each in gpus)
    graph = f'<graph id="0" pattern="4" nchannels="{count}" speedintra="{speed}">{channels}</graph>'
    (folder / "graph.xml").write_text(f'<graphs version="1">{graph}</graphs>', encoding="utf-8")
    return str(folder / "graph.xml")


def rings(text: str) -> list[list[int]]:
    """GPUs of each channel of the first graph in a file's text."""
    first = text.partition("</graph>")[0]
    return [
        [int(part.partition('"')[0]) for part in channel.split('dev="')[1:]] for channel in first.split("<channel>")[1:]
    ]


def test_the_sample_has_two_rings_in_both_directions(tmp_path: Path) -> None:
    first, second = rings(Path(GRAPH).read_text(encoding="utf-8"))
    # From GPU 0 on, the second ring is the first one backwards.
    assert second == [first[0], *first[:0:-1]]
    found = imported(TOPOLOGY, GRAPH)
    assert read(found)["order of the ranks"] == "0 1 2 3"
    # Two channels of 12 GB/s.
    measured = cluster(tmp_path, found).collectives["all_reduce"]
    assert (measured.algorithm, measured.rate_cap) == ("ring", 2 * 12e9)
    told = [one for one in found.notes.ignored if one.reason is Reason.NOT_MODELLED]
    assert [one.setting.key for one in told if one.setting.key.startswith("graph")] == ["graph 1", "graph 2"]


def test_ranks_follow_the_first_ring_in_every_node(tmp_path: Path) -> None:
    file = written(tmp_path, "0 2 3 1", "1 3 2 0")
    built = cluster(tmp_path, imported(TOPOLOGY, file, nodes=2), 8)
    assert built.ranks == ("gpu0", "gpu2", "gpu3", "gpu1", "gpu4", "gpu6", "gpu7", "gpu5")


def test_rings_with_several_orders_are_told(tmp_path: Path) -> None:
    # The same ring from another GPU on, and backwards, are one order.
    same = imported(TOPOLOGY, written(tmp_path, "0 1 2 3", "2 3 0 1", "3 2 1 0"))
    assert not [one for one in same.notes.ignored if "orders" in one.why]
    other = imported(TOPOLOGY, written(tmp_path, "0 1 2 3", "0 2 1 3"))
    assert [one.why for one in other.notes.ignored if "orders" in one.why] == [
        "channels with several orders; all ranks follow the first"
    ]


@pytest.mark.parametrize(
    ("orders", "count", "speed", "message"),
    [
        (["0 1 2"], 1, "12", "channel: has 3 GPUs; must name each of 0 .. 3 once"),
        (["0 1 2 2"], 1, "12", "channel: has 4 GPUs; must name each of 0 .. 3 once"),
        (["0 1 2 9"], 1, "12", "must name each of 0 .. 3 once"),
        (["0 1 2 3"], 0, "12", "nchannels: got 0; must be 1 .. 64"),
        (["0 1 2 3"], 1, "0", "speedintra: got '0'; must be a number of GB/s, more than 0"),
        (["0 1 2 3"], 1, "fast", "speedintra: got 'fast'"),
    ],
)
def test_rings_of_another_machine_are_refused(
    tmp_path: Path, orders: list[str], count: int, speed: str, message: str
) -> None:
    with pytest.raises(ScenarioError, match=message):
        imported(TOPOLOGY, written(tmp_path, *orders, count=count, speed=speed))


def test_a_graph_alone_is_no_machine() -> None:
    with pytest.raises(ScenarioError, match="NCCL graph only adds to a machine; give the file that describes it"):
        imported(GRAPH)


def test_a_graph_without_rings_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "graph.xml").write_text('<graphs version="1"><graph id="3"/></graphs>', encoding="utf-8")
    assert imported(TOPOLOGY, str(tmp_path / "graph.xml")).graph == imported(TOPOLOGY).graph
