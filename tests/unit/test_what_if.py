"""The form's settings are a scenario, and its answer is that of the scenario."""

from __future__ import annotations

import pytest
import yaml

import simulator
from simulator.basics.errors import ScenarioError
from simulator.planner.what_if import AUTO, WhatIf, answered, choices


def test_the_text_is_a_scenario_with_the_same_answer() -> None:
    asked = WhatIf(
        model="gpt2", gpu="a100_sxm_80gb", gpus=16, network="aws_p4de", framework="transformers", precision="fp16",
        sharding="zero1", seq_len=512, micro_batch=2, accumulation=3, recompute="full", tp=2,
    )  # fmt: skip
    document = yaml.safe_load(asked.text)
    assert document["cluster"] == {"topology": "aws_p4de", "gpu": "a100_sxm_80gb", "world_size": 16}
    assert document["training"]["parallelism"] == {"tp": 2}
    assert document["training"]["gradient_accumulation_steps"] == 3
    run = simulator.simulate(document)
    assert run.report.step_time_s == asked.run().report.step_time_s
    assert run.answer.sentences[0] in answered(asked)


def test_defaults_stay_away_from_the_text() -> None:
    training = yaml.safe_load(WhatIf().text)["training"]
    assert {"parallelism", "gradient_accumulation_steps", "activation_checkpointing"}.isdisjoint(training)


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_adapters_are_settings_of_the_scenario(method: str) -> None:
    document = WhatIf(model="llama3_8b", framework="transformers", method=method, gpus=1, seq_len=512).document
    assert document["training"]["lora"]["base"] == {"lora": "params", "qlora": "nf4"}[method]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"model": "/etc/passwd"}, "model: got '/etc/passwd'"),
        ({"gpus": 2000}, "gpus: got 2000; must be a whole number from 1 to 1,024"),
        ({"accumulation": 100_000}, "accumulation: got 100000; must be a whole number from 1 to 64"),
        ({"seq_len": 0}, "seq_len: got 0; must be a whole number from 1"),
        ({"sharding": "zero4"}, "sharding: got 'zero4'"),
    ],
)
def test_what_is_no_choice_is_refused(setting: dict[str, object], told: str) -> None:
    with pytest.raises(ScenarioError, match=told):
        WhatIf(**setting)  # type: ignore[arg-type]


def test_every_field_has_a_widget_whose_first_value_is_allowed() -> None:
    form = simulator.what_if(gpus=4)
    widgets = {widget.label: widget.value for widget in form[0]}
    assert len(widgets) == len(choices())
    assert widgets["Number of GPUs"] == 4
    assert widgets["Sharding"] == AUTO
    with pytest.raises(ScenarioError, match=r"what_if: got 'cards'; .*gpus"):
        simulator.what_if(cards=4)


def test_the_answer_follows_a_widget() -> None:
    form = simulator.what_if(model="gpt2", seq_len=512)
    (gpus,) = [widget for widget in form[0] if widget.label == "Number of GPUs"]
    before = form[1][0].object
    gpus.value = 2
    assert form[1][0].object != before
    assert "world_size: 2" in form[1][1].object
    # What is no number leaves no older answer.
    gpus.value = None
    assert "gpus: got None" in form[1][0].object
    assert form[1][1].object == ""


def test_a_contradiction_is_told_in_place_of_the_answer() -> None:
    told = answered(WhatIf(tp=16))
    assert "training.parallelism.tp: got 16" in told
    assert "alert" in told
    assert "&lt;dict&gt;" not in told
