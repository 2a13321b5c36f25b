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
from simulator.basics.foreign_code import is_python_file
from simulator.cluster.locate import locate
from simulator.collectives.algorithm_files import is_file_name
from simulator.scenario import own_parts
from simulator.scenario.records import Scenario

GRAPHS = (".json", ".graphml")


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file's name, with its path."""

    written: str  # name in the scenario, or in the topology file
    path: Path  # location of the file


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """Finds a scenario's files; topology files with equal content are read once."""

    read: dict[str, _Topology] = field(default_factory=dict)  # names in a topology file, by the content's digest

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
        topology, folder = self._topology(cluster.topology, base)
        if isinstance(cluster.topology, str):
            yield NamedFile(cluster.topology, locate("topology", cluster.topology, base))
        if topology.graph is not None:
            yield NamedFile(topology.graph, folder / topology.graph)
        if is_python_file(topology.builder):
            yield NamedFile(topology.builder, folder / topology.builder)
        # The scenario's GPU replaces the topology's GPU.
        gpu = topology.gpu
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

    def _topology(self, topology: str | Mapping[str, Any], base: Path) -> tuple[_Topology, Path]:
        """Return the names in a topology, and the folder for their files."""
        if not isinstance(topology, str):
            return _Topology.of(topology), base
        path = locate("topology", topology, base)
        # A graph file names no further files.
        if path.suffix in GRAPHS:
            return _Topology(), path.parent
        digest = digest_of(path)
        if digest not in self.read:
            self.read[digest] = _Topology.of(document.load(path).data)
        return self.read[digest], path.parent


@dataclass(frozen=True, slots=True)
class _Topology:
    """Graph, GPU and builder that a topology names; None for the GPU if it is written out."""

    graph: str | None = None
    gpu: str | None = None
    builder: str = ""

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> _Topology:
        graph, gpu, builder = (value if isinstance(value := data.get(key), str) else None for key in _IN_TOPOLOGY)
        return cls(graph, gpu, builder or "")


_IN_TOPOLOGY = ("graph", "gpu", "builder")


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
    for file in files_of(scenarios):
        # A file may be named without ever being read, such as the text for a training without numerics. Such a file
        # may be missing.
        digests.setdefault(file.written, []).append(digest_of(file.path) if registry.is_file(file.path) else "")
    return digests


def files_of(scenarios: Iterable[Scenario]) -> list[NamedFile]:
    """Return the files named in many scenarios, each once."""
    files, questions = NamedFiles(), set()
    distinct: dict[NamedFile, None] = {}
    # A sweep's scenarios mostly name the same files; equal names are looked up once.
    for scenario in scenarios:
        cluster, training = scenario.cluster, scenario.training
        names = (
            (training.model, training.framework, training.learning.files, own_parts.files(training)) if training else ()
        )
        job = scenario.collective or training
        question = repr((cluster.topology, cluster.gpu, names, job and job.algorithm))
        if question not in questions:
            questions.add(question)
            distinct |= dict.fromkeys(files.of(scenario))
    return list(distinct)
