"""Does a topology builder keep the laws of topologies? Clusters of several sizes, with simple options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from simulator.basics.errors import ScenarioError
from simulator.basics.foreign_code import located
from simulator.cluster.build import facts
from simulator.cluster.builder import BUILDERS, Builder
from simulator.testing import topology_laws as laws
from simulator.testing.law import PartCheck, judged, require

SIZES: Final = (1, 2, 3, 7, 8, 16, 20)
_LAWS: Final[dict[str, Callable[[laws.Topology, int], bool | None]]] = {
    "parts as counted": laws.has_as_many_parts_as_counted,
    "vertices and links": laws.has_sound_parts,
    "ranks are the first GPUs": laws.numbers_its_gpus,
    "a route for every pair": laws.connects_every_pair,
    "nodes hold every rank once": laws.fills_its_nodes,
    "routes to hosts": laws.reaches_its_hosts,
    "separate servers": laws.has_its_servers,
    "copies in worker processes": laws.survives_pickling,
    "the same time in both engines": laws.is_simulated,
}
# Value of a required option without an example in its type, by its JSON type.
_SIMPLE: Final[Mapping[str, Any]] = {"integer": 2, "number": 1.0, "boolean": True}


def check_topology_builder(builder: str | Path, options: Mapping[str, Any] | None = None) -> PartCheck:
    """Check a topology builder: its graph, routes, nodes, servers, limits and the size that it counts.

    Parameters
    ----------
    builder : str or Path
        Path of a file with a builder, or name of a builder.
    options : mapping, optional
        Options as in a topology file; by default 12.5 GB/s, 5 us and counts of 2 for the required options.

    Returns
    -------
    PartCheck
        `holds` is True if every law holds; `lines()` tells the results.

    Raises
    ------
    ScenarioError
        The file declares no builder, or refuses the options.

    Examples
    --------
    >>> check_topology_builder("ring").holds
    True
    """
    name, path = str(builder), located(str(builder))
    record = BUILDERS.find(path)
    settings = dict(options) if options is not None else _example_options(record, name)
    topology = {"builder": path, "options": settings, "gpu": "h100_sxm"}
    most = facts(topology).max_ranks
    sizes = [size for size in SIZES if most is None or size <= most]
    results = (
        judged("", "options are described", [("", partial(_describes_its_options, record))]),
        *(
            judged("", law, ((f"{ranks} ranks", partial(check, topology, ranks)) for ranks in sizes))
            for law, check in _LAWS.items()
        ),
        judged("", "number of GPUs", [("", partial(laws.has_the_declared_number_of_gpus, topology))]),
    )
    return PartCheck(name, "topologies", results, f"{', '.join(map(str, sizes))} ranks")


def _describes_its_options(builder: Builder) -> None:
    """Check that the docstring of a builder's function explains every option."""
    docstring = builder.function.__doc__ or ""
    missing = next((option for option in builder.options.model_fields if option not in docstring), "")
    require(not missing, f"the docstring does not explain option {missing}")


def _example_options(builder: Builder, name: str) -> dict[str, Any]:
    """Return a simple value for each required option of a builder."""
    schema = builder.options.model_json_schema()
    values = {option: _example(schema["properties"][option]) for option in schema.get("required", ())}
    unknown = next((option for option, value in values.items() if value is None), None)
    if unknown is not None:
        raise ScenarioError(f"{name}: option {unknown} has no example; give check_topology_builder(..., options=...)")
    return values


def _example(form: Mapping[str, Any]) -> Any:
    if form.get("examples"):
        return form["examples"][0]
    if form.get("enum"):
        return form["enum"][0]
    if form.get("type") == "array":
        item = _example(form.get("items", {}))
        return None if item is None else [item, item]
    return _SIMPLE.get(str(form.get("type")))
