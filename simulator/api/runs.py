"""What do Python users and notebooks get: a Run and a Sweep that show themselves, draw pictures and write their page?

Rule: plays as the rooms below do, and adds only looks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.basics.errors import ScenarioError, one_of
from simulator.findings.answer import Answer, answer
from simulator.findings.comparison import Comparison
from simulator.payload.carry import Tamper
from simulator.report.views.view import NAME, compressed
from simulator.results.page.page import keeps_views, point_folder, report_page
from simulator.run import simulate as core
from simulator.run.checks import warn_of
from simulator.run.outcome import PointOutcome
from simulator.run.scenario_cluster import Clusters
from simulator.run.size import warn_of_size
from simulator.scenario import plot_names
from simulator.scenario.description import describe
from simulator.scenario.load import check_single_point, load_scenario, points
from simulator.scenario.records import PlotsSpec, Scenario
from simulator.sweeps.artifacts import ArtifactWriter, view_of_run
from simulator.sweeps.sweep import Backend, play_points, with_axes
from simulator.sweeps.table import frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(core.Run):
    """A played scenario; in a notebook it shows its answer and its figures.

    Attributes
    ----------
    scenario : Scenario
    plan : Plan or StepPlan
        Of a collective, or of a training step.
    timeline : Timeline
        What ran when on which rank, what was sent, what was held.
    report : CollectiveReport or TrainingReport
        Its numbers, in seconds, bytes and B/s; `report.to_dict()` is plain data.
    results : tuple of array, or None
        What the operation gives each rank; None without payload.
    parameters : mapping of PyTorch's name to array, or None
        Of a real training, after its last step.
    """

    def __repr__(self) -> str:
        return f"<Run of {describe(self.scenario).text}: {self.report!r}>"

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(describe(self.scenario).text)}</b></p>{self.report._repr_html_()}"

    def plot(self, kind: str) -> Figure:
        """Draw one of `simulator list plots`; see `Sweep.plot`."""
        return _plot(self.scenario, [self._outcome], kind)

    def to_html(self) -> str:
        """The page that `simulator run` leaves as report.html."""
        compared = Comparison(self.scenario, [self._outcome])
        return report_page(compared, answer(compared), {0: compressed(view_of_run(self))})

    @property
    def _outcome(self) -> PointOutcome:
        return PointOutcome(0, {}, self.timeline.engine, self.report.to_dict())


@dataclass(frozen=True, repr=False)
class Sweep:
    """All points of a scenario, played; in a notebook it shows its answer and its table.

    Attributes
    ----------
    scenario : Scenario
        With its axes.
    outcomes : tuple of PointOutcome
        One a point, in order.
    views : mapping of int to bytes
        What a page draws of each point.
    """

    scenario: Scenario
    outcomes: tuple[PointOutcome, ...]
    views: Mapping[int, bytes]

    @cached_property
    def comparison(self) -> Comparison:
        """The points by setting and condition."""
        return Comparison(self.scenario, self.outcomes)

    @cached_property
    def answer(self) -> Answer:
        """The answer to the scenario's question: `answer.sentences`, `answer.why`, `answer.findings`."""
        return answer(self.comparison)

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row a point, as `simulator.sweep` gives it."""
        return frame(self.outcomes)

    def __repr__(self) -> str:
        return f"<Sweep {self.scenario.name} of {len(self.outcomes)} points: {self.answer.sentences[0]}>"

    def _repr_html_(self) -> str:
        lines = [self.scenario.question or self.scenario.name, *self.answer.sentences]
        first, *rest = (escape(line) for line in lines)
        return f"<p><b>{first}</b></p>{''.join(f'<p>{line}</p>' for line in rest)}{self.frame._repr_html_()}"  # type: ignore[operator]

    def plot(self, kind: str, point: Mapping[str, Any] | None = None) -> Figure:
        """Draw one kind of picture.

        Parameters
        ----------
        kind : str
            One of `simulator list plots`.
        point : mapping of dotted key to value, optional
            Which point is looked at closely; the one that the answer speaks of if left out.

        Raises
        ------
        ScenarioError
            No such kind, no such point, or nothing to draw.
        """
        return _plot(self.scenario, self.outcomes, kind, point, self.answer)

    def to_html(self) -> str:
        """The page that `simulator run` leaves as report.html."""
        return report_page(self.comparison, self.answer, self.views)


def simulate(
    scenario: Scenario | str | Mapping[str, Any],
    *,
    tamper: Tamper | None = None,
    limit_memory: bool = True,
    keep: Collection[int] | None = None,
    clusters: Clusters | None = None,
) -> Run:
    """Play one scenario, which is a single point; see `simulator.run.simulate.simulate`, whose Run this one shows."""
    loaded = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    check_single_point(loaded)
    warn_of_size([loaded])
    run = core.simulate(loaded, tamper=tamper, limit_memory=limit_memory, keep=keep, clusters=clusters)
    return Run(**{field.name: getattr(run, field.name) for field in fields(run)})


def play(
    scenario: Scenario | str | Mapping[str, Any],
    axes: Mapping[str, Sequence[Any]] | None = None,
    *,
    jobs: int | None = None,
) -> Sweep:
    """Play all points of a scenario, and keep what there is to look at.

    Parameters
    ----------
    scenario : Scenario, or what load_scenario takes
    axes : mapping of dotted key to values, optional
        Further axes; they replace axes of the same key.
    jobs : int, optional
        Processes of this machine; all is played in this one if it is left out.

    Examples
    --------
    >>> import simulator
    >>> ring = simulator.play({"name": "ring", "cluster": {"topology": "star_100g", "world_size": 4},
    ...     "collective": {"operation": "all_reduce", "size": "4 KiB"},
    ...     "compare": {"collective.algorithm": ["ring", "tree"]}})
    >>> ring
    <Sweep ring of 2 points: tree is fastest, 41.31 us: ring: 46 % more time.>
    """
    loaded = scenario if isinstance(scenario, Scenario) else load_scenario(scenario)
    swept = with_axes(loaded, axes or {})
    warn_of(swept)
    numbered = list(enumerate(points(swept)))
    warn_of_size(point.scenario for _, point in numbered)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        keeper = ArtifactWriter(folder, single=False, view=True) if keeps_views(len(numbered)) else None
        outcomes = sorted(play_points(numbered, Backend(jobs), keeper), key=lambda outcome: outcome.index)
        files = {index: point_folder(folder, index) / NAME for index, _ in numbered}
        kept = {index: file.read_bytes() for index, file in files.items() if file.is_file()}
    return Sweep(swept, tuple(outcomes), kept)


def _plot(
    scenario: Scenario,
    outcomes: Sequence[PointOutcome],
    kind: str,
    point: Mapping[str, Any] | None = None,
    answered: Answer | None = None,
) -> Figure:
    from simulator.results.drawn import Undrawn
    from simulator.results.pictures import figures
    from simulator.results.plotted_points import plotted_points

    there = plot_names.names_of("collective" if scenario.training is None else "training")
    if kind not in there:
        raise ScenarioError(f"plot: got {kind!r}; {one_of(there, kind)}")
    asked = scenario.replaced(
        plots=PlotsSpec.model_construct(kinds=(kind,), points=None if point is None else [dict(point)])
    )
    chosen = plotted_points(asked, outcomes, None if answered is None else answered.spoken)
    findings = () if answered is None else answered.to_dict()["findings"]
    reason = "here"
    for _, drawn in figures(asked, outcomes, chosen, findings):
        if not isinstance(drawn, Undrawn):
            return drawn
        reason = f"here: {drawn.reason}"
    raise ScenarioError(f"plot: there is nothing to draw of {kind} {reason}")
