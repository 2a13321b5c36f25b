"""Writes a file atomically: a reader sees the whole file or none, also if the writing process is killed.

Rule: the content goes into a draft beside the file, which is then renamed.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8, so that it is there whole or not at all.

    Raises
    ------
    OSError
        It cannot be written; names the file and not its draft.
    """
    # Each process has a draft of its own: a worker of a killed run may still be writing the same file.
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def remove_drafts(folder: Path) -> None:
    """Remove the drafts that killed processes have left anywhere below a folder."""
    for draft in folder.rglob(".*.draft"):
        draft.unlink(missing_ok=True)
