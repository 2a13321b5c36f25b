"""ASTRA-sim's system file: scheduling, algorithms and memory of the NPUs, beside a network file.

It changes no link. Each setting is listed with what the simulator does instead.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any, Final

from simulator.basics.document import parse
from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import parse_json
from simulator.cluster.gpu_file import load_gpu
from simulator.importing.machines.machine_format import Machine, MachineFormat, SourceFile
from simulator.importing.machines.notes import Notes
from simulator.importing.machines.options import MachineOptions
from simulator.importing.settings import Reason, Setting

_IS_KEY: Final = re.compile(
    r"(?m)[{,\s]\"(?:scheduling-policy|local-mem-bw|endpoint-delay|preferred-dataset-splits|memory-type"
    r"|active-chunks-per-dimension|(?:all-reduce|all-gather|reduce-scatter|all-to-all)-implementation(?:-custom)?)\"\s*:"
)
# Our name of each algorithm, by ASTRA-sim's in lower case.
_ALGORITHMS: Final = MappingProxyType(
    {
        "ring": "ring",
        "onering": "ring",
        "direct": "direct",
        "onedirect": "direct",
        "halvingdoubling": "halving_doubling",
        "onehalvingdoubling": "halving_doubling",
        "doublebinarytree": "double_binary_tree",
    }
)
_NO_EXPANSION: Final = "NO_MEMORY_EXPANSION"
_NOT_MODELLED: Final = MappingProxyType(
    {
        "scheduling-policy": "collectives of a stream run in the order of the program",
        "active-chunks-per-dimension": "a collective is not cut into chunks that overlap",
        "preferred-dataset-splits": "a collective is not cut into chunks that overlap",
        "endpoint-delay": "a rank needs no time between two messages",
        "collective-optimization": "the algorithm is the scenario's",
        "roofline-enabled": "kernel times follow from the GPU's figures",
        "logical-topology": "algorithms run on the links of the network file",
        "track-local-mem": "memory is simulated by the scenario",
    }
)


def _is_mine(file: SourceFile) -> bool:
    return file.name.lower().endswith(".json") and _IS_KEY.search(file.text[:100_000]) is not None


def _read(file: SourceFile, _: MachineOptions, notes: Notes, machine: Machine | None) -> Machine:
    if machine is None:
        raise TypeError("a companion gets the machine of another file")
    parse_json(file.text, file.name)
    document = parse(file.text.replace("\t", " "), file.name)
    if not isinstance(document.data, dict):
        raise ScenarioError(f"{file.name}: must be a mapping")
    for key, value in document.data.items():
        setting = Setting(str(key), value, file.name, document.place((key,), of_key=True)[0])
        reason, why = _meaning(setting, machine)
        notes.ignore(setting, reason, why)
    return machine


def _meaning(setting: Setting, machine: Machine) -> tuple[Reason, str]:
    """Return why a setting is not in the topology."""
    key, value = setting.key, setting.value
    if key.endswith("-implementation"):
        return Reason.NOT_MODELLED, _algorithm(value)
    if key.endswith("-implementation-custom"):
        return Reason.NOT_MODELLED, "a program of MSCCL may be named as collective.algorithm instead"
    if key == "memory-type":
        if value != _NO_EXPANSION:
            raise ScenarioError(
                f"{setting.place}: memory-type: got {str(value)[:40]!r}; only {_NO_EXPANSION} is imported"
            )
        return Reason.NO_MEANING, ""
    if key == "boost-mode":
        return Reason.NO_MEANING, "ASTRA-sim does not read it"
    if key in ("local-mem-bw", "peak-perf"):
        gpu = load_gpu(machine.gpu)
        peak = max(gpu.peak_flops.get("bfloat16", 0), gpu.peak_flops.get("float16", 0))
        rate = f"{gpu.hbm_bandwidth / 1e9:g} GB/s" if key == "local-mem-bw" else f"{peak / 1e12:g} TFLOP/s"
        return Reason.NOT_MODELLED, f"{gpu.name} has {rate}; --gpu chooses another"
    if key in _NOT_MODELLED:
        return Reason.NOT_MODELLED, _NOT_MODELLED[key]
    return Reason.UNKNOWN, ""


def _algorithm(value: Any) -> str:
    """Return the algorithm to choose in a scenario, in words."""
    names = [str(name) for name in value] if isinstance(value, list) else [str(value)]
    ours = dict.fromkeys(_ALGORITHMS.get(name.lower()) for name in names)
    if len(ours) != 1 or None in ours:
        return "chosen in the scenario; an algorithm for each dimension is not simulated"
    return f"chosen in the scenario: algorithm {next(iter(ours))}"


FORMAT: Final = MachineFormat(
    name="ASTRA-sim system", is_mine=_is_mine, read=_read, uses=frozenset(), companion=True
)  # fmt: skip
