"""Files that are there whole or not at all.

Rule: a draft beside the file, then a rename; so a reader, or a process that is ended in the middle, never leaves half
a file under its name.
"""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file, text as UTF-8, so that it is there whole or not at all.

    Raises
    ------
    OSError
        It cannot be written; names the file that was wanted.
    """
    # Each process has a draft of its own, for a worker of a run that was killed may still be at the same file.
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)
        os.replace(draft, path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def remove_drafts(folder: Path) -> None:
    """Remove what processes that were ended in the middle have left anywhere below a folder."""
    for draft in folder.rglob(".*.draft"):
        draft.unlink(missing_ok=True)
