"""What would fit where nothing does: changes that cannot be tried are passed over."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError, TooLargeError
from simulator.planner import infeasible as nearest
from simulator.planner.plan_question import plan_question
from simulator.scenario.load import load_scenario


@pytest.mark.parametrize("error", [ScenarioError, TooLargeError])
def test_more_gpus_than_a_topology_or_this_machine_can_hold_are_passed_over(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mesh of 8,192 GPUs has 67 million links: a plan for 512 GPUs ended in this error while it looked for a way."""

    def refused(*_: object) -> None:
        raise error("too many")

    monkeypatch.setattr(nearest, "least_memory", refused)
    asked: Any = SimpleNamespace(choices=None, base=None, sequences=1)
    more = nearest._Change("gpus", "--gpus 8192", lambda asked: asked)
    assert list(nearest._fitting(asked, [(more,)])) == []


@pytest.mark.parametrize(
    ("model", "topology", "gpus", "tokens", "without"),
    [
        ("gpt2_xl", "pcie_workstation", 4, "64k", []),
        ("gpt2_xl", "star_100g", 4, "32k", ["full"]),
        ("llama3_8b", "dgx_a100", 8, "128k", ["zero3"]),
        ("mixtral_8x7b", "dgx_h100", 8, "128k", ["1f1b"]),
        ("mpt_13b", "dgx_h100", 8, "64k", ["selective_op", "zero1"]),
    ],
)
@pytest.mark.one_of(5)
def test_the_least_memory_is_that_of_all_settings(
    model: str, topology: str, gpus: int, tokens: str, without: list[str]
) -> None:
    """The values that are left out, such as larger micro-batches, never need less."""
    plan = {"global_batch": tokens, "without": without}
    training = {"model": model, "seq_len": 1024}
    scenario = {"name": "x", "cluster": {"topology": topology, "world_size": gpus}, "training": training, "plan": plan}
    asked = plan_question(load_scenario(scenario))
    quick = nearest.least_memory(asked.choices(), asked.base, asked.sequences)
    whole = nearest._least_memory(asked.choices(), asked.base, asked.sequences)
    assert quick is not None
    assert whole is not None
    assert quick.nbytes <= whole.nbytes
