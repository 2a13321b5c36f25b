"""`simulator goodput`: how much work does a training do in days with failures, and how often should it save?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from simulator.cli.answer_output import give
from simulator.cli.option_names import told_as_options
from simulator.reliability.pictures import pictures
from simulator.reliability.question import Comparison, Goodput, GoodputQuestion, compared, goodput
from simulator.results.answer_directory import claimed
from simulator.results.presentation import Presentation
from simulator.scenario.days_file import DaysFile, load_days

# Option for each field of a question.
_OPTIONS: Final = {
    name: f"--{name}"
    for name in (
        "days", "tokens", "failures", "mtbf", "interval", "storage", "detection", "watchdog", "restart", "spares",
        "repair",
    )
}  # fmt: skip

# Keys of which a question has one.
_PAIRS: Final = (frozenset({"days", "tokens"}), frozenset({"failures", "mtbf"}))


def show(
    source: str, overrides: Mapping[str, str], asked: Mapping[str, Any], out: Path | None, *, as_json: bool
) -> None:
    """Print what a training does in days with failures, and write it to `out` if given.

    `asked` maps the fields of a GoodputQuestion to values of options; None where an option is not given, and the file
    or the usual value counts.
    """
    file = load_days(source, overrides)
    with claimed(out):
        with told_as_options(_OPTIONS):
            found = _answer(file, {name: value for name, value in asked.items() if value is not None})
        drawn = pictures(found) if out else ()
        answer = Presentation(file.question, found.subject, found.sentences, found.to_dict(), found.tables, drawn)
        give(answer, found.tables[:1], out, as_json=as_json)


def _answer(file: DaysFile, options: Mapping[str, Any]) -> Goodput | Comparison:
    """Return the answer to a file of days, whose values options replace; an option also replaces a comparison."""
    given = _fields(file.given)
    # The keys of a pair exclude each other: the option counts.
    for pair in _PAIRS:
        if not pair.isdisjoint(options):
            given = {name: value for name, value in given.items() if name not in pair}
    given |= options
    replaced = set(options).union(*(pair for pair in _PAIRS if not pair.isdisjoint(options)))
    if file.along is None or file.along in replaced:
        return goodput(GoodputQuestion(file.scenario, **given))
    along = file.along
    questions = {
        written: GoodputQuestion(file.scenario, **(given | _fields({along: value}))) for written, value in file.values
    }
    return compared(questions, along)


def _fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a GoodputQuestion for keys of a file, which counts failures of 1,000 nodes."""
    return {name: value / 1000.0 if name == "failures" else value for name, value in given.items()}
