"""Dumps of a flight recorder: times of collectives, late ranks, hangs; and pickles that would run code are refused."""

from __future__ import annotations

import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.testing.looking import check
from simulator.traces.flight_recorder.dump_reader import read_dumps
from simulator.traces.flight_recorder.flight_record import FlightRecord
from simulator.traces.flight_recorder.pickle_data import plain_data
from tests.commands import Command, commands_in
from tests.traces.flight_recorder_by_hand import DONE, RANKS, dump, entry, write


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def recorded(folder: Path, dumps: list[Any] | None = None, *, pickled: bool = False) -> FlightRecord:
    return FlightRecord.of(read_dumps([write(folder / "dumps", dumps, pickled=pickled)]))


def rows(record: FlightRecord, name: str) -> list[dict[str, Any]]:
    (table,) = [table for table in record.tables() if table.name == name]
    return [dict(zip([column.key for column in table.columns], row, strict=True)) for row in table.rows]


@pytest.mark.parametrize("pickled", [False, True])
def test_a_collective_to_which_a_rank_does_not_come_hangs(tmp_path: Path, *, pickled: bool) -> None:
    record = recorded(tmp_path, pickled=pickled)
    (hang,) = record.hangs
    assert (hang.group, hang.number, hang.operation, hang.entries[0].nbytes) == ("0", 4, "all_reduce", 4 * 2**20)
    assert {one.rank: one.state for one in hang.entries} == {0: "started", 1: "started", 3: "scheduled"}
    assert hang.absent == (2,)
    assert record.sentences[0] == (
        "Collective 4 of group '0' hangs (all_reduce of 4 MiB): rank 2 has not arrived, rank 3 has issued "
        "but not begun it: look at its earlier work; ranks 0, 1 wait in it."
    )


@pytest.mark.parametrize("pickled", [False, True])
def test_times_are_those_of_the_last_rank_and_waiting_is_the_rest(tmp_path: Path, *, pickled: bool) -> None:
    record = recorded(tmp_path, pickled=pickled)
    finished = rows(record, "collectives")[:3]
    took = [[time for _, time in ranks] for _, _, _, ranks in DONE]
    assert [row["time_s"] for row in finished] == pytest.approx([min(own) / 1e3 for own in took])
    assert [row["waited_s"] for row in finished] == pytest.approx([(max(own) - min(own)) / 1e3 for own in took])
    # The shortest time on the GPU is that of the last rank: rank 2 twice, rank 1 once.
    assert [row["last_rank"] for row in finished] == [2, 2, 1]
    # Nobody has arrive last in the collective that hangs.
    assert [row["last_rank"] for row in rows(record, "collectives")[3:]] == [None]
    assert record.late_ranks() == [(2, 2, pytest.approx(9e-3)), (1, 1, pytest.approx(3e-3))]
    assert [row["operation"] for row in rows(record, "operations")] == ["all_gather", "all_reduce", "reduce_scatter"]


def test_without_times_on_the_gpu_the_clocks_of_the_hosts_say_who_came_last(tmp_path: Path) -> None:
    dumps = [dump(rank) for rank in range(RANKS)]
    for one in dumps:
        for own in one["entries"]:
            own.pop("duration_ms", None)
    found = rows(recorded(tmp_path, dumps), "collectives")
    # Issued at 0, 3, 7, 1 ms; 10, 10, 12, 11 ms; 20, 23, 21, 20 ms.
    assert [row["last_rank"] for row in found[:3]] == [2, 2, 1]
    assert [row["waited_s"] for row in found[:3]] == pytest.approx([7e-3, 2e-3, 3e-3])
    assert [row["time_s"] for row in found[:3]] == [None, None, None]


def test_a_job_without_a_hang_is_told_so(tmp_path: Path) -> None:
    dumps = [dump(rank) for rank in range(RANKS)]
    for one in dumps:
        one["entries"] = one["entries"][:3]
    record = recorded(tmp_path, dumps)
    assert record.hangs == ()
    assert record.sentences[0] == "Nothing hangs: all 3 recorded collectives of 4 ranks have completed."
    assert record.sentences[1].startswith(
        "Rank 2 arrived last most often: in 2 of 3 collectives, and the others waited 9 ms"
    )


