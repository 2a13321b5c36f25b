"""How far is each simulated matmul from its measured time? A plot of their ratio over the work, a panel per format.

`python -m tools.validation.kernel_plot [FOLDER]` writes docs/images/kernels.png and kernels.svg. Every measured matmul
of simulator/catalog/measured/matmul.csv is a point, including the worst; the line means agreement.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from simulator.basics.measured_tables import FOLDER
from simulator.calibration.kernel_rows import kernel_rows
from simulator.calibration.measured_kernels import MeasuredKernel, MeasuredMatmul, gpu_named
from simulator.report.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Formats of the table, each with the title of its panel.
_FORMATS: Final[Mapping[str, str]] = {
    "bfloat16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8 in blocks, with cast", "nvfp4": "NVFP4, with cast",
}  # fmt: skip
_RATIOS: Final = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0)
_PANELS_IN_A_ROW: Final = 2


@dataclass(frozen=True, slots=True)
class FormatPanel:
    """A panel for a format: work [FLOP] and simulated / measured time of each matmul, by GPU."""

    title: str
    points: Mapping[str, Sequence[tuple[float, float]]]


def panels(rows: Iterable[MeasuredKernel]) -> tuple[FormatPanel, ...]:
    """Return a panel for each format with the matmuls that were measured in it; other kernels are left out."""
    found: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in _FORMATS}
    for row in rows:
        if isinstance(row, MeasuredMatmul) and row.dtype in found:
            ratio = row.simulated(gpu_named(row.gpu)) / row.seconds
            work = 2.0 * row.batch * row.m * row.n * row.k
            found[row.dtype].setdefault(row.gpu, []).append((work, ratio))
    return tuple(FormatPanel(_FORMATS[name], points) for name, points in found.items() if points)


def figure(drawn: Sequence[FormatPanel], finding: str) -> Figure:
    """Draw panels with common axes, below a sentence; ValueError without a panel."""
    if not drawn:
        raise ValueError("no format to draw; give at least one panel")
    gpus = list(dict.fromkeys(gpu for panel in drawn for gpu in panel.points))
    columns = min(_PANELS_IN_A_ROW, len(drawn))
    lines = -(-len(drawn) // columns)
    with style.applied():
        fig = style.new_figure(5.2 * columns, 0.9 + 2.9 * lines)
        grid = fig.subplots(lines, columns, squeeze=False, sharex=True, sharey=True)
        for axes, panel in zip(grid.flat, drawn, strict=False):
            _panel(axes, panel, gpus)
        for axes in list(grid.flat)[len(drawn) :]:
            axes.set_axis_off()
        for line in grid:
            line[0].set_ylabel("simulated / measured time")
        for axes in grid[-1]:
            axes.set_xlabel("work (GFLOP)")
        handles = {
            label: handle for axes in grid.flat for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        fig.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=len(handles), frameon=False)
        style.set_title(fig, finding)
    return fig


def _panel(axes: Axes, panel: FormatPanel, gpus: Sequence[str]) -> None:
    for gpu, points in panel.points.items():
        place = gpus.index(gpu)
        axes.plot(
            [work / 1e9 for work, _ in points],
            [ratio for _, ratio in points],
            color=style.PALETTE[place % len(style.PALETTE)],
            marker=style.MARKERS[place % len(style.MARKERS)],
            linestyle="none",
            markersize=3.0,
            alpha=0.7,
            label=gpu,
        )
    axes.axhline(1.0, color=style.BLACK, linewidth=0.8)
    axes.set_xscale("log")
    # Base 2: half and twice the measured time are equally far from agreement.
    axes.set_yscale("log", base=2)
    axes.set_yticks(_RATIOS, [f"{ratio:g}" for ratio in _RATIOS])
    axes.minorticks_off()
    axes.grid(visible=True)
    axes.set_title(panel.title, loc="left")


def finding(drawn: Sequence[FormatPanel]) -> str:
    """Return a sentence about the errors of the drawn matmuls.

    >>> finding([FormatPanel("fp8", {"h200": [(1e9, 0.98), (2e9, 1.06)], "b200": [(3e9, 1.0)]})])
    'Median error 2.0% over 3 measured matmuls on 2 GPUs, 100% within a quarter'
    """
    ratios = [ratio for panel in drawn for points in panel.points.values() for _, ratio in points]
    gpus = {gpu for panel in drawn for gpu in panel.points}
    near = sum(abs(ratio - 1) <= 0.25 for ratio in ratios) / len(ratios)
    return (
        f"Median error {median(abs(ratio - 1) for ratio in ratios):.1%} over {len(ratios):,} measured matmuls on "
        f"{len(gpus)} GPUs, {near:.0%} within a quarter"
    )


def main(folder: str = "docs/images") -> None:
    """Write the picture of the catalog's matmuls."""
    drawn = panels(kernel_rows(FOLDER / "matmul.csv"))
    style.save(figure(drawn, finding(drawn)), folder, "kernels", svg=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
