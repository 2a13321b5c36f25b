"""List the names that a scenario may contain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from simulator.basics import registry
from simulator.basics.errors import UnknownNameError
from simulator.cli.completion import LISTS, lists
from simulator.cli.console import print_table, print_text
from simulator.cli.options import NoPlugins
from simulator.report.tables.layout import text_columns

if TYPE_CHECKING:
    from simulator.basics.catalog import Catalog


def command(
    kind: Annotated[
        str | None,
        typer.Argument(
            help=f"Kind of names: {', '.join(LISTS)}; the kinds if omitted.",
            autocompletion=lists,
        ),
    ] = None,
    no_plugins: NoPlugins = False,
) -> None:
    lists = _lists()
    if kind is None:
        print_text("\n".join(f"simulator list {name}" for name in lists))
        return
    if kind not in lists:
        raise UnknownNameError("list", kind, lists, listed_by="simulator list")
    lists[kind]()


# Functions and not tables: only the list asked for is imported and built.
def _lists() -> dict[str, Callable[[], None]]:
    return {
        "algorithms": _algorithms,
        "builders": _builders,
        "dtypes": _dtypes,
        "findings": _findings,
        "frameworks": _frameworks,
        "gpus": _gpus,
        "days": lambda: _questions("days"),
        "jobs": lambda: _questions("jobs"),
        "models": _models,
        "operations": _operations,
        "optimizers": _optimizers,
        "plots": _plots,
        "scenarios": lambda: _questions("scenario"),
        "schedules": _schedules,
        "strategies": _strategies,
        "topologies": _topologies,
    }


_INSTALLED: Final = "from an installed package"
_NO_HEADINGS: Final = ("", "")
_COLUMNS: Final = ("dtype", "bits", "exponent", "fraction", "largest", "smallest normal")


def _dtypes() -> None:
    from simulator.basics.dtypes import DTYPES

    rows = []
    for d in DTYPES.values():
        # tf32 exists only inside matmuls; in memory its values are float32.
        bits = "19 (stored as 32)" if d.compute_only else str(d.bits)
        largest = f"{d.largest:.6g}" if d.is_float else str(int(d.largest))
        # Integers have no subnormal range, and no exponent or fraction.
        smallest = f"{d.smallest_normal:.6g}" if d.is_float else "1"
        rows.append((d.name, bits, str(d.exponent or "-"), str(d.fraction or "-"), largest, smallest))
    _below(_COLUMNS, rows)


def _below(headings: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    print_table(text_columns(*headings), rows)


def _algorithms() -> None:
    from simulator.collectives.algorithm import ALGORITHMS

    summaries = ((name, ALGORITHMS.find(name).summary) for name in ALGORITHMS.names())
    rows = [(name, summary, ", ".join(ALGORITHMS.operations(name))) for name, summary in summaries]
    _parts(ALGORITHMS, ("algorithm", "summary", "operations"), rows)


def _parts(catalog: Catalog[Any], headings: Sequence[str], rows: Sequence[tuple[str, ...]]) -> None:
    """Print a table with a row for each shipped part, and a row with the name of each installed part."""
    blank = ("",) * (len(headings) - 2)
    # Installed parts have no further facts: importing them would run their code.
    _below(headings, [*rows, *((name, _INSTALLED, *blank) for name in catalog.installed())])


def _first_line(module: str) -> str:
    """Return the first sentence of a module's docstring, without its end."""
    return (import_module(module).__doc__ or "").strip().splitlines()[0].rstrip(".")


def _findings() -> None:
    from simulator.findings.found import FINDING_KINDS

    rows = [(name, _first_line(f"simulator.findings.kinds.{name}")) for name in FINDING_KINDS.names()]
    _parts(FINDING_KINDS, ("finding", "question"), rows)


def _frameworks() -> None:
    rows = [*registry.names("framework"), *registry.installed_files("framework")]
    for name in rows:
        typer.echo(name)


def _optimizers() -> None:
    from simulator.step.optimizers.optimizer import OPTIMIZERS

    optimizers = map(OPTIMIZERS.find, OPTIMIZERS.names())
    rows = [(rule.name, f"{rule.states:g}", rule.source) for rule in optimizers]
    _parts(OPTIMIZERS, ("optimizer", "states", "source"), rows)


def _schedules() -> None:
    from simulator.step.pipelines.schedule import SCHEDULES

    schedules = map(SCHEDULES.find, SCHEDULES.names())
    rows = [
        (order.name, order.placement.value, str(order.chunks), "yes" if order.splits_backward else "-")
        for order in schedules
    ]
    _parts(SCHEDULES, ("schedule", "placement", "chunks", "splits backward"), rows)


