"""What does a training framework add to bare kernels? Constants from the files catalog/frameworks/NAME.yaml.

Factors and bytes belong to a framework, or to a chip under sustained load, and never to a model or a measured run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from simulator.basics import registry
from simulator.basics.counts import number_of
from simulator.basics.document import Document
from simulator.basics.dtypes import find
from simulator.basics.errors import one_of
from simulator.cluster.cluster import Gpu
from simulator.cluster.figure import FittedValue, Listed, Strict, figures, file_of, values_of
from simulator.cluster.locate import read, read_named
from simulator.cluster.validation import checked
from simulator.model.operation import LossKernels, ProgramName

# Implementations of an optimizer's update: a kernel for everything; a kernel per arithmetic operation, over every
# tensor; a kernel per operation and tensor.
Implementation = Literal["fused", "foreach", "for_loop"]
IMPLEMENTATIONS: Final[tuple[Implementation, ...]] = get_args(Implementation)
# Users of a buffer such as Megatron-Core's GlobalMemoryBuffer; see `MemoryConstants`.
MemoryBuffer = Literal["none", "head", "inputs", "scores"]
# GPUs with the chip of another GPU (H200 and GH200 too, whose names contain H20).
_SAME_CHIP: Final = {"H20": "H100", "H800": "H100", "A800": "A100"}
# Power of flash attention relative to that of matmuls, both at full clock; see `Framework.attention_time`.
_ATTENTION_POWER: Final = 0.86
# Every shipped framework has the slowdowns of chips in this file.
_SUSTAINED: Final = Path(__file__).resolve().parents[1] / "catalog" / "sustained.yaml"
# Key for chips that a mapping does not name.
_OTHER: Final = "other"


# A number of at least 0, a number from 0 to 1, and a positive number.
Amount = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Factor = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True)
class Sustained:
    """Slowdown of a chip's matmuls under sustained load, compared with a micro-benchmark."""

    time: Factor  # factor on the duration, at least 1
    power: Factor  # the board's power limit in the measurement [W]
    peak_flops: Factor  # the board's dense bfloat16 peak [FLOP/s]
    # Factor on the duration of matmuls in eight bits, where it was measured; None: derived from `time`
    eight_bit: Factor | None = None
    # `time` of a single GPU that waits for no other; None: the same as `time`
    of_one_gpu: Factor | None = None
    # Numbers with which the median error of a source's steps is 0, by source; `time` is their median
    by_source: Mapping[str, Factor] | None = None

    @property
    def of_one(self) -> Sustained:
        """The slowdown of a single GPU; eight bits lose in the same proportion."""
        if self.of_one_gpu is None:
            return self
        narrow = self.eight_bit and max(1.0, self.eight_bit * self.of_one_gpu / self.time)
        return replace(self, time=self.of_one_gpu, eight_bit=narrow)

    def without(self, source: str) -> Sustained:
        """Return the slowdown that the steps of the other sources ask for; unchanged if none was fitted to them.

        >>> Sustained(1.2, 700.0, 989.4e12, by_source={"a": 1.125, "b": 1.2, "c": 1.375}).without("b").time
        1.25
        """
        others = [time for name, time in (self.by_source or {}).items() if name != source]
        return replace(self, time=median(others)) if others else self

    def slowdown_by_power(self, gpu: Gpu) -> float:
        """Return the factor on `time` for a GPU's board in place of the measured board: r^(1/2) if r > 1, else
        r^(1/3).

        r is the measured board's power limit per FLOP/s of its 16-bit peak, divided by that of the GPU's board [W per
        FLOP/s]. Dynamic power is proportional to f V^2 (frequency f, voltage V). With more power, V rises in proportion
        to f, and f by the cube root. With less power, V nears its floor and falls less than f: power is taken to be
        proportional to f^2, which lies between f^3 and, at the floor, f.
        """
        power = float(gpu.facts.get("power", self.power))
        # Volta and Turing have no bfloat16.
        peak = gpu.peak_flops.get("bfloat16", gpu.peak_flops.get("float16", self.peak_flops))
        missing = (self.power / self.peak_flops) / (power / peak)
        return float(missing ** (1 / 2 if missing > 1 else 1 / 3))

    def narrow_time(self, bits: int) -> float | None:
        """Return the factor on the duration of matmuls in 8 or 4 bits, if it was measured in 8.

        Each halving of the bits saves the same share of power.
        """
        saved = None if self.eight_bit is None else self.eight_bit / self.time
        return None if saved is None else self.time * saved ** math.log2(16 / bits)


