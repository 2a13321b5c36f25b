"""Which kernels stand for a measured kernel? A record for each of four families, with a method `kernels`.

A record is a line of a table; `kernel_rows` reads the table. The fields are the columns. `kernels` lists the kernels
whose simulated times are added and compared with the measured time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from simulator.basics import dtypes
from simulator.calibration.cells import Count, Number, YesNo, among, entry
from simulator.cluster.cluster import Gpu
from simulator.cluster.gpu_file import load_gpu
from simulator.model.kernel import Attention, Elementwise, Kernel, Matmul
from simulator.step.kernels.kernel_model import kernel_model
from simulator.step.kernels.kernel_time import attention_generations, duration, grouped_duration

# A kernel, the dtype of its inputs, and further arguments of `duration`.
Launches = list[tuple[Kernel, str, dict[str, Any]]]

# Bytes of an element before a cast, and of an activation [B].
_WIDE: Final = 2
# Formats, each with the dtype that stands for it: scales of blocks are part of a format.
_DTYPES: Final = MappingProxyType(
    {
        "bfloat16": "bfloat16", "float16": "float16", "tf32": "tf32", "float32": "float32", "fp8": "float8_e4m3fn",
        "fp8_block": "float8_e4m3fn", "mxfp8": "float8_e4m3fn", "nvfp4": "float4_e2m1fn",
    }
)  # fmt: skip
_SPELLINGS: Final = MappingProxyType(
    {
        "bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp4": "nvfp4", "float8_e4m3fn": "fp8",
        "float4_e2m1fn": "nvfp4",
    }
)  # fmt: skip
# Limits of measured times [s], and of experts: predictions and their quotients stay finite, and lists short.
_SHORTEST: Final = 1e-9
_LONGEST: Final = 1e6
_MOST_EXPERTS: Final = 65_536
# Kernels around the experts' matmuls (routing, sorting, casts) besides their bytes, in TensorRT-LLM's chain without and
# with eight or four bits [s]: medians of what is left over in the table's smallest rows.
_AROUND: Final = (22e-6, 48e-6)
_QUANTISED: Final = ("fp8", "fp8_block", "nvfp4")
# Times that tokens are read, and written, around the matmuls: sorted by expert, and added.
_PASSES: Final = 2
# Largest load of an expert before scaling, as a share of the tokens; rounds in which loads are limited to the tokens.
_LARGEST: Final = 0.8
_SHARINGS: Final = 20
# Libraries store a matmul's operands in the order that its kernel needs.
_ORDERED: Final = MappingProxyType({"ordered": True})


def _formats(*names: str) -> BeforeValidator:
    return among(names or tuple(_DTYPES), _SPELLINGS)


def _contains(cell: object) -> object:
    """Return "cast" if a cell says that the time contains a cast; raise ValueError for other text."""
    text = str(cell)
    if text not in ("", "the matmul") and "cast" not in text:
        raise ValueError("must be cast or empty")
    return "cast" if "cast" in text else ""


def _load(cell: object) -> object:
    """Return a load with a readable exponent; raise ValueError for other text."""
    if not re.fullmatch(r"balanced|power_law_[0-9]{1,2}(\.[0-9]{1,6})?", str(cell)):
        raise ValueError("must be balanced, or power_law_ALPHA such as power_law_1.2")
    return cell


def _exponent(load: str) -> float:
    """Return the exponent alpha of a load: the i-th most popular expert receives i^-alpha of the tokens, up to a
    factor.
    """
    return 0.0 if load == "balanced" else float(load.removeprefix("power_law_"))


@cache
def gpu_named(name: str) -> Gpu:
    """Return a GPU of the catalog, always the same object: constants of kernel times are cached for an object."""
    return load_gpu(name)


class MeasuredKernel(BaseModel):
    """A kernel that was measured alone, or several kernels that were measured together."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    family: ClassVar[str]  # name of the table
    # Names of columns in the sources' own tables
    other_columns: ClassVar[Mapping[str, str]] = MappingProxyType({})

    gpu: Annotated[str, entry("gpu")]  # name in the catalog
    dtype: Annotated[str, _formats()]  # format of the inputs
    source: str = ""

    @property
    def seconds(self) -> float:
        """Measured time [s]."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """Name of the group of records that are summarised together, on each GPU."""
        raise NotImplementedError

    def kernels(self, gpu: Gpu) -> Launches:
        """Return the kernels that stand for the measurement, in sequence."""
        raise NotImplementedError

    def simulated(self, gpu: Gpu) -> float:
        """Return the simulated time of the kernels on a GPU [s], without the factors of a framework."""
        return sum(duration(kernel, gpu, dtype, **keywords) for kernel, dtype, keywords in self.kernels(gpu))

    @model_validator(mode="after")
    def _supported(self) -> Self:
        if not _SHORTEST <= self.seconds <= _LONGEST:
            column = "time_us" if "time_us" in type(self).model_fields else "time_ms"
            raise ValueError(f"{column}: is {self.seconds:.3g} s; must be from 1 ns to 10^6 s")
        rates = gpu_named(self.gpu).peak_flops
        if self.family != "norms" and _DTYPES[self.dtype] not in rates:
            formats = ", ".join(name for name, dtype in _DTYPES.items() if dtype in rates)
            raise ValueError(f"dtype: got {self.dtype!r}; {self.gpu} has rates for {formats}")
        return self


class MeasuredMatmul(MeasuredKernel):
    """A measured matmul out[m, n] = a[m, k] b[k, n]."""

    family = "matmul"
    other_columns = MappingProxyType({"us_derived": "time_us", "kernel_source": "library", "microseconds": "time_us"})

    batch: Count = 1
    m: Count
    n: Count
    k: Count
    time_us: Number
    net_time_us: Number | None = None  # time without the cast of a, if both times are known
    contains: Annotated[Literal["", "cast"], BeforeValidator(_contains)] = ""  # "cast" if time_us includes that of a
    library: str = ""

    @property
    def seconds(self) -> float:
        """Measured time [s]."""
        return 1e-6 * (self.net_time_us or self.time_us)

    @property
    def with_cast(self) -> bool:
        """True if the measured time contains the cast of a."""
        return self.contains == "cast" and self.net_time_us is None

    @property
    def label(self) -> str:
        """Format, and whether the time contains a cast."""
        return f"{self.dtype} with cast" if self.with_cast else self.dtype

    def kernels(self, gpu: Gpu) -> Launches:
        """Return the matmul; before it the cast of a, if the measured time contains the cast.

        >>> row = MeasuredMatmul(gpu="b200", dtype="nvfp4", m=8, n=2, k=4, time_us=1, contains="cast")
        >>> cast, matmul = (kernel for kernel, _, _ in row.kernels(gpu_named("b200")))
        >>> cast.nbytes(1), matmul.flops
        (82.0, 128.0)
        """
        dtype = _DTYPES[self.dtype]
        matmul = Matmul("matmul", self.m, self.n, self.k, self.batch)
        launches: Launches = [(matmul, dtype, {**_ORDERED, **_blocks(self.dtype)})]
        if self.with_cast:
            elements = float(self.m * self.k)
            cast = Elementwise("cast", _WIDE * elements, _cast_bytes(dtype) * elements)
            launches.insert(0, (cast, dtype, {}))
        return launches

    def simulated(self, gpu: Gpu) -> float:
        """Return the simulated time [s]; the rows of a matrix may be cast more slowly than a copy takes."""
        every = self.kernels(gpu)
        casts = sum(
            _streamed(kernel, gpu, f"cast_{self.dtype}", self.m)
            for kernel, _, _ in every
            if isinstance(kernel, Elementwise)
        )
        return casts + sum(
            duration(kernel, gpu, dtype, **others) for kernel, dtype, others in every if isinstance(kernel, Matmul)
        )

    @model_validator(mode="after")
    def _needs_a_cast(self) -> Self:
        if self.with_cast and not _cast_bytes(_DTYPES[self.dtype]):
            raise ValueError(
                f"contains: got 'cast' with {self.dtype}, into which nothing is cast; leave the cell empty"
            )
        return self


def _streamed(kernel: Elementwise, gpu: Gpu, family: str, rows: int = 0) -> float:
    """Return the time of a kernel that streams rows [s], with constants of its own where a GPU has them."""
    model, alone = kernel_model(gpu), duration(kernel, gpu, "float32")
    launch = model.value("launch")
    slower = 1.0 / model.value(f"{family}_efficiency", 1.0)
    fixed = model.value(f"{family}_prologue", 0.0) + rows * model.value(f"{family}_row", 0.0)
    return launch + slower * (alone - launch) + fixed


def _blocks(name: str) -> dict[str, bool]:
    """Return the arguments of `duration` for a format whose scales are of blocks."""
    return {"blocks": True} if name in ("fp8_block", "mxfp8") else {}


def _cast_bytes(dtype: str) -> float:
    """Return the bytes of an element after the cast to a dtype, with its scales [B]; 0 without a cast."""
    matmul = dtypes.find(dtype, stored=False).matmul
    return 0.0 if matmul is None else matmul.cast_bytes


class MeasuredExperts(MeasuredKernel):
    """The measured matmuls of the experts of one rank, forward; of the fullest rank if the load is uneven."""

    family = "experts"
    other_columns = MappingProxyType({"kernel_source": "kernel"})

    tokens: Count  # of all expert-parallel ranks together
    hidden: Count
    expert_ffn: Count
    top_k: Count
    experts: Count
    ep: Count = 1
    tp: Count = 1
    load: Annotated[str, BeforeValidator(_load)] = "balanced"
    time_us: Number
    kernel: str = ""  # experts have no gate if the name ends with "nongated"

    @property
    def seconds(self) -> float:
        """Measured time [s]."""
        return 1e-6 * self.time_us

    @property
    def label(self) -> str:
        """Format and load."""
        return f"{self.dtype}, {self.load}"

    @property
    def local_experts(self) -> int:
        """Number of experts of each rank."""
        return self.experts // self.ep

    @property
    def rows(self) -> tuple[int, ...]:
        """Tokens of each expert of the fullest rank, which has the most popular expert.

        >>> sizes = {"tokens": 1024, "hidden": 8, "expert_ffn": 8, "top_k": 2, "experts": 4, "ep": 2, "time_us": 1}
        >>> loads = "balanced", "power_law_1.2"
        >>> [MeasuredExperts(gpu="h200", dtype="bfloat16", load=load, **sizes).rows for load in loads]
        [(512, 512), (1024, 180)]
        """
        return _tokens_of_experts(self.tokens, self.top_k, self.experts, self.local_experts, self.load)

    def kernels(self, gpu: Gpu) -> Launches:
        """Return the elementwise kernels around both matmuls: activation, and the sorting and adding of tokens."""
        tokens, width = sum(self.rows), self.expert_ffn // self.tp
        inner = width if self.kernel.endswith("nongated") else 2 * width
        moved = float(_WIDE * tokens)
        return [
            (Elementwise("activation", moved * inner, moved * width), self.dtype, {}),
            (Elementwise("tokens", _PASSES * moved * self.hidden, _PASSES * moved * self.hidden), self.dtype, {}),
        ]

    def simulated(self, gpu: Gpu) -> float:
        """Return the simulated time of both grouped matmuls and of the kernels around them [s]."""
        dtype, width, rows = _DTYPES[self.dtype], self.expert_ffn // self.tp, self.rows
        inner = width if self.kernel.endswith("nongated") else 2 * width
        matmuls = ((inner, self.hidden), (self.hidden, width))
        blocks = _blocks(self.dtype)
        seconds = sum(grouped_duration(gpu, dtype, rows, n, k, **blocks) for n, k in matmuls)
        return seconds + super().simulated(gpu) + _AROUND[self.dtype in _QUANTISED]

    @model_validator(mode="after")
    def _shared_evenly(self) -> Self:
        if self.experts > _MOST_EXPERTS:
            raise ValueError(f"experts: got {self.experts}; must be at most {_MOST_EXPERTS}")
        for name, parts, whole in (("ep", self.ep, "experts"), ("tp", self.tp, "expert_ffn")):
            if getattr(self, whole) % parts:
                raise ValueError(f"{name}: got {parts}; must divide {whole}, {getattr(self, whole)}")
        if self.top_k > self.experts:
            raise ValueError(f"top_k: got {self.top_k}; must be at most experts, {self.experts}")
        return self


@cache
def _tokens_of_experts(tokens: int, top_k: int, experts: int, local: int, load: str) -> tuple[int, ...]:
    """Return the tokens of each of the `local` experts of the fullest rank.

    As the source draws them (ai-dynamo/aiconfigurator, collector/helper.py): in proportion to a variable with the
    density x^-alpha between 1 and 0.8 of the tokens; here its quantiles. Experts are in no order: beside the most
    popular one, a rank has an even sample of the others.
    """
    total = float(tokens * top_k)
    if load == "balanced":
        return (max(1, round(total / experts)),) * local
    power, most = 1.0 - _exponent(load), _LARGEST * tokens
    places = [(place + 0.5) / experts for place in range(experts)]
    # The quantile function of the density; its limit for alpha = 1 is most^u.
    drawn = [((most**power - 1) * u + 1) ** (1 / power) if power else most**u for u in places]
    loads = sorted(drawn, reverse=True)
    # An expert receives each token at most once; the others share what is left.
    for _ in range(_SHARINGS):
        scale = total / sum(loads)
        loads = [min(float(tokens), load * scale) for load in loads]
    others = local - 1
    rest = [loads[1 + int((place + 0.5) / others * (experts - 1))] for place in range(others)]
    return tuple(max(1, math.ceil(load)) for load in (loads[0], *rest))


# A pass, in the table and in the sources' words.
Pass = Annotated[
    Literal["forward", "backward"],
    among(("forward", "backward"), MappingProxyType({"fwd": "forward", "bwd": "backward"})),
]


class MeasuredAttention(MeasuredKernel):
    """A measured attention kernel, forward or backward."""

    family = "attention"
    other_columns = MappingProxyType(
        {"backend": "library", "sliding_window": "window", "deterministic_bwd": "deterministic"}
    )

    dtype: Annotated[str, _formats("bfloat16", "float16", "fp8", "mxfp8")]
    pass_: Pass = Field(alias="pass")
    mask: Annotated[Literal["causal", "none"], among(("causal", "none"))]
    window: Count | None = None  # keys that a query sees; None for all earlier keys
    batch: Count
    q_seq: Count
    kv_seq: Count
    q_heads: Count
    kv_heads: Count
    head_dim_qk: Count
    head_dim_vo: Count
    deterministic: YesNo = False
    time_ms: Number
    library: str = ""

    @property
    def seconds(self) -> float:
        """Measured time [s]."""
        return 1e-3 * self.time_ms

    @property
    def label(self) -> str:
        """Format and pass, and whether the kernel is deterministic."""
        return f"{self.dtype}, {self.pass_}{', deterministic' if self.deterministic else ''}"

    def kernels(self, gpu: Gpu) -> Launches:
        """Return the attention kernel, of the newest generation on the GPU."""
        # Models with latent attention have the mean width of keys and values, too.
        width = (self.head_dim_qk + self.head_dim_vo) // 2
        kernel = Attention(
            "attention",
            self.batch,
            self.q_heads,
            self.kv_heads,
            self.q_seq,
            width,
            causal=self.mask == "causal",
            backward=self.pass_ == "backward",
            keys=self.kv_seq,
            window=self.window or 0,
        )
        newest = attention_generations(gpu)[-1]
        return [(kernel, _DTYPES[self.dtype], {"attention_generation": newest, **_blocks(self.dtype)})]

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.q_heads % self.kv_heads:
            raise ValueError(f"kv_heads: got {self.kv_heads}; must divide q_heads, {self.q_heads}")
        if self.window is not None and self.mask == "none":
            raise ValueError(f"window: got {self.window} with mask none; a window needs mask causal")
        return self


class MeasuredNorm(MeasuredKernel):
    """A measured norm of rows, forward or backward."""

    family = "norms"
    other_columns = MappingProxyType({"backend": "implementation", "rows_N": "rows", "width_C": "width"})

    dtype: Annotated[str, _formats("bfloat16", "float16", "float32")]
    kernel: Annotated[Literal["rms_norm", "layer_norm"], among(("rms_norm", "layer_norm"))]
    implementation: Annotated[
        Literal["cudnn", "eager", "compiled"],
        among(("cudnn", "eager", "compiled"), MappingProxyType({"pytorch": "eager", "torch_compile": "compiled"})),
    ]
    pass_: Pass = Field(alias="pass")
    rows: Count
    width: Count
    time_ms: Number

    @property
    def seconds(self) -> float:
        """Measured time [s]."""
        return 1e-3 * self.time_ms

    @property
    def label(self) -> str:
        """Kind, implementation and pass."""
        return f"{self.kernel}, {self.implementation}, {self.pass_}"

    def kernels(self, gpu: Gpu) -> Launches:
        """Return the kernel: forward reads x and writes y; backward reads x and dy, and writes dx."""
        array = float(self.rows * self.width * dtypes.find(self.dtype).itemsize)
        read = array if self.pass_ == "forward" else 2 * array
        return [(Elementwise(self.kernel, read, array), self.dtype, {})]

    def simulated(self, gpu: Gpu) -> float:
        """Return the simulated time [s], by the implementation's and the pass's own share of the bandwidth."""
        family = f"norm_{self.implementation}_{self.pass_}"
        kernels = (kernel for kernel, _, _ in self.kernels(gpu))
        return sum(_streamed(kernel, gpu, family) for kernel in kernels if isinstance(kernel, Elementwise))


FAMILIES: Final[Mapping[str, type[MeasuredKernel]]] = MappingProxyType(
    {record.family: record for record in (MeasuredMatmul, MeasuredExperts, MeasuredAttention, MeasuredNorm)}
)
