"""Parallelism in scenario files: sizes that multiply out, and one line that says what would fit."""

from __future__ import annotations

from typing import Any

import pytest

from simulator import simulate
from simulator.basics.errors import ScenarioError
from simulator.report.numbers.training_summary import TrainingReport
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario
from simulator.scenario.resolve import resolved
from simulator.step.parallelism import layers_of_layout

Data = dict[str, Any]


def scenario(parallelism: Data, ranks: int = 8, **training: Any) -> Data:
    given = {"model": "gpt2", "seq_len": 512, "parallelism": parallelism} | training
    return {"name": "cut", "cluster": {"topology": "dgx_h100", "world_size": ranks}, "training": given}


def told(data: Data) -> str:
    with pytest.raises(ScenarioError) as caught:
        load_scenario(data)
    (line,) = str(caught.value).splitlines()
    return line.partition("training.")[2]


SMALL = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 32}
SIZES = "dp x tp x pp x cp must be world_size 8"


@pytest.mark.parametrize(
    ("parallelism", "training", "line"),
    [
        (
            {"ep": 3},
            {"model": "deepseek_v3"},
            "parallelism.ep: got 3; must divide the 256 experts of deepseek_v3 and the 8 ranks of a stage: 1, 2, 4, 8; "
            "nearest: 2, 4",
        ),
        ({"tp": 3}, {"seq_len": 768}, f"parallelism.tp: got 3; {SIZES}; tp may be 1, 2, 4, 8"),
        ({"tp": 4, "pp": 4}, {}, f"parallelism.pp: got 4; {SIZES}; pp may be 1, 2"),
        ({"tp": 2, "dp": 8}, {}, f"parallelism.dp: got 8; {SIZES}; omit dp, or write 4"),
        ({"tp": 8}, {}, "parallelism.tp: got 8; must divide the 12 heads of gpt2: 1, 2, 3, 4, 6, 12"),
        (
            {"tp": 4},
            {"seq_len": 510},
            "parallelism.tp: got 4; must divide the 510 tokens of a sequence of gpt2: 1, 2, 3, 5, 6, 10, 15, 17, 30, "
            "34, 51",
        ),
        (
            {"pp": 8, "virtual_stages": 2, "schedule": "interleaved"},
            {"gradient_accumulation_steps": 8},
            "parallelism.pp: got 16 stages for 12 layers; every stage must have a layer",
        ),
        (
            {"pp": 4, "schedule": "interleaved"},
            {"gradient_accumulation_steps": 6},
            "parallelism.schedule: interleaved got 6 micro-batches in groups of 4, which leaves an incomplete group "
            "of 2 for 4 ranks; write 4 "
            "or 8 micro-batches (gradient_accumulation_steps)",
        ),
        (
            {"pp": 4, "schedule": "dualpipe_v"},
            {"gradient_accumulation_steps": 4, "model": "gpt2_medium"},
            "parallelism.schedule: dualpipe_v got 4 micro-batches; must be at least 8 (twice the pipeline's ranks) "
            "(gradient_accumulation_steps)",
        ),
        (
            {"pp": 4, "schedule": "dualpipe"},
            {"gradient_accumulation_steps": 9},
            "parallelism.schedule: dualpipe got 9 micro-batches; must be even, and at least 8 (twice the pipeline's "
            "ranks) (gradient_accumulation_steps)",
        ),
        (
            {"pp": 4, "stages": [3, 3, 3, 4]},
            {},
            "parallelism.stages: got 4 stages with 13 layers; must be 4 stages with the 12 of gpt2",
        ),
        (
            {"pp": 4, "stages": "even"},
            {},
            "parallelism.stages: got 'even'; must be auto, layers of each stage such as [8, 8, 8, 8], a layout such as "
            "Et*8|(t*8|)*2t*8L, or {first_less: 1, last_less: 1}",
        ),
        (
            {"pp": 4, "stages": "Et*2|(t*3|)*2tL"},
            {},
            "parallelism.stages: got 4 stages with 9 layers; must be 4 stages with the 12 of gpt2",
        ),
        (
            {"pp": 4, "stages": "Et*6||t*6|L"},
            {},
            "parallelism.stages: got no layer for stage 1; only the first and the last stage may have no layer",
        ),
        (
            {"pp": 2, "order": ["tp", "dp"]},
            {},
            (
                "parallelism.order: got a list; must have each of [tp, cp, ep, dp, pp] once, the fastest-varying kind "
                "first"
            ),
        ),
        ({"pp": 2, "schedule": "pipedream"}, {}, "parallelism.schedule: got 'pipedream'; did you mean '1f1b'?"),
        (
            {"pp": 2},
            {"activation_checkpointing": "sqrt"},
            "parallelism.pp: got 2, but the segments of sqrt cross stages; write full, or every: 2",
        ),
        (
            {"tp": 2},
            {"sharding": {"strategy": "zero3", "shard_size": 8}},
            "sharding.shard_size: got 8; must divide the data-parallel ranks, 4; try 4",
        ),
        (
            {"tp": 2},
            {"sharding": {"strategy": "parameter_server", "servers_on": "workers"}},
            "parallelism.tp: got 2, but workers of a parameter server hold a whole model; write sharding: ddp or zero3",
        ),
        (
            {"cp": 4, "balanced": True},
            {"seq_len": 500},
            "parallelism.cp: got 4; sequences of 500 tokens cannot be cut into 8 pieces",
        ),
        (
            {"cp": 8, "context": "ulysses"},
            {},
            "parallelism.cp: got ulysses 8; must divide the 12 heads: 1, 2, 3, 4, 6, 12",
        ),
        (
            {"cp": 4, "context": {"ulysses": 4, "ring": 2}},
            {},
            "parallelism.context: got 4 x 2 = 8; must be cp 4",
        ),
        (
            {"cp": 2, "context": "p2p"},
            {},
            "parallelism.context: got 'p2p'; must be ring, all_gather, ulysses, or {ulysses: 4, ring: 2}",
        ),
        (
            {"cp": 2},
            {"attention": "standard"},
            "parallelism.cp: got 2, but standard attention needs every score on a single rank; write flash",
        ),
        (
            {"ep": 16},
            {"model": "mixtral_8x7b"},
            "parallelism.ep: got 16; must divide the 8 experts of mixtral_8x7b and the 8 ranks of a stage: 1, 2, 4, 8",
        ),
        (
            # 256 experts, 8 GPUs in two stages
            {"ep": 3, "pp": 2},
            {"model": "deepseek_v3"},
            "parallelism.ep: got 3; must divide the 256 experts of deepseek_v3 and the 4 ranks of a stage: 1, 2, 4; "
            "nearest: 2, 4",
        ),
        (
            {"ep": 2, "experts": {"dispatch": "DeepEP"}},
            {"model": "mixtral_8x7b"},
            "parallelism.experts.dispatch: got 'DeepEP'; deduplicated is DeepEP's exchange; write deduplicated",
        ),
        (
            {"ep": 8, "pp": 2},
            {"model": "mixtral_8x7b"},
            "parallelism.ep: got 8; must divide the 4 ranks of a stage (dp x cp x tp): 1, 2, 4",
        ),
        (
            {"ep": 2, "experts": {"imbalance": 0.5}},
            {"model": "mixtral_8x7b"},
            (
                "parallelism.experts.imbalance: got 0.5; must be at least 1, because the fullest rank has at least the "
                "mean"
            ),
        ),
        (
            {"tp": 2, "sequence_parallel": False},
            {"model": "mixtral_8x7b"},
            (
                "parallelism.sequence_parallel: got false, which sends every token of mixtral_8x7b's experts to each "
                "of 2 tensor-parallel ranks; write true"
            ),
        ),
        (
            {"ep": 2, "etp": 3},
            {"model": "mixtral_8x7b"},
            "parallelism.etp: got 3; must divide the 14336 feed-forward width of mixtral_8x7b's experts: 1, 2, 4, 7, "
            "8, 14, 16, 28, 32, 56, 64",
        ),
        ({"etp": 2}, {}, "parallelism.etp: got 2; gpt2 has no experts; omit the key"),
        (
            {"ep": 2, "experts": {"imbalance": {"zipf": -1}}},
            {"model": "mixtral_8x7b"},
            "parallelism.experts.imbalance: got -1; must be greater than 0",
        ),
        (
            {"tp": 2},
            {"numerics": True, "precision": "fp32", "model": SMALL, "seq_len": 8, "dropout": 0.1},
            "parallelism.tp: got 2, but real training of a partitioned model has no dropout; write dropout: false, "
            "or write "
            "numerics: false",
        ),
    ],
)
def test_what_does_not_fit_is_one_line_that_says_what_would(parallelism: Data, training: Data, line: str) -> None:
    assert told(scenario(parallelism, **training)) == line