@dataclass(frozen=True, slots=True)
class HostTime:
    """Time of the host to launch a part of a layer, in launches of a kernel (`HostConstants.issue`)."""

    forward: Amount = 0.0
    backward: Amount = 0.0
    waits: bool = False  # whether the host waits for the part's kernels in the forward pass, to read what they counted


@dataclass(frozen=True, slots=True)
class KernelConstants:
    """Which kernels a framework launches, and how long they take relative to bare kernels."""

    attention_masked: Share = 0.0  # share of masked scores that attention computes anyway, 0 to 1
    compiled: Amount = 0.0  # duration of merged kernels relative to the HBM traffic of separate kernels
    # Duration of matmuls in eight bits with a scale for each row, relative to a scale for each tensor
    row_scaled: Factor = 1.0
    # Whether a kernel casts a tensor to eight bits once, in both orders, before tensor-parallel ranks gather the
    # tensor, and weights once per step; otherwise each matmul casts both operands
    casts_once: bool = False
    # Whether modules save copies that merged kernels avoid: the activation's output beside the gated product and, if
    # queries, keys and values come from one matmul, queries and keys beside the array from which they were cut, and
    # attention's output in both orders
    keeps_copies: bool = False
    # Whether queries, keys and values, and gate and up, are separate matmuls; `selective_op` recomputes every second
    # one
    split_maps: bool = False
    # Whether NF4 matrices are torchao's NF4Tensors, which 13 kernels write out one after the other. A compiler merges
    # the kernels. Otherwise one kernel of bitsandbytes writes out a matrix.
    nf4_tensors: bool = False
    # Whether ring attention merges its steps in the outputs' dtype, as Transformer Engine does; otherwise in float32
    half_rings: bool = False
    # Whether the router's weights multiply the experts' activation, and not their outputs, which are then not saved
    weights_activations: bool = False
    stops_early: bool = False  # whether recompute ends with the last tensor needed by the backward pass


@dataclass(frozen=True, slots=True)
class HostConstants:
    """Time of the host to launch kernels and collectives; a faster GPU waits for the host (host-bound)."""

    issue: Amount = 0.0  # time to launch a kernel or collective [s]
    # Time of parts of a layer that take longer than their kernels to issue, by the operation's name ("router"), of a
    # collective ("exchange" between model-parallel ranks, "sharding" of parameters and gradients), of a function that
    # is recomputed by itself ("recompute"); besides, of each expert of grouped matmuls ("expert") and of each matmul in
    # eight or four bits ("narrow matmul")
    parts: Mapping[str, HostTime] = field(default_factory=dict)
    # Whether a host waits for a receive before it issues more; not in schedules whose sends every framework batches
    # (`PipelineSchedule.batches_sends`)
    sends_block: bool = False
    # Additional time to issue a tensor-parallel exchange, per rank except one, if pipeline stages lie on several nodes
    # [s]
    issue_in_pipeline: Amount = 0.0


@dataclass(frozen=True, slots=True)
class ShardingConstants:
    """How a framework runs the collectives of sharded model states."""

    overlaps: bool = True  # whether collectives of sharding overlap with kernels; otherwise each waits for the other
    each_tensor: bool = False  # whether every tensor is communicated by a separate collective
    # Time that ZeRO-1 and ZeRO-2 spend on each rank that owns tensors, in the reduction and again in the gather [s]:
    # its part is reduced to it and broadcast from it by itself. 0 if all parts travel at once.
    per_owner: Amount = 0.0
    # Whether a recomputed layer is gathered for the recompute and again for the backward pass
    gathers_again: bool = False
    # HBM traffic of copies and casts around a unit's collectives, per parameter and micro-batch [B]
    parameter_bytes: Amount = 0.0


