"""Parts of exposed communication by kind and dimension: one definition for closed forms and simulated transfers."""

from __future__ import annotations

from typing import Any

import pytest

from simulator.records.timeline import Span
from simulator.report.numbers.training_summary import RankWork, _exposed
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario


@pytest.mark.parametrize("gpus", [8, 16])
def test_closed_forms_and_transfers_attribute_exposed_communication_alike(gpus: int) -> None:
    """A data-parallel group alone on its links takes equal times either way, and so do all parts."""

    def report(collectives: str) -> Any:
        training = {"model": "llama3_8b", "seq_len": 4096, "sharding": "zero3", "collectives": collectives}
        cluster = {"topology": "dgx_a100", "world_size": gpus}
        return simulate(load_scenario({"name": "fsdp", "cluster": cluster, "training": training})).report

    closed, played = report("closed_form"), report("played")
    assert played.step_time_s == pytest.approx(closed.step_time_s, rel=1e-9)
    for name in ("exposed_comm_time_by_kind", "exposed_comm_time_by_dimension", "comm_time_by_dimension"):
        parts = getattr(closed, name)
        assert getattr(played, name) == pytest.approx(parts, rel=1e-6)
        assert list(getattr(played, name)) == list(parts)
    assert sum(played.exposed_comm_time_by_kind.values()) == pytest.approx(played.exposed_comm_time_s, rel=1e-9)


def test_a_slow_cable_moves_exposed_communication_between_collectives_but_not_its_sum() -> None:
    """Ranks far from the cable end a simulated collective early, and wait in the next one; a closed form ends them
    together.
    """

    def report(collectives: str) -> Any:
        training = {"model": "gpt2_medium", "seq_len": 512, "sharding": "zero3", "collectives": collectives}
        factors = {"nic3->leaf3": 0.1, "leaf3->nic3": 0.1}
        cluster = {"topology": "dgx_h100", "world_size": 16, "link_factors": factors}
        return simulate(load_scenario({"name": "cable", "cluster": cluster, "training": training})).report

    closed, played = report("closed_form"), report("played")
    assert played.step_time_s == pytest.approx(closed.step_time_s, rel=1e-6)
    sums = [sum(one.exposed_comm_time_by_kind.values()) for one in (closed, played)]
    assert sums == pytest.approx([one.exposed_comm_time_s for one in (closed, played)], rel=1e-9)
    assert sums[1] == pytest.approx(sums[0], rel=1e-3)
    moved = played.exposed_comm_time_by_kind["reduce_scatter"] - closed.exposed_comm_time_by_kind["reduce_scatter"]
    assert abs(moved) > 0.01 * sums[0]


def test_rounding_does_not_choose_the_kind_that_overlapping_communication_counts_for() -> None:
    """Both kinds take 1 s and overlap for 0.5 s: 1 s counts for the first by name, 0.5 s for the other."""
    for noise in (-1e-15, 0.0, 1e-15):
        spans = (_span("reduce_scatter", 0.5, 1.5 + noise), _span("all_gather", 0.0, 1.0))
        parts = _exposed(RankWork((), (), spans), lambda span: span.kind)
        assert parts == pytest.approx({"all_gather": 1.0, "reduce_scatter": 0.5})


def _span(kind: str, start: float, end: float) -> Span:
    return Span(rank=0, stream="dp", name=kind, kind=kind, start=start, end=end)
