"""Files of every kind, changed at random: each is read, or refused in lines; no other exception comes out.

Half of the changes are to the data, whose values become others that some reader could stumble over; half to the bytes.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import networkx as nx
import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.basics import yaml_dialect
from simulator.basics.document import load
from simulator.basics.errors import MOST_FAULTS, ScenarioError, SimulatorError
from simulator.basics.registry import find
from simulator.calibration.machines.measured_sweep import read_sweep
from simulator.cluster.build import build, facts
from simulator.cluster.gpu_file import load_gpu
from simulator.model.load import load_model
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario, parse_scenario
from simulator.scenario.tokens import read_tokens
from simulator.sweeps.journal import read_journal
from tests.many import many
from tests.readable_files import GRAPH, SWEEP, TIMES

NOTES: Final = b'{"index": 0, "settings": {}, "engine": "events", "report": {"time_s": 1.0}, "error": null}\n'


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(50))
    return file.getvalue()


def graphml() -> bytes:
    file = io.BytesIO()
    nx.write_graphml(nx.node_link_graph(GRAPH, edges="edges"), file)
    return file.getvalue()


def shipped(kind: Any, name: str) -> bytes:
    return find(kind, name).read_bytes()


def built(path: Path) -> None:
    """A topology, its cluster, and a collective on it."""
    most = facts(str(path)).max_ranks
    ranks = min(4, most or 4)
    cluster = build(str(path), ranks, gpu="l4")
    if len(cluster.graph) < 500:
        collective = {"operation": "all_reduce", "size": "1 KiB"}
        where = {"topology": str(path), "world_size": ranks, "gpu": "l4"}
        simulate(load_scenario({"name": "x", "cluster": where, "collective": collective}))


def run_again(path: Path) -> None:
    parse_scenario(load(path), Path())


READERS: Final[Mapping[str, tuple[bytes, Callable[[Path], object]]]] = MappingProxyType(
    {
        "star.yaml": (shipped("topology", "star_100g"), built),
        "box.yaml": (shipped("topology", "dgx_h100"), built),
        "graph.json": (json.dumps(GRAPH).encode(), built),
        "graph.graphml": (graphml(), built),
        "gpu.yaml": (shipped("gpu", "h100_sxm"), lambda path: load_gpu(str(path))),
        "config.json": (shipped("model", "llama3_8b"), lambda path: load_model(str(path), 64)),
        "gpt2.json": (shipped("model", "gpt2"), lambda path: load_model(str(path), 64)),
        "scenario.yaml": (shipped("scenario", "zero_stages"), load_scenario),
        "resolved.yaml": (shipped("scenario", "ring_vs_parameter_server"), run_again),
        "sweep.log": (SWEEP, read_sweep),
        "sweep.csv": (TIMES, read_sweep),
        "points.jsonl": (NOTES, lambda path: read_journal(path.parent)),
        "tokens.npy": (npy(), lambda path: read_tokens(path.name, path.parent)),
        "tokens.txt": (b"to be or not to be", lambda path: read_tokens(path.name, path.parent)),
    }
)
VALUES: Final = st.sampled_from(
    [None, True, 0, -1, 1, 3, 10**9, 10**30, 10**300, 1e-320, 1e300, -1e-320, 0.5, "", "x", "\x00", "é", " ", "1e999",
     "1e-999 s", "1e29 s", "1e-30 B/s", "0 B", "0 s", "1 µs", [], {}, [[]], [1, 2], ["a"], {"a": 1}, {"": 1}, "9" * 400,
     "a" * 3000, "/", "..", "/dev/null", "nan", "auto", "null", "ring", "l4", "star_100g", "gpt2", {"value": 1}]
)  # fmt: skip
BYTES: Final = st.sampled_from(
    [b"\x00", b"\xff\xfe", b"9" * 500, b"[", b"{", b"-", b"e400", b"\r", b"\t", b"\n", b"'", b'"', b"&a *a", b"!!x ",
     b"%", b"NaN", b"Infinity", b"1e-320", b"\\ud800", b"1e300", b",", b" ", b"(" * 300, b"[" * 3000, b"PK\x03\x04"]
)  # fmt: skip


def places(data: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [at, *(place for key, value in inner for place in places(value, (*at, key)))]


@st.composite
def changed(draw: st.DrawFn, content: bytes, *, plain: bool) -> bytes:
    """A file with a few changes."""
    if plain and draw(st.booleans()):
        data = yaml.load(content, Loader=yaml_dialect.Loader)
        for _ in range(draw(st.integers(1, 3))):
            place, value = draw(st.sampled_from(places(data))), deepcopy(draw(VALUES))
            if not place:
                return json.dumps(value).encode()
            around = data
            for step in place[:-1]:
                around = around[step]
            if draw(st.integers(0, 3)):
                around[place[-1]] = value
            else:
                del around[place[-1]]
        return yaml_dialect.dump(data).encode() if draw(st.booleans()) else json.dumps(data).encode()
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = start + draw(st.sampled_from([0, 0, 1, 8, 60]))
        content = content[:start] + draw(BYTES) + content[end:]
    return content


def check(name: str, content: bytes, folder: Path) -> None:
    path = folder / name
    path.write_bytes(content)
    try:
        READERS[name][1](path)
    except ScenarioError as error:
        lines = str(error).split("\n")
        assert 0 < len(lines) <= MOST_FAULTS + 1
        assert max(map(len, lines)) < 6500
    except SimulatorError:
        return  # what is played can still have no route


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("files", [20, pytest.param(many(2000), marks=pytest.mark.long)])
@pytest.mark.parametrize("name", READERS)
def test_a_file_changed_at_random_is_read_or_refused(name: str, files: int, tmp_path: Path) -> None:
    content, _ = READERS[name]
    plain = name.endswith((".yaml", ".json"))

    @settings(max_examples=files, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(changed(content, plain=plain))
    def hold(text: bytes) -> None:
        check(name, text, tmp_path)

    hold()
