"""Which links of a run are alike, so that one row of a picture can stand for all of them?

Rule: alike are links between the same kinds of ends, of one bandwidth, that carried the same bytes and were busy for
the same time, to two per cent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from simulator.basics.natural_order import natural
from simulator.records.timeline import LinkUse
from simulator.report.numbers.link_use import used

_ALIKE: Final = 0.02


@dataclass(frozen=True, slots=True)
class AlikeLinks:
    """Links that are alike.

    Attributes
    ----------
    links : tuple of LinkUse
    """

    links: tuple[LinkUse, ...]

    @property
    def name(self) -> str:
        """A single link's own name; of several their number and the kinds of their ends."""
        first = self.links[0].name
        return first if len(self.links) == 1 else f"{len(self.links)} x {directed_kind(first)}"

    @property
    def nbytes(self) -> float:
        """Carried by one of them, in the mean [B]."""
        return sum(link.nbytes for link in self.links) / len(self.links)

    @property
    def busy(self) -> float:
        """How long one of them was busy, in the mean [s]."""
        return sum(link.busy for link in self.links) / len(self.links)

    def used(self, end: float) -> float:
        """Share of its bandwidth that one of them used until a time [s], in the mean, 0 to 1."""
        return sum(used(link, end) for link in self.links) / len(self.links)


def directed_kind(name: str) -> str:
    """What a link joins, in its direction, without numbers.

    Examples
    --------
    >>> directed_kind("gpu3->node0/nvswitch"), directed_kind("leaf1->nic7")
    ('gpu -> node/nvswitch', 'leaf -> nic')
    """
    return " -> ".join(re.sub(r"\d+", "", end).strip("._- ") for end in name.split("->"))


def alike_links(uses: Sequence[LinkUse], end: float) -> list[AlikeLinks]:
    """Group links, those that are used most first.

    Parameters
    ----------
    uses : sequence of LinkUse
    end : float
        Of the run [s].
    """
    groups: list[list[LinkUse]] = []
    open_groups: dict[tuple[str, float], list[list[LinkUse]]] = {}
    for use in sorted(uses, key=lambda use: (-use.nbytes, -use.busy, natural(use.name))):
        of_kind = open_groups.setdefault((directed_kind(use.name), use.bandwidth), [])
        group = next((own for own in _near(of_kind, use) if _are_alike(own[0], use)), None)
        if group is None:
            group = []
            of_kind.append(group)
            groups.append(group)
        group.append(use)
    rows = [AlikeLinks(tuple(group)) for group in groups]
    return sorted(rows, key=lambda row: (-row.used(end), -row.busy, row.name))


def _near(groups: Sequence[list[LinkUse]], use: LinkUse) -> Iterator[list[LinkUse]]:
    """The groups that carried about as much; links come by falling bytes, so that they are the last ones."""
    for own in reversed(groups):
        if own[0].nbytes * (1 - _ALIKE) > use.nbytes:
            return
        yield own


def _are_alike(one: LinkUse, other: LinkUse) -> bool:
    return abs(one.nbytes - other.nbytes) <= _ALIKE * one.nbytes and abs(one.busy - other.busy) <= _ALIKE * one.busy
