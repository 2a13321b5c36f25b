"""Writes a file atomically: a reader sees the whole file or no file, even if the writing process is killed.

The content is written to a draft beside the file, and the draft is renamed.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write `content` to a file completely or not at all; text is encoded in UTF-8.

    Raises
    ------
    OSError
        The file cannot be written; the error names the file, not its draft.
    """
    # Each process has its own draft: a worker of a killed run may still be writing the same file.
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def remove_drafts(folder: Path) -> None:
    """Delete the draft files that killed processes left anywhere below a folder."""
    for draft in folder.rglob(".*.draft"):
        draft.unlink(missing_ok=True)
