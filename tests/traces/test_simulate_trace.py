"""Chakra execution traces: what they mean, when they end, and which are refused.

On star_100g a transfer of S bytes takes 10 us + S / (12.5 GB/s).
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from simulator import simulate
from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.engine.play import Engine
from simulator.testing.looking import check
from simulator.traces.chakra.dependencies import strong_components
from simulator.traces.chakra.matching import matched
from simulator.traces.chakra.run import ChakraRun, TraceFiles, simulate_traces
from simulator.traces.chakra.trace_program import converted
from simulator.traces.chakra.trace_reader import read_traces
from tests.commands import Command, commands_in
from tests.traces.chakra_by_hand import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    BARRIER,
    BROADCAST,
    COLL,
    COMP,
    GATHER,
    LOAD,
    METADATA,
    RECV,
    REDUCE_SCATTER,
    SCATTER,
    SEND,
    STORE,
    Nodes,
    number,
    text,
    trace,
    varint,
    write,
)

SAMPLES = Path(__file__).parent / "chakra_samples"
LATENCY, BANDWIDTH = 10e-6, 12.5e9
MIB = 2**20


def transfer(nbytes: float) -> float:
    return LATENCY + nbytes / BANDWIDTH


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def played(
    folder: Path, *ranks: Nodes, world_size: int | None = None, repair: bool = False, **options: Any
) -> ChakraRun:
    return simulate_traces(TraceFiles(write(folder, ranks), world_size, repair), "star_100g", **options)


def time(folder: Path, *ranks: Nodes, **options: Any) -> float:
    return played(folder, *ranks, **options).timeline.end


def comp(ident: int, us: int, *after: int, **more: Any) -> dict[str, Any]:
    return {"id": ident, "type": COMP, "us": us, "after": after, "is_cpu_op": False} | more


def coll(ident: int, kind: int, size: int, *after: int, **more: Any) -> dict[str, Any]:
    return {"id": ident, "type": COLL, "after": after, "comm_type": kind, "comm_size": size} | more


def send(ident: int, to: int, size: int, *after: int, tag: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": ident, "type": SEND, "after": after, "comm_dst": to, "comm_size": size, "comm_tag": tag} | more


def recv(ident: int, source: int, size: int, *after: int, tag: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": ident, "type": RECV, "after": after, "comm_src": source, "comm_size": size, "comm_tag": tag} | more


ENGINES: tuple[Engine, ...] = ("events", "compiled")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # A ring of N ranks takes N - 1 steps for a gather of parts, twice as many for a sum of N pieces.
        ("all_gather_4npus_1MB", 3 * transfer(MIB)),
        ("all_reduce_4npus_1MB", 6 * transfer(MIB / 4)),
        # 14 messages of 128 KiB and 7 additions of 7 us, one after the other on each rank.
        ("custom_ring_allreduce_8npus_1MB", 14 * transfer(MIB / 8) + 7 * 7e-6),
    ],
)
def test_samples_take_the_time_of_their_formula(name: str, expected: float, engine: Engine) -> None:
    run = simulate_traces(TraceFiles(str(SAMPLES / name)), "star_100g", algorithm="ring", engine=engine)
    assert run.timeline.end == pytest.approx(expected, rel=1e-9)


def test_the_sample_of_messages_is_the_ring_of_the_catalog() -> None:
    run = simulate_traces(TraceFiles(str(SAMPLES / "custom_ring_allreduce_8npus_1MB")), "star_100g", factor=0.0)
    ring = simulate(
        {
            "name": "ring",
            "cluster": {"topology": "star_100g", "world_size": 8},
            "collective": {"operation": "all_reduce", "algorithm": "ring", "size": "1 MiB"},
        }
    )
    assert run.timeline.end == pytest.approx(ring.report.to_dict()["time_s"], rel=1e-9)


@pytest.mark.parametrize(
    ("kind", "size", "operation", "whole"),
    [
        (ALL_REDUCE, 4096, "all_reduce", 4096),
        # The size of a gather is a rank's part, that of a scatter the whole.
        (ALL_GATHER, 4096, "all_gather", 3 * 4096),
        (GATHER, 4096, "gather", 3 * 4096),
        (REDUCE_SCATTER, 4096, "reduce_scatter", 4096),
        (8, 4096, "reduce_scatter", 4096),
        (SCATTER, 4096, "scatter", 4096),
        (BROADCAST, 4096, "broadcast", 4096),
        (ALL_TO_ALL, 4096, "all_to_all", 4096),
        (BARRIER, 0, "all_reduce", 4),
    ],
)
def test_collectives_take_the_time_of_the_machine(
    tmp_path: Path, kind: int, size: int, operation: str, whole: int
) -> None:
    ranks = [[coll(1, kind, size)]] * 3
    alone = simulate(
        {
            "name": "alone",
            "cluster": {"topology": "star_100g", "world_size": 3},
            "collective": {"operation": operation, "size": f"{whole} B", "dtype": "uint8"},
        }
    )
    assert time(tmp_path, *ranks) == pytest.approx(alone.report.to_dict()["time_s"], rel=1e-12)


def test_kernels_wait_for_their_dependencies_and_share_a_stream(tmp_path: Path) -> None:
    # Two kernels of a stream follow each other; the host works beside them; the last waits for both.
    nodes = [comp(1, 30), comp(2, 20), comp(3, 45, is_cpu_op=True), comp(4, 10, 2, 3)]
    assert time(tmp_path, nodes) == pytest.approx(60e-6)
    assert time(tmp_path, nodes, factor=0.5) == pytest.approx(30e-6)
    # With streams of their own, the kernels run at once.
    apart = [nodes[0] | {"stream": 7}, nodes[1] | {"stream": 8}, *nodes[2:]]
    assert time(tmp_path, apart) == pytest.approx(55e-6)


def test_nodes_of_metadata_pass_dependencies_on_and_start_times_are_no_constraint(tmp_path: Path) -> None:
    nodes = [
        comp(1, 30, start=10**9),
        {"id": 2, "type": METADATA, "control": [1], "name": "##process_group:init##"},
        comp(3, 5, is_cpu_op=True, control=[2]),
    ]
    assert time(tmp_path, nodes) == pytest.approx(35e-6)


def test_a_kernel_without_a_time_takes_what_the_gpu_needs(tmp_path: Path) -> None:
    gpu = build("star_100g", 1).gpus[0]
    run = played(tmp_path, [comp(1, 0, num_ops=10**9, tensor_size=1000), {"id": 2, "type": LOAD, "tensor_size": 10**9}])
    # Both at once, on streams of their own.
    assert run.timeline.end == pytest.approx(max(1e9 / gpu.peak_flops["bfloat16"], 1e9 / gpu.hbm_bandwidth))
    assert len(run.converted.notes) == 1
    assert "2 nodes" in run.converted.notes[0]


def test_a_send_is_buffered_and_a_receive_ends_with_the_arrival(tmp_path: Path) -> None:
    # The receiver computes for 1 ms, while the message arrives; then it has it at once.
    late = [comp(1, 1000), recv(2, 0, MIB, 1), comp(3, 5, 2)]
    assert time(tmp_path, [send(1, 1, MIB)], late) == pytest.approx(1005e-6)
    early = [recv(1, 0, MIB), comp(2, 5, 1)]
    assert time(tmp_path, [comp(1, 100), send(2, 1, MIB, 1)], early) == pytest.approx(100e-6 + transfer(MIB) + 5e-6)
    # A sender goes on when its message has arrived.
    sender = [send(1, 1, MIB), comp(2, 7, 1)]
    assert time(tmp_path, sender, [recv(1, 0, MIB)]) == pytest.approx(transfer(MIB) + 7e-6)


def test_both_ranks_may_send_before_they_receive(tmp_path: Path) -> None:
    def rank(peer: int) -> Nodes:
        return [send(1, peer, MIB), recv(2, peer, MIB, 1), comp(3, 1, 2)]

    assert time(tmp_path, rank(1), rank(0)) == pytest.approx(transfer(MIB) + 1e-6)


def test_messages_match_by_tag_and_in_order(tmp_path: Path) -> None:
    # Tags 5 and 6 are sent in the other order than they are received; sizes tell the messages apart.
    sender = [send(1, 1, 100, tag=6), send(2, 1, 200, 1, tag=5), send(3, 1, 300, 2, tag=5)]
    receiver = [recv(1, 0, 200, tag=5), recv(2, 0, 300, 1, tag=5), recv(3, 0, 100, 2, tag=6)]
    run = played(tmp_path, sender, receiver)
    assert run.timeline.end == pytest.approx(transfer(100) + transfer(200) + transfer(300))
    assert [total.collective for total in run.timeline.sent] == [
        "send 0 0 -> 1 tag 6", "send 0 0 -> 1 tag 5", "send 1 0 -> 1 tag 5",
    ]  # fmt: skip


def test_a_group_has_the_ranks_that_name_it(tmp_path: Path) -> None:
    ranks = [
        [coll(1, ALL_REDUCE, MIB, pg_name="even" if rank % 2 == 0 else "odd"), coll(2, BROADCAST, 8, 1)]
        for rank in range(4)
    ]
    run = played(tmp_path, *ranks, algorithm="ring")
    groups = {op.name: op.group for op in run.converted.program.collectives().values()}
    assert groups == {
        "all_reduce 0 of group 'even'": (0, 2), "all_reduce 0 of group 'odd'": (1, 3), "broadcast 0": (0, 1, 2, 3),
    }  # fmt: skip
    # A ring of two: two steps with half of the array each.
    first = max(span.end for span in run.timeline.spans if span.kind == "all_reduce")
    assert first == pytest.approx(2 * transfer(MIB / 2))


def test_a_group_of_one_rank_takes_no_time(tmp_path: Path) -> None:
    assert time(tmp_path, [coll(1, ALL_REDUCE, MIB, pg_name="alone"), comp(2, 3, 1)]) == pytest.approx(3e-6)


def test_a_file_of_groups_finds_a_rank_that_does_not_take_part(tmp_path: Path) -> None:
    ranks = [[coll(1, ALL_REDUCE, 8, pg_name="g")], [coll(1, ALL_REDUCE, 8, pg_name="g")], [comp(1, 1)]]
    assert played(tmp_path, *ranks).timeline.end > 0
    with pytest.raises(ScenarioError, match="rank 0 has 1 collectives of the group 'g', and rank 2 has 0"):
        played(tmp_path, *ranks, groups={"g": [0, 1, 2]})


def test_ranks_that_would_wait_in_a_circle_issue_their_nodes_in_another_order(tmp_path: Path) -> None:
    # In the order of ids, rank 0's first kernel waits for rank 1, which waits for rank 0's second kernel.
    first = [recv(1, 1, 8), comp(2, 10, 1), comp(3, 20), send(4, 1, 8, 3)]
    second = [recv(1, 0, 8), send(2, 0, 8, 1)]
    run = played(tmp_path, first, second)
    assert run.timeline.end == pytest.approx(20e-6 + 2 * transfer(8) + 10e-6)
    assert any("in a circle" in note for note in run.converted.notes)


def test_other_forms_of_numbers_are_read(tmp_path: Path) -> None:
    # comm_size as uint64 (13), comm_type as sint32 (15, zigzag), pg_name as a number, fixed32 (19) root.
    own = text(2, b"x") + number(3, COLL)
    own += text(10, text(1, b"comm_size") + number(13, MIB)) + text(
        10, text(1, b"comm_type") + number(15, 2 * BROADCAST)
    )
    own += text(10, text(1, b"pg_name") + number(9, 3))
    own += text(10, text(1, b"root") + varint(19 * 8 + 5) + (1).to_bytes(4, "little"))
    for rank in range(2):
        content = b"".join(varint(len(message)) + message for message in (b"", own))
        (tmp_path / f"x.{rank}.et.gz").write_bytes(gzip.compress(content))
    run = simulate_traces(TraceFiles(str(tmp_path / "x")), "star_100g", algorithm="chain")
    (op,) = run.converted.program.collectives().values()
    assert (op.schedule.operation, op.schedule.root, op.nbytes) == ("broadcast", 1, MIB)


def test_a_collective_or_message_of_the_host_is_the_call_that_issues_it(tmp_path: Path) -> None:
    # Converters of PyTorch's traces write a node of the host and one of the GPU; the first has no size and no partner.
    nodes = [
        {"id": 1, "type": COLL, "us": 30, "is_cpu_op": True, "tid": 1},
        {"id": 2, "type": SEND, "us": 12, "is_cpu_op": True, "tid": 1},
        coll(3, ALL_REDUCE, MIB, 1, is_cpu_op=False),
    ]
    assert time(tmp_path, nodes, nodes, algorithm="ring") == pytest.approx(30e-6 + 2 * transfer(MIB / 2))


def test_the_thread_of_a_kernel_is_its_stream(tmp_path: Path) -> None:
    assert time(tmp_path, [comp(1, 30, tid=7), comp(2, 20, tid=7), comp(3, 45, tid=9)]) == pytest.approx(50e-6)


def test_a_single_file_may_stand_for_every_rank(tmp_path: Path) -> None:
    nodes = [comp(1, 30), coll(2, ALL_REDUCE, MIB, 1)]
    expected = 30e-6 + 6 * transfer(MIB / 4)
    assert time(tmp_path, nodes, world_size=4, algorithm="ring") == pytest.approx(expected)
    with pytest.raises(ScenarioError, match=r"--world-size: got 4, but .* has files of 2 ranks"):
        time(tmp_path, nodes, nodes, world_size=4)


def test_faulty_dependencies_are_dropped_if_asked(tmp_path: Path) -> None:
    # 1 waits for nothing that exists. Of 2 -> 4 -> 3 -> 2, the dependency on 4 is dropped; 5 on itself; 6 on 7 stays.
    nodes = [
        comp(1, 1, 99),
        comp(2, 2, 1, 4),
        comp(3, 4, 2),
        comp(4, 8, 3),
        comp(5, 16, 5),
        comp(6, 32, 7),
        comp(7, 64),
    ]
    with pytest.raises(ScenarioError, match="--repair drops such dependencies"):
        played(tmp_path, nodes)
    own = [dict(node, stream=number) for number, node in enumerate(nodes)]
    run = played(tmp_path, own, repair=True)
    assert run.timeline.end == pytest.approx(96e-6)
    assert {span.name: round(span.end * 1e6) for span in run.timeline.spans} == {
        "n (1)": 1, "n (2)": 3, "n (3)": 7, "n (4)": 15, "n (5)": 16, "n (6)": 96, "n (7)": 64,
    }  # fmt: skip
    assert run.converted.notes == ("dependencies on nodes that do not exist, or in circles, are dropped: 3",)


def test_nodes_of_a_circle_are_those_that_networkx_finds() -> None:
    for seed in range(200):
        chance = random.Random(seed)
        size = chance.randrange(1, 30)
        after = {node: [chance.randrange(size) for _ in range(chance.randrange(3))] for node in range(size)}
        graph = nx.DiGraph([(node, other) for node, own in after.items() for other in own])
        graph.add_nodes_from(after)
        part = strong_components(after)
        found: dict[int, set[int]] = {}
        for node, component in part.items():
            found.setdefault(component, set()).add(node)
        assert sorted(map(sorted, found.values())) == sorted(map(sorted, nx.strongly_connected_components(graph)))


TWO = [[coll(1, ALL_REDUCE, 8)], [coll(1, ALL_REDUCE, 8)]]
FAULTS: list[tuple[list[Nodes], str]] = [
    ([[comp(1, 1), comp(1, 2)]], "two nodes have the id 1"),
    ([[comp(1, 1, 9)]], "node 1 'n' depends on node 9, which does not exist"),
    ([[comp(1, 1, 2), comp(2, 1, 3), comp(3, 1, 1)]], "depend on each other in a circle: 1 -> 2 -> 3 -> 1"),
    ([[comp(1, 1, 1)]], "in a circle: 1 -> 1"),
    ([[send(1, 1, 8)], [comp(1, 1)]], "rank 0 sends 1 messages to rank 1 with tag 0, and rank 1 receives 0"),
    ([[comp(1, 1)], [recv(1, 0, 8)]], "rank 0 sends 0 messages to rank 1 with tag 0, and rank 1 receives 1"),
    ([[send(1, 1, 8, tag=1)], [recv(1, 0, 8, tag=2)]], "every message needs a partner"),
    ([[send(1, 7, 8)]], "comm_dst: got 7; must be another rank, 0 .. 0"),
    ([[send(1, 1, 8)], [recv(1, 0, 9)]], "comm_size: got 9, but 8 B are sent"),
    ([[{"id": 1, "type": SEND}]], "comm_dst: is missing"),
    ([[coll(1, ALL_REDUCE, 8)], [comp(1, 1)]], "rank 0 has 1 collectives of the group of all ranks, and rank 1 has 0"),
    ([[coll(1, ALL_REDUCE, 8)], [coll(1, ALL_GATHER, 8)]], "in the same place of the group '', is"),
    ([[coll(1, ALL_REDUCE, 8)], [coll(1, ALL_REDUCE, 9)]], "comm_size: got 8, but another rank of its group has 9"),
    ([[coll(1, 17, 8)]] * 2, "comm_type: got 17; must be 0 .. 9"),
    ([[coll(1, ALL_REDUCE, -5)]] * 2, "comm_size: got -5; must be"),
    ([[{"id": 1, "type": COLL, "comm_type": 0}]] * 2, "comm_size: is missing"),
    ([[coll(1, BROADCAST, 8, root=5)]] * 2, "root: got 5; must be a rank of its group"),
    ([[coll(1, ALL_REDUCE, 8, involved_dim=[True, False])]] * 2, "names no process group; give pg_name"),
    ([[{"id": 1, "type": 0}]], "node 1 has type 0"),
    ([[{"id": 1, "type": 9}]], "node 1 has type 9"),
    ([[comp(1, 10**15)]], "takes 1000000000000000 us"),
    (
        [[recv(1, 1, 8), send(2, 1, 8, 1)], [recv(1, 0, 8), send(2, 0, 8, 1)]],
        "ranks wait for each other in a circle, among them rank 0 node 1 'n'",
    ),
    ([[]], "has no nodes"),
]  # fmt: skip


@pytest.mark.parametrize(("ranks", "line"), FAULTS, ids=[line for _, line in FAULTS])
def test_a_faulty_trace_is_refused_in_one_line(tmp_path: Path, ranks: list[Nodes], line: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        played(tmp_path, *ranks)
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_files_that_are_no_traces_are_refused_in_one_line(cli: Command, tmp_path: Path) -> None:
    good = trace(TWO[0])
    for content, line in (
        (b"", "is empty"),
        (b"\xff" * 20, "has a number of more than 10 bytes"),
        (b"\x7f" + b"x" * 5, "127 bytes are announced, and 5 are left"),
        (good[8:], "the first message is no GlobalMetadata"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 20, "is packed with zstd; unpack it first"),
        (b"\x1f\x8b nothing", "cannot be read"),
        (b"\x00\x01\x0b", "wire type 3"),
    ):
        (tmp_path / "bad.0.et").write_bytes(content)
        answer = cli("simulate-trace", "bad", "--topology", "star_100g")
        assert (answer.code, answer.out, len(answer.err.splitlines())) == (2, "", 1), (content, answer.err)
        assert line in answer.err
    (tmp_path / "gap.0.et").write_bytes(good)
    (tmp_path / "gap.3.et").write_bytes(good)
    assert "gap: has 2 files, and none for rank 1, 2" in cli("simulate-trace", "gap").err
    assert "there is no file nowhere.0.et" in cli("simulate-trace", "nowhere").err
    assert "algorithm: got 'rng'; one of" in cli("simulate-trace", "gap", "--algorithm", "rng").err
    assert "--trace: needs --out" in cli("simulate-trace", "gap", "--trace").err
    (tmp_path / "groups.json").write_text('{"1": [0, 0]}', encoding="utf-8")
    assert "must be a list of different ranks" in cli("simulate-trace", "gap", "--groups", "groups.json").err


def test_the_command_prints_and_writes_the_step(cli: Command, tmp_path: Path) -> None:
    write(tmp_path, [[comp(1, 30, name="gemm"), *TWO[0][:0], coll(2, ALL_REDUCE, MIB, 1)]] * 2)
    answer = cli("simulate-trace", "own", "--topology", "star_100g", "--algorithm", "ring", "--out", "out", "--trace")
    assert (answer.code, answer.err) == (0, "")
    expected = 30e-6 + 2 * transfer(MIB / 2)
    assert f"The step takes {expected * 1e6:.4g} us on 2 ranks of star_100g (2 COLL, 2 COMP)." in answer.out
    rows = (tmp_path / "out" / "operations.csv").read_text().splitlines()
    assert rows[1].startswith("0,communication,all_reduce 0,all_reduce,")
    assert rows[2].startswith("0,compute,gemm (1),compute,0.0,")
    with gzip.open(tmp_path / "out" / "trace" / "rank1.json.gz") as file:
        names = [event["name"] for event in json.load(file)["traceEvents"] if event.get("cat") == "kernel"]
    assert sorted(names) == ["gemm (1)", "ncclDevKernel_AllReduce_Sum_u8_RING_LL"]
    # The path of a file stands for its prefix.
    found = cli("simulate-trace", "own.0.et", "--topology", "star_100g", "--algorithm", "ring", "--json").data
    assert found["step_time_s"] == pytest.approx(expected, rel=1e-9)
    assert found["by_rank"][0]["time_by_kind_s"]["compute"] == pytest.approx(30e-6)


def test_the_picture_can_be_read() -> None:
    run = simulate_traces(TraceFiles(str(SAMPLES / "custom_ring_allreduce_8npus_1MB")), "star_100g")
    (picture,) = run.pictures()
    check(picture.figure, picture.name)


def mutant(content: bytes, chance: random.Random) -> bytes:
    """A trace with a cut, other bytes, or bytes left out or inserted."""
    kind, at = chance.randrange(4), chance.randrange(len(content))
    if kind == 0:
        return content[:at]
    if kind == 1:
        changed = bytearray(content)
        for _ in range(chance.randrange(1, 6)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        return bytes(changed)
    if kind == 2:
        return content[:at] + content[at + chance.randrange(1, 9) :]
    return content[:at] + bytes(chance.randrange(256) for _ in range(chance.randrange(1, 9))) + content[at:]


def test_500_damaged_traces_are_converted_or_refused_in_one_line(tmp_path: Path) -> None:
    ranks = [
        [comp(1, 5), send(2, 1 - rank, 64, 1), recv(3, 1 - rank, 64, 1), coll(4, ALL_REDUCE, 64, 2, 3, pg_name="g"),
         {"id": 5, "type": STORE, "tensor_size": 64, "after": [4]}, comp(6, 2, 4, is_cpu_op=True, tid=3)]
        for rank in range(2)
    ]  # fmt: skip
    prefix = write(tmp_path, ranks)
    good, refused = trace(ranks[0]), []
    cluster = build("star_100g", 2)
    for seed in range(500):
        (tmp_path / "own.0.et").write_bytes(mutant(good, random.Random(seed)))
        try:
            traces = read_traces(prefix)
            made = converted(traces, matched(traces), cluster)
            assert len(made.program.ranks) == 2
        except ScenarioError as error:
            refused.append(str(error))
    assert all(len(line.splitlines()) == 1 and line.isprintable() for line in refused)
    assert 100 < len(refused) < 500


def as_json(one: dict[str, Any]) -> dict[str, Any]:
    """A node in the JSON form that Chakra's feeder reads (src/feeder/json_node.cpp)."""
    plain = {"id": "Id", "name": "Name", "type": "NodeType", "after": "data_deps", "us": "runtime"}
    found = {plain.get(name, name): list(value) if name == "after" else value for name, value in one.items()}
    return {"Name": "n", "is_cpu_op": False, "data_deps": []} | found


