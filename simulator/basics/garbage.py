"""Postpones Python's search for unreachable cycles while a million records without cycles are created."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collected_later() -> Iterator[None]:
    """Context manager: disable Python's search for reference cycles during the block.

    The search would visit every new record again and again. If it was disabled before, it stays disabled.
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
