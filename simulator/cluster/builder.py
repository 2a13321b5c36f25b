"""Which topology builders exist, and which options does each builder take?

Each file in `builders/` is a builder, and so is a user's file of the same form; the function's signature is the schema
for the options.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from simulator.basics.catalog import Catalog
from simulator.basics.errors import ScenarioError
from simulator.basics.foreign_code import Foreign, Origin
from simulator.basics.registry import module_names
from simulator.cluster import builders
from simulator.cluster.graph import Graph
from simulator.cluster.limits import GraphSize, TopologyLimits

# Parameters passed by `build`, and therefore not options in a topology file.
_PASSED_BY_BUILD: Final = ("world_size", "servers")


@dataclass(frozen=True, slots=True)
class Builder:
    """A topology builder: function, limits, graph size and schema for options."""

    name: str
    function: Callable[..., Graph]  # returns the graph
    limits: Callable[..., TopologyLimits]  # returns the TopologyLimits for the same options
    size: Callable[..., GraphSize]  # returns the GraphSize for given ranks, servers and options; builds nothing
    options: type[BaseModel]  # schema of `options` in a topology file

    def build(self, options: Mapping[str, Any], world_size: int, servers: int) -> Graph:
        """Return the graph that the builder's function makes from `options`, and from ranks and servers if accepted."""
        # A torus, for example, has a fixed size and takes no world_size; a ring has no ports for servers.
        parameters = inspect.signature(self.function).parameters
        passed = {"world_size": world_size, "servers": servers}
        return self.function(**options, **{name: passed[name] for name in _PASSED_BY_BUILD if name in parameters})


class _Builders(Catalog[Builder]):
    """The topology builders by name: the name of a module, and of its function that returns the graph."""

    @property
    def record(self) -> str:
        """Functions that a file declares, in words."""
        return "functions named as the file, limits and size (topology builder)"

    def names(self) -> tuple[str, ...]:
        """Return the names of the topology builders, sorted."""
        return module_names(builders.__name__)

    def _shipped(self, name: str) -> Builder | None:
        return _of_module(import_module(f"{builders.__name__}.{name}"), name) if name in self.names() else None

    def _declared(self, foreign: Foreign) -> Builder | None:
        """Return the builder in a file: the function with the file's name, `limits` and `size`; None if absent."""
        module, name = foreign.declared, Path(foreign.origin.path).stem
        if not isinstance(module, ModuleType):
            # An entry point may name the function.
            module, name = sys.modules.get(getattr(module, "__module__", "")), getattr(module, "__name__", "")
        if not all(callable(getattr(module, each, None)) for each in (name, "limits", "size")):
            return None
        with foreign.origin.telling():
            return _of_module(module, name)

    def _missing(self, origin: Origin) -> str:
        name = Path(origin.path).stem
        return f"declares no topology builder; write the functions `{name}` (as the file), `limits` and `size`"


@cache
def _of_module(module: Any, name: str) -> Builder:
    function = getattr(module, name)
    return Builder(name, function, module.limits, module.size, _options(name, function))


def _options(name: str, function: Callable[..., Graph]) -> type[BaseModel]:
    """Return a strict pydantic model of a builder function's parameters that a topology file may give."""
    hints = get_type_hints(function, include_extras=True)
    bare = [key for key in inspect.signature(function).parameters if key not in hints and key not in _PASSED_BY_BUILD]
    if bare:
        raise ScenarioError(f"builder {name}: option {bare[0]} has no type; write for example `{bare[0]}: Bandwidth`")
    fields = {
        parameter.name: (hints[parameter.name], ... if parameter.default is parameter.empty else parameter.default)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.name not in _PASSED_BY_BUILD
    }
    # Strict: a misspelt option or a number given as text is a fault, not a guess.
    config = ConfigDict(extra="forbid", strict=True)
    return cast("type[BaseModel]", cast(Any, create_model)(f"{name}_options", __config__=config, **fields))


# A ValueError says that options contradict each other.
BUILDERS: Final = _Builders(
    builders.__name__, "builder", Builder, "builder", refusals=(ValueError,), listed_by="simulator list builders"
)
