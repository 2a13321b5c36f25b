"""Is a training step inside the validated range, or which of its choices have no measured run?

The step's choices are compared with measured runs in the package (catalog/measured/training.csv, training_cut.csv and
fine_tuning.csv): first each choice, then their combination. No number depends on the result.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from simulator.basics.dtypes import find, is_narrow
from simulator.basics.errors import ScenarioError
from simulator.basics.foreign_code import file_name
from simulator.basics.measured_tables import read_table
from simulator.cluster.build import facts
from simulator.cluster.cluster import Gpu
from simulator.cluster.gpu_file import load_gpu
from simulator.model.layer_list import LayerList
from simulator.model.load import load_model
from simulator.model.model import Model
from simulator.report.numbers.prediction_intervals import measured_framework, unmeasured_parallelism
from simulator.scenario.records import Scenario
from simulator.step.framework import BARE, load_framework
from simulator.step.pipelines.schedule import SCHEDULES


@dataclass(frozen=True, slots=True)
class RunTraits:
    """Traits of a measured run or of a training step, to compare them: framework, GPU, parallelism, sharding, batch."""

    framework: str
    gpu: str
    gpus: int
    tp: int
    pp: int
    cp: int
    ep: int
    schedule: str  # pipeline schedule; "1f1b" without a pipeline
    virtual_stages: int
    sharding: str
    micro_batch: int
    checkpointing: str
    offload: bool
    eight_bit: bool  # whether matmuls run in an 8-bit dtype
    # Format of the frozen matrices, if low-rank adapters alone are trained: "params", "nf4", ...; "" otherwise
    base: str = ""
    dora: bool = False  # whether these adapters are DoRA's
    frozen: bool = False  # whether parts of the model are frozen
    experts: bool = False  # whether the model has experts
    unlike: tuple[str, ...] = ()  # features of the model's layers that no measured model has, in words
    unequal: bool = False  # whether documents have unequal lengths

    @property
    def features(self) -> frozenset[str]:
        """Names of the features in use, without sizes: {"tp", "zero1", "full checkpointing"}."""
        sizes = {name for name in ("tp", "pp", "cp", "ep") if getattr(self, name) > 1}
        features = {self.sharding, *([self.schedule] if self.pp > 1 else [])}
        some = "checkpointing of one in several layers" if self.checkpointing == "every" else ""
        features |= {some or f"{self.checkpointing} checkpointing"} if self.checkpointing != "none" else set()
        features |= {"adapters" if self.base == "params" else f"adapters on {self.base}"} if self.base else set()
        features |= {"frozen parts"} if self.frozen else set()
        features |= ({"offload"} if self.offload else set()) | ({"8-bit matmuls"} if self.eight_bit else set())
        return frozenset(sizes | features)


# A framework's fitted constants depend most on these features: model parallelism and pipeline schedules.
_CUTS: Final = frozenset({"tp", "pp", "cp", "ep", *SCHEDULES.names()})
# Traits outside the validated range if above the largest measured value, with their names in a sentence.
_SIZES: Final[Mapping[str, str]] = {
    "gpus": "GPUs", "tp": "tensor-parallel ranks", "pp": "pipeline stages", "cp": "context-parallel ranks",
    "ep": "expert-parallel ranks", "virtual_stages": "virtual stages", "micro_batch": "sequences in a micro-batch",
}  # fmt: skip
_NAMES: Final[Mapping[str, str]] = {
    "framework": "framework {}", "gpu": "GPU {}", "schedule": "schedule {}", "sharding": "{}",
    "checkpointing": "{} checkpointing",
}  # fmt: skip


def outside_of_measured(scenario: Scenario) -> list[str]:
    """Return sentences on a training step's traits without a measured run; empty inside the validated range.

    Parameters
    ----------
    scenario : Scenario
        A training scenario with a single point.
    """
    kind, runs = _traits(scenario), measured_runs()
    sentences = list(_unmeasured_traits(kind, runs))
    every = frozenset().union(*(run.features for run in runs))
    features = frozenset().union(*(run.features for run in runs if run.framework == kind.framework))
    # A feature that no run has is reported by `_unmeasured_traits`.
    missing = sorted((kind.features & _CUTS & every) - features)
    if missing and features:
        sentences.append(f"no measured run of {kind.framework} has {', '.join(missing)}")
    # Each choice was measured; their combination may not have been.
    if not sentences and not any(kind.features <= run.features and kind.gpu == run.gpu for run in runs):
        all_of = "the combination of " if len(kind.features) > 1 else ""
        sentences.append(f"no measured run on {kind.gpu} has {all_of}{', '.join(sorted(kind.features))}")
    return sentences


def unmeasured_kinds(scenario: Scenario) -> tuple[str, tuple[str, ...]] | None:
    """Return a training step's framework with the step's kinds of model parallelism that no measured run of this
    framework has; None if there are none, or no run of the framework at all.
    """
    kind = _traits(scenario)
    if not any(run.framework == kind.framework for run in measured_runs()):
        return None
    # Experts over ranks are told as "ep".
    sizes = {"tp": kind.tp, "pp": kind.pp, "cp": kind.cp, "ep": kind.ep, "experts": 1 + (kind.experts and kind.ep == 1)}
    kinds = unmeasured_parallelism(kind.framework, sizes)
    return (kind.framework, kinds) if kinds else None


def is_list_of_layers(scenario: Scenario) -> bool:
    """Return True if a training scenario's model is a list of layers, of which no run was measured."""
    spec = scenario.training
    return spec is not None and isinstance(load_model(spec.model, spec.seq_len, scenario.base), LayerList)


