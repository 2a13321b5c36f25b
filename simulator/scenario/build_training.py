"""Builds the TrainingStep for the planner of steps from a scenario's `training`.

Nothing is checked here. Values that follow from another key ("auto") are filled in only in the step; an axis may
therefore change the other key.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.basics import dtypes
from simulator.collectives.algorithm_files import located
from simulator.model.model import adapters
from simulator.model.trainable import trained_of
from simulator.scenario import own_parts
from simulator.step.framework import load_framework
from simulator.step.global_batch import micro_batches
from simulator.step.learning_spec import DROPOUT, LossScaling, TrainingTask
from simulator.step.parallelism import Parallelism
from simulator.step.precision import Precision
from simulator.step.training_spec import OptimizerSpec, TrainingSpec

if TYPE_CHECKING:
    from simulator.collectives.algorithm import Algorithm
    from simulator.model.adapters import Lora
    from simulator.model.shape import Transformer
    from simulator.step.optimizers.optimizer import Distribution, Optimizer
    from simulator.step.spec import TrainingStep


def to_step(
    spec: TrainingSpec, world_size: int, base: Path | None = None, algorithm: Algorithm | None = None
) -> TrainingStep:
    """Return the training step of a scenario for the planner, with the model read and every default filled in.

    Parameters
    ----------
    spec : TrainingSpec
        Keys of `training`.
    world_size : int
        Number of ranks; determines the data-parallel ranks if the file does not.
    base : Path, optional
        Folder for relative paths to the model and to files of own parts.
    algorithm : Algorithm, optional
        Algorithm of every collective for which it has a plan, in place of the scenario's.

    Raises
    ------
    ScenarioError
        The model cannot be read any more (it was checked earlier).
    ValueError
        The sizes of the parallel groups do not multiply out to world_size.

    Examples
    --------
    >>> to_step(TrainingSpec(model="llama3_8b", seq_len=8192), 8).precision.master
    'float32'
    """
    from simulator.model.load import load_model
    from simulator.model.shape import Transformer
    from simulator.step.spec import TrainingStep

    spec = own_parts.located(spec, base)
    # Checked again, because users from Python may call this function with any world_size.
    if ranks(spec.parallelism, world_size) != world_size:
        raise ValueError(f"parallelism: got {ranks(spec.parallelism, world_size)} ranks; must be {world_size}")
    model, framework = load_model(spec.model, spec.seq_len, base), load_framework(spec.framework, base)
    lora, lesson = adapters(spec.lora, model), None
    if isinstance(model, Transformer):
        model = replace(model, adapters=lora).predicting(spec.mtp_layers)
        # Files for real training are read only if used.
        lesson = _lesson(spec, model, world_size, base) if spec.numerics else None
    precision = spec.precision.resolved() if model.adapters is None else _of_adapters(spec, model.adapters)
    keys = spec.replaced(
        # A name, because the keys of a model that is written out have no hash.
        model=model.name,
        gradient_accumulation_steps=accumulation(spec, world_size),
        global_batch=None,
        sharding=spec.sharding.among(world_size),
        precision=precision,
        # Only real training depends on the probability.
        dropout=spec.dropout is not False and spec.dropout > 0,
        # Real training carries arrays in every collective, and a closed form carries none.
        collectives="played" if spec.numerics else spec.collectives,
        loss_scaling=spec.loss_scaling.replaced(rule=scaling_rule(spec.loss_scaling, spec.precision)),
        lengths=None if spec.lengths is None else spec.lengths.located(base),
        parallelism=spec.parallelism.replaced(experts=spec.parallelism.experts.located(base)),
    )
    return TrainingStep(
        keys,
        model,
        optimizer=optimizer(
            spec.optimizer, spec.sharding.strategy, _state_dtype(spec, precision, model.adapters), precision.updated
        ),
        framework=framework.on_ranks(world_size),
        algorithm=located(spec.algorithm, base) if algorithm is None else algorithm,
        lesson=lesson,
        trained=trained_of(spec.trainable, model),
    )


def _of_adapters(spec: TrainingSpec, lora: Lora) -> Precision:
    """Return the dtypes when adapters alone are trained: gradients follow them, float32 ones need no master copy."""
    precision = spec.precision.resolved()
    grads = lora.dtype if spec.precision.grads == "auto" else precision.grads
    no_copy = spec.precision.master == "auto" and lora.dtype == "float32"
    return precision.replaced(grads=grads, master=None if no_copy else precision.master)


def _state_dtype(spec: TrainingSpec, precision: Precision, lora: Lora | None) -> str:
    """Return the dtype of the optimizer's states: PyTorch creates them like the numbers that they update, and states
    beside a wider copy are float32. Real training keeps float32 states.
    """
    setting = spec.optimizer.state_dtype
    if setting != "auto":
        return setting
    updated = precision.updated if lora is None else precision.master or lora.dtype
    narrow = dtypes.find(updated).bits < dtypes.find("float32").bits
    return updated if narrow and not spec.numerics else "float32"


def optimizer(spec: OptimizerSpec, strategy: str, state_dtype: str = "float32", updated: str = "float32") -> Optimizer:
    """Return the optimizer that the scenario's keys name, with the requested implementation, under a sharding strategy,
    for parameters that are updated in the dtype `updated`.
    """
    from simulator.step.optimizers.optimizer import OPTIMIZERS
    from simulator.step.strategies.strategy import STRATEGIES

    kind = None if spec.implementation == "auto" else spec.implementation
    entry = OPTIMIZERS.find(spec.name)
    copy = replace(entry, implementation=kind, state_dtype=entry.state_dtype if entry.has_own_dtype else state_dtype)
    if copy.of_matrices is None:
        return copy
    usual: Distribution = "gathered" if STRATEGIES.find(strategy).shards else "replicated"
    where = usual if spec.distribution == "auto" else spec.distribution
    rule = replace(copy.of_matrices, distribution=where, iterations=spec.iterations)
    # Parameters in float64 are there to show differences of rounding; bfloat16 would hide them.
    return replace(copy, of_matrices=replace(rule, dtype="float64") if updated == "float64" else rule)


def _lesson(spec: TrainingSpec, model: Transformer, world_size: int, base: Path | None) -> TrainingTask:
    from simulator.scenario.learning_files import parameter_shapes, read_batches, read_initial
    from simulator.scenario.tokens import read_tokens

    learning = spec.learning
    # Each line holds seq_len inputs and, one place further, their targets.
    shape = (spec.steps, sequences(spec, world_size), spec.seq_len + 1)
    return TrainingTask(
        learning=learning,
        # `dropout: true` means GPT-2's probability, `false` means 0.
        dropout=DROPOUT if spec.dropout is True else float(spec.dropout),
        text=None if learning.tokens is None else read_tokens(learning.tokens, base),
        faults=spec.faults,
        parameters=None if learning.initial is None else read_initial(learning.initial, base, parameter_shapes(model)),
        sequences=None if learning.batches is None else read_batches(learning.batches, base, shape, model.vocab_size),
    )


def sequences(spec: TrainingSpec, world_size: int) -> int:
    """Return the number of sequences per step, summed over the ranks."""
    return spec.micro_batch_size * accumulation(spec, world_size) * world_size


def accumulation(spec: TrainingSpec, world_size: int) -> int:
    """Return the micro-batches per rank and step: as written, or from the global batch.

    Raises
    ------
    ValueError
        Ranks cannot share the global batch evenly.

    Examples
    --------
    >>> spec = TrainingSpec(model="llama3_8b", seq_len=8192, micro_batch_size=2, global_batch="4M")
    >>> accumulation(spec, 64)
    4
    """
    if spec.global_batch is None:
        return spec.gradient_accumulation_steps
    cut = spec.parallelism
    # Never 0: this may run before the rule that refuses a world_size below tp x pp x cp.
    copies = max(1, world_size // (cut.tp * cut.pp * cut.cp))
    return micro_batches(spec.global_batch, spec.seq_len, copies, spec.micro_batch_size)


def with_accumulation(shape: TrainingSpec, world_size: int) -> TrainingSpec:
    """Return the training keys with the global batch replaced by the resulting number of micro-batches per rank.

    If ranks cannot share the batch, the number stays as written. A rule reports this, unless an axis sets another
    batch, other ranks or another sequence length.
    """
    try:
        steps = accumulation(shape, world_size)
    except ValueError:
        steps = shape.gradient_accumulation_steps
    return shape.replaced(gradient_accumulation_steps=steps, global_batch=None)


def scaling_rule(scaling: LossScaling, dtypes: Precision) -> str:
    """Return the loss-scaling rule of the scenario's keys; "auto" is replaced by the rule for the dtypes.

    >>> scaling_rule(LossScaling(), Precision(params="float16"))
    'dynamic'
    """
    if scaling.rule == "auto":
        return "dynamic" if dtypes.params == "float16" else "none"
    return scaling.rule


def tokens_used(spec: TrainingSpec, world_size: int, base: Path | None) -> float:
    """Return the share of a step's tokens that are not padding: as written, or of the documents with given lengths."""
    if spec.lengths is None:
        return spec.tokens_used
    from simulator.step.lengths import batches, used_share

    shape = spec.parallelism.grid(world_size).size("dp"), accumulation(spec, world_size)
    lengths = spec.lengths.located(base)
    return used_share(batches(lengths, spec.batching, spec.seq_len, spec.micro_batch_size, shape))


def ranks(parallelism: Parallelism, world_size: int) -> int:
    """Return the number of ranks that a scenario's parallelism uses: tp x pp x cp x dp.

    Without `dp` in the scenario, dp is the largest number with which the ranks fit into `world_size`.
    """
    # Expert parallelism spreads experts over ranks counted here already, and is no factor.
    rest = parallelism.tp * parallelism.pp * parallelism.cp
    return rest * (world_size // rest if parallelism.dp is None else parallelism.dp)
