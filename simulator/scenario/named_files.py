"""Which files a scenario names: topology, graph, GPU, model, framework, training data.

Rule: finds them by the same rules by which they are read later, and reads only the names of further files in them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.basics import document, registry
from simulator.cluster.locate import locate
from simulator.scenario.records import Scenario

GRAPHS = (".json", ".graphml")


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file as it was named, and where it is.

    Attributes
    ----------
    written : str
        As in the scenario, or in the topology file that names it.
    path : Path
    """

    written: str
    path: Path


@dataclass(frozen=True, slots=True)
class NamedFiles:
    """Finds files; what a topology file names is read once for the same content.

    Attributes
    ----------
    read : dict of digest to (str or None, str or None)
        Graph and GPU that a topology file of that content names.
    """

    read: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)

    def of(self, scenario: Scenario) -> tuple[NamedFile, ...]:
        """All files, shipped ones too, in an order that depends on the scenario alone.

        Raises
        ------
        ScenarioError
            A name of nothing, or a topology file that cannot be read.
        OSError
            A file was removed meanwhile.
        """
        return tuple(self._files(scenario))

    def _files(self, scenario: Scenario) -> Iterator[NamedFile]:
        cluster, training, base = scenario.cluster, scenario.training, scenario.base
        graph, gpu, folder = self._topology(cluster.topology, base)
        if isinstance(cluster.topology, str):
            yield NamedFile(cluster.topology, locate("topology", cluster.topology, base))
        if graph is not None:
            yield NamedFile(graph, folder / graph)
        if cluster.gpu is not None:
            gpu, folder = (cluster.gpu, base) if isinstance(cluster.gpu, str) else (None, base)
        if gpu is not None:
            yield NamedFile(gpu, locate("gpu", gpu, folder))
        if training is None:
            return
        if isinstance(training.model, str):
            yield NamedFile(training.model, locate("model", training.model, base))
        if training.framework != "bare":
            yield NamedFile(training.framework, registry.find("framework", training.framework))
        for path in training.learning.files:
            yield NamedFile(path, base / path)

    def _topology(self, topology: str | Mapping[str, Any], base: Path) -> tuple[str | None, str | None, Path]:
        """Graph and GPU that a topology names, and the folder from which."""
        if not isinstance(topology, str):
            return *_names(topology), base
        path = locate("topology", topology, base)
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
    """SHA-256 of a file's content, however large it is."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests_of(scenarios: Iterable[Scenario]) -> dict[str, list[str]]:
    """What the files of many scenarios say, by how they are named; several where a name means several files.

    Raises
    ------
    ScenarioError
        As `NamedFiles.of`.
    """
    digests: dict[str, list[str]] = {}
    for named in files_of(scenarios):
        # What is named but not there is never read: text of a model that does not learn.
        digests.setdefault(named.written, []).append(digest_of(named.path) if registry.is_file(named.path) else "")
    return digests


def files_of(scenarios: Iterable[Scenario]) -> list[NamedFile]:
    """The files of many scenarios, which mostly name the same; each once."""
    files, asked = NamedFiles(), set()
    distinct: dict[NamedFile, None] = {}
    for scenario in scenarios:
        cluster, training = scenario.cluster, scenario.training
        names = (training.model, training.framework, training.learning.files) if training else ()
        question = repr((cluster.topology, cluster.gpu, names))
        if question not in asked:
            asked.add(question)
            distinct |= dict.fromkeys(files.of(scenario))
    return list(distinct)
