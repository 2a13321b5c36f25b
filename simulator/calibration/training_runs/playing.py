"""How fast is each measured training run when it is simulated, played on several processes?

Rule: a row and constants in, an outcome out; the same row gives the same outcome whichever process plays it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from simulator.calibration.training_runs.rows import MOST_PLAYED, Changes, MeasuredRow, cluster_of, step_of
from simulator.engine.events import execute
from simulator.report.numbers.training_summary import summarize_step
from simulator.step.framework import Framework, load_framework
from simulator.step.plan import plan_step


@dataclass(frozen=True, slots=True)
class PlayedRow:
    """A measured row, and the outcome of playing it.

    Attributes
    ----------
    row : MeasuredRow
    step_time : float
        [s]
    peak : float
        Memory of the rank that needs most, with what the framework takes besides tensors [B].
    capacity : int
        [B]
    communication : float
        Time in which nothing but communication went on, as a share of what was played.
    """

    row: MeasuredRow
    step_time: float
    peak: float
    capacity: int
    communication: float

    @property
    def tokens_per_s(self) -> float:
        """Of all GPUs."""
        return self.row.tokens_per_s * self.row.step_time / self.step_time

    @property
    def error(self) -> float:
        """Of tokens/s: simulated / measured - 1."""
        return self.row.step_time / self.step_time - 1.0

    @property
    def memory_error(self) -> float | None:
        """Of peak memory; None where none was printed."""
        return None if self.row.peak is None else self.peak / self.row.peak - 1.0

    @property
    def fits(self) -> bool:
        """Whether the played step fits into memory, as every measured run did."""
        return self.peak <= self.capacity


def frameworks() -> dict[str, Framework]:
    """The frameworks of the measured rows, by name."""
    return {name: load_framework(name) for name in ("llm_foundry", "torchtitan")}


def play_row(row: MeasuredRow, known: Mapping[str, Framework], changes: Changes = ()) -> PlayedRow:
    """Play one row, with other constants of its GPU where some are changed.

    Notes
    -----
    Of many micro-batches three are played; the others take as long as from the second to the third.
    """
    cluster = cluster_of(row.gpu, row.gpus, changes, row.topology)
    framework = known[row.framework]
    accumulation = min(row.accumulation, MOST_PLAYED)
    step = step_of(row, framework, accumulation)
    planned = plan_step(cluster, replace(step, collectives="closed_form"))
    timeline = execute(planned.program, cluster, limit_memory=False)
    rank = [span for span in timeline.spans if span.rank == 0]
    begins = {span.name: span.start for span in rank if span.name.startswith("embedding forward")}
    time = timeline.end
    if row.accumulation > accumulation:
        period = begins[f"embedding forward {accumulation - 1}"] - begins[f"embedding forward {accumulation - 2}"]
        time += (row.accumulation - accumulation) * period
    report = summarize_step(planned, cluster, timeline)
    peak = report.peak_memory_bytes + framework.reserved
    return PlayedRow(row, time, peak, cluster.gpus[0].hbm_bytes, report.exposed_comm_time_s / report.step_time_s)


def play_rows(
    rows: Sequence[MeasuredRow],
    known: Mapping[str, Framework] | None = None,
    jobs: int = 2,
    advance: Callable[[], None] | None = None,
    changes: Changes = (),
) -> tuple[PlayedRow, ...]:
    """Play rows on so many processes, in their order.

    Parameters
    ----------
    rows : sequence of MeasuredRow
    known : mapping of str to Framework, optional
        Other constants than the shipped ones.
    jobs : int
    advance : function, optional
        Called after each row.
    changes : Changes
        Constants of the GPUs with other values.
    """
    play = partial(play_row, known=known or frameworks(), changes=changes)
    if jobs == 1 or len(rows) == 1:
        return tuple(_collected(map(play, rows), advance))
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return tuple(_collected(pool.map(play, rows, chunksize=4), advance))


def _collected(outcomes: Iterable[PlayedRow], advance: Callable[[], None] | None) -> list[PlayedRow]:
    played = []
    for outcome in outcomes:
        played.append(outcome)
        if advance is not None:
            advance()
    return played
