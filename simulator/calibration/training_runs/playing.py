"""How fast is each measured training run when it is simulated, played on several processes?

Rule: a row and constants in, an outcome out; the same row gives the same outcome whichever process plays it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from simulator.basics import registry
from simulator.calibration.training_runs.rows import MOST_PLAYED, Changes, MeasuredRow, cluster_of, step_of
from simulator.cluster.cluster import Cluster
from simulator.engine.play import play
from simulator.records.timeline import Timeline
from simulator.report.numbers.training_summary import first_of_stages, summarize_step
from simulator.step.framework import BARE, Framework, load_framework
from simulator.step.parallelism import ALONE
from simulator.step.plan import StepPlan, plan_step
from simulator.step.spec import TrainingStep


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
    refused : bool
        Whether an allocator ran out of memory, fragments and all.
    """

    row: MeasuredRow
    step_time: float
    peak: float
    capacity: int
    communication: float
    refused: bool = False

    @property
    def tokens_per_s(self) -> float:
        """Of all GPUs."""
        return self.row.tokens_per_s * self.row.step_time / self.step_time

    @property
    def error(self) -> float:
        """Of tokens/s: simulated / measured - 1."""
        return self.row.step_time / self.step_time - 1.0

    @property
    def time_error(self) -> float:
        """Of the step's time: simulated / measured - 1."""
        return self.step_time / self.row.step_time - 1.0

    @property
    def memory_error(self) -> float | None:
        """Of peak memory; None where none was printed."""
        return None if self.row.peak is None else self.peak / self.row.peak - 1.0

    @property
    def fits(self) -> bool:
        """Whether the played step fits into memory, as every measured run did."""
        return self.peak <= self.capacity and not self.refused


def frameworks() -> dict[str, Framework]:
    """All frameworks, by name."""
    return {"bare": BARE} | {name: load_framework(name) for name in sorted(registry.names("framework"))}


def play_row(row: MeasuredRow, known: Mapping[str, Framework], changes: Changes = ()) -> PlayedRow:
    """Play one row, with other constants of its GPU where some are changed.

    Notes
    -----
    Of many micro-batches three are played, and the others take as long as from the second to the third. In a pipeline
    two for each of its ranks are played, and then three: from there the time grows evenly.
    """
    return play_on_cluster(cluster_of(row.gpu, row.gpus, changes, row.topology), row, known[row.framework])


def play_on_cluster(cluster: Cluster, row: MeasuredRow, framework: Framework) -> PlayedRow:
    """The same on a cluster that is given."""
    pp, accumulation = row.parallelism.pp, row.accumulation
    if pp == 1:
        accumulation = min(accumulation, MOST_PLAYED)
    elif accumulation > MOST_PLAYED * pp:
        accumulation = (MOST_PLAYED - 1) * pp
    step = step_of(row, framework, accumulation)
    if row.parallelism == ALONE:
        step = replace(step, collectives="closed_form")
    planned, timeline = _played(cluster, step)
    left, time = row.accumulation - accumulation, timeline.end
    if left and pp == 1:
        time += left * _period(timeline, accumulation)
    elif left:
        longer = _played(cluster, replace(step, accumulation=accumulation + pp))[1].end
        time += left * (longer - time) / pp
    report = summarize_step(planned, cluster, timeline)
    peak = report.peak_memory_bytes + framework.reserved
    exposed = report.exposed_comm_time_s / report.step_time_s
    return PlayedRow(row, time, peak, cluster.gpus[0].hbm_bytes, exposed, refused=not report.fits)


def _played(cluster: Cluster, step: TrainingStep) -> tuple[StepPlan, Timeline]:
    planned = plan_step(cluster, step)
    keep = (0, *first_of_stages(planned))
    return planned, play("auto", planned.program, cluster, limit_memory=False, keep=keep, allocator=step.allocator)


def _period(timeline: Timeline, accumulation: int) -> float:
    """Time from the start of the last micro-batch but one to that of the last, on rank 0 [s]."""
    begins = {
        span.name: span.start for span in timeline.spans if span.rank == 0 and span.name.startswith("embedding forward")
    }
    return begins[f"embedding forward {accumulation - 1}"] - begins[f"embedding forward {accumulation - 2}"]


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
    outcomes = []
    for outcome in each_played(rows, known or frameworks(), jobs, changes):
        outcomes.append(outcome)
        if advance is not None:
            advance()
    return tuple(outcomes)


def each_played(
    rows: Sequence[MeasuredRow], known: Mapping[str, Framework], jobs: int, changes: Changes = ()
) -> Iterator[PlayedRow]:
    """Play rows on so many processes; each outcome when it is there, in their order."""
    one = partial(play_row, known=known, changes=changes)
    if jobs == 1 or len(rows) <= 1:
        yield from map(one, rows)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(one, rows)
