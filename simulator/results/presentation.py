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
    """An answer for readers.

    Attributes
    ----------
    question : str
        First comment of the file; empty without a comment.
    subject : str
        Scenario and length of the run, or the jobs.
    sentences : sequence of str
        The answer, the most important sentence first.
    data : mapping
        The answer as plain data.
    tables : sequence of AnswerTable
        The most important table first.
    pictures : sequence of Picture
    timelines : TimelinePairs or None
        Pairs of timelines, which the page shows with a common cursor.
    """

    question: str
    subject: str
    sentences: Sequence[str]
    data: Mapping[str, Any]
    tables: Sequence[AnswerTable]
    pictures: Sequence[Picture] = ()
    timelines: TimelinePairs | None = None
