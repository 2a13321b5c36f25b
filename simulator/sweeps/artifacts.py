"""Writes the files that a point leaves besides its outcome: spans, transfers, traces, trained parameters.

Rule: they are written where the point is played, under one folder; a Dask worker sends that folder's files back.
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
from simulator.report.traces import kineto, memory_snapshot
from simulator.report.views import view as views
from simulator.run.scenario_cluster import build_cluster
from simulator.run.simulate import Run

if TYPE_CHECKING:
    import numpy.typing as npt

TRANSFERS_KEPT: Final = 100_000


@dataclass(frozen=True, slots=True)
class ArtifactWriter:
    """Writes the files of one point; picklable, so that workers can call it.

    Attributes
    ----------
    folder : Path
        Of the run.
    single : bool
        Whether the run is one point: then its files lie in the folder itself.
    transfers : bool
        Whether all transfers are kept, however many.
    trace : bool
        Whether traces of time and memory are written too.
    ranks : tuple of int or None
        Whose operations are kept; see `simulator.simulate`.
    view : bool
        Whether what a report page draws of the point is kept.
    """

    folder: Path
    single: bool
    transfers: bool = False
    trace: bool = False
    ranks: tuple[int, ...] | None = None
    view: bool = False

    def __call__(self, index: int, run: Run) -> None:
        target = self.folder if self.single else self.folder / "points" / f"{index:04d}"
        target.mkdir(parents=True, exist_ok=True)
        write_atomically(target / "spans.csv", spans_text(run))
        write_atomically(target / "transfers.csv", transfers_text(run, None if self.transfers else TRANSFERS_KEPT))
        if self.view:
            write_atomically(target / views.NAME, views.compressed(view_of_run(run)))
        if run.parameters is not None:
            write_atomically(target / "parameters.npz", npz_bytes(run.parameters))
        if self.trace:
            kineto.write(run.timeline, run.plan.program.collectives(), target / "trace")
            for rank, events in list(run.timeline.allocations.items())[:1]:
                memory_snapshot.write(events, target / f"memory_rank{rank}.pickle", until=run.timeline.end)


def view_of_run(run: Run) -> dict[str, Any]:
    """What a page draws of a played point."""
    collectives = run.plan.program.collectives().values() if run.scenario.training is None else ()
    groups = {op.name: op.group for op in collectives} or None
    return views.view_of(run.timeline, float(build_cluster(run.scenario).gpus[0].hbm_bytes), groups,
                         tuple(run.scenario.cluster.stragglers))  # fmt: skip


def npz_bytes(parameters: Mapping[str, Array]) -> bytes:
    """Parameters as an .npz archive; bfloat16, which .npy files cannot name, as float32, which holds it exactly."""
    file = io.BytesIO()
    plain = {name: own if own.dtype.kind == "f" else own.astype(np.float32) for name, own in parameters.items()}
    np.savez(file, **plain)  # type: ignore[arg-type]
    return file.getvalue()


def spans_text(run: Run) -> str:
    """Operations as CSV; times in seconds, written so that they read back exactly.

    Where ranks are left out a first line says so.
    """
    shown, collective = sorted({span.rank for span in run.timeline.spans}), run.scenario.collective
    ranks = len(collective.group) if collective and collective.group else run.scenario.cluster.world_size
    note = ""
    if len(shown) < ranks:
        kept = ", ".join(map(str, shown))
        note = f"# operations of ranks {kept} of {ranks}; `simulator run --ranks` keeps others\n"
    columns = ["rank", "stream", "name", "kind", "start_s", "end_s", "bytes", "flop"]
    rows = (
        [s.rank, s.stream, s.name, s.kind, repr(s.start), repr(s.end), f"{s.nbytes:.0f}", f"{s.flops:.0f}"]
        for s in run.timeline.spans
    )
    return note + csv_text(chain([columns], rows))


def transfers_text(run: Run, most: int | None) -> str:
    """Transfers as CSV, in the order of their numbers; where there are more than `most`, a line that says so."""
    total = run.timeline.transfers
    if most is not None and total > most:
        return f"# {total} transfers left out; `simulator run --transfers` keeps them\n"
    lines = ["collective,number,src,dst,first_chunk,chunks,reduce,bytes,enter_s,end_s"]
    for log in run.timeline.logs:
        lines.extend(_transfer_lines(log))
    return "\n".join(lines) + "\n"


def _transfer_lines(log: TransferLog) -> Iterable[str]:
    """A line a transfer, put together column by column: row by row took most of what a small point's files cost."""
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
    """Values as text; each distinct value is formatted once."""
    plain = values.tolist()
    return map({value: written(value) for value in set(plain)}.__getitem__, plain)


def _field(word: str) -> str:
    """A word as a field of CSV, in quotes where it needs them."""
    return csv_text([[word]]).removesuffix("\n")
