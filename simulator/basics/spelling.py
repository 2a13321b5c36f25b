"""Which name does a different spelling mean: "Llama3-8B", "allreduce", "A100 (80 GB)"?

Spellings mean the same name if they differ only in case and in the separators between words. A separator between two
digits counts, and so does a point between digits: "llama3-8b" is llama3_8b, but "megatron_17b" is not megatron_1.7b.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

# Longer texts are not names, and are not compared.
_LONGEST: Final = 100


def plain(name: str) -> str:
    """Return a name's normal form, equal for every spelling: lower case, with separators only between digits.

    >>> plain("Llama3-8B"), plain("all_reduce"), plain("A100 (80 GB)"), plain("qwen2_0.5b")
    ('llama3_8b', 'allreduce', 'a100_80gb', 'qwen2_0.5b')
    """
    # A point is kept only between digits. Then separators become "_", and "_" is kept only between digits.
    words = re.sub(r"(?<![0-9])\.|\.(?![0-9])", " ", name.lower())
    separated = re.sub(r"[^a-z0-9.]+", "_", words).strip("_")
    return re.sub(r"(?<![0-9])_|_(?![0-9])", "", separated)


def meant(written: str, names: Iterable[str], others: Mapping[str, str] | None = None) -> str | None:
    """Return the name in `names` that a text means in another spelling; None if it matches no name, or several.

    Parameters
    ----------
    written : str
        The text.
    names : iterable of str
        Possible names.
    others : mapping of str to str, optional
        Further names, each with its equivalent in `names`.

    Examples
    --------
    >>> meant("All-Reduce", ["all_gather", "all_reduce"]), meant("rng", ["ring"])
    ('all_reduce', None)
    >>> meant("A100", ["a100_pcie_80gb", "a100_sxm_80gb"], {"a100": "a100_sxm_80gb"})
    'a100_sxm_80gb'
    """
    listed = list(names)
    if written in listed:
        return written
    if len(written) > _LONGEST:
        return None
    spelling = plain(written)
    matches = {name for name in listed if plain(name) == spelling}
    matches |= {name for other, name in (others or {}).items() if plain(other) == spelling}
    # Two matching names would make the text ambiguous.
    return matches.pop() if spelling and len(matches) == 1 else None
