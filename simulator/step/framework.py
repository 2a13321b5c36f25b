"""What a training framework adds to bare kernels: constants from files, catalog/frameworks/NAME.yaml.

Rule: factors and bytes that belong to a framework or to a chip under sustained load, never to a model or a row of a
table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import AfterValidator, Field

from simulator.basics.document import Document
from simulator.cluster.cluster import Gpu
from simulator.cluster.figure import Figure, Strict, figures
from simulator.cluster.locate import read_named
from simulator.cluster.validation import checked

# How an optimizer's update runs: one kernel for all of it, or one for each arithmetic operation, over all tensors at
# once or for each tensor.
Implementation = Literal["fused", "foreach", "for_loop"]
IMPLEMENTATIONS: Final[tuple[Implementation, ...]] = get_args(Implementation)


@dataclass(frozen=True, slots=True)
class Sustained:
    """How much longer a chip's matmuls take hour after hour than in a micro-benchmark.

    Attributes
    ----------
    time : float
        Factor, at least 1.
    power : float
        The board's limit at which it was seen [W].
    peak_flops : float
        The board's dense bfloat16 peak [FLOP/s].
    """

    time: float
    power: float
    peak_flops: float


@dataclass(frozen=True, slots=True)
class Framework:
    """Constants of one framework; those of the bare kernels where nothing is given.

    Attributes
    ----------
    name : str
    attention_masked : float
        Share of the masked scores that attention computes nonetheless, 0 to 1.
    elementwise : float
        Time of what is not a matmul over that of its ideal HBM traffic.
    streaming : float
        The same of the loss and of the embedding, which pass through large arrays.
    parameter_bytes : float
        HBM traffic of copies and casts around a unit's collectives, for each parameter and micro-batch [B].
    compiled : float
        The same for kernels that a compiler has merged, over the traffic that they would have had apart.
    fused_loss : bool
        Whether the loss reads logits as they are and writes their gradient over them.
    loss_buffers : bool
        Whether a loss that is not fused holds its float32 gradients beside the log-probabilities (half of them where
        a compiler joins its steps).
    split_maps : bool
        Whether queries, keys and values, and gate and up, are maps of their own, of which `selective_op` runs every
        second one again.
    stops_early : bool
        Whether recomputation ends with the last tensor that the backward pass needs.
    casts_once : bool
        Whether a tensor is brought to eight bits once, in both orders, by a kernel of its own, and weights once a step;
        else each matmul casts both operands.
    overlaps : bool
        Whether collectives of sharding and kernels run beside each other; else each waits for the other.
    each_tensor : bool
        Whether every tensor travels in a collective of its own.
    gathers_again : bool
        Whether a layer that is run again is gathered for that, and once more for its backward pass.
    issue : float
        Host's time to issue a kernel or a collective [s]; a GPU that is faster waits for it.
    sends_block : bool
        Whether a host waits for what another stage sends before it issues more; not in schedules whose sends every
        framework batches (`PipelineSchedule.batches_sends`).
    issue_in_pipeline : float
        What a host takes besides to issue a tensor-parallel exchange, for each rank but one, where a pipeline's stages
        stand on several nodes [s].
    keeps_copies : bool
        Whether modules keep what merged kernels need not: the activation's output beside its product with the other
        half, queries and keys beside the array that they were cut from, attention's output in both orders.
    keeps_logits : bool
        Whether logits are still there when the loss goes backward.
    gradient_buffers : bool
        Whether whole gradients lie in buffers that are never freed.
    keeps_gradients : bool
        Whether gradients of the parameters' dtype are never freed either.
    optimizer_implementation : {"fused", "foreach", "for_loop"}
        How the optimizer's update runs where a scenario does not say it.
    reserved : float
        Held beside tensors: contexts, communication buffers, fragments [B].
    sustained : mapping of str to Sustained
        By chip: "H100".
    facts : mapping
        Sources, what is not sure, and whose measured runs each number was fitted to.
    """

    name: str = "bare"
    attention_masked: float = 0.0
    elementwise: float = 1.0
    streaming: float = 1.0
    parameter_bytes: float = 0.0
    compiled: float = 0.0
    fused_loss: bool = False
    loss_buffers: bool = False
    split_maps: bool = False
    stops_early: bool = False
    casts_once: bool = False
    overlaps: bool = True
    each_tensor: bool = False
    gathers_again: bool = False
    issue: float = 0.0
    sends_block: bool = False
    issue_in_pipeline: float = 0.0
    keeps_copies: bool = False
    keeps_logits: bool = False
    gradient_buffers: bool = False
    keeps_gradients: bool = False
    optimizer_implementation: Implementation = "fused"
    reserved: float = 0.0
    sustained: Mapping[str, Sustained] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def chip(self, gpu: Gpu) -> str | None:
        """Name of the chip of `sustained` that a GPU has; None where none of them is its."""
        names = f"{gpu.name} {gpu.facts.get('product', '')}".upper()
        return next((chip for chip in self.sustained if chip.upper() in names), None)

    def fitted_to(self, gpu: Gpu | None = None) -> dict[str, list[str]]:
        """Names of the constants that its file gives, by whose measured runs they were fitted to; "" for nobody's.

        Of what chips lose under sustained load only that of the GPU's chip is named.

        Examples
        --------
        >>> load_framework("nemo").fitted_to()
        {'': ['attention_masked'], 'megatron_2021': ['elementwise'], 'torchtitan': ['compiled']}
        """
        found: dict[str, list[str]] = {}
        own = None if gpu is None else self.chip(gpu)
        for key, whose in self.facts.get("fitted_to", {}).items():
            name, _, chip = key.partition(".")
            if not chip or chip == own:
                found.setdefault(whose, []).append(f"{name} of {chip}" if chip else name)
        return found

    def matmul_time(self, gpu: Gpu) -> float:
        """How much longer a matmul takes on this GPU than in a micro-benchmark: a factor, at least 1.

        Notes
        -----
        A chip that is not known takes the middle of those that are. A board with fewer watts for each FLOP/s of its
        peak loses in proportion (energy of a FLOP stays, once voltage is at its floor); one with more gains nothing.

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
        known = self.sustained[chip]
        power = float(gpu.facts.get("power", known.power))
        missing = (known.power / known.peak_flops) / (power / gpu.peak_flops.get("bfloat16", known.peak_flops))
        return known.time * max(1.0, missing)


