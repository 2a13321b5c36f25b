"""`simulator validate --collectives`: a user's measured collectives beside the simulation, and faults of the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.basics.errors import ScenarioError
from simulator.calibration.collective_rows import collective_errors, collective_rows, predicted
from simulator.cluster.build import build
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.events import execute
from tests.commands import commands_in

_HEAD = "topology,gpu,nodes,ranks,op,size_bytes,time_us\n"


def written(folder: Path, *lines: str, head: str = _HEAD) -> Path:
    path = folder / "rows.csv"
    path.write_text(head + "".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def test_an_error_compares_the_simulated_with_the_measured_time(tmp_path: Path) -> None:
    request = CollectiveRequest("all_reduce", 8, 2**24)
    cluster = build("dgx_h100", 8)
    time = execute(plan(cluster, Task(request, "auto", tuple(range(8)), "float32")).program, cluster).end
    # Measured at twice the simulated time: 50 % too short.
    path = written(tmp_path, f"dgx_h100,,1,8,all_reduce,{2**26},{2e6 * time}")
    (outcome,) = predicted(collective_rows(path), lambda: None)
    assert outcome.error == pytest.approx(-0.5)
    (summary,) = collective_errors([outcome])
    assert (summary.machine, summary.sizes, summary.rows) == ("dgx_h100", "from 64 MiB", 1)
    assert (summary.median, summary.bias) == pytest.approx((0.5, -0.5))


def test_ranks_of_partly_used_nodes_lie_in_as_many_nodes(tmp_path: Path) -> None:
    """Four ranks in two nodes of eight GPUs pay for the network, four in one node do not."""
    path = written(tmp_path, "dgx_h100,,1,4,all_gather,65536,10", "dgx_h100,,2,4,all_gather,65536,10")
    inside, across = predicted(collective_rows(path), lambda: None)
    cluster = build("dgx_h100", 4, placement=[0, 1, 8, 9])
    request = CollectiveRequest("all_gather", 4, 16384)
    time = execute(plan(cluster, Task(request, "auto", (0, 1, 2, 3), "float32")).program, cluster).end
    assert across.simulated == pytest.approx(time, rel=1e-6)
    assert across.simulated > inside.simulated


def test_a_machine_under_its_owners_name_is_the_usual_one_of_its_gpu(tmp_path: Path) -> None:
    (row,) = collective_rows(written(tmp_path, "Azure ND H100 v5,H100-SXM5-80GB,1,8,all_reduce,1024,30"))
    assert row.machine == "dgx_h100"


def test_a_gpu_stands_for_its_usual_machine_and_columns_have_other_names(tmp_path: Path) -> None:
    path = written(tmp_path, "H200,8,allgather,1024,30,x", head="gpu,nranks,collective,size,time_us_oop,comment\n")
    (row,) = collective_rows(path)
    assert (row.machine, row.op, row.ranks, row.nodes, row.sizes) == ("dgx_h200", "all_gather", 8, 1, "below 1 MiB")


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (",,1,8,all_reduce,8,1", "line 2: topology: is empty; every line needs a topology or a gpu"),
        ("dgx_h100,,1,9,all_reduce,8,1", "line 2: ranks: got 9 in 1 nodes; dgx_h100 has 8 GPUs in a node"),
        ("dgx_h100,,2,3,all_reduce,8,1", "line 2: ranks: got 3; must be at least 2, and fill 2 nodes equally"),
        ("dgx_h100,,1,8,sendrecv,8,1", "line 2: op: got 'sendrecv'; one of all_gather"),
        ("dgx_h100,,1,8,all_reduce,8,-1", "line 2: time_us: got '-1'; must be greater than 0"),
        ("dgx_h100,,1,8,all_reduce,,1", "line 2: size_bytes: is empty; every line needs a value"),
        ("dgx_9,,1,8,all_reduce,8,1", "line 2: topology: got 'dgx_9'"),
    ],
)
def test_faults_name_file_line_and_column(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(ScenarioError) as error:
        collective_rows(written(tmp_path, line))
    assert told in str(error.value)


def test_dtypes_have_the_names_of_nccl_tests(tmp_path: Path) -> None:
    head = "topology,ranks,op,dtype,size_bytes,time_us\n"
    rows = collective_rows(
        written(tmp_path, *(f"dgx_h100,8,all_gather,{name},1k,9" for name in ("half", "fp32")), head=head)
    )
    assert [row.dtype for row in rows] == ["float16", "float32"]
    with pytest.raises(ScenarioError, match="line 2: dtype: got 'quarter'"):
        collective_rows(written(tmp_path, "dgx_h100,8,all_gather,quarter,1k,9", head=head))


def test_missing_columns_are_told(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="ranks: is missing; every line needs it"):
        collective_rows(written(tmp_path, "dgx_h100,all_reduce,8,1", head="topology,op,size_bytes,time_us\n"))


def test_the_command_prints_errors_by_machine_operation_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, "dgx_h100,,1,8,all_reduce,1048576,30", ",gb200,1,4,all_gather,134217728,200")
    run = commands_in(tmp_path, monkeypatch, capsys)
    out = run("validate", "--collectives", "rows.csv").out
    assert "2 collectives simulated, median error" in out
    assert "1 to 64 MiB" in out
    assert "gb200_nvl72" in out
    document = json.loads(run("validate", "--collectives", "rows.csv", "--json").out)
    assert [row["machine"] for row in document["rows"]] == ["dgx_h100", "gb200_nvl72"]
    assert document["groups"][0]["median"] == pytest.approx(abs(document["rows"][0]["error"]))
    assert "--kernels: excludes --collectives" in run("validate", "--collectives", "rows.csv", "--kernels", "norms").err
