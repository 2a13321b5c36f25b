"""Which words explain the collective algorithms that an answer names? Their one-line summaries, from their records."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from simulator.collectives.algorithm import ALGORITHMS
from simulator.findings.comparison import Comparison

# Scenario keys whose values are names of algorithms.
_KEYS: Final = ("collective.algorithm", "training.algorithm")


def algorithm_terms(compared: Comparison, texts: Iterable[str]) -> dict[str, str]:
    """Return the summaries of the algorithms that ran in a comparison and are named in its texts, by name, in the order
    of the texts.
    """
    reports = [row.report for row in compared.rows if row.report is not None]
    ran = {str(report["algorithm"]) for report in reports if "algorithm" in report}
    ran |= {str(row.setting[key]) for row in compared.rows for key in _KEYS if key in row.setting}
    # A sentence may begin with the name and a capital letter.
    words = dict.fromkeys(word.lower() for text in texts for word in re.findall(r"\w+", text))
    summaries = {name: ALGORITHMS.find(name).summary for name in words if name in ran and name in ALGORITHMS.names()}
    return {name: summary for name, summary in summaries.items() if summary}


def terms_text(terms: Mapping[str, str]) -> str:
    """Return the summaries of algorithms as a text.

    >>> terms_text({"naive": "rank 0 receives every array", "ring": "arrays travel around"})
    'naive (rank 0 receives every array), ring (arrays travel around)'
    """
    return ", ".join(f"{name} ({summary})" for name, summary in terms.items())
