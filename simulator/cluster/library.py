"""What does a collective library reach on links over which no collective was measured?

The model of a library (NCCL, RCCL): on links of each kind it reaches a share of the rated bandwidth, every operation
has a start-up, and small arrays have lower rates. The figures are those of other machines with such links
(catalog/measured/library.csv), averaged over generations of links, so that many machines of one generation count once.

Example: NVLink 3, 4 and 5 reach 86 % in gathers over an NVSwitch; a machine that nobody measured, with ports of
150 GB/s at such a switch, reaches 86 %, 129 GB/s, less the time of each GPU's own part.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import exp, log
from statistics import fmean
from types import MappingProxyType
from typing import Final, Literal

from simulator.basics.measured_tables import read_table

LibraryName = Literal["nccl", "rccl", "none"]
Transport = Literal["rdma", "tcp"]
# Ways between two GPUs of a node: over an NVSwitch, over a link of their own, or over PCIe.
Way = Literal["switch", "cable", "pcie"]
TABLE: Final = "library.csv"
# Arrays below a packet take as long as a packet: 4096 B is the largest payload in an InfiniBand packet (MTU).
PACKET: Final = 4096
# Prefix of a source for constants that follow from this model.
MODELLED: Final = "library model"
SOURCE: Final = f"{MODELLED}: shares of bandwidth and start-ups of other machines' links"
# Kind of cards by transport.
_CARDS: Final[Mapping[Transport, str]] = MappingProxyType({"rdma": "card", "tcp": "tcp"})
# Transfers from node to node [s]: NCCL's own model of a ring for its protocol LL128 (src/graph/tuning.cc, hwLat). Its
# protocol for large arrays takes 14 us, which the growth of rates with the size contains.
_STEP: Final = 4e-6
# Kinds whose figures stand in for those that a kind lacks, nearest first: no start-up was measured on meshes, which
# lead from GPU to GPU without an NVSwitch, as PCIe does.
_STAND_IN: Final = {
    "mesh": ("pcie", "switch"), "xgmi": ("pcie", "switch"), "pcie": ("switch",), "tcp": ("card", "switch"),
}  # fmt: skip
# Parts of an array, one for each rank, that a rank sends for each other rank. A sum sends two, and loses as little as
# if it sent three: of 512 MiB, 2 GPUs reach 0.89 of what 4 reach (A100), 0.91 (H100), 0.84 (B200), 0.84 (GB200); in
# gathers 0.78, 0.81, 0.77 and 0.77 (ai-dynamo/aiconfigurator@095f58a5, NCCL 2.27 and 2.29).
_SENT_PARTS: Final = {"all_gather": 1, "reduce_scatter": 1, "all_to_all": 1, "all_reduce": 3}
# Operations whose figures stand in for those of operations that were not measured, in this order.
_USUAL: Final = ("all_gather", "all_reduce")
# Kinds of links over which the copy of the own part was seen.
_COPIED: Final = ("switch",)


def saturation(nbytes: float, half_size: float, exponent: float) -> float:
    """Return the fraction (0 to 1) of a rate that an array of `nbytes` bytes reaches: a half at `half_size` [B].

    >>> saturation(8192, 8192, 0.5), saturation(2**40, 8192, 1.0) > 0.99
    (0.5, True)
    """
    if half_size == 0.0 or nbytes <= 0:
        return 1.0
    return float(1.0 / (1.0 + (half_size / max(nbytes, PACKET)) ** exponent))


def own_share(operation: str, ranks: int, own_part: float) -> float:
    """Return the fraction (0 to 1) of a rate that is left for parts of an array sent to the other ranks of a node.

    A rank also handles its own part, by the same threads, which takes as long as `own_part` sent parts. In a gather
    among n ranks it sends n - 1 parts. Gathers of 512 MiB over 2, 4 and 8 A100 reach 150, 192 and 205 GB/s: 224 GB/s
    times (n - 1) / (n - 1 + 0.49) is 150, 193 and 209 (catalog/measured/collectives.csv).

    >>> [round(224 * own_share("all_gather", ranks, 0.49)) for ranks in (2, 4, 8)]
    [150, 193, 209]
    """
    sent = _SENT_PARTS.get(operation, 0) * (ranks - 1)
    return sent / (sent + own_part) if sent else 1.0


@dataclass(frozen=True, slots=True)
class UsedLinks:
    """How a library uses links of a kind in an operation."""

    startup: float  # time before the first transfer, besides the links' latencies [s]
    share: float  # share of the links' bandwidth that very large arrays reach
    half_time: float  # an array that would take this long at the full share of the bandwidth reaches half of it [s]
    exponent: float  # steepness, as in `MachineCollective`
    own_part: float = 0.0  # as in `own_share`

    def rate(self, bandwidth: float, nbytes: float) -> float:
        """Return the rate at which an array of `nbytes` bytes is sent over links with a bandwidth together [B/s]."""
        cap = self.share * bandwidth
        return cap * saturation(nbytes, self.half_time * cap, self.exponent)


@dataclass(frozen=True, slots=True)
class Library:
    """The model of a collective library on a machine.

    Attributes
    ----------
    cables : str
        Kind of the cables from GPU to GPU: "mesh" (NVLink), or "xgmi".
    across : str
        Kind of the network cards: "card", or "tcp" through the sockets of the operating system.
    time : float
        Factor on every time, of a framework whose network was calibrated; as `network_time` of `build`.
    without : str
        Links whose figures are left out of the averages, such as "NVLink 4"; "" for none. Shows how the model does on
        links that it has not seen.
    """

    cables: str
    across: str
    time: float = 1.0
    without: str = ""

    def over(self, transport: Transport | None, time: float) -> Library:
        """Return the model with a transport between nodes (None: the same) and a factor on times."""
        return replace(self, across=self.across if transport is None else _CARDS[transport], time=time)

    def within(self, operation: str, way: Way, *, adds: bool = False) -> UsedLinks:
        """Return how an operation uses links inside a node by a way; `adds`: switches add the arrays."""
        return self._use("adding_switch" if adds else self.cables if way == "cable" else way, operation)

    def between(self, operation: str) -> UsedLinks:
        """Return how an operation uses network cards."""
        return self._use(self.across, operation)

    @property
    def step(self) -> float:
        """Time of a transfer to another node, besides the links' latencies [s]."""
        return _STEP * self.time

    def _use(self, kind: str, operation: str) -> UsedLinks:
        use = _use(kind, operation, self.without)
        # Links that take longer have a smaller bandwidth already.
        return replace(use, startup=use.startup * self.time, half_time=use.half_time * self.time)


