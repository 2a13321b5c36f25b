"""Which pictures did a run leave, and which points have none?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Pictures:
    """What was drawn.

    Attributes
    ----------
    files : tuple of Path
        PNG files, in order.
    left_out : str
        One sentence on the points that have no pictures of their own; empty where none is missed.
    undrawn : tuple of str
        A line for each picture that was asked for and is not there: its name, and why.
    """

    files: tuple[Path, ...] = ()
    left_out: str = ""
    undrawn: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Undrawn:
    """Why a picture that was asked for is not there.

    Attributes
    ----------
    reason : str
    """

    reason: str
