"""Which parts does a file declare, and does each keep the laws of its kind?"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from simulator.basics.catalog import Catalog
from simulator.basics.errors import ScenarioError
from simulator.basics.foreign_code import is_python_file, load_file
from simulator.cluster.builder import BUILDERS
from simulator.collectives.algorithm import ALGORITHMS
from simulator.findings.found import FINDING_KINDS
from simulator.report.plots.catalog import PLOTS
from simulator.step.optimizers.optimizer import OPTIMIZERS
from simulator.step.pipelines.schedule import SCHEDULES
from simulator.step.strategies.strategy import STRATEGIES
from simulator.testing.algorithm_check import check_algorithm
from simulator.testing.builder_check import check_topology_builder
from simulator.testing.finding_check import check_finding
from simulator.testing.framework_check import check_framework
from simulator.testing.law import PartCheck
from simulator.testing.optimizer_check import check_optimizer
from simulator.testing.plot_check import check_plot
from simulator.testing.schedule_check import check_schedule
from simulator.testing.sharding_check import check_sharding

# Each kind of part with its check.
_KINDS: Final[Mapping[Catalog[Any], Callable[[str], PartCheck]]] = MappingProxyType(
    {
        ALGORITHMS: check_algorithm,
        SCHEDULES: check_schedule,
        STRATEGIES: check_sharding,
        BUILDERS: check_topology_builder,
        OPTIMIZERS: check_optimizer,
        FINDING_KINDS: check_finding,
        PLOTS: check_plot,
    }
)


# Endings of framework files, which are data.
_FRAMEWORKS: Final = (".yaml", ".yml")


def check_plugin(path: str | Path) -> tuple[PartCheck, ...]:
    """Check every part that a Python file declares, or a framework file, with the laws of the part's kind.

    Parameters
    ----------
    path : str or Path
        Path of a Python file, or of a framework file (YAML).

    Returns
    -------
    tuple of PartCheck
        A check for each part.

    Raises
    ------
    ScenarioError
        The path ends neither in .py nor in .yaml or .yml, or the file cannot be loaded or declares no part.
    """
    name = str(path)
    if name.endswith(_FRAMEWORKS):
        return (check_framework(name),)
    if not is_python_file(name):
        raise ScenarioError(f"got {name!r}; must be a Python file (.py) with a part, or a framework file (.yaml)")
    foreign = load_file(name)
    checks = [check for catalog, check in _KINDS.items() if catalog.declares(foreign)]
    if not checks:
        records = ", ".join(catalog.record for catalog in _KINDS)
        raise ScenarioError(f"{name}: declares no part; must have one of {records}")
    return tuple(check(name) for check in checks)
