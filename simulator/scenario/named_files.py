"""Which files does a scenario name? Its topology, graph, GPU, model, framework, own parts and training data.

Files are found by the same rules as during later reading. Of a file's content, only names of further files are read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.basics import document, registry
from simulator.cluster.locate import locate
from simulator.collectives.algorithm_files import is_file_name
from simulator.scenario import own_parts
from simulator.scenario.records import Scenario

GRAPHS = (".json", ".graphml")


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file's name, with its path.

    Attributes
    ----------
    written : str
        Name in the scenario, or in the topology file.
    path : Path
        Location of the file.
    """

    written: str
    path: Path


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """Finds a scenario's files; topology files with equal content are read once.

    Attributes
    ----------
    read : dict of digest to (str or None, str or None)
        Graph and GPU named in a topology file, by the content's digest.
    """

    read: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)

    def of(self, scenario: Scenario) -> tuple[NamedFile, ...]:
        """Return every file that a scenario names, including shipped files, in an order determined by the scenario.

        Raises
        ------
        ScenarioError
            A name without file, or an unreadable topology file.
        OSError
            A file was removed in the meantime.
        """
        return tuple(self._files(scenario))

    def _files(self, scenario: Scenario) -> Iterator[NamedFile]:
        cluster, training, base = scenario.cluster, scenario.training, scenario.base
        job = scenario.collective or training
        if job is not None and is_file_name(job.algorithm):
            yield NamedFile(job.algorithm, base / job.algorithm)
        graph, gpu, folder = self._topology(cluster.topology, base)
        if isinstance(cluster.topology, str):
            yield NamedFile(cluster.topology, locate("topology", cluster.topology, base))
        if graph is not None:
            yield NamedFile(graph, folder / graph)
        # The scenario's GPU replaces the topology's GPU.
        if cluster.gpu is not None:
            gpu, folder = (cluster.gpu, base) if isinstance(cluster.gpu, str) else (None, base)
        if gpu is not None:
            yield NamedFile(gpu, locate("gpu", gpu, folder))
        if training is None:
            return
        for name in own_parts.files(training):
            yield NamedFile(name, base / name)
        if isinstance(training.model, str):
            yield NamedFile(training.model, locate("model", training.model, base))
        if training.framework != "bare":
            yield NamedFile(training.framework, locate("framework", training.framework, base))
        for path in training.learning.files:
            yield NamedFile(path, base / path)

    def _topology(self, topology: str | Mapping[str, Any], base: Path) -> tuple[str | None, str | None, Path]:
        """Return the names of a topology's graph and GPU (None if absent), and the folder for both."""
        if not isinstance(topology, str):
            return *_names(topology), base
        path = locate("topology", topology, base)
        # A graph file names no further files.
        if path.suffix in GRAPHS:
            return None, None, path.parent
        digest = digest_of(path)
        if digest not in self.read:
            self.read[digest] = _names(document.load(path).data)
        return *self.read[digest], path.parent


def _names(data: Mapping[str, Any]) -> tuple[str | None, str | None]:
    graph, gpu = data.get("graph"), data.get("gpu")
    return graph if isinstance(graph, str) else None, gpu if isinstance(gpu, str) else None


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, for files of any size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests_of(scenarios: Iterable[Scenario]) -> dict[str, list[str]]:
    """Return {name: SHA-256 digests} of the files named in scenarios; a name may mean several files.

    Raises
    ------
    ScenarioError
        Same as `NamedFiles.of`.
    """
    digests: dict[str, list[str]] = {}
    for named in files_of(scenarios):
        # A file may be named without ever being read, such as the text for a training without numerics. Such a file
        # may be missing.
        digests.setdefault(named.written, []).append(digest_of(named.path) if registry.is_file(named.path) else "")
    return digests


def files_of(scenarios: Iterable[Scenario]) -> list[NamedFile]:
    """Return the files named in many scenarios, each once."""
    files, asked = NamedFiles(), set()
    distinct: dict[NamedFile, None] = {}
    # A sweep's scenarios mostly name the same files; equal names are looked up once.
    for scenario in scenarios:
        cluster, training = scenario.cluster, scenario.training
        names = (
            (training.model, training.framework, training.learning.files, own_parts.files(training)) if training else ()
        )
        job = scenario.collective or training
        question = repr((cluster.topology, cluster.gpu, names, job and job.algorithm))
        if question not in asked:
            asked.add(question)
            distinct |= dict.fromkeys(files.of(scenario))
    return list(distinct)
