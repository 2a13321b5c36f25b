"""Which parts can be imported separately? A page about `simulator.parts`, with the first line of each docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

from simulator import parts


def part_page() -> str:
    """Return the table with every name, as Markdown."""
    rows = [f"| `{name}` | {_said(getattr(parts, name))} |" for name in parts.__all__]
    intro = (
        "# Parts of a run\n\nThis page lists the names in `simulator.parts`: schedules, models, kernels and "
        "arithmetic. It is for users who examine single parts, as the "
        "[notebooks](../../notebooks/01_collectives_step_by_step.ipynb) do."
    )
    return "\n\n".join([intro, "\n".join(["| name | what it is |", "|---|---|", *rows])]) + "\n"


def _said(part: Any) -> str:
    # Constants have no docstring.
    if isinstance(part, list | tuple | set | frozenset | Mapping):
        return "Constants: " + ", ".join(f"`{name}`" for name in part) + "."
    first = (inspect.getdoc(part) or "").partition("\n")[0].replace("|", "\\|")
    # Remove the number of a reference, which is listed further below in the docstring.
    return re.sub(r" \[\d+\]_", "", first)