def _unmeasured_traits(kind: RunTraits, runs: Collection[RunTraits]) -> Iterator[str]:
    """Yield a sentence for each single trait of `kind` that no measured run has."""
    if kind.framework == BARE.name:
        yield (
            "no framework is named, therefore kernels have no framework overhead; --set training.framework=nemo "
            "names a framework"
        )
    for name, words in _NAMES.items():
        if (name, kind.framework) == ("framework", BARE.name):
            continue
        if getattr(kind, name) not in {getattr(run, name) for run in runs}:
            yield f"no measured run uses {words.format(file_name(str(getattr(kind, name))))}"
    for name, words in _SIZES.items():
        most = max(getattr(run, name) for run in runs)
        if getattr(kind, name) > most:
            yield f"no measured run has more than {most:,} {words}"
    for feature in kind.unlike:
        yield f"no measured model has {feature}"
    if kind.base not in {run.base for run in runs}:
        yield f"no measured run trains adapters on {kind.base}"
    if kind.dora:
        yield "no measured run trains the lengths of rows (dora)"
    if kind.experts and kind.ep == 1 and not any(run.experts for run in runs if run.framework == kind.framework):
        yield f"no measured run of {kind.framework} has experts"
    if kind.frozen:
        yield "no measured run freezes parts of its model"
    if kind.unequal:
        yield "no measured run has documents of unequal lengths"
    if kind.offload:
        yield "no measured run offloads optimizer states to the host"


def _traits(scenario: Scenario) -> RunTraits:
    """Return the traits of a training scenario's step, for comparison with measured runs."""
    spec, gpus = scenario.training, scenario.cluster.world_size
    if spec is None:
        raise TypeError("only training steps were measured")
    parallelism = spec.parallelism
    # Recompute by layer is a kind of its own that no measured run has.
    policy, precision = spec.activation_checkpointing, spec.precision.resolved()
    is_mixed = precision.params == "float32" and find(precision.matmul, stored=False).bits == 16
    autocast = ("parameters in float32 under autocast",) if is_mixed else ()
    checkpointing = policy if isinstance(policy, str) else "every" if isinstance(policy, int) else "layer by layer"
    framework = load_framework(spec.framework, scenario.base)
    model = load_model(spec.model, spec.seq_len, scenario.base)
    return RunTraits(
        measured_framework(framework.name, framework.origin), gpu_name(scenario), gpus, parallelism.tp, parallelism.pp,
        parallelism.cp, parallelism.ep, parallelism.schedule,
        parallelism.virtual_stages, spec.sharding.strategy, spec.micro_batch_size, checkpointing,
        spec.offload.what != "none", is_narrow(precision.matmul),
        spec.lora.base if spec.lora.rank else "", bool(spec.lora.rank) and spec.lora.dora, spec.trainable != "all",
        model.num_experts > 0, (*_unlike(model, spec.seq_len), *autocast), spec.lengths is not None,
    )  # fmt: skip


