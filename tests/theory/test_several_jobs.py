"""Several jobs on one cluster: slowdowns by hand, conservation of bytes, equality with a job alone, both engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from simulator.cluster.build import build
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.collectives.point_to_point import point_to_point
from simulator.engine.compiled import library
from simulator.engine.play import Engine, play
from simulator.records.operation import Allocate, Compute, Free, Op
from simulator.records.program import Program
from simulator.records.timeline import Timeline
from simulator.run.jobs.joined_program import BatchExchange, JobProgram, OuterAverage, Phase, joined, prefix
from simulator.run.jobs.sharing import share
from simulator.scenario.jobs_file import JobsFile, load_jobs

ENGINES = ("events", "compiled") if library.is_there() else ("events",)
BANDWIDTH = 1e9
# Two servers with two GPUs and one network card each: both jobs' sends from server to server share the cable.
TOPOLOGY = {
    "builder": "nodes",
    "library": "none",
    "gpu": "a100_pcie_80gb",
    "options": {
        "gpus": 2, "inside": "pcie", "hosts": 1, "pcie_bandwidth": "100 GB/s", "pcie_latency": "0 s", "nics": 1,
        "nic_bandwidth": "1 GB/s", "nic_latency": "0 s", "fabric": "leaf_spine", "nodes_per_leaf": 2, "spines": 1,
        "spine_latency": "0 s",
    },
}  # fmt: skip
SPREAD = {"a": [0, 2], "b": [1, 3]}


def two_servers() -> Cluster:
    """Ranks 0 and 1 are job a's, on both servers; ranks 2 and 3 are job b's."""
    return build(TOPOLOGY, 4, placement=(0, 2, 1, 3))


def periodic(cluster: Cluster, name: str, compute: float, nbytes: int, steps: int, start: float = 0.0) -> JobProgram:
    """A job that computes and then sends from its rank 0 to its rank 1; the next step waits for the bytes."""
    send = replace(point_to_point(cluster, nbytes // 4, "float32", (0, 1)), startup=0.0)
    ops = (Compute("work", compute), send.named("send", ("work",), (0, 1)))
    return JobProgram(name, Program((ops, ops)), steps, start)


def ends(timeline: Timeline, job: str, steps: int) -> list[float]:
    return [
        max(span.end for span in timeline.spans if span.name.startswith(prefix(job, step))) for step in range(steps)
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_jobs_on_one_link_take_compute_and_twice_the_communication(engine: Engine) -> None:
    # C = 3 s of compute, X = 1 s of communication alone. Together, both send at half the rate: C + 2 X.
    cluster = two_servers()
    jobs = [periodic(cluster, name, 3.0, 10**9, 5) for name in ("a", "b")]
    timeline = play(engine, joined(jobs), cluster)
    for name in ("a", "b"):
        assert ends(timeline, name, 5) == pytest.approx([5.0 * (step + 1) for step in range(5)])


@pytest.mark.parametrize("engine", ENGINES)
def test_equal_jobs_that_start_apart_take_compute_and_communication(engine: Engine) -> None:
    # Started X or more apart, and X + X <= C + X, their sends never meet (the identity behind CASSINI, NSDI'24).
    cluster = two_servers()
    jobs = [periodic(cluster, "a", 3.0, 10**9, 5), periodic(cluster, "b", 3.0, 10**9, 5, start=2.0)]
    timeline = play(engine, joined(jobs), cluster)
    assert ends(timeline, "a", 5) == pytest.approx([4.0 * (step + 1) for step in range(5)])
    assert ends(timeline, "b", 5) == pytest.approx([2.0 + 4.0 * (step + 1) for step in range(5)])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_short_and_a_long_job_share_as_the_bytes_say(engine: Engine) -> None:
    # a: 1 s work, 2 GB. b: 2 s work, 1 GB. One step each: a sends alone from 1 to 2 s (1 GB), then both at 0.5 GB/s:
    # both have 1 GB left and end at 4 s.
    cluster = two_servers()
    jobs = [periodic(cluster, "a", 1.0, 2 * 10**9, 1), periodic(cluster, "b", 2.0, 10**9, 1)]
    timeline = play(engine, joined(jobs), cluster)
    assert (ends(timeline, "a", 1), ends(timeline, "b", 1)) == (pytest.approx([4.0]), pytest.approx([4.0]))


@pytest.mark.parametrize("priority", [1, 2, 3, 7])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_full_link_is_shared_in_proportion_to_priorities(engine: Engine, priority: int) -> None:
    # Both send 1 GB over a link of 1 GB/s after 2 s. The job of priority p has p / (p + 1) of the link and ends after
    # (p + 1) / p s. The other ends after 2 s in any case, because the link stays full.
    cluster = two_servers()
    jobs = [periodic(cluster, name, 2.0, 10**9, 1) for name in ("a", "b")]
    timeline = play(engine, joined([replace(jobs[0], priority=float(priority)), jobs[1]]), cluster)
    assert ends(timeline, "a", 1) == pytest.approx([2.0 + (priority + 1) / priority], rel=1e-9)
    assert ends(timeline, "b", 1) == pytest.approx([4.0], rel=1e-9)
    # Priorities change when bytes travel, and not how many.
    assert [float(log.nbytes.sum()) for log in timeline.logs] == [1e9, 1e9]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_priority_changes_nothing_for_a_job_without_others(engine: Engine) -> None:
    # A priority of a power of two scales bytes and rates without rounding.
    cluster = two_servers()
    job = periodic(cluster, "a", 3.0, 10**9 + 4, 3)
    times = [ends(play(engine, joined([replace(job, priority=p)]), cluster), "a", 3) for p in (1.0, 4.0)]
    assert times[0] == times[1]


@pytest.mark.parametrize("engine", ENGINES)
def test_waits_through_memory_operations_remain_without_them(engine: Engine) -> None:
    # "second" waits for the allocation, which waits for "first" on another stream and for "zeroth" on its own.
    ops: tuple[Op, ...] = (
        Compute("zeroth", 1.0, stream="s"),
        Compute("first", 2.0, stream="t"),
        Allocate("array", 8, stream="s", after=("first",)),
        Compute("second", 1.0, stream="u", after=("array",)),
        Compute("third", 1.0, stream="s"),
        Free("array", stream="s"),
    )
    cluster = build("star_100g", 1, gpu="a100_sxm_80gb")
    program = Program((ops,))
    alone = {span.name: (span.start, span.end) for span in play(engine, program, cluster).spans}
    timeline = play(engine, joined([JobProgram("a", program, 2)]), cluster)
    both = {span.name: (span.start, span.end) for span in timeline.spans}
    # By hand: second and third run from 2 to 3 s, and a step takes 3 s.
    assert alone["second"] == alone["third"] == (2.0, 3.0)
    for name, (start, end) in alone.items():
        assert both[f"a 0 {name}"] == (start, end)
        assert both[f"a 1 {name}"] == (3.0 + start, 3.0 + end)


@pytest.mark.parametrize(("lag", "period"), [(0, 9.5), (1, 5.5)])
@pytest.mark.parametrize("engine", ENGINES)
def test_generation_and_training_alternate_or_overlap(engine: Engine, lag: int, period: float) -> None:
    # Generation 5 s, training 2 steps of 2 s, weights 0.5 s, batches no time. On policy: 5 + 4 + 0.5. One batch ahead:
    # the longer of both, 5 s, and the weights.
    cluster = two_servers()
    train = Program(((Compute("work", 2.0),),) * 2)
    generator = JobProgram("g", Program(((),) * 2), 6, phases=(Phase("generate", "generation", 5.0),))
    trainer = JobProgram("t", train, 12, steps_per_batch=2)
    # Job g has ranks 0 and 1, job t ranks 2 and 3; all take part.
    task = Task(CollectiveRequest("broadcast", 4, 4), "auto", (0, 1, 2, 3))
    weights = replace(plan(cluster, task).ops[0], duration=0.5)
    batch = replace(weights, duration=0.0)
    both = BatchExchange("g", "t", lag, 2, batch, weights)
    timeline = play(engine, joined([generator, trainer], [both]), cluster)
    generated = [max(s.end for s in timeline.spans if s.name == f"g {batch} generate") for batch in range(6)]
    assert np.diff(generated)[lag:] == pytest.approx(period, abs=1e-6)
    # No update is generated with that is older than the lag allows.
    for version in range(5 - lag):
        sent = next(s for s in timeline.spans if s.name == f"t {2 * version + 1} weights")
        first = next(s for s in timeline.spans if s.name == f"g {version + 1 + lag} generate" and s.rank == 1)
        assert sent.end <= first.start + 1e-12


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("delay", "expected"),
    [
        # Steps of 1 s, an average of 3 s after every second step. Without delay each average is waited for.
        (0, [1, 2, 6, 7, 11, 12]),
        # One step goes on while the average is under way; the next begins when the average has ended.
        (1, [1, 2, 3, 6, 7, 10]),
    ],
)
def test_copies_average_every_second_step(engine: Engine, delay: int, expected: list[float]) -> None:
    cluster = two_servers()
    step = Program(((Compute("work", 1.0),),) * 2)
    copies = [JobProgram(name, step, 6) for name in ("x", "y")]
    # Ranks 0 and 1 are of x, 2 and 3 of y; each averages with its like.
    averages = tuple(
        replace(plan(cluster, Task(CollectiveRequest("all_reduce", 2, 4), "auto", group)).ops[0], duration=3.0)
        for group in ((0, 2), (1, 3))
    )
    timeline = play(engine, joined(copies, outers=[OuterAverage(("x", "y"), 2, delay, averages)]), cluster)
    for name in ("x", "y"):
        worked = [max(s.end for s in timeline.spans if s.name == f"{name} {number} work") for number in range(6)]
        assert worked == pytest.approx(expected)


def test_a_round_is_its_inner_steps_and_its_averages() -> None:
    training = {"model": "gpt2", "seq_len": 256, "sharding": "zero3"}
    job: dict[str, Any] = {"training": training, "world_size": 2, "outer": {"copies": 2, "every": 3}}
    (found,) = share(load_jobs({"cluster": {"topology": TOPOLOGY}, "jobs": {"site": job}})).rounds
    # 124,439,808 parameters in float32: 2 ranks of each copy hold halves, a ring over two copies sends a half of each,
    # forward and back, and the ranks of a server share its card of 1 GB/s: the server sends all 497.8 MB.
    average = 4 * 124_439_808 / 1e9
    assert found.step == pytest.approx(found.inner + average / 3, rel=0.02)
    # With all steps between two averages simulated, nothing is extrapolated.
    assert found.window == pytest.approx(3 * found.step)
    # In every step, gradients in bfloat16 take half of that, behind the backward pass or beside it.
    assert found.in_every_step < found.inner + average
    longer = job | {"outer": {"copies": 2, "every": 100, "fragments": 4, "delay": 5}}
    (spread,) = share(load_jobs({"cluster": {"topology": TOPOLOGY}, "jobs": {"site": longer}})).rounds
    assert spread.inner == pytest.approx(found.inner)
    assert spread.inner <= spread.step <= spread.inner + average / 100 * 1.02


def shared(placement: Any, engine: str = "auto", **changes: Any) -> JobsFile:
    training = {"model": "gpt2", "seq_len": 1024, "micro_batch_size": 2} | changes
    jobs = {name: {"training": training, "world_size": len(of), "placement": of} for name, of in placement.items()}
    return load_jobs({"cluster": {"topology": TOPOLOGY}, "engine": engine, "jobs": jobs})


@pytest.mark.parametrize("sharding", ["ddp", "zero3"])
def test_jobs_that_share_no_link_are_as_fast_as_alone_to_the_bit(sharding: str) -> None:
    run = share(shared({"a": [0, 1], "b": [2, 3]}, sharding=sharding))
    assert run.links == ()
    for job in run.jobs:
        assert job.together == job.alone
        assert job.step_ends[-1] / len(job.step_ends) == job.alone
    assert run.sentences == ("The jobs do not slow each other down: they share no link.",)


@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2", "zero3"])
def test_shared_links_slow_jobs_and_lose_no_byte(sharding: str) -> None:
    run = share(shared(SPREAD, sharding=sharding))
    alone = share(shared({"a": SPREAD["a"]}, sharding=sharding))
    both = {name for link in run.links for name in link.nbytes}
    assert both == {"a", "b"}
    assert all(job.slowdown > 1.05 for job in run.jobs)
    # Each job sends in each step what it sends alone.
    each = alone.jobs[0].nbytes / len(alone.jobs[0].step_ends)
    for job in run.jobs:
        assert job.nbytes == each * len(job.step_ends)
    # Equal jobs in lock-step take equally long.
    assert run.jobs[0].step_ends == pytest.approx(run.jobs[1].step_ends, rel=1e-9)


@pytest.mark.skipif(len(ENGINES) == 1, reason="no compiled core")
@pytest.mark.parametrize("sharding", ["ddp", "zero2", "zero3"])
@pytest.mark.parametrize("start", ["0 s", "13 ms"])
@pytest.mark.one_of(3)
def test_both_engines_agree(sharding: str, start: str) -> None:
    training = {"model": "gpt2", "seq_len": 512, "sharding": sharding}
    other = {"model": "bert_large", "seq_len": 512}
    outcomes = []
    for engine in ENGINES:
        jobs: dict[str, Any] = {
            "a": {"training": training, "world_size": 2, "placement": "spread", "steps": 3},
            "b": {"training": other, "world_size": 2, "placement": "spread", "steps": 2, "start": start},
        }
        outcomes.append(share(load_jobs({"cluster": {"topology": TOPOLOGY}, "engine": engine, "jobs": jobs})))
    for one, other_one in zip(outcomes[0].jobs, outcomes[1].jobs, strict=True):
        assert one.step_ends == pytest.approx(other_one.step_ends, rel=1e-9)
        assert one.nbytes == other_one.nbytes
    assert [link.name for link in outcomes[0].links] == [link.name for link in outcomes[1].links]


def test_a_later_start_that_keeps_jobs_apart_is_found() -> None:
    run = share(shared(SPREAD, sharding="ddp"), shifts=3)
    assert len(run.shifts) == 3
    together = sum(job.slowdown for job in run.jobs) / 2
    assert min(shift.mean for shift in run.shifts) <= together + 1e-9


@pytest.mark.parametrize(("links", "fullest"), [(2, 1.50), (4, 2.13), (8, 2.61), (16, 3.08)])
def test_a_hash_puts_several_flows_on_the_fullest_of_equal_links(links: int, fullest: float) -> None:
    """As many equal flows as links, thrown at random: the mean of the largest of n bins with n balls, 1.50 for n = 2
    (half of the throws meet), the others from 10^6 drawn throws.
    """
    generator = np.random.default_rng(0)
    balls = generator.integers(links, size=(20_000, links))
    thrown = np.array([np.bincount(row, minlength=links).max() for row in balls]).mean()
    assert thrown == pytest.approx(fullest, abs=0.03)
    options = TOPOLOGY["options"] | {"gpus": 1, "nodes_per_leaf": links, "spines": links}  # type: ignore[operator]
    most = []
    for seed in range(250):
        cluster = build(TOPOLOGY | {"options": options}, 2 * links, ecmp_seed=seed)
        # GPU i of the first leaf sends to GPU i of the second, over one of the spines.
        routes = [cluster.route(cluster.ranks[i], cluster.ranks[links + i]).links for i in range(links)]
        names = [name for route in routes for link in route if "->spine" in (name := cluster.router.link_name(link))]
        assert len(names) == links
        most.append(max(names.count(name) for name in names))
    assert np.mean(most) == pytest.approx(fullest, abs=4 * np.std(most) / len(most) ** 0.5)


def test_a_trainer_that_waits_for_no_batch_takes_its_time_alone() -> None:
    jobs: dict[str, Any] = {
        "makes": {"generation": {"time": "2 s"}, "world_size": 2},
        "trains": {
            "training": {"model": "gpt2", "seq_len": 1024, "micro_batch_size": 4},
            "world_size": 2, "batches_from": "makes", "lag": 0, "steps_per_batch": 3,
        },
    }  # fmt: skip
    _, trainer = share(load_jobs({"cluster": {"topology": "dgx_h100"}, "jobs": jobs})).jobs
    # The second step of each batch: the next batch is not asked for yet, and no exchange takes multiprocessors.
    assert trainer.step_times[1::3] == pytest.approx([trainer.alone] * 5, rel=0.01)
