"""Which constants make a GPU's kernels as fast as in measurements by tools/measure_gpu.py?

Data sheet figures (peaks, bandwidth, SMs) come from the base GPU. Measured are the best matmul, the best copy, the
matmul constants, attention's share of the peak, and the elementwise kernels' share of the copy rate.

    figures (JSON)        constant in the GPU file            method
    matmul, largest rate  best_matmul_flops                   maximum over shapes
    copy                  stream_bandwidth                    maximum over sizes
    matmul, every shape   prologue, efficiency, ... by dtype  kernels.fit (differential evolution)
    attention             attention_2                         bisection on the median error
    elementwise           elementwise                         median over the largest size
    gpt                   none: the test set                  simulated, only reported
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from simulator.basics import registry, yaml_dialect
from simulator.basics.document import load
from simulator.basics.errors import ScenarioError, in_lines
from simulator.basics.input_files import read_json
from simulator.calibration.kernels import fit, with_constants
from simulator.cluster.build import build
from simulator.cluster.cluster import Gpu
from simulator.cluster.gpu_file import load_gpu
from simulator.engine.play import play
from simulator.model.kernel import Attention, Elementwise, Matmul
from simulator.model.load import load_transformer
from simulator.step.framework import load_framework
from simulator.step.kernels.kernel_time import duration, elementwise_share, kernel_model
from simulator.step.optimizers.optimizer import OPTIMIZERS
from simulator.step.plan import plan_step
from simulator.step.precision import Precision
from simulator.step.spec import bare_step

FORMAT: Final = "simulator-gpu-1"
_TWO_BYTES: Final = 2
# Constants of each dtype's matmuls, and rounds of the search for them.
_MATMUL: Final = ("prologue", "efficiency", "overlap", "operand_rate")
_DTYPES: Final = ("bfloat16", "tf32", "float8_e4m3fn")
_DTYPE_ROUNDS: Final = 20
ROUNDS: Final = _DTYPE_ROUNDS * len(_DTYPES)
# Arrays read and written by a norm, an activation and an addition.
_PASSES: Final[Mapping[str, tuple[int, int]]] = {"norm": (1, 1), "activation": (1, 1), "add": (2, 1)}

# Positive: times serve as divisors.
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid")


class MatmulRow(_Part):
    """A measured matmul: out[m, n] = a[m, k] b[k, n], with its dtype and time [s]."""

    dtype: Literal["bfloat16", "tf32", "float8_e4m3fn"]
    m: Count
    n: Count
    k: Count
    seconds: Seconds

    @property
    def flops(self) -> float:
        """Rate [FLOP/s]."""
        return 2.0 * self.m * self.n * self.k / self.seconds

    def simulated(self, gpu: Gpu) -> float:
        """Return the simulated time [s]."""
        return duration(Matmul("", self.m, self.n, self.k), gpu, self.dtype)


class CopyRow(_Part):
    """A measured copy in GPU memory: size [B] and time [s]."""

    nbytes: Annotated[int, Field(ge=1, alias="bytes")]
    seconds: Seconds


class AttentionRow(_Part):
    """A measured causal attention kernel in bfloat16: sizes, and times forward and forward plus backward [s]."""

    batch: Count
    heads: Count
    seq_len: Count
    head_dim: Count
    forward: Seconds
    forward_backward: Seconds

    def simulated(self, gpu: Gpu) -> float:
        """Return the simulated time of the forward and the backward kernel of generation 2 [s]."""
        sizes = self.batch, self.heads, self.heads, self.seq_len, self.head_dim
        passes = (Attention("", *sizes, causal=True, backward=backward) for backward in (False, True))
        return sum(duration(kernel, gpu, "bfloat16", attention_generation=2) for kernel in passes)


class ElementwiseRow(_Part):
    """A measured elementwise kernel over rows x columns numbers in bfloat16, with its time [s]."""

    kind: Literal["norm", "activation", "add"]
    rows: Count
    columns: Count
    seconds: Seconds

    def simulated(self, gpu: Gpu) -> float:
        """Return the simulated time at the rate of a copy [s]."""
        read, written = _PASSES[self.kind]
        size = float(_TWO_BYTES * self.rows * self.columns)
        return duration(Elementwise(self.kind, read * size, written * size), gpu, "bfloat16")


class GptRow(_Part):
    """A measured training step of a small GPT-2 in bfloat16: sizes, time [s] and peak memory [B]."""

    layers: Count
    hidden: Count
    heads: Count
    seq_len: Count
    sequences: Count
    words: Count
    checkpointing: Literal["none", "full"]
    seconds: Seconds
    peak_bytes: int


class GpuFigures(_Part):
    """Measurements on a GPU, in the form written by tools/measure_gpu.py."""

    format: Literal["simulator-gpu-1"]
    device: dict[str, Any]
    matmul: list[MatmulRow]
    copies: Annotated[list[CopyRow], Field(alias="copy")]
    attention: list[AttentionRow]
    elementwise: list[ElementwiseRow]
    gpt: list[GptRow]


@dataclass(frozen=True, slots=True)
class GpuResidual:
    """A measured figure of a GPU, and its value simulated with the fitted GPU file."""

    # `kind`, `name`: Kind of the figure, and its sizes in words.
    kind: str
    name: str
    # `measured`, `simulated`: Time [s], or memory [B].
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Relative error of the figure, simulated / measured - 1."""
        return self.simulated / self.measured - 1.0


