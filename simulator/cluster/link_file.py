"""How fast is a kind of link (NVLink, InfiniBand, PCIe): read from catalog/links/NAME.yaml, a path, or a mapping?

The bandwidth of the wire and the bandwidth that software reaches are separate figures. Topologies use the former; the
loss belongs to the machine and its collectives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from simulator.cluster.figure import Open, Speed, Strict, Time, figures
from simulator.cluster.locate import read_named
from simulator.cluster.validation import checked


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """Bandwidths and latency for a kind of link, such as NVLink or InfiniBand."""

    name: str
    bandwidth: float  # raw bandwidth, per direction [B/s]
    effective: float | None  # bandwidth that large transfers reach [B/s]; None if unknown
    latency: float | None  # latency [s]; None if unknown
    # Further figures, their sources, and the names of uncertain figures
    facts: Mapping[str, Any] = field(default_factory=dict)


class _LinkFile(Strict):
    product: str = ""
    bandwidth: Speed
    effective: Speed | None = None
    latency: Time | None = None
    further: dict[str, Open] = Field(default_factory=dict)


def load_link(link: str | Path | Mapping[str, Any], base: Path | None = None) -> LinkSpec:
    """Return a kind of link with its bandwidths and latency, read from the catalog, a file or a mapping.

    Parameters
    ----------
    link : str, Path or mapping
        A catalog name, a path, or the keys of a link file.
    base : Path, optional
        Folder against which a relative path is read first.

    Raises
    ------
    ScenarioError
        Unknown name; one line for each fault in the file.

    Examples
    --------
    >>> load_link("infiniband_ndr").bandwidth
    50000000000.0
    """
    name, document = read_named("link", link, base)
    file = checked(_LinkFile, document)
    # Sources and uncertain figures are listed by dotted key, for reports and tests.
    by_key = figures(file)
    facts = {
        "product": file.product,
        "further": {key: figure.value for key, figure in file.further.items()},
        "sources": {key: figure.source for key, figure in by_key},
        "unsure": tuple(key for key, figure in by_key if not figure.sure),
    }
    effective = None if file.effective is None else file.effective.value
    latency = None if file.latency is None else file.latency.value
    return LinkSpec(name, file.bandwidth.value, effective, latency, facts)
