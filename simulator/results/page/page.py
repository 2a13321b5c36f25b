"""How is a run's report.html put together: one file with the answer on top, tables, and all that pictures need?

Rule: no request leaves the page (its policy forbids all), and whatever a scenario says enters it as text: escaped in
HTML, and as JSON in which no tag can end. Equal runs give equal bytes.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import simulator
from simulator.findings.answer import Answer
from simulator.findings.comparison import Comparison
from simulator.report.views import view as views
from simulator.results.page.page_data import page_data
from simulator.results.page.page_text import reproduction, setting_rows, trust
from simulator.results.page.point_table import point_table
from simulator.results.small_table import SmallTable, small_tables

FILE: Final = "report.html"
# What all views together may take, as bytes before they are written as text [B]; the page itself takes some 80 kB.
_ALL_VIEWS: Final = 2_000_000
# More points than this have no views of their own: nobody pages through them, and the run's folder would be large.
MOST_VIEWS: Final = 400


def keeps_views(points: int) -> bool:
    """Whether a run of so many points keeps what a page draws of each."""
    return points <= MOST_VIEWS


def report_page(folder: Path, compared: Comparison, answer: Answer) -> str:
    """Write the page of a run.

    Parameters
    ----------
    folder : Path
        The run's, with the views of its points and its traces.
    compared : Comparison
    answer : Answer

    Returns
    -------
    str
        HTML.
    """
    data = page_data(folder, compared, answer, _views(folder, compared))
    scripts, style = _scripts(), _asset("page.css")
    policy = (
        f"default-src 'none'; script-src '{_hash(scripts)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    scenario = compared.scenario
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta name="generator" content="simulator {simulator.__version__}">',
        f"<title>{escape(scenario.question or scenario.name)}</title>",
        f"<style>{style}</style></head><body><main>",
        _head(compared, answer),
        _asset("panels.html"),
        _table(folder, compared, answer),
        _facts("How far to trust it", trust(compared, answer)),
        _facts("Setting", setting_rows(scenario)),
        _facts("How to play it again", reproduction(scenario)),
        '</main><div id="tip" role="tooltip"></div>',
        f'<script type="application/json" id="data">{_json(data)}</script>',
        f"<script>{scripts}</script></body></html>",
    ]
    return "\n".join(parts) + "\n"


def _views(folder: Path, compared: Comparison) -> dict[int, str]:
    """The views of the points that have one, each as small as all of them together have to be."""
    single = len(compared.rows) == 1
    paths = {
        row.index: (folder if single else folder / "points" / f"{row.index:04d}") / views.NAME for row in compared.rows
    }
    there = {index: path.read_bytes() for index, path in paths.items() if path.is_file()}
    each = _ALL_VIEWS // max(1, len(there))
    if sum(map(len, there.values())) <= _ALL_VIEWS:
        each = _ALL_VIEWS
    small = {
        index: data if len(data) <= each else views.within(views.decompressed(data), each)
        for index, data in there.items()
    }
    return {index: base64.b64encode(data).decode() for index, data in small.items() if data is not None}


def _asset(name: str) -> str:
    return (files("simulator.results.page") / "assets" / name).read_text(encoding="utf-8")


def _scripts() -> str:
    """The page's scripts, in the order of their names."""
    folder = files("simulator.results.page") / "assets"
    return "\n".join(_asset(name) for name in sorted(one.name for one in folder.iterdir()) if name.endswith(".js"))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(data: Mapping[str, Any]) -> str:
    """JSON that ends no tag and begins none."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _head(compared: Comparison, answer: Answer) -> str:
    from simulator.scenario.description import describe

    scenario = compared.scenario
    axes = [*scenario.compare, *scenario.sweep]
    count = f"; {len(compared.rows)} points" if len(compared.rows) > 1 else ""
    sentences = "".join(f'<p class="answer">{escape(sentence)}</p>' for sentence in answer.sentences)
    why = f'<p class="why"><b>Why:</b> {escape(answer.why)}</p>' if answer.why else ""
    tables = "".join(_small(table) for table in small_tables(compared, answer))
    return (
        f"<header><h1>{escape(scenario.question or scenario.name)}</h1>"
        f'<p class="setting">{escape(describe(scenario, axes).text)}{count}</p></header>'
        f'<div class="glance"><section>{sentences}{why}<div class="scroll">{tables}</div></section>'
        '<section class="hidden needsjs"><div id="overview"></div></section></div>'
    )


def _small(table: SmallTable) -> str:
    title = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    heads = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
    rows = "".join(
        f"<tr><td>{escape(name)}</td>" + "".join(
            f'<td data-point="{point}">{escape(cell)}</td>' if point is not None else f"<td>{escape(cell)}</td>"
            for cell, point in zip(cells, points, strict=True)
        ) + "</tr>"
        for (name, cells), points in zip(table.rows, table.points, strict=True)
    )  # fmt: skip
    return f"<table>{title}<thead><tr><th>{escape(table.corner)}</th>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _table(folder: Path, compared: Comparison, answer: Answer) -> str:
    return (
        '<section class="panel"><h2>All points</h2><div class="controls hidden needsjs">'
        '<label>filter <input id="filter" type="search" size="24"></label>'
        '<span class="note" id="filtered"></span></div>'
        f'<div class="scroll tall">{point_table(compared)}</div></section>'
    )


def _facts(title: str, rows: Sequence[tuple[str, str]]) -> str:
    body = "".join(
        f'<tr><td>{escape(name)}</td><td class="text">{escape(text)}</td></tr>' for name, text in rows if text
    )
    table = f'<div class="scroll"><table><tbody>{body}</tbody></table></div>'
    return f'<section class="panel"><h2>{escape(title)}</h2>{table}</section>'
