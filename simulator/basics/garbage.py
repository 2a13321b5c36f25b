"""Postpones Python's search for unreachable cycles while a million records without cycles are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_later() -> Iterator[None]:
    """Disable the search for cycles during the block: the search would visit every record again and again.

    If the search was disabled before, it stays disabled.
    """
    # Blocks may be nested: an inner block must not enable the search.
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


__all__ = ["collected_later"]
