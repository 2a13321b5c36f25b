"""Parts outside the package: the files of docs/howto/own_parts.md, and a scenario that names each."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from simulator.basics import foreign_code
from simulator.basics.installed_files import installed_frameworks
from tools.docs_commands import ROOT, blocks

PAGE: Final = ROOT / "docs" / "howto" / "own_parts.md"
# The files of the page for authors of parts.
FILES: Final = {block.file: block.body for block in blocks(PAGE.read_text(encoding="utf-8")) if block.file}
TRAINING: Final = {"model": "gpt2_small", "seq_len": 128, "gradient_accumulation_steps": 4}
CLUSTER: Final = {"topology": "star_100g", "world_size": 4}


@dataclass(frozen=True, slots=True)
class OwnPart:
    """A file of a part.

    Attributes
    ----------
    file : str
        Its name.
    constant : str
        Name of its record.
    key : str
        Dotted key that names the part.
    data : mapping
        A scenario without the key.
    simulated : bool
        Whether the part changes the simulation; False for parts of the report, which a list names.
    """

    file: str
    constant: str
    key: str
    data: Mapping[str, Any]
    simulated: bool = True

    @property
    def source(self) -> str:
        """Content of the file, as on the page."""
        return FILES[self.file]

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py")

    def scenario(self, name: object, **keys: Any) -> dict[str, Any]:
        """Return the scenario's data with a value of the key; `keys` are further keys of the scenario."""
        data: dict[str, Any] = {"name": "own", **self.data, **keys}
        if not self.simulated:
            return {**data, self.key: [name]}
        *at, last = self.key.split(".")
        inner = data
        for step in at:
            inner[step] = dict(inner.get(step, {}))
            inner = inner[step]
        inner[last] = name
        return data

    def write(self, folder: Path) -> Path:
        path = folder / self.file
        path.write_text(self.source)
        return path


@contextmanager
def installed(
    site: Path,
    entries: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    group: str = "cluster_simulator.plugins",
) -> Iterator[Path]:
    """A folder of modules that is installed as a package with entry points {name: value}, as an installer writes it."""
    about = site / "own_parts-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: own-parts\nVersion: 1.0\n")
    lines = [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    monkeypatch.syspath_prepend(site)
    _forget()
    yield site
    _forget()
    for value in entries.values():
        module = value.partition(":")[0]
        sys.modules.pop(module, None)
        sys.modules.pop(module.partition(".")[0], None)


def _forget() -> None:
    foreign_code._installed.cache_clear()
    foreign_code._of_entry.cache_clear()
    installed_frameworks.cache_clear()


# All forward passes, then all backward passes, the last micro-batch first.
SCHEDULE: Final = OwnPart(
    "lifo.py",
    "SCHEDULE",
    "training.parallelism.schedule",
    {"cluster": CLUSTER, "training": {**TRAINING, "parallelism": {"pp": 4}}},
)
# Each of the micro-batches sends 2 (N - 1) elements for each parameter.
SHARDING: Final = OwnPart(
    "synced.py",
    "STRATEGY",
    "training.sharding.strategy",
    {"cluster": CLUSTER, "training": TRAINING},
)
# A row of 4 GPUs has 3 cables; between its ends are 3 hops.
BUILDER: Final = OwnPart(
    "row.py",
    "row",
    "cluster.topology.builder",
    {
        "cluster": {
            "topology": {"options": {"bandwidth": "10 GB/s", "latency": "1 us"}, "gpu": "a100_sxm_80gb"},
            "world_size": 4,
        },
        "collective": {"operation": "broadcast", "algorithm": "chain", "size": "1 MB", "chunks": 1},
    },
)
# AMSGrad keeps a third state for each parameter: the largest second moment so far.
OPTIMIZER: Final = OwnPart(
    "amsgrad.py",
    "OPTIMIZER",
    "training.optimizer.name",
    {"cluster": CLUSTER, "training": TRAINING},
)
COLLECTIVE: Final = {
    "cluster": CLUSTER,
    "collective": {"operation": "all_reduce", "size": "1 MiB"},
    "compare": {"collective.algorithm": ["ring", "tree"]},
}
PLOT: Final = OwnPart(
    "idle.py",
    "PLOT",
    "plots",
    COLLECTIVE,
    simulated=False,
)
FINDING: Final = OwnPart(
    "spread.py",
    "FINDING",
    "answer",
    COLLECTIVE,
    simulated=False,
)
PARTS: Final = {
    "schedule": SCHEDULE,
    "sharding": SHARDING,
    "topology_builder": BUILDER,
    "optimizer": OPTIMIZER,
    "plot": PLOT,
    "finding": FINDING,
}
