"""Refuses an option whose optional package (Dask, pyarrow) is not installed, and says how to install it.

Rule: nothing is imported here; the module that uses a package imports it where it is used.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from simulator.basics.errors import ScenarioError

Extra = Literal["distributed", "parquet"]


def require_package(option: str, package: str, extra: Extra) -> None:
    """Refuse an option whose package is not installed.

    Parameters
    ----------
    option : str
        As its user wrote it.
    package : str
        As it is imported.
    extra : str
        The extra of this package that brings it.

    Raises
    ------
    ScenarioError
        It is not there; says how to install it.
    """
    if find_spec(package) is None:
        raise ScenarioError(f"{option}: needs the package {package}; pip install 'cluster-training-simulator[{extra}]'")
