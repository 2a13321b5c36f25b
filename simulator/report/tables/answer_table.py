"""A table of an answer, written once for every reader: numbers in a CSV file, texts on a page and in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simulator.basics.csv_text import csv_text
from simulator.report.tables.layout import Column

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class AnswerColumn:
    """A column of an AnswerTable."""

    key: str  # heading in the file, with the unit: "lost_s"
    heading: str = ""  # heading for readers; empty for a column of the file alone
    text: Callable[[Any], str] = str  # format for readers
    left: bool = False  # True for names, aligned left


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """A table of numbers and names."""

    name: str  # name of the file without its suffix
    title: str  # meaning of the rows, for readers
    columns: Sequence[AnswerColumn]
    rows: Sequence[Sequence[Any]]  # a value for each column
    most: int | None = None  # Rows for readers, the first ones; all if None. The file has every row.

    @property
    def csv(self) -> str:
        """The table as CSV text, all rows and columns."""
        return csv_text([[column.key for column in self.columns], *self.rows])

    def headings(self) -> list[Column]:
        """Return the headings of the columns for readers."""
        return [Column(column.heading, left=column.left) for column in self.columns if column.heading]

    @property
    def left_out(self) -> int:
        """Number of rows that readers do not see."""
        return 0 if self.most is None else max(0, len(self.rows) - self.most)

    def cells(self) -> list[list[str]]:
        """Return the first `most` rows as texts for readers."""
        return [
            [column.text(value) for column, value in zip(self.columns, row, strict=True) if column.heading]
            for row in self.rows[: self.most]
        ]

    def frame(self) -> pd.DataFrame:
        """Return the table as a DataFrame with the headings of the file."""
        import pandas as pd

        return pd.DataFrame([list(row) for row in self.rows], columns=[column.key for column in self.columns])
