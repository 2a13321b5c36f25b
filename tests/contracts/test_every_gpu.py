"""What holds for every GPU of the catalog."""

from __future__ import annotations

import pytest

from simulator.basics import dtypes, registry
from simulator.cluster.build import build
from simulator.cluster.chassis import machine_of
from simulator.cluster.gpu_file import load_gpu
from simulator.importing.machines.gpu_kinds import gpu_kind
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.settings import Setting

GPUS = registry.names("gpu")
# Bandwidth of a wire in one direction [GB/s], after ml-engineering (S. Bekman), accelerator tables.
WIRES = {
    "nvlink3": 300, "nvlink4": 450, "nvlink5": 900, "infiniband_hdr": 25, "infiniband_ndr": 50, "infiniband_xdr": 100,
    "xgmi_mi300x": 64, "pcie4_x16": 31.5, "pcie5_x16": 63, "ethernet_100g": 12.5, "efa_100g": 12.5,
}  # fmt: skip

# Matrix-unit rate of float16, or of bfloat16 without float16 [TFLOP/s], HBM [GB/s], scale-up [GB/s, one direction],
# SMs: the vendors' data sheets.
TABLE = {
    "v100_sxm_32gb": (125, 900, 150, 80),
    "a100_sxm_40gb": (312, 1555, 300, 108),
    "a100_sxm_80gb": (312, 2039, 300, 108),
    "a100_pcie_80gb": (312, 1935, 0, 108),
    "h100_sxm": (989.4, 3350, 450, 132),
    "h100_pcie": (756, 2000, 0, 114),
    "h200": (989.4, 4800, 450, 132),
    "b200": (2250, 8000, 900, 148),
    "mi300x": (1307.4, 5300, 448, 304),
    "l4": (121, 300, 0, 58),
    "rtx_4090": (165.2, 1008, 0, 128),
    "rtx_3090": (71, 936, 0, 82),
    "rtx_5090": (209.5, 1792, 0, 170),
    "rtx_pro_6000": (503.8, 1792, 0, 188),
    "l40s": (362.05, 864, 0, 142),
    "gh200_96gb": (989.4, 4000, 450, 132),
    "gh200_144gb": (989.4, 4900, 450, 132),
    "mi250x": (191.5, 1638, 350, 110),
    "mi325x": (1307.4, 6000, 448, 304),
    "b300": (2250, 8000, 900, 148),
    "gb300": (2500, 8000, 900, 148),
    "h800_sxm": (989.4, 3350, 200, 132),
    "h20": (148, 4000, 450, 78),
    "a800_sxm_80gb": (312, 2039, 200, 108),
    "mi355x": (2516.6, 8000, 535.5, 256),
    "mi350x": (2306.9, 8000, 535.5, 256),
    "a10": (125, 600, 0, 72),
    "a40": (149.7, 696, 0, 84),
    "rtx_a6000": (154.8, 768, 0, 84),
    "t4": (65, 320, 0, 40),
    "v100_sxm_16gb": (125, 900, 150, 80),
    "rtx_2080_ti": (53.8, 616, 0, 68),
    "rtx_5060_ti": (47.4, 448, 0, 36),
    "tpu_v5p": (459, 2765, 600, 64),
    "tpu_v6e": (918, 1638, 400, 32),
    "tpu_ironwood": (2307, 7380, 600, 64),
}
# Matrix operations a clock and SM, each a multiplication and an addition: dense float16 [FLOP].
PER_CLOCK = {"v100_sxm_32gb": 8 * 64 * 2, "a100_sxm_80gb": 4 * 256 * 2, "h100_sxm": 4 * 512 * 2, "l4": 4 * 128 * 2,
             "mi300x": 4 * 256 * 2, "mi325x": 4 * 256 * 2, "rtx_3090": 4 * 64 * 2, "rtx_4090": 4 * 64 * 2,
             "rtx_5090": 4 * 64 * 2, "rtx_pro_6000": 4 * 128 * 2, "h800_sxm": 4 * 512 * 2, "a800_sxm_80gb": 4 * 256 * 2,
             "mi355x": 4 * 512 * 2, "mi350x": 4 * 512 * 2, "a10": 4 * 128 * 2, "a40": 4 * 128 * 2,
             "rtx_a6000": 4 * 128 * 2, "t4": 8 * 64 * 2, "v100_sxm_16gb": 8 * 64 * 2, "rtx_2080_ti": 8 * 32 * 2,
             "rtx_5060_ti": 4 * 64 * 2, "mi250x": 4 * 128 * 2}  # fmt: skip


def test_the_catalog_holds_the_gpus_of_the_table() -> None:
    assert set(TABLE) <= set(GPUS)


@pytest.mark.parametrize("name", TABLE)
def test_key_figures_equal_the_data_sheet(name: str) -> None:
    gpu = load_gpu(name)
    rate = gpu.peak_flops["float16" if "float16" in gpu.peak_flops else "bfloat16"]
    found = (rate, gpu.hbm_bandwidth, gpu.scale_up_bandwidth)
    assert found == pytest.approx((TABLE[name][0] * 1e12, TABLE[name][1] * 1e9, TABLE[name][2] * 1e9))
    assert gpu.sms == TABLE[name][3]


@pytest.mark.parametrize("name", PER_CLOCK)
def test_the_peak_is_units_times_clock(name: str) -> None:
    gpu = load_gpu(name)
    expected = gpu.sms * PER_CLOCK[name] * gpu.facts["clock"]
    assert gpu.peak_flops["float16"] == pytest.approx(expected, rel=0.003)  # printed to three digits


