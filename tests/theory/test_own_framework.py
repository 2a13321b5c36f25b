"""A framework of one's own: factors on kernels and transfers, and their fit to measured runs.

Expected values are products of the factor and the time without it, or constants with which the "measured" runs were
simulated.
"""

from __future__ import annotations

from dataclasses import replace
from math import log
from pathlib import Path

import numpy as np
import pytest

import simulator
from simulator.basics.errors import ScenarioError
from simulator.calibration.training_runs.log_files import read_log
from simulator.calibration.training_runs.own_framework import calibrated, own_error
from simulator.calibration.training_runs.playing import play_rows
from simulator.calibration.training_runs.rows import MeasuredRow
from simulator.calibration.training_runs.user_rows import user_rows
from simulator.cluster.build import build
from simulator.report.numbers.prediction_intervals import Traits, prediction_interval
from simulator.step.framework import load_framework
from simulator.step.parallelism import Parallelism
from simulator.step.precision import MIXED


def _collective_time(topology: str, ranks: int, operation: str, engine: str, network_time: float) -> float:
    from simulator.collectives.algorithm import CollectiveRequest
    from simulator.collectives.collective_plan import Task, plan
    from simulator.engine.play import play

    cluster = build(topology, ranks, network_time=network_time)
    task = Task(CollectiveRequest(operation, ranks, 2**20), "auto", tuple(range(ranks)), "float32")
    return play(engine, plan(cluster, task).program, cluster).end


@pytest.mark.parametrize("engine", ["events", "compiled"])
@pytest.mark.parametrize(
    ("topology", "ranks"),
    [("dgx_h100", 8), ("dgx_h100", 16), ("star_100g", 6), ("leaf_spine_100g", 8), ("torus_2d", 4)],
)
@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "all_to_all"])
def test_every_collective_takes_network_time_times_as_long(
    topology: str, ranks: int, operation: str, engine: str
) -> None:
    once = _collective_time(topology, ranks, operation, engine, 1.0)
    assert _collective_time(topology, ranks, operation, engine, 1.7) == pytest.approx(1.7 * once, rel=1e-9)


