"""What a user imports: the names, nothing more, and what they take."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import simulator
from simulator import load_scenario, simulate

TINY = {
    "name": "tiny",
    "cluster": {"topology": "star_100g", "world_size": 4},
    "collective": {"operation": "all_reduce", "algorithm": "ring", "size": "4 KiB"},
}


def test_the_public_names_are_all_there_and_sorted() -> None:
    assert list(simulator.__all__) == sorted(simulator.__all__)
    for name in simulator.__all__:
        assert getattr(simulator, name) is not None
    assert {"load_scenario", "simulate", "sweep"} <= set(simulator.__all__)


def test_dir_lists_the_public_names_before_any_is_used() -> None:
    code = "import simulator; print(*dir(simulator))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == sorted(simulator.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        simulator.nonsense  # noqa: B018


@pytest.mark.parametrize("name", simulator.__all__)
def test_every_public_function_has_a_docstring(name: str) -> None:
    found = getattr(simulator, name)
    if inspect.isfunction(found) or inspect.isclass(found):
        assert found.__doc__


def test_simulate_gives_report_timeline_and_results() -> None:
    run = simulate(load_scenario(TINY))
    assert run.timeline.engine == "events"
    assert run.report.wrong == 0
    results = run.results
    assert results is not None
    assert len(results) == 4
    assert all(np.array_equal(results[0], other) for other in results)


def test_a_report_is_plain_data_with_the_keys_that_are_promised() -> None:
    report = simulate(load_scenario(TINY)).report.to_dict()
    promised = {
        "time_s", "algbw", "busbw", "transfers", "wire_bytes", "input_bytes_per_rank", "result_bytes_per_rank",
        "peak_buffer_bytes", "wrong", "max_abs_error", "overflowed", "predicted_s", "bottleneck",
    }  # fmt: skip
    assert promised <= set(report)
    assert json.loads(json.dumps(report)) == report
    assert set(report["bottleneck"]) == {
        "link", "bytes", "busy_fraction", "bandwidth_time_s", "reverse_bytes", "reverse_time_s", "cable_time_s", "end",
    }  # fmt: skip


def test_the_same_scenario_gives_the_same_report_and_a_seed_other_numbers() -> None:
    one, again = (simulate(load_scenario(TINY)) for _ in range(2))
    other = simulate(load_scenario({**TINY, "seed": 1}))
    assert one.report == again.report
    assert one.timeline.spans == again.timeline.spans
    assert one.results is not None
    assert other.results is not None
    assert not np.array_equal(one.results[0], other.results[0])
    assert one.report.time_s == other.report.time_s


def test_results_belong_to_the_caller() -> None:
    results: Any = simulate(load_scenario(TINY)).results
    results[0][:] = 0
    assert results[1].any()
    assert simulate(load_scenario(TINY)).report.wrong == 0


def test_without_payload_there_are_no_results() -> None:
    spec = {**TINY["collective"], "payload": False}  # type: ignore[dict-item]
    run = simulate(load_scenario({**TINY, "collective": spec}))
    assert run.results is None
    assert (run.report.wrong, run.report.max_abs_error, run.report.overflowed) == (None, None, None)
    assert run.report.time_s == simulate(load_scenario(TINY)).report.time_s
