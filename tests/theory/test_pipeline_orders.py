"""Pipelines' orders are those of Megatron-LM, PyTorch, zero bubble's authors and DualPipe, and take what papers say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.step.pipelines.schedule import SCHEDULES, PipelineSchedule, PipelineShape
from simulator.testing import check_schedule, schedule_laws
from simulator.testing.pipelines import most_held, played

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "golden" / "pipeline_orders.json").read_text())
# Those of the golden file: whole backward passes take two units, the two together three.
UNITS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0, "pair": 3.0}


def shape_of(case: dict[str, Any]) -> PipelineShape:
    return PipelineShape(case["ranks"], case["micro_batches"], case["chunks"], case["group"])


def ids(case: dict[str, Any]) -> str:
    return "-".join(str(case[key]) for key in ("schedule", "ranks", "micro_batches", "chunks", "group"))


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_the_order_is_the_one_of_its_source(case: dict[str, Any]) -> None:
    order = SCHEDULES.find(case["schedule"]).order(shape_of(case))
    assert [" ".join("&".join(map(str, slot)) for slot in own) for own in order] == case["order"]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_makespan_idle_time_and_held_chunks_are_those_of_its_source(case: dict[str, Any]) -> None:
    schedule, shape = SCHEDULES.find(case["schedule"]), shape_of(case)
    order = schedule.order(shape)
    found = played(schedule, shape, order, UNITS)
    ranks = range(shape.ranks)
    assert found.makespan == case["makespan"]
    assert [found.idle(rank) for rank in ranks] == case["idle"]
    assert [found.idle_inside(rank) for rank in ranks] == case["idle_inside"]
    assert [most_held(own) for own in order] == case["held"]


@st.composite
def pipelines(draw: st.DrawFn) -> tuple[PipelineSchedule, PipelineShape]:
    """Any schedule in any shape that it does not refuse."""
    schedule = SCHEDULES.find(draw(st.sampled_from(SCHEDULES.names())))
    ranks = 2 * draw(st.integers(1, 4)) if schedule.name == "dualpipe" else draw(st.integers(2, 7))
    chunks = schedule.chunks or draw(st.integers(1, 3))
    group = draw(st.integers(ranks, 2 * ranks)) if schedule.grouped else ranks
    least = {"dualpipe": 2 * ranks, "dualpipe_v": 2 * ranks, "zbv_zero_bubble": 2 * ranks - 1}.get(schedule.name, 1)
    if schedule.grouped:
        least = group
    elif chunks > 1 and schedule.name == "looped_bfs":
        least = ranks
    micros = draw(st.integers(least, least + 12))
    if schedule.name == "dualpipe":
        micros += micros % 2
    elif schedule.grouped and 0 < micros % group < ranks:
        micros -= micros % group
    return schedule, PipelineShape(ranks, micros, chunks, group)


@given(pipelines(), st.floats(0.0, 2.0))
def test_every_order_can_be_played_and_has_every_pass_once(
    drawn: tuple[PipelineSchedule, PipelineShape], send: float
) -> None:
    schedule, shape = drawn
    assert schedule.refusal(shape) == ""
    schedule_laws.can_be_played(schedule, shape, send)
    schedule_laws.pairs_as_declared(schedule, shape)
    schedule_laws.has_every_pass_once(schedule, shape)


@given(pipelines(), st.floats(0.1, 3.0), st.floats(0.1, 3.0))
def test_the_bubble_is_its_closed_form(
    drawn: tuple[PipelineSchedule, PipelineShape], forward: float, backward: float
) -> None:
    schedule_laws.has_its_bubble(*drawn, forward, backward)


@given(pipelines())
def test_a_rank_holds_what_is_declared(drawn: tuple[PipelineSchedule, PipelineShape]) -> None:
    schedule_laws.holds_what_it_declares(*drawn)


def test_every_closed_form_is_checked() -> None:
    """Only the schedules that limit memory have no closed form."""
    assert {name for name in SCHEDULES.names() if SCHEDULES.find(name).bubble is None} == {"v_half", "v_min"}


@pytest.mark.parametrize("name", SCHEDULES.names())
@pytest.mark.one_of(3)
def test_a_user_gets_the_same_laws_from_a_single_function(name: str) -> None:
    checked = check_schedule(name)
    assert checked.holds, "\n".join(checked.lines())


@pytest.mark.parametrize("micros", [16, 24, 48])
@pytest.mark.parametrize("ranks", [2, 4, 6, 8])
def test_a_half_and_a_third_of_the_memory(ranks: int, micros: int) -> None:
    """Of 1F1B's 2 p chunks V-Half holds at most p + 2, V-Min 2 (p + 4) / 3."""
    shape = PipelineShape(ranks, micros, 2)
    for name, most in (("v_half", ranks + 2), ("v_min", 2 * (ranks + 4) / 3)):
        assert max(most_held(own) for own in SCHEDULES.find(name).order(shape)) <= most


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("interleaved", PipelineShape(4, 10, 2, 4), "write 8 or 12 micro-batches"),
        ("interleaved", PipelineShape(4, 8, 2, 3), "must be from 4"),
        ("dualpipe", PipelineShape(3, 8, 2), "must be even"),
        ("dualpipe", PipelineShape(4, 6, 2), "at least 8"),
        ("dualpipe_v", PipelineShape(4, 7, 2), "at least 8"),
        ("zbv_zero_bubble", PipelineShape(4, 6, 2), "at least 7"),
        ("looped_bfs", PipelineShape(4, 3, 2), "at least as many"),
        ("gpipe", PipelineShape(4, 0), "at least 1"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(name: str, shape: PipelineShape, said: str) -> None:
    assert said in SCHEDULES.find(name).refusal(shape)
