"""Which links in a run are equivalent? A picture shows equivalent links in a single row.

Equivalent links have the same kinds of ends and the same bandwidth, and carried the same bytes and were busy for the
same time, within two per cent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from simulator.basics.natural_order import natural
from simulator.records.timeline import LinkUse
from simulator.report.numbers.link_use import used

# Relative difference up to which links are equivalent.
_ALIKE: Final = 0.02


@dataclass(frozen=True, slots=True)
class EquivalentLinks:
    """A group of equivalent links."""

    links: tuple[LinkUse, ...]  # the links, those with the most bytes first

    @property
    def name(self) -> str:
        """Name for the group: a single link's name, or the number of links and both ends' kinds."""
        first = self.links[0].name
        return first if len(self.links) == 1 else f"{len(self.links)} x {directed_kind(first)}"

    @property
    def nbytes(self) -> float:
        """Mean bytes carried per link in the group [B]."""
        return sum(link.nbytes for link in self.links) / len(self.links)

    @property
    def busy(self) -> float:
        """Mean busy time (with at least a flow) over the group's links [s]."""
        return sum(link.busy for link in self.links) / len(self.links)

    def used(self, end: float) -> float:
        """Return the mean share (0 to 1) of a link's bandwidth that the group's links use from 0 until `end` [s]."""
        return sum(used(link, end) for link in self.links) / len(self.links)


def directed_kind(name: str) -> str:
    """Return a link name "src->dst" without numbers: only the kinds of its two ends remain.

    >>> directed_kind("gpu3->node0/nvswitch"), directed_kind("leaf1->nic7")
    ('gpu -> node/nvswitch', 'leaf -> nic')
    """
    return " -> ".join(re.sub(r"\d+", "", end).strip("._- ") for end in name.split("->"))


def equivalent_links(uses: Sequence[LinkUse], end: float) -> list[EquivalentLinks]:
    """Return the links in groups with equal kinds of ends, bandwidth, bytes and busy time, the most used group first.

    Parameters
    ----------
    uses : sequence of LinkUse
        Use of each link.
    end : float
        End of the run [s].
    """
    groups: list[list[LinkUse]] = []
    open_groups: dict[tuple[str, float], list[list[LinkUse]]] = {}
    # Sorted by falling bytes, a link can only join groups whose first link carried about as much or slightly more.
    for use in sorted(uses, key=lambda use: (-use.nbytes, -use.busy, natural(use.name))):
        of_kind = open_groups.setdefault((directed_kind(use.name), use.bandwidth), [])
        # Compare with a group's first link, so that a group spans at most two per cent.
        group = next((candidate for candidate in _near(of_kind, use) if _are_alike(candidate[0], use)), None)
        if group is None:
            group = []
            of_kind.append(group)
            groups.append(group)
        group.append(use)
    rows = [EquivalentLinks(tuple(group)) for group in groups]
    # Names as the last key make the order reproducible.
    return sorted(rows, key=lambda row: (-row.used(end), -row.busy, row.name))


def _near(groups: Sequence[list[LinkUse]], use: LinkUse) -> Iterator[list[LinkUse]]:
    """Yield the groups whose links' bytes are at most two per cent above the bytes of `use`, the latest group first."""
    for group in reversed(groups):
        # Groups come with falling bytes: earlier groups carried even more.
        if group[0].nbytes * (1 - _ALIKE) > use.nbytes:
            return
        yield group


def _are_alike(use: LinkUse, other: LinkUse) -> bool:
    """Return True if two links carried the same bytes and were busy equally long, within two per cent."""
    return abs(use.nbytes - other.nbytes) <= _ALIKE * use.nbytes and abs(use.busy - other.busy) <= _ALIKE * use.busy
