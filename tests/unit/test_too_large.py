"""What no machine can hold is counted and refused in one line; nothing of it is written down before."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from simulator.basics.errors import SimulationError
from simulator.basics.host_memory import cgroup_limit
from simulator.collectives import ring
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.collectives.parameter_server import ServerLayout, pull, push
from simulator.engine.play import play
from simulator.records.schedule import Schedule
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from tests.playing import planned, star

MIB, GIB = 2**20, 2**30
RANKS = 10**6
MODEL = {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8, "vocab_size": 32}


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much memory on every machine that this is tested on."""
    monkeypatch.setattr("simulator.basics.host_memory.memory", lambda: 64.0 * GIB)


def made(algorithm: str, operation: Any, **facts: Any) -> Schedule:
    return ALGORITHMS.find(algorithm).plans[operation](CollectiveRequest(operation, RANKS, RANKS, **facts))


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize(
    ("schedule", "rows"),
    [
        (made("direct", "all_reduce"), 2 * RANKS * (RANKS - 1)),
        (made("direct", "reduce_scatter"), RANKS * (RANKS - 1)),
        (made("direct", "all_gather"), RANKS * (RANKS - 1)),
        (made("direct", "all_to_all"), RANKS * (RANKS - 1)),
        (made("parameter_server", "all_reduce", servers=RANKS, servers_on="workers"), 2 * RANKS * (RANKS - 1)),
        (made("parameter_server", "all_reduce", servers=RANKS), 2 * RANKS**2),
        (push(ServerLayout(RANKS, RANKS)), RANKS**2),
        (pull(ServerLayout(RANKS, RANKS, own=False)), RANKS * (RANKS - 1)),
        # Every rank asks its switch for every set.
        (made("nvls", "all_reduce", chunks=1), 2 * RANKS * (RANKS + 1)),
        (made("chain", "broadcast", chunks=RANKS), RANKS * (RANKS - 1)),
        (made("double_binary_tree", "reduce", chunks=RANKS), RANKS * (RANKS - 1)),
    ],
    ids=lambda value: f"{value.algorithm} {value.operation}" if isinstance(value, Schedule) else "",
)
def test_a_million_million_transfers_are_counted_and_refused(schedule: Schedule, rows: int) -> None:
    """Arrays of them would be TiB, so whoever makes one first ends here with a MemoryError."""
    assert schedule.rows == rows
    assert schedule.has_more_than(10**11)
    for walk in (schedule.length, lambda: list(schedule.rounds()), lambda: list(schedule.repeats())):
        with pytest.raises(
            SimulationError, match=r"^.* over 1000000 ranks: [12]e\+12 transfers .* TiB, .* 64 GiB; take"
        ):
            walk()


@pytest.mark.usefixtures("roomy")
def test_what_repeats_is_not_refused() -> None:
    """A ring of 100,000 ranks has 20 thousand million transfers, and three rounds."""
    n = RANKS // 10
    schedule = ring.all_reduce(CollectiveRequest("all_reduce", n, n))
    assert (schedule.rows, schedule.length()) == (3 * n, 2 * (n - 1) * n)


def scenario(**facts: Any) -> dict[str, Any]:
    return {"name": "x", "cluster": {"topology": "star_100g", "world_size": 64}, **facts}


def collective(operation: str, algorithm: str, **facts: Any) -> dict[str, Any]:
    own = {"operation": operation, "algorithm": algorithm, "size": "4 KiB"}
    return scenario(collective=own | facts.pop("also", {}), **facts)


def training(collectives: str, **sharding: Any) -> dict[str, Any]:
    facts = {"model": MODEL, "seq_len": 8, "micro_batch_size": 1, "algorithm": "direct", "collectives": collectives}
    return scenario(training=facts | {"sharding": sharding})


def told(facts: dict[str, Any]) -> str:
    with pytest.raises(SimulationError) as found:
        simulate(load_scenario(facts))
    return str(found.value)


