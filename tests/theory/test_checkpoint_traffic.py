"""A checkpoint in flight: the time of its copy and write by hand, what it slows down, and what days lose to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from simulator import simulate
from simulator.basics.errors import ScenarioError
from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.point_to_point import point_to_point
from simulator.engine.compiled import library
from simulator.engine.play import Engine, play
from simulator.model.load import load_model
from simulator.model.model import total
from simulator.records.operation import Collective, Compute, RateCaps
from simulator.records.program import Program
from simulator.records.timeline import Timeline
from simulator.report.numbers.link_use import link_uses
from simulator.run.reliability.question import GoodputQuestion, healthy_step
from simulator.run.scenario_cluster import Clusters
from simulator.scenario.days_file import RunOfDays
from simulator.scenario.load import load_scenario
from simulator.step.checkpoint_traffic import SAVE, checkpoint_bytes, save_operation
from simulator.step.framework import load_framework
from simulator.step.kernels.kernel_time import host_copy_share
from simulator.step.offload import copies
from simulator.step.precision import Precision
from simulator.step.spec import bare_step
from tests.engines import CLOSE, farthest

ENGINES = ("events", "compiled") if library.is_there() else ("events",)
# A star with 1 GB/s and no latency. Without sockets each GPU copies at the rate of its own slot.
STAR = {"builder": "star", "gpu": "a100_pcie_80gb", "options": {"bandwidth": "1 GB/s", "latency": "0 s"}}


def star(storage: float, ranks: int = 4) -> Cluster:
    return build(STAR, ranks, storage=storage)


def saves(cluster: Cluster, nbytes: int) -> list[Collective]:
    """Return the save of each rank."""
    cap = copies(cluster, "to host").cap
    first = save_operation(cluster, nbytes, cap)
    return [
        replace(first, name=f"save {rank}", group=(rank,), auxiliaries=(cluster.host_of(rank), cluster.storage))
        for rank in range(cluster.world_size)
    ]


def written(timeline: Timeline) -> float:
    """Return when the storage has everything [s]."""
    return max(float(log.end.max()) for log in timeline.logs if log.collective.startswith("save"))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("storage", [0.5e9, 2e9, 8e9])
def test_a_save_takes_its_bytes_over_the_narrowest_shared_link(engine: Engine, storage: float) -> None:
    # Four ranks with 1 GB each copy at the rate of their slots, and then write 4 GB over the storage's link, or each
    # 1 GB over its own cable of 1 GB/s, whichever is narrower.
    cluster, nbytes = star(storage), 10**9
    timeline = play(engine, Program(tuple((one,) for one in saves(cluster, nbytes))), cluster)
    copied = nbytes / (host_copy_share(cluster.gpus[0]) * cluster.gpus[0].host_bandwidth)
    assert written(timeline) == pytest.approx(copied + max(4 * nbytes / storage, nbytes / 1e9), rel=1e-9)
    # The ranks are done with the copy.
    assert timeline.end == pytest.approx(copied, rel=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_write_slows_what_shares_its_links_and_nothing_else(engine: Engine) -> None:
    # Rank 0 writes 2 GB from 0 s on (the copy has no time here), rank 0 sends 1 GB to rank 1 and rank 2 to rank 3: rank
    # 0's cable is shared and its transfer takes 2 s; rank 2's is not, and takes the time to the bit.
    cluster = star(8e9)
    save = replace(saves(cluster, 2 * 10**9)[0], caps=RateCaps(1e30, 1e30))
    sends = []
    for rank in (0, 2):
        send = replace(point_to_point(cluster, 250_000_000, "float32", (rank, rank + 1)), startup=0.0)
        sends.append(send.named(f"send {rank}", (), (rank, rank + 1)))
    ops = ((save, sends[0]), (sends[0],), (sends[1],), (sends[1],))
    ends = {span.name: span.end for span in play(engine, Program(ops), cluster).spans}
    assert ends["send 0"] == pytest.approx(2.0, rel=1e-9)
    alone = play(engine, Program(((), (), (sends[1],), (sends[1],))), cluster)
    assert ends["send 2"] == alone.end


@pytest.mark.parametrize("engine", ENGINES)
def test_a_write_goes_on_after_the_last_rank_and_a_later_one_shares_with_it(engine: Engine) -> None:
    # Rank 0 writes 1 GB from 0 s on and rank 1 from 1 s on, over 0.5 GB/s: alone until 1 s (0.5 GB left), then half
    # each: rank 0's write ends at 3 s, and rank 1's, with 0.5 GB left, at 4 s.
    cluster = star(0.5e9, ranks=2)
    first, second = (replace(one, caps=RateCaps(1e30, 1e30)) for one in saves(cluster, 10**9))
    program = Program(((first,), (Compute("work", 1.0), replace(second, after=("work",)))))
    timeline = play(engine, program, cluster)
    ends = {log.collective: float(log.end.max()) for log in timeline.logs}
    assert ends == {"save 0": pytest.approx(3.0, rel=1e-9), "save 1": pytest.approx(4.0, rel=1e-9)}


def scenario(topology: Any = "dgx_h100", ranks: int = 16, traffic: str = "sharded", **training: Any) -> dict[str, Any]:
    return {
        "name": "saved", "cluster": {"topology": topology, "world_size": ranks, "storage": "20 GB/s"},
        "training": {
            "model": "gpt2", "seq_len": 128, "collectives": "played", "checkpoint_traffic": traffic, **training,
        },
    }  # fmt: skip


@pytest.mark.skipif(len(ENGINES) == 1, reason="no compiled core")
@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero3"])
@pytest.mark.parametrize("topology", ["dgx_h100", "star_100g", "h100_ethernet_100g"])
@pytest.mark.one_of(3)
def test_both_engines_leave_the_same_behind_beside_a_checkpoint(sharding: str, topology: str) -> None:
    runs = [simulate(scenario(topology, 8, sharding=sharding) | {"engine": engine}) for engine in ENGINES]
    assert farthest(runs[0].timeline, runs[1].timeline) <= CLOSE
    healthy = simulate(scenario(topology, 8, "none", sharding=sharding))
    assert runs[0].report.step_time_s >= healthy.report.step_time_s * (1 - 1e-9)
    # Everything is saved once, and nothing else is sent.
    loaded = load_scenario(scenario(topology, 8, sharding=sharding))
    step = runs[0].plan.step
    total = sum(one.nbytes for one in runs[0].timeline.sent if SAVE in one.collective)
    share = -(-int(checkpoint_bytes(step)) // 8)
    # Each share is sent twice: to the host and to the storage.
    assert total == 2 * 8 * share
    carried = {use.name: use.nbytes for use in link_uses(runs[0].timeline)}
    assert carried["storage0/port->storage0"] == 8 * share
    assert Clusters().of(loaded).storage == "storage0"


def test_the_update_waits_for_the_copy_and_not_for_the_write() -> None:
    # 124 M parameters with 14 B each on one GPU: 1.7 GB to the host, before the optimizer step; the storage of 1 MB/s
    # would take half an hour.
    slow = scenario("star_100g", 2)
    slow["cluster"]["storage"] = "1 MB/s"
    run = simulate(slow)
    spans = [span for span in run.timeline.spans if span.rank == 0]
    (copied,) = (span.end for span in spans if span.name.startswith(SAVE))
    (updated,) = (span.start for span in spans if span.name == "optimizer step")
    assert copied <= updated
    assert written_of(run.timeline) > 100 * run.report.step_time_s


def written_of(timeline: Timeline) -> float:
    return max(float(log.end.max()) for log in timeline.logs if log.collective.startswith(SAVE))


def test_days_lose_what_the_steps_beside_a_write_lose() -> None:
    loaded = load_scenario(scenario("star_100g", 4))
    step, plain = healthy_step(loaded), healthy_step(load_scenario(scenario("star_100g", 4, "none")))
    assert step.time == plain.time == plain.beside_save
    assert step.beside_save > step.time
    # In 100 s beside a write, 100 / beside_save steps are done, which take 100 time / beside_save without it.
    assert step.lost_beside(100.0) == pytest.approx(100.0 - 100.0 / step.beside_save * step.time)
    assert plain.lost_beside(100.0) == 0.0
    question = GoodputQuestion(loaded, RunOfDays.model_construct(days=1.0, interval=600.0))
    from simulator.run.reliability.question import goodput

    found = goodput(question).job.checkpointing
    write = step.nbytes / 20e9
    assert found.write == pytest.approx(write)
    assert found.stall == pytest.approx(step.copied + step.lost_beside(write))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"training.collectives": "closed_form"}, "training.checkpoint_traffic: got sharded; collectives: closed_form"),
        (
            {"training.sharding": "parameter_server"},
            "training.checkpoint_traffic: got sharded; parameter servers hold ",
        ),
        (
            {"cluster.storage": None},
            "training.checkpoint_traffic: got sharded; needs a storage, such as cluster.storage",
        ),
    ],
)
def test_a_checkpoint_that_cannot_travel_is_told(change: dict[str, Any], said: str) -> None:
    data = scenario()
    for key, value in change.items():
        section, name = key.split(".")
        data[section][name] = value
        if value is None:
            del data[section][name]
    with pytest.raises(ScenarioError) as raised:
        load_scenario(data)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("framework", "nbytes"), [("torchtitan", 12), ("llm_foundry", 12), ("nemo", 14), ("nanotron", 14)]
)
def test_frameworks_that_cast_their_parameters_save_them_once(framework: str, nbytes: int) -> None:
    """Float32 parameters and Adam's two states; or bfloat16 parameters beside a float32 copy and the states.

    torchtitan holds 3.95 GiB for an 8B model on each of 8 GPUs (issue 1301): 4 bytes for each parameter.
    """
    made = bare_step(load_model("llama3_8b"), 8192, 1, framework=load_framework(framework))
    assert checkpoint_bytes(made) == nbytes * total(made.model)
    # Without a master copy the working parameters are the only ones.
    alone = made.with_keys(precision=Precision(master=None).resolved())
    assert checkpoint_bytes(alone) == 10 * total(made.model)
