"""How do Python users and notebooks run scenarios? `simulate` returns a Run, `play` a Sweep, both with plots.

The results equal those of the command line; this module only adds display.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.basics.errors import ScenarioError, ScenarioWarning, one_of
from simulator.basics.foreign_code import is_foreign, located
from simulator.collectives.algorithm import Algorithm
from simulator.collectives.payload.carry import Tamper
from simulator.findings.answer import Answer, answer
from simulator.findings.comparison import Comparison
from simulator.report.numbers.closed_forms import closed_forms_note
from simulator.report.numbers.headline import HasSentences
from simulator.report.numbers.link_use import shares_over_time
from simulator.report.views.view import NAME, compressed
from simulator.results.page.page import keeps_views, point_folder, report_page
from simulator.run import simulate as core
from simulator.run.checks import warn_of
from simulator.run.outcome import PointOutcome
from simulator.run.scenario_cluster import Clusters
from simulator.run.size_estimate import warn_of_size
from simulator.scenario import plot_names
from simulator.scenario.description import describe
from simulator.scenario.load import check_single_point, load_scenario, points
from simulator.scenario.records import PlotsSpec, Scenario
from simulator.sweeps.artifacts import ArtifactWriter, view_of_run
from simulator.sweeps.outcome_table import frame
from simulator.sweeps.sweep import Backend, play_points, with_axes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(core.SimulatedRun):
    """A simulated scenario; a notebook displays its answer and its figures.

    Attributes
    ----------
    scenario : Scenario
        The scenario, a single point.
    plan : Plan or StepPlan
        Plan of a collective, or of a training step.
    timeline : Timeline
        Operations, transfers and memory of each rank over time.
    report : CollectiveReport or TrainingReport
        Figures in seconds, bytes and B/s; `report.to_dict()` is plain data.
    results : tuple of array, or None
        Result of the operation on each rank; None without payload.
    parameters : mapping of PyTorch's name to array, or None
        Parameters after the last step of a real training.
    algorithm : Algorithm or None
        Record that `simulate` was given in place of the scenario's algorithm.
    """

    algorithm: Algorithm | None = None

    def __repr__(self) -> str:
        return f"<Run of {describe(self.scenario).text}: {self.report!r}>"

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(describe(self.scenario).text)}</b></p>{self.report._repr_html_()}"

    def plot(self, kind: str) -> Figure:
        """Return the figure of a plot named in `simulator list plots`, or of a plot's file; see `Sweep.plot`."""
        if self.algorithm is not None:
            # Pictures of a point simulate the scenario again.
            raise ScenarioError("plot: the scenario does not name the algorithm's record; write it into a file")
        return _plot(self.scenario, [self._outcome], kind)

    def link_usage(self, bins: int = 400) -> pd.DataFrame:
        """Return the use of every link over time.

        Parameters
        ----------
        bins : int
            Number of equal parts of the run's time.

        Returns
        -------
        DataFrame
            A row for each part, with its start as index "time_s" [s]; a column for each link that carried anything
            ("gpu0->switch0"), with the share of the link's bandwidth that is used, from 0 to 1.

        Warns
        -----
        ScenarioWarning
            Collectives of a training step are computed by closed forms, which fill no link.

        Examples
        --------
        >>> from simulator import collective_scenario, simulate
        >>> run = simulate(collective_scenario(topology="star_100g", world_size=4, operation="all_reduce",
        ...     algorithm="ring", size="1 MiB"))
        >>> run.link_usage(bins=2)["gpu0->switch0"].round(2).tolist()
        [0.68, 0.68]
        """
        import pandas as pd

        note = closed_forms_note(self.report)
        if note:
            warnings.warn(note, ScenarioWarning, stacklevel=2)
        names, edges, shares = shares_over_time(self.timeline, bins)
        return pd.DataFrame(shares.T, index=pd.Index(edges[:-1], name="time_s"), columns=list(names))

    @property
    def answer(self) -> Answer:
        """The answer to the scenario's question: `answer.sentences`, `answer.why`, `answer.findings`."""
        return answer(self._comparison)

    def to_html(self) -> str:
        """Return the run's page in HTML, written by `simulator run` to report.html."""
        # A single run is a sweep of one point: the page is the same.
        return report_page(self._comparison, self.answer, {0: compressed(view_of_run(self))})

    @property
    def _comparison(self) -> Comparison:
        return Comparison(self.scenario, [self._outcome])

    @property
    def _outcome(self) -> PointOutcome:
        """Outcome of the run, as if the run were a sweep's only point."""
        return PointOutcome.of(0, {}, self)


