"""Which data files do installed packages bring? Framework files, named by the entry points of the packages.

An entry point maps the name of a file to the package that has the file. The package is located without importing it,
because a data file needs no code.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Final

# Group of entry points: the name of a framework -> the package with the file NAME.yaml.
FRAMEWORKS: Final = "cluster_simulator.frameworks"


@cache
def installed_frameworks() -> dict[str, Path]:
    """Return the framework files of installed packages, by name, sorted; a file may be missing in its package."""
    # Imported here: most scenarios name shipped frameworks alone, and the import takes a while.
    from importlib.metadata import entry_points

    paths = {entry.name: _folder(entry.module) / f"{entry.name}.yaml" for entry in entry_points(group=FRAMEWORKS)}
    return dict(sorted(paths.items()))


def _folder(package: str) -> Path:
    """Return the folder of a package; a relative path if the package cannot be found."""
    first, *inner = package.split(".")
    spec = find_spec(first)
    roots = [] if spec is None else spec.submodule_search_locations or []
    return Path(next(iter(roots), first), *inner)
