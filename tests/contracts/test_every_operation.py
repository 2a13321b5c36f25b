"""Whatever knows each collective operation: the record, and every place that needs more than the record."""

from __future__ import annotations

from typing import get_args

import pytest

from simulator.cluster.topology_file import Operation
from simulator.collectives.algorithm import ALGORITHMS, OPERATIONS, REDUCING, ROOTED, CollectiveRequest, least_volume
from simulator.collectives.collective_plan import Task, plan
from simulator.records.chakra import NUMBERS
from simulator.records.chakra import OPERATIONS as OF_NUMBER
from simulator.records.collective_operation import COLLECTIVE_OPERATIONS, Holding
from simulator.report.numbers.summary import busbw_factor
from simulator.report.plots import style
from simulator.report.plots.collective.steps import finding
from simulator.report.traces.kineto_names import collective_args, kernel_name
from simulator.testing.algorithm_laws import least
from simulator.traces.kineto.kernel_names import SENDS, kind_of_collective
from tests.playing import nodes, star

every = pytest.mark.parametrize("name", OPERATIONS)


def test_operations_of_one_kind_are_named_alike_everywhere() -> None:
    assert set(get_args(Operation)) == set(OPERATIONS)
    assert ROOTED == ("broadcast", "reduce", "scatter", "gather")
    assert REDUCING == ("all_reduce", "reduce_scatter", "reduce")
    assert len({operation.chakra_number for operation in COLLECTIVE_OPERATIONS.values()}) == len(OPERATIONS)


@every
def test_an_algorithm_that_libraries_run_carries_it_out_on_any_machine(name: str) -> None:
    for cluster in (star(4), nodes(8, 4), nodes(4, 4)):
        ranks = cluster.world_size
        made = plan(cluster, Task(CollectiveRequest(name, ranks, 1000), "auto", tuple(range(ranks))))
        asked = CollectiveRequest(name, ranks, 1000, nodes=() if cluster.flat else cluster.nodes)
        assert ALGORITHMS.find(made.algorithm).in_libraries(asked)
        assert made.ops[0].schedule.operation == name


@every
def test_its_bus_bandwidth_is_the_one_of_nccl_tests(name: str) -> None:
    """nccl-tests, doc/PERFORMANCE.md: a ring's links would carry the bus bandwidth for any number of ranks."""
    n = 8
    operation = COLLECTIVE_OPERATIONS[name]
    # An array that stays whole at every place crosses each link of a pipeline once.
    if {operation.before, operation.after} <= {Holding.ROOT, Holding.WHOLE} and operation.rooted:
        assert busbw_factor(name, n) == 1.0
    else:
        assert busbw_factor(name, n) == pytest.approx(
            least_volume(CollectiveRequest(name, n, n * n)) / n / (n * n)
            if name not in ("scatter", "gather")
            else (n - 1) / n
        )


@every
def test_its_least_volume_is_the_one_of_the_papers(name: str) -> None:
    for ranks, elements in ((2, 7), (5, 1003)):
        request = CollectiveRequest(name, ranks, elements)
        assert least_volume(request) == least(request)


@every
def test_it_has_a_colour_and_words(name: str) -> None:
    assert name in style.OPERATIONS
    made = plan(star(3), Task(CollectiveRequest(name, 3, 12), "auto", (0, 1, 2)))
    text = finding(made.ops[0].schedule)
    assert text.startswith(f"{made.algorithm} {name} of 3 ranks: ")
    assert "{" not in text
    assert ("rank 0" in text) == (name in ROOTED)


@every
def test_profiles_read_the_names_that_traces_write(name: str) -> None:
    made = plan(star(4), Task(CollectiveRequest(name, 4, 64), "auto", (0, 1, 2, 3)))
    args, kernel = collective_args(made.ops[0], "0", 1), kernel_name(made.ops[0])
    assert kind_of_collective(args["Collective name"]) == name
    assert kind_of_collective("", kernel) in (name, SENDS)
    # PyTorch counts what a rank gives and gets: its part, the whole array, or at other ranks than the root nothing.
    operation = COLLECTIVE_OPERATIONS[name]
    counts = {Holding.WHOLE: 64, Holding.PAIRS: 64, Holding.PART: 16, Holding.ROOT: 0}
    assert (args["In msg nelems"], args["Out msg nelems"]) == (counts[operation.before], counts[operation.after])


def test_execution_traces_have_the_numbers_of_the_format() -> None:
    """CollectiveCommType of mlcommons/chakra, schema/protobuf/et_def.proto 0.0.4; 8 is a reduce-scatter of blocks."""
    names = ("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter")
    assert {**dict(enumerate(names)), 8: "reduce_scatter", 9: "barrier"} == OF_NUMBER
    assert {name: number for number, name in enumerate(names)} == NUMBERS
