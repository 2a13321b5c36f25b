"""How far two numbers may lie apart by rounding alone: every tolerance of played times and of rates, as one table.

Rule: relative, unless it says otherwise, and each names the rounding that it covers. float64 loses up to 1.1e-16 of
each result; the engines are held to each other to 1e-9, so a tolerance must lie between.
"""

from __future__ import annotations

from typing import Final

import numpy as np

# Ends of flows that share links, as the clock has them: a time plus bytes over a rate, a few roundings in all.
ENDS_TOGETHER: Final = 1e-14
# When one flow ends and the next enters: ends count as this much earlier, so that the two are not on a link at once.
END_BEFORE_ENTER: Final = 1e-13
# When an operation was assumed to begin and when it came: sums along the operations before, in two orders.
SETTLED: Final = 1e-13
# How long flows take whose shares were solved together: a share is what earlier passes have left of a link.
SHARED_ENDS: Final = 1e-12
# Latencies along two stretches of a ring, added in two orders.
SUM_OF_LATENCIES: Final = 1e-12
# A link's bandwidth and the sum of its flows' rates: a sum of n loses at most n half steps, for some thousand flows.
SUM_OF_RATES: Final = 1e-12
# The same, where one sum runs over all flows that enter and end, link after link: what it has lost on one stays in it.
RUNNING_SUM_OF_RATES: Final = 1e-11
# What one addition loses of its result: half a step of float64.
LOST_BY_ADDITION: Final = float(np.finfo(np.float64).eps) / 2
# Two differences of late times, not relative but in steps (numpy.spacing) of the late time: their last digits are lost.
LATE_STEPS: Final = 64.0
