"""How is the page of two runs put together: what differs, and both timelines under one cursor?"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from simulator.report.plots import style
from simulator.report.tables.setting_text import labelled
from simulator.report.views import view as views
from simulator.results.page.document import document

# Of one view of a pair, as bytes before they are written as text [B]; pairs of points that have views.
_MOST_BYTES: Final = 60_000
_MOST_PAIRS: Final = 30
_CONTROLS: Final = """<section class="panel hidden needsjs"><div class="controls" id="pairs"></div>
<div class="controls"><label>search <input id="search" type="search" size="18"></label>
<button class="plain" id="closer">closer</button><button class="plain" id="wider">wider</button>
<button class="plain" id="whole">whole</button>
<span class="note">both share one window of time and one cursor; shift and drag sums up</span></div>"""


def diff_page(
    folders: tuple[Path, Path], pairs: Sequence[Mapping[str, Any]], changes: Sequence[Mapping[str, Any]]
) -> str:
    """Write the page.

    Parameters
    ----------
    folders : tuple of Path
        Of the two runs.
    pairs : sequence of mapping
        Points that both have: `settings`, and `places`, their numbers in each run.
    changes : sequence of mapping
        As `simulator diff` finds them: settings, key, first, second.
    """
    first, second = (escape(str(folder)) for folder in folders)
    count = f"{len(changes)} figures differ" if changes else "no figure differs"
    timelines = "".join(
        f'<h3 class="run">{name}</h3><div id="run{side}"></div><div id="memory{side}"></div>'
        for side, name in enumerate((first, second))
    )
    data = {"pairs": [_pair(folders, pair) for pair in pairs[:_MOST_PAIRS]], "colours": style.OPERATIONS | style.MEMORY}
    title = f"{folders[0]} and {folders[1]}: {count}"
    said = f"{count} over {len(pairs)} point{_s(len(pairs))} that both have."
    head = f'<h1>{first} and {second}</h1><p class="answer">{said}</p>'
    parts = [head, f"{_CONTROLS}{timelines}</section>", _table(pairs, changes)]
    return document(title, parts, data)


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _pair(folders: tuple[Path, Path], pair: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "label": labelled(pair["settings"]) or "the point",
        "views": [_view(folder, place) for folder, place in zip(folders, pair["places"], strict=True)],
    }


def _view(folder: Path, place: int) -> str | None:
    """The view of a run's point; None where none was kept."""
    own = folder / "points" / f"{place:04d}" / views.NAME
    path = own if own.is_file() else folder / views.NAME
    if not path.is_file():
        return None
    data = views.within(views.decompressed(path.read_bytes()), _MOST_BYTES)
    return None if data is None else base64.b64encode(data).decode()


def _table(pairs: Sequence[Mapping[str, Any]], changes: Sequence[Mapping[str, Any]]) -> str:
    places = {repr(pair["settings"]): number for number, pair in enumerate(pairs)}
    rows = "".join(_row(places.get(repr(change["settings"])), change) for change in changes)
    heads = "".join(f"<th>{name}</th>" for name in ("figure", "first", "second", "change"))
    return (
        '<section class="panel"><h2>What differs</h2><div class="scroll tall"><table id="differences" class="sortable">'
        f"<thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _row(pair: int | None, change: Mapping[str, Any]) -> str:
    first, second = change["first"], change["second"]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (first, second))
    moved = f"{(second - first) / abs(first):+.3%}" if numbers and first else ""
    cells = [_text(change["key"]), _text(first), _text(second), moved]
    kind = "" if numbers else ' class="text"'
    body = "".join(f"<td{kind}>{escape(cell)}</td>" for cell in cells)
    return f'<tr data-pair="{"" if pair is None else pair}">{body}</tr>'


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)
