"""How is a table of measured figures in the catalog read (simulator/catalog/measured)?"""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parents[1] / "catalog" / "measured"


@cache
def read_table(name: str) -> tuple[dict[str, str], ...]:
    """Return the rows of the CSV table `name` in the catalog, each as a dict by column, in file order.

    Lines that begin with # are comments.
    """
    with (FOLDER / name).open(encoding="utf-8", newline="") as lines:
        return tuple(csv.DictReader(line for line in lines if not line.startswith("#")))
