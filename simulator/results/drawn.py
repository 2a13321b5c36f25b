"""Which pictures did a run leave, and which are missing?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DrawnPictures:
    """Pictures that were drawn.

    Attributes
    ----------
    files : tuple of Path
        PNG files, in order.
    left_out : str
        A sentence about points without pictures of their own; empty if no such picture is missing.
    undrawn : tuple of str
        A line for each requested picture that is missing, with its name and the reason.
    """

    files: tuple[Path, ...] = ()
    left_out: str = ""
    undrawn: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Undrawn:
    """Reason why a requested picture is missing."""

    reason: str
