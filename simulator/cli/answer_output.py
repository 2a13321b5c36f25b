"""Prints an answer of `simulator goodput` or `simulator jobs`: question, sentences, tables, and where its files are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer

from simulator.basics.counts import number_of
from simulator.cli.console import print_table, print_text
from simulator.report.tables.answer_table import AnswerTable
from simulator.results.answer_directory import answer_text, write
from simulator.results.page.answer_page import FILE
from simulator.results.presentation import Presentation


def give(
    answer: Presentation, tables: Sequence[AnswerTable], out: Path | None, *, as_json: bool, heading: str = ""
) -> None:
    """Write an answer's files to `out`, if given, and print the answer.

    Parameters
    ----------
    tables : sequence of AnswerTable
        Tables to print.
    heading : str
        Line printed before the answer.
    """
    if out is not None:
        write(out, answer)
    # stdout holds the JSON document and nothing else.
    if as_json:
        typer.echo(answer_text(answer.data), nl=False)
        return
    if heading:
        print_text(heading)
    if answer.question:
        print_text(f"{answer.question}\n")
    for sentence in answer.sentences:
        print_text(sentence)
    for table in tables:
        print_text(f"\n{table.title}")
        print_table(table.headings(), table.cells(), keys=(0,), indent="  ")
        if table.left_out:
            print_text(f"  and {table.left_out} more; --json lists all")
    if out is not None:
        number = number_of(len(answer.pictures), "picture")
        print_text(f"\nreport: {out / FILE}, {number} in {out / 'plots'}")
