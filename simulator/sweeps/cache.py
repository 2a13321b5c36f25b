"""Outcomes that are kept between runs: one small file each, under a key of all that can change it.

Rule: the key is made of the point's resolved scenario, the content of every file that it names, and the edition of the
simulator; where the scenario lies, what it is called and what is drawn of it are left out. Failed points are not kept.

Plain files, not a database: written whole by rename, any number of processes may share a folder, also over a network,
and to empty it is to delete it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from simulator.basics.edition import edition
from simulator.basics.input_files import read_json
from simulator.basics.whole_files import write_whole
from simulator.errors import ScenarioError
from simulator.scenario.named_files import NamedFiles, digest_of
from simulator.scenario.records import Scenario
from simulator.scenario.resolve import resolved
from simulator.sweeps.outcome import Numbered, Outcome, read_outcome
from simulator.sweeps.report_reading import is_report

# What a scenario says that no figure depends on.
_WORDS = ("name", "question", "plots")


@dataclass(frozen=True, slots=True)
class Cache:
    """A folder of outcomes.

    Attributes
    ----------
    folder : Path
        Made when the first outcome is kept.
    limit_memory : bool
        Whether its points end where a GPU's memory does, which changes what becomes of them.
    files : NamedFiles
    """

    folder: Path
    limit_memory: bool = False
    files: NamedFiles = field(default_factory=NamedFiles)

    def key(self, scenario: Scenario) -> str | None:
        """Under what a point is kept: text for the name of a file; None where a file that it names cannot be read."""
        try:
            named = [(f.written, _called(f.path), digest_of(f.path)) for f in self.files.of(scenario)]
        except (OSError, ScenarioError):
            return None
        said = {key: value for key, value in resolved(scenario).items() if key not in _WORDS}
        text = json.dumps([edition(), self.limit_memory, said, named], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def find(self, numbered: Numbered, key: str | None) -> Outcome | None:
        """The outcome of a point, or None where it is not there or cannot be read."""
        index, point = numbered
        try:
            found = read_outcome(index, {"settings": point.settings, **read_json(self._path(key or ""))})
        except (ScenarioError, KeyError, TypeError):
            return None
        whole = found.error is None and is_report(found.report, training=point.scenario.training is not None)
        return replace(found, settings=point.settings) if whole else None

    def keep(self, outcome: Outcome, scenario: Scenario, key: str | None) -> None:
        """Keep an outcome that has no error.

        Raises
        ------
        ScenarioError
            The folder cannot be written.
        """
        # A file that was changed while the point was played: nobody knows which of the two it saw.
        if outcome.error is not None or key is None or key != self.key(scenario):
            return
        told: dict[str, Any] = {"engine": outcome.engine, "report": outcome.report}
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, json.dumps(told))
        except OSError as error:
            raise ScenarioError(f"--cache: {self.folder}: cannot be written: {error.strerror or error}") from error

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"


def _called(path: Path) -> str:
    """What a report calls a file: by its name, and one of many config.json by its folder's."""
    return path.absolute().parent.name if path.stem == "config" else path.stem
