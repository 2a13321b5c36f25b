"""Tell which collective of a job hangs, and on which rank.

The output has the time in collectives and the ranks that arrived last, too. A pickle is read without unpickling:
only plain containers are taken from it, and nothing is run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from simulator.basics.counts import number_of
from simulator.cli.options import AnswerOut, AsJson, NoPlugins
from simulator.cli.warnings_output import print_warnings
from simulator.traces.flight_recorder.dump_reader import read_dumps
from simulator.traces.flight_recorder.flight_record import FlightRecord


def command(
    dumps: Annotated[
        list[Path],
        typer.Argument(metavar="DUMP...", help="Dumps of PyTorch's NCCL flight recorder, one a rank, or a directory."),
    ],
    out: AnswerOut = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.cli.answer_output import give
    from simulator.results.answer_directory import claimed
    from simulator.results.presentation import Presentation

    with claimed(out):
        record = FlightRecord.of(read_dumps(dumps))
        print_warnings(record.notes)
        tables = record.tables()
        subject = f"Flight recorder of {number_of(len(record.dumps), 'rank')}"
        plots = record.pictures() if out else ()
        shortened = [table for table in tables if table.rows and table.name != "collectives"]
        give(
            Presentation("", subject, record.sentences, record.to_dict(), tables, plots),
            shortened,
            out,
            as_json=as_json,
        )
