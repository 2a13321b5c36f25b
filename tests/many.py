"""Cases of the long tests: a fifth of those of a release, unless the environment variable CASES is "all"."""

from __future__ import annotations

import os


def many(cases: int) -> int:
    """Return the number of cases, or of blocks of cases, that a long test draws: the first ones of a release's.

    Examples
    --------
    >>> import pytest
    >>> with pytest.MonkeyPatch.context() as patch:
    ...     patch.delenv("CASES", raising=False)
    ...     usual = many(160), many(1)
    ...     patch.setenv("CASES", "all")
    ...     usual, many(160)
    ((32, 1), 160)
    """
    return cases if os.environ.get("CASES") == "all" else max(1, cases // 5)
