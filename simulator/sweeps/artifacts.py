"""Writes a point's files besides the outcome: spans, transfers, traces, trained parameters.

Files are written in the process that simulates the point, in a single folder. A Dask worker sends this folder's files
back.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.basics.atomic_files import write_atomically
from simulator.basics.csv_text import csv_text
from simulator.records.timeline import TransferLog
from simulator.report.numbers.closed_forms import closed_forms_note
from simulator.report.numbers.link_use import shares_over_time
from simulator.report.traces import kineto, memory_snapshot
from simulator.report.views import view as views
from simulator.run.scenario_cluster import build_cluster
from simulator.run.simulate import SimulatedRun

if TYPE_CHECKING:
    import numpy.typing as npt

TRANSFERS_KEPT: Final = 100_000
# Parts of the time in links.csv, and most rows. Spreading more transfers over the parts takes minutes.
_TIME_PARTS: Final = 100
_MOST_ROWS: Final = 200_000
_MOST_SPREAD: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class ArtifactWriter:
    """Writes a simulated point's files (spans, transfers, traces, parameters).

    Picklable, because workers call the writer.
    """

    folder: Path  # folder of the run
    single: bool  # whether the run is a single point: then files are written into the run's folder itself
    transfers: bool = False  # whether to write every transfer, for any number of transfers
    trace: bool = False  # whether to write traces of time and memory too
    ranks: tuple[int, ...] | None = None  # ranks whose operations are recorded; see `simulator.simulate`
    view: bool = False  # whether to write the point's view for the report page

    def __call__(self, index: int, run: SimulatedRun) -> None:
        target = self.folder if self.single else self.folder / "points" / f"{index:04d}"
        target.mkdir(parents=True, exist_ok=True)
        write_atomically(target / "spans.csv", spans_text(run))
        write_atomically(target / "transfers.csv", transfers_text(run, None if self.transfers else TRANSFERS_KEPT))
        write_atomically(target / "links.csv", links_text(run))
        if self.view:
            write_atomically(target / views.NAME, views.compressed(view_of_run(run)))
        if run.parameters is not None:
            write_atomically(target / "parameters.npz", npz_bytes(run.parameters))
        if self.trace:
            program = run.plan.program
            kineto.write(run.timeline, program.collectives(), target / "trace", kernels=program.kernels)
            for rank, events in list(run.timeline.allocations.items())[:1]:
                memory_snapshot.write(events, target / f"memory_rank{rank}.pickle", until=run.timeline.end)


def view_of_run(run: SimulatedRun) -> dict[str, Any]:
    """Return a simulated point's view: its timeline as plain data for the report page."""
    collectives = run.plan.program.collectives().values() if run.scenario.training is None else ()
    groups = {op.name: op.group for op in collectives} or None
    gpu, slow = build_cluster(run.scenario).gpus[0], tuple(run.scenario.cluster.stragglers)
    return views.view_of(run.timeline, float(gpu.hbm_bytes), groups, slow, run.plan.program)


def npz_bytes(parameters: Mapping[str, Array]) -> bytes:
    """Return the bytes of an .npz archive with trained parameters.

    Bfloat16, unknown in .npy, becomes float32 without loss.
    """
    file = io.BytesIO()
    plain = {name: array if array.dtype.kind == "f" else array.astype(np.float32) for name, array in parameters.items()}
    np.savez(file, **plain)  # type: ignore[arg-type]
    return file.getvalue()


def spans_text(run: SimulatedRun) -> str:
    """Return a run's spans (timed operations) in CSV format; seconds have enough digits to read back exactly.

    If ranks are omitted, the first line reports which ranks are in the file.
    """
    # Large runs record only some ranks (see `ranks`).
    rank_list, collective = sorted({span.rank for span in run.timeline.spans}), run.scenario.collective
    ranks = len(collective.group) if collective and collective.group else run.scenario.cluster.world_size
    note = ""
    if len(rank_list) < ranks:
        text = ", ".join(map(str, rank_list))
        note = f"# operations of ranks {text} of {ranks}; `simulator run --ranks` selects other ranks\n"
    columns = ["rank", "stream", "name", "kind", "start_s", "end_s", "bytes", "flop"]
    rows = (
        [s.rank, s.stream, s.name, s.kind, repr(s.start), repr(s.end), f"{s.nbytes:.0f}", f"{s.flops:.0f}"]
        for s in run.timeline.spans
    )
    return note + csv_text(chain([columns], rows))


def transfers_text(run: SimulatedRun, most: int | None) -> str:
    """Return a run's transfers in CSV format, in numerical order.

    Above `most` transfers, only a line with their number.
    """
    total = run.timeline.transfers
    if most is not None and total > most:
        return f"# {total} transfers omitted; `simulator run --transfers` keeps all transfers\n"
    lines = ["collective,number,src,dst,first_chunk,chunks,reduce,bytes,enter_s,end_s"]
    for log in run.timeline.logs:
        lines.extend(_transfer_lines(log))
    return "\n".join(lines) + "\n"


def links_text(run: SimulatedRun) -> str:
    """Return the use of links over time as CSV: a row for each link and part of the time.

    The share is the used part of the link's bandwidth, from 0 to 1. The number of parts falls from 100 to 1 with the
    number of links, so that the file has at most about 200,000 rows; with too many transfers, or none, the file has a
    single line that says so. The first line reports how many collectives fill no link because of closed forms, if any.
    """
    if run.timeline.transfers > _MOST_SPREAD:
        return f"# use of links is not computed for {run.timeline.transfers} transfers\n"
    bins = min(_TIME_PARTS, max(1, _MOST_ROWS // max(1, len(run.timeline.links))))
    names, edges, shares = shares_over_time(run.timeline, bins)
    note = closed_forms_note(run.report)
    lines = [*([f"# {note}"] if note else []), "link,start_s,end_s,share"]
    starts, ends = (list(map(repr, side.tolist())) for side in (edges[:-1], edges[1:]))
    for name, row in zip(map(_field, names), shares.tolist(), strict=True):
        lines += [f"{name},{a},{b},{share:.6g}" for a, b, share in zip(starts, ends, row, strict=True)]
    return "\n".join(lines) + "\n"


def _transfer_lines(log: TransferLog) -> Iterable[str]:
    """Return a CSV line per transfer, built column by column: rows took most of a small point's file time."""
    t, vertices = log.transfers, [_field(name) for name in log.vertices]
    columns = (
        map(str, range(len(log))),
        _column(t.src, vertices.__getitem__),
        _column(t.dst, vertices.__getitem__),
        _column(t.first, str),
        _column(t.count, str),
        _column(t.reduce, "01".__getitem__),
        _column(log.nbytes, "{:.0f}".format),
        _column(log.enter, repr),
        _column(log.end, repr),
    )
    return map(",".join, zip(repeat(_field(log.collective)), *columns, strict=False))


def _column(values: npt.NDArray[Any], written: Callable[[Any], str]) -> Iterator[str]:
    """Format the values with the function `written`, each distinct value only once."""
    # Columns such as src and reduce have few distinct values.
    plain = values.tolist()
    return map({value: written(value) for value in set(plain)}.__getitem__, plain)


def _field(word: str) -> str:
    """Return a word as a CSV field, in quotes if necessary."""
    return csv_text([[word]]).removesuffix("\n")
