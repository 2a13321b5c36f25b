"""How far two numbers may lie apart by rounding alone: every tolerance of played times and of rates, as one table.

Rule: relative, unless it says otherwise, and each names the rounding that it covers. float64 loses up to 1.1e-16 of
each result; the engines are held to each other to 1e-9, so a tolerance must lie between.
"""

from __future__ import annotations

from typing import Final

# Ends of flows that share links, as the clock has them: a time plus bytes over a rate, a few roundings in all.
ENDS_TOGETHER: Final = 1e-14
# Latencies along two stretches of a ring, added in two orders.
SUM_OF_LATENCIES: Final = 1e-12
# A link's bandwidth and the sum of its flows' rates: a sum of n loses at most n half steps, for some thousand flows.
SUM_OF_RATES: Final = 1e-12
