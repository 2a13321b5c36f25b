"""`simulator jobs` and `simulator.simulate_jobs`: files of jobs, placements, what is refused, and the answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from simulator import simulate, simulate_jobs
from simulator.basics import registry
from simulator.basics.errors import DeadlockError, ScenarioError
from simulator.cluster.build import build
from simulator.cluster.changes import EventSpec
from simulator.cluster.leaf_switches import leaf_switches
from simulator.run.jobs import sharing
from simulator.scenario.days_file import DaysSpec
from simulator.scenario.jobs_file import JobSpec, OuterSpec, SharedClusterSpec, load_jobs
from simulator.step.global_batch import sequences_of
from tests.commands import Command, commands_in

TRAINING = {"model": "gpt2", "seq_len": 256}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def file(cluster: dict[str, Any] | None = None, **jobs: Any) -> dict[str, Any]:
    return {"cluster": {"topology": "leaf_spine_100g"} | (cluster or {}), "jobs": jobs}


def placed(data: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {job.name: tuple(job.cluster.placement or ()) for job in load_jobs(data).jobs}


def job(world_size: int = 4, **keys: Any) -> dict[str, Any]:
    return {"training": TRAINING, "world_size": world_size} | keys


def test_placements_take_free_gpus() -> None:
    # Servers have two GPUs: 0 and 1, 2 and 3, ...
    assert placed(file(a=job(), b=job())) == {"a": (0, 1, 2, 3), "b": (4, 5, 6, 7)}
    assert placed(file(a=job(placement="spread"), b=job(placement="spread"))) == {"a": (0, 2, 4, 6), "b": (1, 3, 5, 7)}
    # Explicit places come first, and packed jobs take what is left.
    assert placed(file(a=job(), b=job(2, placement=[1, 2]))) == {"a": (0, 3, 4, 5), "b": (1, 2)}
    # Both GPUs of a server are free only on servers 1 and 2.
    taken = job(2, placement=[1, 6])
    assert placed(file({"nodes": 4}, a=job(placement={"gpus_per_node": 2}), b=taken))["a"] == (2, 3, 4, 5)
    assert placed(file({"nodes": 4}, a=job(placement={"gpus_per_node": 1})))["a"] == (0, 2, 4, 6)
    # On eight servers, four ranks spread over the first four.
    assert placed(file({"nodes": 8}, a=job(placement="spread")))["a"] == (0, 2, 4, 6)


def test_a_job_by_rail_has_the_same_local_ranks_on_each_of_its_nodes() -> None:
    both = file(a=job(placement="by_rail"), b=job(placement="by_rail"))
    assert placed(both) == {"a": (0, 2, 4, 6), "b": (1, 3, 5, 7)}
    # GPU 0 is taken: spread would take GPU 1 beside GPUs 2 and 4, which are on the other rail.
    taken = {"b": job(1, placement=[0])}
    assert placed(file({"nodes": 4}, a=job(3, placement="by_rail"), **taken))["a"] == (2, 4, 6)
    assert placed(file({"nodes": 4}, a=job(3, placement="spread"), **taken))["a"] == (1, 2, 4)
    # Eight GPUs on four nodes of eight take two rails, the lowest that are free on every node.
    dgx = {"topology": "dgx_h100", "nodes": 4}
    places = [8 * node + rail for node in range(4) for rail in (2, 3)]
    blocked = {"b": job(1, placement=[1])}
    assert placed(file(dgx, a=job(8, placement="by_rail"), **blocked))["a"] == tuple(places)


def test_jobs_by_rail_share_no_link_of_a_rail_network() -> None:
    # Rail i of a DGX has a leaf of its own, and each GPU has its own cable to the NVSwitch.
    dgx = {"topology": "dgx_h100", "nodes": 2}
    run = simulate_jobs(file(dgx, a=job(8, placement="by_rail", steps=2), b=job(8, placement="by_rail", steps=2)))
    assert [one.cluster.placement for one in run.file.jobs] == [
        (0, 1, 2, 3, 8, 9, 10, 11),
        (4, 5, 6, 7, 12, 13, 14, 15),
    ]
    assert run.links == ()
    assert [one.slowdown for one in run.jobs] == [1.0, 1.0]


def test_the_answer_says_which_priorities_jobs_have() -> None:
    run = simulate_jobs(file(a=job(placement="spread", priority=2), b=job(placement="spread")))
    assert run.sentences[-1] == (
        "On a full link, transfers share the bandwidth in proportion to the priorities of their jobs (a 2, b 1)."
    )
    slowdown = {one.name: one.slowdown for one in run.jobs}
    assert slowdown["a"] < slowdown["b"]
    assert run.to_dict()["jobs"]["a"]["priority"] == 2


def test_a_job_may_be_a_scenario_with_other_settings(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "name: own\ncluster: {topology: dgx_a100, world_size: 2}\ntraining: {model: gpt2, seq_len: 1024}\n"
    )
    (tmp_path / "jobs.yaml").write_text(
        "cluster: {topology: leaf_spine_100g}\n"
        "jobs: {a: {scenario: own.yaml, set: {training.seq_len: 256, training.sharding: zero1}}}\n"
    )
    (one,) = load_jobs(tmp_path / "jobs.yaml").jobs
    assert one.scenario is not None
    assert one.scenario.training is not None
    assert (one.scenario.training.seq_len, one.scenario.training.sharding.strategy) == (256, "zero1")
    assert (one.cluster.topology, one.cluster.world_size, one.cluster.placement) == ("leaf_spine_100g", 2, (0, 1))


def test_a_job_alone_takes_the_time_of_its_scenario() -> None:
    run = simulate_jobs(file(a=job(steps=3)))
    scenario = {
        "name": "a", "cluster": {"topology": "leaf_spine_100g", "world_size": 4},
        "training": TRAINING | {"collectives": "played"},
    }  # fmt: skip
    assert run.jobs[0].alone == pytest.approx(simulate(scenario).report.step_time_s, rel=1e-12)
    assert run.sentences == (f"Job a runs alone: {run.jobs[0].alone * 1e3:.4g} ms a step.",)


def test_the_table_has_a_row_for_each_job() -> None:
    run = simulate_jobs(file(a=job(placement="spread"), b=job(placement="spread")))
    table = run.frame()
    assert list(table.index) == ["a", "b"]
    assert table.loc["a", "slowdown"] == run.jobs[0].slowdown == run.jobs[0].together / run.jobs[0].alone


# Four copies of Llama 3 8B take fifteen seconds.
LARGE = ("diloco_wan",)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (name in LARGE)) for name in registry.names("jobs")]
)
@pytest.mark.one_of(2)
def test_shipped_files_answer_their_question(cli: Command, name: str) -> None:
    told = cli("jobs", name, "--json").data
    assert told["sentences"]
    assert all(sentence[0].isupper() and sentence.endswith(".") for sentence in told["sentences"])
    for one in told["jobs"].values():
        assert one["step_ends_s"] == sorted(one["step_ends_s"])
        assert one["slowdown"] >= 1.0 - 1e-9


def test_the_terminal_prints_answer_and_tables(cli: Command) -> None:
    out = cli("jobs", "two_jobs_one_fabric", "--shifts", 2).out
    assert "Job gpt2 loses most: " in out
    assert "Links that several jobs use" in out
    assert "Slowdown if job bert starts later" in out


GENERATION = {"generation": {"time": "1 s"}, "world_size": 2}


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"cluster": {"topology": "leaf_spine_100g"}}, "<dict>: has no key 'jobs'; "),
        (file(), "<dict>: jobs: got 0 jobs; must be 1 to 64"),
        (file(a={"world_size": 2}), "<dict>: jobs.a: does nothing; give scenario, training or generation"),
        (file(a={"training": TRAINING}), "<dict>: jobs.a: world_size is missing; "),
        (file(a=job(scenario="straggler")), "<dict>: jobs.a: has scenario and training; give one of the two"),
        (file(a=job(placment="packed")), "<dict>: jobs.a.placment: unknown key; one of "),
        (file(a=job(placement="rails")), "<dict>: jobs.a.placement: got 'rails'; one of by_rail, packed, spread"),
        (
            file({"nodes": 2}, a=job(3, placement="by_rail"), b=job(1, placement="packed")),
            "<dict>: jobs.a.placement: 3 GPUs with equal local numbers on their nodes are not free; write a list of ",
        ),
        (file(a=job(priority=0)), "<dict>: jobs.a.priority: got 0; must be at least 1"),
        (file(a=job(placement=[0, 0, 1, 2])), "<dict>: jobs.a.placement: got [0, 0, 1, 2]; must be 4 different GPU "),
        (file(a=job(2, placement=[0, 1]), b=job(1, placement=[0])), "<dict>: jobs.b.placement: GPU 0 belongs to job"),
        (file({"nodes": 1}, a=job()), "<dict>: jobs: jobs have 4 ranks in all; 1 nodes of leaf_spine_100g have 2 GPUs"),
        (file(a=job(start="soon")), "<dict>: jobs.a.start: got 'soon'; "),
        (file({"topologie": "x"}, a=job()), "<dict>: cluster.topologie: unknown key; "),
        (file(a=job(training=TRAINING | {"sharding": "zero5"})), "<dict>: jobs.a: training.sharding: got 'zero5'; "),
        (file(a=job(steps=3, lag=1)), "<dict>: jobs.a.lag: has no effect without batches_from"),
        (file(a=job(steps_per_batch=2)), "<dict>: jobs.a.steps_per_batch: has no effect without batches_from or gen"),
        (file(a=job(batches_from="b")), "<dict>: jobs.a.batches_from: got 'b'; no job has generation alone"),
        (file(g=GENERATION, a=job(batches_from="b")), "<dict>: jobs.a.batches_from: got 'b'; one of g"),
        (file(g=GENERATION | {"steps": 3}), "<dict>: jobs.g.steps: a job that only generates has the steps of its "),
        (file(g=GENERATION, a=job(batches_from="g"), b=job(batches_from="g")), "<dict>: jobs.b.batches_from: job 'a'"),
        (file(a=job(outer={"copies": 1, "every": 4})), "<dict>: jobs.a.outer.copies: got 1; must be at least 2"),
        (file(a=job(outer={"copies": 2, "every": 4, "fragments": 3})), "<dict>: jobs.a.outer.fragments: got 3; must "),
        (file(a=job(outer={"copies": 2, "every": 4, "delay": 4})), "<dict>: jobs.a.outer.delay: got 4; must be below "),
        (file(a=job(steps=4, outer={"copies": 2, "every": 4})), "<dict>: jobs.a.steps: follows from outer.every"),
        (file(a=GENERATION | {"outer": {"copies": 2, "every": 4}}), "<dict>: jobs.a.outer: copies average what they "),
        (file(a=job(outer={"copies": 2})), "<dict>: jobs.a.outer.every: missing"),
        (file(g={"generation": {"tokens": "1M"}, "world_size": 2}), "<dict>: jobs.g.generation: write the time of a "),
        (file(a=job(scenario="stragglers", training=None)), "<dict>: jobs.a: has several points along "),
        (file(a=job(training=TRAINING | {"sharding": "parameter_server"})), "<dict>: jobs.a: has parameter servers; "),
        (file(a=job(training=TRAINING | {"model": "llama3_405b"})), "jobs.a: "),
    ],
)  # fmt: skip
def test_a_wrong_file_is_told_in_a_line(data: dict[str, Any], said: str) -> None:
    data["jobs"] = {name: {k: v for k, v in one.items() if v is not None} for name, one in data.get("jobs", {}).items()} if "jobs" in data else None  # fmt: skip  # noqa: E501
    with pytest.raises(ScenarioError) as raised:
        simulate_jobs({key: value for key, value in data.items() if value is not None})
    assert str(raised.value).startswith(said)
    assert len(str(raised.value).splitlines()) == 1


def test_events_cost_what_they_cost_beside_the_time_without_them() -> None:
    down = {"events": [{"at": "20 ms", "lasts": "50 ms", "link": "*nic0*"}]}
    clean = simulate_jobs(file(a=job(steps=3))).jobs[0]
    run = simulate_jobs(file(down, a=job(steps=3)))
    assert run.jobs[0].alone == clean.alone
    # The card is down for 50 ms of three steps, and some of it was idle.
    assert 0.0 < run.jobs[0].step_ends[-1] - clean.step_ends[-1] <= 0.05 + 1e-9
    assert "for 3 steps with links *nic0* down for 50 ms, " in run.sentences[0]


def test_a_slow_link_costs_what_it_costs_beside_healthy_links() -> None:
    cable = {"link_factors": {"nic0->leaf0": 0.2, "leaf0->nic0": 0.2}}
    run = simulate_jobs(file(cable, a=job(steps=2), b=job(steps=2)))
    scenario = {
        "name": "a", "cluster": {"topology": "leaf_spine_100g", "world_size": 4},
        "training": TRAINING | {"collectives": "played"},
    }  # fmt: skip
    rated = simulate(scenario).report.step_time_s
    slow = simulate(scenario | {"cluster": scenario["cluster"] | cable}).report.step_time_s  # type: ignore[operator]
    assert (run.jobs[0].healthy, run.jobs[0].alone) == pytest.approx((rated, slow), rel=1e-9)
    assert run.jobs[1].alone == pytest.approx(run.jobs[1].healthy, rel=1e-9)
    times = slow / rated
    assert run.sentences[0].startswith(
        f"Slow links (nic0 <-> leaf0 at 20 % of its speed) make job a {times:.3g} times as"
    )
    assert run.sentences[0].endswith("on healthy links); b is not affected.")
    assert run.frame().loc["a", "healthy_links_s"] == run.jobs[0].healthy


@pytest.mark.parametrize("factor", [1.0, 4.0])
def test_links_at_their_rating_or_faster_are_no_slow_links(monkeypatch: pytest.MonkeyPatch, factor: float) -> None:
    """A cable of four times its rating makes the job faster, and neither is compared with healthy links."""

    def not_needed(*_: object) -> list[float]:
        pytest.fail("nothing is slow, therefore no time on healthy links is needed")

    monkeypatch.setattr(sharing, "_times_on_healthy_links", not_needed)
    cable = {"link_factors": {"nic0->leaf0": factor, "leaf0->nic0": factor}}
    run = simulate_jobs(file(cable, a=job(steps=1)))
    assert run.sentences == (f"Job a runs alone: {run.jobs[0].alone * 1e3:.4g} ms a step.",)
    assert run.jobs[0].healthy == run.jobs[0].alone


def test_slow_links_are_compared_beside_links_that_stay_faster() -> None:
    """Every link has four times its rating, except a cable: without its factor, all have four times their rating."""
    fast = {"*->*": 4.0}
    cable = {"nic0->leaf0": 0.9, "leaf0->nic0": 0.9}
    run, all_fast = (simulate_jobs(file({"link_factors": links}, a=job(steps=1))) for links in (fast | cable, fast))
    assert run.jobs[0].healthy == all_fast.jobs[0].alone < run.jobs[0].alone
    assert run.sentences[0].startswith("Slow links (nic0 <-> leaf0 at 90 % of its speed) make job a ")


def test_a_job_that_generates_and_trains_answers_with_the_time_of_a_batch() -> None:
    batches = {"generation": {"time": "2 s"}, "steps_per_batch": 2}
    run = simulate_jobs(file(grpo=job(steps=4) | batches, other=job(steps=200)))
    step = simulate_jobs(file(a=job(steps=1))).jobs[0].alone
    assert run.jobs[0].together * 2 == pytest.approx(2.0 + 2 * step, rel=1e-9)
    # The first step of a batch contains the generation: only whole batches count.
    assert len(run.jobs[0].judged) % 2 == 0
    assert run.sentences[0] == (
        f"A batch takes job grpo {2.0 + 2 * step:.4g} s (2 s of generation, {2 * step * 1e3:.4g} ms of training), with "
        "2 training steps on the same 4 GPUs."
    )


def test_a_million_tokens_are_as_many_in_generation_as_in_a_batch() -> None:
    generation = {"generation": {"tokens": "1M", "rate": 1024}, "world_size": 2}
    (one,) = load_jobs(file(g=generation)).jobs
    assert one.tokens == sequences_of("1M", 1)
    assert one.generation == 2**20 / (2 * 1024)


def test_a_link_that_never_returns_is_named() -> None:
    forever = {"events": [{"at": "1 ms", "link": "*nic0*"}]}
    with pytest.raises(DeadlockError, match=r"links \*nic0\* down for good, because lasts is omitted, and the step"):
        simulate_jobs(file(forever, a=job(steps=1)))


def test_the_reference_lists_every_key_of_both_files() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "jobs_and_days.md").read_text()
    keys = "".join(line.split("|")[1] for line in page.splitlines() if line.startswith("|"))
    written = set(re.findall(r"`([a-z_.]+)`", keys))
    of_event = set(EventSpec.model_fields)
    of_jobs = {f"cluster.{name}" for name in SharedClusterSpec.model_fields} | {"jobs", "engine", "seed"}
    of_job = {field.alias or name for name, field in JobSpec.model_fields.items() if name != "outer"}
    of_outer = {f"outer.{name}" for name in OuterSpec.model_fields}
    of_days = {field.alias or name for name, field in DaysSpec.model_fields.items()}
    assert written == of_jobs | of_job | of_outer | of_days | of_event


def test_other_commands_name_this_one(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "jobs.yaml").write_text("cluster: {topology: leaf_spine_100g}\njobs: {}\n")
    assert "use `simulator jobs jobs.yaml`" in cli("run", "jobs.yaml").err
    assert "use `simulator jobs two_jobs_one_fabric`" in cli("run", "two_jobs_one_fabric").err


def test_a_job_may_have_the_name_of_an_operation() -> None:
    run = simulate_jobs(file(start=job(), average=job()))
    assert run.jobs[0].alone == pytest.approx(run.jobs[1].alone, rel=1e-9)


def test_a_job_has_the_nodes_and_the_leaf_switches_of_its_gpus() -> None:
    """Nodes of two GPUs, four nodes under a leaf: GPUs 0 to 7 are under the first leaf, 8 to 15 under the second."""
    jobs = file({"nodes": 8, "topology": {
        "name": "leaves", "gpu": "a100_pcie_80gb", "builder": "nodes",
        "options": {"gpus": 2, "inside": "pcie", "hosts": 1, "pcie_bandwidth": "31.5 GB/s", "pcie_latency": "1 us",
                    "nics": 1, "nic_bandwidth": "100 Gb/s", "nic_latency": "2.5 us", "fabric": "leaf_spine",
                    "nodes_per_leaf": 4},
    }}, a=job(4, placement=[0, 1, 8, 10], steps=1), b=job(2, placement=[2, 3], steps=1))  # fmt: skip
    run = simulate_jobs(jobs)
    assert [(one.nodes, one.leaf_switches) for one in run.jobs] == [(3, ("leaf0", "leaf1")), (1, ("leaf0",))]
    assert run.frame()[["nodes", "leaf_switches"]].values.tolist() == [[3, 2], [1, 1]]


def test_on_a_network_of_rails_a_gpu_has_the_leaf_of_its_rail() -> None:
    """A DGX has eight rails; two GPUs of each of two nodes are on two of them."""
    cluster = build("dgx_h100", 16)
    assert len(leaf_switches(cluster)) == 8
    assert len(leaf_switches(cluster.part([0, 8]))) == 1
    assert len(leaf_switches(cluster.part([2, 3, 10, 11]))) == 2


def test_a_cluster_without_nodes_has_no_number_of_nodes() -> None:
    both = {"cluster": {"topology": "star_100g"}, "jobs": {"a": job(2, steps=1), "b": job(2, steps=1)}}
    assert [(one.nodes, one.leaf_switches) for one in simulate_jobs(both).jobs] == [(None, ("switch0",))] * 2
