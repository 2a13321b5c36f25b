"""How is a fit written: as a table for people, and as YAML for a topology file?

Rule: constants are written with the digits that they were played with, so that they are read back the same.
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

_UNITS: Final = {
    "startup": ("us", 1e-6), "rate_cap": ("GB/s", 1e9), "cross_rate_cap": ("GB/s", 1e9), "half_size": ("MB", 1e6),
    "step": ("us", 1e-6), "cross_step": ("us", 1e-6),
}  # fmt: skip


def fit_text(fit: Fit) -> str:
    """Write a fit as text: the algorithm and its constants, each size's times and error, what else was tried.

    Parameters
    ----------
    fit : Fit

    Returns
    -------
    str
        Lines; ends without a newline.
    """
    machine = fit.machine
    figures = ", ".join(f"{name} {text}" for name, text in written(machine).items())
    nodes = "" if fit.nodes == 1 else f" in {fit.nodes} nodes"
    lines = [f"{fit.operation} on {fit.world_size} ranks{nodes} of {fit.topology}: {machine.algorithm}"]
    lines += [f"{len(fit.constants)} constants: {figures}"]
    lines += [f"assumed: {text}" for text in fit.assumed]
    lines += ["", f"{'size':>10}  {'measured':>10}  {'simulated':>10}  {'error':>7}"]
    for row in fit.rows:
        mark = "" if row.played else "  (not played)"
        lines.append(
            f"{format_bytes(row.size):>10}  {format_time(row.measured):>10}  {format_time(row.simulated):>10}  "
            f"{row.error:>+7.1%}{mark}"
        )
    lines += ["", f"{_range(fit)}: {summary(fit)}"]
    lines += [f"also tried: {tried.text}" for tried in fit.tried[1:]]
    return "\n".join(lines)


def summary(fit: Fit) -> str:
    """Median, largest and worst in one line."""
    return (
        f"median |error| {fit.median:.1%}, at the largest size {fit.at_largest:+.1%}, "
        f"worst {fit.worst.error:+.1%} at {format_bytes(fit.worst.size)}"
    )


def _range(fit: Fit) -> str:
    return "all sizes" if len(fit.large) == len(fit.rows) else "from 1 MiB up"


def written(machine: MachineCollective) -> dict[str, str]:
    """The constants of a machine as a topology file has them."""
    return {name: _written(name, value) for name, value in constants(machine).items()}


def _written(name: str, value: float) -> str:
    if name not in _UNITS:
        return f"{value:g}"
    unit, factor = _UNITS[name]
    # Four digits, written out: the units' reader takes them back to the last bit.
    return f"{float(f'{value / factor:.4g}'):.10g} {unit}"


def machine_text(found: MachineFit) -> str:
    """Write all fits of a machine as text, what other sweeps say of them, and what none tells."""
    lines = ["\n\n".join(map(fit_text, found.fits)), ""] if found.fits else []
    lines += [f"not fitted, played: {check.sweep}: median |error| {check.median:.1%}" for check in found.checks]
    lines += [f"not told: {text}" for text in found.untold]
    return "\n".join(lines).rstrip()


def to_yaml(*fits: Fit) -> str:
    """Write the topology that fits were played on, with the fitted sections in it.

    Parameters
    ----------
    *fits : Fit
        One or more, all of one topology.

    Returns
    -------
    str
        A whole topology file: of a named topology its own text, comments kept, in which only what was fitted is new; of
        an assumed one its keys. Of a graph file the `collectives` section alone.
    """
    base, fitted = fits[0].base, _with({}, fits)
    if isinstance(base, Mapping):
        assumptions = "".join(f"# Assumed: {text}.\n" for text in fits[0].assumed)
        return f"{assumptions}{_mapping(base)}{section(fitted)}"
    path = locate("topology", base)
    if path.suffix in (".json", ".graphml"):
        return section(fitted)
    return without_section(path) + section(_with(load_topology(base).collectives, fits))


def _with(before: Mapping[str, MeasuredOperation], fits: Sequence[Fit]) -> dict[str, MeasuredOperation]:
    """What a topology runs, with fits in the place of what it had."""
    operations = dict(before)
    for fit in fits:
        own = operations.get(fit.operation, MeasuredOperation())
        new = {"one_node": fit.machine} if fit.nodes == 1 else {"nodes": fit.machine}
        operations[fit.operation] = replace(own, **new)
    return operations


def section(collectives: Mapping[str, MeasuredOperation]) -> str:
    """The `collectives` section of a topology file.

    Examples
    --------
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
    """A topology file's text without its `collectives`."""
    kept: list[str] = []
    inside = False
    for line in read_text(path).splitlines():
        if line and not line[0].isspace():
            inside = line.startswith("collectives:")
        if not inside:
            kept.append(line)
    return "\n".join(kept).rstrip() + "\n"


def _mapping(keys: Mapping[str, Any], indent: str = "") -> str:
    text = ""
    for name, value in keys.items():
        if isinstance(value, Mapping):
            text += f"{indent}{name}:\n{_mapping(value, indent + '  ')}"
        else:
            text += f"{indent}{name}: {value}\n"
    return text
