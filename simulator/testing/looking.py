"""What does a reader see in a figure? Texts that lie on each other or outside, colours, and empty axes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import Collection, QuadMesh
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from simulator.report.plots import style
from simulator.testing.law import require

# Boxes of letters are a little larger than their ink [pixels].
_SLACK = 2.0
# A capital, a digit, or a name with a digit, an underscore or an arrow, or without a vowel: zero3, all_gather, tp.
_START = re.compile(r"[A-Z0-9]|[a-z]+[\d_-]|[^aeiouyA-Z\W\d]+[ ,]")


Drawn = list[tuple[str, Bbox]]


def begins_well(text: str) -> bool:
    """Return True if a sentence or a title begins with a capital, a digit, or a name that keeps its form.

    >>> begins_well("3 runs fit"), begins_well("the runs fit")
    (True, False)
    """
    return _START.match(text) is not None


def texts(figure: Figure) -> Drawn:
    """Return every text that is drawn, with its box in pixels."""
    canvas = FigureCanvasAgg(figure)
    with style.applied():
        canvas.draw()  # type: ignore[no-untyped-call]
    renderer: Any = canvas.get_renderer()  # type: ignore[no-untyped-call]
    hidden = {id(text) for axes in figure.axes for text in _hidden(axes)}
    return [
        (text.get_text().strip(), _ink(text, renderer))
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and id(text) not in hidden
    ]


def _hidden(axes: Axes) -> Iterator[Text]:
    """Yield texts that are not drawn: of hidden axes, of axes that are switched off, of ticks beyond the limits."""
    if not axes.get_visible():
        yield from axes.findobj(Text)
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        slack = 1e-9 * (high - low)
        if not axes.axison:
            yield from (axis.label, axis.offsetText)
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            if not axes.axison or not low - slack <= tick.get_loc() <= high + slack:
                yield from (tick.label1, tick.label2)


def _ink(text: Any, renderer: Any) -> Bbox:
    """Return the box of a text, without the empty lines below a title."""
    box = Text.get_window_extent(text, renderer)
    empty = len(text.get_text()) - len(text.get_text().rstrip("\n"))
    lines = text.get_text().count("\n") + 1
    return Bbox.from_extents(box.x0, box.y0 + box.height * empty / lines, box.x1, box.y1)


def overlapping(boxes: Drawn) -> list[tuple[str, str]]:
    """Return pairs of texts whose boxes intersect."""
    edges = np.array([(box.x0, box.x1, box.y0, box.y1) for _, box in boxes]).reshape(-1, 4)
    pairs = []
    for place, (text, box) in enumerate(boxes):
        left, right, low, high = edges[place + 1 :].T
        across = np.minimum(box.x1, right) - np.maximum(box.x0, left)
        along = np.minimum(box.y1, high) - np.maximum(box.y0, low)
        others = np.flatnonzero((across > _SLACK) & (along > _SLACK))
        pairs += [(text, boxes[place + 1 + other][0]) for other in others]
    return pairs


def outside(figure: Figure, boxes: Drawn) -> list[str]:
    """Return texts that the figure's edge cuts."""
    frame = figure.bbox
    return [
        text
        for text, box in boxes
        if box.x0 < frame.x0 - _SLACK
        or box.y0 < frame.y0 - _SLACK
        or box.x1 > frame.x1 + _SLACK
        or box.y1 > frame.y1 + _SLACK
    ]


def foreign_colours(figure: Figure) -> set[str]:
    """Return colours of bars, areas, lines and points that the style does not have."""
    return {colour for colour in _colours(figure) if colour not in style.every_colour()}


def _colours(figure: Figure) -> Iterator[str]:
    for axes in figure.axes:
        for line in axes.lines:
            yield _hex(line.get_color())
        for patch in axes.findobj(Patch):
            if patch is not axes.patch and getattr(patch, "axes", None) is axes and patch.get_visible():
                yield _hex(patch.get_facecolor())
        for collection in axes.collections:
            if isinstance(collection, Collection) and not isinstance(collection, QuadMesh):
                yield from map(_hex, collection.get_facecolor())


def _hex(colour: Any) -> str:
    return str(colors.to_hex(colour)).upper()


def empty_axes(figure: Figure) -> list[Axes]:
    """Return axes on which nothing is drawn."""
    return [
        axes
        for axes in figure.axes
        if axes.get_visible()
        and axes.axison
        and not (axes.lines or axes.collections or axes.images or axes.texts or len(axes.patches))
        and axes.get_label() != "<colorbar>"
    ]


def check(figure: Figure, where: str) -> None:
    """Check what a reader sees: the title, texts on each other or cut off, colours, and empty axes.

    Raises
    ------
    BrokenLawError
        A law is broken; the message begins with `where`.
    """
    words = texts(figure)
    title = figure.get_suptitle()
    require(begins_well(title), f"{where}: the title {title!r} does not begin with a capital, a digit or a name")
    pairs, cut = overlapping(words), outside(figure, words)
    require(not pairs, f"{where}: the texts {' and '.join(map(repr, pairs[0] if pairs else ()))} lie on each other")
    require(not cut, f"{where}: the text {cut[0] if cut else ''!r} is cut off")
    colours = sorted(foreign_colours(figure))
    require(not colours, f"{where}: the colours {', '.join(colours)} are none of the style's")
    require(not empty_axes(figure), f"{where}: axes are empty")