@dataclass(frozen=True, repr=False)
class Sweep(HasSentences):
    """A simulated scenario with axes; a notebook displays its answer and its table.

    Attributes
    ----------
    scenario : Scenario
        The scenario with its axes.
    outcomes : tuple of PointOutcome
        Outcome of each point, in order.
    views : mapping of int to bytes
        Compressed data for each point's part of the HTML page, by the point's number.
    """

    scenario: Scenario
    outcomes: tuple[PointOutcome, ...]
    views: Mapping[int, bytes]

    @cached_property
    def comparison(self) -> Comparison:
        """The sweep's points by setting (compared values) and condition (swept values)."""
        return Comparison(self.scenario, self.outcomes)

    @cached_property
    def answer(self) -> Answer:
        """The answer to the scenario's question: `answer.sentences`, `answer.why`, `answer.findings`."""
        return answer(self.comparison)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """Table with a row per point, as returned by `simulator.sweep`."""
        return frame(self.outcomes)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The answer in sentences, the most important first."""
        return self.answer.sentences

    def __repr__(self) -> str:
        return f"<Sweep {self.scenario.name} of {len(self.outcomes)} points: {self.sentences[0]}>"

    def shown(self) -> tuple[str, str]:
        """Return what was asked, and the table of the points as HTML."""
        return self.scenario.question or self.scenario.name, self.frame._repr_html_()  # type: ignore[operator]

    def plot(self, kind: str, point: Mapping[str, Any] | None = None) -> Figure:
        """Return the figure of a plot.

        Parameters
        ----------
        kind : str
            A name from `simulator list plots`.
        point : mapping of dotted key to value, optional
            Point for plots of a single point; the answer's point if omitted.

        Raises
        ------
        ScenarioError
            The kind or the point is unknown, or there is nothing to draw.
        """
        return _plot(self.scenario, self.outcomes, kind, point, self.answer)

    def to_html(self) -> str:
        """Return the sweep's page in HTML, written by `simulator run` to report.html."""
        return report_page(self.comparison, self.answer, self.views)


def simulate(
    scenario: Scenario | str | Mapping[str, Any],
    *,
    tamper: Tamper | None = None,
    limit_memory: bool = True,
    keep: Collection[int] | None = None,
    clusters: Clusters | None = None,
    algorithm: Algorithm | None = None,
) -> Run:
    """Simulate a scenario with a single point and return the run.

    Parameters
    ----------
    scenario : Scenario, or input for `load_scenario`
        The scenario, its name, path or content.
    tamper : mapping of transfer number to function, optional
        Faults injected into the payload.
    limit_memory : bool
        True: a training step that exceeds a GPU's memory is an error. False: the report says how much is missing.
    keep : collection of int, optional
        Ranks whose operations the timeline contains, in addition to the rank that ends last. If omitted: every rank, or
        in a large job rank 0 (collective) or each pipeline stage's first rank (training).
    clusters : Clusters, optional
        Cache of clusters from earlier points; without influence on any number.
    algorithm : Algorithm, optional
        Record of an own algorithm, for every collective for which it has a plan, in place of the scenario's algorithm.

    Returns
    -------
    SimulatedRun
        Plan, timeline, report and arrays.

    Raises
    ------
    ScenarioError
        The scenario has several points or asks for something impossible, `keep` names unknown ranks, or `algorithm` has
        no plan for the scenario's collective.
    SimulationError
        The run cannot continue, for example because this machine lacks memory.
    """
    loaded = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    # Scenarios with several points belong to `play`.
    check_single_point(loaded)
    warn_of_size([loaded])
    run = core.simulate(
        loaded, tamper=tamper, limit_memory=limit_memory, keep=keep, clusters=clusters, algorithm=algorithm
    )
    # The same run as a subclass with display.
    return Run(**{field.name: getattr(run, field.name) for field in fields(run)}, algorithm=algorithm)


