"""Any options beside events and other jobs: both engines leave the same behind, and no byte is lost."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

from simulator.basics.errors import DeadlockError, ScenarioError, ScenarioWarning
from simulator.cluster.changes import Event, changes
from simulator.cluster.cluster import Cluster
from simulator.engine.compiled.engine import execute as compiled
from simulator.engine.events import execute as events
from simulator.records.program import Program
from simulator.records.timeline import Timeline, by_rank
from simulator.run.jobs.joined_program import JobProgram, joined
from simulator.run.scenario_cluster import Clusters
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario
from simulator.step.plan import plan_step
from tests.combinations import Draw, training_scenario
from tests.engines import CLOSE, GROWS, growth, left_behind
from tests.many import many

SIZE, LONG_SIZE, MANY = 4, 25, many(40)
# Another family draws other scenarios than the tests without events.
FAMILY = 39


def drawn_events(draw: Draw, rerouting: Draw, cluster: Cluster, end: float) -> list[Event]:
    """Return events within the time of a healthy run [s], on any links, memories and GPUs.

    What routes do is drawn from a stream of its own: seeds keep the events that they had before.
    """
    links = len(cluster.router.bandwidth)
    found = []
    for _ in range(draw.pick(1, 1, 2, 4)):
        start = draw.between(0.0, 1.0) * end
        until = draw.pick(start + draw.between(0.0, 0.5) * end, start + draw.between(0.0, 0.5) * end, inf)
        # What is down for good ends in a deadlock, which another test looks at.
        factor = draw.pick(0.1, 0.5, 0.9, *((0.0,) if until < inf else ()))
        rank = draw.pick(*range(cluster.world_size))
        # Routes may lead around a link that is down, sometimes from its beginning on.
        reroute_after = rerouting.pick(inf, inf, 0.0, 0.3 * (min(until, end) - start)) if factor == 0.0 else inf
        # A single GPU may have no links.
        where = draw.pick("links", "links", "rank") if links else "rank"
        some = tuple({draw.pick(*range(links)) for _ in range(draw.pick(1, 3))}) if links else ()
        found.append(Event(start, until, factor, *((some, ()) if where == "links" else ((links + rank,), (rank,)))))
        if where == "links":
            found[-1] = replace(found[-1], reroute_after=reroute_after)
    return found


def alike(program: Program, cluster: Cluster) -> tuple[Timeline, bool]:
    """Simulate with both engines, and compare all that they leave behind; say whether a rounding's difference grew."""
    expected = events(program, cluster, limit_memory=False)
    found = compiled(program, cluster, limit_memory=False)
    apart = left_behind(expected).distance(left_behind(found))
    if apart > CLOSE:
        assert apart < 1.0, "engines differ by more than a time"
        assert growth(expected, found) <= GROWS, "engines differ by more than a rounding that grew"
    return expected, apart > CLOSE


def sound(timeline: Timeline, program: Program) -> None:
    """Fail where an operation is missing, ends before it starts, or overtakes its stream."""
    for log in timeline.logs:
        assert (log.end >= log.enter).all()
        assert np.isfinite(log.end).all()
    for rank, spans in by_rank(timeline.spans).items():
        streams: dict[str, float] = {}
        for span in spans:
            assert span.end >= span.start >= 0.0
            assert span.end >= streams.get(span.stream, 0.0)
            streams[span.stream] = span.end
        assert 0 <= rank < len(program.ranks)


def sent(timeline: Timeline) -> dict[str, float]:
    return {one.collective: one.nbytes for one in timeline.sent}


def with_events(seed: int) -> str:
    """Simulate a drawn scenario with drawn events; say what came of it."""
    draw = Draw([FAMILY, 1, seed])
    data = training_scenario(seed, FAMILY, collectives="played")
    # A checkpoint in flight, drawn from a stream of its own.
    saving = Draw([FAMILY, 6, seed])
    if saving.chance(0.3):
        data["cluster"]["storage"] = saving.pick("10 MB/s", "1 GB/s", "40 GB/s")
        data["training"]["checkpoint_traffic"] = "sharded"
    try:
        scenario = load_scenario(data)
    except ScenarioError:
        return "refused"
    if scenario.training is None or scenario.cluster.jitter.compute or scenario.cluster.jitter.latency:
        return "refused"
    cluster = Clusters().of(scenario)
    step = to_step(scenario.training, scenario.cluster.world_size)
    try:
        healthy_program = plan_step(cluster, step).program
    except (ScenarioError, ValueError):
        return "refused"
    healthy = compiled(healthy_program, cluster, limit_memory=False)
    changing = replace(cluster, changes=changes(drawn_events(draw, Draw([FAMILY, 4, seed]), cluster, healthy.end)))
    program = plan_step(changing, step).program
    timeline, grew = alike(program, changing)
    sound(timeline, program)
    assert sent(timeline) == pytest.approx(sent(healthy), rel=1e-12)
    return "grew" if grew else "simulated"


def sound_training(seed: int) -> dict[str, Any] | None:
    """Return a drawn scenario on few ranks that `check` accepts, the first of some; None if there is none."""
    for attempt in range(8):
        data = training_scenario(8 * seed + attempt, FAMILY + 1, collectives=("played", "auto")[seed % 2])
        few = data["cluster"]["world_size"] <= 12
        if not few or data["training"]["sharding"]["strategy"] == "parameter_server":
            continue
        try:
            load_scenario(data)
        except ScenarioError:
            continue
        return data
    return None


