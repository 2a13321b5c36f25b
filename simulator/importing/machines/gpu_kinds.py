"""Which GPU of the catalog does a file mean by a PCI device number, or by its architecture?"""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType
from typing import Final

from simulator.basics import registry
from simulator.cluster.gpu_file import load_gpu
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.settings import Setting

# Vendor and device numbers, from the public PCI ID list; recalled: 1db1, 1db5, 1e07, 1eb8, 20f3, 2230, 2235, 2236,
# 2335, 2342, 2348, 27b8, 2941, 2b85, 2d04, 3182, 31c2, 7408, 740c, 74a5 and 75a3.
_DEVICES: Final = MappingProxyType(
    {
        "10de:1db1": "v100_sxm_16gb", "10de:1db5": "v100_sxm_32gb", "10de:1e07": "rtx_2080_ti", "10de:1eb8": "t4",
        "10de:20b0": "a100_sxm_40gb", "10de:20b2": "a100_sxm_80gb", "10de:20b5": "a100_pcie_80gb",
        "10de:20f3": "a800_sxm_80gb", "10de:2204": "rtx_3090", "10de:2230": "rtx_a6000", "10de:2235": "a40",
        "10de:2236": "a10", "10de:2324": "h800_sxm", "10de:2329": "h20", "10de:2330": "h100_sxm",
        "10de:2331": "h100_pcie", "10de:2335": "h200", "10de:2342": "gh200_96gb", "10de:2348": "gh200_144gb",
        "10de:2684": "rtx_4090", "10de:26b9": "l40s", "10de:27b8": "l4", "10de:2901": "b200", "10de:2941": "gb200",
        "10de:2b85": "rtx_5090", "10de:2bb5": "rtx_pro_6000", "10de:2d04": "rtx_5060_ti", "10de:3182": "b300",
        "10de:31c2": "gb300", "1002:7408": "mi250x", "1002:740c": "mi250x", "1002:74a1": "mi300x",
        "1002:74a5": "mi325x", "1002:75a0": "mi350x", "1002:75a3": "mi355x",
    }
)  # fmt: skip
# The usual GPU of a data centre with this compute capability ("sm"), this AMD architecture ("gcn"), or these NVLinks:
# four H100 have 6 for each pair, four A100 have 4, eight V100 have 1 or 2; PCIe cards have bridges of 12.
_ARCHITECTURES: Final = MappingProxyType(
    {
        "sm 70": "v100_sxm_32gb",
        "sm 75": "t4",
        "sm 80": "a100_sxm_80gb",
        "sm 89": "l40s",
        "sm 90": "h100_sxm",
        "sm 100": "b200",
        "sm 103": "b300",
        "gcn gfx90a": "mi250x",
        "gcn gfx942": "mi300x",
        "gcn gfx950": "mi355x",
        "18 NVLinks to an NVSwitch": "h100_sxm",
        "12 NVLinks to an NVSwitch": "a100_sxm_80gb",
        "6 NVLinks to an NVSwitch": "v100_sxm_32gb",
        "6 NVLinks between GPUs": "h100_sxm",
        "2 NVLinks between GPUs": "v100_sxm_32gb",
        "4 NVLinks between GPUs": "a100_sxm_80gb",
        "12 NVLinks between GPUs": "a100_pcie_80gb",
        "no NVLinks": "h100_pcie",
    }
)
DEFAULT: Final = "h100_sxm"


def known_gpu(text: str) -> str:
    """Return the catalog's name of a GPU that a user's text means, or the absolute path of a GPU file.

    Raises
    ------
    ScenarioError
        Unknown GPU, or a faulty file.
    """
    name = registry.shipped("gpu", text)
    if name is not None:
        return name
    load_gpu(text)
    # The topology file may stand in another folder.
    return str(Path(text).resolve())


def gpu_kind(
    options: MachineOptions, notes: Notes, device: Setting | None = None, architecture: Setting | None = None
) -> str | None:
    """Return the name of the machine's GPU, and note its origin; None if the file's GPU is not in the catalog.

    Parameters
    ----------
    device : Setting, optional
        PCI vendor and device numbers as "10de:2330".
    architecture : Setting, optional
        Architecture as "sm 90" or "gcn gfx942".
    """
    if options.gpu is not None:
        notes.read("GPU", options.gpu, Setting("--gpu", options.gpu, "command line"))
        return options.gpu
    gpu = None if device is None else _DEVICES.get(device.value)
    if gpu is not None and device is not None:
        notes.read("GPU", gpu, device)
        return gpu
    setting = architecture or device
    if setting is None:
        notes.assume("GPU", DEFAULT, "the files name no GPU; --gpu changes it")
        return DEFAULT
    usual = _ARCHITECTURES.get(setting.value)
    if usual is not None:
        number = f", device {device.value}" if device is not None else ""
        notes.assume("GPU", usual, f"the file says {setting.value}{number}; --gpu changes it")
    return usual