@dataclass(frozen=True, slots=True)
class MemoryConstants:
    """Which arrays a framework allocates besides model states and saved activations, and which it never frees."""

    # Whether the gradients of activations inside a layer's backward pass are counted in the memory
    activation_gradients: bool = False
    # Whether the input of every fully recomputed layer whose parameters are frozen and sharded, and the gradient of
    # this input, both stay allocated until the backward pass has finished the rank's first such layer
    keeps_input_gradients: bool = False
    gradient_buffers: bool = False  # whether whole gradients lie in buffers that are never freed
    # Whether a weight gradient's matmul adds to the accumulated gradient itself, and no new gradient is allocated;
    # otherwise a kernel of its own adds the new gradient
    accumulates_in_matmul: bool = False
    keeps_gradients: bool = False  # whether gradients in the parameters' dtype are never freed either
    # Whether autograd receives an array without content in place of each gradient of a layer's matrix, because the
    # matmul has added the gradient to the buffer. There is one such array for each shape, in the parameters' dtype, and
    # none is freed.
    placeholders: bool = False
    # Whether the update reads a copy of the gradients in the master copy's dtype, if the gradients are narrower; the
    # copy stays allocated until the next step begins
    widens_gradients: bool = False
    # Whether parameters whose optimizer is on the host keep their master copy on the GPU too; the gradients then stay
    # until the update, and the host returns the master copy
    keeps_master: bool = False
    # Chips ("A100") on which flash attention's output is saved in the order of the sequences and again in the order of
    # the tokens
    copies_output: Listed[str] = ()
    # Scratch memory of matmul libraries, allocated once and never freed, by chip; "other" for other chips [B]
    workspaces: Mapping[str, Amount] = field(default_factory=dict)
    # Additional scratch memory for grouped matmuls of a model with experts, by chip; "other" for other chips [B]
    expert_workspaces: Mapping[str, Amount] = field(default_factory=dict)
    # Users of a buffer that grows to the largest request and is never freed. Under sequence parallelism, "head": the
    # gathered input of the head's matmul; "inputs": also the gathered inputs of layers' matmuls. "scores": these, and
    # attention's scores if they go through HBM
    memory_buffer: MemoryBuffer = "none"
    saves_parameters: bool = True  # whether a checkpoint contains the working parameters beside their master copy