def _builders() -> None:
    """Print each topology builder with its options and their defaults; options without default must be given."""
    # The first line of a builder's docstring describes the machine.
    import inspect

    from simulator.cluster.builder import BUILDERS
    from simulator.cluster.topology_schema import options

    for name in BUILDERS.names():
        builder = BUILDERS.find(name)
        print_text(f"{name}: {(inspect.getdoc(builder.function) or '').splitlines()[0]}", indent="  ")
        rows = []
        for option, facts in options(name).items():
            default = builder.options.model_fields[option].get_default()
            # Required options, options without a default (None), and options with a default look different.
            needed = builder.options.model_fields[option].is_required()
            value = "required" if needed else "-" if default is None else str(default).lower()
            rows.append((option, value, facts["description"]))
        print_table(text_columns("", "", ""), rows, indent="  ")
    for name in BUILDERS.installed():
        print_text(f"{name}: {_INSTALLED}")


def _plots() -> None:
    from simulator.report.plots.catalog import PLOTS
    from simulator.scenario.plot_names import names, names_of

    kinds = ("collective", "training")
    # A plot may exist for both kinds of scenario.
    rows = [(name, ", ".join(kind for kind in kinds if name in names_of(kind))) for name in names()]
    _parts(PLOTS, ("plot", "of"), rows)


def _strategies() -> None:
    from simulator.step.spec import State
    from simulator.step.strategies.strategy import STRATEGIES

    rows = []
    for name in STRATEGIES.names():
        strategy = STRATEGIES.find(name)
        # In the order of `State`, not in the order of the set.
        shards = ", ".join(state.value for state in State if state in strategy.shards) or "-"
        gathered = strategy.gathering.value
        rows.append((name, shards, strategy.updater.value, gathered, ", ".join(sorted(strategy.options))))
    _parts(STRATEGIES, ("strategy", "shards", "update", "gather of updated parameters", "options"), rows)


def _operations() -> None:
    from simulator.collectives.algorithm import ALGORITHMS, OPERATIONS

    # Only OPERATIONS are listed, in their own order.
    able = {op: [name for name in ALGORITHMS.names() if op in ALGORITHMS.operations(name)] for op in OPERATIONS}
    _below(_NO_HEADINGS, [(op, ", ".join(names)) for op, names in able.items()])


def _gpus() -> None:
    from simulator.basics.units import format_bandwidth, format_bytes
    from simulator.cluster.gpu_file import load_gpu

    rows = []
    for name in registry.names("gpu"):
        gpu = load_gpu(name)
        # Older GPUs have no bfloat16.
        peak = gpu.peak_flops.get("bfloat16", gpu.peak_flops.get("float16", 0.0))
        scale_up = format_bandwidth(gpu.scale_up_bandwidth) if gpu.scale_up_bandwidth else "-"
        rows.append(
            (
                name,
                f"{peak / 1e12:.4g} TFLOP/s",
                format_bytes(gpu.hbm_bytes),
                format_bandwidth(gpu.hbm_bandwidth),
                scale_up,
            )
        )
    _below(("gpu", "bfloat16 or float16", "HBM", "HBM bandwidth", "scale-up, one direction"), rows)


def _models() -> None:
    from simulator.model.layer_list import LayerList
    from simulator.model.load import load_model
    from simulator.model.model import total

    rows = []
    for name in registry.names("model"):
        m = load_model(name)
        sizes = ("n/a",) * 3 if isinstance(m, LayerList) else (m.hidden_size, m.num_heads, m.vocab_size)
        rows.append((name, f"{total(m):,}", *map(str, (m.num_layers, *sizes))))
    _below(("model", "parameters", "layers", "hidden", "heads", "vocabulary"), rows)
    print_text("n/a: not a transformer, but a list of layers")


def _questions(kind: registry.Kind) -> None:
    """Print the names of scenarios or files of jobs, each with its question."""
    from simulator.basics import document

    # Only the first comment is read; the files are not validated here.
    names = registry.names(kind)
    _below(_NO_HEADINGS, [(name, document.load(registry.find(kind, name)).question) for name in names])


def _topologies() -> None:
    from simulator.cluster.build import facts

    rows = []
    for name in registry.names("topology"):
        f = facts(name)
        # 0 or None means that the topology grows with the number of ranks, or has no nodes of one size.
        most, node = str(f.max_ranks or "any"), str(f.node_size or "-")
        rows.append(
            (name, f.gpu or "-", most, node, "yes" if f.own_servers else "-", "yes" if f.in_switch_reduction else "-")
        )
    _below(("topology", "GPU", "most ranks", "node", "own servers", "reducing switch"), rows)
