"""Training steps as Chakra execution traces: read back, they take the simulated time, and no node is lost.

A trace has kernels in whole microseconds. Borders are rounded, so that each node moves what follows by at most 1 us.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.basics.yaml_dialect import dump
from simulator.cluster.build import build
from simulator.records.operation import Collective, Compute
from simulator.records.program import Program
from simulator.records.timeline import Span, Timeline
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from simulator.traces.chakra.planning import TracePlanner
from simulator.traces.chakra.run import TraceFiles, simulate_traces
from simulator.traces.chakra.trace_reader import read_traces
from simulator.traces.chakra.trace_writer import write_step
from tests.commands import Command, commands_in
from tests.traces.chakra_by_hand import ALL_GATHER, COLL, COMP, trace

GPT2 = {"model": "gpt2", "seq_len": 256}
H100 = {"topology": "dgx_h100", "world_size": 8}
# Messages of a trace start one after another, and those of a ring shift together: without start-ups both take as long.
RATED = yaml.safe_load((Path(__file__).parents[2] / "topologies" / "leaf_spine_100g.yaml").read_text()) | {
    "library": "none"
}
LEAVES = {"topology": RATED, "world_size": 8}
STEPS: dict[str, dict[str, Any]] = {
    "ddp": {"cluster": H100, "training": GPT2 | {"sharding": "ddp", "gradient_accumulation_steps": 2}},
    "fsdp": {"cluster": H100, "training": GPT2 | {"sharding": "zero3"}},
    "fsdp on several links": {"cluster": LEAVES, "training": GPT2 | {"sharding": "zero3", "collectives": "played"}},
    "hybrid": {"cluster": LEAVES, "training": GPT2 | {"sharding": {"strategy": "zero3", "shard_size": 2}}},
    "tensor and pipeline": {
        "cluster": H100,
        "training": GPT2
        | {"parallelism": {"tp": 2, "pp": 2, "schedule": "interleaved", "virtual_stages": 2}, "sharding": "zero1",
           "gradient_accumulation_steps": 4},
    },
    "zero bubble": {
        "cluster": LEAVES,
        "training": GPT2 | {"parallelism": {"pp": 4, "schedule": "zb_h1"}, "gradient_accumulation_steps": 8},
    },
    # On machines with measured constants, a message has the bandwidth of its own size, not of the whole array.
    "ring of keys": {"cluster": LEAVES, "training": GPT2 | {"parallelism": {"cp": 4}, "seq_len": 1024}},
    "issued by the host": {"cluster": H100, "training": GPT2 | {"framework": "nanotron", "parallelism": {"pp": 2}}},
    "each tensor on its own": {
        "cluster": H100,
        "training": GPT2 | {"framework": "deepspeed_2021", "sharding": "zero2"},
    },
    "offload": {"cluster": H100, "training": GPT2 | {"sharding": "zero2", "offload": {"what": "optimizer"}}},
    "stragglers": {"cluster": H100 | {"stragglers": {3: 1.5}}, "training": GPT2 | {"sharding": "zero1"}},
}  # fmt: skip


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.filterwarnings("ignore::simulator.basics.errors.ScenarioWarning")
@pytest.mark.one_of(3)
def test_a_step_read_back_takes_the_simulated_time(cli: Command, tmp_path: Path, name: str) -> None:
    data = {"name": "own"} | STEPS[name]
    (tmp_path / "own.yaml").write_text(dump(data), encoding="utf-8")
    assert cli("export-chakra", "own.yaml", "--out", "t").code == 0
    traces = read_traces(str(tmp_path / "t"))
    run = simulate(load_scenario(data), limit_memory=False, keep=range(8))
    again = simulate_traces(TraceFiles(str(tmp_path / "t")), data["cluster"]["topology"])
    nodes = max(len(own.nodes) for own in traces)
    assert again.timeline.end == pytest.approx(run.timeline.end, abs=nodes * 1e-6)
    # On these machines roundings hardly add up.
    assert again.timeline.end == pytest.approx(run.timeline.end, rel=0.01)
    for rank, own in enumerate(traces):
        ops = run.plan.program.ranks[rank]
        kinds = Counter(node.type.name for node in own.nodes)
        started = sum(node.name.startswith("start-up of ") for node in own.nodes)
        shifts = sum(isinstance(op, Collective) and op.schedule.operation == "ring_shift" for op in ops)
        # A shift around a ring is two nodes; some frameworks' start-ups are nodes of their own.
        assert sum(kinds.values()) - started - shifts == sum(isinstance(op, Compute | Collective) for op in ops)


@pytest.mark.filterwarnings("ignore::simulator.basics.errors.ScenarioWarning")
def test_kernels_have_their_simulated_times(cli: Command, tmp_path: Path) -> None:
    data = {"name": "own"} | copy.deepcopy(STEPS["fsdp"])
    data["training"]["cuda_graphs"] = "full_iteration"
    (tmp_path / "own.yaml").write_text(json.dumps(data), encoding="utf-8")
    answer = cli("export-chakra", "own.yaml", "--out", "t")
    run = simulate(load_scenario(data), keep=range(8))
    spans = {span.name: span for span in run.timeline.spans if span.rank == 5}
    nodes = {node.name: node for node in read_traces("t")[5].nodes}
    for name, span in spans.items():
        if span.stream == "compute":
            assert abs(nodes[name].duration - (span.end - span.start) * 1e6) <= 1.0
    # 12 layers, embedding and head: all 14 units are gathered at the size of a rank's part.
    gathers = [node for node in nodes.values() if node.number("comm_type") == 2]
    whole = {op.name: op.nbytes for op in run.plan.program.collectives().values()}
    assert all(node.number("comm_size") == whole[node.name] / 8 for node in gathers)
    assert answer.out == f"t.R.et: {8 * len(nodes)} nodes of 8 ranks; the simulated step takes 5.771 ms\n"
    assert json.loads((tmp_path / "t.groups.json").read_text()) == {"0": list(range(8))}
    assert cli("simulate-trace", "t", "--groups", "t.groups.json").code == 0


def test_files_have_the_bytes_of_the_definition(tmp_path: Path) -> None:
    gathered = TracePlanner(build("star_100g", 2)).collective("all_gather", 64, (0, 1))
    gathered = gathered.named("gather", ("gemm",), (0, 1))
    gemm = Compute("gemm", 3e-6, flops=10.0, nbytes=20.0)
    spans = [Span(rank, "compute", "gemm", "compute", 0.2e-6, 3.4e-6) for rank in (0, 1)]
    timeline = Timeline("events", 1e-5, spans)
    write_step(Program(((gemm, gathered),) * 2), timeline, build("star_100g", 2), tmp_path / "t")
    # Rounded borders: from 0 to 3 us. A gather has the bytes of a rank's part.
    nodes = [
        {"id": 1, "name": "gemm", "type": COMP, "us": 3, "num_ops": 10, "tensor_size": 20, "is_cpu_op": False,
         "stream": 7},
        {"id": 2, "name": "gather", "type": COLL, "after": [1], "pg_name": "0", "comm_type": ALL_GATHER,
         "comm_size": 32, "is_cpu_op": False},
    ]  # fmt: skip
    assert (tmp_path / "t.0.et").read_bytes() == (tmp_path / "t.1.et").read_bytes() == trace(nodes)


@pytest.mark.filterwarnings("ignore::simulator.basics.errors.ScenarioWarning")
def test_what_a_trace_cannot_say_is_refused_or_noted(cli: Command, tmp_path: Path) -> None:
    servers = {
        "cluster": {"topology": "star_100g", "world_size": 4},
        "training": GPT2 | {"sharding": "parameter_server"},
    }
    changed = {"cluster": LEAVES | {"link_factors": {"gpu0->*": 0.5}}, "training": GPT2}
    for name, data in (("servers", servers), ("changed", changed)):
        (tmp_path / f"{name}.yaml").write_text(json.dumps({"name": name} | data), encoding="utf-8")
    for arguments, line in (
        (["servers.yaml", "--out", "t"], "parameter servers cannot be written as a trace; choose another strategy"),
        (["small.yaml", "--out", "t"], "small.yaml: must have a training and a single point"),
        (["changed.yaml", "--out", "nowhere/t"], "--out: nowhere: there is no such directory"),
    ):
        answer = cli("export-chakra", *arguments)
        assert (answer.code, len(answer.err.splitlines())) == (2, 1), answer.err
        assert line in answer.err
    answer = cli("export-chakra", "changed.yaml", "--out", "t")
    assert (answer.code, "cluster.link_factors: is part of the machine, and not of a trace" in answer.err) == (0, True)
