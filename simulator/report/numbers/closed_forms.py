"""Which collectives of a training step fill no link, because closed forms replace their transfers?"""

from __future__ import annotations

from simulator.report.numbers.summary import CollectiveReport
from simulator.report.numbers.training_summary import TrainingReport


def closed_forms_note(report: TrainingReport | CollectiveReport) -> str:
    """Return a sentence with the number of collectives that fill no link, and the key to simulate their transfers; ""
    if every transfer was simulated.
    """
    if isinstance(report, CollectiveReport) or not report.closed_form_collectives:
        return ""
    total = report.closed_form_collectives + report.played_collectives
    return (
        f"{report.closed_form_collectives:,} of {total:,} collectives are computed by closed forms and fill no link; "
        "training.collectives: played simulates their transfers"
    )
