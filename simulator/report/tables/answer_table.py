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
    """A column of an AnswerTable.

    Attributes
    ----------
    key : str
        Heading in the file, with the unit: "lost_s".
    heading : str
        Heading for readers; empty for a column of the file alone.
    text : function (value) -> str
        Format for readers.
    left : bool
        True for names, aligned left.
    """

    key: str
    heading: str = ""
    text: Callable[[Any], str] = str
    left: bool = False


@dataclass(frozen=True, slots=True)
class AnswerTable:
    """A table of numbers and names.

    Attributes
    ----------
    name : str
        Name of the file without its suffix.
    title : str
        Meaning of the rows, for readers.
    columns : sequence of AnswerColumn
    rows : sequence of sequence
        A value for each column.
    most : int, optional
        Rows for readers, the first ones; all if None. The file has every row.
    """

    name: str
    title: str
    columns: Sequence[AnswerColumn]
    rows: Sequence[Sequence[Any]]
    most: int | None = None

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