def test_an_overwritten_entry_and_a_missing_dump_are_not_absence(tmp_path: Path) -> None:
    dumps = [dump(rank) for rank in range(RANKS)]
    # The ring buffer of rank 1 has lost its first two entries; rank 3 left no dump.
    dumps[1]["entries"] = dumps[1]["entries"][2:]
    record = recorded(tmp_path, dumps[:3])
    assert [one.absent for one in record.collectives] == [(), (), (), (2,)]
    assert record.hangs[0].undumped == (3,)
    assert "rank 2 has not arrived, rank 3 left no dump" in record.sentences[0]


def test_ranks_that_run_different_collectives_disagree(tmp_path: Path) -> None:
    dumps = [dump(rank) for rank in range(RANKS)]
    dumps[3]["entries"][3]["profiling_name"] = "nccl:broadcast"
    record = recorded(tmp_path, dumps)
    assert record.sentences[0] == (
        "The ranks of group '0' disagree on collective 4: rank 0 runs all_reduce of 4 MiB, and rank 3 runs broadcast "
        "of 4 MiB."
    )
    dumps[3]["entries"][3] |= {"profiling_name": "nccl:all_reduce", "input_sizes": [[8]], "output_sizes": [[8]]}
    assert "rank 3 runs all_reduce of 32 B" in recorded(tmp_path, dumps).sentences[0]


def test_groups_hang_on_their_own_and_coalesced_operations_share_a_number(tmp_path: Path) -> None:
    def own(rank: int, group: str, number: int, name: str, created: int, **more: Any) -> dict[str, Any]:
        return entry(rank, number, name, ([8], [8]), created, process_group=[group, ""], state="started") | more

    dumps = [
        {"entries": [own(0, "a", 1, "nccl:all_reduce", 5), own(0, "b", 1, "nccl:broadcast", 2)]},
        {"entries": [own(1, "a", 1, "nccl:all_reduce", 6), own(1, "a", 1, "nccl:reduce", 6)]},
        {"entries": [own(2, "b", 1, "nccl:broadcast", 3, state="completed")]},
    ]
    record = recorded(tmp_path, dumps)
    # The group that began earlier comes first; a place further on in a number is an operation of its own.
    assert [(one.group, one.operation) for one in record.hangs] == [("b", "broadcast"), ("a", "all_reduce")]
    assert "rank 2 has completed it; rank 0 waits in it" in record.sentences[0]
    assert [(one.group, one.place) for one in record.collectives] == [("a", 0), ("a", 1), ("b", 0)]


def test_sends_and_receives_have_numbers_of_their_own(tmp_path: Path) -> None:
    data = dump(0) | {"entries": dump(0)["entries"][:3]}
    sent = {"is_p2p": True, "collective_seq_id": 3, "p2p_seq_id": 9, "state": "started"}
    data["entries"].append(entry(0, 4, "nccl:send 0->1", ([8], [8]), 40, **sent))
    record = recorded(tmp_path, [data])
    assert len(record.collectives) == 3
    assert record.sentences[0] == (
        "Transfer 1 of 32 B from rank 0 to rank 1 in group '0' hangs: rank 0 has issued the send, rank 1 left no dump."
    )
    data["entries"][-1]["profiling_name"] = "nccl:coalesced"
    assert recorded(tmp_path, [data]).sentences[0] == (
        "1 sends and receives have not completed, the first on rank 0: nccl:coalesced (number 9 of group '0', started)."
    )


