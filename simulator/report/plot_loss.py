"""Loss against steps and against simulated time: what a real training inside the cluster learned, and when.

Rule: draws reports' numbers, computes none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from simulator.report import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = tuple[str, Mapping[str, Any]]


def figure(rows: Sequence[Row]) -> Figure:
    """Draw two panels, a line for each run.

    Parameters
    ----------
    rows : sequence of (label, training report with `learning`)
    """
    with style.applied():
        drawn = style.new_figure(11.0, 4.6)
        by_step, by_time = drawn.subplots(1, 2, sharey=True)
        colours = style.colours([label for label, _ in rows])
        for number, (label, report) in enumerate(rows):
            losses, seconds = report["learning"]["losses"], report["step_time_s"]
            # Runs that learn alike lie on each other: thinner lines above thicker ones show them all.
            width = 1.2 + 1.6 * (len(rows) - 1 - number)
            by_step.plot(range(1, len(losses) + 1), losses, color=colours[label], label=label, linewidth=width)
            times = [seconds * (step + 1) for step in range(len(losses))]
            by_time.plot(times, losses, color=colours[label], linewidth=width)
        by_step.set_xlabel("step")
        by_step.set_ylabel("loss (nats a token)")
        by_time.set_xlabel("simulated time (s)")
        drawn.legend(loc="outside lower left", ncols=4, frameon=False)
        style.set_title(drawn, finding(rows))
    return drawn


def finding(rows: Sequence[Row]) -> str:
    """Say how far runs lie apart at the end, and which is there first."""
    last = {label: report["learning"]["losses"][-1] for label, report in rows}
    label, best = min(rows, key=lambda row: row[1]["step_time_s"])
    steps = len(best["learning"]["losses"])
    when = f"{label} has done {steps} steps after {best['step_time_s'] * steps:.3g} s"
    if len(rows) == 1:
        return f"{when}: loss {last[label]:.4g}"
    apart = max(last.values()) - min(last.values())
    alike = "one loss to the last digit" if apart == 0 else f"losses within {apart:.1g} of each other"
    return f"{alike} at the end; {when}, first of all"
