"""Which fast links have the GPUs of a node, and how fast are they: NVLink, xGMI, an NVSwitch?

Files count links and give no rates. A rate follows from the GPU's kind in the catalog, or from the command's options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simulator.basics.errors import few
from simulator.basics.units import format_bandwidth
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.machines.reference import Reference
from simulator.importing.settings import Setting


@dataclass(frozen=True, slots=True)
class Links:
    """Fast links of a node; bandwidths count one direction [B/s].

    Attributes
    ----------
    peers : mapping of (int, int) to float
        Bandwidth of the direct links between two GPUs, lower number first.
    switches : tuple of mapping of int to float
        Bandwidth of each GPU to its NVSwitch, for each NVSwitch.
    reduces : bool
        Whether the NVSwitch can add; False for several.
    """

    peers: Mapping[tuple[int, int], float] = field(default_factory=dict)
    switches: tuple[Mapping[int, float], ...] = ()
    reduces: bool = False


def counted_links(
    peers: Mapping[tuple[int, int], int],
    switches: Sequence[Mapping[int, int]],
    gpus: int,
    setting: Setting,
    reference: Reference,
    options: MachineOptions,
    notes: Notes,
) -> Links:
    """Return the links of a file that counts them, and note the counts and the rate.

    Parameters
    ----------
    peers : mapping of (int, int) to int
        Number of links of each pair of GPUs.
    switches : sequence of mapping of int to int
        Number of links of each GPU to its NVSwitch, for each NVSwitch.
    gpus : int
        GPUs of the node.
    setting : Setting
        Setting of the file with the counts.
    """
    if not peers and not switches:
        return Links()
    if switches:
        counts = few([f"{count} a GPU" for count in dict.fromkeys(n for chip in switches for n in chip.values())], 4)
        several = f", {len(switches)} NVSwitches" if len(switches) > 1 else ""
        notes.read("links to the NVSwitch", f"{counts}{several}", setting)
    if peers:
        counts = few([str(count) for count in dict.fromkeys(peers.values())], 4)
        notes.read("links between GPUs", f"{len(peers)} pair{'s' * (len(peers) > 1)} of GPUs, {counts} each", setting)
    rate = reference.link_bandwidth
    notes.assume("one link", format_bandwidth(rate), _origin(reference, options))
    return Links(
        {pair: count * rate for pair, count in peers.items()},
        tuple({gpu: count * rate for gpu, count in switch.items()} for switch in switches),
        _reduces(switches, gpus, reference, notes),
    )


def assumed_links(gpus: int, reference: Reference, options: MachineOptions, notes: Notes) -> Links:
    """Return the links of a node without links in its file: as the option or the shipped machine has them."""
    if options.inside is None:
        inside = str(reference.options["inside"])
        notes.assume("links between GPUs", inside, f"the file has no NVLinks; {reference.where}; --inside changes it")
    else:
        inside = options.inside
        notes.read("links between GPUs", inside, Setting("--inside", inside, "command line"))
    if inside == "pcie" or gpus < 2:
        return Links()
    count = reference.links or 1
    total, origin = count * reference.link_bandwidth, f"{count} links: {_origin(reference, options)}"
    if inside == "nvswitch":
        notes.assume("NVSwitch", f"{format_bandwidth(total)} a GPU", origin)
        switches = (dict.fromkeys(range(gpus), total),)
        return Links({}, switches, _reduces(switches, gpus, reference, notes))
    share = total / (gpus - 1)
    notes.assume("full mesh", f"{format_bandwidth(share)} a pair of GPUs", origin)
    return Links({(i, j): share for i in range(gpus) for j in range(i + 1, gpus)})


def _reduces(switches: Sequence[Mapping[int, float]], gpus: int, reference: Reference, notes: Notes) -> bool:
    """Return True if an NVSwitch joins all GPUs of the node, and can add as that of the shipped machine can."""
    if not switches:
        return False
    joined = len(switches[0]) == gpus
    reduces = joined and bool(reference.options["in_switch_reduction"])
    why = reference.where if joined else "no NVSwitch reaches every GPU of the node"
    notes.assume("sums in the NVSwitch", "yes" if reduces else "no", why)
    return reduces


def _origin(reference: Reference, options: MachineOptions) -> str:
    """Return the origin of a link's rate, in words."""
    if options.link_bandwidth:
        return "--link-bandwidth"
    if reference.links:
        return f"the catalog's figure of {reference.gpu}; --link-bandwidth changes it"
    return f"the catalog has no links of {reference.gpu}; an NVLink of generation 3 or 4; --link-bandwidth changes it"
