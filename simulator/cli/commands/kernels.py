"""Print each kernel's time, and what bounds it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import typer

from simulator.basics.units import format_memory
from simulator.basics.work_unit import micro_batch_text
from simulator.cli.console import print_table, print_text
from simulator.cli.kernel_options import KernelOptions
from simulator.cli.options import takes
from simulator.cluster.cluster import Gpu
from simulator.cluster.gpu_file import load_gpu
from simulator.model.kernel import Attention, Elementwise, Kernel, Matmul
from simulator.report.tables.layout import Column, text_columns

if TYPE_CHECKING:
    from simulator.step.kernel_table import KernelRow
    from simulator.step.spec import TrainingStep

_COLUMNS: Final = (
    *text_columns("part", "pass", "kernel", "shape"),
    *map(Column, ("us", "times", "of all", "TFLOP/s", "GB/s", "bound by")),
)
# Columns that identify a row: part and kernel.
_KEYS: Final = (0, 2)


@takes(KernelOptions)
def command(options: KernelOptions) -> None:
    """Print a line for each kernel."""
    from simulator.step.kernel_table import kernel_rows

    step, card = options.step(), load_gpu(options.gpu)
    with options.on_gpu():
        rows = kernel_rows(step, card)
    if options.as_json:
        typer.echo(json.dumps({"gpu": card.name, "kernels": [_document(row) for row in rows]}, indent=2))
        return
    _print(step, card, rows)


def _print(step: TrainingStep, gpu: Gpu, rows: Sequence[KernelRow]) -> None:
    total = sum(row.times * row.seconds for row in rows)
    # Share of the total time for each bound: arithmetic, HBM, launch.
    by_bound: dict[str, float] = {}
    for row in rows:
        by_bound[row.bound] = by_bound.get(row.bound, 0.0) + row.times * row.seconds
    longest = max(rows, key=lambda row: row.times * row.seconds)
    share = longest.times * longest.seconds / total
    micro_batch = micro_batch_text(step.model.work_unit, step.keys.micro_batch_size, step.keys.seq_len)
    print_text(
        f"{step.model.name} on {gpu.name}: {total * 1e3:.2f} ms of kernels per micro-batch of "
        f"{micro_batch}, forward and backward; {longest.kernel.name} takes the most time, "
        f"{share:.0%}"
    )
    # "merged" kernels take no time, therefore they have no share.
    shares = [
        f"{seconds / total:.0%} {bound}" for bound, seconds in sorted(by_bound.items(), key=lambda share: -share[1])
    ]
    print_text(f"bound by: {', '.join(share for share in shares if 'merged' not in share)}\n")
    print_table(_COLUMNS, [_cells(row, total) for row in rows], keys=_KEYS)
    print_text(
        "\nBytes: each operand and each result counts once, long rows of the loss for each pass. Bound by: the "
        "resource that costs the most time if halved (HBM bandwidth, or SMs, for arithmetic or for elements handled "
        "one by one), or the kernel's launch and end. Not included: the optimizer, copies around collectives, "
        "recomputed kernels."
    )
    factors = _factors(step, [row.kernel for row in rows])
    if factors:
        print_text(factors)


def _factors(step: TrainingStep, kernels: Sequence[Kernel]) -> str:
    """Return sentences on the framework's factors for the HBM-bound kernels of a table; "" without factors.

    Equal bytes take unequal times, which looks like an error unless explained.
    """
    if not step.keys.compile:
        return ""
    share = step.framework.kernels.compiled
    if not share:
        return "The compiler merges kernels: merged kernels move no bytes and take no time."
    return (
        f"The compiler merges kernels: merged kernels move {share:g} times the bytes in the column shape, and GB/s "
        f"counts the moved bytes. The factor is a constant of framework {step.framework.name}."
    )


def _cells(row: KernelRow, total: float) -> list[str]:
    # Merged kernels take no time; their rates print as 0.
    seconds = row.seconds or float("inf")
    rate = f"{row.kernel.flops / seconds / 1e12:.0f}" if row.kernel.flops else ""
    return [
        row.part,
        "backward" if row.backward else "forward",
        row.kernel.name,
        _shape(row.kernel),
        f"{row.seconds * 1e6:.1f}",
        str(row.times),
        f"{row.times * row.seconds / total:.1%}",
        rate,
        f"{row.nbytes / seconds / 1e9:.0f}",
        row.bound,
    ]


def _shape(kernel: Kernel) -> str:
    match kernel:
        case Matmul(m=m, n=n, k=k, batch=batch):
            return f"{m} x {n} x {k}" + (f", {batch} times" if batch > 1 else "")
        case Attention(batch=batch, heads=heads, seq_len=seq_len, head_dim=head_dim):
            return f"{batch} x {heads} heads x {seq_len} x {head_dim}"
        case Elementwise(read=read, written=written):
            return format_memory(read + written)


def _document(row: KernelRow) -> dict[str, Any]:
    return {
        "part": row.part,
        "times": row.times,
        "pass": "backward" if row.backward else "forward",
        "kernel": row.kernel.name,
        "shape": _shape(row.kernel),
        "seconds": row.seconds,
        "flops": row.kernel.flops,
        "bytes": row.nbytes,
        "bound": row.bound,
    }
