"""Which pages of the reference are written from the code: keys, commands, fields of reports, errors, parts?

    python -m tools.reference_pages

The pages are stored in docs/reference, so that they can be read without building the site.
`tests/test_reference_pages.py` compares the stored pages with the code.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from numpydoc.docscrape import NumpyDocString
from typer._click.core import Context

from simulator.basics import errors
from simulator.cli.commands import helps, load
from simulator.report.numbers.bottleneck import Bottleneck
from simulator.report.numbers.summary import CollectiveReport
from simulator.report.numbers.training_summary import TrainingReport
from tools.site import key_pages, layer_pages, part_pages

FOLDER: Final = Path(__file__).resolve().parents[1] / "docs" / "reference"
# A default in a help text is a column of the table.
_DEFAULT: Final = re.compile(r"\s*\[default: (?P<value>[^\]]+)\]")
_REQUIRED: Final = re.compile(r"\s*\[required\]")


def pages() -> dict[str, str]:
    """Return each page's file name and text."""
    made: dict[str, Callable[[], str]] = {
        "scenario_keys.md": key_pages.scenario_page,
        "topology_keys.md": key_pages.topology_page,
        "layers.md": layer_pages.layer_page,
        "parts.md": part_pages.part_page,
        "commands.md": commands_page,
        "report_fields.md": fields_page,
        "errors.md": errors_page,
    }
    return {name: page() for name, page in made.items()}


def commands_page() -> str:
    """Return the page about the command line."""
    commands = {name: load(name) for name in helps()}
    parts = [
        "# Commands",
        _filled(
            "This page lists every command with its arguments and options. It is for users of the command line. "
            "`simulator COMMAND --help` prints the same text. A command ends with exit code 0 if it succeeds, 1 if a "
            "run fails, 2 for mistakes in files, options and names, 70 for a defect of the simulator, and 130 if it is "
            "interrupted; [Errors](errors.md) explains the messages."
        ),
        "| command | purpose |\n|---|---|\n"
        + "\n".join(f"| [`{name}`](#{name}) | {_first(command.help)} |" for name, command in commands.items()),
        *(part for name, command in commands.items() for part in _command(name, command)),
    ]
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Any) -> Iterator[str]:
    context = Context(command, info_name=f"simulator {name}")
    yield f"## `{name}`"
    yield "\n\n".join(_filled(paragraph) for paragraph in command.help.split("\n\n"))
    usage = " ".join(str(command.get_usage(context)).removeprefix("Usage: ").split())
    yield f"    {usage}"
    rows = []
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is None:
            continue
        written, text = record
        found = _DEFAULT.search(text)
        default = f"`{found['value']}`" if found else "required" if _REQUIRED.search(text) else ""
        meaning = _DEFAULT.sub("", _REQUIRED.sub("", text)).strip()
        rows.append(f"| `{_cell(written)}` | {_cell(meaning)} | {default} |")
    yield "| argument or option | meaning | default |\n|---|---|---|\n" + "\n".join(rows)


def fields_page() -> str:
    """Return the page about the fields of reports and the columns of sweep tables."""
    parts = [
        "# Fields of reports",
        _filled(
            "This page lists every field of a report. It is for users who process results: `run.report.FIELD` in "
            "Python, the points in `report.json`, and the columns of `simulator.sweep` and `table.csv`. A table has a "
            "column for each varied key (`cluster.world_size`), the fields below, and then `engine` and `error`. A "
            "field with several values has a column for each value: `peak_memory_by_category.parameters`. Tables of "
            "training steps on several numbers of GPUs also have `speedup` (tokens/s relative to the fewest GPUs with "
            "otherwise equal settings) and `efficiency` (speedup over the ratio of GPUs)."
        ),
    ]
    for title, record in (
        ("Training step", TrainingReport),
        ("Collective", CollectiveReport),
        ("The bottleneck link", Bottleneck),
    ):
        rows = [
            f"| {', '.join(f'`{name}`' for name in entry.name.split(', '))} | {_cell(entry.type)} | "
            f"{_cell(' '.join(entry.desc))} |"
            for entry in NumpyDocString(textwrap.dedent(record.__doc__ or ""))["Attributes"]
        ]
        parts += [f"## {title}", "| field | type | meaning |\n|---|---|---|\n" + "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def errors_page() -> str:
    """Return the page about errors."""
    kinds = [errors.SimulatorError, *_below(errors.SimulatorError)]
    rows = [f"| `{kind.__name__}` | {kind.exit_code} | {_cell(_first(kind.__doc__))} |" for kind in kinds]
    parts = [
        "# Errors",
        _filled(
            "This page lists the kinds of errors, with the exit code of the command line. It is for users who handle "
            "errors in scripts. In Python, every error is a `simulator.errors.SimulatorError`."
        ),
        "| error | exit code | meaning |\n|---|---|---|\n" + "\n".join(rows),
        "## How to read a message",
        "    my_step.yaml:7:3: training.micro_batch: unknown key; did you mean 'micro_batch_size'? one of\n"
        "    activation_checkpointing, algorithm, ...",
        _filled(
            "A message names the file, the line and the column, then the key, the fault, the probable intention, and "
            "the allowed values. All mistakes of a file are listed at once, in the order of the file. `simulator check "
            "FILE` lists them without a simulation."
        ),
        "| message | meaning | remedy |\n|---|---|---|\n" + "\n".join(f"| {a} | {b} | {c} |" for a, b, c in _MESSAGES),
    ]
    return "\n\n".join(parts) + "\n"


# Frequent messages: beginning, meaning, remedy.
_MESSAGES: Final = (
    ("`unknown key`", "The mapping has no such key.", "[Scenario keys](scenario_keys.md) lists all keys."),
    ("`has no unit`", "A quantity is a number without a unit.", "Write `16 MiB`, `100 Gb/s`, `5 us`."),
    ("`got X; one of ...`", "The word is not in the list.", "`simulator list KIND` prints all names."),
    ("`changes nothing`", "The key has no effect with the other keys.", "Remove the key, or change the other key."),
    ("`must divide`", "Ranks cannot share the heads, layers or GPUs evenly.", "Use a number that the message lists."),
    (
        "`ran out of memory`",
        "A rank needs more memory than its GPU has.",
        "Follow the proposed change, or see [Does it fit?](../start/does_it_fit.md).",
    ),
    ("`no route from A to B`", "The topology does not connect two GPUs.", "Add the missing link to the graph."),
    (
        "`deadlock`",
        "Ranks wait for each other and no operation can start.",
        "The message lists the operation that each rank waits for.",
    ),
    (
        "`would take about ... and ... GiB`",
        "The run is too large for this machine.",
        "Use fewer ranks or micro-batches; the message names a size that is possible.",
    ),
)


def _below(kind: type[errors.SimulatorError]) -> Iterator[type[errors.SimulatorError]]:
    """Yield the subclasses of an error, each before its own subclasses."""
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
            yield from _below(each)


def _first(text: str | None) -> str:
    """Return the first sentence of a text."""
    return " ".join((text or "").strip().split("\n\n")[0].split())


def _cell(text: str) -> str:
    """Return a text for a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def _filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 120, break_on_hyphens=False, break_long_words=False)


def main() -> None:
    """Write the pages."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
