"""Which simulator this is: its version, and a digest of its code and catalog.

Rule: two editions with the same text give the same outcome for the same point. A version alone does not say that while
somebody works on the code.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

import simulator

_PACKAGE: Final = Path(__file__).parents[1]
_TOLD: Final = (".py", ".yaml", ".json", ".csv")


def edition() -> str:
    """Version and digest, such as "0.1.0 (3f1c9a7be02d)"."""
    return f"{simulator.__version__} ({_digest()})"


@cache
def _digest() -> str:
    told = hashlib.sha256()
    for name, path in _files():
        told.update(f"{name} {path.stat().st_size}\n".encode())
        told.update(path.read_bytes())
    return told.hexdigest()[:12]


def _files() -> Iterator[tuple[str, Path]]:
    """All that can change an outcome, with names that are the same in a checkout and in an installed package."""
    for path in sorted(_PACKAGE.rglob("*")):
        name = path.relative_to(_PACKAGE).as_posix()
        if path.suffix in _TOLD and not name.startswith(("topologies/", "scenarios/")):
            yield name, path
