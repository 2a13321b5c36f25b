"""Counts the bytes that a computation reads from HBM and writes to it.

Code that reads or writes an array in HBM adds the array's bytes; arrays that stay on the chip are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class HbmCounter:
    """Counter for the bytes read from HBM and written to HBM by a computation.

    Attributes
    ----------
    read, written : int
        Bytes read from HBM and written to it [B].
    """

    read: int = 0
    written: int = 0

    @property
    def total(self) -> int:
        """Bytes read and bytes written, added [B]."""
        return self.read + self.written
