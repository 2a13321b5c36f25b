"""How is a fit written? As a table for people, and as YAML for a topology file.

Constants are written with exactly the digits used in the simulation, and are read back to equal values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from simulator.basics.input_files import read_text
from simulator.basics.units import format_bytes, format_time
from simulator.calibration.machines.records import Fit, MachineFit, constants
from simulator.cluster.cluster import MachineCollective
from simulator.cluster.locate import locate
from simulator.cluster.topology_file import MeasuredOperation, load_topology

# Unit and factor for each constant; constants missing here have no unit.
_UNITS: Final = {
    "startup": ("us", 1e-6), "rate_cap": ("GB/s", 1e9), "cross_rate_cap": ("GB/s", 1e9), "half_size": ("MB", 1e6),
    "step": ("us", 1e-6), "cross_step": ("us", 1e-6),
}  # fmt: skip


def fit_text(fit: Fit) -> str:
    """Return a fit as text: the algorithm, its constants, each size's residual, and the other algorithms tried.

    Parameters
    ----------
    fit : Fit
        The fit.

    Returns
    -------
    str
        Lines without a final line end.
    """
    machine = fit.machine
    figures = ", ".join(f"{name} {text}" for name, text in written(machine).items())
    nodes = "" if fit.nodes == 1 else f" in {fit.nodes} nodes"
    lines = [f"{fit.operation} on {fit.world_size} ranks{nodes} of {fit.topology}: {machine.algorithm}"]
    lines += [f"{len(fit.constants)} constants: {figures}"]
    lines += [f"assumed: {text}" for text in fit.assumed]
    lines += ["", f"{'size':>10}  {'measured':>10}  {'simulated':>10}  {'error':>7}"]
    for row in fit.rows:
        mark = "" if row.played else "  (not simulated)"
        lines.append(
            f"{format_bytes(row.size):>10}  {format_time(row.measured):>10}  {format_time(row.simulated):>10}  "
            f"{row.error:>+7.1%}{mark}"
        )
    lines += ["", f"{_range(fit)}: {summary(fit)}"]
    lines += [f"also tested: {tried.text}" for tried in fit.tried[1:]]
    return "\n".join(lines)


def summary(fit: Fit) -> str:
    """Return a line of text with a fit's median error, error at the largest size, and worst error."""
    return (
        f"median |error| {fit.median:.1%}, at the largest size {fit.at_largest:+.1%}, "
        f"worst {fit.worst.error:+.1%} at {format_bytes(fit.worst.size)}"
    )


def _range(fit: Fit) -> str:
    return "all sizes" if len(fit.large) == len(fit.rows) else "from 1 MiB up"


def written(machine: MachineCollective) -> dict[str, str]:
    """Return a machine's constants by name, as written in a topology file."""
    return {name: _written(name, value) for name, value in constants(machine).items()}


def _written(name: str, value: float) -> str:
    if name not in _UNITS:
        return f"{value:g}"
    unit, factor = _UNITS[name]
    # Four digits; the unit parser returns the same value to the last bit.
    return f"{float(f'{value / factor:.4g}'):.10g} {unit}"


def machine_text(fits: MachineFit) -> str:
    """Return a machine's fits as text, with the checks and the constants not determined by any sweep."""
    lines = ["\n\n".join(map(fit_text, fits.fits)), ""] if fits.fits else []
    lines += [f"simulated, but not fitted: {check.sweep}: median |error| {check.median:.1%}" for check in fits.checks]
    lines += [f"not determined: {text}" for text in fits.untold]
    return "\n".join(lines).rstrip()


def to_yaml(*fits: Fit) -> str:
    """Return a topology file as text, with sections for the fitted collectives inserted.

    Parameters
    ----------
    *fits : Fit
        One or more fits on the same topology.

    Returns
    -------
    str
        A whole topology file. For a named topology: its own text with comments, where only fitted sections are new. For
        an assumed topology: its keys. For a graph file: the `collectives` section alone.
    """
    base, fitted = fits[0].base, _with({}, fits)
    # An assumed topology has no file of its own; write every key, and the assumptions as comments.
    if isinstance(base, Mapping):
        assumptions = "".join(f"# Assumed: {text}.\n" for text in fits[0].assumed)
        return f"{assumptions}{_mapping(base)}{section(fitted)}"
    path = locate("topology", base)
    if path.suffix in (".json", ".graphml"):
        return section(fitted)
    return without_section(path) + section(_with(load_topology(base).collectives, fits))


def _with(before: Mapping[str, MeasuredOperation], fits: Sequence[Fit]) -> dict[str, MeasuredOperation]:
    """Return a topology's measured operations, in which the constants of fits replace earlier constants."""
    operations = dict(before)
    for fit in fits:
        operation = operations.get(fit.operation, MeasuredOperation())
        new = {"one_node": fit.machine} if fit.nodes == 1 else {"nodes": fit.machine}
        operations[fit.operation] = replace(operation, **new)
    return operations


def section(collectives: Mapping[str, MeasuredOperation]) -> str:
    """Return the text of a topology file's `collectives` section with these measured operations.

    >>> print(section({"all_reduce": MeasuredOperation(one_node=MachineCollective("ring", 5e-6, 2e11))}).strip())
    collectives:
      all_reduce:
        one_node:
          algorithm: ring
          startup: 5 us
          rate_cap: 200 GB/s
    """
    lines = ["collectives:"]
    for operation, measured in collectives.items():
        lines.append(f"  {operation}:")
        for key, machine in (("one_node", measured.one_node), ("nodes", measured.nodes)):
            if machine is None:
                continue
            lines += [f"    {key}:", f"      algorithm: {machine.algorithm}"]
            lines += [f"      {name}: {text}" for name, text in written(machine).items()]
            lines += [f"      source: {json.dumps(machine.source)}"] if machine.source else []
    return "\n".join(lines) + "\n"


def without_section(path: Path) -> str:
    """Return a topology file's text without its `collectives` section."""
    lines: list[str] = []
    inside = False
    # A line without indentation starts the next section.
    for line in read_text(path).splitlines():
        if line and not line[0].isspace():
            inside = line.startswith("collectives:")
        if not inside:
            lines.append(line)
    return "\n".join(lines).rstrip() + "\n"


def _mapping(keys: Mapping[str, Any], indent: str = "") -> str:
    text = ""
    for name, value in keys.items():
        if isinstance(value, Mapping):
            text += f"{indent}{name}:\n{_mapping(value, indent + '  ')}"
        else:
            text += f"{indent}{name}: {value}\n"
    return text
