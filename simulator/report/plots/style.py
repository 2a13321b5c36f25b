"""How does every figure look (colours, fonts, axes), and how is it written to disk as PNG and SVG?

Figures use matplotlib's objects, never pyplot, so they leave nothing global behind; equal figures give equal bytes.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.sentence import started

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation, Text

# Okabe & Ito, "Color Universal Design", 2008: eight colours, distinguishable with any common colour blindness.
BLACK: Final = "#000000"
ORANGE: Final = "#E69F00"
SKY: Final = "#56B4E9"
GREEN: Final = "#009E73"
YELLOW: Final = "#F0E442"
BLUE: Final = "#0072B2"
VERMILION: Final = "#D55E00"
PURPLE: Final = "#CC79A7"
PALETTE: Final = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, BLACK)
WHITE: Final = "#FFFFFF"
GREY: Final = "#767676"
PALE: Final = "#E4E4E4"
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "*")

# Darker and paler shades, for kinds beside those above.
RUST: Final = "#8C2D04"
CORAL: Final = "#F2A07B"
WINE: Final = "#6B2F55"
PLUM: Final = "#A0527D"
BROWN: Final = "#8A6100"
FOREST: Final = "#00543D"
MINT: Final = "#8FD3BE"
SLATE: Final = "#40566B"
DARK: Final = "#4D4D4D"
LIGHT: Final = "#ABABAB"

# A thing has the same colour in every figure. Sums are red, copies of complete sums purple; kinds that share a colour
# never appear in the same figure.
OPERATIONS: Final = {
    "forward": BLUE,
    "backward": ORANGE,
    "weight gradient": BROWN,
    "recompute": YELLOW,
    "optimizer": GREEN,
    "server update": FOREST,
    "accumulate": MINT,
    "copies": SKY,
    "all_reduce": VERMILION,
    "reduce": VERMILION,
    "push": CORAL,
    "reduce_scatter": RUST,
    "all_gather": PURPLE,
    "gather": PURPLE,
    "broadcast": PURPLE,
    "scatter": PURPLE,
    "pull": PLUM,
    "all_to_all": WINE,
    "ring_shift": SLATE,
    "send": BLACK,
    "copy to host": DARK,
    "copy to device": LIGHT,
    "transfer": GREY,
    "received": LIGHT,
    "issue": LIGHT,
    "waiting for the host": LIGHT,
    "idle": PALE,
}
REST: Final = "other"
# In stacking order: long-lived memory at the bottom, temporary memory at the top.
MEMORY: Final = {
    "parameters": BLUE,
    "optimizer": GREEN,
    "gradients": ORANGE,
    "workspaces": DARK,
    "buffers": GREY,
    "gathered": PURPLE,
    "activations": SKY,
    "recomputed activations": YELLOW,
    "activation gradients": CORAL,
    "temporaries": MINT,
    "loss buffers": WINE,
    "other": LIGHT,
    REST: PALE,
}
KERNELS: Final = {"matmul": "#1B7F8C", "attention": "#B5179E", "elementwise": "#B59F5B"}
DIMENSIONS: Final = {"dp": VERMILION, "tp": PURPLE, "pp": BLACK, "cp": SKY, "ep": WINE, "host": LIGHT}
# Where the time of a training of days goes.
TIME_SHARES: Final = {
    "useful": GREEN,
    "degraded": MINT,
    "checkpoint": SKY,
    "lost work": VERMILION,
    "detection": YELLOW,
    "waiting for spares": PURPLE,
    "restart": ORANGE,
}
_OWN: Final = {**OPERATIONS, **MEMORY, **DIMENSIONS, **TIME_SHARES}

# Paleness of further shades, after the palette is used up.
_PALENESS: Final = (0.45, 0.7)
SMALLEST_TEXT: Final = 8.0
TITLE_SIZE: Final = 12.0
_POINT_SIZE: Final = 9.5
# Width of a bold letter (the widest) relative to the font size.
_LETTER: Final = 0.63
# Matches the space between a number and its unit.
_NUMBER_AND_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|[KMGT]?i?B|[nmu]?s)\b|%)")
_NO_BREAK: Final = "\u00a0"
_DPI: Final = 150
_SETTINGS: Final[dict[str, Any]] = {
    "font.family": "sans-serif",
    # DejaVu Sans comes with matplotlib, so every machine draws the same letters.
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 10.0,
    "axes.labelsize": 9.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 9.0,
    "legend.frameon": False,
    "figure.titlesize": TITLE_SIZE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#D0D0D0",
    "grid.linewidth": 0.6,
    # Without a fixed salt, ids in SVG files would differ between runs.
    "svg.hashsalt": "simulator",
    "svg.fonttype": "path",
}


@contextmanager
def applied() -> Iterator[None]:
    """Apply the figure style within a `with` block, independently of the user's own matplotlib settings."""
    import matplotlib
    from cycler import cycler

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = _SETTINGS | {"axes.prop_cycle": cycler(color=PALETTE)}
        matplotlib.rcParams.update(settings)
        yield


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of this width and height [inch], with automatic arrangement of panels."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")


def set_title(figure: Figure, text: str) -> None:
    """Write a text as a figure's title, wrapped to the figure's width; its first word begins with a capital."""
    wrapped = _wrapped(figure, started(text), TITLE_SIZE)
    figure.suptitle(wrapped, x=0.01, ha="left", fontweight="bold", fontsize=TITLE_SIZE)


