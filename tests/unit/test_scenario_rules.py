"""Keys that are each fine, but do not go together."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.scenario.collective_rules import algorithms_with
from simulator.scenario.load import load_scenario


def told(collective: dict[str, Any], cluster: dict[str, Any] | None = None, **keys: Any) -> list[str]:
    data = {
        "name": "demo",
        "cluster": {"topology": "star_100g", "world_size": 8} | (cluster or {}),
        "collective": {"operation": "all_reduce", "size": "1 MiB"} | collective,
        **keys,
    }
    try:
        load_scenario(data)
    except ScenarioError as error:
        return [line.removeprefix("<dict>: ") for line in str(error).splitlines()]
    return []


def test_an_algorithm_that_cannot_do_the_operation_is_told_with_those_that_can() -> None:
    (line,) = told({"operation": "all_to_all", "algorithm": "parameter_server"})
    assert line == ("collective.algorithm: got 'parameter_server', which cannot do all_to_all; one of auto, direct")


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4095])
def test_a_size_is_a_multiple_of_one_element(nbytes: int) -> None:
    (line,) = told({"size": f"{nbytes} B"})
    assert line.startswith(f"collective.size: got {nbytes} B; must be a multiple of 4 B")
    assert told({"size": f"{nbytes} B", "dtype": "int8"}) == []


def test_nothing_may_be_sent() -> None:
    assert told({"size": "0 B"}) == []


@pytest.mark.parametrize("operation", ["all_gather", "broadcast", "scatter", "gather", "all_to_all"])
def test_only_operations_that_add_up_have_a_reduction_and_an_accumulator(operation: str) -> None:
    lines = told({"operation": operation, "reduction": "max", "accumulate": "float32"})
    assert [line.split(":")[0] for line in lines] == ["collective.accumulate", "collective.reduction"]
    assert told({"operation": operation, "reduction": "sum", "accumulate": "payload"}) == []


def test_integers_are_not_averaged() -> None:
    (line,) = told({"dtype": "int32", "reduction": "average"})
    assert line == "collective.reduction: got 'average' of int32; integers cannot be averaged; use sum"


@pytest.mark.parametrize(
    ("dtype", "fits"), [("bfloat16", True), ("float32", True), ("float64", False), ("int8", False)]
)
def test_float32_accumulates_floats_that_are_no_wider(dtype: str, fits: bool) -> None:
    assert (told({"dtype": dtype, "accumulate": "float32"}) == []) is fits


@pytest.mark.parametrize("operation", ["broadcast", "reduce", "scatter", "gather"])
def test_a_root_is_a_place_in_the_group(operation: str) -> None:
    assert told({"operation": operation, "root": 7}) == []
    assert told({"operation": operation, "root": 8}) == [
        ("collective.root: got 8; must be a position in the group, 0 .. 7")
    ]
    assert told({"operation": operation, "root": 2, "group": [5, 7]}) == [
        "collective.root: got 2; must be a position in the group, 0 .. 1"
    ]


def test_operations_without_a_root_refuse_one() -> None:
    (line,) = told({"root": 0})
    assert line == (
        "collective.root: only for broadcast, reduce, scatter, gather; all_reduce has no root; remove the key"
    )


def test_a_group_names_ranks_that_exist_once() -> None:
    assert told({"group": [0, 8]}) == ["collective.group.1: got rank 8; must be one of 0 .. 7, because world_size is 8"]
    assert told({"group": [3, 3]}) == ["collective.group.1: got rank 3 twice; name each rank once"]
    assert told({"group": [3]}) == ["collective.group: got 1 ranks; a collective needs at least 2"]
    assert told({"group": [7, 0, 3]}) == []


def test_a_rank_order_is_a_permutation_of_the_group() -> None:
    assert told({"algorithm": "ring", "rank_order": [3, 1, 2, 0], "group": [0, 2, 4, 6]}) == []
    (line,) = told({"algorithm": "ring", "rank_order": [0, 1, 2]})
    assert line.endswith("got 3 entries; must contain each position in the group, 0 .. 7, once; missing: 3, 4, 5, 6")


@pytest.mark.parametrize(
    ("option", "value", "algorithms"),
    [
        ("servers", {"count": 2}, {"parameter_server"}),
        ("rank_order", [0, 1], {"ring", "chain"}),
        ("chunks", 2, {"chain", "double_binary_tree", "parameter_server", "hierarchical", "blueconnect", "nvls"}),
        ("group_size", 2, {"hierarchical", "blueconnect", "multi_ring"}),
    ],
)
def test_an_option_is_refused_where_the_algorithm_does_not_listen(
    option: str, value: Any, algorithms: set[str]
) -> None:
    assert set(algorithms_with(option)) == algorithms
    for algorithm in ("tree", "auto"):
        (line,) = told({"algorithm": algorithm, option: value})
        assert line.startswith(f"collective.{option}: only for ")
        assert line.endswith(f"but the algorithm is {algorithm}; remove the key")


def test_servers_of_their_own_need_a_place_in_the_topology() -> None:
    dgx = {"topology": "dgx_a100"}
    assert told({"algorithm": "parameter_server"}) == []
    (line,) = told({"algorithm": "parameter_server"}, dgx)
    assert line.endswith(
        "topology dgx_a100 has no ports for separate servers; these need builder star, builder fat_tree, builder nodes "
        "with 'fabric: leaf_spine', or a graph with a vertex of 'kind: server' for each server; or write "
        "'servers: {on: workers}'"
    )
    assert told({"algorithm": "parameter_server", "servers": {"on": "workers"}}, dgx) == []


def test_workers_hold_at_most_one_server_each() -> None:
    many = {"algorithm": "parameter_server", "servers": {"on": "workers", "count": 9}}
    assert told(many) == ["collective.servers.count: got 9 servers on 8 workers; at most one per worker"]


def test_nvls_needs_switches_that_add() -> None:
    assert told({"algorithm": "nvls"}, {"topology": "dgx_h100"}) == []
    (line,) = told({"algorithm": "nvls"}, {"topology": "dgx_a100"})
    assert line.startswith("collective.algorithm: got 'nvls'; the switches of topology dgx_a100 cannot reduce")


def test_hierarchical_needs_full_nodes() -> None:
    assert told({"algorithm": "hierarchical"}, {"topology": "dgx_a100", "world_size": 16}) == []
    (line,) = told({"algorithm": "hierarchical"}, {"topology": "dgx_a100", "world_size": 12})
    assert line.endswith("a node has 8 ranks and every node must be full; take 8 or 16 ranks")
    assert told({"algorithm": "hierarchical", "group_size": 4}) == []
    assert "has no nodes" in told({"algorithm": "hierarchical"})[0]
    (line,) = told({"algorithm": "hierarchical", "group_size": 3})
    assert line == "collective.group_size: got 3; must divide the 8 ranks of the group; try 2, 4, 8"


def test_a_fixed_topology_has_so_many_gpus() -> None:
    assert told({}, {"topology": "fat_tree_1024", "world_size": 1024}) == []
    (line,) = told({}, {"topology": "fat_tree_1024", "world_size": 1025})
    assert line == (
        "cluster.world_size: got 1025; topology fat_tree_1024 has 1024 GPUs; take fewer ranks, a larger topology (such "
        "as a100_roce_4x100g, aws_p4de, dgx_a100), or write a topology file (docs/start/your_cluster.md)"
    )
    # Machines with the same GPU come first: geforce_server has 8 of the workstation's GPUs.
    (line,) = told({}, {"topology": "pcie_workstation", "world_size": 8})
    assert "a larger topology (such as geforce_server, " in line
    (line,) = told({}, {"topology": "pcie_workstation", "world_size": 9})
    assert "a larger topology (such as " in line
    assert "geforce_server" not in line


def test_stragglers_are_ranks_that_exist() -> None:
    (line,) = told({}, {"stragglers": {8: 0.5}})
    assert line == "cluster.stragglers.8: got rank 8; must be one of 0 .. 7, because world_size is 8"


def test_a_placement_gives_each_rank_a_gpu_of_its_own() -> None:
    torus: dict[str, Any] = {"topology": "fat_tree_1024", "world_size": 2}
    assert told({}, torus | {"placement": [1023, 0]}) == []
    assert told({}, torus | {"placement": [0, 0]}) == [
        ("cluster.placement.1: got GPU 0 twice; each GPU holds a single rank")
    ]
    assert told({}, torus | {"placement": [0, 1024]}) == ["cluster.placement.1: got GPU 1024; must be one of 0 .. 1023"]
    assert told({}, torus | {"placement": [0]}) == [
        "cluster.placement: got 1 GPUs; must be one for each rank, and world_size is 2"
    ]


@pytest.mark.parametrize(
    ("topology", "ranks", "used", "line"),
    [
        ("gb200_nvl72", 128, 64, ""),
        ("gb200_nvl72", 128, 72, ""),
        ("gb200_nvl72", 128, 73, "got 73 GPUs of each node; a node of gb200_nvl72 has 72 GPUs"),
        ("geforce_server", 8, 8, ""),
        ("geforce_server", 8, 4, "got 4 GPUs of each node; 8 ranks then need 2 nodes, and geforce_server has 1"),
        (
            "fat_tree_1024", 8, 4,
            "got 4 GPUs of each node; topology fat_tree_1024 has no nodes of one size; write the GPU number of each "
            "rank",
        ),
        ("dgx_a100", 8, 0, "got 0; must be at least 1"),
    ],
)  # fmt: skip
def test_nodes_have_the_gpus_that_are_used_on_each(topology: str, ranks: int, used: int, line: str) -> None:
    cluster = {"topology": topology, "world_size": ranks, "placement": {"gpus_per_node": used}}
    assert told({}, cluster) == ([f"cluster.placement: {line}"] if line else [])


def test_a_placement_has_no_other_keys() -> None:
    assert told({}, {"placement": {"gpus_per_nod": 4}}) == [
        "cluster.placement: got a mapping; must be a list such as [0, 2, 1, 3], or {gpus_per_node: 64}"
    ]


def test_tensors_are_all_reduced_and_add_up_to_the_size() -> None:
    assert told({"tensors": ["512 KiB", "512 KiB"]}) == []
    assert told({"tensors": ["512 KiB"]}) == [
        "collective.size: got 1048576 B, but the tensors add up to 524288 B; omit size"
    ]
    (line,) = told({"operation": "broadcast", "tensors": ["1 MiB"]})
    assert line == "collective.tensors: only for all_reduce, but the operation is broadcast; give a size"
    assert told({"tensors": []}) == ["collective.tensors: got an empty list; write for example [4 MiB, 1 MiB]"]


def test_fusion_is_of_tensors_and_of_one_kind() -> None:
    (line,) = told({"fusion": {"buckets": "1 MiB"}})
    assert line.startswith("collective.fusion: only with tensors")
    (line,) = told({"tensors": ["1 MiB"], "fusion": {"buckets": "1 MiB", "cycle": "1 ms"}})
    assert line.startswith("collective.fusion: got a buffer and buckets")
    (line,) = told({"tensors": ["1 MiB"], "fusion": {}})
    assert line.startswith("collective.fusion: got neither a buffer nor buckets")


def test_a_gpu_written_out_is_checked_too() -> None:
    assert told({}, {"gpu": {"nmae": "mine"}})


def test_a_topology_written_out_needs_a_gpu_from_somewhere() -> None:
    star = {"name": "mine", "builder": "star", "options": {"bandwidth": "1 GB/s", "latency": "1 us"}}
    (line,) = told({}, {"topology": star})
    assert line == "cluster.gpu: topology mine has no GPU; write for example 'gpu: a100_sxm_80gb'"
    assert told({}, {"topology": star, "gpu": "l4"}) == []
    lines = told({}, {"topology": star | {"builder": "stra"}, "gpu": "l4"})
    assert lines
    assert all(line.startswith("cluster.topology: ") for line in lines)


def test_pieces_are_refused_where_the_algorithm_does_not_cut_this_operation() -> None:
    nodes = {"topology": "dgx_a100", "world_size": 16}
    assert told({"algorithm": "hierarchical", "chunks": 4}, nodes) == []
    (line,) = told({"algorithm": "hierarchical", "chunks": 4, "operation": "all_gather"}, nodes)
    assert line == "collective.chunks: got 4; hierarchical all_gather has no pieces; remove the key"
