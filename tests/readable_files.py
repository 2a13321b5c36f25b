"""A file of every kind that the simulator reads, with the function that reads it."""

from __future__ import annotations

import gzip
import io
import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import networkx as nx
import numpy as np

from simulator.basics.registry import find
from simulator.calibration.gpu_fit import read_figures
from simulator.calibration.kernel_rows import kernel_rows
from simulator.calibration.machines.measured_sweep import read_sweep
from simulator.calibration.measured_kernels import gpu_named
from simulator.calibration.training_runs.log_files import read_log
from simulator.calibration.training_runs.user_rows import user_rows
from simulator.cli.commands import simulate_trace
from simulator.cluster.build import build, facts
from simulator.cluster.gpu_file import load_gpu
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.collectives.msccl.convert import algorithm_of_program
from simulator.collectives.msccl.xml_writer import exported
from simulator.importing.importer import import_files
from simulator.importing.machine import Options
from simulator.model.load import load_model
from simulator.model.model import total
from simulator.scenario.days_file import load_days
from simulator.scenario.jobs_file import load_jobs
from simulator.scenario.load import load_scenario, points
from simulator.scenario.tokens import read_tokens
from simulator.step.framework import load_framework
from simulator.traces.flight_recorder.dump_reader import read_dumps
from simulator.traces.flight_recorder.flight_record import FlightRecord
from simulator.traces.kineto.measured_step import measured_step
from simulator.traces.kineto.profile_reader import read_trace
from tests import configurations, machines
from tests.test_measured_gpu import of as gpu_figures
from tests.traces import flight_recorder_by_hand, kineto_sample

