"""Times several functions side by side: CPU time, in turn, best of several, because the machine is shared."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any


def best_of(times: int, *things: Callable[[], Any]) -> list[float]:
    """Return the least CPU time of each function [s]; the functions run in turn."""
    best = [float("inf")] * len(things)
    for _ in range(times):
        # In turn: a slow moment of the machine hits all functions alike.
        for i, thing in enumerate(things):
            began = time.process_time()
            thing()
            best[i] = min(best[i], time.process_time() - began)
    return best
