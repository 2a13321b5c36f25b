"""The panel of a page with two timelines, one above the other, and the controls of both."""

from __future__ import annotations

from html import escape
from typing import Final

from simulator.report.views.timeline_pairs import TimelinePairs

_CONTROLS: Final = """<section class="panel hidden needsjs"><div class="controls hidden" id="pairs"></div>
<div class="controls"><label>search <input id="search" type="search" size="18"></label>
<button class="plain" id="closer">Zoom in</button><button class="plain" id="wider">Zoom out</button>
<button class="plain" id="whole">Reset</button>
<span class="note">Both timelines share time window and cursor. Shift+drag: statistics of a range.</span></div>"""


def timeline_panel(pairs: TimelinePairs) -> str:
    """Return the panel with both timelines (HTML); scripts draw them from the data of `pairs`."""
    timelines = "".join(
        f'<h3 class="run">{escape(name)}</h3><div id="run{side}"></div><div id="memory{side}"></div>'
        for side, name in enumerate(pairs.names)
    )
    return f"{_CONTROLS}{timelines}</section>"