# The files of an import: formats that only add to a machine, and their options, as for `import-machine`.
BESIDE: Final = {
    "astra_sim/system": [machines.sample("astra_sim/Ring_8npus.yml")],
    "nccl_topology/graph": [machines.sample("nccl_topology/azure_ncv4-topo.xml")],
}
CHAKRA: Final = Path(__file__).parent / "traces" / "chakra_samples"
GRAPH: Final = {
    "directed": False,
    "nodes": [{"id": f"gpu{i}", "kind": "gpu", "node": i // 2, "forwards": False} for i in range(4)]
    + [{"id": f"s{i}", "kind": "switch", "node": i, "reduces": True} for i in range(2)],
    "edges": [{"source": f"gpu{i}", "target": f"s{i // 2}", "bandwidth": "1 GB/s", "latency": 1e-6} for i in range(4)]
    + [{"source": "s0", "target": "s1", "bandwidth": 1e9, "latency": "1 us"}],
}
SWEEP: Final = b"""\
#  Rank  0 Group  0 Pid  1234 on  h1 device  0 [0x07] NVIDIA H100
#  Rank  1 Group  0 Pid  1234 on  h1 device  1 [0x0b] NVIDIA H100
     1048576        262144     float     sum      -1    30.00   34.00   34.00      0    30.00   34.00   34.00      0
     2097152        524288     float     sum      -1    50.00   40.00   40.00      0    50.00   40.00   40.00      0
# all_reduce_perf
"""
TIMES: Final = (
    b"size_bytes,time_us,dtype,op,ranks,nodes\n1048576,30,float,all_reduce,2,1\n2097152,50,float,all_reduce,2,1\n"
)
RUNS: Final = b"""\
model,gpu,topology,gpus,seq_len,micro_batch_size,accumulation,framework,sharding,tp,pp,schedule,stages,tokens_per_s
# Measured runs.
llama3_8b,h100_sxm,dgx_h100,64,8192,1,2,torchtitan,zero3,1,1,1f1b,,380000
gpt2,h100_sxm,dgx_h100,8,1024,4,1,bare,ddp,1,2,gpipe,7 5,500000.5
"""
KERNELS: Final = {
    "matmul": b"gpu,dtype,m,n,k,time_us,contains\nb200,nvfp4,8k,1024,4096,60,cast\nh200,bf16,512,512,512,9,\n",
    "experts": b"gpu,dtype,tokens,hidden,expert_ffn,top_k,experts,ep,tp,load,time_us\n"
    b"b300,fp8,4096,2048,1536,8,64,4,2,power_law_1.2,100\n",
    "attention": b"gpu,dtype,pass,mask,window,batch,q_seq,kv_seq,q_heads,kv_heads,head_dim_qk,head_dim_vo,time_ms\n"
    b"gb200,bfloat16,bwd,causal,128,2,8192,8192,64,8,192,128,1.5\n",
    "norms": b"gpu,kernel,implementation,pass,dtype,rows,width,time_ms\nh200,rms_norm,eager,fwd,bf16,16384,4096,0.1\n",
}
FRAMEWORK: Final = b"""\
based_on: torchtitan
kernel_time: {value: 1.0312, source: "calibrated to 3 runs"}
network_time: {value: 0.97, source: "calibrated to 3 runs"}
host:
  issue: {value: 5.1e-6, source: "calibrated to 3 runs"}
calibration: {runs: 3, errors: [0.01, -0.02, 0.005]}
"""
LOG: Final = b"""\
[rank0]: step:  10  loss:  7.12  memory: 57.30GiB(72.34%)  tps: 5,870  tflops: 340.1  mfu: 34.4%
[rank0]: step:  20  loss:  6.02  memory: 57.30GiB(72.34%)  tps: 5,912  tflops: 342.6  mfu: 34.6%
"""


@dataclass(frozen=True, slots=True)
class ReadableFile:
    """A file that the simulator reads.

    Attributes
    ----------
    kind : str
        Kind of files, such as "MSCCL program".
    name : str
        Name of the file.
    content : bytes
        Content of a right file.
    read : callable
        Function that reads a file by its path.
    beside : tuple of Path
        Further files, which are read from the same folder.
    """

    kind: str
    name: str
    content: bytes
    read: Callable[[Path], object]
    beside: tuple[Path, ...] = ()

    def written(self, content: bytes, folder: Path) -> Path:
        """Write the file with a content, and the further files, into an empty folder; return its path."""
        for other in self.beside:
            (folder / other.name).symlink_to(other)
        path = folder / self.name
        path.write_bytes(content)
        return path


def readable_files() -> tuple[ReadableFile, ...]:
    """Return at least one file of every kind."""
    return (
        *_configurations(), *_machines(), *_programs(), *_traces(), *_models(), *_topologies(), *_scenarios(),
        *_tables(),
    )  # fmt: skip


def _configurations() -> Iterator[ReadableFile]:
    for format_name, samples in configurations.SAMPLES.items():
        for sample in samples:

            def read(path: Path, function: str = sample.function, options: Options = sample.options) -> object:
                return import_files([f"{path}:{function}" if function else str(path)], options)

            yield ReadableFile(f"configuration of {format_name}", sample.file, sample.written().encode(), read)


def _machines() -> Iterator[ReadableFile]:
    for source in sorted(machines.SAMPLES.glob("*/*.*")):
        kind = source.parent.name
        if kind == "astra_sim" and source.suffix == ".json":
            # A logical topology and a remote memory are no description by themselves.
            if "node" in source.name or "memory" in source.name:
                continue
            kind = "astra_sim/system"
        kind = "nccl_topology/graph" if "-graph" in source.name else kind
        options: dict[str, Any] = {
            "nccl_topology": {"gpu": "h100_sxm", "cards": ()}, "slurm": {"node": "gh200"},
        }.get(kind, {})  # fmt: skip

        def read(path: Path, beside: Sequence[str] = BESIDE.get(kind, ()), options: dict[str, Any] = options) -> object:
            return machines.imported(*beside, str(path), **options)

        yield ReadableFile(f"machine of {kind}", source.name, source.read_bytes(), read)


def _programs() -> Iterator[ReadableFile]:
    for algorithm, operation in (("ring", "all_reduce"), ("tree", "all_reduce"), ("direct", "all_to_all")):
        schedule = ALGORITHMS.find(algorithm).plans[operation](CollectiveRequest(operation, 4, 64))

        def read(path: Path, operation: str = operation) -> object:
            found = algorithm_of_program(path.read_bytes(), str(path))
            return [found.plans[name](CollectiveRequest(name, 4, 64)) for name in found.plans if name == operation]

        yield ReadableFile("MSCCL program", f"{algorithm}.xml", exported(schedule).encode(), read)


def _traces() -> Iterator[ReadableFile]:
    def simulated(path: Path) -> None:
        prefix = str(path).removesuffix(".0.et")
        simulate_trace.command(prefix, "star_100g", algorithm="ring", repair=True, as_json=True)

    for name in ("all_reduce_4npus_1MB", "custom_ring_allreduce_8npus_1MB"):
        first, *others = sorted(CHAKRA.glob(f"{name}.*.et"))
        yield ReadableFile("Chakra trace", first.name, first.read_bytes(), simulated, tuple(others))

    def profiled(path: Path) -> object:
        return measured_step(read_trace(path), 0, None)

    profile = json.dumps(kineto_sample.document(), indent=1).encode()
    yield ReadableFile("Kineto trace", "trace.json", profile, profiled)
    yield ReadableFile("Kineto trace, gzipped", "trace.json.gz", gzip.compress(profile, mtime=0), profiled)

    def recorded(path: Path) -> object:
        found = FlightRecord.of(read_dumps([path]))
        return found.notes, found.sentences, found.tables(), found.to_dict(), found.pictures()

    dump = flight_recorder_by_hand.dump(1)
    yield ReadableFile("flight recorder, JSON", "nccl_trace_rank_1", json.dumps(dump, indent=1).encode(), recorded)
    yield ReadableFile("flight recorder, pickle", "nccl_trace_rank_1", pickle.dumps(dump, protocol=2), recorded)


def _models() -> Iterator[ReadableFile]:
    kinds = {
        "Hugging Face model": ("llama3_8b", "gpt2", "mixtral_8x7b", "deepseek_v3", "qwen3_30b_a3b"),
        "layer list": ("resnet50", "dit_xl_2", "unet"),
    }
    for kind, names in kinds.items():
        for name in names:
            traced = Path(__file__).parent / "traced" / f"{name}.json"
            source = traced if traced.exists() else find("model", name)
            yield ReadableFile(kind, source.name, source.read_bytes(), lambda path: total(load_model(str(path))))


def _topologies() -> Iterator[ReadableFile]:
    def built(path: Path) -> object:
        return build(str(path), min(4, facts(str(path)).max_ranks or 4), gpu="l4")

    graphml = io.BytesIO()
    nx.write_graphml(nx.node_link_graph(GRAPH, edges="edges"), graphml)
    for name in ("star_100g", "dgx_h100", "dragonfly", "mixed_links"):
        yield ReadableFile("topology", f"{name}.yaml", find("topology", name).read_bytes(), built)
    yield ReadableFile("graph", "graph.json", json.dumps(GRAPH, indent=1).encode(), built)
    yield ReadableFile("graph", "graph.graphml", graphml.getvalue(), built)
    yield ReadableFile("GPU", "gpu.yaml", find("gpu", "h100_sxm").read_bytes(), lambda path: load_gpu(str(path)))
    yield ReadableFile("framework", "own.yaml", FRAMEWORK, lambda path: load_framework(str(path)))
    shipped = find("framework", "torchtitan").read_bytes()
    yield ReadableFile("framework", "torchtitan.yaml", shipped, lambda path: load_framework(str(path)))


def _scenarios() -> Iterator[ReadableFile]:
    def checked(path: Path) -> object:
        scenario = load_scenario(path)
        return points(scenario) if scenario.plan is None else None

    for name in ("zero_stages", "ring_vs_parameter_server", "megatron_3d", "training_for_real"):
        yield ReadableFile("scenario", f"{name}.yaml", find("scenario", name).read_bytes(), checked)
    for name in ("checkpoint_interval", "spares"):
        yield ReadableFile("days", f"{name}.yaml", find("days", name).read_bytes(), lambda path: load_days(path, {}))
    yield ReadableFile("jobs", "jobs.yaml", find("jobs", "two_jobs_one_fabric").read_bytes(), load_jobs)


def _kernel_times(path: Path) -> list[float]:
    return [row.simulated(gpu_named(row.gpu)) / row.seconds for row in kernel_rows(path)]


def _tables() -> Iterator[ReadableFile]:
    array = io.BytesIO()
    np.save(array, np.arange(50))
    yield ReadableFile("measured runs", "runs.csv", RUNS, user_rows)
    for family, table in KERNELS.items():
        yield ReadableFile("measured kernels", f"{family}.csv", table, _kernel_times)
    yield ReadableFile("log of a training", "train.log", LOG, read_log)
    yield ReadableFile("nccl-tests", "sweep.log", SWEEP, read_sweep)
    yield ReadableFile("nccl-tests", "sweep.csv", TIMES, read_sweep)
    figures = json.dumps(gpu_figures(load_gpu("b200")), indent=1).encode()
    yield ReadableFile("measured GPU", "figures.json", figures, read_figures)
    yield ReadableFile("tokens", "tokens.npy", array.getvalue(), lambda path: read_tokens(path.name, path.parent))
    yield ReadableFile("tokens", "tokens.txt", b"to be or not to be", lambda path: read_tokens(path.name, path.parent))