def test_a_step_without_communication_takes_kernel_time_times_as_long(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("based_on: nemo\nkernel_time: 1.3\n", encoding="utf-8")
    once, slower = (
        simulator.simulate(
            {
                "name": "alone",
                "cluster": {"topology": "dgx_h100", "world_size": 1},
                "training": {"model": "gpt2", "seq_len": 1024, "framework": framework, "cuda_graphs": "full_iteration"},
            }
        ).report.step_time_s
        for framework in ("nemo", str(own))
    )
    assert slower == pytest.approx(1.3 * once, rel=1e-9)


def _row(gpus: int, micro_batch: int, tp: int = 1, accumulation: int = 1) -> MeasuredRow:
    return MeasuredRow(
        table="own",
        line=gpus,
        framework="nemo",
        model="llama3_8b",
        gpu="h100_sxm",
        topology="dgx_h100",
        seq_len=4096,
        gpus=gpus,
        micro_batch_size=micro_batch,
        accumulation=accumulation,
        precision=MIXED.replaced(grads="float32"),
        sharding="zero1" if tp > 1 else "zero3",
        reshard=True,
        checkpointing="full",
        compiled=False,
        tokens_per_s=1.0,
        peak=None,
        source="simulated",
        parallelism=Parallelism(tp=tp),
    )


def test_calibration_finds_the_constants_of_a_slower_cluster() -> None:
    # The measured runs of a cluster whose kernels take 1.2 times and whose transfers take 1.4 times as long.
    truth = load_framework({"based_on": "nemo", "kernel_time": 1.2, "network_time": 1.4})
    rows = [_row(8, 1, tp=8), _row(64, 1), _row(16, 4), _row(32, 1, tp=4, accumulation=2), _row(128, 2)]
    played = play_rows(rows, {"nemo": truth}, 1)
    measured = [replace(row, tokens_per_s=row.step_time / one.step_time) for row, one in zip(rows, played, strict=True)]
    shipped = load_framework("nemo")
    own = calibrated(measured[:3], shipped)
    assert max(map(abs, own.before)) > 0.15
    # Priors pull towards 1: the factors are close, and the predictions of unseen runs are within 1 %.
    assert own.framework.kernel_time == pytest.approx(1.2, rel=0.02)
    assert own.framework.network_time == pytest.approx(1.4, rel=0.1)
    rest = play_rows(measured[3:], {"nemo": own.framework}, 1)
    assert [one.time_error for one in rest] == pytest.approx([0.0, 0.0], abs=0.01)


def test_calibration_finds_a_slow_host() -> None:
    # Steps of 512 and 1,024 tokens, in which kernels wait for a host 1.7 times as slow as the shipped one.
    shipped = load_framework("nemo")
    slow = shipped.with_constants(issue=1.7 * shipped.host.issue)
    sizes = ((1, 512), (2, 512), (2, 1024))
    rows = [replace(_row(8, 1, accumulation=count), seq_len=length) for count, length in sizes]
    played = play_rows(rows, {"nemo": slow}, 1)
    measured = [replace(row, tokens_per_s=row.step_time / one.step_time) for row, one in zip(rows, played, strict=True)]
    own = calibrated(measured, shipped).framework
    assert own.host.issue == pytest.approx(slow.host.issue, rel=0.1)
    assert (own.kernel_time, own.network_time) == pytest.approx((1, 1), abs=0.1)


def test_runs_that_the_shipped_constants_predict_change_nothing() -> None:
    rows = [_row(8, 1), _row(64, 1)]
    shipped = load_framework("nemo")
    played = play_rows(rows, {"nemo": shipped}, 1)
    measured = [replace(row, tokens_per_s=row.step_time / one.step_time) for row, one in zip(rows, played, strict=True)]
    own = calibrated(measured, shipped)
    assert (own.framework.kernel_time, own.framework.network_time, own.framework.host.issue) == pytest.approx(
        (1, 1, shipped.host.issue)
    )


def test_runs_that_contradict_each_other_change_little() -> None:
    # The same setting measured 40 % faster and 40 % slower than simulated: no constants explain both.
    rows = [_row(8, 1), _row(8, 1), _row(64, 1)]
    shipped = load_framework("nemo")
    played = play_rows(rows, {"nemo": shipped}, 1)
    off = (1.4, 1 / 1.4, 1.4)
    measured = [
        replace(row, tokens_per_s=row.step_time / one.step_time / factor)
        for row, one, factor in zip(rows, played, off, strict=True)
    ]
    own = calibrated(measured, shipped)
    # The errors of runs predicted from the others are not larger than with the shipped constants.
    assert sum(error**2 for error in own.without) <= sum(error**2 for error in own.before) * (1 + 1e-9)
    assert own.before == pytest.approx([log(factor) for factor in off])


@pytest.mark.parametrize(
    ("errors", "slopes", "expected"),
    [
        # Without any effect of the constants, the likeliest error is the root of the mean square, sqrt(0.0145) = 0.12.
        ([0.12, -0.12, 0.11, -0.13], [0.0, 0.0, 0.0], 0.12),
        # Slower kernels explain equal errors; what is left, 0.01, is below the smallest value tried.
        ([0.10, 0.11, 0.10], [-1.0, 0.0, 0.0], 0.02),
        # One setting with opposite errors: one constant cannot explain both.
        ([0.3, -0.3, 0.3], [-1.0, 0.0, 0.0], 0.3),
    ],
)
def test_runs_that_contradict_each_other_have_a_large_error_of_their_own(
    errors: list[float], slopes: list[float], expected: float
) -> None:
    assert own_error(np.array([slopes] * len(errors)), np.array(errors)) == expected


def test_runs_of_several_frameworks_are_refused() -> None:
    with pytest.raises(ScenarioError, match="one framework at a time"):
        calibrated([_row(8, 1), replace(_row(8, 1), framework="nanotron")], load_framework("nemo"))


def test_a_based_framework_has_the_shipped_constants_except_its_own() -> None:
    shipped = load_framework("nanotron")
    own = load_framework({"based_on": "nanotron", "host": {"issue": 1e-5}})
    assert own.with_constants(name=shipped.name, issue=shipped.host.issue, facts=shipped.facts) == shipped
    assert own.origin == "nanotron"
    with pytest.raises(ScenarioError, match="based_on: got 'nanotronn'"):
        load_framework({"based_on": "nanotronn"})


def test_intervals_follow_the_runs_of_a_calibration() -> None:
    traits = Traits("nemo", "h100", eight_bit=False, cut=False, nodes=True)
    exact, poor = (prediction_interval(traits, calibration=[error] * 40) for error in (0.01, 0.3))
    # Forty runs outweigh every source: the interval is their error.
    assert [log(one.width[0]) for one in (exact, poor)] == pytest.approx([0.01, 0.3], rel=0.5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "step:  1  loss: 12.27  memory: 27.35GiB(28.8%)  tps: 287  mfu: 0.22%\n"
            "\x1b[31mstep: 10  loss:  4.02  memory: 82.40GiB(86.3%)  tps: 5,700  mfu: 33.7%\x1b[0m\n"
            "step: 20  loss:  4.02  memory: 82.00GiB(86.3%)  tps: 5,762  mfu: 33.7%\n"
            "step: 30  loss:  4.02  memory: 82.00GiB(86.3%)  tps: 5,764  mfu: 33.7%\n",
            (None, 5763.0, 82.4, 2),
        ),
        (
            " iteration  1/ 3 | consumed samples: 256 | elapsed time per iteration (ms): 9123.4 | lm loss: 1.0E+01 |\n"
            "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1024.0 | max allocated: 2048.0 | reserved: 3.0\n"
            " iteration  2/ 3 | consumed samples: 512 | elapsed time per iteration (ms): 5123.4 | lm loss: 1.0E+01 |\n"
            " iteration  3/ 3 | consumed samples: 768 | elapsed time per iteration (ms): 5123.4 | lm loss: 1.0E+01 |\n",
            (5.1234, None, 2.0, 2),
        ),
        (
            "Training epoch 0, iteration 0/9 | train_step_timing in s: 30.5 | consumed_samples: 128\n"
            "Epoch 0: | 2/9 [v_num=1, global_step=1.00, train_step_timing in s=7.21]\n",
            (7.21, None, None, 1),
        ),
    ],
)
def test_logs_give_the_median_of_their_later_half(
    tmp_path: Path, text: str, expected: tuple[float | None, float | None, float | None, int]
) -> None:
    path = tmp_path / "run.log"
    path.write_text(text, encoding="utf-8")
    found = read_log(path)
    assert (found.step_time, found.tokens_per_s_per_gpu, found.peak_gib, found.steps) == pytest.approx(expected)


def test_a_table_may_name_logs_and_faults_name_the_line(tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("nothing here\n", encoding="utf-8")
    head = "model,gpu,topology,gpus,framework,seq_len,micro_batch_size,step_time_s,log\n"
    path = tmp_path / "runs.csv"
    path.write_text(f"{head}gpt2,h100_sxm,dgx_h100,8,nemo,1024,4,,run.log\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"line 2: .*run\.log: has no line with a step's time"):
        user_rows(path)
    (tmp_path / "run.log").write_text("train_step_timing in s: 0.5\n", encoding="utf-8")
    assert user_rows(path)[0].tokens_per_s == 1024 * 4 * 8 / 0.5
