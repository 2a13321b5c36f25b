"""How is a run's report.html put together: a single file with the answer on top, tables, and the data for pictures?

Equal runs give equal bytes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final

from simulator.findings.algorithm_terms import terms_text
from simulator.findings.answer import Answer
from simulator.findings.budget import amount_text
from simulator.findings.comparison import Comparison
from simulator.report.views import view as views
from simulator.results.page.document import asset, document
from simulator.results.page.html_text import html_text
from simulator.results.page.page_data import page_data
from simulator.results.page.page_text import files_beside, reproduction, trust
from simulator.results.page.point_table import example_filter, point_table
from simulator.results.small_table import SmallTable, small_tables
from simulator.scenario.resolve import to_yaml

FILE: Final = "report.html"
# Maximum total size for views, before text encoding [B]; the page itself takes about 80 kB.
_ALL_VIEWS: Final = 2_000_000
# Maximum letters in a row's name that stays on a single line.
_SHORT_NAME: Final = 30
# Maximum points with views of their own: nobody pages through more, and the run's folder would be large.
MOST_VIEWS: Final = 400


def keeps_views(points: int) -> bool:
    """Return True if a run has few enough points to store each point's timeline data for the page."""
    return points <= MOST_VIEWS


def point_folder(folder: Path, index: int, *, single: bool = False) -> Path:
    """Return the folder with the files of a run's point: points/NNNN, or the run's own folder for a single point.

    >>> point_folder(Path("run"), 3).as_posix(), point_folder(Path("run"), 0, single=True).as_posix()
    ('run/points/0003', 'run')
    """
    return folder if single else folder / "points" / f"{index:04d}"


def report_page(compared: Comparison, answer: Answer, content: Mapping[int, bytes], folder: Path | None = None) -> str:
    """Return a run's page (HTML).

    Parameters
    ----------
    content : mapping of int to bytes
        Views of points, in the form returned by `simulator.report.views.view.compressed`.
    folder : Path, optional
        Folder of the run, whose further files the page links.
    """
    scenario = compared.scenario
    return document(
        scenario.question or scenario.name,
        [
            _head(compared, answer),
            asset("panels.html"),
            _budgets(compared, answer),
            _table(compared),
            _facts("How far to trust the results", trust(compared, answer)),
            _facts("Reproduce this run", reproduction(scenario), _beside(compared, linked=folder is not None)),
            _file("Full scenario with defaults", to_yaml(scenario)),
        ],
        page_data(folder, compared, answer, _views(content)),
    )


def without_files(page: str) -> str:
    """Return a page's HTML without links to the run's other files; the file names remain.

    >>> without_files('<a href="trace/rank0.json">rank 0</a>')
    'rank 0'
    """
    # Neither pattern matches inside the page's data: `<` is escaped there, and quotes in a text follow a backslash.
    text = re.sub(r'<a href="[^"]*">([^<]*)</a>', r"\1", page)
    return re.sub(r'"files":\[(?:\[[^\]]*\],?)*\]', '"files":[]', text)


def kept_views(folder: Path, compared: Comparison) -> dict[int, bytes]:
    """Return {point index: gzipped view} from a run's folder: each point's timeline data for the page, if stored."""
    # A run with a single point stores its files in the run's folder itself.
    single = len(compared.rows) == 1
    files = {row.index: point_folder(folder, row.index, single=single) / views.NAME for row in compared.rows}
    return {index: file.read_bytes() for index, file in files.items() if file.is_file()}


def _views(content: Mapping[int, bytes]) -> dict[int, str]:
    """Return {point index: base64 text} of the points' views, each reduced until all fit into the page's limit."""
    each = _ALL_VIEWS if sum(map(len, content.values())) <= _ALL_VIEWS else _ALL_VIEWS // len(content)
    # If the total is too large, every view gets an equal share.
    small = {
        index: data if len(data) <= each else views.within(views.decompressed(data), each)
        for index, data in content.items()
    }
    return {index: base64.b64encode(data).decode() for index, data in small.items() if data is not None}


def _head(compared: Comparison, answer: Answer) -> str:
    scenario = compared.scenario
    # The only place where the page explains what a point is.
    explained = f"; {len(compared.rows)} points (a point is one combination of compared and swept values)"
    count = explained if len(compared.rows) > 1 else ""
    sentences = "".join(f'<p class="answer">{html_text(sentence)}</p>' for sentence in answer.sentences)
    why = f'<p class="why"><b>Why:</b> {html_text(answer.why)}</p>' if answer.why else ""
    trusted = _trust([html_text(caveat.text) for caveat in answer.caveats])
    if answer.algorithms:
        trusted += f'<p class="note"><b>Algorithms:</b> {html_text(terms_text(answer.algorithms))}.</p>'
    summaries = small_tables(compared, answer)
    tables = "".join(_small(table) for table in summaries)
    if any(table.best for table in summaries):
        rivals = next((f", {table.rivals}" for table in summaries if table.rivals), "")
        green = f"Green: best, or a tie with the best{rivals}; no cell is green if all tie."
        tables += f'<p class="note">{green} Outlined: the point shown below.</p>'
    return (
        f"<header><h1>{html_text(scenario.question or scenario.name)}</h1>"
        f'<p class="setting">{html_text(compared.setting_text)}{count}</p></header>'
        f'<div class="glance"><section>{sentences}{why}{trusted}<div class="scroll">{tables}</div></section>'
        '<section class="hidden needsjs"><div id="overview"></div></section></div>'
    )