@pytest.mark.parametrize("name", GPUS)
def test_a_gpu_is_complete(name: str) -> None:
    gpu = load_gpu(name)
    assert gpu.name == name
    assert gpu.facts["product"]
    # TPUs multiply neither float64 nor float16.
    needed = {"float32", "bfloat16"} if name.startswith("tpu_") else {"float64", "float32", "float16"}
    assert needed <= set(gpu.peak_flops) <= set(dtypes.DTYPES)
    assert gpu.hbm_bytes > 10 * 2**30
    # PCIe 3, 4, 5, 6 x16, Infinity Fabric, NVLink-C2C.
    assert gpu.host_bandwidth in (15.75e9, 31.5e9, 63e9, 126e9, 36e9, 450e9)
    assert gpu.sms > 0


@pytest.mark.parametrize("name", GPUS)
def test_matrix_units_are_at_least_as_fast_as_vector_units(name: str) -> None:
    gpu = load_gpu(name)
    for dtype, rate in gpu.facts["vector_flops"].items():
        assert gpu.peak_flops[dtype] >= rate
    for dtype, rate in gpu.facts["matrix_flops"].items():
        assert gpu.peak_flops[dtype] == rate


@pytest.mark.parametrize("name", GPUS)
def test_what_was_measured_is_below_the_peak(name: str) -> None:
    """Or little above it on GeForce cards, which run faster than the boost clock that their peaks are printed for."""
    gpu = load_gpu(name)
    most = 1.15 if name.startswith("rtx_") else 1.0
    for dtype, rate in gpu.facts["best_matmul_flops"].items():
        assert 0.5 < rate / gpu.peak_flops[dtype] < most
    assert gpu.facts.get("stream_bandwidth", 0.0) < gpu.hbm_bandwidth


@pytest.mark.parametrize("name", GPUS)
def test_scale_up_bandwidth_is_a_whole_number_of_equal_links(name: str) -> None:
    gpu = load_gpu(name)
    if "scale_up_links" in gpu.facts:
        each = gpu.scale_up_bandwidth / gpu.facts["scale_up_links"]
        # NVLink 2 to 4; NVLink 5 and Infinity Fabric of CDNA 2, CDNA 3 and 4; links of TPUs.
        assert each in (25e9, 50e9, 64e9, 76.5e9, 100e9)
    else:
        assert gpu.scale_up_bandwidth == 0


@pytest.mark.parametrize("name", GPUS)
def test_every_figure_of_a_gpu_names_its_source(name: str) -> None:
    sources = load_gpu(name).facts["sources"]
    silent = {key for key, source in sources.items() if not source}
    assert silent - {"scale_up_bandwidth"} == set()
    text = registry.find("gpu", name).read_text()
    unsure = load_gpu(name).facts["unsure"]
    assert text.startswith("#")
    assert not unsure or "not sure" in text.lower()
    assert all("recalled" not in source or key in unsure for key, source in sources.items())


@pytest.mark.parametrize(
    ("topology", "inside", "outside"),
    [
        ("dgx_a100", "nvlink3", "infiniband_hdr"),
        ("dgx_h100", "nvlink4", "infiniband_ndr"),
        ("dgx_b200", "nvlink5", "infiniband_ndr"),
        ("dgx_b300", "nvlink5", "infiniband_xdr"),
        ("mi300x_box", "xgmi_mi300x", "infiniband_ndr"),
        ("mi325x_box", "xgmi_mi300x", "infiniband_ndr"),
        ("pcie_server", "pcie4_x16", "ethernet_100g"),
        ("pcie_switch_server", "pcie5_x16", "infiniband_ndr"),
        ("aws_p4de", "nvlink3", "efa_100g"),
        ("leaf_spine_100g", "pcie4_x16", "ethernet_100g"),
    ],
)
def test_shipped_nodes_are_have_the_wires_of_their_vendors(topology: str, inside: str, outside: str) -> None:
    cluster = build(topology, 16)
    card = next(name for name, facts in cluster.graph.nodes(data=True) if facts["kind"] == "nic")
    assert cluster.route("gpu0", "gpu1").bandwidth == WIRES[inside] * 1e9
    assert cluster.route(card, "leaf0").bandwidth == WIRES[outside] * 1e9


def test_no_two_gpus_share_all_figures() -> None:
    """A copied file under a new name would be a GPU that nobody looked up."""
    facts = ("peak_flops", "hbm_bytes", "hbm_bandwidth", "scale_up_bandwidth", "sms", "host_bandwidth")
    figures = {name: tuple(str(getattr(load_gpu(name), fact)) for fact in facts) for name in GPUS}
    assert len(set(figures.values())) == len(figures)


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_fits_a_shipped_machine(name: str) -> None:
    assert {gpu.name for gpu in build(machine_of(name), 2, gpu=name).gpus} == {name}


def test_modules_fit_the_machine_of_their_form() -> None:
    names = (
        "a800_sxm_80gb",
        "h20",
        "h800_sxm",
        "v100_sxm_16gb",
        "gb300",
        "mi355x",
        "rtx_2080_ti",
        "t4",
        "mi250x",
        "tpu_v6e",
    )
    machines = (
        "hgx_a800",
        "dgx_h100",
        "hgx_h800",
        "dgx1_v100",
        "gb300_nvl72",
        "mi355x_box",
        "geforce_server",
        "pcie_server",
        "mi250x_box",
        "tpu_v6e",
    )
    assert tuple(map(machine_of, names)) == machines


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("10de:1eb8", "t4"),
        ("10de:2324", "h800_sxm"),
        ("10de:2329", "h20"),
        ("1002:7408", "mi250x"),
        ("1002:75a3", "mi355x"),
        ("10de:2236", "a10"),
    ],
)
def test_a_machines_file_names_its_gpu_by_a_pci_number(device: str, name: str) -> None:
    assert gpu_kind(MachineOptions(), Notes(), Setting("device", device, "machine.xml")) == name