@dataclass(frozen=True, slots=True)
class Framework:
    """Constants of a training framework (torchtitan, NeMo, ...); the defaults are bare kernels without a framework's
    overhead.
    """

    name: str = "bare"
    # Whose kernels compute a layer's parts; a compiler merges those of "bare"
    program: ProgramName = "bare"
    loss: LossKernels = "ideal"  # implementation of the loss, unless a step chooses another one
    optimizer_implementation: Implementation = "fused"  # of the update, unless a step chooses another one
    kernels: KernelConstants = KernelConstants()
    host: HostConstants = HostConstants()
    sharding: ShardingConstants = ShardingConstants()
    memory: MemoryConstants = MemoryConstants()
    kernel_time: Factor = 1.0  # factor on the duration of every kernel, from the calibration to a user's own runs
    # Factor on the duration of every transfer and collective, from the calibration to a user's own runs
    network_time: Factor = 1.0
    sustained: Mapping[str, Sustained] = field(default_factory=dict)  # slowdown under sustained load, by chip: "H100"
    # Source of each constant, unsure constants, and the measured runs to which each was fitted
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """Name of the shipped framework whose constants a user's framework starts from; otherwise its own name."""
        return self.facts.get("based_on") or self.name

    @property
    def constants(self) -> dict[str, Any]:
        """Values of all fields by name, those of the nested records (`kernels`, `host`, ...) among them."""
        records = (self, *(getattr(self, name) for name in _RECORDS))
        return {entry.name: getattr(record, entry.name) for record in records for entry in fields(record)}

    def with_constants(self, **values: Any) -> Framework:
        """Return a copy of the framework with other values of constants, named without the record that has each.

        >>> Framework().with_constants(kernel_time=1.1, issue=6e-6).host.issue
        6e-06
        """
        for name in _RECORDS:
            record = getattr(self, name)
            inner = {f.name: values.pop(f.name) for f in fields(record) if f.name in values}
            values |= {name: replace(record, **inner)} if inner else {}
        return replace(self, **values)

    def on_ranks(self, count: int) -> Framework:
        """Return the framework with the chips' slowdown on `count` GPUs: a single one waits for no slower one."""
        if count > 1:
            return self
        return replace(self, sustained={chip: load.of_one for chip, load in self.sustained.items()})

    def chip(self, gpu: Gpu) -> str | None:
        """Return the first key in `sustained`, such as "H100", found in the GPU's name or in the name of a GPU with the
        same chip; None without such a key.
        """
        return _first_of(self.sustained, gpu)

    def copies_output_on(self, gpu: Gpu) -> bool:
        """Return True if flash attention's output is saved twice on this GPU; see `MemoryConstants`."""
        return _first_of(self.memory.copies_output, gpu) is not None

    def scratch(self, gpu: Gpu, *, experts: bool) -> int:
        """Return the scratch memory of matmul libraries on this GPU, for a model with or without experts [B]."""
        libraries = (self.memory.workspaces, *([self.memory.expert_workspaces] if experts else []))
        return int(sum(sizes.get(_first_of(sizes, gpu) or _OTHER, 0.0) for sizes in libraries))

    def fitted_to(self, gpu: Gpu | None = None) -> dict[str, list[str]]:
        """Return lists of constant names, keyed by the frameworks or sources whose measured runs the constants were
        fitted to; "" for no runs.

        Among the slowdowns under sustained load, only the GPU's own chip is included.

        >>> load_framework("nemo").fitted_to()
        {'': ['attention_masked', 'issue'], 'torchtitan': ['compiled']}
        """
        constants: dict[str, list[str]] = {}
        gpu_chip = None if gpu is None else self.chip(gpu)
        for key, whose in self.facts.get("fitted_to", {}).items():
            record, _, rest = key.partition(".")
            name, _, chip = (rest if record in _RECORDS else key).partition(".")
            if not chip or chip == gpu_chip:
                constants.setdefault(whose, []).append(f"{name} of {chip}" if chip else name)
        return constants

    def matmul_time(self, gpu: Gpu, dtype: str = "bfloat16") -> float:
        """Return a factor, at least 1: the duration of a matmul in a dtype on this GPU relative to a micro-benchmark.

        Notes
        -----
        An unknown chip takes the median of the known chips. A board with less power per FLOP/s of its peak loses by the
        square root, and a board with more power gains by the cube root, until it loses nothing
        (`Sustained.slowdown_by_power`).

        The factor was fitted to bfloat16. Data sheets promise twice the FLOP/s in eight bits at the same power, so a
        FLOP takes energy in proportion to 1 / peak. At its best measured rate, a dtype therefore needs power in
        proportion to best / peak. On an H100 the best matmul in eight bits reaches 1402.6 of 1978.9 TFLOP/s, in
        bfloat16 794.5 of 989.4: eight bits need 0.71 / 0.80 = 0.88 of the power of bfloat16, and lose less. Where a
        chip's loss in eight bits was measured (`Sustained.eight_bit`), the measurement replaces this derivation, also
        in four bits (`Sustained.narrow_time`).

        Examples
        --------
        >>> from simulator.cluster.gpu_file import load_gpu
        >>> Framework(sustained={"H100": Sustained(1.2, 700.0, 989.4e12)}).matmul_time(load_gpu("h100_sxm"))
        1.2
        """
        if not self.sustained:
            return 1.0
        chip = self.chip(gpu)
        if chip is None:
            times = sorted(load.time for load in self.sustained.values())
            return times[len(times) // 2]
        load, bits = self.sustained[chip], find(dtype, stored=False).bits
        measured = load.narrow_time(bits) if bits <= 8 else None
        time = load.time * _power_of(gpu, dtype) if measured is None else measured
        return max(1.0, time * load.slowdown_by_power(gpu))

    def attention_time(self, gpu: Gpu) -> float:
        """Return a factor, at least 1: the duration of a flash attention kernel on this GPU relative to the rates
        published for its chip.

        Notes
        -----
        Attention loses as matmuls do, once it needs more power than the board has. On an H200 (700 W), flash attention
        of 8,192 to 131,072 tokens draws 675 to 690 W at 1.94 to 1.98 GHz (catalog/measured/kernels.csv, read with
        nvidia-smi), 0.81 of the 847 W that matmuls in a loop would need there (700 W x 1.21). On a B200, whose matmuls
        in a loop take 1.47 times as long, kernels of attention take 1.33 times (catalog/measured/loaded.csv), 0.90 of
        it; 0.86 lies between. A step has a single clock: beside matmuls, attention is slowed more than alone.

        Examples
        --------
        An H100 of 500 W has 1.4 times less power, so that attention takes 0.86 x 1.2 x 1.4^(1/2) times as long:

        >>> from simulator.cluster.gpu_file import load_gpu
        >>> framework = Framework(sustained={"H100": Sustained(1.2, 700.0, 989.4e12)})
        >>> gpu = load_gpu("h100_sxm")
        >>> weak = replace(gpu, facts={**gpu.facts, "power": 500.0})
        >>> round(framework.attention_time(gpu), 3), round(framework.attention_time(weak), 3)
        (1.032, 1.221)
        """
        chip = self.chip(gpu)
        if chip is None:
            return 1.0
        load = self.sustained[chip]
        return max(1.0, _ATTENTION_POWER * load.time * load.slowdown_by_power(gpu))


def _first_of(chips: Iterable[str], gpu: Gpu) -> str | None:
    """Return the first chip ("H100") in the name of the GPU or of a GPU with the same chip, or None."""
    names = f"{gpu.name} {gpu.facts.get('product', '')}".upper()
    names += "".join(f" {chip}" for other, chip in _SAME_CHIP.items() if other in names)
    return next((chip for chip in chips if chip.upper() in names), None)


def _power_of(gpu: Gpu, dtype: str) -> float:
    """Return the power of a GPU's best matmul in a dtype, relative to its best matmul in bfloat16; 1 if unknown."""
    best = gpu.facts.get("best_matmul", {})
    rates = [best[name][1] / gpu.peak_flops[name] for name in (dtype, "bfloat16") if name in best]
    return rates[0] / rates[1] if len(rates) == 2 else 1.0


BARE: Final = Framework()
# Fields that are records with constants of their own.
_RECORDS: Final = tuple(entry.name for entry in fields(Framework) if is_dataclass(entry.default))


class _Calibration(Strict):
    """Calibration to a user's own runs, as written in a framework file.

    `runs` is the number of runs; `errors` are the errors ln(measured / predicted) of the step time of each run,
    predicted by a calibration without this run; empty for a single run.
    """

    runs: Annotated[int, Field(ge=1)]
    errors: list[float] = Field(default_factory=list)

    @model_validator(mode="after")
    def _an_error_for_each_run(self) -> Self:
        count = self.runs if self.runs > 1 else 0
        if len(self.errors) != count:
            raise ValueError(
                f"got {number_of(len(self.errors), 'error')} of {number_of(self.runs, 'run')}; must be {count}"
            )
        return self


class _Origin(Strict):
    """Keys of a framework file that are no constants of the framework."""

    product: str = ""
    based_on: str = ""
    calibration: _Calibration | None = None


# Keys of a framework file, with the defaults of bare kernels.
_FrameworkFile: Final = file_of(Framework, _Origin, without=("name", "facts"))


def load_framework(framework: str | Path | Mapping[str, Any], base: Path | None = None) -> Framework:
    """Return the constants of a training framework, read from the catalog, a file or a mapping.

    Parameters
    ----------
    framework : str, Path or mapping
        A catalog name, a path, or the keys of a framework file.
    base : Path, optional
        Folder for relative paths.

    Notes
    -----
    A file with `based_on: NAME` has the constants of the shipped framework NAME, except for the keys in the file. Keys
    of the nested records and chips of `sustained` are taken over one by one.

    Raises
    ------
    ScenarioError
        The name is unknown, or the file has faults (a line for each).

    Examples
    --------
    >>> load_framework({"kernels": {"row_scaled": 1.2}}).kernels.row_scaled
    1.2
    >>> load_framework({"based_on": "nanotron", "kernel_time": 1.1}).host == load_framework("nanotron").host
    True
    """
    if framework == BARE.name:
        return BARE
    name, document = read_named("framework", framework, base)
    file = checked(_FrameworkFile, document)
    return _framework(name, _based(file, document, shipped=framework in registry.names("framework")))


def changed_file(framework: str | Mapping[str, Any], base: Path | None, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of a framework file that differs from a framework in the changed keys alone.

    `framework` and `base` are as for `load_framework`.

    >>> changed_file("bare", None, {"host": {"issue": 1e-6}})
    {'based_on': 'bare', 'product': 'bare', 'host': {'issue': 1e-06}}
    """
    if framework == BARE.name or framework in registry.names("framework"):
        return {"based_on": framework, "product": framework, **changes}
    name, document = read_named("framework", framework, base)
    return {"product": name, **_merged(document.data, changes)}


def _based(file: _Origin, document: Document, *, shipped: bool) -> _Origin:
    """Return a checked framework file with the constants of the framework in `based_on`, where it has none itself; a
    shipped one also has the chips' slowdowns.
    """
    if file.based_on in ("", BARE.name) and not shipped:
        return file
    if not shipped and file.based_on not in registry.names("framework"):
        choices = one_of((BARE.name, *registry.names("framework")), file.based_on, registry.listed_by("framework"))
        document.refuse([document.fault(("based_on",), f"got {file.based_on!r}; {choices}")])
    return _FrameworkFile.model_validate(_with_base(document.data))


def _with_base(keys: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a framework file's keys, and those that it lacks from `based_on`, which may itself have a base; at last
    from the file of the chips' slowdowns.
    """
    if keys.get("based_on", "") in ("", BARE.name):
        return _merged(read(_SUSTAINED).data, keys)
    base = read_named("framework", keys["based_on"])[1]
    checked(_FrameworkFile, base)
    return _merged(_with_base(base.data), keys)


def _merged(keys: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return a framework file's keys with changes; records and `sustained` keep their other keys."""
    inner = {key: {**keys.get(key, {}), **changes[key]} for key in (*_RECORDS, "sustained") if key in changes}
    return {**keys, **changes, **inner}


def _framework(name: str, file: _Origin) -> Framework:
    """Return the Framework of this name from a checked framework file."""
    written = figures(file, written=True)
    facts = {
        "product": file.product,
        "based_on": file.based_on,
        "calibration": file.calibration and tuple(file.calibration.errors),
        # Defaults that the file omits have no source and were fitted to nothing.
        "sources": {key: figure.source for key, figure in written},
        "unsure": tuple(key for key, figure in written if not figure.sure),
        "fitted_to": {key: figure.fitted_to for key, figure in written if isinstance(figure, FittedValue)},
    }
    return Framework(name=name, **values_of(file, Framework), facts=facts)
