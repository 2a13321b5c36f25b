"""Two timelines that a page shows one above the other, with a common window of time and a common cursor."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.report.plots import style
from simulator.report.views import view as views


@dataclass(frozen=True, slots=True)
class TimelinePair:
    """Two timelines to compare."""

    label: str  # what both timelines show, such as "rank 0"
    # View of each timeline; see `simulator.report.views.view`.
    views: Sequence[Mapping[str, Any] | None]
    marked: float | None = None  # time that the page marks at first [s]


@dataclass(frozen=True, slots=True)
class TimelinePairs:
    """Pairs of timelines, of which the page shows one at a time."""

    names: tuple[str, str]  # name of the upper and of the lower timeline
    pairs: Sequence[TimelinePair]
    most: int  # maximum size of a view, before text encoding [B]
    what: str = "point"  # what a pair is: "point", "rank"

    @property
    def data(self) -> dict[str, Any]:
        """The data for the page's scripts."""
        pairs = [
            {"label": pair.label, "views": [self._packed(view) for view in pair.views], "marked_s": pair.marked}
            for pair in self.pairs
        ]
        return {"pairs": pairs, "pairOf": self.what, "colours": style.OPERATIONS | style.MEMORY | style.KERNELS}

    def _packed(self, view: Mapping[str, Any] | None) -> str | None:
        """Return a view as text, reduced to the maximum size; None without a view, or if it is too large."""
        data = None if view is None else views.within(dict(view), self.most)
        return None if data is None else base64.b64encode(data).decode()
