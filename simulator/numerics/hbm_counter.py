"""Counts the bytes that a computation reads from HBM and writes to it.

Rule: code that reads an array from HBM, or writes one, adds its bytes; arrays that stay on the chip are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HbmCounter:
    """Bytes counted so far.

    Attributes
    ----------
    read, written : int
        [B]
    """

    read: int = 0
    written: int = 0

    @property
    def total(self) -> int:
        """Bytes read and bytes written together [B]."""
        return self.read + self.written
