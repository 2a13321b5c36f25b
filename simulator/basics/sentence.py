"""How does a sentence or a title begin: with a capital, or with a name in the form that the name has in a scenario?"""

from __future__ import annotations

import re
from typing import Final

# A sentence's first word with letters only, one of them a vowel.
_PLAIN_WORD: Final = re.compile(r"(?=[a-z]*[aeiouy])[a-z]+(?![\w>]|-[\w>])")


def capital(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def started(sentence: str) -> str:
    """Return a sentence with a capital first letter, unless its first word is a name that keeps its form.

    Names with a digit, an underscore or an arrow keep their form, as do abbreviations, which have no vowel.

    >>> started("ring is fastest"), started("zero3 is fastest"), started("all_gather is fastest")
    ('Ring is fastest', 'zero3 is fastest', 'all_gather is fastest')
    >>> started("tp 2 is fastest"), started("overflows, tp 2 ...")
    ('tp 2 is fastest', 'Overflows, tp 2 ...')
    """
    return capital(sentence) if _PLAIN_WORD.match(sentence) else sentence
