"""How is docs/validation_cut.md, about partitioned models, written? training_page.py calls `write_cut`.

Every row of training_cut.csv is simulated, and every number in a table is computed from the rows. Only words (in
cut_text.py) are written by hand. Rows that were not timed are shown separately.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from simulator.calibration.training_runs import validation_tables
from simulator.calibration.training_runs.playing import PlayedRow
from simulator.calibration.training_runs.summary import by, by_source
from simulator.model.parameters import total
from tools.validation.cut_text import BEFORE, COMPOSED, NARROW, PARTS, WHY, WORST

# Upper limits for the number of GPUs, and for parameters [10^9], of every group except the last.
_GPUS: Final = (8, 64, 512)
_PARAMETERS: Final = (2, 20, 100)


def write_cut(folder: Path, outcomes: Sequence[PlayedRow]) -> None:
    """Write validation_cut.md into a docs folder, from simulated rows."""
    timed = [outcome for outcome in outcomes if outcome.row.timed]
    composed = [outcome for outcome in outcomes if not outcome.row.timed]
    nanotron = [outcome for outcome in timed if outcome.row.table == "nanotron_cut"]
    # Composed rows appear in the first table and in a table of their own.
    parts = [BEFORE, validation_tables.sources(by_source(outcomes)).markdown(), PARTS]
    # Sorted, because a table's lines appear in order of first occurrence.
    smallest = sorted(timed, key=lambda outcome: total(outcome.row.transformer))
    fewest = sorted(timed, key=lambda outcome: outcome.row.gpus)
    parts += [
        _table(timed, "GPU", gpu_of),
        _table(smallest, "size", size_of),
        _table(fewest, "number of GPUs", gpus_of),
        _table(timed, "cut", cut_of),
    ]
    parts += [
        NARROW,
        _table(sorted(nanotron, key=_tensor), "tensor-parallel ranks x micro-batch", _tensor_and_batch),
        WHY,
        COMPOSED,
        _table(composed, "composed rows by cut", cut_of),
        WORST,
        validation_tables.worst_steps(timed, 15).markdown(),
    ]
    (folder / "validation_cut.md").write_text("\n".join(parts), encoding="utf-8")


def _table(outcomes: Sequence[PlayedRow], title: str, key: Callable[[PlayedRow], str]) -> str:
    return validation_tables.sources(by(outcomes, key), title).markdown()


def gpu_of(outcome: PlayedRow) -> str:
    """Return the run's chip and precision."""
    row = outcome.row
    dtype = "eight bits" if row.eight_bit else row.precision.params
    return f"{row.chip.upper().replace('_', ' ')}, {dtype}"


def _part(value: float, most: Sequence[int], unit: str) -> str:
    """Return a value's group in words: "to 8 GPUs"."""
    for one in most:
        if value <= one:
            return f"to {one}{unit}"
    return f"above {most[-1]}{unit}"


def size_of(outcome: PlayedRow) -> str:
    """Return the model's size group: "to 2 B parameters"."""
    return _part(total(outcome.row.transformer) / 1e9, _PARAMETERS, " B parameters")


def gpus_of(outcome: PlayedRow) -> str:
    """Return the cluster's size group: "to 8 GPUs"."""
    return _part(outcome.row.gpus, _GPUS, " GPUs")


def cut_of(outcome: PlayedRow) -> str:
    """Return the kinds of model parallelism in use."""
    cut = outcome.row.parallelism
    kinds = (("tp", cut.tp), ("pp", cut.pp), ("cp", cut.cp), ("ep", cut.ep))
    return ", ".join(kind for kind, ranks in kinds if ranks > 1) or "data parallel alone"


def _tensor(outcome: PlayedRow) -> tuple[int, bool]:
    # Small micro-batches (1 or 2 sequences) wait for the host, and form a group of their own.
    return outcome.row.parallelism.tp, outcome.row.micro_batch_size > 2


def _tensor_and_batch(outcome: PlayedRow) -> str:
    ranks, wide = _tensor(outcome)
    across = " over several nodes" if ranks > 8 else ""
    return f"tp {ranks}{across}, micro-batch {'above 2' if wide else '1 or 2'}"
