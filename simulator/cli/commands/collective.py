"""Print the table of nccl-tests for a simulated machine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from simulator.basics import units
from simulator.basics.dtypes import find as find_dtype
from simulator.basics.errors import ScenarioError, TooLargeError, in_lines
from simulator.cli.completion import names_of
from simulator.cli.console import width
from simulator.cli.options import AsJson, NoPlugins, OtherGpu
from simulator.cli.warnings_output import print_warnings
from simulator.cluster.cluster import BORROWED
from simulator.records.collective_operation import COLLECTIVE_OPERATIONS, Holding
from simulator.records.measures import Report
from simulator.report.tables.nccl_table import NcclRow, write_table

if TYPE_CHECKING:
    from simulator.scenario.records import Scenario

_MOST_SIZES = 64
# A petabyte has 16 digits.
_MOST_DIGITS = 18


@dataclass(frozen=True, slots=True)
class ArraySizes:
    """Array sizes from begin to end, each `factor` times its predecessor; bare numbers are bytes, as in nccl-tests."""

    begin: str
    end: str
    factor: int

    def listed(self, itemsize: int) -> list[int]:
        """Return the array sizes [B], rounded down to whole elements of `itemsize` bytes."""
        first, last = _nbytes("--begin", self.begin), _nbytes("--end", self.end)
        # nccl-tests would print an empty table.
        if first > last:
            raise ScenarioError(
                f"--begin: got {self.begin}, which is larger than --end {self.end}; swap the two values"
            )
        sizes = [first]
        while sizes[-1] * self.factor <= last and sizes[-1] > 0 and len(sizes) < _MOST_SIZES:
            sizes.append(sizes[-1] * self.factor)
        # Small sizes may round to the same number of elements: keep each once.
        return list(dict.fromkeys(max(size // itemsize, 1) * itemsize for size in sizes))


def _nbytes(option: str, text: str) -> int:
    spaced = text.strip()
    try:
        bare = spaced.isdecimal() and len(spaced) <= _MOST_DIGITS
        return int(spaced) if bare else units.parse_bytes(_as_unit(spaced))
    except ValueError as error:
        raise ScenarioError(f"{option}: {error}") from error


def _as_unit(text: str) -> str:
    """Return a size written for nccl-tests with its unit: "1GiB" for "1G"."""
    return f"{text}iB" if text[-1:] in "KMGT" and text[:-1].isdecimal() else text


def command(
    operation: Annotated[str, typer.Argument(help="Operation: all_reduce, all_gather, ...", metavar="OPERATION")],
    algorithm: Annotated[str, typer.Option(help="Algorithm: ring, tree, ..., or auto.")] = "auto",
    topology: Annotated[
        str, typer.Option(help="Topology: name or path.", autocompletion=names_of("topology"))
    ] = "star_100g",
    world_size: Annotated[int, typer.Option(help="Number of ranks.")] = 8,
    begin: Annotated[str, typer.Option(help="Smallest size; a bare number is bytes.")] = "8",
    end: Annotated[str, typer.Option(help="Largest size.")] = "1GiB",
    factor: Annotated[int, typer.Option(min=2, help="Ratio of consecutive sizes.")] = 2,
    dtype: Annotated[str, typer.Option(help="Data type of the elements.")] = "float32",
    gpu: OtherGpu = None,
    payload: Annotated[bool, typer.Option("--payload", help="Carry real arrays, and count wrong elements.")] = False,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.run.checks import warnings_of
    from simulator.run.simulate import simulate_point
    from simulator.run.size_estimate import announced

    keys = {"operation": operation, "algorithm": algorithm, "payload": payload}
    cluster = {"topology": topology, "world_size": world_size} | ({"gpu": gpu} if gpu else {})
    nbytes_list = _sizes(ArraySizes(begin, end, factor), dtype, cluster, keys)
    warnings: dict[str, None] = {}
    points: list[dict[str, Any]] = []
    scenarios = [_loaded(_scenario(cluster, keys | {"size": f"{size} B", "dtype": dtype})) for size in nbytes_list]
    with _options_for_keys():
        print_warnings([_as_typed(announced(scenarios))])
    for size, scenario in zip(nbytes_list, scenarios, strict=True):
        with _options_for_keys():
            run = simulate_point(scenario)
        warnings |= dict.fromkeys(warnings_of(run.scenario))
        points.append(
            {"settings": {"collective.size": size}, "engine": run.timeline.engine, "report": run.report.to_dict()}
        )
    print_warnings(map(_as_typed, warnings))
    if as_json:
        typer.echo(json.dumps({"points": points}, indent=2))
        return
    reports = [point["report"] for point in points]
    # The scenario has the name of the operation, whichever spelling was typed.
    name = scenarios[0].collective.operation if scenarios[0].collective is not None else operation
    rows = [_row(name, size, dtype, report, world_size) for size, report in zip(nbytes_list, reports, strict=True)]
    head = f"simulated: {topology}, {world_size} ranks, {name}"
    comment = "\n".join(
        [head, *_algorithms(nbytes_list, reports), *_trust(topology, reports), *_idle_cards(scenarios, reports)]
    )
    typer.echo(write_table(rows, comment=comment, width=width()), nl=False)


def _algorithms(sizes: Sequence[int], reports: Sequence[Report]) -> Iterator[str]:
    """Yield a line for each range of array sizes [B] with the same algorithm, with the reason at the smallest size."""
    ranges: list[tuple[int, Report]] = []
    for size, report in zip(sizes, reports, strict=True):
        # `auto` may choose another algorithm for each size.
        if not ranges or ranges[-1][1]["algorithm"] != report["algorithm"]:
            ranges.append((size, report))
    for size, report in ranges:
        begin = f" from {units.format_size(size)} on" if size != sizes[0] else ""
        why = report["why"].replace("by formula:", f"by formula for {units.format_size(size)}:", 1)
        yield f"algorithm{begin}: {report['algorithm']}; {why}"


def _trust(topology: str, reports: Sequence[Report]) -> Iterator[str]:
    """Yield a line if no collective was measured on the topology, and one for each source on another machine."""
    from simulator.findings.caveats import is_modelled, is_unmeasured, sources, unmeasured_text

    if any(map(is_unmeasured, reports)):
        yield f"trust: {unmeasured_text(topology, modelled=any(map(is_modelled, reports)))}"
    # The reason of the chosen algorithm may contain the source already.
    borrowed = dict.fromkeys(
        source
        for report in reports
        for source in sources(report)
        if source.startswith(BORROWED) and source.partition(";")[0] not in report["why"]
    )
    for source in borrowed:
        yield f"trust: constants of collectives are {source}"


def _idle_cards(scenarios: Sequence[Scenario], reports: Sequence[Report]) -> Iterator[str]:
    """Yield a line for the largest array whose collective leaves network cards idle, if `auto` would be faster."""
    from simulator.findings.caveats import faster_by_auto
    from simulator.run.simulate import simulate_point

    for scenario, report in zip(reversed(scenarios), reversed(reports), strict=True):
        spec = scenario.collective
        if spec is None or spec.algorithm == "auto" or not report["idle_cards"]:
            continue
        auto = simulate_point(scenario.replaced(collective=spec.replaced(algorithm="auto", payload=False)))
        text = faster_by_auto(report, auto.report.to_dict())
        if text:
            yield f"trust: {text} ({units.format_size(spec.nbytes)})"
        return


def _scenario(cluster: dict[str, Any], collective: dict[str, Any]) -> dict[str, Any]:
    return {"name": "collective", "cluster": cluster, "collective": collective}


def _sizes(sizes: ArraySizes, dtype: str, cluster: dict[str, Any], keys: dict[str, Any]) -> list[int]:
    """Return the array sizes [B]; raise ScenarioError with every fault in sizes, dtype and other options."""
    from simulator.scenario.load import load_scenario

    faults, itemsize = [], 1
    try:
        itemsize = _itemsize(dtype)
    except ScenarioError as error:
        faults.append(str(error))
    try:
        listed = sizes.listed(itemsize)
    except ScenarioError as error:
        faults.append(str(error))
    if not faults:
        return listed
    # Load a scenario with any valid size: faults in the other options are reported together with these.
    try:
        load_scenario(_scenario(cluster, keys | {"size": "1 MiB"}))
    except ScenarioError as error:
        faults += _as_typed(str(error)).splitlines()
    raise ScenarioError(in_lines(faults))


# Errors from `scenario/` name keys. Users of this command typed these options instead.
_OPTIONS: Final = {
    "collective.operation": "OPERATION",
    "collective.algorithm": "--algorithm",
    "collective.size": "--begin, --end",
    "collective.payload": "--payload",
    "cluster.topology": "--topology",
    "cluster.world_size": "--world-size",
    "cluster.gpu": "--gpu",
}


@contextmanager
def _options_for_keys() -> Iterator[None]:
    """Replace scenario keys by command-line options in the errors raised inside the `with` block."""
    try:
        yield
    except (ScenarioError, TooLargeError) as error:
        error.args = (_as_typed(str(error)),)
        raise


@_options_for_keys()
def _loaded(data: dict[str, Any]) -> Scenario:
    from simulator.scenario.load import load_scenario

    return load_scenario(data)


def _as_typed(message: str) -> str:
    """Return error lines with command-line options in place of scenario keys."""
    message = message.replace("<dict>: ", "")
    for key, option in _OPTIONS.items():
        message = re.sub(rf"^{re.escape(key)}\b", option, message, flags=re.MULTILINE)
    # The option has no value, and the arrays grow with the largest size.
    message = message.replace("--payload: got true; ", "--payload: ")
    return message.replace("; write payload: auto", "; leave out --payload, or use a smaller --end")


def _itemsize(dtype: str) -> int:
    try:
        return find_dtype(dtype).itemsize
    except ScenarioError as error:
        raise ScenarioError(f"--{error}") from error


def _row(operation: str, size: int, dtype: str, report: Report, world_size: int) -> NcclRow:
    # nccl-tests counts elements per rank for these operations, and of the whole array for the rest.
    kind = COLLECTIVE_OPERATIONS[operation]
    parts = {kind.before, kind.after} & {Holding.PART, Holding.PAIRS}
    count = size // find_dtype(dtype).itemsize
    return NcclRow(
        size=size,
        count=count // world_size if parts else count,
        dtype=dtype,
        redop="sum" if kind.reduces else "none",
        root=0 if kind.rooted else -1,
        time=report["time_s"],
        algbw=report["algbw"],
        busbw=report["busbw"],
        wrong=report["wrong"],
    )
