"""A drawn figure with the name of its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Picture:
    """A figure, and its file's name without the suffix."""

    name: str
    figure: Figure

    @property
    def title(self) -> str:
        """The figure's title on one line."""
        return " ".join(self.figure.get_suptitle().split())
