"""The picture of a pipeline: its passes are those of the order, and its idle time is what the timeline has."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from simulator.basics.intervals import length
from simulator.cluster.build import build
from simulator.engine.events import execute
from simulator.records.measures import find
from simulator.records.timeline import Timeline, by_rank
from simulator.report.numbers.link_use import link_uses
from simulator.report.plots.plot import CloseUp
from simulator.report.plots.training import dimensions_on_links, memory_by_stage, pipeline
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from simulator.step.parallelism import Parallelism
from simulator.step.pipelines.schedule import SCHEDULES, PipelineShape, Work
from simulator.step.plan import plan_step
from tests.training import TINY, step

KINDS = {
    "forward": {Work.FORWARD},
    "backward": {Work.BACKWARD, Work.INPUT_GRADIENT},
    "weight gradient": {Work.WEIGHT_GRADIENT},
}


def played(parallelism: Parallelism, micros: int, layers: int = 8, **facts: object) -> Timeline:
    cluster = build("dgx_h100", parallelism.size)
    made = step(
        "ddp", replace(TINY, num_layers=layers), gradient_accumulation_steps=micros, parallelism=parallelism, **facts
    )
    return execute(plan_step(cluster, made).program, cluster, limit_memory=False)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(("name", "v"), [("1f1b", 1), ("interleaved", 2), ("zb_h1", 1), ("zb_v", 2), ("dualpipe_v", 2)])
def test_a_bar_is_a_pass_of_the_order(name: str, v: int, checkpointing: str) -> None:
    """As many of each kind and micro-batch as the order has; a V's two chunks in a row at its turn are one run."""
    timeline = played(Parallelism(pp=4, schedule=name, virtual_stages=v), 8, activation_checkpointing=checkpointing)
    order = SCHEDULES.find(name).order(PipelineShape(4, 8, v, 4))
    for rank, spans in by_rank(timeline.spans).items():
        drawn = [one for one in pipeline.passes(sorted(spans, key=lambda span: span.start)) if one.kind != "optimizer"]
        slots = [one for slot in order[rank] for one in slot]
        for kind, works in KINDS.items():
            wanted = Counter(one.micro for one in slots if one.work in works)
            found = Counter(one.micro for one in drawn if one.kind == kind)
            if rank < 3 or v == 1 or name == "interleaved":
                assert found == wanted, (rank, kind)
            assert set(found) == set(wanted), (rank, kind)


def test_a_step_of_one_stage_has_no_such_picture() -> None:
    timeline = played(Parallelism(tp=2), 2)
    assert pipeline.figure(CloseUp(timeline, 80e9)) is None


def test_the_title_says_how_long_stages_are_idle() -> None:
    timeline = played(Parallelism(pp=4), 4)
    fig = pipeline.figure(CloseUp(timeline, 80e9))
    assert fig is not None
    title = fig.get_suptitle().replace("\n", " ")
    assert title.startswith("Mean idle time of 4 stages: ")
    assert [label.get_text() for label in fig.axes[0].get_yticklabels()] == [f"stage {r} (rank {r})" for r in range(4)]


def test_memory_by_stage_has_each_stages_peak() -> None:
    """Bars are as long as each first rank's largest sample; the title names the longest."""
    timeline = played(Parallelism(pp=4), 8)
    fig = memory_by_stage.figure(CloseUp(timeline, 80e9))
    assert fig is not None
    most = [max(sample.nbytes for sample in own) for _, own in sorted(by_rank(timeline.memory).items())]
    bars = [patch for patch in fig.axes[0].patches if patch.get_width() > 0]
    ends = [max(bar.get_x() + bar.get_width() for bar in bars if round(bar.get_y() + 0.375) == row) for row in range(4)]
    assert ends == pytest.approx(most)
    assert fig.get_suptitle().startswith(f"Stage {most.index(max(most))} needs the most memory (")
    assert memory_by_stage.figure(CloseUp(played(Parallelism(tp=2), 2), 80e9)) is None


def test_the_peak_of_each_rank_is_its_largest_sample() -> None:
    """The engine keeps the peaks, so that a report needs no list of samples."""
    timeline = played(Parallelism(pp=4), 8)
    most = {rank: max(sample.nbytes for sample in own) for rank, own in by_rank(timeline.memory).items()}
    assert dict(timeline.peak_bytes) == most
    assert len(set(most.values())) > 1


def test_bytes_of_dimensions_are_all_bytes_of_all_links() -> None:
    """A mean over the links of a kind times their number, added up, is what the links' books say."""
    made = step(
        "zero1", replace(TINY, num_layers=4), gradient_accumulation_steps=4, parallelism=Parallelism(tp=2, pp=2)
    )
    cluster = build("dgx_h100", 16)
    timeline = execute(plan_step(cluster, made).program, cluster, limit_memory=False)
    uses = link_uses(timeline)
    links = Counter(dimensions_on_links.kind_of_link(use.name) for use in uses)
    means = dimensions_on_links.carried(timeline)
    assert {name for own in means.values() for name in own} == {"tp", "pp", "dp"}
    for kind, own in means.items():
        told = sum(use.nbytes for use in uses if dimensions_on_links.kind_of_link(use.name) == kind)
        assert sum(own.values()) * links[kind] == pytest.approx(told)
    assert set(means) == set(links)
    assert dimensions_on_links.figure(CloseUp(timeline, 80e9)) is not None
    assert dimensions_on_links.figure(CloseUp(replace(timeline, spans=timeline.spans[:40]), 80e9)) is None


def test_the_bubble_is_what_no_span_covers_whatever_is_kept() -> None:
    data = {
        "name": "idle",
        "cluster": {"topology": "dgx_a100", "world_size": 8},
        "training": {
            "model": "gpt2_medium",
            "seq_len": 512,
            "gradient_accumulation_steps": 6,
            "parallelism": {"pp": 4},
            "sharding": "zero1",
        },
    }
    run = simulate(load_scenario(data))
    idle = run.report.to_dict()["idle_time_by_stage"]
    of_stage = {0: 0, 1: 2, 2: 4, 3: 6}
    for stage, rank in of_stage.items():
        own = [s for s in run.timeline.spans if s.rank == rank and s.stream != "issue"]
        assert idle[stage] == pytest.approx(run.timeline.end - length((s.start, s.end) for s in own))
    assert simulate(load_scenario(data), keep=[5]).report == run.report
    # The bubble leaves out what the host takes to launch.
    bubble = sum(idle) / 4 - run.report.host_wait_time_s
    assert find("bubble", "training").value(run.report.to_dict()) == pytest.approx(bubble / run.timeline.end)