def transferring(rank: int, *operations: tuple[str, float | None, int], first: int = 1) -> dict[str, Any]:
    """A dump with sends and receives (name, time [ms] or None, elements), numbered from `first`."""
    entries = [
        entry(rank, 0, f"nccl:{name}", ([size], [size]), place, is_p2p=True, p2p_seq_id=first + place,
              state="started" if took is None else "completed", duration_ms=took)
        for place, (name, took, size) in enumerate(operations)
    ]  # fmt: skip
    return {"entries": entries, "pg_config": {"0": {"name": "0", "desc": "", "ranks": "[4, 6]"}}}


def written_for(folder: Path, dumps: dict[int, dict[str, Any]]) -> FlightRecord:
    for rank, data in dumps.items():
        (folder / f"nccl_trace_rank_{rank}").write_text(json.dumps(data), encoding="utf-8")
    return FlightRecord.of(read_dumps([folder]))


def test_sends_are_paired_with_receives_in_order(tmp_path: Path) -> None:
    """Ranks 4 and 6 are ranks 0 and 1 of the group; the later end waits less, and its time is that of the transfer."""
    record = written_for(
        tmp_path,
        {
            4: transferring(4, ("send 0->1", 3.0, 8), ("send 0->1", 5.0, 16), ("recv 0<-1", 2.0, 4)),
            6: transferring(6, ("recv 1<-0", 1.0, 8), ("send 1->0", 4.0, 4), ("recv 1<-0", 9.0, 16)),
        },
    )
    found = [(one.sender, one.receiver, one.place, one.nbytes, one.time, one.hangs) for one in record.transfers]
    assert found == [(4, 6, 1, 32, 1e-3, False), (4, 6, 2, 64, 5e-3, False), (6, 4, 1, 16, 2e-3, False)]
    (table,) = [one for one in record.tables() if one.name == "transfers"]
    assert table.rows == [("0", 4, 6, 2, 96, 6e-3, 0), ("0", 6, 4, 1, 16, 2e-3, 0)]
    assert record.sentences[0] == (
        "Nothing hangs: all 0 recorded collectives and 3 transfers of 2 ranks have completed."
    )


def test_a_transfer_whose_receive_was_never_issued_is_told(tmp_path: Path) -> None:
    record = written_for(
        tmp_path,
        {
            4: transferring(4, ("send 0->1", 3.0, 8), ("send 0->1", None, 16), ("send 0->1", None, 16)),
            6: transferring(6, ("recv 1<-0", 1.0, 8)),
        },
    )
    assert record.sentences[0] == (
        "Transfer 2 of 64 B from rank 4 to rank 6 in group '0' hangs: rank 4 has issued the send, rank 6 has not "
        "issued the receive; 2 transfers hang in all."
    )


def test_ends_of_other_sizes_are_told(tmp_path: Path) -> None:
    record = written_for(
        tmp_path, {4: transferring(4, ("send 0->1", None, 8)), 6: transferring(6, ("recv 1<-0", None, 16))}
    )
    assert record.sentences[0] == ("Rank 4 sends 32 B in transfer 1 to rank 6, which expects 64 B.")


def test_overwritten_operations_are_left_out_of_the_pairs(tmp_path: Path) -> None:
    """Rank 4's buffer begins with its third send: the completed operations are matched from the last one backwards."""
    record = written_for(
        tmp_path,
        {
            4: transferring(4, ("send 0->1", 3.0, 30), ("send 0->1", None, 40), first=3),
            6: transferring(6, *((("recv 1<-0", 1.0, size)) for size in (10, 20, 30)), ("recv 1<-0", None, 40)),
        },
    )
    assert [(one.nbytes, one.disagrees, one.hangs) for one in record.transfers] == [
        (120, False, False),
        (160, False, True),
    ]


def test_older_dumps_and_ranks_in_the_data_are_read(tmp_path: Path) -> None:
    old = {
        "rank": 5,
        "entries": [{"seq_id": 1, "pg_id": 0, "profiling_name": "nccl:all_reduce", "state": "completed"}, 7],
    }
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(old), encoding="utf-8")
    (read,) = read_dumps([path])
    assert (read.rank, read.faulty, [(one.group, one.number) for one in read.entries]) == (5, 1, [("0", 1)])


