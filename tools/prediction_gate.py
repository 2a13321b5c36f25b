"""Compares predictions: `python -m tools.prediction_gate` prints which of some 670 moved by more than 1 %, by kind.

    python -m tools.prediction_gate                     the stored table with this tree
    python -m tools.prediction_gate COMMIT              a commit with this tree
    python -m tools.prediction_gate COMMIT COMMIT2      two commits
    python -m tools.prediction_gate --out FILE          write the table of this tree, to renew the stored one

Every table is computed by a process of its own, which runs this tree's tools/prediction_grid.py with the package of the
other tree. A commit's tree is a temporary worktree of git. Its compiled core is built from its own C sources at first
use, as in any checkout. Exit code: 0 if nothing moved, 1 if a point moved, appeared or vanished, 2 for bad input.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, log
from pathlib import Path
from statistics import median
from typing import Final, NoReturn

from tools.prediction_grid import REFUSED, Row, read, write

ROOT: Final = Path(__file__).parents[1]
STORED: Final = ROOT / "tests" / "golden" / "predictions.csv"
# Relative change from which a prediction has moved.
LIMIT: Final = 0.01
# Moved points that are printed of each kind, unless all are asked for.
SHOWN: Final = 20


class InputError(Exception):
    """Arguments or a table that cannot be compared; the message is one line."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A point with its values in two tables."""

    old: Row
    new: Row

    @property
    def ratio(self) -> float:
        """New value divided by the old one; 1 if both are refused, and infinite if only one of them is."""
        refused = [row.value.startswith(REFUSED) for row in (self.old, self.new)]
        if any(refused):
            return 1.0 if all(refused) else inf
        old, new = float(self.old.value), float(self.new.value)
        if old == new:
            return 1.0
        return new / old if old > 0 else inf

    @property
    def moved(self) -> bool:
        """True if the prediction moved by more than the limit."""
        return not abs(self.ratio - 1) <= LIMIT

    @property
    def distance(self) -> float:
        """|ln(new / old)| of the prediction, for sorting: twice as much and half as much are equally far."""
        return abs(log(self.ratio)) if self.ratio > 0 else inf

    def __str__(self) -> str:
        values = " -> ".join(_shown(row) for row in (self.old, self.new))
        ratio = "" if self.ratio in (0, inf) else f", x {self.ratio:.4f}"
        return f"{self.old.point}: {values}{ratio}"


def _shown(row: Row) -> str:
    return row.value if row.value.startswith(REFUSED) else f"{float(row.value):.5g} {row.unit}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The points of one kind in two tables."""

    kind: str
    pairs: tuple[Pair, ...]  # points of both tables
    appeared: tuple[Row, ...]  # points of the new table alone
    vanished: tuple[Row, ...]  # points of the old table alone

    @property
    def moved(self) -> list[Pair]:
        """Pairs that moved by more than the limit, the farthest first."""
        return sorted((pair for pair in self.pairs if pair.moved), key=lambda pair: -pair.distance)

    def line(self) -> str:
        """Return the kind's line of the summary."""
        parts = [f"{self.kind}: {len(self.pairs)} points", f"{len(self.moved)} moved by more than {LIMIT * 100:g} %"]
        finite = [pair for pair in self.pairs if pair.ratio != inf]
        if finite:
            farthest = max(finite, key=lambda pair: pair.distance)
            parts.append(f"median x {median(pair.ratio for pair in finite):.4f}, largest x {farthest.ratio:.4f}")
        parts += [f"{len(rows)} {word}" for rows, word in ((self.appeared, "new"), (self.vanished, "gone")) if rows]
        return ", ".join(parts)


def compare(old: Iterable[Row], new: Iterable[Row]) -> list[Comparison]:
    """Return the comparison of two tables of predictions for each kind; points are matched by kind and name."""
    before, after = ({(row.kind, row.point): row for row in rows} for rows in (old, new))
    return [
        Comparison(
            kind,
            tuple(Pair(before[key], after[key]) for key in before if key[0] == kind and key in after),
            tuple(row for key, row in after.items() if key[0] == kind and key not in before),
            tuple(row for key, row in before.items() if key[0] == kind and key not in after),
        )
        for kind in dict.fromkeys(key[0] for key in (*before, *after))
    ]


