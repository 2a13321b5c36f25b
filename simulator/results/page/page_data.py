"""Which data do a page's scripts need: points by axes, their figures and parts, views, lines and marks?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from simulator.basics.units import format_memory
from simulator.basics.work_unit import rate_name, useful_rate
from simulator.findings.answer import Answer
from simulator.findings.comparison import Comparison, Row, amount
from simulator.findings.text import at_text
from simulator.records.measures import HOST_WAIT
from simulator.records.setting_text import label
from simulator.report.numbers.bottleneck import Bottleneck
from simulator.report.plots import style
from simulator.report.plots.training.memory import FARTHEST_LINE
from simulator.results.page.machine_drawings import machines
from simulator.results.page.point_table import figures
from simulator.scenario.description import describe_point

# Maximum groups to list per dimension; maximum ranks in a job for which groups are listed at all.
_MOST_GROUPS: Final = 6
_MOST_RANKS: Final = 100_000
# A step's parts in stacking order, and the operation kind for each part's colour.
_PARTS: Final = {
    "forward and backward": "forward", "recompute": "recompute", "optimizer": "optimizer",
    HOST_WAIT: "issue", "idle": "idle", "sending": "transfer", "receiving": "received", "latency and waiting": "idle",
}  # fmt: skip

PART_COLOURS: Final = (
    style.OPERATIONS | style.MEMORY | style.KERNELS | {name: style.OPERATIONS[kind] for name, kind in _PARTS.items()}
)


def page_data(folder: Path | None, compared: Comparison, answer: Answer, views: Mapping[int, str]) -> dict[str, Any]:
    """Return the data for the page's scripts, as plain data: axes, points, machines, views, crossovers."""
    axes = [*compared.scenario.compare, *compared.scenario.sweep]
    # Points refer to machines by index, because points often share a machine.
    drawings, of_point = machines(compared)
    overview = _overview(compared, answer, axes)
    per_token = compared.kind == "training" and _per_token(compared)
    kinds = exposed_kinds([row.report for row in compared.rows if row.report is not None])
    return {
        "name": compared.scenario.name,
        "axes": [_axis(compared, key) for key in axes],
        "points": [_point(folder, compared, row, axes, of_point.get(row.index), kinds) for row in compared.rows],
        "views": {str(index): view for index, view in views.items()},
        "spoken": list(answer.spoken),
        "overview": overview,
        "crossings": _crossings(compared, answer, axes),
        "front": _front(compared, answer),
        "frontKeys": ["time_per_token_s" if per_token else "step_time_s", "peak_memory_bytes"],
        "frontTime": f"time per {compared.useful_unit} (all GPUs)" if per_token else "step time",
        "parts": _parts_title(compared),
        "partOrder": part_order(kinds),
        "mostMemory": _most_memory(compared),
        "topologies": drawings,
        "colours": PART_COLOURS,
        "palette": list(style.PALETTE),
        "series": {},
    }


def _front(compared: Comparison, answer: Answer) -> list[int]:
    """Return the indices of the points on the Pareto front of speed and memory; empty if all are equal in either."""
    reports = [row.report for row in compared.rows if row.report is not None]
    # Otherwise a single point dominates, and there is no trade-off between time and memory.
    # Sums in another order may differ in the last digits.
    columns = ([f"{report.get(key) or 0:.12g}" for report in reports] for key in ("tokens_per_s", "peak_memory_bytes"))
    weighs = all(len(set(column)) > 1 for column in columns)
    return [row["point"] for row in answer.front] if weighs else []


def _most_memory(compared: Comparison) -> float:
    """Return the upper end [B] of the page's memory axis: the largest peak, or a GPU capacity close to this peak."""
    reports = [row.report for row in compared.rows if row.report is not None and "peak_memory_bytes" in row.report]
    peak = max((report["peak_memory_bytes"] for report in reports), default=0)
    # A capacity far above every peak would squeeze the curves; it is then left off the axis.
    near = [report["capacity_bytes"] for report in reports if report["capacity_bytes"] < FARTHEST_LINE * peak]
    return float(max([peak, *near]))


def _axis(compared: Comparison, key: str) -> dict[str, Any]:
    values = compared.scenario.compare.get(key) or compared.scenario.sweep[key]
    numbers = [amount(value) for value in values]
    return {
        "name": key.rpartition(".")[2].replace("_", " "),
        "values": [label(key, value) for value in values],
        # Axes are drawn to scale only if every value is a positive number (logarithmic axes).
        "numbers": numbers if all(number is not None and number > 0 for number in numbers) else None,
        "compared": key in compared.scenario.compare,
    }


