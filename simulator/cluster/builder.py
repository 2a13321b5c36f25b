"""Which topology builders exist, and which options does each builder take?

Each file in `builders/` is a builder; the function's signature is the schema for the options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from simulator.basics.errors import UnknownNameError
from simulator.cluster import builders
from simulator.cluster.graph import Graph
from simulator.cluster.limits import GraphSize, TopologyLimits

# Parameters passed by `build`, and therefore not options in a topology file.
_PASSED_BY_BUILD: Final = ("world_size", "servers")


@dataclass(frozen=True, slots=True)
class Builder:
    """A topology builder: function, limits, graph size and schema for options.

    Attributes
    ----------
    function : callable
        Returns the graph.
    limits : callable
        Returns the TopologyLimits for the same options.
    size : callable
        Returns the GraphSize for given ranks, servers and options; builds nothing.
    options : type of pydantic.BaseModel
        Schema of `options` in a topology file.
    """

    name: str
    function: Callable[..., Graph]
    limits: Callable[..., TopologyLimits]
    size: Callable[..., GraphSize]
    options: type[BaseModel]

    def build(self, options: Mapping[str, Any], world_size: int, servers: int) -> Graph:
        """Return the graph that the builder's function makes from `options`, and from ranks and servers if accepted."""
        # A torus, for example, has a fixed size and takes no world_size; a ring has no ports for servers.
        parameters = inspect.signature(self.function).parameters
        passed = {"world_size": world_size, "servers": servers}
        return self.function(**options, **{name: passed[name] for name in _PASSED_BY_BUILD if name in parameters})


def names() -> tuple[str, ...]:
    """Return the names of the topology builders, sorted."""
    return tuple(sorted(module.name for module in iter_modules(builders.__path__)))


@cache
def find(name: str) -> Builder:
    """Return the topology builder with this name.

    Raises
    ------
    UnknownNameError
        There is no such builder; the message suggests similar names.
    """
    if name not in names():
        raise UnknownNameError("builder", name, names(), listed_by="simulator list builders")
    module = import_module(f"{builders.__name__}.{name}")
    function = getattr(module, name)
    return Builder(name, function, module.limits, module.size, _options(name, function))


def _options(name: str, function: Callable[..., Graph]) -> type[BaseModel]:
    """Return a strict pydantic model of a builder function's parameters that a topology file may give."""
    hints = get_type_hints(function, include_extras=True)
    fields = {
        parameter.name: (hints[parameter.name], ... if parameter.default is parameter.empty else parameter.default)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in _PASSED_BY_BUILD
    }
    # Strict: a misspelt option or a number given as text is a fault, not a guess.
    config = ConfigDict(extra="forbid", strict=True)
    return cast("type[BaseModel]", cast(Any, create_model)(f"{name}_options", __config__=config, **fields))
