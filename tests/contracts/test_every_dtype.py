"""Whatever knows each number format: the record, matmuls and casts, collectives, and the names in traces."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import simulator
from simulator.basics import registry
from simulator.basics.dtypes import DTYPES
from simulator.cluster.gpu_file import load_gpu
from simulator.errors import ScenarioWarning
from simulator.model.kernel import Matmul
from simulator.report.tables.nccl_table import DTYPES as OF_NCCL_TESTS
from simulator.step.kernels.framework_operations import narrow_casts
from simulator.step.kernels.kernel_model import kernel_model

STORED = [name for name, dtype in DTYPES.items() if not dtype.compute_only]
IN_MATMULS = [name for name, dtype in DTYPES.items() if dtype.matmul is not None and dtype.is_float]


@pytest.mark.parametrize("name", STORED)
def test_arrays_are_carried_and_traces_name_the_format(name: str, tmp_path: Path) -> None:
    dtype = DTYPES[name]
    assert dtype.numpy.itemsize == dtype.itemsize == np.ones(1, dtype.numpy).nbytes
    assert dtype.nccl
    assert dtype.torch
    assert name in OF_NCCL_TESTS.values()
    data: dict[str, Any] = {"operation": "all_reduce", "algorithm": "ring", "size": "4 KiB", "dtype": name}
    scenario = {"name": "x", "cluster": {"topology": "star_100g", "world_size": 3}, "collective": data}
    assert simulator.simulate(scenario).report.wrong == 0


def test_names_in_traces_are_of_one_format_each() -> None:
    for names in ([DTYPES[name].nccl for name in STORED], [DTYPES[name].torch for name in STORED]):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", IN_MATMULS)
def test_matmuls_in_the_format_run_on_a_gpu_that_has_it(name: str) -> None:
    dtype, matmul = DTYPES[name], DTYPES[name].matmul
    assert matmul is not None
    gpus = [load_gpu(gpu) for gpu in registry.names("gpu")]
    able = [gpu for gpu in gpus if name in gpu.peak_flops]
    assert able
    # Narrow inputs are cast from a wider format, and their sums are wider than they are.
    assert (matmul.cast_bytes > 0) == (dtype.bits <= 8)
    assert matmul.output_bytes >= dtype.bits / 8
    if matmul.cast_bytes:
        cast = narrow_casts(Matmul("up", 4, 8, 16), name)
        assert (cast.read, cast.written) == (matmul.cast_reads * 2 * 192, matmul.cast_bytes * 192)
    # Parameters of a stored format are multiplied as they are; other inputs are cast from bfloat16 or float32.
    wider = "float32" if name == "tf32" else "bfloat16"
    kept = {"params": name} if dtype.bits >= 16 and not dtype.compute_only else {"params": wider, "matmul": name}
    step = {"model": "gpt2", "seq_len": 64, "sharding": "ddp", "precision": kept}
    for gpu in able:
        model = kernel_model(gpu).matmul(name)
        assert model.peak_flops > 0
    data = {"name": "x", "cluster": {"topology": "dgx_b200", "world_size": 2, "gpu": able[-1].name}, "training": step}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScenarioWarning)
        assert simulator.simulate(data).report.step_time_s > 0