BARE: Final = Framework()


def _positive(value: float) -> float:
    if value < 0.0:
        raise ValueError("must be at least 0")
    return value


def _share(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError("must be from 0 to 1")
    return value


def _factor(value: float) -> float:
    if value <= 0.0:
        raise ValueError("must be more than 0")
    return value


class _Constant(Figure):
    """A number of a framework; `fitted_to` names the framework, or the source, whose measured runs gave it."""

    fitted_to: str = ""


class _Amount(_Constant):
    value: Annotated[float, AfterValidator(_positive)]


class _Share(_Constant):
    value: Annotated[float, AfterValidator(_share)]


class _Factor(_Constant):
    value: Annotated[float, AfterValidator(_factor)]


class _Fact(Figure):
    value: bool


class _Choice(Figure):
    value: Implementation


class _Chip(_Constant):
    time: Annotated[float, AfterValidator(_factor)]
    power: Annotated[float, AfterValidator(_factor)]
    peak_flops: Annotated[float, AfterValidator(_factor)]


class _FrameworkFile(Strict):
    """What a framework file may hold."""

    product: str = ""
    attention_masked: _Share = _Share(value=0.0)
    elementwise: _Factor = _Factor(value=1.0)
    streaming: _Factor = _Factor(value=1.0)
    parameter_bytes: _Amount = _Amount(value=0.0)
    compiled: _Amount = _Amount(value=0.0)
    fused_loss: _Fact = _Fact(value=False)
    loss_buffers: _Fact = _Fact(value=False)
    split_maps: _Fact = _Fact(value=False)
    stops_early: _Fact = _Fact(value=False)
    casts_once: _Fact = _Fact(value=False)
    overlaps: _Fact = _Fact(value=True)
    each_tensor: _Fact = _Fact(value=False)
    gathers_again: _Fact = _Fact(value=False)
    issue: _Amount = _Amount(value=0.0)
    sends_block: _Fact = _Fact(value=False)
    issue_in_pipeline: _Amount = _Amount(value=0.0)
    keeps_copies: _Fact = _Fact(value=False)
    keeps_logits: _Fact = _Fact(value=False)
    gradient_buffers: _Fact = _Fact(value=False)
    keeps_gradients: _Fact = _Fact(value=False)
    optimizer_implementation: _Choice = _Choice(value="fused")
    reserved: _Amount = _Amount(value=0.0)
    sustained: dict[str, _Chip] = Field(default_factory=dict)


def load_framework(framework: str | Path | Mapping[str, Any], base: Path | None = None) -> Framework:
    """Read a framework.

    Parameters
    ----------
    framework : str, Path or mapping
        A catalog name, a path, or the keys of a framework file.
    base : Path, optional
        Folder against which a relative path is read first.

    Returns
    -------
    Framework

    Raises
    ------
    ScenarioError
        Unknown name; one line for each fault in the file.

    Examples
    --------
    >>> load_framework({"elementwise": 2.0}).elementwise
    2.0
    """
    return _framework(*read_named("framework", framework, base))


def _framework(name: str, document: Document) -> Framework:
    file = checked(_FrameworkFile, document)
    constants = figures(file)
    return Framework(
        name=name,
        attention_masked=file.attention_masked.value,
        elementwise=file.elementwise.value,
        streaming=file.streaming.value,
        parameter_bytes=file.parameter_bytes.value,
        compiled=file.compiled.value,
        fused_loss=file.fused_loss.value,
        loss_buffers=file.loss_buffers.value,
        split_maps=file.split_maps.value,
        stops_early=file.stops_early.value,
        casts_once=file.casts_once.value,
        overlaps=file.overlaps.value,
        each_tensor=file.each_tensor.value,
        gathers_again=file.gathers_again.value,
        issue=file.issue.value,
        sends_block=file.sends_block.value,
        issue_in_pipeline=file.issue_in_pipeline.value,
        keeps_copies=file.keeps_copies.value,
        keeps_logits=file.keeps_logits.value,
        gradient_buffers=file.gradient_buffers.value,
        keeps_gradients=file.keeps_gradients.value,
        optimizer_implementation=file.optimizer_implementation.value,
        reserved=file.reserved.value,
        sustained={chip: Sustained(load.time, load.power, load.peak_flops) for chip, load in file.sustained.items()},
        facts={
            "product": file.product,
            "sources": {key: figure.source for key, figure in constants},
            "unsure": tuple(key for key, figure in constants if not figure.sure),
            "fitted_to": {
                key: figure.fitted_to
                for key, figure in constants
                if isinstance(figure, _Constant) and key.partition(".")[0] in file.model_fields_set
            },
        },
    )
