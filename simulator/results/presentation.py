"""An answer on days or on several jobs with everything that a reader may look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.report.plots.picture import Picture
from simulator.report.tables.answer_table import AnswerTable
from simulator.report.views.timeline_pairs import TimelinePairs


@dataclass(frozen=True, slots=True)
class Presentation:
    """An answer for readers."""

    question: str  # first comment of the file; empty without a comment
    subject: str  # scenario and length of the run, or the jobs
    sentences: Sequence[str]  # the answer, the most important sentence first
    data: Mapping[str, Any]  # the answer as plain data
    tables: Sequence[AnswerTable]  # the most important table first
    pictures: Sequence[Picture] = ()
    timelines: TimelinePairs | None = None  # pairs of timelines, which the page shows with a common cursor
