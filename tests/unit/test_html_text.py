"""Texts on a page are escaped, and keep a number and its unit in one line."""

from __future__ import annotations

import re
from typing import Any

import pytest

from simulator.results.page.document import asset
from simulator.results.page.html_text import html_text

GAP = "\u00a0"


@pytest.mark.parametrize(
    ("text", "joined"),
    [
        ("±8 %, from", f"±8{GAP}%, from"),
        ("79.6 GiB, 1.5 s and 400 Gb/s.", f"79.6{GAP}GiB, 1.5{GAP}s and 400{GAP}Gb/s."),
        ("1.2 TB/s (64,092 tokens/s)", f"1.2{GAP}TB/s (64,092{GAP}tokens/s)"),
        # A count and its noun, and a word that begins like a unit, may stand in two lines.
        ("8 GPUs, 2 steps and 4 sequences", "8 GPUs, 2 steps and 4 sequences"),
        ("<b> & 'c'", "&lt;b&gt; &amp; &#x27;c&#x27;"),
    ],
)
def test_a_space_before_a_unit_does_not_break(text: str, joined: str) -> None:
    assert html_text(text) == joined


def test_the_scripts_know_the_same_units() -> None:
    """The expression in Python and the expression in 1_words.js name the same units."""
    units: Any = re.search(r"\(\?=\(\?:%\|.*?\)/s\)", asset("1_words.js").replace("\\/", "/"))
    assert units is not None
    import simulator.results.page.html_text as module

    assert units[0] in module._BEFORE_UNIT.pattern
