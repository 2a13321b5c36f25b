"""How is the page of a plan put together: best layouts, Pareto front, simulated settings, and omitted settings?

The data comes from `planner.plan_report`: page, table and JSON contain the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, Final

from simulator.basics.units import format_memory, format_time
from simulator.basics.work_unit import rate_name, work_unit
from simulator.findings import gpu_numbers
from simulator.findings.budget import amount_text
from simulator.report.plots import style
from simulator.report.tables.layout import filled_columns
from simulator.results.page.document import document
from simulator.results.page.html_text import html_text
from simulator.results.page.page_data import PART_COLOURS, exposed_kinds, part_order, step_parts

FILE: Final = "report.html"
# Possible axes of the picture over every simulated setting, in order; only choices with several values become axes.
_CHOSEN: Final = (
    "gpus", "tp", "pp", "cp", "ep", "dp", "schedule", "virtual_stages", "sharding", "shard_size", "micro_batch",
    "micro_batches", "checkpointing", "offload", "precision", "framework", "optimizer", "rank", "base",
)  # fmt: skip
_FRONT: Final = """<section class="panel hidden needsjs"><h2>Memory vs time</h2>
<div id="planfront"></div></section>"""
# Columns for the whole training: names in a budget, and headings.
_AMOUNTS: Final = {"days": "days", "gpu_hours": "GPU hours", "cost": "cost"}
_COORDINATES: Final = """<section class="panel hidden needsjs"><h2>All simulated settings</h2>
<div id="coordinates"></div></section>"""


def plan_page(plan: Mapping[str, Any], question: str, best_yaml: str) -> str:
    """Return a plan's page (HTML).

    Parameters
    ----------
    plan : mapping
        From `planner.plan_report.document`.
    question : str
        Title of the page.
    best_yaml : str
        Scenario of the best setting; empty if no setting fits.
    """
    count_text = f"{plan['considered']:,} settings considered, {plan['played']:,} simulated"
    answer = "".join(f'<p class="answer">{html_text(sentence)}</p>' for sentence in plan["sentences"])
    head = (
        f'<header><h1>{html_text(question)}</h1><p class="setting">{html_text(count_text)}</p></header>'
        f'<div class="glance"><section>{answer}</section>'
        '<section class="hidden needsjs"><div id="planbars"></div></section></div>'
    )
    parts = [
        head,
        _best(plan),
        _kinds(plan),
        _nearest(plan),
        f'<div class="two">{_FRONT}{_left_out(plan)}</div>',
        _COORDINATES,
        _sizes(plan.get("sizes", [])),
        _sensitivity(plan),
        _rows("Search space", [(name, _choice(plan, name)) for name in plan["choices"]]),
        _rows("How far to trust the results", _trust(plan)),
        _file("best.yaml: the best setting as a scenario for simulator run", best_yaml) if best_yaml else "",
    ]
    return document(
        question,
        parts,
        {"plan": _data(plan), "colours": PART_COLOURS, "partOrder": _order(plan), "palette": list(style.PALETTE)},
    )


def _data(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the data for the plan page's scripts, as plain data: best settings, simulated settings, axes."""
    numbers = {row["number"] for row in plan["best"]}
    front = {row["number"] for row in plan["front"]}
    rows = plan["all_played"]
    axes = [name for name in _CHOSEN if len({str(row[name]) for row in rows}) > 1]
    several = "gpus" in axes
    # A common stacking order for every bar.
    kinds = exposed_kinds([row["report"] for row in plan["best"]])
    return {
        "best": [
            {"number": row["number"], "label": row["text"], "parts": step_parts(row["report"], kinds),
             "note": "" if place == 0 else f"+{100 * row['against_best']['whole_s'] / _step(plan):.1f} %"}
            for place, row in enumerate(plan["best"])
        ],
        "axes": axes,
        "played": [
            {"number": row["number"], "gpus": row["gpus"], "time": row["step_time_s"],
             "label": f"{row['gpus']:,} GPUs: {row['setting']}" if several else row["setting"],
             "memory": row["peak_memory_bytes"], "fits": row["fits"], "best": row["number"] in numbers,
             "front": row["number"] in front, "at": [_word(row[name]) for name in axes]}
            for row in rows
        ],
    }  # fmt: skip


def _order(plan: Mapping[str, Any]) -> list[str]:
    return part_order(exposed_kinds([row["report"] for row in plan["best"]]))


def _step(plan: Mapping[str, Any]) -> float:
    return float(plan["best"][0]["report"]["step_time_s"])


def _word(value: Any) -> Any:
    """Return a setting's value on an axis of the plan page; "all" in place of None."""
    return "all" if value is None else value


