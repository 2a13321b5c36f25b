"""Jobs with shared links, noise, partitioned models, too little memory, or many points, each in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.alone import alone, peak_memory
from simulator.basics.errors import OutOfMemoryError


@dataclass(frozen=True, slots=True)
class Job:
    """A training step, from scenario to report.

    Attributes
    ----------
    ranks : int
        Number of GPUs.
    topology : str or mapping
        The machine.
    seconds, mib : float
        Aims for CPU time [s] and memory [MiB].
    cluster, training : mapping
        Changes to the default: Llama 3 8B, ZeRO-3, sequences of 2,048, full checkpointing, every collective simulated.
    """

    ranks: int
    topology: Any
    seconds: float
    mib: float = float("inf")
    cluster: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)

    def scenario(self, ranks: int | None = None) -> dict[str, Any]:
        """Return the scenario as a dict, optionally on another number of ranks."""
        usual = {"model": "llama3_8b", "seq_len": 2048, "sharding": "zero3", "activation_checkpointing": "full"}
        return {
            "name": "job",
            "cluster": {"topology": self.topology, "world_size": ranks or self.ranks, **self.cluster},
            "training": {**usual, "collectives": "played", **self.training},
        }


def _sharded(size: int) -> dict[str, Any]:
    return {"sharding": {"strategy": "zero3", "shard_size": size}}


def _drawn(**jitter: float) -> dict[str, Any]:
    return {"jitter": jitter}


# The numbers after the topology are aims [s], and [MiB] if present.
JOBS: Final[dict[str, Job]] = {
    "dragonfly": Job(256, "dragonfly", 5),
    "fat tree, routes by hash": Job(1024, "fat_tree_1024", 15, cluster={"ecmp": {"hash": 7}}),
    "torus_3d, shards of 16": Job(128, "torus_3d", 20, training=_sharded(16)),
    "star, shards of 8": Job(4096, "star_100g", 20, training=_sharded(8)),
    "leaf-spine, shards of 8": Job(4096, "leaf_spine_100g", 20, training=_sharded(8)),
    # With noise, no two ranks are equal, and every rank is simulated.
    "kernels and latencies drawn": Job(1024, "dgx_h100", 20, 1024, _drawn(compute=0.05, latency=0.1)),
    "kernels drawn": Job(4096, "dgx_h100", 10, cluster=_drawn(compute=0.05)),
}
# Symmetric jobs, simulated at several sizes to measure growth.
GROWING: Final[dict[str, Job]] = {
    f"{topology}, {name}": Job(64, topology, 0, training=training | {"collectives": "auto"})
    for topology in ("dgx_h100", "dgx_a100", "star_100g", "leaf_spine_100g")
    for name, training in (("ddp", {"sharding": "ddp"}), ("zero3", {}), ("shards of 8", _sharded(8)))
}
SIZES: Final = (64, 256, 1024, 4096)


def _cut(training: Mapping[str, Any], **parallelism: Any) -> dict[str, Any]:
    """Return the keys of a partitioned model: collectives chosen by the planner, and ZeRO-1."""
    return {"sharding": "zero1", "collectives": "auto", **training, "parallelism": parallelism}


# Partitioned models with their published layouts.
CUT: Final[dict[str, Job]] = {
    # arXiv:2407.21783, table 4.
    "Llama 3 405B, tp 8, pp 16, 1f1b, 16 micro-batches": Job(
        16_384,
        "dgx_h100",
        20,
        2048,
        training=_cut(
            {
                "model": "llama3_405b",
                "seq_len": 8192,
                "gradient_accumulation_steps": 16,
                "activation_checkpointing": "none",
            },
            tp=8,
            pp=16,
            stages={"first_less": 1, "last_less": 1},
        ),
    ),
    # arXiv:2104.04473, section 5: 175 billion parameters on 1,024 GPUs, there A100.
    "GPT-3 175B, tp 8, pp 8, interleaved, 96 micro-batches": Job(
        1024,
        "dgx_h100",
        5,
        training=_cut(
            {"model": "gpt3_175b", "gradient_accumulation_steps": 96},
            tp=8,
            pp=8,
            schedule="interleaved",
            virtual_stages=2,
        ),
    ),
    # arXiv:2412.19437, sections 3.2 and 4.2; 120 micro-batches are 15,360 sequences a step.
    "DeepSeek-V3, pp 16, ep 64, dualpipe, 120 micro-batches": Job(
        2048,
        "dgx_h100",
        20,
        cluster={"gpu": "h200"},
        training=_cut(
            {
                "model": "deepseek_v3",
                "seq_len": 4096,
                "gradient_accumulation_steps": 120,
                "precision": "fp8",
                "activation_checkpointing": "selective_op",
            },
            pp=16,
            ep=64,
            schedule="dualpipe",
            experts={"dispatch": "deduplicated", "dtype": "float8_e4m3fn"},
        ),
    ),
}


# "play" simulates, "short" stops at the known lack of memory, "sweep" simulates every point, "tell" estimates memory.
def figures(scenario: Mapping[str, Any], what: str = "play") -> dict[str, float]:
    """Return CPU time [s] and peak memory [MiB] for a scenario; `what` selects the work, see above."""
    return alone("benchmarks.jobs", what, json.dumps(scenario))


def told(job: Job) -> dict[str, float]:
    """Return CPU time [s] and peak memory [MiB] for estimating each stage's memory, without simulation."""
    return figures(job.scenario(), "tell")


