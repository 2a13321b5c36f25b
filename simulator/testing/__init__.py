"""Checks that a user's own collective algorithm keeps the laws that this package's algorithms keep.

>>> from simulator.testing import check_algorithm
>>> check_algorithm("tree", [3]).holds
True
"""

from __future__ import annotations

from simulator.testing.check import AlgorithmCheck, LawResult, check_algorithm

__all__ = ["AlgorithmCheck", "LawResult", "check_algorithm"]
