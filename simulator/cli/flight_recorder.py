"""`simulator flight-recorder`: tells what dumps of PyTorch's NCCL flight recorder say about a job."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulator.basics.counts import number_of
from simulator.cli.answer_output import give
from simulator.cli.warnings_output import print_warnings
from simulator.results.answer_directory import claimed
from simulator.results.presentation import Presentation
from simulator.traces.flight_recorder.answer import FlightRecord
from simulator.traces.flight_recorder.read import read_dumps


def show(paths: Sequence[Path], out: Path | None, *, as_json: bool) -> None:
    """Print which collective of the dumps hangs, which ranks arrived last, and the time in collectives."""
    with claimed(out):
        found = FlightRecord.of(read_dumps(paths))
        print_warnings(found.notes)
        tables = found.tables()
        subject = f"Flight recorder of {number_of(len(found.dumps), 'rank')}"
        drawn = found.pictures() if out else ()
        shown = [table for table in tables if table.rows and table.name != "collectives"]
        give(Presentation("", subject, found.sentences, found.to_dict(), tables, drawn), shown, out, as_json=as_json)
