"""How are points named without overlapping names? In a column beside the axes, with a thin line to each point.

Names follow the order of the points' heights, at least a line apart and close to their points.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from simulator.report.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Height of a name [inch].
LINE = 0.17


@dataclass(frozen=True, slots=True)
class NamedPoint:
    """A point of a plot and the text naming it."""

    # `x`, `y`: Data coordinates.
    x: float
    y: float
    text: str
    bold: bool = False


def spaced(targets: Sequence[float], step: float) -> list[float]:
    """Return places between 0 and 1 in the given order, a step apart if possible, near the target places.

    Parameters
    ----------
    targets : sequence of float
        Rising.
    step : float
        Reduced if there are too many places.

    Examples
    --------
    >>> spaced([0.5, 0.5], 0.25), spaced([1.0, 1.0], 0.25)
    ([0.5, 0.75], [0.75, 1.0])
    """
    if not targets:
        return []
    step = min(step, 1.0 / max(1, len(targets) - 1))
    places: list[float] = []
    for place in targets:
        places.append(max(place, places[-1] + step) if places else max(place, 0.0))
    # Places pushed beyond the end move back, and push the places below them.
    limit = 1.0
    for number in range(len(places) - 1, -1, -1):
        places[number] = min(places[number], limit)
        limit = places[number] - step
    return places


def name_points(axes: Axes, points: Sequence[NamedPoint], height: float) -> None:
    """Write the names of points in a column beside axes of the given height [inch], with a thin line to each point.

    The limits of the axes must be final.
    """
    low, high = axes.get_ylim()
    order = sorted(points, key=lambda point: (point.y, -point.x, point.text))
    places = spaced([(point.y - low) / (high - low) for point in order], LINE / height)
    for point, place in zip(order, places, strict=True):
        axes.annotate(
            point.text, (point.x, point.y), xytext=(1.03, place), textcoords="axes fraction", va="center", fontsize=8.5,
            fontweight="bold" if point.bold else "normal", annotation_clip=False,
            # Below the points and the lines of data, which the thin lines would strike through.
            zorder=1.5,
            arrowprops={"arrowstyle": "-", "color": style.LIGHT, "linewidth": 0.6, "shrinkA": 2, "shrinkB": 4},
        )  # fmt: skip
