"""Identifies this simulator: its version, and a digest of its code and catalog.

Rule: simulators with the same edition give the same outcome for the same point. The version alone does not say that:
it stays the same while the code is edited.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import simulator

_PACKAGE: Final = Path(__file__).parents[1]
_SUFFIXES: Final = (".py", ".yaml", ".json", ".csv")


def edition() -> str:
    """Version and digest, such as "0.1.0 (3f1c9a7be02d)"."""
    return f"{simulator.__version__} ({_digest()})"


@cache
def _digest() -> str:
    digest = hashlib.sha256()
    for name, path in _files():
        digest.update(f"{name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _files() -> Iterator[tuple[str, Path]]:
    """All that can change an outcome, with names that are the same in a checkout and in an installed package."""
    for path in sorted(_PACKAGE.rglob("*")):
        name = path.relative_to(_PACKAGE).as_posix()
        if path.suffix in _SUFFIXES and not name.startswith(("topologies/", "scenarios/")):
            yield name, path
