"""How is a GPU read: from catalog/gpus/NAME.yaml, a path, or a mapping?

Every figure in the file has its source, and is marked if uncertain (see `figure`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Final, cast

from pydantic import AfterValidator, Field, create_model, field_validator, model_validator

from simulator.basics import dtypes, registry
from simulator.basics.document import Document, Fault, Key
from simulator.basics.errors import ScenarioError, UnknownNameError
from simulator.cluster.cluster import Gpu
from simulator.cluster.figure import (
    AnySpeed,
    Memory,
    Number,
    Positive,
    Rate,
    SourcedValue,
    Speed,
    Strict,
    Whole,
    figures,
)
from simulator.cluster.locate import read_named
from simulator.cluster.validation import check


def _known(name: str) -> str:
    try:
        return dtypes.find(name, stored=False).name
    except UnknownNameError as error:
        raise ValueError(str(error).removeprefix("dtype: ")) from error


def _catalog_gpu(name: str) -> str:
    if name not in registry.names("gpu"):
        raise ValueError(f"got {name!r}; must be a GPU of the catalog")
    return name


_Peaks = dict[Annotated[str, AfterValidator(_known)], Rate]


class _Best(Rate):
    """A measured matmul rate [FLOP/s], with m, n and k of the matmul that reached the rate."""

    shape: tuple[int, int, int] = (8192, 8192, 8192)

    @field_validator("shape", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


class _Fitted(SourcedValue):
    """Constants fitted to measured times of a kind of kernel on this chip."""

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        return data


# Constants of a kernel: times [s], rates [B/s], shares, an exponent; what each means is told where it is used
# (`MatmulConstants`, `AttentionConstants`). `row` is the time of a row of a cast.
KERNEL_CONSTANTS: Final[Mapping[str, Any]] = MappingProxyType(
    {
        **dict.fromkeys(("prologue", "copies", "softmax", "masked", "row"), Annotated[float, Field(ge=0)]),
        "efficiency": Annotated[float, Field(gt=0, le=1)],
        "overlap": Annotated[float, Field(ge=1)],
        "operand_rate": Annotated[float, Field(gt=0)],
    }
)
_Kernel: Any = create_model(  # type: ignore[call-overload]
    "_Kernel", __base__=_Fitted, **{name: (form | None, None) for name, form in KERNEL_CONSTANTS.items()}
)


class _GpuFile(Strict):
    """A GPU file's keys, as a pydantic model.

    Vector units and matrix units (tensor cores) have separate rates; integer operations count as FLOP. `clock` is the
    clock for the peak rates [Hz], `power` the board's power [W]. `context_bytes` is the memory that nvidia-smi prints
    for a process without tensors. `best_matmul_flops` and `stream_bandwidth` are the best measured values; `constants`
    holds numbers of this chip, `kernels` the constants of a kind of kernel that are fitted together, and `kernels_as`
    names the GPU of the catalog whose constants stand for the kernels that are not listed.
    """

    product: str = ""
    vector_flops: _Peaks = Field(default_factory=dict)
    matrix_flops: _Peaks = Field(default_factory=dict)
    hbm_bytes: Memory
    hbm_bandwidth: Speed
    sms: Whole
    context_bytes: Memory | None = None
    scale_up_bandwidth: AnySpeed = AnySpeed.model_construct(value=0.0)
    scale_up_links: Whole | None = None
    host_bandwidth: Speed
    clock: Positive | None = None
    l2_bytes: Memory | None = None
    shared_memory_per_sm: Memory | None = None
    power: Positive | None = None
    best_matmul_flops: dict[Annotated[str, AfterValidator(_known)], _Best] = Field(default_factory=dict)
    stream_bandwidth: Speed | None = None
    constants: dict[str, Number] = Field(default_factory=dict)
    kernels: dict[str, _Kernel] = Field(default_factory=dict)
    kernels_as: Annotated[str, AfterValidator(_catalog_gpu)] | None = None


def load_gpu(gpu: str | Path | Mapping[str, Any], base: Path | None = None) -> Gpu:
    """Return a GPU, read from the catalog, a file or a mapping.

    Parameters
    ----------
    gpu : str, Path or mapping
        A catalog name, a path, or the keys of a GPU file.
    base : Path, optional
        Folder against which a relative path is read first.

    Returns
    -------
    Gpu
        `peak_flops` holds the rate of the matrix units if the GPU has them for a dtype, else of the vector units.

    Raises
    ------
    ScenarioError
        Unknown name; one line for each fault in the file.

    Examples
    --------
    >>> load_gpu("a100_sxm_80gb").peak_flops["bfloat16"]
    312000000000000.0
    """
    return _gpu(*read_named("gpu", gpu, base))


def _gpu(name: str, document: Document) -> Gpu:
    file, faults = _checked(document)
    document.refuse(faults)
    return _record(name, cast(_GpuFile, file))


def faults_of(gpu: str | Mapping[str, Any], document: Document, at: Key, base: Path | None) -> list[Fault]:
    """Return the faults in the GPU that a document has under the key `at`, by name, path or description.

    `base` is the folder against which a relative path is read first.
    """
    if isinstance(gpu, Mapping):
        return _checked(document, at)[1]
    # Shipped GPU files are tested, so they are not read again.
    if gpu in registry.names("gpu"):
        return []
    try:
        load_gpu(gpu, base)
    except ScenarioError as error:
        return [document.fault(at, line.removeprefix("gpu: ")) for line in str(error).splitlines()]
    return []


def _checked(document: Document, at: Key = ()) -> tuple[_GpuFile | None, list[Fault]]:
    file, faults = check(_GpuFile, document, at)
    if file is not None:
        if not (file.vector_flops or file.matrix_flops):
            # Both mappings are optional in the model, so the model alone accepts a GPU without any rate.
            faults = [document.fault(at, "needs vector_flops or matrix_flops, with a rate for each dtype")]
        faults += [
            document.fault(
                (*at, "constants", name), ("got 0; must be more than 0, because kernel times divide by this rate")
            )
            for name, figure in file.constants.items()
            if figure.value == 0 and (name.startswith("attention_") or name.endswith(("_rate", "_efficiency")))
        ]
    return file, faults


def _record(name: str, file: _GpuFile) -> Gpu:
    vector = {dtype: figure.value for dtype, figure in file.vector_flops.items()}
    # Matrix units replace vector units for every dtype with a matrix rate (`vector | matrix`).
    matrix = {dtype: figure.value for dtype, figure in file.matrix_flops.items()}
    return Gpu(
        name=name,
        peak_flops=vector | matrix,
        hbm_bytes=int(file.hbm_bytes.value),
        hbm_bandwidth=file.hbm_bandwidth.value,
        sms=file.sms.value,
        scale_up_bandwidth=file.scale_up_bandwidth.value,
        host_bandwidth=file.host_bandwidth.value,
        facts=_facts(file, vector, matrix),
    )


def _facts(file: _GpuFile, vector: dict[str, float], matrix: dict[str, float]) -> dict[str, Any]:
    by_key = dict(figures(file))
    constants = {name: figure.value for name, figure in file.constants.items()}
    for kernel, fit in file.kernels.items():
        for name in fit.model_fields_set - {"source", "sure"}:
            constants[f"{kernel}_{name}"] = getattr(fit, name)
            by_key[f"constants.{kernel}_{name}"] = fit
    facts: dict[str, Any] = {
        "product": file.product,
        "vector_flops": vector,
        "matrix_flops": matrix,
        "best_matmul_flops": {name: figure.value for name, figure in file.best_matmul_flops.items()},
        "best_matmul": {name: (best.shape, best.value) for name, best in file.best_matmul_flops.items()},
        "constants": constants,
        "sources": {key: figure.source for key, figure in by_key.items()},
        "unsure": tuple(key for key, figure in by_key.items() if not figure.sure),
    }
    for key in (
        "scale_up_links", "clock", "l2_bytes", "shared_memory_per_sm", "power", "stream_bandwidth", "context_bytes"
    ):  # fmt: skip
        figure = getattr(file, key)
        if figure is not None:
            facts[key] = figure.value
    if file.kernels_as is not None:
        facts["kernels_as"] = file.kernels_as
    return facts
