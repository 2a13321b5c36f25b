"""Intervals of predictions: from the errors of measured runs like them, and as often right as they say."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from simulator.calibration.training_runs.cut_rows import all_measured
from simulator.cluster.build import build
from simulator.report.numbers.network_errors import NetworkError, error_size
from simulator.report.numbers.network_errors import shipped as shipped_errors
from simulator.report.numbers.prediction_intervals import (
    HOST_RATE,
    SHARES,
    HostWork,
    Quantity,
    Residual,
    Traits,
    UnmeasuredNetwork,
    prediction_interval,
    shipped,
)
from simulator.report.numbers.training_summary import TrainingReport
from simulator.run.simulate import simulate
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario
from simulator.step.plan import plan_step
from simulator.step.streams import dimension_of
from tools.validation.coverage import coverage, coverage_table
from tools.validation.network_errors import errors_of_sweep, network_errors

PLAIN = Traits("nanotron", "h100", eight_bit=False, cut=False, nodes=False)


def residual(source: str, error: float, **facts: object) -> Residual:
    traits = replace(PLAIN, **facts)  # type: ignore[arg-type]
    return Residual(source, traits, {"time": error}, {"time": 3 * error})


def test_four_in_five_of_like_runs_lie_inside() -> None:
    """Ten runs of one source with errors of 1 to 10 %: the eighth is the 80 % quantile, the tenth the 95 %."""
    runs = [residual("one", 0.01 * n * (-1) ** n) for n in range(1, 11)]
    found = prediction_interval(PLAIN, residuals=runs)
    assert found.width == pytest.approx((math.exp(0.08), math.exp(0.10)))
    ends = found.around("time", 2.0)
    assert list(ends) == ["time_80_low", "time_80_high", "time_95_low", "time_95_high"]
    assert (ends["time_80_low"], ends["time_80_high"]) == pytest.approx((2.0 / math.exp(0.08), 2.0 * math.exp(0.08)))


def test_a_source_with_many_rows_counts_as_much_as_one_with_few() -> None:
    runs = [*(residual("many", 0.01) for _ in range(99)), residual("few", 0.5)]
    assert prediction_interval(PLAIN, residuals=runs).width[0] == pytest.approx(math.exp(0.5))


def test_what_was_carried_over_is_less_sure() -> None:
    runs = [residual("one", 0.05, nodes=True)]
    traits = replace(PLAIN, nodes=True)
    known = prediction_interval(traits, residuals=runs)
    other = prediction_interval(replace(traits, framework="unheard of"), residuals=runs)
    chip = prediction_interval(replace(traits, chip="mi300x"), residuals=runs)
    assert (known.carried_over, other.carried_over, chip.carried_over) == (False, True, True)
    assert other.width[0] == chip.width[0] == pytest.approx(known.width[0] ** 3)


def test_a_chip_without_a_run_as_wide_takes_the_largest_share_of_unseen_sources_for_time_alone() -> None:
    """Ten runs with unseen errors of 3 to 30 %: the eighth is the 80 % quantile, the tenth that of 95 %."""
    runs = [residual("one", 0.01 * n, eight_bit=True) for n in range(1, 11)]
    both = [replace(run, own=run.own | {"memory": 0.01}, unseen=run.unseen | {"memory": 0.02}) for run in runs]
    assert prediction_interval(PLAIN, residuals=runs).width == pytest.approx((math.exp(0.30),) * 2)
    assert prediction_interval(PLAIN, "memory", both).width == pytest.approx((math.exp(0.01),) * 2)
    known = prediction_interval(replace(PLAIN, eight_bit=True), residuals=runs)
    assert known.width == pytest.approx((math.exp(0.08), math.exp(0.10)))


def test_unseen_sources_differ_most_in_models_cut_over_nodes() -> None:
    """Of 16 runs the 13th is the 80 % quantile, the 14th that of 87.5 %, the last that of 95 %."""
    runs = [residual("one", 0.01 * n, cut=True, nodes=nodes) for nodes in (True, False) for n in range(1, 17)]
    of = {
        nodes: prediction_interval(
            replace(PLAIN, framework="unheard of", cut=True, nodes=nodes),
            residuals=[run for run in runs if run.traits.nodes == nodes],
        ).width
        for nodes in (True, False)
    }
    assert of[False] == pytest.approx((math.exp(0.39), math.exp(0.48)))
    assert of[True] == pytest.approx((math.exp(0.42), math.exp(0.48)))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_an_unmeasured_network_counts_by_the_share_that_is_exposed(share: float) -> None:
    """Measured collectives take up to e^n times as long, so that a step of which s is exposed takes 1 + s (e^n - 1)."""
    runs = [residual("one", 0.05)]
    network = UnmeasuredNetwork(share, seconds=1e-2)
    found = prediction_interval(PLAIN, residuals=runs, parts=[network])
    for level, width in zip(SHARES, found.width, strict=True):
        longer = math.exp(error_size(1e-2, level))
        assert longer > 1.2
        assert math.log(width) == pytest.approx(math.hypot(0.05, math.log(1 + share * (longer - 1))))
    assert prediction_interval(PLAIN, residuals=runs).width == pytest.approx((math.exp(0.05),) * 2)
    memory = [replace(one, own={"memory": 0.05}) for one in runs]
    assert prediction_interval(PLAIN, "memory", memory, parts=[network]).width[0] == pytest.approx(math.exp(0.05))


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_an_update_on_the_host_counts_by_the_share_that_is_exposed(share: float) -> None:
    """Rates of hosts are known within a factor of ten, so the update takes up to the root of ten times as long."""
    runs = [residual("one", 0.05)]
    found = prediction_interval(PLAIN, residuals=runs, parts=[HostWork(share, HOST_RATE)])
    longer = 1 + share * (math.sqrt(10) - 1)
    assert found.width == pytest.approx((math.exp(math.hypot(0.05, math.log(longer))),) * 2)
    memory = [replace(one, own={"memory": 0.05}) for one in runs]
    assert prediction_interval(PLAIN, "memory", memory, parts=[HostWork(share, HOST_RATE)]).width[0] == pytest.approx(
        math.exp(0.05)
    )


def test_of_each_sweep_the_collective_counts_that_takes_as_long() -> None:
    """Two sources, one with two sweeps: of each sweep the row nearest in time, each source half of the weight."""
    errors = [
        NetworkError("a", "a1", False, 1e-3, 0.9), NetworkError("a", "a1", False, 1e-1, 0.1),
        NetworkError("a", "a2", False, 1e-1, 0.2), NetworkError("b", "b1", False, 1e-4, -0.3),
        NetworkError("a", "a1", True, 1e-1, 0.05),
    ]  # fmt: skip
    assert error_size(0.5, 0.5, errors) == 0.2  # 0.1 and 0.2 are a quarter each, 0.3 is a half
    assert error_size(0.5, 0.8, errors) == 0.3
    assert error_size(1e-3, 0.95, errors) == 0.9
    assert error_size(1e-3, 0.95, errors, modelled=True) == 0.05
    # Measured collectives are slower than links alone would be, and most so the short ones.
    assert error_size(1e-4, 0.5) > error_size(1e-3, 0.5) > error_size(1e-2, 0.5) > 0


@pytest.mark.parametrize("name", ["8_a100", "xla_8_h100_all_gather", "xla_4_h100_all_to_all"])
def test_the_table_of_network_errors_is_what_links_alone_give(name: str) -> None:
    made, stored = errors_of_sweep(name), [one for one in shipped_errors() if one.sweep == name]
    assert [one.error for one in stored] == pytest.approx([one.error for one in made], abs=1e-4)
    assert [one.seconds for one in stored] == pytest.approx([one.seconds for one in made], rel=1e-3)


@pytest.mark.long
def test_the_whole_table_is_what_links_alone_give() -> None:
    made = list(network_errors())
    assert [one.sweep for one in shipped_errors()] == [one.sweep for one in made]
    assert [one.error for one in shipped_errors()] == pytest.approx([one.error for one in made], abs=1e-4)


@pytest.mark.parametrize("quantity", ["time", "memory"])
def test_sources_that_were_left_out_fall_inside_as_often_as_said(quantity: Quantity) -> None:
    """The mean over sources, each of which was played as if nobody had seen it."""
    parts = coverage(shipped(), quantity)
    assert 0.70 <= fmean(part.inside[0] for part in parts) <= 0.90
    assert len(coverage_table(shipped()).rows) > len(parts)


def test_a_report_has_intervals_round_what_it_says() -> None:
    training = {"model": "gpt2", "micro_batch_size": 1, "seq_len": 128, "framework": "nanotron"}
    cluster = {"topology": "dgx_h100", "world_size": 8}
    report = simulate(load_scenario({"name": "a", "question": "?", "cluster": cluster, "training": training})).report
    document = report.to_dict()
    for key in ("step_time_s", "tokens_per_s", "peak_memory_bytes"):
        ends = [document["intervals"][f"{key}_{end}"] for end in ("95_low", "80_low", "80_high", "95_high")]
        assert ends == sorted(ends)
        assert ends[1] < document[key] < ends[2]
    assert document["carried_over"] is False


def on(topology: Any, **training: object) -> TrainingReport:
    step = {"model": "gpt2_xl", "micro_batch_size": 2, "seq_len": 1024, "sharding": "ddp"} | training
    cluster = {"topology": topology, "world_size": 8}
    report = simulate(load_scenario({"name": "a", "cluster": cluster, "training": step})).report
    assert isinstance(report, TrainingReport)
    return report


def half(report: TrainingReport) -> float:
    """Size of the error that four in five stay below, as a logarithm."""
    return math.log(report.intervals["step_time_s_80_high"] / report.step_time_s)


def test_ethernet_that_nobody_measured_is_less_sure_than_a_machine_that_somebody_did() -> None:
    ethernet = {"builder": "star", "options": {"bandwidth": "25 Gb/s", "latency": "5 us"}, "gpu": "a100_sxm_80gb"}
    known, unknown = on("dgx_a100"), on(ethernet)
    assert known.constants
    assert unknown.constants is None
    exposed = unknown.exposed_comm_time_s / unknown.step_time_s
    assert exposed > 0.8
    assert half(known) < 0.15
    # Its buckets of 25 MiB take 15 ms and more: measured collectives of such a length take up to 1.82 times as long.
    assert half(unknown) == pytest.approx(math.hypot(half(known), math.log(1 + exposed * 0.82)), rel=0.02)


def test_where_nothing_travels_no_network_counts() -> None:
    alone = on("star_100g", model="gpt2")
    data = {"name": "a", "cluster": {"topology": "star_100g", "world_size": 1}}
    single = simulate(load_scenario(data | {"training": {"model": "gpt2", "seq_len": 1024}})).report
    assert isinstance(single, TrainingReport)
    assert single.algorithms == {}
    assert half(single) < half(alone)
    assert alone.algorithms == {"dp all_reduce": "halving_doubling"}


def test_algorithms_of_all_process_groups_are_named() -> None:
    """Ranks 0 to 5 share a node; ranks 6 to 11 lie in two nodes, where `auto` takes other algorithms."""
    model = {
        "model_type": "llama", "hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12,
        "intermediate_size": 3072, "vocab_size": 600,
    }  # fmt: skip
    training = {"model": model, "seq_len": 384, "parallelism": {"tp": 6}}
    scenario = load_scenario({"name": "a", "cluster": {"topology": "dgx_h100", "world_size": 12}, "training": training})
    assert scenario.training is not None
    plan = plan_step(build("dgx_h100", 12), to_step(scenario.training, 12))
    ran: dict[str, set[str]] = {}
    for op in plan.program.collectives().values():
        ran.setdefault(f"{dimension_of(op.stream)} {op.schedule.operation}", set()).add(op.schedule.algorithm)
    assert ran["dp all_gather"] == {"ring", "blueconnect"}
    assert {name: set(text.split(", ")) for name, text in plan.algorithms.items()} == ran
    assert any(source.startswith("not measured here: inside nodes those of one node") for source in plan.constants)


def test_runs_with_experts_count_more_for_experts() -> None:
    """Four dense sources and one with experts; another kind of model has 0.75 of the weight.

    Dense sources have 4 / 4.75 = 84 % of the weight for a dense model, more than 80 %, and 3 / 4 for one with experts.
    """
    runs = [*(residual(f"dense {n}", 0.01) for n in range(4)), residual("experts", 0.5, experts=True)]
    widths = [
        prediction_interval(replace(PLAIN, experts=experts), residuals=runs).width[0] for experts in (False, True)
    ]
    assert widths == pytest.approx([math.exp(0.01), math.exp(0.5)])
    with_experts = Counter(row.table for row in all_measured() if row.transformer.num_experts)
    assert Counter(one.source for one in shipped() if one.traits.experts) == with_experts != {}


@pytest.mark.parametrize(("framework", "carried"), [("torchtitan", True), ("nemo", False)])
def test_a_framework_without_measured_experts_is_as_unsure_as_an_unseen_one(framework: str, carried: bool) -> None:
    """SimuMax's seven rows with experts are nemo's; torchtitan has none. Kernels carried over add to the range."""
    keys = {"framework": framework, "micro_batch_size": 1, "sharding": "zero3", "parallelism": {}}
    shape = {
        "model_type": "mixtral", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 512, "num_local_experts": 4,
        "num_experts_per_tok": 2,
    }  # fmt: skip
    if not carried:
        keys["parallelism"] = {"ep": 2}
    sparse, dense = on("dgx_h100", **keys, model=shape), on("dgx_h100", **keys | {"parallelism": {}})
    assert (sparse.carried_over, dense.carried_over) == (carried, False)
    if carried:
        known = Traits(framework, "h100", eight_bit=False, cut=False, nodes=False, experts=True)
        assert math.exp(half(sparse)) >= prediction_interval(known, unseen=True).width[0]
        assert half(sparse) > half(dense)


def test_a_list_of_layers_has_the_widest_interval() -> None:
    """Nothing like it was measured: 80 and 95 % both have the error of 95 % of unseen sources."""
    known = prediction_interval(PLAIN, unseen=True)
    widest = prediction_interval(PLAIN, unlike=True)
    assert widest.width == (known.width[1],) * 2
    assert widest.carried_over
    report = simulate(
        load_scenario(
            {
                "name": "a",
                "cluster": {"topology": "dgx_a100", "world_size": 1},
                "training": {"model": "resnet50", "micro_batch_size": 8, "seq_len": 1, "framework": "nanotron"},
            }
        )
    ).report
    assert isinstance(report, TrainingReport)
    # One ResNet-50 step took 54 ms on an H200 instead of 40 ms (docs/howto/own_network.md).
    assert half(report) > math.log(54 / 39)