def exponent(job: Job) -> tuple[list[float], float]:
    """Return the CPU time at each size [s], and the exponent of its growth with the ranks, from 256 on."""
    taken = [figures(job.scenario(ranks))["seconds"] for ranks in SIZES]
    # The smallest size is left out: constant costs dominate there.
    power = np.polyfit(np.log(SIZES[1:]), np.log(taken[1:]), 1)[0]
    return taken, float(power)


ALL_TO_ALL: Final = {
    "name": "job",
    "cluster": {"topology": "fat_tree_1024", "world_size": 1024},
    "collective": {"operation": "all_to_all", "algorithm": "direct", "size": "64 MiB", "payload": False},
}
# Known before simulation: ddp holds the whole model's states on each GPU.
DOES_NOT_FIT: Final = {
    "name": "job",
    "cluster": {"topology": "dgx_h100", "world_size": 16_384},
    "training": {"model": "llama3_8b", "seq_len": 8192, "sharding": "ddp"},
}
PAYLOAD: Final = {
    "name": "job",
    "cluster": {"topology": "star_100g", "world_size": 64},
    "collective": {"operation": "all_reduce", "algorithm": "ring", "size": "16 MiB", "payload": True},
}
SWEEP: Final = {
    "name": "job",
    "cluster": {"topology": "dgx_h100", "world_size": 16},
    "training": {"model": "llama3_8b", "seq_len": 2048, "sharding": "zero3", "activation_checkpointing": "full"},
    "sweep": {
        "cluster.world_size": [16, 32, 64, 128, 256],
        "training.sharding": ["ddp", "zero1", "zero2", "zero3"],
        "training.micro_batch_size": [1, 2],
        "training.seq_len": [1024, 2048, 3072, 4096, 8192],
    },
}
RING: Final = """\
name: ring
cluster: {topology: dgx_a100, world_size: 8}
collective: {operation: all_reduce, size: 64 MiB, algorithm: ring}
"""
SMALL: Final = """\
name: small
cluster: {topology: dgx_h100, world_size: 8}
training: {model: llama3_8b, seq_len: 2048, sharding: zero3, activation_checkpointing: full}
"""


def command(*arguments: str, times: int = 3) -> float:
    """Return the CPU time of a simulator command as typed by a user, the best of several [s]."""
    return _process_time("-m", "simulator", *arguments, times=times)


def bare_imports() -> float:
    """Return the CPU time of a Python process that imports numpy, simpy and networkx, the best of several [s]."""
    return _process_time("-c", "import numpy, simpy, networkx")


def _process_time(*arguments: str, times: int = 3) -> float:
    """Return the CPU time of a Python process in a folder with two scenarios, the best of several [s]."""
    best = float("inf")
    for _ in range(times):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "small.yaml").write_text(SMALL, encoding="utf-8")
            (Path(folder) / "ring.yaml").write_text(RING, encoding="utf-8")
            # A small parent process measures the CPU time of its only child. A plan that finds nothing exits with 1.
            program = (
                "import os, subprocess, sys; "
                "done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); "
                "times = os.times(); print(times.children_user + times.children_system); "
                "sys.exit(0 if done.returncode in (0, 1) else done.returncode)"
            )
            whole = [sys.executable, "-c", program, sys.executable, *arguments]
            # An empty environment, apart from this: settings of the caller must not count.
            environment = {"PYTHONPATH": str(Path(__file__).parents[1])}
            told = subprocess.run(whole, cwd=folder, env=environment, check=True, capture_output=True, text=True).stdout
            best = min(best, float(told))
    return best


def _told(scenario: dict[str, Any]) -> dict[str, float]:
    from simulator.cluster.build import build
    from simulator.scenario.build_training import to_step
    from simulator.scenario.load import load_scenario
    from simulator.step.stage_memory import stage_memory

    began, ranks = time.process_time(), scenario["cluster"]["world_size"]
    spec = load_scenario(scenario).training
    if spec is None:
        raise ValueError("only of training steps")
    stage_memory(build("star_100g", 1, gpu="h100_sxm"), to_step(spec, ranks), ranks)
    return {"seconds": time.process_time() - began, "mib": peak_memory()}


def _played(what: str, scenario: dict[str, Any]) -> dict[str, float]:
    import simulator
    from simulator.scenario.load import load_scenario

    # Warnings about long simulations are expected here.
    warnings.simplefilter("ignore")
    loaded = load_scenario(scenario)
    began = time.process_time()
    if what == "sweep":
        simulator.sweep(loaded)
    else:
        with suppress(OutOfMemoryError):
            # "short" needs the memory limit; other jobs may exceed the GPU's memory.
            simulator.simulate(loaded, limit_memory=what == "short")
    return {"seconds": time.process_time() - began, "mib": peak_memory()}


if __name__ == "__main__":
    asked = json.loads(sys.argv[2])
    print(json.dumps(_told(asked) if sys.argv[1] == "tell" else _played(sys.argv[1], asked)))