def test_a_rank_that_has_issued_nothing_has_not_come(tmp_path: Path) -> None:
    dumps = [dump(rank) for rank in range(RANKS)]
    # PyTorch's JSON leaves the entries out if there are none, and writes 0 for times that are not known.
    del dumps[2]["entries"]
    for one in dumps[0]["entries"]:
        if one["time_discovered_completed_ns"] is None:
            one["time_discovered_completed_ns"] = 0
    record = recorded(tmp_path, dumps)
    assert [one.absent for one in record.collectives] == [(2,)] * 4
    assert record.hangs[0].number == 4
    assert next(one for one in record.hangs[0].entries if one.rank == 0).completed is None


def test_the_command_prints_and_writes_the_answer(cli: Command, tmp_path: Path) -> None:
    write(tmp_path / "dumps", pickled=True)
    answer = cli("flight-recorder", "dumps", "--out", "out")
    assert (answer.code, answer.err) == (0, "")
    assert "hangs (all_reduce of 4 MiB)" in answer.out
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"report.html", "hangs.csv", "collectives.csv", "late_ranks.csv"} <= names
    data = cli("flight-recorder", *sorted((tmp_path / "dumps").iterdir()), "--json").data
    assert data["hangs"][0]["states"] == {"0": "started", "1": "started", "3": "scheduled"}
    assert data["hangs"][0]["absent"] == [2]


def test_the_picture_can_be_read(tmp_path: Path) -> None:
    (picture,) = recorded(tmp_path).pictures()
    check(picture.figure, picture.name)