def play(
    scenario: Scenario | str | Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]] | None = None,
    *,
    jobs: int | None = None,
) -> Sweep:
    """Simulate every point of a scenario and return the sweep, with the data for plots and pages.

    Parameters
    ----------
    scenario : Scenario, or input for `load_scenario`
        The scenario, its name, path or content.
    axes : mapping of dotted key to values, optional
        Further axes; they replace axes with equal keys.
    jobs : int, optional
        Number of processes on this machine; if omitted, this process simulates.

    Examples
    --------
    >>> import simulator
    >>> ring = simulator.play({"name": "ring", "cluster": {"topology": "star_100g", "world_size": 4},
    ...     "collective": {"operation": "all_reduce", "size": "4 KiB"},
    ...     "compare": {"collective.algorithm": ["ring", "tree"]}})
    >>> ring
    <Sweep ring of 2 points: Tree is fastest with 41.31 us; next: ring with 60.49 us (46 % more time).>
    """
    loaded = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    swept = with_axes(loaded, axes or {})
    warn_of(swept)
    numbered = list(enumerate(points(swept)))
    warn_of_size(point.scenario for _, point in numbered)
    # Processes write views to files; the Sweep keeps their bytes and the folder is removed.
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        # Pages of large sweeps have no views of single points.
        keeper = ArtifactWriter(folder, single=False, view=True) if keeps_views(len(numbered)) else None
        # Processes finish points in any order.
        outcomes = sorted(play_points(numbered, Backend(jobs), keeper), key=lambda outcome: outcome.index)
        files = {index: point_folder(folder, index) / NAME for index, _ in numbered}
        views = {index: file.read_bytes() for index, file in files.items() if file.is_file()}
    return Sweep(swept, tuple(outcomes), views)


def _plot(
    scenario: Scenario,
    outcomes: Sequence[PointOutcome],
    kind: str,
    point: Mapping[str, Any] | None = None,
    answered: Answer | None = None,
) -> Figure:
    """Return the figure of the plot `kind` for a scenario's outcomes; `point` and `answered` choose the point."""
    # Imported late: matplotlib takes long to load, and most scripts draw nothing.
    from simulator.results.drawn import Undrawn
    from simulator.results.pictures import figures
    from simulator.results.plotted_points import plotted_points

    kinds = plot_names.names_of("collective" if scenario.training is None else "training")
    if kind not in kinds and not is_foreign(kind):
        raise ScenarioError(f"plot: got {kind!r}; {one_of(kinds, kind, 'simulator list plots')}")
    # A path in Python starts at the working directory, and not at the scenario's folder.
    kind = located(kind)
    # Reuse the choice of points of `simulator run`, restricted to this kind.
    plot_scenario = scenario.replaced(
        plots=PlotsSpec.model_construct(kinds=(kind,), points=None if point is None else [dict(point)])
    )
    selection = plotted_points(plot_scenario, outcomes, None if answered is None else answered.spoken)
    findings = () if answered is None else answered.to_dict()["findings"]
    reason = "here"
    for _, figure in figures(plot_scenario, outcomes, selection, findings):
        if not isinstance(figure, Undrawn):
            return figure
        # A kind may be impossible for a point; the next point is tried.
        reason = f"here: {figure.reason}"
    raise ScenarioError(f"plot: the results contain no data for kind {kind} {reason}")