def _trust(notes: Sequence[str]) -> str:
    """Return notes on trust, texts in HTML: one as a paragraph, several folded below the first."""
    if len(notes) < 2:
        return "".join(f'<p class="trust note"><b>Trust:</b> {note}.</p>' for note in notes)
    head = f"<b>Trust:</b> {notes[0]}; {len(notes) - 1} further note{'' if len(notes) == 2 else 's'}"
    further = "".join(f"<p><b>Trust:</b> {note}.</p>" for note in notes[1:])
    return f'<details class="trust note"><summary>{head}</summary>{further}</details>'


def _small(table: SmallTable) -> str:
    title = f"<caption>{html_text(table.title)}</caption>" if table.title else ""
    heads = "".join(f"<th>{html_text(column)}</th>" for column in table.columns)
    rows = "".join(
        f"<tr><td>{_cell(name) if len(name) <= _SHORT_NAME else html_text(name)}</td>" + "".join(
            f"<td{_attributes(point, best=(line, place) in table.best)}>{_cell(cell)}</td>"
            for place, (cell, point) in enumerate(zip(cells, points, strict=True))
        ) + "</tr>"
        for line, ((name, cells), points) in enumerate(zip(table.rows, table.points, strict=True))
    )  # fmt: skip
    return (
        f"<table>{title}<thead><tr><th>{html_text(table.corner)}</th>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _attributes(point: int | None, *, best: bool) -> str:
    """Return the HTML attributes of a table cell: the point that a click shows, and whether the value is best."""
    return (' class="best"' if best else "") + ("" if point is None else f' data-point="{point}"')


def _budgets(compared: Comparison, answer: Answer) -> str:
    """Return an HTML table with days, GPU hours, cost and energy of each fitting point; empty without a budget."""
    if not answer.budget:
        return ""
    # The columns for cost and energy are omitted if the price or the power is unknown.
    columns = (("days", "days"), ("GPU hours", "gpu_hours"), ("cost", "cost"), ("energy (kWh)", "energy_kwh"))
    present = [column for column in columns if answer.budget[0][column[1]] is not None]
    heads = "".join(f"<th>{name}</th>" for name, _ in present)
    rows = "".join(
        f"<tr><td>{html_text(compared.name(row['setting']))}</td>"
        + "".join(f'<td data-v="{row[key]!r}">{amount_text(row[key])}</td>' for _, key in present)
        + "</tr>"
        for row in answer.budget
    )
    caption = "Estimates from the step time, without failures, evaluation, checkpoints and start-up."
    table = f'<table class="sortable"><caption>{caption}</caption><thead><tr><th>setting</th>{heads}</tr></thead>'
    body = f"{table}<tbody>{rows}</tbody></table>"
    title = "<h2>Estimate for the whole training</h2>"
    return f'<section class="panel">{title}<div class="scroll tall">{body}</div></section>'


def _cell(text: str) -> str:
    """Return a text escaped for an HTML cell that breaks into lines only before an opening bracket."""
    return html_text(text.replace(" ", "\u00a0").replace("\u00a0(", " ("))


def _table(compared: Comparison) -> str:
    count = f"{len(compared.rows):,} point{'' if len(compared.rows) == 1 else 's'}"
    return (
        '<section class="panel"><h2>All points</h2><div class="controls hidden needsjs">'
        '<label>filter <input id="filter" type="search" size="34" '
        f'placeholder="{escape(example_filter(compared))}"></label>'
        f'<span class="note" id="filtered">{count}</span>'
        '<button class="plain" id="copy">Copy as CSV</button></div>'
        f'<div class="scroll tall">{point_table(compared)}</div></section>'
    )


def _file(title: str, text: str) -> str:
    """Return an HTML panel with a file's text, folded below its title."""
    folded = f"<details><summary>{html_text(title)}</summary><pre>{escape(text)}</pre></details>"
    return f'<section class="panel">{folded}</section>'


def _beside(compared: Comparison, *, linked: bool) -> str:
    """Return an HTML table row that lists the files beside the page, as links if `linked`."""
    files = ", ".join(
        f"{f'<a href={chr(34)}{path}{chr(34)}>{path}</a>' if linked else path} ({html_text(what)})"
        for path, what in files_beside(compared)
    )
    return f'<tr><td>files beside this page</td><td class="text">{files}</td></tr>'


def _facts(title: str, rows: Sequence[tuple[str, str]], more: str = "") -> str:
    body = (
        "".join(
            f'<tr><td>{html_text(name)}</td><td class="text">{html_text(text)}</td></tr>' for name, text in rows if text
        )
        + more
    )
    table = f'<div class="scroll"><table><tbody>{body}</tbody></table></div>'
    return f'<section class="panel"><h2>{html_text(title)}</h2>{table}</section>'
