"""Tables of measured kernels: what a line means, what is said of a faulty line, and which kernels stand for a line."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import pytest

from simulator.basics.errors import ScenarioError
from simulator.calibration.kernel_rows import columns, kernel_rows
from simulator.calibration.measured_kernels import FAMILIES, MeasuredExperts, MeasuredKernel, gpu_named
from simulator.model.kernel import Attention, Elementwise, Matmul
from simulator.step.kernels.kernel_time import duration, grouped_duration, kernel_model

# A line of each source's own table, and the same line in this package's.
OWN = {
    "matmul": (
        "gpu,system,dtype,m,n,k,time_us,tflops_derived,kernel_source,framework,source,quantize_us,net_time_us,contains",
        'B300 SXM6 AC,b300_sxm,fp8,2048,1024,4096,40,430,torch_flow,T,s,10,30,"amax, scale and cast, and the matmul"',
        "gpu,dtype,m,n,k,time_us,source",
        "b300,fp8,2048,1024,4096,30,s",
    ),
    "experts": (
        "gpu,system,dtype,tokens,hidden,expert_ffn,top_k,experts,ep,tp,load,time_us,kernel_source,what,source",
        "H100 80GB HBM3,h,bfloat16,4096,2048,512,8,256,64,1,power_law_1.2,88.3,moe_torch_flow_nongated,one rank,s",
        "gpu,dtype,tokens,hidden,expert_ffn,top_k,experts,ep,tp,load,time_us,kernel,source",
        "h100_sxm,bfloat16,4096,2048,512,8,256,64,1,power_law_1.2,88.3,nongated,s",
    ),
    "attention": (
        "gpu,model_shape,backend,dtype,mask,sliding_window,batch,q_seq,kv_seq,q_heads,kv_heads,head_dim_qk,head_dim_vo,"
        "pass,deterministic_bwd,time_ms,tflops_printed,iterations,cudnn_frontend,cudnn_backend,source",
        "GB200,o,cudnn,bfloat16,causal,128,2,8192,8192,64,8,64,64,bwd,True,1.5,900,10,1.21.1,92200,s",
        "gpu,dtype,pass,mask,window,batch,q_seq,kv_seq,q_heads,kv_heads,head_dim_qk,head_dim_vo,deterministic,time_ms,"
        "library,source",
        "gb200,bfloat16,backward,causal,128,2,8192,8192,64,8,64,64,true,1.5,cudnn,s",
    ),
    "norms": (
        "gpu,model_shape,kernel,backend,dtype,rows_N,width_C,bias,pass,time_ms,effective_GBps,iterations,cudnn,source",
        "H200,l,rms_norm,torch_compile,bfloat16,16384,4096,False,bwd,0.065,6187,20,1.19.0,s",
        "gpu,kernel,implementation,pass,dtype,rows,width,time_ms,source",
        "h200,rms_norm,compiled,backward,bfloat16,16384,4096,0.065,s",
    ),
}
MATMUL = "gpu,dtype,m,n,k,time_us,contains"


def written(folder: Path, *lines: str) -> Path:
    path = folder / "mine.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def only(folder: Path, *lines: str) -> MeasuredKernel:
    (row,) = kernel_rows(written(folder, *lines))
    return row


@pytest.mark.parametrize("family", FAMILIES)
def test_a_table_of_the_catalog_has_a_source_and_finite_times(family: str) -> None:
    rows = kernel_rows(family)
    assert {row.family for row in rows} == {family}
    assert all(row.source for row in rows)
    for row in rows[::17]:
        assert 0.0 < row.simulated(gpu_named(row.gpu)) < math.inf


@pytest.mark.parametrize(("family", "count"), [("matmul", 1276), ("experts", 888), ("attention", 167), ("norms", 172)])
def test_no_line_of_a_table_is_lost(family: str, count: int) -> None:
    assert len(kernel_rows(family)) == count


@pytest.mark.parametrize("family", FAMILIES)
def test_a_line_of_a_source_means_a_line_of_the_table(family: str, tmp_path: Path) -> None:
    head, line, own_head, own_line = OWN[family]
    found, expected = only(tmp_path, head, line), only(tmp_path, own_head, own_line)
    gpu = gpu_named(expected.gpu)
    assert (found.family, found.gpu, found.label) == (family, expected.gpu, expected.label)
    assert found.seconds == expected.seconds
    assert found.kernels(gpu) == expected.kernels(gpu)


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("B300 SXM6 AC", "b300"), ("H100 80GB HBM3", "h100_sxm"), ("H100-80GB", "h100_sxm"), ("H200-141GB", "h200"),
        ("RTX PRO 6000 Blackwell Server Edition", "rtx_pro_6000"), ("A100-SXM4-80GB", "a100_sxm_80gb"),
    ],
)  # fmt: skip
def test_a_gpu_is_known_by_the_name_that_sources_have_for_it(name: str, gpu: str, tmp_path: Path) -> None:
    assert only(tmp_path, MATMUL, f"{name},bf16,8,8,8,1,").gpu == gpu


def test_a_matmul_takes_its_own_time_and_that_of_a_cast_which_was_measured_with_it(tmp_path: Path) -> None:
    gpu, model = gpu_named("b200"), kernel_model(gpu_named("b200"))
    matmul = duration(Matmul("", 4096, 1024, 8192), gpu, "float4_e2m1fn", ordered=True)
    # NVFP4: half a byte for each element, and a byte of scale for sixteen elements. A cast has a share of the
    # bandwidth of its own, and a time for each row.
    launch, share, row_time = (model.value(name) for name in ("launch", "cast_nvfp4_efficiency", "cast_nvfp4_row"))
    copied = duration(Elementwise("", 2 * 4096 * 8192, (0.5 + 1 / 16) * 4096 * 8192), gpu, "bfloat16") - launch
    cast = launch + copied / share + 4096 * row_time
    alone = only(tmp_path, MATMUL, "b200,nvfp4,4096,1024,8192,30,")
    both = only(tmp_path, MATMUL, "b200,nvfp4,4096,1024,8192,60,cast")
    assert alone.simulated(gpu) == pytest.approx(matmul, rel=1e-12)
    assert both.simulated(gpu) == pytest.approx(cast + matmul, rel=1e-12)
    assert (alone.label, both.label, both.seconds) == ("nvfp4", "nvfp4 with cast", pytest.approx(60e-6))
    # Both times known: the one without the cast counts.
    net = only(tmp_path, f"{MATMUL},net_time_us", "b200,nvfp4,4096,1024,8192,60,cast,25")
    assert (net.label, net.seconds) == ("nvfp4", pytest.approx(25e-6))
    assert net.simulated(gpu) == alone.simulated(gpu)


@pytest.mark.parametrize(("dtype", "blocks"), [("fp8", False), ("fp8_block", True), ("mxfp8", True)])
def test_a_format_with_scales_of_blocks_has_the_kernels_of_blocks(dtype: str, blocks: bool, tmp_path: Path) -> None:
    gpu = gpu_named("b200")
    expected = duration(Matmul("", 4096, 1024, 8192), gpu, "float8_e4m3fn", ordered=True, blocks=blocks)
    assert only(tmp_path, MATMUL, f"b200,{dtype},4096,1024,8192,30,").simulated(gpu) == expected


EXPERTS = "gpu,dtype,tokens,hidden,expert_ffn,top_k,experts,ep,tp,load,time_us,kernel"


def test_experts_of_a_rank_are_two_grouped_matmuls_and_what_moves_tokens(tmp_path: Path) -> None:
    # 4096 tokens, each for 8 of 64 experts; a rank has 16 experts with 512 tokens each, and half of each expert.
    gpu, values = gpu_named("h200"), "h200,bfloat16,4096,2048,1536,8,64,4,2"
    tokens = 2.0 * 16 * 512
    for kernel, inner in (("cutlass", 1536), ("moe_torch_flow_nongated", 768)):
        expected = (
            grouped_duration(gpu, "bfloat16", [512] * 16, inner, 2048)
            + duration(Elementwise("", tokens * inner, tokens * 768), gpu, "bfloat16")
            + grouped_duration(gpu, "bfloat16", [512] * 16, 2048, 768)
            # Tokens are sorted by expert before, and added after: read and written twice.
            + duration(Elementwise("", 2 * tokens * 2048, 2 * tokens * 2048), gpu, "bfloat16")
            + 22e-6  # routing and other small kernels
        )
        row = only(tmp_path, EXPERTS, f"{values},balanced,100,{kernel}")
        assert row.simulated(gpu) == pytest.approx(expected, rel=1e-12)


def test_popular_experts_receive_more_tokens_and_each_token_at_most_once(tmp_path: Path) -> None:
    """A rank has the most popular expert, and an even sample of the others."""
    loads = {}
    for load in ("balanced", "power_law_0.8", "power_law_1.2"):
        row = only(tmp_path, EXPERTS, f"h200,bfloat16,4096,2048,512,8,256,8,1,{load},88,cutlass")
        assert isinstance(row, MeasuredExperts)
        assert len(row.rows) == row.local_experts == 32
        assert 1 <= min(row.rows) <= max(row.rows) <= 4096
        loads[load] = row.rows
    assert loads["balanced"] == (128,) * 32
    popular = [max(rows) for rows in loads.values()]
    assert popular == sorted(popular)
    assert popular[0] < popular[1] < popular[2]
    # One expert for each rank: the fullest rank has the most popular one.
    (alone,) = only(tmp_path, EXPERTS, "h200,bfloat16,4096,2048,512,8,256,256,1,power_law_1.2,88,cutlass").rows
    assert alone == popular[2]


def test_attention_has_the_newest_kernels_of_its_gpu_and_the_mean_width(tmp_path: Path) -> None:
    head = "gpu,dtype,pass,mask,batch,q_seq,kv_seq,q_heads,kv_heads,head_dim_qk,head_dim_vo,time_ms"
    for name, generation in (("h200", 3), ("gb200", 4)):
        gpu = gpu_named(name)
        kernel = Attention("", 2, 128, 128, 4096, 160, causal=True, backward=True)
        row = only(tmp_path, head, f"{name},bfloat16,bwd,causal,2,4096,4096,128,128,192,128,5")
        assert row.simulated(gpu) == duration(kernel, gpu, "bfloat16", attention_generation=generation)


@pytest.mark.parametrize(("which", "arrays"), [("forward", 2), ("backward", 3)])
def test_a_norm_takes_the_time_of_its_bytes_at_the_rate_of_its_implementation(
    which: str, arrays: int, tmp_path: Path
) -> None:
    head = "gpu,kernel,implementation,pass,dtype,rows,width,time_ms"
    for name in ("gb200", "a100_sxm_80gb"):
        gpu, model = gpu_named(name), kernel_model(gpu_named(name))
        launch = model.value("launch")
        copied = duration(Elementwise("", arrays * 2 * 16384 * 4096, 0), gpu, "bfloat16") - launch
        share, fixed = (
            model.value(f"norm_cudnn_{which}_efficiency", 1.0),
            model.value(f"norm_cudnn_{which}_prologue", 0.0),
        )
        # Without constants of its own, a norm takes the time of a copy.
        assert (share < 1.0) == (name == "gb200")
        row = only(tmp_path, head, f"{name},rms_norm,cudnn,{which},bfloat16,16384,4096,0.042")
        assert row.simulated(gpu) == pytest.approx(launch + copied / share + fixed, rel=1e-12)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("b20,fp8,8,8,8,1,", "line 2: gpu: got 'b20'; did you mean 'b200'"),
        ("b200,fp9,8,8,8,1,", "line 2: dtype: got 'fp9'; one of bfloat16, float16, float32, fp8, fp8_block, mxfp8"),
        ("a100_sxm_80gb,fp8,8,8,8,1,", "line 2: dtype: got 'fp8'; a100_sxm_80gb has rates for bfloat16, float16"),
        ("b200,fp8,8.5,8,8,1,", "line 2: m: got '8.5'; must be a whole number"),
        ("b200,fp8,8,0,8,1,", "line 2: n: got '0'; must be at least 1"),
        ("b200,fp8,8,8,,1,", "line 2: k: is empty; every line needs a value"),
        ("b200,fp8,8,8,8,1 us,", "line 2: time_us: got '1 us'; must be a number, without its unit"),
        ("b200,fp8,8,8,8,1e-9,", "line 2: time_us: is 1e-15 s; must be from 1 ns to 10^6 s"),
        ("b200,fp8,8,8,8,1,scale", "line 2: contains: got 'scale'; must be cast or empty"),
        ("b200,bfloat16,8,8,8,1,cast", "line 2: contains: got 'cast' with bfloat16, into which nothing is cast"),
        ("b200,fp8,8,8,8,1,,9", "line 2: got more cells than the 7 columns"),
    ],
)
def test_a_fault_of_a_cell_is_a_line(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=re.escape(said)) as caught:
        kernel_rows(written(tmp_path, MATMUL, line))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("family", "changes", "said"),
    [
        ("experts", {"ep": "3"}, "ep: got 3; must divide experts, 256"),
        ("experts", {"tp": "5"}, "tp: got 5; must divide expert_ffn, 512"),
        ("experts", {"top_k": "512"}, "top_k: got 512; must be at most experts, 256"),
        ("experts", {"experts": "1000000"}, "experts: got 1000000; must be at most 65536"),
        ("experts", {"load": "zipf"}, "load: got 'zipf'; must be balanced, or power_law_ALPHA such as power_law_1.2"),
        ("attention", {"kv_heads": "7"}, "kv_heads: got 7; must divide q_heads, 64"),
        ("attention", {"mask": "none"}, "window: got 128 with mask none; a window needs mask causal"),
        ("attention", {"mask": "casual"}, "mask: got 'casual'; one of causal, none; did you mean 'causal'?"),
        ("attention", {"pass": "both"}, "pass: got 'both'; one of backward, forward"),
        ("attention", {"dtype": "nvfp4"}, "dtype: got 'nvfp4'; one of bfloat16, float16, fp8, mxfp8"),
        ("norms", {"implementation": "triton"}, "implementation: got 'triton'; one of compiled, cudnn, eager"),
        (
            "norms",
            {"kernel": "rmsnorm"},
            "kernel: got 'rmsnorm'; one of layer_norm, rms_norm; did you mean 'rms_norm'?",
        ),
    ],
)
def test_cells_that_contradict_each_other_are_named(
    family: str, changes: dict[str, str], said: str, tmp_path: Path
) -> None:
    *_, head, line = OWN[family]
    (cells,) = csv.DictReader([head, line])
    cells |= changes
    path = written(tmp_path, head, ",".join(cells.values()))
    with pytest.raises(ScenarioError) as caught:
        kernel_rows(path)
    assert str(caught.value) == f"{path} line 2: {said}"


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["gpu,dtype,m,n,time_us"], "line 1: k: is missing; every line of a table of matmul needs it"),
        ([f"{MATMUL},libary"], "line 1: libary: no such column in a table of matmul; one of batch, contains, dtype,"),
        ([f"{MATMUL},time_us"], "line 1: time_us: names 2 columns; keep one of them"),
        (
            ["size,seconds"],
            "line 1: the columns belong to no table of kernels; the tables need: matmul (gpu, dtype, m,",
        ),
        ([""], "line 1: the columns belong to no table of kernels"),
        ([MATMUL], "mine.csv: has no rows"),
    ],
)
def test_a_fault_of_the_columns_is_a_line(lines: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=re.escape(said)) as caught:
        kernel_rows(written(tmp_path, *lines))
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_that_does_not_exist_is_compared_with_the_tables() -> None:
    with pytest.raises(ScenarioError, match=r"matmull: no such file; .* did you mean 'matmul'"):
        kernel_rows("matmull")


def test_every_family_has_a_line_here() -> None:
    assert set(OWN) == set(FAMILIES)
    for family, (*_, head, _) in OWN.items():
        assert set(head.split(",")) <= set(columns(FAMILIES[family]))