@pytest.mark.parametrize(
    "facts",
    [
        collective("all_reduce", "direct"),
        collective("all_reduce", "direct", also={"payload": False}),
        collective("all_to_all", "auto"),
        collective("all_reduce", "parameter_server", also={"servers": {"count": 64, "on": "workers"}}),
        training("played", strategy="ddp"),
        training("auto", strategy="parameter_server", servers=64, servers_on="workers"),
    ],
    ids=["direct", "without payload", "auto", "servers", "training", "training with servers"],
)
def test_collectives_and_steps_say_what_they_would_take(facts: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """64 x 63 transfers a way are more than a MiB."""
    monkeypatch.setattr("simulator.basics.host_memory.memory", lambda: float(MIB))
    line = told(facts)
    assert re.fullmatch(r"\w+ over 64 ranks: [48]\S+e\+03 transfers .* MiB, this machine has 1 MiB; take .*", line), (
        line
    )


def test_closed_forms_write_nothing_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.basics.host_memory.memory", lambda: float(MIB))
    assert simulate(load_scenario(training("closed_form", strategy="ddp"))).timeline.end > 0


def test_events_say_what_they_would_take_before_they_write_it_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring's 2 x 63 x 64 transfers at 130 B; its three rounds of 64 are no trouble to others."""
    needed = 2 * 63 * 64 * 130.0
    monkeypatch.setattr("simulator.basics.host_memory.memory", lambda: needed - 1)
    facts = collective("all_reduce", "ring", also={"payload": False})
    line = told(facts | {"engine": "events"})
    assert line.startswith("engine: the events engine would have to follow 8.06e+03 transfers, about ")
    assert line.endswith(" KiB; write engine: auto, or take fewer ranks")
    assert simulate(load_scenario(facts)).timeline.engine == "compiled"
    monkeypatch.setattr("simulator.basics.host_memory.memory", lambda: needed)
    assert simulate(load_scenario(facts | {"engine": "events"})).timeline.engine == "events"


def test_real_arrays_are_not_drawn_for_what_cannot_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.basics.host_memory.memory", lambda: float(MIB))
    monkeypatch.setattr("simulator.collectives.payload.inputs.buffers", lambda *_: pytest.fail("arrays were drawn"))
    # Arrays and copies of 64 ranks are 512 KiB; 8,064 transfers at 130 B are 1,023.75 KiB.
    monkeypatch.setattr("simulator.engine.play.BYTES_A_TRANSFER", 131)
    line = told(collective("all_reduce", "ring"))
    assert line.startswith("payload: with real arrays the events engine would have to follow 8.06e+03 transfers, ")
    assert line.endswith("; write payload: false, or take fewer ranks")


def test_the_core_does_not_follow_what_memory_cannot_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody sends to everybody over shared ports: 2 x 4 x 3 transfers, of which the core holds 12 B each."""
    program = planned(star(4), "direct", CollectiveRequest("all_reduce", 4, 1000)).program
    assert play("auto", program, star(4)).end > 0
    monkeypatch.setattr("simulator.engine.compiled.engine.shortage_text", lambda nbytes: f"{nbytes} B")
    with pytest.raises(SimulationError, match=r"a collective of 24 transfers whose flows share links .* about 288 B"):
        play("auto", program, star(4))


def test_a_limit_on_the_process_counts() -> None:
    """As `ulimit -v` sets it."""
    limited = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31));"
        "from simulator.basics.host_memory import memory; print(memory() <= 2**31, memory() < 2**31)"
    )
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, check=True)
    # Python itself has taken a part of it.
    assert done.stdout == "True True\n"


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    """Both versions of control groups; the narrowest of a group and those around it; a path outside a container."""
    files = {
        "none/cgroup": "0::/\n",
        "second/cgroup": "0::/user/shell\n",
        "first/cgroup": "5:cpu,cpuacct:/job\n4:memory:/job\n0::/\n",
        "outside/cgroup": "4:memory:/docker/abc\n",
        "groups/user/memory.max": "3000\n",
        "groups/user/shell/memory.max": "max\n",
        "groups/memory/memory.limit_in_bytes": "5000\n",
        "groups/memory/job/memory.limit_in_bytes": "4000\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = {
        name: cgroup_limit(tmp_path / name, tmp_path / "groups") for name in ("none", "second", "first", "outside")
    }
    assert found == {"none": float("inf"), "second": 3000.0, "first": 4000.0, "outside": 5000.0}
    assert cgroup_limit(tmp_path / "not Linux") == float("inf")
