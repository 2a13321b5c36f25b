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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from simulator.basics.atomic_files import write_atomically
from simulator.report.plots import style
from simulator.results import run_directory
from simulator.results.page.answer_page import FILE, answer_page
from simulator.results.presentation import Presentation


def answer_text(data: Mapping[str, Any]) -> str:
    """Return an answer's plain data as the text of answer.json."""
    return json.dumps(data, indent=2) + "\n"


@contextmanager
def claimed(out: Path | None) -> Iterator[None]:
    """Claim the directory `out` during the `with` block, and remove it if the block ends before the answer is complete;
    None: do nothing.

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
        # The page is written last: the answer stays if only the reader of the printed lines has gone.
        if not (out / FILE).exists():
            run_directory.discard(out)
        raise


def write(folder: Path, presentation: Presentation) -> None:
    """Write the files of an answer."""
    images = {picture: style.png(picture.figure) for picture in presentation.pictures}
    files: dict[str, str | bytes] = {"answer.json": answer_text(presentation.data)}
    files |= {f"{table.name}.csv": table.csv for table in presentation.tables}
    files |= {f"plots/{picture.name}.png": png for picture, png in images.items()}
    files[FILE] = answer_page(presentation, {picture.title: png for picture, png in images.items()}, list(files))
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        write_atomically(folder / name, content)
