"""Refuses an option whose optional package (Dask, pyarrow) is not installed, and says how to install it.

Nothing is imported here; each module imports an optional package where the package is used.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from simulator.basics.errors import ScenarioError

Extra = Literal["distributed", "parquet"]


def require_package(option: str, package: str, extra: Extra) -> None:
    """Raise an error if the optional package of an option is not installed.

    Parameters
    ----------
    option : str
        The option as written by the user.
    package : str
        Import name of the package.
    extra : str
        Extra of this package that installs the optional package.

    Raises
    ------
    ScenarioError
        The package is not installed; the message says how to install it.
    """
    if find_spec(package) is None:
        raise ScenarioError(f"{option}: needs the package {package}; pip install 'cluster-training-simulator[{extra}]'")
