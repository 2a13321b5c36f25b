"""Caches outcomes of points between runs: one small file each, under a hash of everything that can change it.

Rule: the key is made of the point's resolved scenario, the content of every file that it names, and the edition of the
simulator; the scenario's folder, name, question and plots are left out. Failed points are not kept.

Plain files, not a database: each is written atomically, so any number of processes may share a folder, also over a
network, and whoever wants it empty deletes it.
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

# Keys of a scenario on which no figure of a report depends.
_IRRELEVANT = ("name", "question", "plots")


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of outcomes.

    Attributes
    ----------
    folder : Path
        It is created when the first outcome is kept.
    limit_memory : bool
        Whether a point fails when a GPU's memory is full; otherwise it is played on, so its outcome differs.
    files : NamedFiles
    """

    folder: Path
    limit_memory: bool = False
    files: NamedFiles = field(default_factory=NamedFiles)

    def key(self, scenario: Scenario) -> str | None:
        """The key of a point, a hash that names its file; None if a file that the point names cannot be read."""
        try:
            named = [(f.written, _called(f.path), digest_of(f.path)) for f in self.files.of(scenario)]
        except (OSError, ScenarioError):
            return None
        keys = {key: value for key, value in resolved(scenario).items() if key not in _IRRELEVANT}
        text = json.dumps([edition(), self.limit_memory, keys, named], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def find(self, numbered: NumberedPoint, key: str | None) -> PointOutcome | None:
        """The outcome of a point, or None where it is not there or cannot be read."""
        index, point = numbered
        try:
            outcome = read_outcome(index, {"settings": point.settings, **read_json(self._path(key or ""))})
        except (ScenarioError, KeyError, TypeError):
            return None
        is_complete = outcome.error is None and is_report(outcome.report, training=point.scenario.training is not None)
        return replace(outcome, settings=point.settings) if is_complete else None

    def keep(self, outcome: PointOutcome, scenario: Scenario, key: str | None) -> None:
        """RunHandler an outcome that has no error.

        Raises
        ------
        ScenarioError
            The folder cannot be written.
        """
        # If a file was changed while the point was played, nobody knows which of its contents the point has read.
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
        return self.folder / key[:2] / f"{key}.json"


def _called(path: Path) -> str:
    """What a report calls a file: by its name, and one of many config.json by its folder's."""
    return path.absolute().parent.name if path.stem == "config" else path.stem
