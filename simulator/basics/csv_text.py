"""How is a table written in CSV, without names that a spreadsheet would run like a formula?

Every CSV file of the package is written here, with a quote before dangerous texts. A spreadsheet takes a cell for a
formula if the cell begins with one of a few characters. Names of nodes and values of settings come from users' files,
possibly from strangers. A text that begins like a formula therefore gets a single quote in front (OWASP, "CSV
Injection"). Numbers stay as they are.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable
from typing import Any, Final

# "=1+1", "@SUM(A1)", "+1+1", "-1+1", also in full width; a tab or a line end may precede such a character.
_FORMULA: Final = ("=", "+", "-", "@", "\t", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_NUMBER: Final = re.compile(r"[-+]?(inf|nan|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?)")


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    r"""Return a table, given by rows of cells, as CSV text; texts that begin like a formula get a quote in front.

    >>> csv_text([["name", "value"], ["=1+1", -0.5], ["ring", "+1e+05"]])
    "name,value\n'=1+1,-0.5\nring,+1e+05\n"
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(map(_cell, row) for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Return the value of a cell; a text that begins like a formula gets a single quote in front."""
    if value is None or isinstance(value, int | float):
        return value
    # Python 3.11 does not quote a text with a lone "\r", but readers begin a new row there.
    text = str(value).replace("\r\n", "\n").replace("\r", "\n")
    return f"'{text}" if text.startswith(_FORMULA) and not _NUMBER.fullmatch(text) else text
