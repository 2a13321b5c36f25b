"""A profile beside a simulated step: time by kind, order, first differences; and which traces are refused."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.report.traces import kineto
from simulator.run.simulate import SimulatedRun, simulate
from simulator.scenario.load import load_scenario
from simulator.testing.looking import check
from simulator.traces.gpu_work import GpuStep, GpuWork
from simulator.traces.json_stream import JsonStream
from simulator.traces.kineto.comparison import TraceComparison, compared
from simulator.traces.kineto.comparison_picture import pictures
from simulator.traces.kineto.kernel_names import kind_of_collective, kind_of_kernel
from simulator.traces.kineto.measured_step import MeasuredStep, measured_step
from simulator.traces.kineto.profile_reader import read_trace
from simulator.traces.kineto.simulated_step import simulated_steps
from tests.commands import Command, commands_in
from tests.traces.kineto_sample import PERIOD_US, STEPS, WORK, document, written

GPT2 = {"model": "gpt2", "seq_len": 256, "precision": {"params": "bfloat16"}}
H100 = {"topology": "dgx_h100", "world_size": 8}
OWN = {
    "ddp": {"cluster": H100, "training": GPT2 | {"sharding": "ddp", "gradient_accumulation_steps": 2}},
    "fsdp": {"cluster": H100, "training": GPT2 | {"sharding": "zero3", "activation_checkpointing": "full"}},
    "pipeline": {
        "cluster": H100,
        "training": GPT2 | {"parallelism": {"tp": 2, "pp": 2, "schedule": "1f1b"}, "gradient_accumulation_steps": 4},
    },
    "context": {"cluster": H100, "training": GPT2 | {"parallelism": {"cp": 4}, "seq_len": 1024}},
    "zero bubble": {
        "cluster": H100,
        "training": GPT2 | {"parallelism": {"pp": 4, "schedule": "zb_h1"}, "gradient_accumulation_steps": 8},
    },
    "issued by the host": {"cluster": H100, "training": GPT2 | {"framework": "nanotron"}},
    "offload": {"cluster": H100, "training": GPT2 | {"sharding": "zero2", "offload": {"what": "optimizer"}}},
    "stragglers": {"cluster": H100 | {"stragglers": {3: 1.5}}, "training": GPT2 | {"sharding": "zero1"}},
    "servers": {
        "cluster": {"topology": "star_100g", "world_size": 4},
        "training": GPT2 | {"sharding": {"strategy": "parameter_server", "servers": 2}},
    },
    "collective": {"cluster": H100, "collective": {"operation": "all_to_all", "size": "1 MiB"}},
}  # fmt: skip


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def simulated(data: dict[str, Any]) -> SimulatedRun:
    return simulate(load_scenario({"name": "own"} | data), limit_memory=False)


def traced(run: SimulatedRun, folder: Path, ranks: list[int]) -> list[MeasuredStep]:
    program = run.plan.program
    files = kineto.write(run.timeline, program.collectives(), folder, ranks=ranks, kernels=program.kernels)
    traces = [read_trace(path) for path in files]
    assert [trace.rank for trace in traces] == ranks
    return [measured_step(trace, rank, None) for trace, rank in zip(traces, ranks, strict=True)]


@pytest.mark.parametrize("name", OWN)
@pytest.mark.filterwarnings("ignore::simulator.basics.errors.ScenarioWarning")
def test_a_trace_of_the_simulator_does_not_differ_from_its_simulation(tmp_path: Path, name: str) -> None:
    run = simulated(OWN[name])
    ranks = [0, run.scenario.cluster.world_size - 1]
    found = compared(traced(run, tmp_path, ranks), simulated_steps(run.plan.program, run.timeline, ranks))
    assert (found.order, found.time) == (None, None)
    assert [one.kind for one in found.times if one.differs] == []
    assert not found.differs
    assert found.sentences[0].startswith("The simulated step does not differ from the trace")
    # The kinds are those of the program: nothing of a training is of unknown kind.
    kinds = {one.kind for one in found.times}
    assert ("matmul" in kinds) is (name != "collective")
    assert "other kernels" not in kinds


def test_another_simulation_differs(tmp_path: Path) -> None:
    run, other = simulated(OWN["fsdp"]), simulated({"cluster": H100, "training": GPT2 | {"sharding": "ddp"}})
    found = compared(traced(run, tmp_path, [0]), simulated_steps(other.plan.program, other.timeline, [0]))
    assert found.differs
    assert found.order is not None
    # FSDP gathers parameters before the first kernels, and DDP communicates nothing before the backward pass.
    assert (found.order.among, found.order.place, found.order.about) == ("collectives", 0, "kind")
    assert found.order.measured is not None
    assert found.order.simulated is not None
    assert (found.order.measured.kind, found.order.simulated.kind) == ("all_gather", "all_reduce")


def by_hand(tmp_path: Path, step: int | None = None) -> GpuStep:
    return measured_step(read_trace(written(tmp_path)), 3, step).step


def test_the_time_by_kind_of_a_profile_is_that_of_its_kernels(tmp_path: Path) -> None:
    totals = by_hand(tmp_path).totals()
    # [us], added by hand from tests/traces/kineto_sample.py.
    assert {kind: (count, time / 1e3) for kind, (count, time) in totals.items()} == {
        "all_gather": (1, 60.0),
        "reduce_scatter": (1, 70.0),
        "matmul": (2, 100.0 + 80.0),
        "attention": (1, 50.0),
        "elementwise": (3, 20.0 + 5.0 + 40.0),
        "other kernels": (1, 10.0),
        "optimizer": (2, 33.0 + 7.0),
        "copies": (2, 4.0 + 2.0),
    }


def test_exposed_and_idle_time_of_a_profile(tmp_path: Path) -> None:
    step = by_hand(tmp_path)
    # The gather runs alone for 40 us, the scatter from 314 to 330 and from 370 to 384.
    assert step.exposed == 1000 * (40 + 16 + 14)
    # A copy to the host is no communication; it runs alone for 2 us.
    assert step.exposed_copies == 1000 * 2
    # The GPU lags behind the host: the step lasts from its first operation to the next step's first.
    assert step.duration == 1000 * PERIOD_US
    gaps = (215 - 210) + (400 - 384) + (445 - 440) + (PERIOD_US - 447)
    assert step.idle == 1000 * gaps


def test_a_step_is_chosen_by_number_or_by_median_duration(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path))
    assert measured_step(trace, 3, None).number == STEPS[1]
    last = measured_step(trace, 3, STEPS[2])
    assert last.number == STEPS[2]
    # Behind the last step there is no next one: it ends with its last operation.
    assert last.step.duration == 1000 * (WORK[-1].start + WORK[-1].duration)
    with pytest.raises(ScenarioError, match=r"--step: got 4; .* has the steps 7, 8, 9"):
        measured_step(trace, 3, 4)


def test_without_annotations_the_whole_trace_is_compared(tmp_path: Path) -> None:
    data = document()
    data["traceEvents"] = [event for event in data["traceEvents"] if event.get("cat") != "user_annotation"]
    trace = read_trace(written(tmp_path, data))
    whole = measured_step(trace, 3, None)
    assert whole.number is None
    assert len(whole.step.work) == len(STEPS) * len(WORK)
    assert whole.step.duration == 1000 * (2 * PERIOD_US + WORK[-1].start + WORK[-1].duration)
    with pytest.raises(ScenarioError, match=r"--step: got 7, but .* has no ProfilerStep annotations"):
        measured_step(trace, 3, 7)


def test_a_list_of_events_and_annotations_of_the_gpu_alone_are_read(tmp_path: Path) -> None:
    events = [
        event for event in document()["traceEvents"] if event.get("cat") not in ("user_annotation", "cuda_runtime")
    ]
    begin = min(event["ts"] for event in events if event.get("cat") == "kernel")
    note = {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#7", "pid": 3, "tid": 7}
    events.append({**note, "ts": begin, "dur": 447.0, "args": {}})
    trace = read_trace(written(tmp_path, events, "rank_3.json"))
    # The file's name has the rank.
    assert trace.rank == 3
    step = measured_step(trace, 3, None)
    assert (step.number, len(step.step.work), step.step.duration) == (7, len(WORK), 447_000)


def test_kernels_of_a_graph_belong_to_the_step_that_launched_it(tmp_path: Path) -> None:
    host = {"ph": "X", "pid": 1, "tid": 1}
    gpu = {"ph": "X", "pid": 0, "tid": 7}
    events: list[dict[str, Any]] = []
    for number, begin in enumerate((0.0, 100.0)):
        events.append({**host, "cat": "user_annotation", "name": f"ProfilerStep#{number}", "ts": begin, "dur": 90.0})
        launch = {"correlation": number + 5}
        events.append(
            {**host, "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": begin + 1, "dur": 1, "args": launch}
        )
        # All kernels of a graph have the correlation of its launch; the last begins during the next step's annotation.
        events += [
            {**gpu, "cat": "kernel", "name": "gemm", "ts": begin + at, "dur": 20.0, "args": {**launch, "graph id": 1}}
            for at in (10.0, 40.0, 105.0)
        ]
    step = measured_step(read_trace(written(tmp_path, {"traceEvents": events})), 0, 0).step
    assert [(one.start, one.end) for one in step.work] == [(0, 20_000), (30_000, 50_000), (95_000, 115_000)]
    # From the first kernel at 10 us to the first kernel of the next step at 110 us; the last kernel ends at 125 us.
    assert step.duration == 115_000


def test_categories_of_older_versions_are_read(tmp_path: Path) -> None:
    events = [
        {"ph": "X", "cat": "Kernel", "name": "volta_sgemm_128x32_nn", "pid": 0, "tid": 7,
         "ts": 1650000000000005, "dur": 30},
        {"ph": "X", "cat": "Memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "pid": 0, "tid": 7,
         "ts": 1650000000000040, "dur": 4},
    ]  # fmt: skip
    step = measured_step(read_trace(written(tmp_path, {"traceEvents": events})), 0, None).step
    # Whole microseconds since 1970 are exact.
    assert (step.duration, step.totals()) == (39_000, {"matmul": (1, 30_000), "copies": (1, 4_000)})


@pytest.mark.parametrize(
    "name",
    ["Memcpy HtoD (Pinned -> Device)", "Memcpy DtoH (Device -> Pageable)", "MEMORY_COPY_HOST_TO_DEVICE",
     "MEMORY_COPY_DEVICE_TO_HOST", "CopyHostToDevice", "CopyDeviceToHost"],
)  # fmt: skip
def test_a_copy_between_host_and_gpu_neither_computes_nor_communicates(tmp_path: Path, name: str) -> None:
    # A gather from 0 to 30 us, a copy from 20 to 50 us.
    events = [
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel_AllGather_RING_LL", "pid": 0, "tid": 7, "ts": 0, "dur": 30},
        {"ph": "X", "cat": "gpu_memcpy", "name": name, "pid": 0, "tid": 9, "ts": 20, "dur": 30},
    ]
    step = measured_step(read_trace(written(tmp_path, {"traceEvents": events})), 0, None).step
    assert step.totals() == {"all_gather": (1, 30_000), "copies": (1, 30_000)}
    # The copy hides nothing of the gather, and counts where nothing else runs.
    assert (step.exposed, step.exposed_copies, step.kernels) == (30_000, 20_000, [])


def work(kind: str, start: int, end: int, nbytes: int | None = None) -> GpuWork:
    return GpuWork(kind, start, end, ((kind, 1.0),), nbytes is not None, nbytes)


def versus(measured: list[GpuWork], simulated: list[GpuWork], *, ambiguous: bool = False) -> TraceComparison:
    step = GpuStep.of(0, 1_000_000, measured)
    return compared([MeasuredStep(None, step, ambiguous)], [GpuStep.of(0, 1_000_000, simulated)])


def test_the_first_difference_is_found_in_kind_bytes_and_time() -> None:
    same = [work("matmul", 0, 100_000), work("all_reduce", 0, 50_000, 100)]
    assert not versus(same, same).differs
    more = versus([*same, work("attention", 100_000, 200_000)], same)
    assert more.order is not None
    assert (more.order.place, more.order.measured is not None, more.order.simulated) == (1, True, None)
    larger = versus(same, [same[0], work("all_reduce", 0, 50_000, 102)])
    assert larger.order is not None
    assert (larger.order.about, larger.order.among) == ("bytes", "collectives")
    # 1 % more bytes are padding.
    assert versus(same, [same[0], work("all_reduce", 0, 50_000, 101)]).order is None
    slow = versus(same, [work("matmul", 0, 120_000), same[1]])
    assert slow.order is None
    assert slow.time is not None
    assert (slow.time.about, slow.time.among, slow.time.place) == ("time", "kernels", 0)


@pytest.mark.parametrize(("end", "differs"), [(12, False), (13, True)])
def test_rounding_both_ends_of_an_operation_makes_no_difference(end: int, *, differs: bool) -> None:
    """Begin and end have whole nanoseconds each: 2 ns may be rounding, 3 ns are more than 10 % of the time too."""
    measured, simulated = (GpuStep.of(0, 20, [work("matmul", 0, last)]) for last in (10, end))
    found = compared([MeasuredStep(None, measured, False)], [simulated])
    assert (found.time is not None) is differs


def test_kernels_of_a_kind_are_one_run_however_many_they_are() -> None:
    cut = [work("matmul", 0, 30_000), work("matmul", 40_000, 60_000), work("attention", 60_000, 70_000)]
    whole = [work("matmul", 0, 50_000), work("attention", 60_000, 70_000)]
    found = versus(cut, whole)
    assert (found.order, found.time) == (None, None)
    (matmul,) = [one for one in found.times if one.kind == "matmul"]
    assert (matmul.counts, matmul.differs) == ((2.0, 1.0), False)


def test_sends_without_a_name_are_compared_with_every_exchange_that_is_sent() -> None:
    measured, simulated = [work("send/receive", 0, 10, 5)], [work("all_to_all", 0, 10, 5)]
    assert not versus(measured, simulated, ambiguous=True).differs
    assert versus(measured, simulated).differs


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", "matmul"),
        ("Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1", "matmul"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "matmul"),
        ("void split_embedding_codegen_forward_unweighted_kernel<fbgemm_gpu::Weight, float>", "elementwise"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(cudnn::ops::x)", "elementwise"),
        ("void at::native::(anonymous namespace)::GammaBetaBackwardCUDAKernel<float, float>", "elementwise"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float>", "matmul"),
        ("triton_tem_fused_addmm_12", "matmul"),
        ("sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "matmul"),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<pytorch_flash::Flash_bwd>", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_3_64x192x128_4x1x1", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel)", "attention"),
        ("triton_poi_fused__scaled_dot_product_flash_attention_backward_mul_silu_5", "elementwise"),
        ("void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float>", "elementwise"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<...>", "elementwise"),
        ("void at::native::multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<float>>", "elementwise"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>>", "optimizer"),
        ("void at::native::multi_tensor_apply_kernel<TensorListMetadata<1>, LpNormFunctor<float>>", "optimizer"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_bf16", "all_reduce"),
        ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "broadcast"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send/receive"),
        ("void deep_ep::internode::dispatch<false, 8, false>", "all_to_all"),
        ("mystery", "other kernels"),
    ],
)
def test_kernels_are_of_the_kind_that_their_name_says(name: str, kind: str) -> None:
    assert kind_of_kernel(name) == kind


@pytest.mark.parametrize(
    ("operation", "kind"),
    [("allreduce_coalesced", "all_reduce"), ("all_gather_into_tensor_coalesced", "all_gather"),
     ("nccl:_reduce_scatter_base", "reduce_scatter"), ("all_to_allv", "all_to_all"), ("recv 0<-1", "send/receive")],
)  # fmt: skip
def test_collectives_have_pytorchs_names(operation: str, kind: str) -> None:
    assert kind_of_collective(operation, "ncclDevKernel_SendRecv") == kind


def test_the_command_prints_and_writes_the_comparison(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(json.dumps({"name": "own"} | OWN["fsdp"]), encoding="utf-8")
    trace = written(tmp_path)
    answer = cli("compare-trace", "own.yaml", trace, "--out", "out", "--step", 8)
    assert (answer.code, answer.err) == (0, "")
    assert "own: " in answer.out
    assert "(ProfilerStep#8)" in answer.out
    assert " 60 us" in next(line for line in answer.out.splitlines() if "all_gather" in line)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "answer.json", "first_differences.csv", "operations.csv", "plots", "report.html", "time_by_kind.csv",
    ]  # fmt: skip
    operations = (tmp_path / "out" / "operations.csv").read_text().splitlines()
    # The norm of the trace beside the embedding of the simulation, both elementwise.
    assert operations[1].startswith("3,kernels,0,triton_per_fused__to_copy_mean_pow_rsqrt_")
    assert ",elementwise,,4e-05,2e-05,embedding forward 0,elementwise,," in operations[1]
    rows = {row["kind"]: row for row in cli("compare-trace", "own.yaml", trace, "--json").data["times"]}
    assert rows["matmul"]["measured_s"] == pytest.approx(180e-6, rel=1e-12)
    run = simulate(load_scenario(tmp_path / "own.yaml"))
    assert rows["step"]["simulated_s"] == pytest.approx(run.report.to_dict()["step_time_s"], abs=1e-9)


def test_a_run_is_compared_with_its_own_trace(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(json.dumps({"name": "own"} | OWN["fsdp"]), encoding="utf-8")
    assert cli("run", "own.yaml", "--trace", "--out", "run").code == 0
    answer = cli("compare-trace", "run", "run/trace/rank0.json.gz", "run/trace/rank7.json.gz")
    assert (answer.code, answer.err) == (0, "")
    assert "does not differ from the trace" in answer.out
    # Compared with another rank, nothing differs either, because all ranks do the same.
    assert "does not differ" in cli("compare-trace", "run", "run/trace/rank0.json.gz", "--rank", 5).out
    assert "--set: cannot change the run run" in cli("compare-trace", "run", "x.json", "--set", "seed=1").err
    # The hint names a job of another size.
    answer = cli("compare-trace", "own.yaml", "run/trace/rank0.json.gz", "--set", "cluster.world_size=4")
    assert "is of a job with 8 ranks, and the scenario has 4" in answer.err


def test_the_picture_can_be_read(tmp_path: Path) -> None:
    run = simulated(OWN["fsdp"])
    found = compared(
        [measured_step(read_trace(written(tmp_path)), 3, None)], simulated_steps(run.plan.program, run.timeline, [3])
    )
    (picture,) = pictures(found)
    check(picture.figure, picture.name)


def test_faults_of_the_command_are_one_line(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(json.dumps({"name": "own"} | OWN["fsdp"]), encoding="utf-8")
    trace = written(tmp_path)
    other = written(tmp_path, {"traceEvents": document()["traceEvents"], "distributedInfo": {"rank": 8}}, "other.json")
    for arguments, line in (
        (["own.yaml", trace, trace], "--rank: two traces are of rank 3; give each its rank with --rank"),
        (["own.yaml", other], "is of rank 8, but the scenario has the ranks 0 .. 7"),
        (["own.yaml", trace, "--rank", 1, "--rank", 2], "--rank: got 2 ranks for 1 traces"),
        (["both.yaml", trace], "both.yaml: has 2 points, and a trace is compared with one; choose values with --set"),
        (["own.yaml", "nowhere.json"], "nowhere.json: cannot be read"),
    ):
        answer = cli("compare-trace", *arguments)
        assert (answer.code, len(answer.err.splitlines())) == (2, 1), answer.err
        assert line in answer.err


FAULTS = [
    (b"", "ends in the middle"),
    (b"hello", "begins with 'h'"),
    (b"{}", "has no list traceEvents"),
    (b'{"traceEvents": {}}', "must be '\\['"),
    (b'{"traceEvents": []}', "has no GPU operations"),
    (b'{"traceEvents": [{}', "ends in the middle"),
    (b'{"traceEvents": [' + b"[" * 100_000, "nested too deeply"),
    (b'{"traceEvents": [' + b"[" * 60 + b"]" * 60 + b"]}", "nested too deeply"),
    (b'{"traceEvents": [' + b"9" * 5000 + b"]}", "not JSON"),
    (b'{"traceEvents": []} x', "text follows the end"),
    (b'{"traceEvents": [1 2]}', "must be ','"),
    (b"\x1f\x8b nothing", "cannot be read"),
    (gzip.compress(b'{"traceEvents": [')[:-9], "cannot be read"),
    (b'{"a": "' + b"x" * (2**24 + 2**21) + b'"}', "more than 16 Mi characters"),
]


@pytest.mark.parametrize(("content", "line"), FAULTS, ids=[line for _, line in FAULTS])
def test_a_file_that_is_no_trace_is_refused_in_one_line(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=line) as caught:
        read_trace(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_small_file_that_unpacks_to_a_large_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * 10_000_000))
    with pytest.raises(ScenarioError, match="has more than 4 MiB of text"):
        list(JsonStream(path, most_text=2**22).events())
    # A gzipped file may have 300 characters for each of its bytes, and 64 MiB.
    path.write_bytes(gzip.compress(b"[" + b" " * 2**27, compresslevel=9))
    with pytest.raises(ScenarioError, match="MiB of text"):
        list(JsonStream(path).events())


def test_a_large_trace_is_read_piece_by_piece(tmp_path: Path) -> None:
    event = json.dumps(
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1.0, "dur": 1.0, "args": {"x": "y" * 400}}
    )
    path = tmp_path / "large.json"
    path.write_text("[" + ",\n".join([event] * 30_000) + "]", encoding="utf-8")
    assert path.stat().st_size > 14 * 2**20
    tracemalloc.start()
    try:
        assert sum(1 for _ in JsonStream(path).events()) == 30_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 2**20


def mutant(text: bytes, chance: random.Random) -> bytes:
    """A trace with a cut, other bytes, other numbers, or another word."""
    kind, at = chance.randrange(4), chance.randrange(len(text))
    if kind == 0:
        return text[:at]
    if kind == 1:
        return bytes(chance.randrange(256) if chance.random() < 0.001 else byte for byte in text)
    if kind == 2:
        words = (b"-1", b"1e999", b"NaN", b"null", b"[]", b"{}", b'"x"', b"true", b"99999999999999999999", b"-0.0")
        place = text.find(b": ", at) + 2
        return text[:place] + chance.choice(words) + text[text.find(b",", place) :]
    words = (b'"ts"', b'"dur"', b'"name"', b'"cat"', b'"args"', b'"kernel"', b'"correlation"', b'"device"', b'"dtype"')
    word = chance.choice(words)
    return text.replace(word, b'"other"', chance.randrange(1, 40))


def test_500_damaged_traces_are_compared_or_refused_in_one_line(tmp_path: Path) -> None:
    text = json.dumps(document()).encode()
    step = GpuStep.of(3, 1000, [work("matmul", 0, 100)])
    path, refused = tmp_path / "trace.json", []
    for seed in range(500):
        path.write_bytes(mutant(text, random.Random(seed)))
        try:
            found = compared([measured_step(read_trace(path), 3, None)], [step])
            json.dumps(found.to_dict(), allow_nan=False)
            assert found.sentences
        except ScenarioError as error:
            refused.append(str(error))
    assert all(line.isprintable() for line in refused)
