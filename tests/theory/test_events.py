"""Links, GPUs and nodes that slow down or fail during a step: times by hand, both engines, and what ends a job."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import load_scenario, simulate
from simulator.basics.errors import DeadlockError, ScenarioError
from simulator.cluster.build import build
from simulator.cluster.changes import Event, EventSpec, changes
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.collectives.point_to_point import point_to_point
from simulator.engine.compiled import library
from simulator.engine.play import Engine, play
from simulator.records.operation import Compute, Op, RateCaps
from simulator.records.program import Program
from simulator.records.timeline import Timeline
from simulator.report.numbers.link_use import link_uses
from simulator.run.watchdog import StoppedError
from tests.engines import CLOSE, farthest

ENGINES = ("events", "compiled") if library.is_there() else ("events",)
# A star of two GPUs with 1 GB/s and no latency.
STAR = {
    "builder": "star", "gpu": "a100_sxm_80gb",
    "options": {"bandwidth": "1 GB/s", "latency": "0 s"},
}  # fmt: skip


def event(start: float, end: float, factor: float, **target: Any) -> EventSpec:
    """An event from `start` to `end` [s]."""
    return EventSpec.model_construct(at=start, lasts=None if end == inf else end - start, factor=factor, **target)


def star(*events: EventSpec, ranks: int = 2) -> Cluster:
    return build(STAR, ranks, events=events)


def sent(engine: Engine, cluster: Cluster, nbytes: int = 10**9) -> float:
    send = replace(point_to_point(cluster, nbytes // 4, "float32", (0, 1)), startup=0.0)
    ops: tuple[Op, ...] = (send.named("send", (), (0, 1)),)
    return play(engine, Program((ops,) * 2 + ((),) * (cluster.world_size - 2)), cluster).end


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("events", "seconds"),
    [
        # 0.4 GB before, 0.2 GB in 0.4 s at half the rate, 0.4 GB after.
        ([(0.4, 0.8, 0.5)], 1.2),
        # Down for a second.
        ([(0.4, 1.4, 0.0)], 2.0),
        # Down three times for 0.1 s.
        ([(0.1, 0.2, 0.0), (0.3, 0.4, 0.0), (0.5, 0.6, 0.0)], 1.3),
        # Two events at once multiply: 0.2 GB, then 0.1 s at 0.5 (0.05), 0.1 s at 0.25 (0.025), 0.725 at 0.5.
        ([(0.2, inf, 0.5), (0.3, 0.4, 0.5)], 0.4 + 0.725 / 0.5),
        # Over before anything is sent, or after everything has arrived.
        ([(0.0, 0.0, 0.5), (5.0, 6.0, 0.0)], 1.0),
    ],
)
@pytest.mark.parametrize("link", ["gpu0->switch0", "switch0->gpu1"])
def test_a_transfer_on_a_link_that_changes(
    engine: Engine, events: list[tuple[float, float, float]], seconds: float, link: str
) -> None:
    cluster = star(*(event(*one, link=link) for one in events))
    assert sent(engine, cluster) == pytest.approx(seconds)


@pytest.mark.parametrize("engine", ENGINES)
def test_flows_that_share_a_link_share_its_new_rate(engine: Engine) -> None:
    # Ranks 1 and 2 send 1 GB each to rank 0: 0.5 GB/s each. At 1 s the link falls to 0.5: 0.25 GB/s each, and 0.5 GB
    # are left of each: 3 s. Rank 0's own link is elsewhere and changes nothing.
    cluster = star(event(1.0, inf, 0.5, link="switch0->gpu0"), event(0.0, inf, 0.1, link="gpu0->switch0"), ranks=3)
    first = replace(point_to_point(cluster, 250_000_000, "float32", (1, 0)), startup=0.0).named("first", (), (1, 0))
    second = replace(first, stream="other").named("second", (), (2, 0))
    assert play(engine, Program(((first, second), (first,), (second,))), cluster).end == pytest.approx(3.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_kernels_slow_down_and_stop_with_their_gpu(engine: Engine) -> None:
    # 2 s of work, half speed from 1 s on: 1 + 2. The host's work of 2 s is as before. Rank 1 stands still for 5 s.
    ops: tuple[Op, ...] = (Compute("kernel", 2.0), Compute("host", 2.0, stream="host", on_gpu=False))
    cluster = star(event(1.0, inf, 0.5, rank=0), event(0.5, 5.5, 0.0, rank=1))
    spans = {(s.rank, s.name): s.end for s in play(engine, Program((ops, ops)), cluster).spans}
    assert spans == {(0, "kernel"): 3.0, (0, "host"): 2.0, (1, "kernel"): 7.0, (1, "host"): 2.0}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_kernel_beside_communication_has_both_paces(engine: Engine) -> None:
    # Alone 2 s, beside a transfer 4 s. The transfer of 1 GB lasts until 1 s: a quarter of the kernel. From 0.5 s on the
    # GPU has half its speed: an eighth until 0.5 s, a sixteenth until 1 s, and 13/16 of 2 s at half speed: 3.25 s.
    cluster = star(event(0.5, inf, 0.5, rank=0))
    planned = point_to_point(cluster, 250_000_000, "float32", (0, 1))
    send = replace(planned, name="send", startup=0.0, takes_sms=True)
    program = Program(((send, Compute("kernel", 2.0, contended=4.0)), (send,)))
    ends = {span.name: span.end for span in play(engine, program, cluster).spans if span.rank == 0}
    assert ends == {"send": pytest.approx(1.0), "kernel": pytest.approx(4.25)}


SCENARIO: dict[str, Any] = {
    "name": "events",
    "cluster": {"topology": "star_100g", "world_size": 4, "gpu": "a100_sxm_80gb"},
    "training": {"model": "gpt2", "seq_len": 512, "collectives": "played"},
}


def with_cluster(scenario: dict[str, Any] = SCENARIO, **keys: Any) -> dict[str, Any]:
    return scenario | {"cluster": scenario["cluster"] | keys}


@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2", "zero3"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.one_of(3)
def test_an_event_from_the_start_is_a_slow_part(sharding: str, engine: str) -> None:
    training = SCENARIO["training"] | {"sharding": sharding, "algorithm": "ring"}
    scenario = SCENARIO | {"engine": engine, "training": training}
    link, slow = "gpu2->switch0", 0.3
    changed = simulate(with_cluster(scenario, events=[{"at": "0 s", "link": link, "factor": slow}]))
    fixed = simulate(with_cluster(scenario, link_factors={link: slow}))
    assert changed.report.step_time_s == pytest.approx(fixed.report.step_time_s, rel=1e-9)
    changed = simulate(with_cluster(scenario, events=[{"at": "0 s", "rank": 2, "factor": slow}]))
    fixed = simulate(with_cluster(scenario, stragglers={2: slow}))
    # A straggler that is known from the start also leaves less HBM bandwidth to the kernels of others, beside
    # communication: the plan takes the smallest of the ranks.
    assert changed.report.step_time_s == pytest.approx(fixed.report.step_time_s, rel=5e-3)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_dead_rank_stops_everything_until_the_watchdog_ends_the_job(engine: str) -> None:
    dead = [{"at": "20 ms", "rank": 2}]
    with pytest.raises(DeadlockError):
        simulate(with_cluster(events=dead) | {"engine": engine})
    # The line names a collective whose transfers wait for the dead rank, and no operation behind the collective.
    stopped = r"the watchdog ends the job at 10 minutes: .* has waited for 'gather .*', wh.* since"
    with pytest.raises(StoppedError, match=stopped) as raised:
        simulate(with_cluster(events=dead, watchdog="10 min") | {"engine": engine})
    # It waits from the last thing that happened, after the death and before the step would have ended.
    healthy = simulate(SCENARIO).report.step_time_s
    assert 0.02 <= raised.value.time - 600.0 < healthy


@pytest.mark.parametrize("engine", ENGINES)
def test_a_flap_shorter_than_the_watchdog_is_survived_and_a_longer_one_is_not(engine: str) -> None:
    flap = [{"at": "40 ms", "lasts": "2 s", "link": "gpu2->switch0"}]
    healthy = simulate(SCENARIO | {"engine": engine}).report.step_time_s
    survived = simulate(with_cluster(events=flap, watchdog="10 s") | {"engine": engine}).report.step_time_s
    assert survived == pytest.approx(healthy + 2.0, rel=1e-6)
    with pytest.raises(StoppedError, match="takes 2"):
        simulate(with_cluster(events=flap, watchdog="1 s") | {"engine": engine})


@pytest.mark.long
def test_one_slow_gpu_of_64_slows_the_whole_job_almost_twice() -> None:
    # A measured job with tp 4, pp 4, dp 4 and one slow worker took 46.34 s instead of 23.48 s, 1.97 times as long
    # (ByteDance, StragglerAnalysis, trace AR). Here kernels take twice as long, and exchanges between GPUs do not.
    scenario = {
        "name": "slow", "cluster": {"topology": "dgx_h100", "world_size": 64},
        "training": {
            "model": "llama3_8b", "seq_len": 8192, "parallelism": {"tp": 4, "pp": 4},
            "gradient_accumulation_steps": 16, "sharding": "zero1",
        },
    }  # fmt: skip
    healthy = simulate(scenario).report.step_time_s
    # The last stage, with the head, is the slowest already.
    slow = simulate(with_cluster(scenario, events=[{"at": "0 s", "rank": 61, "factor": 0.5}])).report.step_time_s
    assert 1.7 < slow / healthy < 2.0


# Two leaves with two servers each, and two spines; every cable has 1 GB/s. GPUs 0 and 1 are below leaf 0. A route to
# GPU 2 leads over spine 0, to GPU 3 over spine 1.
SPINES = {
    "builder": "nodes", "library": "none", "gpu": "a100_pcie_80gb",
    "options": {
        "gpus": 1, "inside": "pcie", "hosts": 1, "pcie_bandwidth": "100 GB/s", "pcie_latency": "0 s", "nics": 1,
        "nic_bandwidth": "1 GB/s", "nic_latency": "0 s", "fabric": "leaf_spine", "nodes_per_leaf": 2, "spines": 2,
        "spine_latency": "0 s",
    },
}  # fmt: skip
UP = "leaf0->spine1"
DOWN = event(0.0, inf, 0.0, link=UP, reroute_after=0.0)


def spines(*events: EventSpec, placement: tuple[int, ...] = (0, 1, 2, 3)) -> Cluster:
    return build(SPINES, 4, placement=placement, events=events)


def two_sends(cluster: Cluster, sends: int = 1) -> Program:
    """GPU 0 sends 1 GB to GPU 2, and GPU 1 sends 1 GB to GPU 3 so many times."""
    ends: list[list[Op]] = [[], [], [], []]
    for number in range(sends):
        for source in (0, 1) if number == 0 else (1,):
            send = replace(point_to_point(cluster, 250_000_000, "float32", (source, source + 2)), startup=0.0)
            named = send.named(f"{source} {number}", (), (source, source + 2))
            ends[source].append(named)
            ends[source + 2].append(named)
    return Program(tuple(tuple(own) for own in ends))


def ends_of(timeline: Timeline) -> dict[str, float]:
    return {span.name: span.end for span in timeline.spans}


def carried(timeline: Timeline) -> dict[str, float]:
    return {use.name: use.nbytes for use in link_uses(timeline) if "spine" in use.name}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("start", "after"), [(0.0, 0.0), (0.0, 0.25), (0.5, 0.25), (0.5, 0.0)])
def test_transfers_take_the_other_spine_after_the_time_of_rerouting(engine: Engine, start: float, after: float) -> None:
    # From start + after on, both flows share the cable to spine 0: GPU 0's has 1 - (start + after) GB left and half the
    # rate, and ends after 2 (1 - start - after) more. GPU 1's is sent again from its beginning; the cable to spine 0 is
    # full all the time and has carried 2 GB at 2 s.
    cluster = spines(event(start, inf, 0.0, link=UP, reroute_after=after))
    timeline = play(engine, two_sends(cluster), cluster)
    moved = start + after
    assert ends_of(timeline) == {"0 0": pytest.approx(moved + 2.0 * (1.0 - moved)), "1 0": pytest.approx(2.0)}
    # The log shows the route that a transfer took in the end, and when its bytes entered it.
    assert carried(timeline) == {"leaf0->spine0": 2e9, "spine0->leaf1": 2e9}
    (log,) = (log for log in timeline.logs if log.collective == "1 0")
    assert log.enter.tolist() == pytest.approx([moved])


@pytest.mark.parametrize("engine", ENGINES)
def test_a_transfer_stays_on_its_detour_and_the_next_one_returns_to_the_link(engine: Engine) -> None:
    # The cable is down until 0.5 s; GPU 1's first transfer moves at 0.25 s and ends at 2 s, as above. Its second one
    # takes spine 1 again, for 1 s.
    cluster = spines(event(0.0, 0.5, 0.0, link=UP, reroute_after=0.25))
    timeline = play(engine, two_sends(cluster, sends=2), cluster)
    assert ends_of(timeline) == {"0 0": pytest.approx(1.75), "1 0": pytest.approx(2.0), "1 1": pytest.approx(3.0)}
    assert carried(timeline) == {
        "leaf0->spine0": 2e9, "spine0->leaf1": 2e9, "leaf0->spine1": 1e9, "spine1->leaf1": 1e9,
    }  # fmt: skip


@pytest.mark.parametrize("engine", ENGINES)
def test_a_transfer_without_another_route_waits_for_its_link(engine: Engine) -> None:
    # A server has one cable to its leaf: 0.5 GB before, 0.4 s of waiting, 0.5 GB after.
    cluster = spines(event(0.5, 0.9, 0.0, link="nic1->leaf0", reroute_after=0.1))
    ends = ends_of(play(engine, two_sends(cluster), cluster))
    assert ends == {"0 0": pytest.approx(1.0), "1 0": pytest.approx(1.4)}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("events", "longer"), [((), 1.0), ((DOWN,), 2.0)])
def test_a_ring_over_two_spines_takes_twice_as_long_with_a_link_down(
    engine: Engine, events: tuple[EventSpec, ...], longer: float
) -> None:
    # In the order 0, 2, 1, 3 every hop crosses the spines. Without the cable from leaf 0 to spine 1, hops 0 -> 2 and
    # 1 -> 3 share the other one and take 2 S / (N B) in each of the 2 (N - 1) rounds; the next round waits for them.
    cluster = spines(*events, placement=(0, 2, 1, 3))
    op = plan(cluster, Task(CollectiveRequest("all_reduce", 4, 10**8), "ring", (0, 1, 2, 3), "float32")).ops[0]
    program = Program(((replace(op, startup=0.0, duration=None, caps=RateCaps()),),) * 4)
    size, bandwidth = 4e8, 1e9
    assert play(engine, program, cluster).end == pytest.approx(longer * 2 * 3 * size / 4 / bandwidth, rel=1e-9)


@pytest.mark.skipif(len(ENGINES) == 1, reason="no compiled core")
@pytest.mark.parametrize("latency", ["0 s", "3 ms"])
@pytest.mark.parametrize("sharding", ["ddp", "zero3"])
def test_both_engines_leave_the_same_behind_where_routes_change(sharding: str, latency: str) -> None:
    options = SPINES["options"] | {"spine_latency": latency, "nodes_per_leaf": 2}  # type: ignore[operator]
    events = [
        {"at": "1 ms", "link": UP, "lasts": "20 ms", "every": "50 ms", "times": 6, "reroute_after": "3 ms"},
        {"at": "30 ms", "link": "spine0->leaf0", "reroute_after": "0 s"},
        {"at": "60 ms", "link": "*leaf1->spine1*", "lasts": "40 ms", "reroute_after": "11 ms"},
        {"at": "0 s", "rank": 2, "factor": 0.7},
    ]
    scenario = {
        "name": "rerouted", "cluster": {"topology": SPINES | {"options": options}, "world_size": 4, "events": events},
        "training": {"model": "gpt2", "seq_len": 64, "collectives": "played", "sharding": sharding},
    }  # fmt: skip
    runs = [simulate(scenario | {"engine": engine}) for engine in ENGINES]
    assert farthest(runs[0].timeline, runs[1].timeline) <= CLOSE
    # More bytes than a link can carry never pass.
    for use in link_uses(runs[0].timeline):
        assert use.nbytes <= use.bandwidth * runs[0].timeline.end * (1 + 1e-9)


def test_a_link_down_for_good_without_another_route_is_told() -> None:
    scenario = with_cluster(events=[{"at": "20 ms", "link": "gpu2->switch0", "reroute_after": "1 ms"}])
    with pytest.raises(DeadlockError, match=r"rerouted after 1 ms for good.*, and some transfers have no other route"):
        simulate(scenario)


EVENTS = st.lists(
    st.builds(
        dict,
        at=st.sampled_from([0.0, 0.003, 0.011, 0.02, 0.035]),
        lasts=st.sampled_from([0.002, 0.01, 0.03]),
        factor=st.sampled_from([0.0, 0.25, 0.9]),
        target=st.sampled_from(
            [("link", "gpu1->switch0"), ("link", "switch0->gpu3"), ("link", "*switch0*"), ("rank", 0), ("rank", 3)]
        ),
    ),
    min_size=1,
    max_size=4,
)


@pytest.mark.skipif(len(ENGINES) == 1, reason="no compiled core")
@given(
    drawn=EVENTS,
    training=st.fixed_dictionaries(
        {
            "sharding": st.sampled_from(["ddp", "zero1", "zero2", "zero3"]),
            "gradient_accumulation_steps": st.sampled_from([1, 2]),
            "algorithm": st.sampled_from(["ring", "auto", "direct", "tree"]),
        }
    ),
)
@settings(max_examples=25, deadline=None)
def test_both_engines_leave_the_same_behind(drawn: list[dict[str, Any]], training: dict[str, Any]) -> None:
    events = [{key: f"{one[key]} s" for key in ("at", "lasts")} | {"factor": one["factor"]} | dict([one["target"]]) for one in drawn]  # fmt: skip  # noqa: E501
    scenario = with_cluster(events=events)
    scenario = scenario | {"training": SCENARIO["training"] | {"seq_len": 64} | training}
    try:
        load_scenario(scenario)
    except ScenarioError:
        # The algorithm lacks an operation of the strategy.
        return
    runs = [simulate(scenario | {"engine": engine}) for engine in ENGINES]
    assert farthest(runs[0].timeline, runs[1].timeline) <= CLOSE
    # No byte is lost, and nothing ends earlier than without events.
    healthy = simulate(scenario | {"cluster": SCENARIO["cluster"], "engine": "compiled"})
    assert {one.collective: one.nbytes for one in runs[0].timeline.sent} == {
        one.collective: one.nbytes for one in healthy.timeline.sent
    }
    assert runs[0].report.step_time_s >= healthy.report.step_time_s * (1 - 1e-9)
    for log in runs[0].timeline.logs:
        assert (log.end >= log.enter).all()


def test_factors_of_events_that_overlap_multiply() -> None:
    found = changes([Event(1.0, 4.0, 0.5, (7,)), Event(3.0, inf, 0.2, (7,), (0,))])
    assert [(one.time, dict(one.links), dict(one.ranks)) for one in found] == [
        (1.0, {7: 0.5}, {}),
        (3.0, {7: 0.1}, {0: 0.2}),
        (4.0, {7: 0.2}, {}),
    ]


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"at": "1 ms"}, "cluster.events.0: names nothing; name one of link, rank, node"),
        ({"at": "1 ms", "rank": 0, "node": 0}, "cluster.events.0: names rank and node; name one of link, rank, node"),
        ({"at": "1 ms", "rank": 4}, "cluster.events.0.rank: got rank 4; must be one of 0 .. 3"),
        ({"at": "1 ms", "node": 4}, "cluster.events.0.node: got node 4; must be one of 0 .. "),
        ({"at": "1 ms", "rank": 0, "factor": 2}, "cluster.events.0.factor: got 2; must be at most 1"),
        ({"at": "1 ms", "rank": 0, "factor": 1.0}, "cluster.events.0.factor: got 1; must be below 1"),
        ({"at": "1 ms", "rank": 0, "times": 3}, "cluster.events.0.times: got 3; needs every"),
        ({"at": "1 ms", "rank": 0, "every": "1 s"}, "cluster.events.0.every: has no effect without times"),
        ({"rank": 0}, "cluster.events.0.at: missing"),
        ({"at": "1 ms", "rank": 0, "reroute_after": "1 s"}, "cluster.events.0.reroute_after: has no effect without li"),
        (
            {"at": "1 ms", "link": "gpu0->switch0", "factor": 0.5, "reroute_after": "1 s"},
            "cluster.events.0.reroute_after: has no effect on a slow link",
        ),
        (
            {"at": "1 ms", "link": "gpu0->switch0", "lasts": "1 s", "reroute_after": "1 s"},
            "cluster.events.0.reroute_after: has no effect: the link is up again before",
        ),
        ({"at": "1 ms", "rnk": 0}, "cluster.events.0.rnk: unknown key"),
    ],
)
def test_a_wrong_event_is_told(event: dict[str, Any], said: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        load_scenario(with_cluster(events=[event]))
    assert f"<dict>: {said}" in str(raised.value)


def test_closed_forms_know_no_events() -> None:
    scenario = with_cluster(events=[{"at": "1 ms", "rank": 0, "factor": 0.5}])
    with pytest.raises(
        ScenarioError, match=r"training\.collectives: got closed_form, which knows no links that change"
    ):
        load_scenario(scenario | {"training": SCENARIO["training"] | {"collectives": "closed_form"}})


def test_a_link_that_does_not_exist_is_told() -> None:
    with pytest.raises(ScenarioError, match="did you mean 'gpu2->switch0'"):
        simulate(with_cluster(events=[{"at": "1 ms", "link": "gpu2->swich0", "factor": 0.5}]))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_checkpoint_that_can_never_be_written_stops_the_job(engine: str) -> None:
    """The step takes 0.6 ms and the write 0.1 s at 10 MB/s; all links are down for good from 50 ms on."""
    model = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 64, "vocab_size": 96}
    training = {"model": model, "seq_len": 24, "sharding": "zero3", "checkpoint_traffic": "sharded"}
    cluster = {"topology": "star_100g", "world_size": 4, "storage": "10 MB/s"}
    saved = {"name": "saved", "engine": engine, "training": training, "cluster": cluster}
    assert simulate(load_scenario(saved)).report.step_time_s < 0.05
    down = cluster | {"events": [{"at": "50 ms", "factor": 0, "link": "*"}]}
    with pytest.raises(DeadlockError, match=r"collective 'save checkpoint \(own 0\)' waits for a link that is down"):
        simulate(load_scenario(saved | {"cluster": down}))
