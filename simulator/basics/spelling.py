"""Which of some names does another spelling mean: "Llama3-8B", "allreduce", "A100 (80 GB)"?

Spellings are of one name if they differ only in upper and lower case and in what separates their words. A separator
between two digits counts, as a point between them does: "llama3-8b" is llama3_8b, and "megatron_17b" is no
megatron_1.7b.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

# Longer texts are no names, and need not be compared.
_LONGEST: Final = 100


def plain(name: str) -> str:
    """The form that all spellings of a name share.

    Examples
    --------
    >>> plain("Llama3-8B"), plain("all_reduce"), plain("A100 (80 GB)"), plain("qwen2_0.5b")
    ('llama3_8b', 'allreduce', 'a100_80gb', 'qwen2_0.5b')
    """
    words = re.sub(r"(?<![0-9])\.|\.(?![0-9])", " ", name.lower())
    separated = re.sub(r"[^a-z0-9.]+", "_", words).strip("_")
    return re.sub(r"(?<![0-9])_|_(?![0-9])", "", separated)


def meant(written: str, names: Iterable[str], others: Mapping[str, str] | None = None) -> str | None:
    """The name that a text means; None if it means none of them, or more than one.

    Parameters
    ----------
    written : str
    names : iterable of str
    others : mapping of str to str, optional
        Further names, each with the one of `names` that it stands for.

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
    wanted = plain(written)
    found = {name for name in listed if plain(name) == wanted}
    found |= {name for other, name in (others or {}).items() if plain(other) == wanted}
    return found.pop() if wanted and len(found) == 1 else None
