"""How is the page about two runs put together: their differences, and both timelines with a common cursor?"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from simulator.records.setting_text import labelled
from simulator.report.views import view as views
from simulator.report.views.timeline_pairs import TimelinePair, TimelinePairs
from simulator.results.figure_text import figure_texts, relative_change_text
from simulator.results.main_difference import main_difference
from simulator.results.page.answer_page import timeline_panel
from simulator.results.page.document import document
from simulator.results.page.html_text import html_text
from simulator.results.page.point_table import text_cell
from simulator.results.run_differences import CommonPoint, RunDifferences, ValueChange, key_text

# View size in a pair, before text encoding [B]; maximum number of pairs with views.
_MOST_BYTES: Final = 60_000
_MOST_PAIRS: Final = 30


def diff_page(folders: tuple[Path, Path], differences: RunDifferences) -> str:
    """Return an HTML page comparing two runs, given the runs' directories and differences.

    Raises
    ------
    ScenarioError
        A run's view of a point has the format of another version of the simulator.
    """
    names = str(folders[0]), str(folders[1])
    # Only the first points fit on the page, so points with differing figures come first.
    points = sorted(differences.common, key=lambda point: not point.changes)
    timelines = TimelinePairs(names, [_pair(folders, point) for point in points[:_MOST_PAIRS]], _MOST_BYTES)
    main, counted = main_difference(differences, names), differences.sentences(names)
    texts = (main, *counted) if main else counted
    left = len(points) - _MOST_PAIRS
    note = (
        f'<p class="note">Shown: the first {_MOST_PAIRS} points; {left:,} more points are not shown.</p>'
        if left > 0
        else ""
    )
    head = f'<h1>{escape(names[0])} and {escape(names[1])}</h1><p class="answer">{html_text(" ".join(texts))}</p>{note}'
    parts = [head, _key_table(differences), timeline_panel(timelines), _figure_table(points[:_MOST_PAIRS])]
    return document(f"{names[0]} and {names[1]}: {texts[0]}", parts, timelines.data)


def _pair(folders: tuple[Path, Path], point: CommonPoint) -> TimelinePair:
    pair = [_view(folder, place) for folder, place in zip(folders, point.places, strict=True)]
    return TimelinePair(_label(point), pair)


def _view(folder: Path, place: int) -> dict[str, Any] | None:
    """Return a point's stored view (timeline data for the page); None if the run stored none."""
    # A run with a single point stores its view in the run's folder itself.
    point_path = folder / "points" / f"{place:04d}" / views.NAME
    path = point_path if point_path.is_file() else folder / views.NAME
    return views.stored(path) if path.is_file() else None


def _label(point: CommonPoint) -> str:
    return labelled(point.settings) or "the point"


def _key_table(differences: RunDifferences) -> str:
    """Return a table with the differing scenario keys (HTML); empty if no key differs, or if no scenario is known."""
    if not differences.keys:
        return ""
    rows = "".join(_row((change.key, key_text(change.first), key_text(change.second))) for change in differences.keys)
    return _table(f"Changed scenario keys ({len(differences.keys):,})", "keys", ("key", "first", "second"), [rows])


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


def _figure_row(change: ValueChange) -> str:
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
