"""The worked examples of CONTRIBUTING.md do what they say."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from simulator.basics.registry import find
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.verify import verify
from simulator.records.transfers import write_out
from simulator.report.plots.plot import CloseUp
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
FILES = dict(re.findall(r"```python\n# (simulator/\S+\.py)\n(.*?)```", PAGE, re.S))


def module(path: str) -> ModuleType:
    """A file of the page, as if it stood where the page says."""
    made = ModuleType(path.removesuffix(".py").replace("/", "."))
    exec(compile(FILES[path], path, "exec"), made.__dict__)
    return made


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 7, 8, 13, 16])
def test_the_algorithm_gathers_everything_and_sends_the_least(ranks: int) -> None:
    algorithm = module("simulator/collectives/bruck.py").ALGORITHM
    request = CollectiveRequest("all_gather", ranks, 5 * ranks)
    schedule = algorithm.plans["all_gather"](request)
    transfers = write_out(schedule)
    verify(schedule, transfers)
    assert len(transfers) == schedule.rows == ranks * (ranks - 1).bit_length()
    assert algorithm.minimal(request)
    assert 5 * int(transfers.count.sum()) == algorithm.volume(request) == (ranks - 1) * 5 * ranks


def test_the_builder_joins_neighbours() -> None:
    builder = module("simulator/cluster/builders/row.py")
    graph = builder.row(4, bandwidth=1e9, latency=1e-6)
    assert sorted(graph.edges) == sorted(
        (f"gpu{a}", f"gpu{b}") for a, b in [(0, 1), (1, 0), (1, 2), (2, 1), (2, 3), (3, 2)]
    )


def test_the_plot_says_who_waits() -> None:
    cluster: dict[str, Any] = {"topology": "star_100g", "world_size": 2}
    collective = {"operation": "broadcast", "algorithm": "chain", "size": "1 MiB"}
    run = simulate(load_scenario({"name": "drawn", "cluster": cluster, "collective": collective}))
    drawn = module("simulator/report/plots/both/idle.py").PLOT.figure(CloseUp(run.timeline, 0.0))
    assert "waits longest" in drawn.get_suptitle()
    assert drawn.axes[0].get_ylabel() == "idle time [s]"


def test_quoted_pieces_stand_where_the_page_says() -> None:
    for path, lines in re.findall(r"```python\n# (simulator/\S+\.py), (?:its end|inside `kept`)\n(.*?)```", PAGE, re.S):
        text = (ROOT / path).read_text()
        for line in lines.splitlines():
            code = line.partition("  #")[0].strip()
            assert code == "..." or code in text, (path, code)


def test_every_anchor_and_path_of_the_page_exists() -> None:
    headings = {
        re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in re.findall(r"^###? (.*)$", PAGE, re.M)
    }
    assert set(re.findall(r"\]\(#([\w-]+)\)", PAGE)) <= headings
    paths = re.findall(r"`((?:simulator|tests|topologies|scenarios|docs)/[\w./]+\.(?:py|md|yaml))`", PAGE)
    assert [path for path in paths if "NAME" not in path and not (ROOT / path).exists()] == []
    assert find("gpu", "l4").name == "l4.yaml"