def _best(plan: Mapping[str, Any]) -> str:
    if not plan["best"]:
        return ""
    # Without a price, the cost is unknown for every setting.
    budget = plan["best"][0]["budget"] or {}
    amounts = [name for name in _AMOUNTS if budget.get(name) is not None]
    rate = rate_name(work_unit(row["report"] for row in plan["best"]))
    heads = [
        "setting",
        "step",
        "uncertainty (80&nbsp;%)",
        f"{rate}/GPU",
        "MFU",
        "memory",
        "exposed",
        "idle time",
        "lower bound / time",
    ]
    heads += [_AMOUNTS[name] for name in amounts]
    rows = "".join(_best_row(row, amounts) for row in plan["best"])
    head = "".join(f"<th>{heading}</th>" for heading in heads) + '<th class="text">difference from the best</th>'
    missing = f"<caption>{html_text(plan['not_listed'])}</caption>" if plan["not_listed"] else ""
    table = f"{missing}<thead><tr>{head}</tr></thead><tbody>{rows}"
    return (
        '<section class="panel"><h2>Best settings</h2><div class="scroll tall"><table class="sortable" id="best">'
        f"{table}</tbody></table></div></section>"
    )


def _kinds(plan: Mapping[str, Any]) -> str:
    """Return an HTML panel with the fastest setting of each kind of layout; empty with a single kind."""
    rows = plan.get("kinds", [])
    if len(rows) < 2 or not plan["best"]:
        return ""
    fastest = _step(plan)
    cells = "".join(
        f'<tr><td>{html_text(row["kind"])}</td><td data-v="{row["step_time_s"]!r}">'
        f"{_unbroken(('at least ' if row['is_lower_bound'] else '') + format_time(row['step_time_s']))}</td>"
        f"<td>+{100 * max(0.0, row['step_time_s'] / fastest - 1):.1f}&nbsp;%</td>"
        f'<td class="text">{html_text(row["setting"])}</td></tr>'
        for row in rows
    )
    head = '<tr><th>kind</th><th>step</th><th>vs the best</th><th class="text">fastest setting</th></tr>'
    note = "At least: a lower bound of a setting that was not simulated, because it cannot be among the best."
    return (
        '<section class="panel"><h2>Fastest setting of each kind of layout</h2><div class="scroll">'
        f'<table class="sortable" id="kinds"><caption>{note}</caption><thead>{head}</thead>'
        f"<tbody>{cells}</tbody></table></div></section>"
    )


def _nearest(plan: Mapping[str, Any]) -> str:
    """Return an HTML panel with the setting nearest to fitting in memory, and changes after which a setting fits."""
    # No setting exists at all, for example because the number of GPUs has no suitable divisors.
    if "possible" in plan:
        title = "No setting exists for these numbers of GPUs and sequences"
        return _rows(title, [("possible", option) for option in plan["possible"]] or [("possible", "none nearby")])
    nearest = plan.get("nearest")
    if nearest is None:
        return ""
    needs, has = format_memory(nearest["needs_bytes"]), format_memory(nearest["capacity_bytes"])
    rows = [("as requested", f"{needs} of {has}", nearest["setting"])]
    rows += [(way["change"], format_memory(way["needs_bytes"]), way["setting"]) for way in plan["ways"]]
    title = (
        "Closest setting, and changes that would fit" if plan["ways"] else "Closest setting; no tried change would fit"
    )
    return _table(title, ("change", "needs", "setting"), rows)


def _best_row(row: Mapping[str, Any], amounts: Sequence[str]) -> str:
    report, step = row["report"], row["report"]["step_time_s"]
    low, high = (report["intervals"].get(f"step_time_s_80_{end}") for end in ("low", "high"))
    within = "" if low is None else f"{format_time(low)} to {format_time(high)}"
    cells: list[tuple[str, Any]] = [
        (format_time(step), step),
        (within, low),
        (f"{report['tokens_per_s_per_gpu']:,.0f}", report["tokens_per_s_per_gpu"]),
        (f"{100 * report['mfu']:.1f} %", report["mfu"]),
        (format_memory(report["peak_memory_bytes"]), report["peak_memory_bytes"]),
        (row["exposed"], report["exposed_comm_time_s"]),
        (f"{100 * report['bubble_time_s'] / step:.1f} %", report["bubble_time_s"]),
        (f"{100 * row['bound_s'] / step:.1f} %", row["bound_s"]),
    ]
    cells += [(amount_text(row["budget"][name]), row["budget"][name]) for name in amounts]
    body = "".join(f'<td data-v="{value!r}">{_unbroken(text)}</td>' for text, value in cells)
    why = f'<td class="text">{html_text(row["against_best"]["text"])}</td>'
    return f'<tr data-number="{row["number"]}"><td class="text">{html_text(row["text"])}</td>{body}{why}</tr>'


