"""GPU files."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.cluster.gpu_file import load_gpu

PLAIN: dict[str, Any] = {
    "vector_flops": {"float32": "10 TFLOP/s"},
    "hbm_bytes": "16 GiB",
    "hbm_bandwidth": "500 GB/s",
    "sms": 40,
    "host_bandwidth": "31.5 GB/s",
}


def test_a_bare_value_is_short_for_a_figure() -> None:
    long = PLAIN | {"hbm_bandwidth": {"value": "500 GB/s", "source": "node", "sure": False}}
    short, full = load_gpu(PLAIN), load_gpu(long)
    assert short.hbm_bandwidth == full.hbm_bandwidth == 500e9
    assert (short.facts["unsure"], full.facts["unsure"]) == ((), ("hbm_bandwidth",))
    assert full.facts["sources"]["hbm_bandwidth"] == "node"
    assert short.scale_up_bandwidth == 0.0


def test_matrix_units_win_where_a_dtype_has_both() -> None:
    gpu = load_gpu(PLAIN | {"matrix_flops": {"float32": "20 TFLOP/s", "float16": "80 TFLOP/s"}})
    assert gpu.peak_flops == {"float32": 20e12, "float16": 80e12}
    assert gpu.facts["vector_flops"] == {"float32": 10e12}


def test_constants_and_measurements_are_kept() -> None:
    measured = {"best_matmul_flops": {"float32": "9 TFLOP/s"}, "stream_bandwidth": "450 GB/s"}
    gpu = load_gpu(PLAIN | measured | {"constants": {"sms_taken": 20}})
    assert gpu.facts["constants"] == {"sms_taken": 20.0}
    assert gpu.facts["best_matmul_flops"] == {"float32": 9e12}
    assert gpu.facts["stream_bandwidth"] == 450e9


def test_the_best_matmul_keeps_its_shape() -> None:
    best = {"float32": {"value": "9 TFLOP/s", "shape": [1, 2, 3]}, "float16": "9 TFLOP/s"}
    found = load_gpu(PLAIN | {"best_matmul_flops": best}).facts["best_matmul"]
    assert found == {"float32": ((1, 2, 3), 9e12), "float16": ((8192, 8192, 8192), 9e12)}


def test_gpus_survive_pickling() -> None:
    gpu = load_gpu("h100_sxm")
    assert pickle.loads(pickle.dumps(gpu)) == gpu


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vector_flops": {"fp32": "1 TFLOP/s"}}, "vector_flops.fp32: got 'fp32'; one of .*did you mean 'float32'"),
        ({"vector_flops": {"float32": "1 TB/s"}}, "'TB/s' measures bandwidth, not flop rate"),
        ({"hbm_bytes": "80 Gb"}, "hbm_bytes.value: got '80 Gb'; no unit 'Gb'; did you mean 'GB'"),
        ({"hbm_bytes": "0 B"}, "hbm_bytes.value: got .*; must be more than 0"),
        ({"hbm_bandwidth": "0 GB/s"}, "hbm_bandwidth.value: got '0 GB/s'; must be more than 0"),
        ({"hbm_bandwidth": {"value": "1 GB/s", "src": "x"}}, "hbm_bandwidth.src: unknown key; one of source, sure"),
        ({"sms": 1.5}, "sms.value: got 1.5; must be a whole number"),
        ({"sms": 0}, "sms.value: got 0; must be at least 1"),
        ({"clock": float("nan")}, "clock.value: got nan; must be a finite number"),
        ({"smss": 3}, "smss: unknown key; .*did you mean 'sms'"),
        ({"vector_flops": {}}, "needs vector_flops or matrix_flops"),
        ({"product": 3}, "product: got 3; must be text"),
    ],
)
def test_a_wrong_gpu_is_told_key_by_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load_gpu(PLAIN | change)


def test_all_faults_of_a_gpu_file_are_told_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("vector_flops:\n  float32: 3\nhbm_bytes: 4\nhbm_bandwith: 1 GB/s\nsms: 3\n")
    with pytest.raises(ScenarioError) as caught:
        load_gpu(str(path))
    lines = [line.removeprefix(f"{path}:").split(" ")[:2] for line in str(caught.value).splitlines()]
    assert sorted(lines) == [
        ["1:1:", "hbm_bandwidth:"],
        ["1:1:", "host_bandwidth:"],
        ["2:12:", "vector_flops.float32.value:"],
        ["3:12:", "hbm_bytes.value:"],
        ["4:1:", "hbm_bandwith:"],
    ]