def set_point(figure: Figure, text: str) -> None:
    """Write a text naming the shown point of the sweep below a figure's title, in smaller letters.

    Raises
    ------
    ValueError
        The figure has no title yet.
    """
    title = next((label for label in figure.texts if label.get_text() == figure.get_suptitle()), None)
    if title is None:
        raise ValueError("the figure has no title; call set_title first")
    point = _wrapped(figure, text, _POINT_SIZE)
    # The layout reserves room for the title alone: append empty lines to the title as room for the point.
    lines = math.ceil((point.count("\n") + 1) * _POINT_SIZE / TITLE_SIZE)
    title.set_text(title.get_text() + "\n" * lines)
    figure.add_artist(_annotation(point, title))


def _annotation(text: str, title: Text) -> Annotation:
    """Return an annotation attached to a figure's title; the automatic layout ignores the annotation."""
    from matplotlib.text import Annotation

    annotation = Annotation(text, (0.0, 0.0), xycoords=title, ha="left", va="bottom", fontsize=_POINT_SIZE, color=DARK)
    annotation.set_in_layout(False)
    return annotation


def _wrapped(figure: Figure, text: str, size: float) -> str:
    """Return a text wrapped to the figure's width, in lines for letters of `size` [pt]."""
    columns = max(24, int(figure.get_figwidth() * 72 / (size * _LETTER)))
    # Keep a number and its unit on the same line.
    together = _NUMBER_AND_UNIT.sub(_NO_BREAK, text)
    return textwrap.fill(together, columns, break_on_hyphens=False).replace(_NO_BREAK, " ")


def legend_shape(width: float, names: Collection[str]) -> tuple[int, float]:
    """Return the columns of a legend of these names in a figure of a width [inch], and the legend's height [inch].

    >>> legend_shape(8.0, ["ring", "tree"])
    (2, 0.2)
    """
    longest = max(map(len, names), default=1)
    # A marker and the gap to the next column take as much as eight letters.
    columns = max(1, min(len(names), int(width * 72 / ((longest + 8) * _SETTINGS["legend.fontsize"] * _LETTER))))
    return columns, 0.2 * math.ceil(len(names) / columns)


def percent(share: float) -> str:
    """Return a share (0 to 1) as text in per cent.

    >>> percent(0.379)
    '38 %'
    """
    return f"{100 * share:.0f} %"


def time_axis(axes: Axes, end: float) -> None:
    """Label the time axis in s, ms, us or ns, whichever suits the end of the axis [s]."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    unit, factor = next(((u, f) for u, f in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)) if end >= f), ("ns", 1e-9))
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 2.5, 5, 10]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: f"{seconds / factor:.4g}"))
    axes.set_xlabel(f"time ({unit})")


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each name, with the greatest possible contrast.

    Parameters
    ----------
    names : iterable of str
        Names in order of importance. Operations, kinds of memory and dimensions of parallelism have fixed colours.

    Returns
    -------
    dict of str to str
        '#RRGGBB' by name; from the ninth name on in paler shades.

    Examples
    --------
    >>> colours(["ring", "tree"])
    {'ring': '#0072B2', 'tree': '#E69F00'}
    >>> colours(["backward"])
    {'backward': '#E69F00'}
    """
    unique = list(dict.fromkeys(names))
    fixed = {name: _OWN[name] for name in unique if name in _OWN}
    shades = (shade for paleness in (0.0, *_PALENESS) for shade in (paler(c, paleness) for c in PALETTE))
    # Fixed colours in use are not given to other names.
    free = [shade for shade in shades if shade not in fixed.values()]
    rest = [name for name in unique if name not in fixed]
    fixed.update((name, free[i % len(free)]) for i, name in enumerate(rest))
    return {name: fixed[name] for name in unique}


def every_colour() -> frozenset[str]:
    """Return the set of all colours ('#RRGGBB') of bars, areas, lines and points."""
    shades = (paler(colour, paleness) for colour in PALETTE for paleness in (0.0, *_PALENESS))
    return frozenset({*shades, *_OWN.values(), *KERNELS.values(), GREY, PALE, WHITE})


def paler(colour: str, paleness: float) -> str:
    """Return a colour mixed with white.

    >>> paler("#0072B2", 0.0), paler("#0072B2", 0.5), paler("#0072B2", 1.0)
    ('#0072B2', '#80B8D8', '#FFFFFF')
    """
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * paleness):02X}" for part in parts)


def text_on(colour: str) -> str:
    """Return black or white, whichever is readable on the background colour.

    >>> text_on("#F0E442"), text_on("#0072B2")
    ('#000000', '#FFFFFF')
    """
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    # Perceived brightness: ITU-R BT.601's weights.
    return BLACK if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#FFFFFF"


def save(figure: Figure, folder: Path | str, name: str, *, svg: bool = False) -> Path:
    """Write a figure to FOLDER/NAME.png (150 dpi), and to NAME.svg if requested; return the path of the PNG.

    Parameters
    ----------
    folder : path
        Created if necessary.
    name : str
        Name without suffix.
    svg : bool
        If True, also write the SVG.

    Returns
    -------
    Path
        The PNG.
    """
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    path = target / f"{name}.png"
    path.write_bytes(png(figure))
    if svg:
        with applied():
            figure.savefig(target / f"{name}.svg", dpi=_DPI, metadata={"Date": None, "Creator": None})
    return path


def png(figure: Figure) -> bytes:
    """Return a figure as PNG (150 dpi)."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    written = BytesIO()
    with applied():
        # The canvas draws once; `Figure.savefig` would draw twice, to measure first.
        canvas: Any = FigureCanvasAgg(figure)
        canvas.print_png(written, metadata={"Software": None})
    # Arrange only once: each further pass would move things slightly, and change the bytes.
    figure.set_layout_engine("none")
    return written.getvalue()
