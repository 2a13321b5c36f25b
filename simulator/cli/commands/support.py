"""Print what was measured of each GPU and machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from simulator.basics import registry
from simulator.basics.errors import UnknownNameError
from simulator.cli.completion import names_of
from simulator.cli.console import print_table, print_text
from simulator.cli.options import AsJson, NoPlugins
from simulator.report.tables.layout import text_columns

# Kernels by column: dtype, and further arguments of `matmul_grade`.
_MATMULS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "bf16": ("bfloat16", {}),
    "tf32": ("tf32", {}),
    "fp8": ("float8_e4m3fn", {}),
    "fp8 blocks": ("float8_e4m3fn", {"blocks": True}),
    "nvfp4": ("float4_e2m1fn", {}),
    "experts": ("bfloat16", {"kind": "grouped"}),
}
_WORDS: Final = {"measured": "measured", "other_gpu": "other GPU", "data_sheet": "data sheet", "assumed": "assumed"}
_NO_RATE: Final = "-"
# Ranks of the machines whose constants are shown.
_RANKS: Final = 16
# Operations that the library's model distinguishes.
_MODELLED: Final = ("all_gather", "all_reduce", "all_to_all", "reduce_scatter")
_EXPLAINED: Final = (
    "measured: fitted to kernels, or collectives, measured on it; other GPU, other machine: to those of the nearest "
    "one; data sheet: a rating; assumed: a published or recalled figure; -: no such units"
)


def command(
    gpu: Annotated[
        str | None,
        typer.Argument(help="GPU to show; every GPU and machine if omitted.", autocompletion=names_of("gpu")),
    ] = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    names = registry.names("gpu")
    if gpu is not None and gpu not in names:
        raise UnknownNameError("gpu", gpu, names, listed_by="simulator list gpus")
    kernels = {name: _kernels(name) for name in ([gpu] if gpu else names)}
    machines = {} if gpu else {name: _collectives(name) for name in registry.names("topology")}
    machines = {name: grades for name, grades in machines.items() if grades}
    if as_json:
        typer.echo(json.dumps({"kernels": kernels, "collectives": machines}, indent=2))
        return
    _table("GPU", kernels, _WORDS)
    if machines:
        print_text("")
        _table("machine", machines, {**_WORDS, "other_gpu": "other machine"})
    print_text(f"\n{_EXPLAINED}")


def _kernels(name: str) -> dict[str, str]:
    """Return the grade of each kind of kernel on a GPU; "-" without a rate for its dtype."""
    from simulator.cluster.gpu_file import load_gpu
    from simulator.report.numbers.evidence import grade_of, matmul_grade, worst
    from simulator.step.kernels.kernel_model import kernel_model
    from simulator.step.kernels.kernel_time import attention_family, default_attention

    gpu = load_gpu(name)
    model = kernel_model(gpu)
    grades: dict[str, str] = {
        column: matmul_grade(model, dtype, **kind) if dtype in gpu.peak_flops else _NO_RATE
        for column, (dtype, kind) in _MATMULS.items()
    }
    generation = default_attention(gpu)
    families = [attention_family(model, generation, "bfloat16", backward=backward) for backward in (False, True)]
    grades["attention"] = worst(grade_of(model, family) for family in families)
    grades["HBM"] = model.constants["hbm_efficiency"].grade
    grades["norms"] = model.constants["elementwise"].grade if "elementwise" in model.constants else grades["HBM"]
    return grades


def _collectives(name: str) -> dict[str, str]:
    """Return the grade of each operation with constants on a machine; empty for a machine without a file of them."""
    from simulator.cluster.build import build, facts

    cluster = build(name, min(facts(name).max_ranks or _RANKS, _RANKS))
    constants = {**cluster.collectives, **cluster.in_node}
    if not constants and cluster.library is not None:
        # Shares and start-ups of other machines' links.
        return dict.fromkeys(_MODELLED, "other_gpu")
    return {operation: "other_gpu" if own.borrowed else "measured" for operation, own in sorted(constants.items())}


def _table(title: str, rows: Mapping[str, Mapping[str, str]], words: Mapping[str, str]) -> None:
    columns = list(dict.fromkeys(column for grades in rows.values() for column in grades))
    lines = [
        (name, *(words.get(grades.get(column, "data_sheet"), _NO_RATE) for column in columns))
        for name, grades in rows.items()
    ]
    print_table(text_columns(title, *columns), lines)
