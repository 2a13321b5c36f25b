"""Time against number of ranks for a ring all-reduce: prints the table in docs/speed.md and draws its picture.

    python -m benchmarks.growth

Four methods with the same result: a bare SimPy loop, the events engine, every round in numpy, the compiled engine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import events, lean_ring, scale
from benchmarks.timing import best_of
from simulator.collectives.recurrence import by_rounds
from simulator.engine.events import execute
from simulator.report.plots import style

# Most ranks for each method; with more, it takes minutes.
MOST = {"bare SimPy loop": 1024, "events engine": 1024, "every round by numpy": 16_384, "compiled engine": 131_072}
SIZES = (64, 256, 1024, 4096, 16_384, 65_536, 131_072)
_ELEMENTS = 4 * 2**20


def seconds(way: str, ranks: int) -> float:
    """Return the CPU time, the best of a few runs [s]."""
    return best_of(3 if ranks <= 1024 else 1, _ready(way, ranks))[0]


def _ready(way: str, ranks: int) -> Callable[[], Any]:
    """Prepare everything except the simulation; return the function that simulates."""
    if way == "bare SimPy loop":
        return partial(lean_ring.play, lean_ring.draw(ranks), 4 * _ELEMENTS)
    if way == "events engine":
        return partial(execute, events.program(ranks), events.cluster(lean_ring.draw(ranks), "ring"))
    if way == "compiled engine":
        return partial(scale.play, scale.ring(ranks, _ELEMENTS))
    # Only the cost matters here; the numbers are arbitrary.
    generator = np.random.default_rng(0)
    latency, takes = generator.uniform(5e-6, 15e-6, ranks), generator.uniform(1e-6, 2e-6, ranks)
    return partial(by_rounds, latency + takes, latency, [takes] * (2 * (ranks - 1) - 1))


def table() -> dict[str, dict[int, float]]:
    """Return times by method and number of ranks [s]."""
    return {way: {n: seconds(way, n) for n in SIZES if n <= most} for way, most in MOST.items()}


def draw(found: dict[str, dict[int, float]]) -> None:
    """Draw a line per method, with logarithmic axes."""
    last = found["compiled engine"][131_072]
    # The number of events grows with the number of transfers, 2 N (N - 1).
    hours = found["events engine"][1024] * (131_072 / 1024) ** 2 / 3600
    with style.applied():
        figure = style.new_figure(8, 5)
        axes = figure.add_subplot()
        for (way, taken), colour, marker in zip(found.items(), style.PALETTE, style.MARKERS, strict=False):
            axes.plot(list(taken), list(taken.values()), marker=marker, color=colour, label=way)
        axes.set(xscale="log", yscale="log", xlabel="ranks of one ring all-reduce", ylabel="CPU time [s]")
        axes.set_xticks(SIZES, [f"{size:,}" for size in SIZES], minor=False)
        axes.minorticks_off()
        axes.grid(visible=True, color=style.PALE)
        axes.legend()
        style.set_title(
            figure, f"A ring over 131,072 unlike links takes {last:.1f} s; its events would take {hours:.0f} hours"
        )
        style.save(figure, Path(__file__).parents[1] / "docs" / "images", "speed", svg=True)


if __name__ == "__main__":
    measured = table()
    draw(measured)
    # Missing cells mean that the method would take minutes.
    for size in SIZES:
        cells = [f"{taken[size]:.3g}" if size in taken else "-" for taken in measured.values()]
        print(f"| {size:,} | " + " | ".join(cells) + " |")
