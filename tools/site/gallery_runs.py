"""How did each scenario in the gallery answer its question? Runs are stored, and repeated only after a change.

A run is stored with a digest of its scenario file, the topologies, and the simulator's edition. If one of these has
changed, the scenario is simulated again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from simulator.basics.edition import edition

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class GalleryRun:
    """The stored run of a scenario.

    Attributes
    ----------
    folder : Path
        The run's directory.
    """

    folder: Path

    @property
    def answer(self) -> list[str]:
        """Sentences of the answer, with the reason if known."""
        answer = json.loads((self.folder / "report.json").read_text(encoding="utf-8"))["answer"]
        return [sentence for sentence in (*answer["sentences"], answer["why"]) if sentence]

    @property
    def pictures(self) -> list[Path]:
        """Pictures in drawing order; pictures that compare points come first."""
        # Files are written in drawing order.
        return sorted((self.folder / "plots").glob("*.png"), key=lambda path: (path.stat().st_mtime_ns, path.name))


def run_of(scenario: Path, store: Path) -> GalleryRun:
    """Return the stored run of a scenario, or a new run.

    Raises
    ------
    SystemExit
        The scenario could not be simulated.
    """
    kept = store / scenario.stem
    key = _key(scenario)
    if not (kept / "key").is_file() or (kept / "key").read_text() != key:
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
        _play(scenario, kept / "run")
        # Written last: a run interrupted before has no key, and is repeated.
        (kept / "key").write_text(key)
    return GalleryRun(kept / "run")


def _play(scenario: Path, out: Path) -> None:
    command = [sys.executable, "-m", "simulator", "run", str(scenario), "--out", str(out)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    # A subprocess, like a user's: nothing is shared between scenarios.
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    if done.returncode:
        raise SystemExit(f"{scenario}: could not be played:\n{done.stderr}")


def _key(scenario: Path) -> str:
    # The edition identifies the simulator by version and code.
    digest = hashlib.sha256(edition().encode())
    # Every topology, because a scenario may name another topology in an axis.
    for path in [scenario, *sorted((ROOT / "topologies").glob("*"))]:
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()