def _unbroken(text: str) -> str:
    """Return an HTML text whose numbers stay beside their units; an interval may break before "to"."""
    return html_text(text).replace(" ", "&nbsp;").replace("&nbsp;to&nbsp;", " to&nbsp;")


def _sizes(tried: Sequence[Mapping[str, Any]]) -> str:
    """Return an HTML panel that compares numbers of GPUs, from the tried numbers' results; empty without any."""
    return _table(gpu_numbers.sentence(tried), *filled_columns(*gpu_numbers.table(tried))) if tried else ""


def _sensitivity(plan: Mapping[str, Any]) -> str:
    """Return an HTML panel with the effect of different machines on the plan's step times; empty if not requested."""
    if not plan.get("sensitivity"):
        return ""
    heads = (
        "change of the machine",
        "step of the best setting",
        "step of the fastest setting",
        "time saved",
        "fastest setting",
    )
    rows = [
        (row["change"], format_time(row["same_setting_step_time_s"]), format_time(row["step_time_s"]),
         f"{100 * row['faster_by']:.1f} %", row["setting"])
        for row in plan["sensitivity"]
    ]  # fmt: skip
    title = f"Effect of another machine on the best setting ({format_time(_step(plan))} per step)"
    return _table(title, heads, rows)


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML panel with a title and a table; the last cell of each row is text, the others are numbers."""
    body = "".join(
        "<tr>"
        + "".join(f"<td>{html_text(cell)}</td>" for cell in cells)
        + f'<td class="text">{html_text(last)}</td></tr>'
        for *cells, last in rows
    )
    *numbers, text = heads
    head = "".join(f"<th>{heading}</th>" for heading in numbers) + f'<th class="text">{text}</th>'
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<section class="panel"><h2>{html_text(title)}</h2><div class="scroll">{table}</div></section>'


def _left_out(plan: Mapping[str, Any]) -> str:
    """Return an HTML panel with the numbers of settings not simulated, by reason; empty without such settings."""
    rows = [(f"{count:,}", text) for text, count in plan["reasons"].items()]
    return _rows("Settings not simulated, by reason", rows) if rows else ""


def _choice(plan: Mapping[str, Any], name: str) -> str:
    nothing = "all ranks" if name == "shard_size" else "the default"
    values = ", ".join(nothing if value is None else str(value) for value in plan["choices"][name])
    why = plan["why"].get(name)
    return f"{values} ({why})" if why else values


def _trust(plan: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    yield "simulation", "as in simulator run: overlap, contention and memory follow from events"
    # A stopped search has proved no setting slower.
    pruned = ", lower bounds above the slowest of the best settings" if plan["ended"] else ""
    yield "excluded", f"impossible settings, settings that do not fit{pruned}"
    if not plan["ended"]:
        yield "not ended", "the search was interrupted: a setting not examined yet may be faster"
    for text in plan.get("outside_of_measured", []):
        yield "outside the validated range", text
    if plan["best"]:
        if not plan.get("outside_of_measured"):
            yield (
                "measured runs",
                "runs with every option of the best setting were measured; the uncertainty is their error",
            )
        # The bound divided by the simulated step time, over all simulated settings.
        ratios = sorted(row["bound_s"] / row["step_time_s"] for row in plan["all_played"])
        yield "lower bound / time", f"median {100 * ratios[len(ratios) // 2]:.1f} % over all simulated settings"
        high = plan["best"][0]["report"]["intervals"].get("step_time_s_80_high")
        if high is not None:
            # Settings within the best setting's interval may be faster on a real machine.
            near = sum(row["report"]["step_time_s"] <= high for row in plan["best"][1:])
            yield (
                "uncertainty (80 %)",
                (
                    f"{near} of the other {len(plan['best']) - 1} settings are within the uncertainty of the best "
                    "setting, and may be faster on a real machine"
                ),
            )


def _rows(title: str, rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f'<tr><td>{html_text(name)}</td><td class="text">{html_text(text)}</td></tr>' for name, text in rows)
    table = f'<div class="scroll"><table><tbody>{body}</tbody></table></div>'
    return f'<section class="panel"><h2>{html_text(title)}</h2>{table}</section>'


def _file(title: str, text: str) -> str:
    folded = f"<details><summary>{html_text(title)}</summary><pre>{escape(text)}</pre></details>"
    return f'<section class="panel">{folded}</section>'