class Evil:
    """Unpickled, it would make a file."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("evil",)


def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(cli: Command, tmp_path: Path) -> None:
    for protocol in range(2, 6):
        (tmp_path / "dump_0").write_bytes(pickle.dumps({"entries": [Evil()]}, protocol=protocol))
        answer = cli("flight-recorder", "dump_0")
        assert (answer.code, len(answer.err.splitlines())) == (2, 1)
        assert "which may run code; only plain containers are read" in answer.err
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_pickles_are_read_as_the_standard_library_reads_them(protocol: int) -> None:
    shared = ["x", 1.5]
    data = {
        "a": [None, True, False, 0, -1, 255, 256, 65536, 2**40, -(2**70), 1e300, float("-inf")],
        "b": ("", "é" * 300, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), 3: {}, "shared": [shared, shared],
    }  # fmt: skip
    # Protocol 2 has no instruction for bytes.
    data |= {"bytes": b"x" * 300} if protocol > 2 else {}
    content = pickle.dumps(data, protocol=protocol)
    assert plain_data(content, "x") == data == pickle.loads(content)


FAULTS = [
    (b"", "neither JSON nor a pickle"),
    (b"hello", "neither JSON nor a pickle"),
    (b"{", "not JSON"),
    (b"{}", "has no list `entries`"),
    (b'{"version": "2.4", "pg_config": {}}', "has no entries"),
    (b'{"entries": []}', "has no entries"),
    (b'{"entries": ' + b"[" * 100_000, "nested too deeply"),
    (b"\x80\x02", "not a pickle"),
    (b"\x80\x02.", "ends with 0 values in place of one"),
    (b"\x80\x02(.", "ends with 1 values in place of one"),
    (b"\x80\x02a.", "takes a value that is not there"),
    (b"\x80\x02NNa.", "adds to something that is no list"),
    (b"\x80\x02}(Nu.", "has a key without a value"),
    (b"\x80\x02}]Ns.", "has a key that is neither text nor number"),
    (b"\x80\x02t.", "closes a container that is not open"),
    (b"\x80\x02h\x05.", "takes value 5, which was not stored"),
    (b"\x80\x02q\x00.", "stores a value that is not there"),
    (b"\x80\x02cos\nsystem\n.", "has the instruction GLOBAL"),
    (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "has the instruction STACK_GLOBAL"),
    (b"\x80\x02]q\x00h\x00a.", "has no list `entries`"),
]


@pytest.mark.parametrize(("content", "line"), FAULTS, ids=[str(number) for number in range(len(FAULTS))])
def test_a_file_that_is_no_dump_is_refused_in_one_line(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "dump_0"
    path.write_bytes(content)
    with pytest.raises(ScenarioError) as caught:
        read_dumps([path])
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_two_dumps_of_a_rank_and_an_empty_directory_are_refused(tmp_path: Path) -> None:
    for name in ("a_1", "b_1"):
        (tmp_path / name).write_text(json.dumps(dump(1)), encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"b_1: is of rank 1, as .*a_1 is"):
        read_dumps([tmp_path])
    (tmp_path / "none").mkdir()
    with pytest.raises(ScenarioError, match="has no file whose name ends with a rank"):
        read_dumps([tmp_path / "none"])


def mutant(content: bytes, chance: random.Random) -> bytes:
    """A dump with a cut, other bytes, or bytes left out or inserted; the first byte stays."""
    kind, at = chance.randrange(4), chance.randrange(1, len(content))
    if kind == 0:
        return content[:at]
    if kind == 1:
        changed = bytearray(content)
        for _ in range(chance.randrange(1, 8)):
            changed[chance.randrange(1, len(changed))] = chance.randrange(256)
        return bytes(changed)
    if kind == 2:
        return content[:at] + content[at + chance.randrange(1, 30) :]
    words = (b"null", b"-1", b"[]", b"{}", b'"x"', b"1e999", b"9" * 400, bytes(chance.randrange(256) for _ in range(9)))
    return content[:at] + chance.choice(words) + content[at:]


@pytest.mark.parametrize("pickled", [False, True])
def test_500_damaged_dumps_are_read_or_refused_in_one_line(tmp_path: Path, *, pickled: bool) -> None:
    folder = write(tmp_path / "dumps", pickled=pickled)
    path, refused = folder / "nccl_trace_rank_0", []
    good = path.read_bytes()
    for seed in range(500):
        path.write_bytes(mutant(good, random.Random(seed)))
        try:
            record = FlightRecord.of(read_dumps([folder]))
            json.dumps(record.to_dict(), allow_nan=False)
            assert record.sentences
            assert all(table.csv for table in record.tables())
        except ScenarioError as error:
            refused.append(str(error))
    assert all(len(line.splitlines()) == 1 and line.isprintable() for line in refused)
    assert 100 < len(refused) < 500


def test_a_rank_that_has_not_begun_is_the_rank_to_look_at(tmp_path: Path) -> None:
    # Ranks 0, 1 and 3 are in collective 4; rank 2 has issued it, and its GPU has not begun it.
    dumps = [dump(rank) for rank in range(4)]
    late = json.loads(json.dumps(dumps[0]["entries"][-1])) | {"state": "scheduled", "time_discovered_started_ns": None}
    dumps[2]["entries"].append(late)
    dumps[3]["entries"][-1]["state"] = "started"
    for rank, data in enumerate(dumps):
        (tmp_path / f"trace_{rank}").write_text(json.dumps(data), encoding="utf-8")
    record = FlightRecord.of(read_dumps([tmp_path]))
    assert record.sentences[0] == (
        "Collective 4 of group '0' hangs (all_reduce of 4 MiB): rank 2 has issued but not begun it: look at its "
        "earlier work; ranks 0, 1, 3 wait in it."
    )
    assert record.to_dict()["hangs"][0]["not_begun"] == [2]
    # If no rank has begun, nothing is said of one of them.
    for data in dumps:
        data["entries"][-1] |= {"state": "scheduled", "time_discovered_started_ns": None}
    for rank, data in enumerate(dumps):
        (tmp_path / f"trace_{rank}").write_text(json.dumps(data), encoding="utf-8")
    record = FlightRecord.of(read_dumps([tmp_path]))
    assert record.sentences[0].endswith("ranks 0, 1, 2, 3 have issued it, and no rank has begun it.")