def with_jobs(seed: int) -> str:
    """Simulate two or three drawn trainings on one cluster, sometimes with events; say what came of it."""
    draw = Draw([FAMILY, 2, seed])
    names, parts, sizes = ("a", "b", "c")[: draw.pick(2, 2, 3)], [], []
    for number, _ in enumerate(names):
        data = sound_training(3 * seed + number)
        if data is None:
            return "refused"
        sizes.append(data["cluster"]["world_size"])
        parts.append(data["training"])
    places = [int(place) for place in np.random.default_rng(seed).permutation(sum(sizes))]
    topology = draw.pick("star_100g", "leaf_spine_100g", "dgx_h100", "h100_ethernet_100g")
    shared: dict[str, Any] = {"topology": topology, "world_size": sum(sizes), "placement": places}
    base = {"name": "jobs", "cluster": shared, "training": {"model": "gpt2", "seq_len": 8}}
    cluster = Clusters().of(load_scenario(base))
    jobs, alone = [], {}
    for name, training, size, end in zip(names, parts, sizes, np.cumsum(sizes), strict=True):
        part = cluster.part(range(int(end) - size, int(end)))
        own = {"name": name, "cluster": {"topology": topology, "world_size": size}, "training": training}
        try:
            scenario = load_scenario(own)
            if scenario.training is None:
                return "refused"
            planned = plan_step(part, to_step(scenario.training, size)).program
        except (ScenarioError, ValueError):
            return "refused"
        steps = draw.pick(1, 2, 3)
        job = JobProgram(name, planned, steps)
        once = compiled(joined([replace(job, steps=1)]), part, limit_memory=False)
        alone |= {f"{name} {step} {key[4:]}": size for key, size in sent(once).items() for step in range(steps)}
        alone_end = once.end
        jobs.append(replace(job, start=draw.pick(0.0, draw.between(0.0, 2.0) * alone_end)))
    # Some jobs have a priority; it is drawn from a stream of its own, so that seeds keep the jobs that they had.
    weights = Draw([FAMILY, 3, seed])
    if weights.chance(0.5):
        jobs = [replace(job, priority=float(weights.pick(1, 2, 3))) for job in jobs]
    if draw.chance(0.4):
        cluster = replace(cluster, changes=changes(drawn_events(draw, Draw([FAMILY, 5, seed]), cluster, alone_end)))
    program = joined(jobs)
    try:
        timeline, grew = alike(program, cluster)
    except ScenarioError:
        # An algorithm cannot run in a group whose nodes are in another order than its ranks.
        return "refused"
    sound(timeline, program)
    # Each step of each job sends what it sends alone.
    assert sent(timeline) == pytest.approx(alone, rel=1e-12)
    return "grew" if grew else "simulated"


def counted(what: Any, seeds: range) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in seeds:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScenarioWarning)
            try:
                found[what(seed)] += 1
            except Exception as error:
                raise AssertionError(f"{what.__name__}({seed})") from error
    # `pytest -rP` shows it.
    print(dict(found))  # noqa: T201
    return found


@pytest.mark.parametrize("block", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("what", [with_events, with_jobs])
def test_both_engines_leave_the_same_behind(what: Any, block: int) -> None:
    found = counted(what, range(block * SIZE, (block + 1) * SIZE))
    assert found["simulated"] + found["grew"] >= 1


def test_links_recover_while_a_checkpoint_is_written_after_the_step() -> None:
    """Links recover 0.1 ms after the last operation; the write goes on for 7 ms, at the full rate on both engines."""
    assert with_events(1012) == "simulated"


@pytest.mark.long
@pytest.mark.parametrize("what", [with_events, with_jobs])
@pytest.mark.parametrize("block", range(MANY))
def test_both_engines_leave_the_same_behind_of_many(what: Any, block: int) -> None:
    found = counted(what, range(1000 + block * LONG_SIZE, 1000 + (block + 1) * LONG_SIZE))
    assert found["simulated"] + found["grew"] >= 3


def test_a_dead_gpu_stops_both_engines_at_the_same_time() -> None:
    told = set()
    for seed in range(12):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScenarioWarning)
            try:
                scenario = load_scenario(training_scenario(seed, FAMILY, collectives="played"))
                if scenario.training is None or scenario.cluster.world_size == 1:
                    continue
                cluster = Clusters().of(scenario)
                step = to_step(scenario.training, scenario.cluster.world_size)
                end = compiled(plan_step(cluster, step).program, cluster, limit_memory=False).end
            except (ScenarioError, ValueError):
                continue
            links = len(cluster.router.bandwidth)
            dead = replace(cluster, changes=changes([Event(0.3 * end, inf, 0.0, (links,), (0,))]))
            program = plan_step(dead, step).program
            times = []
            for execute in (events, compiled):
                with pytest.raises(DeadlockError) as raised:
                    execute(program, dead, limit_memory=False)
                times.append(raised.value.time)
            assert times[0] == pytest.approx(times[1], rel=1e-9)
            told.add(seed)
    assert told
