"""How does a collective work, step by step? After each round, each cell shows which ranks' parts a chunk contains.

A schedule is replayed without a clock, a panel per round, like the pages of a flip book. Reduce-scatter of 3 ranks in a
ring (rows are ranks, columns are chunks):

    start        step 1             step 2
    0  0  0      0    0+2  0        all  0+2  0
    1  1  1      1    1    0+1      1    all  0+1
    2  2  2      1+2  2    2        1+2  2    all
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simulator.collectives.algorithm import ALGORITHMS
from simulator.collectives.verify import Held, initial, promised
from simulator.records.collective_operation import COLLECTIVE_OPERATIONS
from simulator.records.schedule import Round, Schedule
from simulator.report.plots import style
from simulator.report.plots.plot import SchedulePlot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Ranks of a scenario's picture; more are unreadable.
_MOST_DRAWN: Final = 64
# A replay visits every chunk of every rank.
_MOST_RANKS: Final = 128
_MOST_PANELS: Final = 12
# Participants and chunks; beyond this, colours count the parts.
_TEXT_UP_TO: Final = 16
# Beyond this, cells with text need more room, and only half of the panels fit.
_LARGE: Final = 8
# Two lines of 8 pt [inch].
_CELL: Final = (0.52, 0.34)
# Letters per cell, at 8 pt.
_LETTERS: Final = 6
# A pale orange: written in this step.
_FRESH: Final = "#FBDDA6"
# Maximum width of a figure [inch].
_WIDEST: Final = 17.8


@dataclass(frozen=True, slots=True)
class RoundState:
    """Content of every rank's chunks after a round of a collective."""

    number: int  # 0 for the state before the first round
    held: tuple[tuple[int, ...], ...]  # held[participant][chunk]: bit r is set if rank r's part is contained
    senders: Mapping[tuple[int, int], tuple[int, ...]]  # senders for each place written in this round
    transfers: int  # transfers of this round


