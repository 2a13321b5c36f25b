"""How far may two numbers differ by rounding alone: every tolerance for simulated times and for rates, in one table.

Each tolerance is relative, and names the rounding that it covers. float64 loses up to 1.1e-16 of each result, and both
engines must agree to 1e-9, so a tolerance must be between these two numbers.
"""

from __future__ import annotations

from typing import Final

# Ends of flows that share links, as computed by the clock: a time plus bytes divided by a rate, a few roundings.
ENDS_TOGETHER: Final = 1e-14
# Latencies along two sections of a ring, added in two different orders.
SUM_OF_LATENCIES: Final = 1e-12
# A link's bandwidth against the sum over flow rates: summing n rates loses at most n half steps, for some thousand
# flows.
SUM_OF_RATES: Final = 1e-12
