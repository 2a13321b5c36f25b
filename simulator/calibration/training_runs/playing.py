"""How fast is each measured training run in the simulation? Rows are simulated on several processes.

A row and constants give an outcome; the outcome does not depend on the process.

Example of extrapolation over micro-batches, 16 of them without pipeline: 3 are simulated and end at 3.4 s; the third
starts 1.0 s after the second; the step takes 3.4 + 13 x 1.0 = 16.4 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from simulator.basics import registry
from simulator.basics.worker_signals import ignore_interrupts, without_interrupts
from simulator.calibration.training_runs.rows import MOST_PLAYED, Changes, MeasuredRow, cluster_of, step_of
from simulator.cluster.cluster import Cluster
from simulator.engine.play import play
from simulator.records.timeline import Timeline
from simulator.report.numbers.training_summary import first_of_stages, summarize_step
from simulator.scenario.build_cluster import servers_of, to_cluster
from simulator.step.framework import BARE, Framework, load_framework
from simulator.step.parallelism import ALONE
from simulator.step.plan import StepPlan, plan_step
from simulator.step.spec import TrainingStep


@dataclass(frozen=True, slots=True)
class PlayedRow:
    """A measured training run with its simulated outcome."""

    row: MeasuredRow  # the measured run
    step_time: float  # simulated time per step [s]
    peak: float  # peak memory, of the kind that the run's source prints (`MeasuredRow.memory`) [B]
    capacity: int  # memory of the GPU [B]
    communication: float  # exposed communication, as share of the simulated time
    refused: bool = False  # whether an allocator ran out of memory, including fragmentation

    @property
    def tokens_per_s(self) -> float:
        """Simulated tokens per second on every GPU together."""
        return self.row.tokens_per_s * self.row.step_time / self.step_time

    @property
    def error(self) -> float:
        """Relative error of tokens/s, simulated / measured - 1."""
        return self.row.step_time / self.step_time - 1.0

    @property
    def time_error(self) -> float:
        """Relative error of the step time, simulated / measured - 1."""
        return self.step_time / self.row.step_time - 1.0

    @property
    def memory_error(self) -> float | None:
        """Relative error of peak memory; None if not measured."""
        return None if self.row.peak is None else self.peak / self.row.peak - 1.0

    @property
    def fits(self) -> bool:
        """True if the simulated step fits into memory, like every measured run did, or if the run's memory is not
        simulated.
        """
        return not self.row.memory_simulated or (self.peak <= self.capacity and not self.refused)


def frameworks() -> dict[str, Framework]:
    """Return every shipped framework by name, and bare kernels under the name "bare"."""
    return {"bare": BARE} | {name: load_framework(name) for name in sorted(registry.names("framework"))}


def play_row(row: MeasuredRow, constants: Mapping[str, Framework], changes: Changes = ()) -> PlayedRow:
    """Return the simulated outcome for a measured run, optionally with changed GPU constants.

    Notes
    -----
    Three micro-batches are simulated; each further micro-batch takes the time between the starts of the second and the
    third. In a pipeline, two and then three micro-batches per stage are simulated; from there the time grows evenly.
    """
    framework = constants[row.framework]
    setup = row.scenario
    if setup is not None:
        cluster = to_cluster(setup.cluster, setup.base, servers=servers_of(setup), network_time=framework.network_time)
    else:
        cluster = cluster_of(row.gpu, row.gpus, changes, row.topology, framework.network_time)
    return play_on_cluster(cluster, row, framework)


def play_on_cluster(cluster: Cluster, row: MeasuredRow, framework: Framework) -> PlayedRow:
    """Return the simulated outcome for a measured run on a given cluster; see `play_row`."""
    pp, accumulation = row.parallelism.pp, row.accumulation
    if pp == 1:
        accumulation = min(accumulation, MOST_PLAYED)
    elif accumulation > MOST_PLAYED * pp:
        accumulation = (MOST_PLAYED - 1) * pp
    step = step_of(row, framework, accumulation)
    # For data parallelism alone, closed forms suffice and are much faster than simulated collectives.
    if row.parallelism == ALONE and row.scenario is None:
        step = step.with_keys(collectives="closed_form")
    planned, timeline = _simulated(cluster, step)
    rest, time = row.accumulation - accumulation, timeline.end
    if rest and pp == 1:
        time += rest * _period(timeline, accumulation)
    elif rest:
        # The step with p more micro-batches gives the time per micro-batch in the steady state of the pipeline.
        longer = _simulated(cluster, step.with_keys(gradient_accumulation_steps=accumulation + pp))[1].end
        time += rest * (longer - time) / pp
    # Memory and exposed communication come from the simulated micro-batches; more of them change neither much.
    report = summarize_step(planned, cluster, timeline)
    exposed = report.exposed_comm_time_s / report.step_time_s
    peaks = {
        "allocated": report.peak_memory_bytes,
        "reserved": report.peak_reserved_bytes,
        "reserved by rank 0": timeline.reserved[0],
    }
    return PlayedRow(row, time, peaks[row.memory], cluster.gpus[0].hbm_bytes, exposed, refused=not report.fits)


def _simulated(cluster: Cluster, step: TrainingStep) -> tuple[StepPlan, Timeline]:
    planned = plan_step(cluster, step)
    # Spans of rank 0 for the period, and of each stage's first rank for the summary.
    keep = (0, *first_of_stages(planned))
    return planned, play("auto", planned.program, cluster, limit_memory=False, keep=keep, allocator=step.keys.allocator)


def _period(timeline: Timeline, accumulation: int) -> float:
    """Return the time between the starts of rank 0's last two of `accumulation` micro-batches [s]."""
    begins = {
        span.name: span.start for span in timeline.spans if span.rank == 0 and span.name.startswith("embedding forward")
    }
    return begins[f"embedding forward {accumulation - 1}"] - begins[f"embedding forward {accumulation - 2}"]


