"""Which figures does an imported machine take if no file has them? Those of the shipped machine with the same GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from simulator.basics.units import format_bandwidth
from simulator.cluster.chassis import machine_of
from simulator.cluster.gpu_file import load_gpu
from simulator.cluster.topology_file import load_topology
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.settings import Setting

# Rate of an NVLink of the third and fourth generation, one direction [B/s]: the bridges of PCIe cards have such links.
_BRIDGE_LINK: Final = 25e9
# Network of machines whose shipped topology has none.
_WITH_NETWORK: Final = "pcie_server"
# NVLinks of machines whose shipped topology has none.
_WITH_LINKS: Final = "dgx_a100"


@dataclass(frozen=True, slots=True)
class Reference:
    """The shipped machine with a kind of GPU: its name, its builder's options with the GPU's PCIe, and the links."""

    gpu: str
    name: str
    options: Mapping[str, Any]
    link_bandwidth: float  # of one NVLink or xGMI link, one direction [B/s]
    links: int | None  # number of such links of a GPU

    @property
    def where(self) -> str:
        """Reason of an assumed figure."""
        return f"as in the topology {self.name}"

    def assumed(self, option: str, override: float | None, part: str, notes: Notes) -> float:
        """Return a bandwidth [B/s]: as given on the command line, or the shipped machine's, which is noted.

        Parameters
        ----------
        option : str
            The builder's option with the bandwidth, also the name of the command's option.
        override : float or None
            Value of the command's option.
        part : str
            Part of the machine, for the note.
        """
        spelled = f"--{option.replace('_', '-')}"
        if override is not None:
            notes.read(part, format_bandwidth(override), Setting(spelled, override, "command line"))
            return override
        from_gpu = option == "pcie_bandwidth" or not self.options[option]
        rate = float(self.options["pcie_bandwidth" if from_gpu else option])
        origin = f"the catalog's figure of {self.gpu}" if from_gpu else self.where
        notes.assume(part, format_bandwidth(rate), f"{origin}; {spelled} changes it")
        return rate


def reference_of(gpu: str, options: MachineOptions) -> Reference:
    """Return the figures to assume for a machine with a kind of GPU.

    Raises
    ------
    ScenarioError
        Unknown GPU.
    """
    card = load_gpu(gpu)
    name = machine_of(gpu)
    # The slot is the GPU's: the shipped machine may have another kind of GPU.
    figures = {**load_topology(name).options, "pcie_bandwidth": card.host_bandwidth}
    if not figures["nic_bandwidth"]:
        network = load_topology(_WITH_NETWORK).options
        figures |= {key: network[key] for key in ("nic_bandwidth", "nic_latency", "spine_latency")}
    if figures["inside"] == "pcie":
        # For NVLink bridges between PCIe cards.
        figures["link_latency"] = load_topology(_WITH_LINKS).options["link_latency"]
    links = card.facts.get("scale_up_links")
    rate = card.scale_up_bandwidth / links if links and card.scale_up_bandwidth else None
    return Reference(gpu, name, figures, options.link_bandwidth or rate or _BRIDGE_LINK, links)