def library_of(name: LibraryName, transport: Transport) -> Library | None:
    """Return the model of a library; None for the library "none"."""
    return None if name == "none" else Library("xgmi" if name == "rccl" else "mesh", _CARDS[transport])


@cache
def _use(kind: str, operation: str, without: str) -> UsedLinks:
    startup, half_time = (1e-6 * _mean(name, kind, operation, without) for name in ("startup_us", "half_time_us"))
    share, exponent = (_mean(name, kind, operation, without) for name in ("share", "exponent"))
    # Switches that add leave no part to copy; over cards, it is little beside what is sent.
    copied = _mean("own_part", kind, operation, without) if kind in _COPIED else 0.0
    return UsedLinks(startup, share, half_time, exponent, copied)


def _mean(column: str, kind: str, operation: str, without: str) -> float:
    """Return the geometric mean of a column over generations of links, from the nearest rows that have the figure."""
    by_links: dict[str, list[float]] = {}
    for rows in _nearest(kind, operation):
        for row in rows:
            if row[column] and row["links"] != without:
                by_links.setdefault(row["links"], []).append(log(float(row[column])))
        if by_links:
            break
    return exp(fmean(fmean(values) for values in by_links.values()))


def _nearest(kind: str, operation: str) -> Iterator[list[dict[str, str]]]:
    """Yield rows of the table, nearest first: of the kind and operation, of the kind, of a kind that stands in."""
    table = read_table(TABLE)
    for other in (kind, *_STAND_IN.get(kind, ("switch",))):
        of_kind = [row for row in table if row["kind"] == other]
        for name in dict.fromkeys((operation, *_USUAL)):
            yield [row for row in of_kind if row["operation"] == name]
        yield of_kind