def test_a_cut_scenario_resolves_to_itself_and_makes_its_step() -> None:
    keys = {"tp": 2, "pp": 2, "schedule": "zb_h1", "stages": {"last_less": 2}, "order": ["pp", "tp", "cp", "ep", "dp"]}
    loaded = load_scenario(scenario(keys, gradient_accumulation_steps=4))
    assert load_scenario(resolved(loaded)) == loaded
    assert loaded.training is not None
    made = to_step(loaded.training, 8).parallelism
    assert (made.tp, made.pp, made.schedule, made.less) == (2, 2, "zb_h1", (0, 2))
    assert made.grid(8).groups("pp")[0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("layout", "stages"),
    [
        # The example of Megatron-Core's parse_str_to_list, and those of its unrolled groups.
        ("Ettt|(tt|)*29,m|L", (3, *[2] * 29, 1, 0)),
        ("Et*4|(t*4|)*14tmL", (4, *[4] * 14, 2)),
        ("Et|(tt|)*30mL", (1, *[2] * 30, 1)),
        ("E|(t|)*35L", (0, *[1] * 35, 0)),
        ("E(|tt)*3|tL", (0, 2, 2, 2, 1)),
        ("E(t(t|)*2)*2L", (2, 1, 2, 1, 0)),
        ("Ett||mmL", (2, 0, 2)),
    ],
)
def test_a_layout_gives_the_layers_of_each_stage(layout: str, stages: tuple[int, ...]) -> None:
    assert layers_of_layout(layout) == stages


