"""Checks that a user's own part keeps the laws that this package's parts keep.

>>> from simulator.testing import check_algorithm, check_schedule
>>> check_algorithm("tree", [3]).holds, check_schedule("1f1b").holds
(True, True)
"""

from __future__ import annotations

from simulator.testing.algorithm_check import AlgorithmCheck, check_algorithm
from simulator.testing.builder_check import check_topology_builder
from simulator.testing.finding_check import check_finding
from simulator.testing.framework_check import check_framework
from simulator.testing.law import LawResult, PartCheck
from simulator.testing.optimizer_check import check_optimizer
from simulator.testing.plot_check import check_plot
from simulator.testing.plugin_check import check_plugin
from simulator.testing.schedule_check import check_schedule
from simulator.testing.sharding_check import check_sharding

__all__ = [
    "AlgorithmCheck",
    "LawResult",
    "PartCheck",
    "check_algorithm",
    "check_finding",
    "check_framework",
    "check_optimizer",
    "check_plot",
    "check_plugin",
    "check_schedule",
    "check_sharding",
    "check_topology_builder",
]