def figure(schedule: Schedule) -> Figure:
    """Return a figure with a grid of ranks and chunks for each round, at most 12 rounds: the first and the last.

    Parameters
    ----------
    schedule : Schedule
        At most 128 ranks. Up to 16 ranks and chunks, each cell names the origins and the senders; beyond this, colours
        count the origins.

    Raises
    ------
    ValueError
        More than 128 ranks.
    """
    if schedule.world_size > _MOST_RANKS:
        raise ValueError(f"got {schedule.world_size} ranks; steps are drawn for at most {_MOST_RANKS}")
    rows, columns = schedule.world_size + schedule.auxiliaries, schedule.chunks
    has_text = max(rows, columns) <= _TEXT_UP_TO
    steps = replay(schedule, _MOST_PANELS // 2 if has_text and max(rows, columns) > _LARGE else _MOST_PANELS)
    width, height = _panel_size(rows, columns, has_text=has_text)
    panels = _with_gap(steps)
    across = max(1, min(len(panels), int(_WIDEST / (width + 0.5))))
    down = -(-len(panels) // across)
    with style.applied():
        fig = style.new_figure(max(6.4, 0.4 + across * (width + 0.5)), 1.3 + down * (height + 0.75))
        grid = fig.subplots(down, across, squeeze=False)
        for place, axes in enumerate(grid.flat):
            step = panels[place] if place < len(panels) else None
            if step is None:
                axes.set_axis_off()
                if place < len(panels):
                    missing = f"steps {panels[place - 1].number + 1} to {steps[-1].number - 1}\nnot shown"  # type: ignore[union-attr]
                    axes.text(0.5, 0.5, f"…\n{missing}", ha="center", va="center", transform=axes.transAxes)
                continue
            _frame(axes, step, schedule, first=place % across == 0, lowest=place + across >= len(panels))
            (_name_cells if has_text else _colour_cells)(axes, step, schedule)
        style.set_title(fig, finding(schedule))
        fig.supxlabel(_key(schedule, has_text=has_text), x=0.01, ha="left", fontsize=9.0)
    return fig


def finding(schedule: Schedule) -> str:
    """Return a sentence with a schedule's result and its numbers of steps and transfers."""
    lengths = [len(sends) for sends in schedule.rounds()]
    steps = f"{len(lengths)} step" + ("s" if len(lengths) != 1 else "")
    return (
        f"{schedule.algorithm} {schedule.operation} of {schedule.world_size} ranks: "
        f"{_promise(schedule)} after {steps} and {sum(lengths)} transfers"
    )


def _promise(schedule: Schedule) -> str:
    """Return a text on the final state of a schedule's collective, e.g. "every rank holds the whole sum"."""
    return COLLECTIVE_OPERATIONS[schedule.operation].result.format(root=f"rank {schedule.root}")


def replay(schedule: Schedule, most: int) -> tuple[RoundState, ...]:
    """Replay a schedule without a clock and keep the states to draw.

    Parameters
    ----------
    most : int
        Number of panels, at least 3. With more states, keep the first most - 2 and the last; a panel is left for the
        gap.

    Returns
    -------
    tuple of RoundState
        The state before the first round, and states after rounds.

    Notes
    -----
    Transfers are replayed in their order. Any allowed order gives the same states, because a schedule declares a wait
    for everything that a transfer reads or overwrites (`simulator.collectives.verify`).
    """
    rounds = sum(1 for _ in schedule.rounds())
    early = rounds if rounds + 1 <= most else most - 3
    state = initial(schedule)
    steps = [RoundState(0, _frozen(state), {}, 0)]
    for number, sends in enumerate(schedule.rounds(), 1):
        senders = _play(schedule, state, sends)
        if number <= early or number == rounds:
            steps.append(RoundState(number, _frozen(state), senders, len(sends)))
    return tuple(steps)


def _play(schedule: Schedule, state: Held, sends: Round) -> dict[tuple[int, int], tuple[int, ...]]:
    """Apply a round of transfers to `state` in place; return {(participant, chunk): senders} for each changed chunk."""
    senders: dict[tuple[int, int], tuple[int, ...]] = {}
    columns = (column.tolist() for column in (sends.src, sends.dst, sends.first, sends.count, sends.reduce))
    for src, dst, first, count, reduce in zip(*columns, strict=True):
        for i in range(count):
            # A transfer carries `count` chunks, `step` apart, modulo the number of chunks.
            chunk = (first + i * sends.step) % schedule.chunks
            before = state[dst][chunk]
            state[dst][chunk] = before | state[src][chunk] if reduce else state[src][chunk]
            if state[dst][chunk] != before:
                senders[dst, chunk] = (*senders.get((dst, chunk), ()), src)
    return senders


def _frozen(state: Held) -> tuple[tuple[int, ...], ...]:
    """Return tuples with a copy of the state (ranks' parts in each chunk)."""
    return tuple(tuple(row) for row in state)


def _with_gap(steps: Sequence[RoundState]) -> list[RoundState | None]:
    """Return the states to draw, with None inserted before the last if rounds are missing there."""
    panels: list[RoundState | None] = list(steps)
    if len(steps) > 1 and steps[-1].number > steps[-2].number + 1:
        panels.insert(-1, None)
    return panels


def _panel_size(rows: int, columns: int, *, has_text: bool) -> tuple[float, float]:
    """Return width and height [inch] of a panel with the given rows and columns; `has_text`: cells contain text."""
    if has_text:
        return max(columns * _CELL[0], 1.9), rows * _CELL[1]
    return 2.9, 2.9 * min(1.5, max(0.5, rows / columns))


def origins_text(origins: int, world_size: int, letters: int = _LETTERS) -> str:
    """Return a text with the ranks in a bit mask, short enough for a cell.

    >>> origins_text(0b0011, 4), origins_text(0b1111, 4), origins_text(0b0100, 4)
    ('0+1', 'all', '2')
    >>> origins_text(0b11100011, 8), origins_text(0b10110101, 8)
    ('5…1', '5/8')
    """
    ranks = [rank for rank in range(world_size) if origins >> rank & 1]
    if len(ranks) == world_size:
        return "all"
    full = "+".join(map(str, ranks))
    if len(full) <= letters:
        return full
    # Ranks are consecutive on the ring if exactly one rank has no predecessor in the sum.
    heads = [rank for rank in ranks if not origins >> ((rank - 1) % world_size) & 1]
    if len(heads) == 1:
        return f"{heads[0]}…{(heads[0] + len(ranks) - 1) % world_size}"
    return f"{len(ranks)}/{world_size}"


def _name_cells(axes: Axes, step: RoundState, schedule: Schedule) -> None:
    """Draw a cell per rank and chunk with its origin ranks and senders; chunks written in this round are shaded."""
    from matplotlib.colors import ListedColormap

    rows, columns = len(step.held), schedule.chunks
    fresh = np.zeros((rows, columns))
    for place in step.senders:
        fresh[place] = 1.0
    axes.imshow(fresh, cmap=ListedColormap(["white", _FRESH]), vmin=0.0, vmax=1.0, aspect="auto",
                interpolation="nearest")  # fmt: skip
    for row, holds in enumerate(step.held):
        for column, origins in enumerate(holds):
            text = origins_text(origins, schedule.world_size)
            senders = step.senders.get((row, column))
            if senders:
                text += f"\n←{_from(schedule, senders)}"
            # Bold if the cell has its final content.
            done = row < schedule.world_size and promised(schedule, row, column) == origins
            axes.text(column, row, text, ha="center", va="center", fontsize=8.0, linespacing=1.0,
                      fontweight="bold" if done else "normal")  # fmt: skip
    axes.set_xticks(np.arange(columns + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(rows + 1) - 0.5, minor=True)
    axes.grid(visible=True, which="minor", color="#A8A8A8", linewidth=0.5)


def _from(schedule: Schedule, senders: Sequence[int]) -> str:
    """Return a text with the senders' names, or only the number of senders if too long."""
    names = ",".join(_name(schedule, sender) for sender in senders)
    return names if len(names) <= _LETTERS else f"all {len(senders)}" if len(senders) > 2 else f"{len(senders)}"


def _colour_cells(axes: Axes, step: RoundState, schedule: Schedule) -> None:
    """Draw a coloured cell per rank and chunk: orange if written in this round, else blue, darker for more origins."""
    from matplotlib import colormaps

    counts = np.array([[origins.bit_count() for origins in row] for row in step.held], np.float64)
    # Without sums a cell contains a single origin.
    most = schedule.world_size if COLLECTIVE_OPERATIONS[schedule.operation].reduces else 1
    # Start at 0.15: a single origin must differ from none.
    shades = np.where(counts > 0, 0.15 + 0.85 * counts / most, 0.0)
    colours = colormaps["Blues"](shades)
    fresh = np.zeros(counts.shape, bool)
    for place in step.senders:
        fresh[place] = True
    # At least half strength: a single written cell among many must be visible.
    colours[fresh] = colormaps["Oranges"](0.45 + 0.45 * shades[fresh])
    axes.imshow(colours, aspect="auto", interpolation="nearest")


def _frame(axes: Axes, step: RoundState, schedule: Schedule, *, first: bool, lowest: bool) -> None:
    """Write a panel's title (round, number of transfers), and the ranks and chunks as ticks."""
    transfers = f"{step.transfers} transfer" + ("s" if step.transfers != 1 else "")
    axes.set_title(f"step {step.number}: {transfers}" if step.number else "start", loc="left")
    rows, columns = len(step.held), schedule.chunks
    names = [_name(schedule, participant) for participant in range(rows)]
    ticks: Any = range(rows) if rows <= _TEXT_UP_TO else [*range(0, rows, max(1, rows // 8))]
    axes.set_yticks(ticks, [names[row] for row in ticks])
    ticks = range(columns) if columns <= _TEXT_UP_TO else [*range(0, columns, max(1, columns // 4))]
    axes.set_xticks(ticks, [str(column) for column in ticks])
    axes.tick_params(which="both", length=0)
    if first:
        axes.set_ylabel("rank")
    if lowest:
        axes.set_xlabel("chunk")


def _name(schedule: Schedule, participant: int) -> str:
    """Return a text with a rank's number, or with the kind ("server") if the participant is no rank."""
    if participant < schedule.world_size:
        return str(participant)
    # An algorithm outside the catalog does not say whether it adds in servers or in switches.
    shipped = ALGORITHMS.by_name.get(schedule.algorithm)
    kind = "helper" if shipped is None else shipped.auxiliary.value
    return kind if schedule.auxiliaries == 1 else f"{kind[:2]}{participant - schedule.world_size}"


def _key(schedule: Schedule, *, has_text: bool) -> str:
    """Return the text below the figure that explains its cells and colours; `has_text`: cells contain text."""
    if has_text:
        cell = "cell: ranks whose parts the chunk contains; bold: required at the end; "
        return cell + "shaded: written in this step, ← sender"
    return (
        f"darker: parts of more ranks (white: 0, darkest: {schedule.world_size}); orange: written in this step"
        if COLLECTIVE_OPERATIONS[schedule.operation].reduces
        else "blue: chunk held, white: not held; orange: written in this step"
    )


def _of_schedule(schedule: Schedule) -> Figure | None:
    """Return the step-by-step figure of a schedule; None for more ranks than the figure can show."""
    return figure(schedule) if schedule.world_size <= _MOST_DRAWN else None


PLOT = SchedulePlot(figure=_of_schedule)