def test_traces_in_json_form_take_the_same_time(tmp_path: Path) -> None:
    ranks = [
        [comp(0, 100), send(1, 1, MIB, 0), coll(2, 0, MIB, 0)],
        [recv(0, 0, MIB), comp(1, 50, 0), coll(2, 0, MIB, 1)],
    ]
    expected = time(tmp_path, *ranks)
    for rank, nodes in enumerate(ranks):
        data = {"schema": "symbolic_tensor_network", "workload_graph": [as_json(node) for node in nodes]}
        (tmp_path / f"text.{rank}.json").write_text(json.dumps(data), encoding="utf-8")
    found = simulate_traces(TraceFiles(str(tmp_path / "text")), "star_100g")
    assert found.timeline.end == expected
    assert simulate_traces(TraceFiles(str(tmp_path / "text.0.json")), "star_100g").timeline.end == expected
    # Traces of feeders may name nodes that do not exist.
    data["workload_graph"][0]["data_deps"] = [77]
    (tmp_path / "text.1.json").write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(ScenarioError, match="depends on node 77, which does not exist; --repair drops"):
        simulate_traces(TraceFiles(str(tmp_path / "text")), "star_100g")
    assert simulate_traces(TraceFiles(str(tmp_path / "text"), repair=True), "star_100g").timeline.end == expected