def _overview(compared: Comparison, answer: Answer, axes: list[str]) -> dict[str, Any]:
    """Return the overview plot's figure and axis: the answer's numeric axis, else the axis with most values."""
    # Axes with many values first, then the scenario's order. Zero or negative values cannot be on a logarithmic axis.
    numeric = sorted(
        (key for key in compared.numeric_axes if min(compared.numbers(key)) > 0),
        key=lambda key: (-len(compared.numbers(key)), axes.index(key)),
    )
    # Sizes come before workers: most questions ask for the crossover along sizes.
    axis_keys = (finding.numbers.get("along") for finding in answer.findings[:1])
    keys = (*axis_keys, "collective.size", *numeric)
    first = next((key for key in keys if key in numeric), None)
    axis = axes.index(first) if first else None
    measures = [name for request in compared.scenario.answer[:1] for name in request.of[:1]]
    if compared.kind == "training" and measures == ["memory"]:
        return {"axis": axis, "key": "peak_memory_bytes", "unit": "B", "name": "peak memory"}
    if compared.kind == "training":
        return {"axis": axis, "key": "tokens_per_s", "unit": "number", "name": rate_name(compared.work_unit)}
    return {"axis": axis, "key": "time_s", "unit": "s", "name": "time"}


def _crossings(compared: Comparison, answer: Answer, axes: list[str]) -> list[dict[str, Any]]:
    """Return crossovers with a known place as marks: axis, and fixed values on the other swept axes."""
    marks = []
    for finding in answer.findings:
        for place in finding.numbers.get("crossings", ()):
            if place["at"] is None:
                # The crossover is only known to be somewhere between two points: there is no place to mark.
                continue
            fixed = {
                str(axes.index(key)): list(compared.scenario.sweep[key]).index(value)
                for key, value in place["fixed"].items()
            }
            at = at_text(place["along"], place["at"], exact=place["exact"])
            text = f"{compared.name(place['after'])} best {'from' if place['exact'] else 'above'} {at}"
            marks.append({"axis": axes.index(place["along"]), "fixed": fixed, "at": place["at"], "text": text})
    return marks


def _point(
    folder: Path | None,
    compared: Comparison,
    row: Row,
    axes: list[str],
    machine: int | None,
    kinds: Sequence[str],
) -> dict[str, Any]:
    settings = {**row.setting, **row.condition}
    places = []
    for key in axes:
        values = list(compared.scenario.compare.get(key) or compared.scenario.sweep[key])
        places.append(values.index(settings[key]))
    report = row.report
    point: dict[str, Any] = {
        "at": places,
        "label": compared.name(settings),
        "title": describe_point(compared.scenario, {**row.setting, **row.condition}),
        "fits": row.fits,
        "figures": {},
        "topology": machine,
        "noview": "No timeline was stored for this point. Simulate the point alone with `simulator run` and --set.",
        "files": _files(folder, compared, row),
    }
    if report is None:
        return point | {"error": next(o.error for o in compared.outcomes if o.index == row.index)}
    point["because"] = report["because"]
    point["figures"] = {figure.key: figure.value(report) for figure in figures(compared)}
    point["parts"] = _parts(compared, report, kinds)
    if compared.kind == "training":
        point["groups"] = _groups(row)
        per_token = 1 / useful_rate(report)
        point["figures"]["time_per_token_s"] = per_token
        point["note"] = _note(row, rate_name(compared.work_unit))
        if report["learning"]:
            point["losses"] = list(report["learning"]["losses"])
        if not report["played_collectives"]:
            point["links"] = (
                "Closed forms replace the collectives of this point, and links carry no bytes; "
                "--set training.collectives=played simulates the collectives."
            )
    return point


def _groups(row: Row) -> list[tuple[str, str]]:
    """Return (dimension of parallelism, text) pairs with the rank groups in a point's training step."""
    point = row.point
    if point.training is None or point.cluster.world_size > _MOST_RANKS:
        return []
    # A purely data-parallel job has a single group of all ranks: nothing to list.
    # Imported late, because a collective has no parts of a step.
    from simulator.scenario.build_training import to_step

    cut = to_step(point.training, point.cluster.world_size, point.base).parallelism
    if cut.size == 1:
        return []
    grid = cut.grid(point.cluster.world_size)
    pairs = []
    for kind in ("tp", "cp", "pp", "dp"):
        groups = grid.groups(kind)
        if groups.shape[1] > 1:
            text = "; ".join(_ranks(group) for group in groups[:_MOST_GROUPS].tolist())
            more = f"; ... ({len(groups)} groups)" if len(groups) > _MOST_GROUPS else ""
            pairs.append((f"{kind} {groups.shape[1]}", f"{text}{more}"))
    return pairs


