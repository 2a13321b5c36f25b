"""Which pictures did a run leave, and which are missing?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DrawnPictures:
    """Pictures that were drawn."""

    files: tuple[Path, ...] = ()  # PNG files, in order
    left_out: str = ""  # a sentence about points without pictures of their own; empty if no such picture is missing
    undrawn: tuple[str, ...] = ()  # a line for each requested picture that is missing, with its name and the reason


@dataclass(frozen=True, slots=True)
class Undrawn:
    """Reason why a requested picture is missing."""

    reason: str
