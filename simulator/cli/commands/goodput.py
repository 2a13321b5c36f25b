"""Tell what a training does in days with failures.

The step is simulated once; failures, saves and restarts of many runs of days are drawn with its time. A file of
days names a scenario, a length, what fails and how it saves, and may compare values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from simulator.cli.completion import names_of
from simulator.cli.number_options import as_days, as_duration, as_length, as_rate
from simulator.cli.option_names import told_as_options
from simulator.cli.options import AnswerOut, AsJson, NoPlugins, Settings
from simulator.cli.settings import as_overrides

if TYPE_CHECKING:
    from simulator.run.reliability.question import Goodput, GoodputComparison
    from simulator.scenario.days_file import DaysFile

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


def command(
    source: Annotated[
        str,
        typer.Argument(
            help="Scenario, or file of days: shipped name or path.", metavar="SCENARIO", autocompletion=names_of("days")
        ),
    ],
    days: Annotated[
        float | None, typer.Option(help="Length of the run: 30d, 6w.", parser=as_days, metavar="TIME")
    ] = None,
    tokens: Annotated[
        float | None, typer.Option(help="Work of the training: 15T.", parser=as_length, metavar="TOKENS")
    ] = None,
    failures: Annotated[
        float | None, typer.Option(help="Failures of 1,000 nodes in a day that stop the job. [default: 3.79]")
    ] = None,
    mtbf: Annotated[
        float | None,
        typer.Option(
            help="Mean time between failures of the whole job: 8h, 2d; instead of --failures.",
            parser=as_days,
            metavar="TIME",
        ),
    ] = None,
    save: Annotated[
        str | None,
        typer.Option(help="asynchronous: copy to the host and write behind; or synchronous. [default: asynchronous]"),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(help="Work between saves: 1 h. [default: the best]", parser=as_duration, metavar="TIME"),
    ] = None,
    storage: Annotated[
        float | None,
        typer.Option(
            help="Rate of the storage: 20 GB/s. [default: 160 MB/s for each GPU]", parser=as_rate, metavar="RATE"
        ),
    ] = None,
    detection: Annotated[
        float | None,
        typer.Option(help="Time until an error ends the job. [default: 30 s]", parser=as_duration, metavar="TIME"),
    ] = None,
    watchdog: Annotated[
        float | None,
        typer.Option(
            help="Time until a hanging collective ends the job. [default: 10 min]", parser=as_duration, metavar="TIME"
        ),
    ] = None,
    restart: Annotated[
        float | None,
        typer.Option(
            help="Time from there to the first step, without loading. [default: 5 min]",
            parser=as_duration,
            metavar="TIME",
        ),
    ] = None,
    spares: Annotated[int | None, typer.Option(help="Spare nodes. [default: as many as needed]")] = None,
    repair: Annotated[
        float | None,
        typer.Option(help="Time until a failed node is back: 3d, 12h. [default: 1d]", parser=as_days, metavar="TIME"),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the failures. [default: 0]")] = None,
    settings: Settings = None,
    out: AnswerOut = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.cli.answer_output import give
    from simulator.results.answer_directory import claimed
    from simulator.results.presentation import Presentation
    from simulator.run.reliability.goodput_pictures import pictures
    from simulator.scenario.days_file import load_days

    options = {
        "days": days, "tokens": tokens, "failures": None if failures is None else failures / 1000.0,
        "mtbf": None if mtbf is None else mtbf * 86400.0, "save": save, "interval": interval, "storage": storage,
        "detection": detection, "watchdog": watchdog, "restart": restart, "spares": spares,
        "repair": None if repair is None else repair * 86400.0, "seed": seed,
    }  # fmt: skip
    file = load_days(source, as_overrides(settings or ()))
    with claimed(out):
        with told_as_options(_OPTIONS):
            answered = _answer(file, {name: value for name, value in options.items() if value is not None})
        plots = pictures(answered) if out else ()
        answer = Presentation(
            file.question, answered.subject, answered.sentences, answered.to_dict(), answered.tables, plots
        )
        give(answer, answered.tables[:1], out, as_json=as_json)


def _answer(file: DaysFile, options: Mapping[str, Any]) -> Goodput | GoodputComparison:
    """Return the answer to a file of days, whose values options replace; an option also replaces a comparison."""
    from simulator.run.reliability.question import GoodputQuestion, compared, goodput

    # The keys of a pair exclude each other: the option counts.
    replaced = {name for pair in _PAIRS if not pair.isdisjoint(options) for name in pair}
    run = file.run.replaced(**{**dict.fromkeys(replaced), **options})
    if file.along is None or file.along in replaced.union(options):
        return goodput(GoodputQuestion(file.scenario, run))
    along = file.along
    questions = {
        written: GoodputQuestion(file.scenario, run.replaced(**{along: value})) for written, value in file.values
    }
    return compared(questions, along)
