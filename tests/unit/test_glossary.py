"""The glossary explains each algorithm that `simulator list algorithms` names, in the same words."""

from __future__ import annotations

import re

from simulator.collectives.algorithm import ALGORITHMS
from tools.docs_commands import ROOT


def test_each_algorithm_has_one_row() -> None:
    text = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    section = text.partition("## Algorithms of collectives\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, flags=re.MULTILINE)
    assert sorted(rows) == [(name, ALGORITHMS.find(name).summary) for name in ALGORITHMS.names()]
