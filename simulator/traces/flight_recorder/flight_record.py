"""Answer on a flight recorder: hanging collectives, ranks that arrived last, time in collectives; tables, picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.errors import few
from simulator.basics.units import format_bytes, format_time
from simulator.report.plots.both.timeline import Bar, Block, blocks_figure, lane_of
from simulator.report.plots.picture import Picture
from simulator.report.tables.answer_table import AnswerColumn, AnswerTable
from simulator.traces.flight_recorder.collectives import (
    RecordedCollective,
    collectives_of,
    first_disagreement,
    first_hangs,
)
from simulator.traces.flight_recorder.dump_reader import Dump, Entry
from simulator.traces.flight_recorder.transfers import RecordedTransfer, first_hanging, transfers_of

_MOST_NAMED: Final = 8
_ROWS: Final = 12
# Ranks in the picture.
_MOST_RANKS: Final = 16
_NS: Final = 1e-9
_UNFINISHED: Final = "not completed"


@dataclass(frozen=True, slots=True)
class FlightRecord:
    """Dumps of several ranks, matched."""

    dumps: tuple[Dump, ...]
    collectives: tuple[RecordedCollective, ...]
    hangs: tuple[RecordedCollective, ...]  # the first collective of each group that has not completed
    disagreement: RecordedCollective | None  # the first collective whose ranks disagree on operation or size
    transfers: tuple[RecordedTransfer, ...] = ()  # sends with their receives

    @classmethod
    def of(cls, dumps: Sequence[Dump]) -> FlightRecord:
        """Return the record of some ranks' dumps."""
        calls = collectives_of(dumps)
        return cls(tuple(dumps), calls, first_hangs(calls), first_disagreement(calls), transfers_of(dumps))

    @property
    def unfinished_sends(self) -> tuple[Entry, ...]:
        """Sends and receives that have not completed."""
        return tuple(
            entry
            for dump in self.dumps
            for entry in dump.entries
            if entry.point_to_point and entry.state != "completed"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What was left out."""
        return tuple(
            f"{dump.source}: entries without a process group or a number are left out: {dump.faulty}"
            for dump in self.dumps
            if dump.faulty
        )

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer in sentences, the most important first."""
        texts = []
        if self.disagreement is not None and (entries := self.disagreement.disagreement) is not None:
            entry, other = entries
            texts.append(
                f"The ranks of {_group(self.disagreement)} disagree on collective {self.disagreement.number}: rank "
                f"{entry.rank} runs {_operation(entry)}, and rank {other.rank} runs {_operation(other)}."
            )
        texts += [_hang_text(hang) for hang in self.hangs]
        unequal = next((pair for pair in self.transfers if pair.disagrees), None)
        if unequal is not None and unequal.send is not None and unequal.receive is not None:
            texts.append(
                f"Rank {unequal.sender} sends {_bytes(unequal.send.nbytes)} in transfer {unequal.place} to rank "
                f"{unequal.receiver}, which expects {_bytes(unequal.receive.nbytes)}."
            )
        hanging = first_hanging(self.transfers)
        if hanging is not None:
            texts.append(_transfer_text(hanging, sum(pair.hangs for pair in self.transfers)))
        elif self.unfinished_sends:
            first = self.unfinished_sends[0]
            texts.append(
                f"{len(self.unfinished_sends)} sends and receives have not completed, the first on rank {first.rank}: "
                f"{first.name} (number {first.number} of group {first.group!r}, {first.state})."
            )
        if not texts:
            moved = f" and {len(self.transfers):,} transfers" if self.transfers else ""
            texts.append(
                f"Nothing hangs: all {len(self.collectives):,} recorded collectives{moved} of {len(self.dumps)} ranks "
                "have completed."
            )
        latest = self.late_ranks()
        if latest:
            rank, times, waited = latest[0]
            text = "" if waited is None else f", and the others waited {format_time(waited)} for it"
            texts.append(f"Rank {rank} arrived last most often: in {times} of {self._judged():,} collectives{text}.")
        return tuple(texts)

    def late_ranks(self) -> list[tuple[int, int, float | None]]:
        """Return each rank with the times that it arrived last, and the others' waiting in sum [s]; most often first.

        The sum is None if no collective has times.
        """
        lateness: dict[int, tuple[int, float | None]] = {}
        for call in self.collectives:
            if call.last is not None:
                times, waited = lateness.get(call.last, (0, None))
                seconds = call.waited
                lateness[call.last] = times + 1, waited if seconds is None else (waited or 0.0) + seconds
        rows = [(rank, times, waited) for rank, (times, waited) in lateness.items()]
        return sorted(rows, key=lambda row: (-row[1], -(row[2] or 0.0), row[0]))

    def _judged(self) -> int:
        return sum(call.last is not None for call in self.collectives)

    def tables(self) -> tuple[AnswerTable, ...]:
        """Return the hanging collectives, the operations, the late ranks, and every collective."""
        return (
            _hang_table(self.hangs),
            _operation_table(self.collectives),
            _transfer_table(self.transfers),
            _late_table(self.late_ranks()),
            _collective_table(self.collectives),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the record as plain data, times in seconds."""
        return {
            "ranks": [dump.rank for dump in self.dumps],
            "collectives": len(self.collectives),
            "hangs": [_hang_data(hang) for hang in self.hangs],
            "disagreement": None if self.disagreement is None else _hang_data(self.disagreement),
            "unfinished_sends": [
                {"rank": end.rank, "name": end.name, "group": end.group, "number": end.number, "state": end.state}
                for end in self.unfinished_sends
            ],
            "transfers": [_transfer_data(pair) for pair in self.transfers],
            "late_ranks": [
                {"rank": rank, "times": times, "waited_s": waited} for rank, times, waited in self.late_ranks()
            ],
        }

    def pictures(self) -> tuple[Picture, ...]:
        """Return the timeline of the ranks; nothing without times."""
        times = [
            time
            for dump in self.dumps
            for entry in dump.entries
            for time in (entry.created, entry.started, entry.completed)
            if time is not None
        ]
        if not times:
            return ()
        begin, end = min(times), max(times)
        blocks = [
            Block(f"rank {dump.rank}", (lane_of("", bars, (end - begin) * _NS),))
            for dump in self.dumps[:_MOST_RANKS]
            if (bars := list(_bars(dump, begin, end)))
        ]
        hidden = len(self.dumps) - _MOST_RANKS
        note = f"{_MOST_RANKS} of {len(self.dumps)} ranks shown" if hidden > 0 else ""
        figure = blocks_figure(blocks, (end - begin) * _NS, self.sentences[0].rstrip("."), note)
        return (Picture("timeline", figure),)


def _bars(dump: Dump, begin: int, end: int) -> Iterator[Bar]:
    """Yield a bar for each operation of a rank with times.

    The bar begins with the duration on the GPU before the end, or when the watchdog saw the start, or when the host
    issued the operation. An operation that has not completed reaches to the last time of all dumps.
    """
    for entry in dump.entries:
        start = entry.started if entry.started is not None else entry.created
        if start is None:
            continue
        stop = end if entry.completed is None else entry.completed
        if entry.completed is not None and entry.duration is not None:
            start = max(begin, entry.completed - round(entry.duration / _NS))
        kind = entry.operation if entry.state == "completed" else _UNFINISHED
        yield Bar((min(start, stop) - begin) * _NS, (stop - begin) * _NS, kind, entry.operation)


def _hang_text(call: RecordedCollective) -> str:
    waiting = [entry.rank for entry in call.unfinished if entry.state == "started"]
    behind = [entry.rank for entry in call.not_begun]
    completed = [entry.rank for entry in call.entries if entry.state == "completed"]
    parts = []
    if call.absent:
        parts.append(f"{_ranks(call.absent)} {_have(call.absent)} not arrived")
    if behind and waiting:
        parts.append(f"{_ranks(behind)} {_have(behind)} issued but not begun it: look at its earlier work")
    elif behind:
        parts.append(f"{_ranks(behind)} {_have(behind)} issued it, and no rank has begun it")
    if completed:
        parts.append(f"{_ranks(completed)} {_have(completed)} completed it")
    if call.undumped:
        parts.append(f"{_ranks(call.undumped)} left no dump")
    clauses = [", ".join(parts)] if parts else []
    if waiting:
        clauses.append(f"{_ranks(waiting)} {'waits' if len(waiting) == 1 else 'wait'} in it")
    operation = _operation(call.entries[0])
    return f"Collective {call.number} of {_group(call)} hangs ({operation}): {'; '.join(clauses)}."


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _hang_data(call: RecordedCollective) -> dict[str, Any]:
    return {
        "group": call.group,
        "number": call.number,
        "operation": call.operation,
        "bytes": call.entries[0].nbytes,
        "states": {str(entry.rank): entry.state for entry in call.entries},
        "operations": {str(entry.rank): entry.operation for entry in call.entries},
        "not_begun": [entry.rank for entry in call.not_begun],
        "absent": list(call.absent),
        "without_dump": list(call.undumped),
    }


def _transfer_text(pair: RecordedTransfer, count: int) -> str:
    """Return a sentence on the first of `count` transfers that hang."""
    clauses = []
    for rank, entry, verb in ((pair.sender, pair.send, "send"), (pair.receiver, pair.receive, "receive")):
        if rank in pair.undumped:
            clauses.append(f"rank {rank} left no dump")
        elif entry is None:
            clauses.append(f"rank {rank} has not issued the {verb}")
        else:
            clauses.append(f"rank {rank} has {'completed' if entry.state == 'completed' else 'issued'} the {verb}")
    size = "" if pair.nbytes is None else f" of {format_bytes(pair.nbytes)}"
    more = f"; {count} transfers hang in all" if count > 1 else ""
    where = f"Transfer {pair.place}{size} from rank {pair.sender} to rank {pair.receiver} in group {pair.group!r} hangs"
    return f"{where}: {', '.join(clauses)}{more}."


def _transfer_data(pair: RecordedTransfer) -> dict[str, Any]:
    return {
        "group": pair.group,
        "sender": pair.sender,
        "receiver": pair.receiver,
        "place": pair.place,
        "bytes": pair.nbytes,
        "send": None if pair.send is None else pair.send.state,
        "receive": None if pair.receive is None else pair.receive.state,
        "time_s": pair.time,
    }


def _transfer_table(transfers: Sequence[RecordedTransfer]) -> AnswerTable:
    """Return a row for each pair of ranks of each group: transfers, bytes, time, and transfers that hang."""
    columns = (
        AnswerColumn("group", "group", left=True),
        AnswerColumn("sender", "from rank"),
        AnswerColumn("receiver", "to rank"),
        AnswerColumn("transfers", "transfers"),
        AnswerColumn("bytes", "bytes", _bytes),
        AnswerColumn("time_s", "time", _time),
        AnswerColumn("hanging", "hanging"),
    )
    by_ends: dict[tuple[str, int, int], list[RecordedTransfer]] = {}
    for pair in transfers:
        by_ends.setdefault((pair.group, pair.sender, pair.receiver), []).append(pair)
    rows = []
    for ends, pairs in sorted(by_ends.items()):
        times, sizes = [pair.time for pair in pairs if pair.time is not None], [pair.nbytes for pair in pairs]
        nbytes = sum(size for size in sizes if size is not None) if None not in sizes else None
        rows.append((*ends, len(pairs), nbytes, sum(times) if times else None, sum(pair.hangs for pair in pairs)))
    return AnswerTable("transfers", "Transfers between ranks: sends with their receives", columns, rows, most=_ROWS)


def _hang_table(hangs: Sequence[RecordedCollective]) -> AnswerTable:
    columns = (
        AnswerColumn("group", "group", left=True),
        AnswerColumn("number", "number"),
        AnswerColumn("operation", "operation", left=True),
        AnswerColumn("bytes", "bytes", _bytes),
        AnswerColumn("waiting", "ranks that wait", left=True),
        AnswerColumn("not_begun", "ranks that have not begun", left=True),
        AnswerColumn("absent", "ranks that have not arrived", left=True),
    )
    rows = [
        (
            hang.group,
            hang.number,
            hang.operation,
            hang.entries[0].nbytes,
            _numbers([entry.rank for entry in hang.unfinished if entry.state == "started"]) or "-",
            _numbers([entry.rank for entry in hang.not_begun]) or "-",
            _numbers(hang.absent) or "-",
        )
        for hang in hangs
    ]
    return AnswerTable("hangs", "First collective of each group that has not completed", columns, rows, most=_ROWS)


def _operation_table(collectives: Sequence[RecordedCollective]) -> AnswerTable:
    """Return a row for each operation of each group: number, time after the last rank's arrival, and waiting [s]."""
    columns = (
        AnswerColumn("group", "group", left=True),
        AnswerColumn("operation", "operation", left=True),
        AnswerColumn("collectives", "collectives"),
        AnswerColumn("time_s", "time", _time),
        AnswerColumn("longest_s", "longest", _time),
        AnswerColumn("waited_s", "waited", _time),
    )
    by_operation: dict[tuple[str, str], list[RecordedCollective]] = {}
    for call in collectives:
        by_operation.setdefault((call.group, call.operation), []).append(call)
    rows = []
    for (group, operation), calls in sorted(by_operation.items()):
        times = [call.time for call in calls if call.time is not None]
        waits = [call.waited for call in calls if call.waited is not None]
        longest = max(times, default=None)
        rows.append(
            (group, operation, len(calls), sum(times) if times else None, longest, sum(waits) if waits else None)
        )
    title = "Time in collectives after the last rank has arrived, and of the first rank's waiting"
    return AnswerTable("operations", title, columns, rows, most=_ROWS)


def _late_table(late: Sequence[tuple[int, int, float | None]]) -> AnswerTable:
    """Return a row for each rank that arrived last in a collective."""
    columns = (
        AnswerColumn("rank", "rank"),
        AnswerColumn("times_last", "arrived last"),
        AnswerColumn("waited_s", "others waited", _time),
    )
    return AnswerTable("late_ranks", "Ranks that arrived last", columns, late, most=_ROWS)


def _collective_table(collectives: Sequence[RecordedCollective]) -> AnswerTable:
    keys = (
        "group", "number", "operation", "bytes", "ranks", "completed_ranks", "absent_ranks", "last_rank", "time_s",
        "waited_s",
    )  # fmt: skip
    rows = [
        (
            call.group,
            call.number,
            call.operation,
            call.entries[0].nbytes,
            len(call.entries),
            len(call.entries) - len(call.unfinished),
            len(call.absent),
            call.last,
            call.time,
            call.waited,
        )
        for call in collectives
    ]
    return AnswerTable("collectives", "Collectives", tuple(AnswerColumn(key, key) for key in keys), rows, most=0)


def _group(call: RecordedCollective) -> str:
    return f"group {call.group!r}"


def _operation(entry: Entry) -> str:
    """Return an operation with its size."""
    return entry.operation if entry.nbytes is None else f"{entry.operation} of {format_bytes(entry.nbytes)}"


def _numbers(ranks: Sequence[int]) -> str:
    return few([str(rank) for rank in ranks], _MOST_NAMED)


def _ranks(ranks: Sequence[int]) -> str:
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {_numbers(ranks)}"


def _bytes(nbytes: int | None) -> str:
    return "-" if nbytes is None else format_bytes(nbytes)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else format_time(seconds)
