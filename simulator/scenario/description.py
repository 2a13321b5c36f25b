"""How is a scenario described in a few words? By its job and its machine.

Titles, terminal and pages take their words from here. Default values are omitted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.sections import varied
from simulator.basics.work_unit import SAMPLE
from simulator.cluster.build import facts
from simulator.records.setting_text import label, labelled, setting_text
from simulator.scenario.records import CollectiveSpec, Scenario

if TYPE_CHECKING:
    from simulator.step.parallelism import Parallelism
    from simulator.step.precision import Precision
    from simulator.step.sharding import Sharding
    from simulator.step.training_spec import TrainingSpec

# Most characters of a name in a sentence.
_LONGEST: Final = 40
# Keys mentioned only if they differ from the default.
_SAID_IF_UNUSUAL: Final = (
    "activation_checkpointing", "attention", "framework", "allocator", "gradient_accumulation_steps",
    "global_batch", "tokens_used", "lengths", "batching", "mtp_layers",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Description:
    """A scenario in words."""

    job: str  # example: 'gpt2_xl, zero3, micro-batch 4, 1,024 tokens'
    machine: str  # example: '8 a100_sxm_80gb, dgx_a100'

    @property
    def text(self) -> str:
        """The job and the machine in words, separated by a semicolon."""
        return f"{self.job}; {self.machine}" if self.job and self.machine else self.job or self.machine


def describe(scenario: Scenario, without: Collection[str] = ()) -> Description:
    """Return a scenario's job and machine in a few words.

    Parameters
    ----------
    scenario : Scenario
        The scenario.
    without : collection of dotted key
        Keys mentioned elsewhere, or varied; "training.sharding.strategy" also excludes "training.sharding".

    Examples
    --------
    >>> from simulator.scenario.load import load_scenario
    >>> describe(load_scenario("zero_stages"), ["training.sharding.strategy", "cluster.world_size"]).text
    'gpt2_xl, micro-batch 4, 1,024 tokens, full checkpointing; a100_sxm_80gb, dgx_a100'
    >>> describe(load_scenario("training_for_real"), ["training.sharding.strategy"]).job
    'gpt2 (inline), micro-batch 8, 32 tokens, float32, optimizer adam, learning rate 0.001, 60 steps'
    """
    if scenario.training is not None:
        job = _of_step(scenario.training, in_samples=_in_samples(scenario, scenario.training))
    elif scenario.collective is not None:
        job = _of_collective(scenario.collective)
    else:
        job = iter(())
    # Each topology has its own GPU: if topologies vary, the GPU varies too.
    any_gpu = "cluster.gpu" in without or (scenario.cluster.gpu is None and "cluster.topology" in without)
    machine = _of_machine(scenario, any_gpu, "cluster.world_size" in without)
    # A part is dropped if its key is excluded, or if its text is empty.
    texts, standing = ([text for key, text in parts if text and not _left(key, without)] for parts in (job, machine))
    return Description(", ".join(texts), ", ".join(standing))


def describe_point(scenario: Scenario, settings: Mapping[str, Any]) -> str:
    """Return a point in a few words: its settings first, then the values common to every point of the scenario.

    Parameters
    ----------
    scenario : Scenario
        The point's scenario.
    settings : mapping of dotted key to value
        The point's settings; empty for the common part.

    Examples
    --------
    >>> from simulator.scenario.load import load_scenario
    >>> describe_point(load_scenario("low_precision_sum"), {"collective.accumulate": "float32"})
    'sums in float32; all_reduce, 1 MiB; 16 a100_sxm_80gb, star_100g'
    """
    settings_text, common = labelled(settings), describe(scenario, varied({**scenario.compare, **scenario.sweep})).text
    return f"{settings_text}; {common}" if settings_text and common else settings_text or common


def _left(key: str, without: Collection[str]) -> bool:
    """Return True if `key` equals a key in `without`, contains such a key, or lies within it."""
    return any(key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.") for other in without)


def _name(value: Any) -> str:
    """Return the name or path of a topology or model as written, cut to 40 characters; "inline" for a mapping."""
    return str(value)[:_LONGEST] if isinstance(value, str) else "inline"


def _of_machine(scenario: Scenario, any_gpu: bool, any_number: bool) -> Iterator[tuple[str, str]]:
    spec = scenario.cluster
    gpu = spec.gpu if spec.gpu is not None else facts(spec.topology, scenario.base).gpu
    # A machine is described as "8 a100_sxm_80gb", "8 GPUs" (GPU unknown or varied), or "a100_sxm_80gb" (number varied).
    name = "" if gpu is None or any_gpu else _name(gpu)
    number = "" if any_number else f"{spec.world_size:,} "
    yield "GPUs", f"{number}{name or ('GPU' if number == '1 ' else 'GPUs')}"
    yield "cluster.topology", _name(spec.topology)
    if spec.stragglers:
        yield "cluster.stragglers", label("cluster.stragglers", spec.stragglers)
    if spec.link_factors:
        yield "cluster.link_factors", label("cluster.link_factors", spec.link_factors)
    if spec.events:
        yield "cluster.events", label("cluster.events", spec.events)


def _of_collective(spec: CollectiveSpec) -> Iterator[tuple[str, str]]:
    from simulator.basics.units import format_size

    yield "collective.operation", spec.operation
    yield "collective.algorithm", spec.algorithm
    yield "collective.size", format_size(spec.nbytes)
    yield "collective.dtype", spec.dtype
    if spec.servers is not None:
        yield "collective.servers.count", label("collective.servers.count", spec.servers.count)
    if spec.tensors is not None:
        yield "collective.tensors", f"{len(spec.tensors)} tensors"
    if spec.group is not None:
        yield "collective.group", f"{len(spec.group)} ranks"


def _in_samples(scenario: Scenario, spec: TrainingSpec) -> bool:
    """Return True if every model of the scenario counts samples that are no sequences: these have no length."""
    # Such a sample counts as one token; longer sequences need no look at the models.
    from simulator.model.load import load_model

    models = {**scenario.compare, **scenario.sweep}.get("training.model", (spec.model,)) if spec.seq_len == 1 else ()
    return bool(models) and all(load_model(model, base=scenario.base).work_unit == SAMPLE for model in models)


def _of_step(spec: TrainingSpec, *, in_samples: bool) -> Iterator[tuple[str, str]]:
    model = spec.model
    # A model written out in the scenario has no name of its own.
    kind = model.get("model_type", "model") if isinstance(model, Mapping) else ""
    yield "training.model", f"{setting_text(kind)[:_LONGEST]} (inline)" if kind else _name(model)
    if spec.trainable != "all":
        yield "training.trainable", label("training.trainable", spec.trainable)
    if spec.lora.rank:
        yield "training.lora", label("training.lora", spec.lora.model_dump(exclude_defaults=True))
    yield "training.sharding", _sharding(spec.sharding)
    yield from _parallelism(spec.parallelism)
    yield "training.micro_batch_size", label("training.micro_batch_size", spec.micro_batch_size)
    if not in_samples:
        yield "training.seq_len", label("training.seq_len", spec.seq_len)
    usual = {name: field.default for name, field in type(spec).model_fields.items()}
    for name in _SAID_IF_UNUSUAL:
        value = getattr(spec, name)
        # With a global batch, the number of micro-batches is a result; the batch itself is mentioned.
        follows = name == "gradient_accumulation_steps" and spec.global_batch is not None
        if value != usual[name] and not follows:
            yield f"training.{name}", label(f"training.{name}", value)
    if spec.precision != usual["precision"]:
        yield "training.precision", _precision(spec.precision)
    if spec.numerics:
        # The losses of a real training depend on both, also if the scenario keeps their defaults.
        yield "training.optimizer", label("training.optimizer", spec.optimizer.name)
        yield "training.learning.rate", label("training.learning", {"rate": spec.learning.rate})
        yield "training.steps", f"{spec.steps} steps"


def _sharding(sharding: Sharding) -> str:
    changed = sharding.model_dump(exclude_defaults=True)
    return setting_text({"strategy": sharding.strategy, **changed})


def _parallelism(spec: Parallelism) -> Iterator[tuple[str, str]]:
    for name in ("tp", "cp", "pp", "ep"):
        if getattr(spec, name) > 1:
            yield f"training.parallelism.{name}", f"{name} {getattr(spec, name)}"
    if spec.pp > 1:
        yield "training.parallelism.schedule", spec.schedule


def _precision(spec: Precision) -> str:
    """Return the dtype of matmuls (if "auto", of parameters) up to the first underscore: "float8" for float8_e4m3fn."""
    return (spec.params if spec.matmul == "auto" else spec.matmul).partition("_")[0]
