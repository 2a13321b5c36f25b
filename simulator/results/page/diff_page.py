"""How is the page about two runs put together: their differences, and both timelines with a common cursor?"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from simulator.records.setting_text import labelled
from simulator.report.plots import style
from simulator.report.views import view as views
from simulator.results.figure_text import figure_texts, relative_change_text
from simulator.results.main_difference import main_difference
from simulator.results.page.document import document
from simulator.results.page.html_text import html_text
from simulator.results.page.point_table import text_cell
from simulator.results.run_differences import Change, CommonPoint, RunDifferences, key_text

# View size in a pair, before text encoding [B]; maximum number of pairs with views.
_MOST_BYTES: Final = 60_000
_MOST_PAIRS: Final = 30
_CONTROLS: Final = """<section class="panel hidden needsjs"><div class="controls hidden" id="pairs"></div>
<div class="controls"><label>search <input id="search" type="search" size="18"></label>
<button class="plain" id="closer">Zoom in</button><button class="plain" id="wider">Zoom out</button>
<button class="plain" id="whole">Reset</button>
<span class="note">Both timelines share time window and cursor. Shift+drag: statistics of a range.</span></div>"""


def diff_page(folders: tuple[Path, Path], found: RunDifferences) -> str:
    """Return an HTML page comparing two runs, given the runs' directories and differences.

    Raises
    ------
    ScenarioError
        A run's view of a point has the format of another version of the simulator.
    """
    first, second = (escape(str(folder)) for folder in folders)
    # Only the first points fit on the page, so points with differing figures come first.
    points = sorted(found.common, key=lambda point: not point.changes)
    timelines = "".join(
        f'<h3 class="run">{name}</h3><div id="run{side}"></div><div id="memory{side}"></div>'
        for side, name in enumerate((first, second))
    )
    pairs = [_pair(folders, point) for point in points[:_MOST_PAIRS]]
    data = {"pairs": pairs, "colours": style.OPERATIONS | style.MEMORY}
    names = str(folders[0]), str(folders[1])
    main, counted = main_difference(found, names), found.sentences(names)
    said = (main, *counted) if main else counted
    left = len(points) - _MOST_PAIRS
    note = (
        f'<p class="note">Shown: the first {_MOST_PAIRS} points; {left:,} more points are not shown.</p>'
        if left > 0
        else ""
    )
    head = f'<h1>{first} and {second}</h1><p class="answer">{html_text(" ".join(said))}</p>{note}'
    parts = [head, _key_table(found), f"{_CONTROLS}{timelines}</section>", _figure_table(points[:_MOST_PAIRS])]
    return document(f"{folders[0]} and {folders[1]}: {said[0]}", parts, data)


def _pair(folders: tuple[Path, Path], point: CommonPoint) -> dict[str, Any]:
    return {
        "label": _label(point),
        "views": [_view(folder, place) for folder, place in zip(folders, point.places, strict=True)],
    }


def _view(folder: Path, place: int) -> str | None:
    """Return a point's stored view (timeline data for the page), base64-encoded; None if the run stored none."""
    # A run with a single point stores its view in the run's folder itself.
    own = folder / "points" / f"{place:04d}" / views.NAME
    path = own if own.is_file() else folder / views.NAME
    if not path.is_file():
        return None
    data = views.within(views.stored(path), _MOST_BYTES)
    return None if data is None else base64.b64encode(data).decode()


def _label(point: CommonPoint) -> str:
    return labelled(point.settings) or "the point"


def _key_table(found: RunDifferences) -> str:
    """Return a table with the differing scenario keys (HTML); empty if no key differs, or if no scenario is known."""
    if not found.keys:
        return ""
    rows = "".join(_row((change.key, key_text(change.first), key_text(change.second))) for change in found.keys)
    return _table(f"Changed scenario keys ({len(found.keys):,})", "keys", ("key", "first", "second"), [rows])


def _figure_table(points: Sequence[CommonPoint]) -> str:
    """Return a table (HTML) with the figures (numbers of the report) that differ between two runs.

    Each point has a body of the table, which begins with the settings of the point if there are several points. Empty
    if no figure differs.
    """
    count = sum(len(point.changes) for point in points)
    bodies = [_head_row(point) * (len(points) > 1) + "".join(map(_figure_row, point.changes)) for point in points]
    columns = ("figure", "first", "second", "change")
    return _table(f"Changed figures ({count:,})", "differences", columns, bodies) if count else ""


def _head_row(point: CommonPoint) -> str:
    count = f"{len(point.changes):,}" if point.changes else "no"
    figures = "figure differs" if len(point.changes) == 1 else "figures differ"
    return f'<tr><th class="text" colspan="4">{html_text(_label(point))}: {count} {figures}</th></tr>'


def _figure_row(change: Change) -> str:
    first, second = figure_texts(change.key, change.first, change.second)
    return _row((change.key, first, second), relative_change_text(change.first, change.second))


def _row(texts: Sequence[str], number: str | None = None) -> str:
    last = "" if number is None else f"<td>{escape(number)}</td>"
    return f"<tr>{''.join(map(text_cell, texts))}{last}</tr>"


def _table(heading: str, name: str, columns: Sequence[str], bodies: Sequence[str]) -> str:
    """Return a panel (HTML) with a table; all columns except "change" have texts, which begin at the left."""
    heads = "".join(f'<th class="{"" if column == "change" else "text"}">{column}</th>' for column in columns)
    body = "".join(f"<tbody>{rows}</tbody>" for rows in bodies)
    return (
        f'<section class="panel"><h2>{heading}</h2><div class="scroll tall"><table id="{name}">'
        f"<thead><tr>{heads}</tr></thead>{body}</table></div></section>"
    )
