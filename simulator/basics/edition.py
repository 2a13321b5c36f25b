"""Identifies this simulator by version, and by a digest over code and catalog.

Simulators with the same edition give the same outcome for the same point. The version alone is not enough: it stays the
same while the code is edited.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

VERSION: Final = "0.1.0"
_PACKAGE: Final = Path(__file__).parents[1]
_SUFFIXES: Final = (".py", ".yaml", ".json", ".csv")


def edition() -> str:
    """Return the simulator's version with a digest over code and catalog, such as "0.1.0 (3f1c9a7be02d)"."""
    return f"{VERSION} ({_digest()})"


@cache
def _digest() -> str:
    digest = hashlib.sha256()
    for name, path in _files():
        # Name and size separate the files: moving text from one file to the next changes the digest.
        digest.update(f"{name} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    # 48 bits suffice to tell editions apart.
    return digest.hexdigest()[:12]


def _files() -> Iterator[tuple[str, Path]]:
    """Yield the name and path, equal in a checkout and installed, of every file that can change an outcome."""
    for path in sorted(_PACKAGE.rglob("*")):
        name = path.relative_to(_PACKAGE).as_posix()
        # Topologies and scenarios belong to the point, whose content is compared separately.
        if path.suffix in _SUFFIXES and not name.startswith(("topologies/", "scenarios/")):
            yield name, path