def _ranks(ranks: list[int]) -> str:
    """Format a group's ranks: '0, 8, 16, 24', '0, 1, ..., 15'."""
    return ", ".join(map(str, ranks)) if len(ranks) <= 8 else f"{ranks[0]}, {ranks[1]}, ..., {ranks[-1]}"


def _note(row: Row, rate: str) -> str:
    """Return a point's speed and memory as text; `rate` is the name of the speed: tokens/s or samples/s."""
    report = row.report or {}
    speed = f"{report['tokens_per_s']:,.0f} {rate}, {format_memory(report['peak_memory_bytes'])}"
    return speed if row.fits else f"{speed}, lacks {format_memory(report['shortfall_bytes'])}"


def _per_token(compared: Comparison) -> bool:
    """Return True if the points differ in tokens per step, so that only times per token are comparable."""
    tokens = [useful_rate(row.report) * row.report["step_time_s"] for row in compared.rows if row.report]
    # Tokens per step = tokens/s x step time, up to rounding; padding is none of them.
    return bool(tokens) and max(tokens) - min(tokens) > 1e-6 * max(tokens)


def _parts_title(compared: Comparison) -> str:
    if compared.kind != "training":
        return "Time of the busiest link"
    return (
        f"Time per {compared.useful_unit} (all GPUs), broken down" if _per_token(compared) else "Step time, broken down"
    )


def _parts(compared: Comparison, report: Mapping[str, Any], kinds: Sequence[str]) -> list[tuple[str, float]]:
    """Return (part, seconds) pairs that sum to a report's time: of a collective, a step, or a token."""
    if compared.kind != "training":
        parts = Bottleneck.of(report["bottleneck"]).parts if report["bottleneck"] else {}
        # The remainder after the bottleneck's parts is latency and waiting.
        return [*sorted(parts.items()), ("latency and waiting", report["time_s"] - sum(parts.values()))]
    scale = 1 / (useful_rate(report) * report["step_time_s"]) if _per_token(compared) else 1.0
    return [(name, scale * seconds) for name, seconds in step_parts(report, kinds)]


def exposed_kinds(reports: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the kinds of exposed communication, largest first: the stacking order in every bar of a page.

    >>> exposed_kinds([{"exposed_comm_time_by_kind": {"send": 1.0, "all_reduce": 2.0}}, {}])
    ['all_reduce', 'send']
    """
    most: dict[str, float] = {}
    for report in reports:
        for kind, seconds in report.get("exposed_comm_time_by_kind", {}).items():
            most[kind] = max(most.get(kind, 0.0), seconds)
    return sorted(most, key=lambda kind: (-most[kind], kind))


def part_order(kinds: Sequence[str]) -> list[str]:
    """Return a time's part names in drawing order, given the kinds of exposed communication.

    >>> part_order(["all_reduce"])[5:]
    ['all_reduce', 'waiting for the host', 'idle', 'latency and waiting']
    """
    first = ("forward and backward", "recompute", "optimizer", "receiving", "sending")
    return [*first, *kinds, HOST_WAIT, "idle", "latency and waiting"]


def step_parts(report: Mapping[str, Any], kinds: Sequence[str]) -> list[tuple[str, float]]:
    """Return (part, seconds) pairs of a training report in the order of drawing; the seconds sum to the step time.

    Parameters
    ----------
    report : mapping
        Report of the step.
    kinds : sequence of str
        Kinds of exposed communication, in the order common to all bars.
    """
    exposed = report["exposed_comm_time_by_kind"]
    # Compute time includes recomputation and the optimizer; both are separate parts.
    kernels = report["compute_time_s"] - report["recompute_time_s"] - report["optimizer_time_s"]
    parts = {
        "forward and backward": kernels,
        "recompute": report["recompute_time_s"],
        "optimizer": report["optimizer_time_s"],
        **{kind: exposed[kind] for kind in kinds if kind in exposed},
        **({HOST_WAIT: report["host_wait_time_s"]} if report.get("host_wait_time_s") else {}),
        "idle": report["bubble_time_s"],
    }
    return list(parts.items())


def _files(folder: Path | None, compared: Comparison, row: Row) -> list[tuple[str, str]]:
    """Return (name, relative path) pairs for a point's existing tables and trace, for use in further programs."""
    if folder is None:
        return []
    subfolder = Path() if len(compared.rows) == 1 else Path("points") / f"{row.index:04d}"
    # Links only to existing files: large runs and options decide which files are written.
    tables = [
        (name, (subfolder / name).as_posix())
        for name in ("spans.csv", "transfers.csv", "links.csv")
        if (folder / subfolder / name).is_file()
    ]
    traces = sorted((folder / subfolder / "trace").glob("rank*.json.gz"))[:1]
    return tables + [("trace for ui.perfetto.dev", (subfolder / "trace" / path.name).as_posix()) for path in traces]
