"""`simulator show --links`: which links has a machine, and how fast is each link?"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from simulator.basics.errors import ScenarioError
from simulator.basics.natural_order import natural
from simulator.basics.units import format_bandwidth, format_time
from simulator.cli.show import built


def print_links(topology: str, world_size: int | None, gpu: str | None, drawing: Sequence[str] = ()) -> None:
    """Print a line for each directed link: its name (as in `cluster.link_factors`), bandwidth and latency.

    ScenarioError if `drawing` has options for a picture, because no picture is drawn.
    """
    if drawing:
        raise ScenarioError(f"{drawing[0]}: excludes --links, because --links draws no picture; omit one option")
    edges = built(topology, world_size, gpu).graph.edges(data=True)
    rows = [
        (f"{src}->{dst}", format_bandwidth(edge["bandwidth"]), format_time(edge["latency"])) for src, dst, edge in edges
    ]
    rows.sort(key=lambda row: natural(row[0]))
    name, bandwidth, latency = (max((len(row[i]) for row in rows), default=0) for i in range(3))
    for link, rate, delay in rows:
        # A line for each link at any width of the terminal, for `grep`.
        typer.echo(f"{link:<{name}}  {rate:>{bandwidth}}  {delay:>{latency}}")
