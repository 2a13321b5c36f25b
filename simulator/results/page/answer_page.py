"""How is the page of an answer on days or on jobs put together: sentences, pictures, tables and files?"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from simulator.basics.counts import number_of
from simulator.basics.edition import VERSION
from simulator.report.tables.answer_table import AnswerTable
from simulator.report.views.timeline_pairs import TimelinePairs
from simulator.results.page.document import document
from simulator.results.page.html_text import html_text
from simulator.results.presentation import Presentation

FILE: Final = "report.html"
# Size of a picture on the page, relative to its pixels: 80 pixels an inch of 150 dots.
_SCALE: Final = 80 / 150
_CONTROLS: Final = """<section class="panel hidden needsjs"><div class="controls hidden" id="pairs"></div>
<div class="controls"><label>search <input id="search" type="search" size="18"></label>
<button class="plain" id="closer">Zoom in</button><button class="plain" id="wider">Zoom out</button>
<button class="plain" id="whole">Reset</button>
<span class="note">Both timelines share time window and cursor. Shift+drag: statistics of a range.</span></div>"""


def answer_page(presentation: Presentation, pictures: Mapping[str, bytes], files: Sequence[str]) -> str:
    """Return the page (HTML) of an answer.

    Parameters
    ----------
    pictures : mapping of title to bytes
        Each picture as PNG.
    files : sequence of str
        Paths of the files beside the page, relative to the page.
    """
    title = presentation.question or presentation.subject
    below = f'<p class="setting">{html_text(presentation.subject)}</p>' if presentation.question else ""
    answer = "".join(f'<p class="answer">{html_text(sentence)}</p>' for sentence in presentation.sentences)
    images = "".join(_picture(text, png) for text, png in pictures.items())
    first, *others = map(_table, presentation.tables)
    pair = presentation.timelines
    parts = [
        f"<header><h1>{html_text(title)}</h1>{below}</header><section>{answer}</section>",
        *([timeline_panel(pair)] if pair else []),
        f'<div class="flow">{first}{images}{"".join(others)}</div>',
        _files(files),
    ]
    return document(title, parts, pair.data if pair else None)


def timeline_panel(pairs: TimelinePairs) -> str:
    """Return the panel with both timelines (HTML); scripts draw them from the data of `pairs`."""
    timelines = "".join(
        f'<h3 class="run">{escape(name)}</h3><div id="run{side}"></div><div id="memory{side}"></div>'
        for side, name in enumerate(pairs.names)
    )
    return f"{_CONTROLS}{timelines}</section>"


def _picture(title: str, png: bytes) -> str:
    """Return a panel (HTML) with a picture; its title is the text for readers who do not see it."""
    # The header of a PNG has its width and height as big-endian numbers.
    width, height = (round(_SCALE * pixels) for pixels in struct.unpack(">II", png[16:24]))
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return (
        f'<section class="panel"><img class="picture" width="{width}" height="{height}" '
        f'alt="{escape(title)}" src="{source}"></section>'
    )


def _table(table: AnswerTable) -> str:
    headings = table.headings()
    sides = [' class="text"' if heading.left and place else "" for place, heading in enumerate(headings)]
    heads = "".join(f"<th{side}>{html_text(column.heading)}</th>" for side, column in zip(sides, headings, strict=True))
    rows = "".join(
        f"<tr>{''.join(f'<td{side}>{html_text(cell)}</td>' for side, cell in zip(sides, row, strict=True))}</tr>"
        for row in table.cells()
    )
    left = number_of(table.left_out, "more row" if rows else "row")
    more = f'<p class="note">{left} in {table.name}.csv</p>' if table.left_out else ""
    return (
        f'<section class="panel"><h2>{html_text(table.title)}</h2><table><thead><tr>{heads}</tr>'
        f"</thead><tbody>{rows}</tbody></table>{more}</section>"
    )


def _files(files: Sequence[str]) -> str:
    links = ", ".join(f'<a href="{escape(path)}">{escape(path)}</a>' for path in files)
    version = f'<p class="note">Written by simulator {escape(VERSION)}</p>'
    return f'<section class="panel"><h2>Files beside this page</h2><p>{links}</p>{version}</section>'