@dataclass(frozen=True, slots=True)
class GpuFit:
    """A fitted GPU file with its residuals."""

    gpu: dict[str, Any]  # keys of a GPU file
    residuals: tuple[GpuResidual, ...]  # residuals; steps of the small GPT were not fitted and are a test set
    untold: tuple[str, ...]  # constants that the figures do not determine

    def median(self, kind: str) -> float:
        """Return the median absolute relative error of the figures of a kind ("matmul", "attention", ...)."""
        return median(abs(residual.error) for residual in self.residuals if residual.kind == kind)

    def to_yaml(self) -> str:
        """Return the fitted GPU file as YAML text."""
        return yaml_dialect.dump(self.gpu)


def read_figures(path: Path) -> GpuFigures:
    """Return the measurements in a JSON file; raise ScenarioError with a line for each fault."""
    try:
        return GpuFigures(**read_json(path))
    except ValidationError as error:
        lines = [f"{path}: {'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
        raise ScenarioError(in_lines(lines)) from error
    except TypeError as error:
        raise ScenarioError(f"{path}: not an output of tools/measure_gpu.py: {error}") from error


def fit_gpu(figures: GpuFigures, base: str, advance: Callable[[], None] | None = None) -> GpuFit:
    """Fit kernel constants to measured figures of a GPU, and return them as the data of a GPU file.

    Figures of the data sheet are copied from the catalog GPU `base`. `advance` is called after each round of the
    search; there are at most `ROUNDS` of them.
    """
    source = f"measured on {figures.device.get('name', 'a GPU')} with tools/measure_gpu.py"
    # A copy of the base GPU's file; only measured keys are replaced below.
    data = dict(load(registry.find("gpu", base)).data)
    data["product"] = f"{figures.device.get('name', base)}, measured"
    # Dtypes without rows are absent, and keep the base GPU's constants.
    tables = {dtype: [row for row in figures.matmul if row.dtype == dtype] for dtype in _DTYPES}
    tables = {dtype: rows for dtype, rows in tables.items() if rows}
    peaks, untold = load_gpu(base).peak_flops, []
    best = {}
    for dtype, rows in tables.items():
        row = max(rows, key=lambda row: row.flops)
        # Faster than the peak: most likely the wrong base GPU was given.
        if row.flops > peaks.get(dtype, 0.0):
            raise ScenarioError(
                f"matmul: {row.m} x {row.n} x {row.k} in {dtype} ran at {row.flops / 1e12:.0f} TFLOP/s, above "
                f"the peak of {base}; set --base to the measured GPU"
            )
        # GPU files hold no best matmul in tf32.
        if dtype != "tf32":
            best[dtype] = {"value": f"{row.flops / 1e12:.1f} TFLOP/s", "shape": [row.m, row.n, row.k], "source": source}
    data["best_matmul_flops"] = {**data.get("best_matmul_flops", {}), **best}
    # Reads and writes both count.
    stream = max(2 * row.nbytes / row.seconds for row in figures.copies)
    data["stream_bandwidth"] = {"value": f"{stream / 1e9:.0f} GB/s", "source": source}
    # Measured copies contain HBM's efficiency already.
    constants = {name: figure for name, figure in data.get("constants", {}).items() if name != "hbm_efficiency"}
    # Measured attention stands for the library's default; the base GPU's newer kernels would hide it.
    kernels = {name: fit for name, fit in data.get("kernels", {}).items() if not name.startswith("attention_4")}
    data |= {"constants": constants, "kernels": kernels}
    # Matmuls first: the law needs only the data sheet and the figures set above.
    for dtype, rows in tables.items():
        kernels[f"matmul_{dtype}"] = _matmuls(dtype, rows, load_gpu(data), advance) | {"source": source}
    constants["attention_2"] = {"value": _attention(figures.attention, load_gpu(data)), "source": source}
    constants["elementwise"] = {"value": _elementwise(figures.elementwise, load_gpu(data)), "source": source}
    if "float8_e4m3fn" not in tables:
        untold.append("8-bit matmuls: no measurement; the constants of the base GPU remain")
    # A GPU that computes for hours runs hotter and slower; measurements of seconds cannot show this.
    untold.append(
        "sustained load: measurements of seconds do not show the effect; use training runs of hours (simulator "
        "validate --csv)"
    )
    return GpuFit(data, tuple(_residuals(figures, data)), tuple(untold))


def _matmuls(dtype: str, rows: Sequence[MatmulRow], gpu: Gpu, advance: Callable[[], None] | None) -> dict[str, float]:
    """Return the constants of a dtype's matmuls: those of `_MATMUL` are fitted, `copies` is the base GPU's."""
    model = kernel_model(gpu)
    copies = model.constants.get(f"{model.matmul_family(dtype)}_copies")
    own = {} if copies is None else {"copies": copies.value}
    # A constant of the same kernel keeps `copies` beside the constants that the search changes.
    start = with_constants(gpu, {f"matmul_{dtype}_{name}": value for name, value in own.items()})
    names = [f"matmul_{dtype}_{name}" for name in _MATMUL]
    found = fit([rows], start, names, rounds=_DTYPE_ROUNDS, advance=advance)
    return {name: float(f"{value:.4g}") for name, value in zip(_MATMUL, found.values(), strict=True)} | own


def _attention(rows: Sequence[AttentionRow], gpu: Gpu) -> float:
    """Return the share of the peak at which simulated attention takes the measured time, in the median over rows."""
    low, high = 0.01, 1.0
    # Bisection: a larger share means shorter times; 20 halvings are exact to 1e-6.
    for _ in range(20):
        share = (low + high) / 2
        changed = with_constants(gpu, {"attention_2": share})
        slower = median(row.simulated(changed) / row.forward_backward for row in rows) > 1.0
        low, high = (share, high) if slower else (low, share)
    return float(f"{high:.3g}")


def _elementwise(rows: Sequence[ElementwiseRow], gpu: Gpu) -> float:
    """Return the elementwise kernels' rate relative to the copy rate: median over rows with the largest size."""
    # Smaller arrays fit into the cache, or are bound by launches.
    largest = max(row.rows * row.columns for row in rows)
    shares = [row.simulated(gpu) / row.seconds for row in rows if row.rows * row.columns == largest]
    return float(f"{min(1.0, median(shares)):.3g}")


def _residuals(figures: GpuFigures, data: Mapping[str, Any]) -> list[GpuResidual]:
    gpu = load_gpu(dict(data))
    residuals = [
        GpuResidual("matmul", f"{r.m} x {r.n} x {r.k} {r.dtype}", r.seconds, r.simulated(gpu)) for r in figures.matmul
    ]
    for row in figures.attention:
        name = f"{row.batch} x {row.heads} heads, {row.seq_len} tokens, {row.head_dim} wide"
        residuals.append(GpuResidual("attention", name, row.forward_backward, row.simulated(gpu)))
    # `duration` gives a kernel's time at the full copy rate.
    share = elementwise_share(gpu)
    residuals += [
        GpuResidual("elementwise", f"{r.kind} {r.rows} x {r.columns}", r.seconds, r.simulated(gpu) / share)
        for r in figures.elementwise
    ]
    for step in figures.gpt:
        residuals += _gpt(step, gpu)
    return residuals


def _gpt(row: GptRow, gpu: Gpu) -> list[GpuResidual]:
    """Return a measured GPT step's time and memory beside their simulated values; nothing is fitted to them."""
    model = load_transformer(
        {"model_type": "gpt2", "name": "small", "n_layer": row.layers, "n_embd": row.hidden, "n_head": row.heads,
         "n_positions": row.seq_len, "vocab_size": row.words, "tie_word_embeddings": False}
    )  # fmt: skip
    # The measured program has no framework: no sustained slow-down, no kernels of a framework.
    framework = load_framework("torchtitan").with_constants(sustained={}, parameter_bytes=0.0, program="bare")
    step = bare_step(
        model,
        row.seq_len,
        row.sequences,
        precision=Precision(params="bfloat16", grads="bfloat16", reduce="bfloat16", master=None, matmul="bfloat16"),
        activation_checkpointing=row.checkpointing,
        optimizer=OPTIMIZERS.find("sgd"),
        framework=framework,
    )
    cluster = replace(build("star_100g", 1), gpus=(gpu,))
    planned = plan_step(cluster, step)
    timeline = play("auto", planned.program, cluster, limit_memory=False)
    policy = " checkpointed" if row.checkpointing == "full" else ""
    name = f"{row.layers} layers of {row.hidden}{policy}, {row.sequences} x {row.seq_len} tokens"
    residuals = [GpuResidual("GPT step", name, row.seconds, timeline.end)]
    if row.peak_bytes and timeline.peak is not None:
        residuals.append(GpuResidual("GPT memory", name, float(row.peak_bytes), float(timeline.peak.nbytes)))
    return residuals
