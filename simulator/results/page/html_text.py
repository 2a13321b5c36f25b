"""How does a text enter a page? Escaped, and with no-break spaces between numbers and their units."""

from __future__ import annotations

import re
from html import escape
from typing import Final

# The space between a number and a unit: per cent, bytes, rates, times and FLOP. A unit ends at a word's end.
_BEFORE_UNIT: Final = re.compile(
    r"(?<=\d) (?=(?:%|[kKMGTPE]?i?B(?:/s)?|[kMGT]?b/s|ns|us|ms|s|min|h|[kMGTPE]?FLOP(?:/s)?|(?:tokens|samples)/s)"
    r"(?![\w/]))"
)


def html_text(text: str) -> str:
    """Return a text escaped for HTML, in which no line breaks between a number and its unit.

    >>> html_text("±8 % of 1.5 s, <2 GiB> on 8 GPUs")
    '±8\\xa0% of 1.5\\xa0s, &lt;2\\xa0GiB&gt; on 8 GPUs'
    """
    return escape(_BEFORE_UNIT.sub("\u00a0", text))
