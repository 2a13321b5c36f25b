"""`simulator ARGUMENTS`, in which some points never end: an interruption finds the command at work, however late it is.

A sweep of long points would do so on a quiet machine alone: where the test that sends the signal gets no time, the
points end before the signal.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from simulator.run.simulate import SimulatedRun, simulate
from simulator.sweeps.artifacts import ArtifactWriter
from tests.interrupting import PATIENCE_S


@dataclass(frozen=True, slots=True)
class Held(ArtifactWriter):
    """Writes the files of a point; points from `first` on are simulated again and again until the file `go` exists."""

    first: int = 0
    go: Path = Path()

    def __call__(self, index: int, run: SimulatedRun) -> None:
        while index >= self.first and not self.go.exists():
            simulate(run.scenario)
        ArtifactWriter.__call__(self, index, run)


def main() -> None:
    """Run `FIRST GO ARGUMENTS`; see `Held`."""
    from simulator.cli import main as simulator

    first, go, *arguments = sys.argv[1:]

    def held(folder: Path, single: bool, *options: object) -> Held:
        return Held(folder, single, *options, first=int(first), go=Path(go).resolve())  # type: ignore[arg-type]

    sys.argv = ["simulator", *arguments]
    with (
        patch("simulator.cli.point_runs.ArtifactWriter", held),
        # A cluster whose workers are all at work may be slow to say goodbye.
        patch("simulator.sweeps.dask_cluster.TIMEOUT", PATIENCE_S),
    ):
        simulator()
