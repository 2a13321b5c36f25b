"""Python's search for unreachable cycles, put off while a million records are made that have none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_later() -> Iterator[None]:
    """Look for cycles after the block alone: the search goes through all records again as they grow in number.

    Where somebody else has turned it off it stays off.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


__all__ = ["collected_later"]
