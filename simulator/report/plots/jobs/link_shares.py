"""How much of a shared link does each job use, and when? The used share of its bandwidth over time, stacked by job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from simulator.basics.arrays import Floats
from simulator.report.plots import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# [inch]
_WIDTH: Final = 11.0


def figure(link: str, edges: Floats, shares: Mapping[str, Floats]) -> Figure:
    """Return a figure of the used share of a link's bandwidth over time, stacked by job.

    Parameters
    ----------
    link : str
        Name of the link.
    edges : float array, shape (bins + 1,)
        Edges of the parts of the time [s].
    shares : mapping of job to float array, shape (bins,)
        Share of the link's bandwidth in each part of the time, 0 to 1.
    """
    palette = style.colours(shares)
    with style.applied():
        columns, legend = style.legend_shape(_WIDTH, shares)
        fig = style.new_figure(_WIDTH, 3.4 + legend)
        axes = fig.subplots()
        below = np.zeros(len(edges) - 1)
        for job, share in shares.items():
            axes.stairs(100 * (below + share), edges, baseline=100 * below, fill=True, color=palette[job], label=job)
            below = below + share
        axes.set_xlim(0.0, float(edges[-1]))
        axes.set_ylim(0.0, 105.0)
        axes.set_ylabel("used bandwidth [%]")
        axes.grid(visible=True, axis="y")
        style.time_axis(axes, float(edges[-1]))
        fig.legend(loc="outside lower left", ncols=columns)
        style.set_title(fig, finding(link, shares))
    return fig


def finding(link: str, shares: Mapping[str, Floats]) -> str:
    """Return a sentence on the mean use of a link, and on each job's part.

    Examples
    --------
    >>> finding("nic0->leaf0", {"a": np.array([0.5, 0.3]), "b": np.array([0.0, 0.4])})
    'nic0->leaf0 is used to 60 %, for a 40 % and for b 20 %'
    """
    means = {job: float(share.mean()) for job, share in shares.items()}
    largest = sorted(means, key=lambda job: -means[job])
    parts = " and ".join(f"for {job} {style.percent(means[job])}" for job in largest[:3])
    more = f", {len(largest) - 3} more jobs" if len(largest) > 3 else ""
    return f"{link} is used to {style.percent(sum(means.values()))}, {parts}{more}"