def lines(comparisons: Sequence[Comparison], most: int | None = SHOWN) -> Iterator[str]:
    """Yield the summary of each kind, then the moved, new and gone points, at most `most` of each."""
    yield from (comparison.line() for comparison in comparisons)
    for comparison in comparisons:
        for word, items in (
            ("moved", [str(pair) for pair in comparison.moved]),
            ("new", [f"{row.point}: {_shown(row)}" for row in comparison.appeared]),
            ("gone", [f"{row.point}: {_shown(row)}" for row in comparison.vanished]),
        ):
            if items:
                yield f"\n{comparison.kind}, {word}:"
                yield from (f"  {item}" for item in items[:most])
            if len(items[:most]) < len(items):
                yield f"  ({len(items) - len(items[:most])} more: --all)"


def table(tree: Path) -> list[Row]:
    """Return the predictions of a tree's package, computed by this tree's grid.

    Raises
    ------
    InputError
        The tree has no package, or the process fails.
    """
    # A tree without the package would fall back on the installed one.
    if not (tree / "simulator" / "__init__.py").is_file():
        raise InputError(f"{tree} has no package simulator")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "predictions.csv"
        # PYTHONPATH precedes the installed package; -P keeps the folder of the grid out of the path.
        command = [sys.executable, "-P", str(ROOT / "tools" / "prediction_grid.py"), str(file)]
        done = subprocess.run(command, env=os.environ | {"PYTHONPATH": str(tree)}, check=False)
        if done.returncode:
            raise InputError(f"the grid of predictions ended with exit code {done.returncode}")
        return read(file)


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary folder, which is removed afterwards.

    Raises
    ------
    InputError
        There is no such commit.
    """
    resolved = _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    if resolved.returncode:
        raise InputError(f"{commit!r} is no commit of this repository")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        try:
            added = _git("worktree", "add", "--detach", "--quiet", str(tree), resolved.stdout.strip())
            if added.returncode:
                raise InputError(f"{commit} cannot be checked out: {' '.join(added.stderr.split())}")
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)


def _of_commit(commit: str) -> list[Row]:
    with checkout(commit) as tree:
        return table(tree)


def _stored() -> list[Row]:
    try:
        return read(STORED)
    except (OSError, ValueError) as error:
        raise InputError(str(error)) from error


class _Parser(argparse.ArgumentParser):
    """A parser whose faults are one line."""

    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def run(arguments: Sequence[str]) -> int:
    """Compare or write tables as the arguments say; return the exit code.

    Raises
    ------
    InputError
        An argument, a commit or the stored table cannot be used.
    """
    parser = _Parser(prog="python -m tools.prediction_gate", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("commits", nargs="*", metavar="COMMIT", help="one or two commits to compare")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table of this tree, and compare nothing")
    parser.add_argument("--all", action="store_true", help=f"print all moved points, not only {SHOWN} of a kind")
    options = parser.parse_args(arguments)
    if len(options.commits) > 2 or (options.out and options.commits):
        raise InputError("give at most two commits, and none with --out")
    if options.out:
        return _write(options.out)
    old = _of_commit(options.commits[0]) if options.commits else _stored()
    new = _of_commit(options.commits[1]) if len(options.commits) > 1 else table(ROOT)
    names = [*options.commits, "this tree"] if options.commits else ["the stored table", "this tree"]
    print(f"predictions, {names[0]} -> {names[1]}")
    comparisons = compare(old, new)
    print("\n".join(lines(comparisons, None if options.all else SHOWN)))
    return int(any(each.moved or each.appeared or each.vanished for each in comparisons))


def _write(file: Path) -> int:
    """Write the table of this tree."""
    # Refused before the minute that the table takes.
    if file.is_dir() or not file.parent.is_dir():
        raise InputError(f"{file} cannot be written: it is a folder, or its folder does not exist")
    write(table(ROOT), file)
    return 0


def main(arguments: Sequence[str]) -> int:
    """Run the gate, with bad input as one line on stderr; return the exit code."""
    try:
        return run(arguments)
    except InputError as error:
        print(f"prediction gate: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    # An end by SIGTERM removes the worktree, too.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main(sys.argv[1:]))