def as_message(one: dict[str, Any]) -> dict[str, Any]:
    """A node as protobuf writes it in JSON (chakra_jsonizer): zeros are left out, numbers of 64 bits are texts."""
    names = ["", "METADATA", "MEM_LOAD", "MEM_STORE", "COMP", "COMM_SEND", "COMM_RECV", "COMM_COLL"]
    fields = {"id": str(one["id"]), "name": "n } { n", "type": f"{names[one['type']]}_NODE",
              "dataDeps": list(map(str, one.get("after", []))), "durationMicros": str(one.get("us", 0))}  # fmt: skip
    given = {key: value for key, value in one.items() if key.startswith("comm_")}
    attr: list[dict[str, Any]] = [{"name": "is_cpu_op", "boolVal": False}]
    attr += [{"name": key, "int64Val": str(value)} for key, value in given.items()]
    return {key: value for key, value in fields.items() if value not in ("0", [])} | {"attr": attr}


def test_messages_of_chakras_jsonizer_take_the_same_time(tmp_path: Path) -> None:
    ranks = [
        [comp(0, 100), send(1, 1, MIB, 0), coll(2, 0, MIB, 1)],
        [recv(0, 0, MIB), comp(1, 50, 0), coll(2, 0, MIB, 1)],
    ]
    expected = time(tmp_path, *ranks)
    for rank, nodes in enumerate(ranks):
        messages = [{"version": "0.0.4"}, *map(as_message, nodes)]
        (tmp_path / f"text.{rank}.json").write_text(
            "".join(json.dumps(m, indent=2) for m in messages), encoding="utf-8"
        )
    assert simulate_traces(TraceFiles(str(tmp_path / "text")), "star_100g").timeline.end == expected
    # Metadata may be empty.
    parts = ["{}", *(json.dumps(message, indent=2) for message in messages[1:])]
    (tmp_path / "text.1.json").write_text("".join(parts), encoding="utf-8")
    assert simulate_traces(TraceFiles(str(tmp_path / "text")), "star_100g").timeline.end == expected
    # The same messages in a list.
    (tmp_path / "text.1.json").write_text(json.dumps(messages), encoding="utf-8")
    assert simulate_traces(TraceFiles(str(tmp_path / "text")), "star_100g").timeline.end == expected
    # Time of transfers, as this simulator's traces state it.
    slow = [{"version": "0.0.4", "attr": [{"name": "network_time", "doubleVal": 2.0}]}, *messages[1:]]
    (tmp_path / "slow.0.json").write_text(json.dumps(slow), encoding="utf-8")
    assert read_traces(str(tmp_path / "slow"))[0].network_time == 2.0


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[]", "has no list `workload_graph`"),
        ('[{}, {"type": "COMP_NODE", "id": "x"}]', "message: 1: id: got 'x'"),
        ('[{"type": "COMP_NODE", "attr": 5}]', "message: 0: attr: got 5; must be a list"),
        ('{\n}\n{\n"type": "MAGIC"}', "message: 1: node 0 has type 0"),
        ('{"workload_graph": [7]}', "workload_graph: 0: must be a mapping"),
        ('{"workload_graph": [{"Id": -1}]}', "workload_graph: 0: Id: got -1"),
        ('{"workload_graph": [{"Id": 0, "NodeType": 9}]}', "node 0 has type 9"),
        ('{"workload_graph": [{"Id": 0, "NodeType": 4, "data_deps": "x"}]}', "data_deps: got 'x'"),
        ("{", "not JSON"),
    ],
)
def test_a_faulty_trace_in_json_form_is_refused_in_one_line(tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "bad.0.json").write_text(text, encoding="utf-8")
    with pytest.raises(ScenarioError, match=line) as caught:
        simulate_traces(TraceFiles(str(tmp_path / "bad")), "star_100g")
    assert "\n" not in str(caught.value)
