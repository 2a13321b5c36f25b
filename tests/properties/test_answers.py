"""Whatever is compared, swept and asked: there are whole sentences, tables and a page, or one line why not."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simulator.basics.errors import ScenarioError
from simulator.findings.answer import answer
from simulator.findings.comparison import Comparison
from simulator.records import measures
from simulator.results.page.page import report_page
from simulator.results.run_directory import report_text
from simulator.results.small_table import small_tables
from simulator.scenario.answer_spec import FINDINGS
from simulator.scenario.load import load_scenario, points
from simulator.scenario.records import Scenario
from simulator.sweeps.sweep import play_points

TINY = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 64}
VALUES: dict[str, dict[str, list[Any]]] = {
    "collective": {
        "collective.algorithm": ["ring", "naive", "tree", "auto", "halving_doubling"],
        "collective.size": ["0 B", "1 KiB", "64 KiB", "1 MiB"],
        "collective.operation": ["all_reduce", "all_gather"],
        "collective.dtype": ["float32", "bfloat16"],
        "cluster.world_size": [1, 2, 3, 4, 8],
        "cluster.stragglers": [{}, {0: 0.5}, {1: 0.001}],
        "cluster.link_factors": [{}, {"gpu0->switch0": 0.1}, {"gpu7->switch0": 0.5}],
        "seed": [0, 1],
    },
    "training": {
        "training.sharding": ["ddp", "zero3", {"strategy": "zero3", "prefetch": 0}, {"strategy": "parameter_server"}],
        "training.micro_batch_size": [1, 2, 5],
        "training.seq_len": [16, 32, 64],
        "training.activation_checkpointing": ["none", "full", {"every": 2}],
        "training.gradient_accumulation_steps": [1, 3],
        "cluster.world_size": [1, 2, 4],
        "cluster.stragglers": [{}, {0: 0.5}],
        "cluster.gpu": ["l4", "h100_sxm"],
    },
}
BASES: dict[str, dict[str, Any]] = {
    "collective": {"collective": {"operation": "all_reduce", "size": "4 KiB"}},
    "training": {"training": {"model": TINY, "seq_len": 32}},
}


@st.composite
def scenarios(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(sorted(BASES)))
    keys = draw(st.lists(st.sampled_from(sorted(VALUES[kind])), max_size=3, unique=True))
    axes = {
        key: draw(st.lists(st.sampled_from(VALUES[kind][key]), min_size=1, max_size=3, unique_by=repr)) for key in keys
    }
    compared = draw(st.lists(st.sampled_from(keys), unique=True)) if keys else []
    data = {
        "name": "drawn",
        "question": draw(st.sampled_from(["Which?", "</script><b>?", "¿Qué → µs?"])),
        "cluster": {"topology": "star_100g", "world_size": 4},
        "compare": {key: axes[key] for key in compared},
        "sweep": {key: axes[key] for key in keys if key not in compared},
        "answer": draw(st.lists(asked(kind), max_size=3)),
        **BASES[kind],
    }
    if compared and draw(st.booleans()):
        data["baseline"] = {compared[0]: draw(st.sampled_from(axes[compared[0]]))}
    if kind == "training" and draw(st.booleans()):
        data["budget"] = {draw(st.sampled_from(["tokens", "steps"])): 1e6, "price": 2.0, "watts": 500.0}
    return data


@st.composite
def asked(draw: st.DrawFn, kind: str) -> dict[str, Any]:
    entry: dict[str, Any] = {"finding": draw(st.sampled_from(sorted(set(FINDINGS) - {"learned"})))}
    if draw(st.booleans()):
        entry["of"] = draw(st.lists(st.sampled_from(measures.names_of(kind)), max_size=3, unique=True))
    if entry["finding"] in ("threshold", "fit", "effect") and draw(st.booleans()):
        entry["along"] = draw(st.sampled_from(sorted(VALUES[kind])))
        if draw(st.booleans()):
            entry["between"] = draw(st.sampled_from([[1, 8], [8, 64], [64, 8], ["1 KiB", "1 MiB"], [0, 0]]))
        entry["margin"] = draw(st.sampled_from([0.0, 0.05, 1.0]))
    return entry


def loaded(data: dict[str, Any]) -> Scenario | None:
    """The scenario, or None where it is refused."""
    try:
        return load_scenario(data)
    except ScenarioError:
        return None


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(scenarios())
def test_any_question_has_an_answer(data: dict[str, Any]) -> None:
    scenario = loaded(data)
    assume(scenario is not None)
    assert scenario is not None
    outcomes = list(play_points(list(enumerate(points(scenario)))))
    compared = Comparison(scenario, outcomes)
    told = answer(compared)
    assert told.sentences
    assert all(sentence.endswith(".") for sentence in told.sentences)
    assert all(outcomes[place].report is not None for place in told.spoken)
    written = json.loads(report_text(outcomes, told))
    assert written["answer"]["sentences"] == list(told.sentences)
    for table in small_tables(compared, told):
        assert {len(cells) for _, cells in table.rows} == {len(table.columns)}
        assert {len(own) for own in table.points} == {len(table.columns)}
    page = report_page(compared, told, {})
    assert page.count("</script>") == 2
    assert page == report_page(Comparison(scenario, outcomes), answer(Comparison(scenario, outcomes)), {})
