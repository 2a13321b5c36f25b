"""Caches outcomes between runs: a small file per point, named by a hash over everything that can change the outcome.

The key consists of the point's resolved scenario, the content of every file that the scenario names, and the edition of
the simulator. The scenario's folder, name, question and plots are not part of the key. Failed points are not cached.

The cache is plain files instead of a database: each file is written atomically, so any number of processes may share a
folder, also over a network, and deleting the folder empties the cache.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simulator.basics.atomic_files import write_atomically
from simulator.basics.edition import edition
from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import read_json
from simulator.run.outcome import PointOutcome, read_outcome
from simulator.scenario.named_files import NamedFiles, digest_of
from simulator.scenario.records import Scenario
from simulator.scenario.resolve import resolved
from simulator.sweeps.outcome import NumberedPoint
from simulator.sweeps.report_reading import is_report

# Scenario keys that change no figure in a report.
_IRRELEVANT = ("name", "question", "plots")


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder with cached outcomes."""

    folder: Path  # folder of the cache, created with the first outcome
    # Whether a point fails when a GPU's memory is full; otherwise the point continues and has a different outcome
    limit_memory: bool = False
    files: NamedFiles = field(default_factory=NamedFiles)  # finds the files that a scenario names

    def key(self, scenario: Scenario) -> str | None:
        """Return a point's cache key, a hash for the file name; None if a file that the point names cannot be read."""
        try:
            # The name in reports is part of the key, because reports contain this name.
            digests = [(f.written, _called(f.path), digest_of(f.path)) for f in self.files.of(scenario)]
        except (OSError, ScenarioError):
            return None
        keys = {key: value for key, value in resolved(scenario).items() if key not in _IRRELEVANT}
        text = json.dumps([edition(), self.limit_memory, keys, digests], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def find(self, numbered: NumberedPoint, key: str | None) -> PointOutcome | None:
        """Return the outcome of a numbered point that is cached under the key; None without a readable outcome."""
        index, point = numbered
        try:
            outcome = read_outcome(index, {"settings": point.settings, **read_json(self._path(key or ""))})
        except (ScenarioError, KeyError, TypeError):
            return None
        # A file from an older version, or damaged by hand, is treated as missing.
        is_complete = outcome.error is None and is_report(outcome.report, training=point.scenario.training is not None)
        return replace(outcome, settings=point.settings) if is_complete else None

    def keep(self, outcome: PointOutcome, scenario: Scenario, key: str | None) -> None:
        """Store an outcome under a cache key, unless the point failed or the key is None.

        Raises
        ------
        ScenarioError
            The folder cannot be written.
        """
        # If a file changed during the simulation, its content at the time of reading is unknown: store nothing.
        if outcome.error is not None or key is None or key != self.key(scenario):
            return
        document: dict[str, Any] = {"engine": outcome.engine, "report": outcome.report}
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, json.dumps(document))
        except OSError as error:
            raise ScenarioError(f"--cache: {self.folder}: cannot be written: {error.strerror or error}") from error

    def _path(self, key: str) -> Path:
        # Two letters per subfolder keep folders small: file systems are slow with very many files in a folder.
        return self.folder / key[:2] / f"{key}.json"


def _called(path: Path) -> str:
    """Return a file's name as reports write it: without suffix, or the folder's name for config.json."""
    return path.absolute().parent.name if path.stem == "config" else path.stem
