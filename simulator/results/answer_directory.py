"""Which files hold the answer of `simulator goodput` or `simulator jobs`: its numbers, tables, pictures and page?

    answer.json    the document that --json prints
    NAME.csv       a file for each table
    plots/         a PNG for each picture
    report.html    the whole answer as a page, in one file

Each file is written whole or not at all. Everything is computed and drawn before the first file is written, and
report.html comes last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.basics.atomic_files import write_atomically
from simulator.report.plots import style
from simulator.report.plots.picture import Picture
from simulator.report.tables.answer_table import AnswerTable
from simulator.results import run_directory


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with everything that a reader may look at.

    Attributes
    ----------
    question : str
        Title of the page.
    sentences : sequence of str
        The answer, the most important sentence first.
    data : mapping
        The answer as plain data.
    tables : sequence of AnswerTable
    pictures : sequence of Picture
    """

    question: str
    sentences: Sequence[str]
    data: Mapping[str, Any]
    tables: Sequence[AnswerTable]
    pictures: Sequence[Picture] = ()


def answer_text(data: Mapping[str, Any]) -> str:
    """Return an answer's plain data as the text of answer.json."""
    return json.dumps(data, indent=2) + "\n"


@contextmanager
def claimed(out: Path | None) -> Iterator[None]:
    """Claim the directory `out` during the `with` block, and remove it if the block ends early; None: do nothing.

    Raises
    ------
    ScenarioError
        `out` exists and is not empty, or cannot be created.
    """
    if out is None:
        yield
        return
    run_directory.claim(out)
    try:
        yield
    # Also after Ctrl-C.
    except BaseException:
        run_directory.discard(out)
        raise


def write(folder: Path, answer: Answer) -> None:
    """Write the files of an answer."""
    files: dict[str, str | bytes] = {"answer.json": answer_text(answer.data)}
    files |= {f"{table.name}.csv": table.csv for table in answer.tables}
    files |= {f"plots/{picture.name}.png": style.png(picture.figure) for picture in answer.pictures}
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_atomically(folder / name, content)