def _unlike(model: Model, seq_len: int) -> tuple[str, ...]:
    """Return the features of a model's layers, on sequences of `seq_len` tokens, that no measured model has."""
    if isinstance(model, LayerList):
        return ("layers other than a transformer's",)
    features = {
        "patches of images": model.patches is not None,
        "attention to later keys": not model.causal and model.patches is None,
        "windows of attention": any(0 < window < seq_len for window in model.windows),
        "attention and MLP side by side": model.form in ("parallel", "shared"),
        "norms after attention and MLP": model.form in ("post", "both", "sum"),
        "Mamba-2 mixers": model.mamba is not None,
        "attention sinks": model.sinks,
        "a soft-cap": model.score_cap or model.logit_cap,
    }
    return tuple(name for name, has in features.items() if has)


def gpu_name(scenario: Scenario) -> str:
    """Return the name of a scenario's GPU: its own, or the topology's; "" for several kinds of GPUs."""
    gpu = _gpu(scenario)
    return "" if gpu is None else gpu.name


def _gpu(scenario: Scenario) -> Gpu | None:
    """Return the GPU of a scenario: its own, or the topology's; None for several kinds of GPUs."""
    gpu = scenario.cluster.gpu or facts(scenario.cluster.topology, scenario.base).gpu
    return None if gpu is None else load_gpu(gpu, scenario.base)


def source_of_constants(point: Scenario) -> str:
    """Return a text on the source of the constants, fitted to a framework and GPU, that slow a point's kernels down."""
    training = point.training
    if training is None or training.framework == BARE.name:
        return "no fitted constants (framework: bare)"
    framework = load_framework(training.framework, point.base)
    try:
        gpu = _gpu(point)
    # The GPU is not known without building the cluster.
    except ScenarioError:
        gpu = None
    # Constants by source: the framework itself, another framework whose constants are taken over, or "" (assumed).
    by = framework.fitted_to(gpu)
    # Constants of kernels that this step does not have say nothing about its times.
    dtypes = training.precision.resolved()
    used = {"compiled": training.compile, "row_scaled": dtypes.scaling == "row" and is_narrow(dtypes.matmul)}
    by = {whose: [name for name in names if used.get(name, True)] for whose, names in by.items()}
    fitted, assumed = ", ".join(by.pop(framework.name, [])), ", ".join(by.pop("", []))
    borrowed = [f"carried over from {whose}: {', '.join(names)}" for whose, names in by.items() if names]
    texts = [
        f"fitted to its own measured runs: {fitted}" if fitted else "none is fitted to measured runs of its own",
        *borrowed,
        *([f"assumed: {assumed}"] if assumed else []),
    ]
    if gpu is not None and framework.chip(gpu) is None:
        texts.append(f"loss of {gpu.name} under sustained load: median of other chips")
    return f"constants with which {framework.name} slows kernels down: {'; '.join(texts)} (docs/validation.md)"


@cache
def measured_runs() -> tuple[RunTraits, ...]:
    """Return the traits of the catalog's measured training runs in which a whole step was timed."""
    tuned = [row for row in read_table("fine_tuning.csv") if row["tokens_per_s"]]
    rows = (*read_table("training.csv"), *read_table("training_cut.csv"), *tuned)
    return tuple(_run(row) for row in rows if row.get("how", "timed") == "timed")


def _run(row: Mapping[str, str]) -> RunTraits:
    """Return the traits of a measured run from a row of the catalog's table."""

    def number(name: str) -> int:
        """Return the whole number in a column of the row; 1 if empty."""
        return int(row.get(name) or 1)

    every = row["checkpointing"].isdecimal()
    return RunTraits(
        row["framework"], row["gpu"], number("gpus"), number("tp"), number("pp"), number("cp"), number("ep"),
        row.get("schedule") or "1f1b", number("virtual_stages"), row["sharding"], number("micro_batch_size"),
        # Recompute of every k-th layer is a single kind of run; measured runs never offload.
        "every" if every else row["checkpointing"], False, is_narrow(row.get("matmul") or row["dtype"]),
        row.get("base", ""),
        # Measured experts are spread over ranks.
        experts=number("ep") > 1,
    )  # fmt: skip