def play_rows(
    rows: Sequence[MeasuredRow],
    constants: Mapping[str, Framework] | None = None,
    jobs: int = 2,
    advance: Callable[[], None] | None = None,
    changes: Changes = (),
) -> tuple[PlayedRow, ...]:
    """Return outcomes for measured runs, simulated on several processes, in row order.

    Parameters
    ----------
    rows : sequence of MeasuredRow
        Rows to simulate.
    constants : mapping of str to Framework, optional
        Constants by framework; by default the shipped constants.
    jobs : int
        Number of processes.
    advance : function, optional
        Called after each row.
    changes : Changes
        Changed constants of the GPUs.
    """
    outcomes = dict[int, PlayedRow]()
    for place, outcome in each_played(rows, constants or frameworks(), jobs, changes):
        outcomes[place] = outcome
        if advance is not None:
            advance()
    return tuple(outcomes[place] for place in range(len(rows)))


def each_played(
    rows: Sequence[MeasuredRow], constants: Mapping[str, Framework], jobs: int, changes: Changes = ()
) -> Iterator[tuple[int, PlayedRow]]:
    """Yield (place in `rows`, outcome) for measured runs, simulated on several processes, each as soon as available.

    The rows are simulated in a fixed random order. Neighbours in a table cost about the same, and the most expensive
    rows end some tables: in the tables' order, the time left would be underestimated, and a process would wait idle.
    """
    simulate = partial(play_row, constants=constants, changes=changes)
    order = Random(0).sample(range(len(rows)), len(rows))
    if jobs == 1 or len(rows) <= 1:
        yield from ((place, simulate(rows[place])) for place in order)
        return
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import active_children, get_context

    others = set(active_children())
    # Spawned processes, because numpy may have started threads, and forked threads can deadlock.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=ignore_interrupts) as pool:
        try:
            with without_interrupts():
                places = {pool.submit(simulate, rows[place]): place for place in order}
            yield from ((places[future], future.result()) for future in as_completed(places))
        except BaseException:
            # After an error or an interruption, no row is simulated any further, also none that has begun.
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in set(active_children()) - others:
                worker.terminate()
            raise