@pytest.mark.parametrize(
    "layout",
    ["tt|tL", "Et|t", "Et|L|t", "Et|Et|L", "Etm|tL", "Et|xL", "Et*|tL", "E(t|*3L", "Et|t L", "Et*999|(t*999|)*999L",
     "|".join(["(t*999)*999"] * 999)],
)  # fmt: skip
def test_a_text_that_is_no_layout_is_refused_in_one_line(layout: str) -> None:
    assert told(scenario({"pp": 2, "stages": layout})).endswith(
        "; must be a layout such as Et*8|(t*8|)*2t*8L: E, layers t, layers m that predict further tokens, L"
    )


def test_a_layout_is_the_list_of_its_stages() -> None:
    """A layer that predicts a further token may be on a stage of its own, before the stage of the loss alone."""
    keys: Data = {"model": "llama3_8b", "mtp_layers": 1, "gradient_accumulation_steps": 8, "sharding": "zero1"}
    written = load_scenario(scenario({"pp": 8, "stages": "Et*5|(t*6|)*4t*3|m|L"}, **keys))
    assert written.training is not None
    assert written.training.parallelism.stages == (5, 6, 6, 6, 6, 3, 1, 0)
    assert written == load_scenario(scenario({"pp": 8, "stages": [5, 6, 6, 6, 6, 3, 1, 0]}, **keys))
    assert resolved(written)["training"]["parallelism"]["stages"] == [5, 6, 6, 6, 6, 3, 1, 0]
    report = simulate(written, limit_memory=False).report
    assert isinstance(report, TrainingReport)
    # The less a stage computes, the longer it waits: one further layer, the head alone, and whole stages of six layers.
    whole, further, last = (report.idle_time_by_stage[stage] for stage in (4, 6, 7))
    assert whole < min(further, last)
