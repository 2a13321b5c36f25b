"""How much memory and time does simulating a training step take, estimated from the step's own sizes?

The shares belong to `size_estimate.py`, which has those of clusters and collectives.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm, log2
from typing import Final

from simulator.cluster.build import build, facts
from simulator.model.load import load_transformer
from simulator.model.model import total, training_flops_per_token
from simulator.run.cost_parts import (
    A_FLOP,
    A_PASS,
    BYTES_A_PARAMETER,
    BYTES_AN_OPERATION_OF_A_RANK,
    FEW_RANKS,
    Share,
    rows,
    simulated_collectives,
)
from simulator.run.scenario_cluster import build_cluster
from simulator.scenario.build_training import sequences, to_step
from simulator.scenario.records import Scenario
from simulator.step.plan import StageNotes, few_micro_batches, groups_of, plan_step
from simulator.step.spec import TrainingStep, different_steps

# Steps with fewer operations, on few ranks, take at most seconds and get no estimate.
_FEW_OPERATIONS: Final = 300_000
# Measured on one of two cores (docs/speed.md) [s].
_A_RANK_OF_A_STEP: Final = 900e-6  # planning and simulating a step's rank
_AN_OPERATION_OF_A_RANK: Final = 0.1e-6  # planning and simulating an operation on a step's rank
_AN_OPERATION: Final = 30e-6  # recording an operation in a list, and simulating it on few ranks
# Memory for each of these [B].
_BYTES_A_RANK_OF_A_STEP: Final = 20_000
_BYTES_AN_OPERATION: Final = 500
# Planning and simulating a row in a step's schedules [s], and its memory [B].
_A_ROW_OF_A_STEP: Final = 6e-6
_BYTES_A_ROW_OF_A_STEP: Final = 320
# Operations per layer and micro-batch if they are not counted; most layers and ranks for which counting is immediate.
_OPERATIONS_A_LAYER: Final = 15
_MOST_COUNTED_LAYERS: Final = 500
_MOST_COUNTED_RANKS: Final = 16_384
# Memory of an activation in real training, for each layer, token and element in the hidden size [B].
_BYTES_AN_ACTIVATION: Final = 100
# Ranks in the smaller planned step, and most ranks in the larger planned step: a second of planning.
_FEW: Final = 128
# Largest factor on the rows of a step with each doubling of the ranks: every rank sends to every rank.
_MOST_GROWTH: Final = 4.0
_MOST: Final = 4096


def of_step(scenario: Scenario, planned: dict[str, int]) -> tuple[Share, ...]:
    """Return the parts of the memory [B] and time [s] that simulating a training takes on this machine; empty for a
    training of seconds. `planned` has the schedule rows of steps already planned on few ranks, for other points.
    """
    spec, ranks = scenario.training, scenario.cluster.world_size
    if spec is None:
        return ()
    step = to_step(spec.replaced(numerics=False), ranks, scenario.base)
    noted, times = _roughly_noted(step), len(dict(different_steps(step)))
    if ranks < FEW_RANKS and noted * times < _FEW_OPERATIONS:
        return ()
    if noted >= _FEW_OPERATIONS:
        noted = _counted(scenario, step) or noted
    # Ranks in a stage share an operation list, and the engine follows the list for each rank.
    layers, stages = step.model.num_layers, step.parallelism.pp
    followed = noted / stages * ranks
    cause = f"training.gradient_accumulation_steps: {step.accumulation:,} micro-batches"
    remedy = "take fewer micro-batches with more sequences each"
    if step.accumulation == 1:
        cause, remedy = f"training.model: {layers:,} layers", "take fewer layers"
    made_of = f"{noted:.3g} operations of {layers:,} layers" + (f" in {stages} stages" if stages > 1 else "")
    made_of += f", {times} steps" if times > 1 else ""
    lists = Share(cause, made_of, remedy, noted * _BYTES_AN_OPERATION, noted * _AN_OPERATION)
    written = 0.0
    if ranks >= FEW_RANKS:
        cause, remedy = f"cluster.world_size: {ranks:,} ranks", "take fewer ranks"
        written = _schedule_rows(scenario, step, planned)
    shares = (
        lists,
        Share(
            cause, f"{written:.3g} transfers in the schedules of collectives", remedy,
            written * _BYTES_A_ROW_OF_A_STEP, written * _A_ROW_OF_A_STEP,
        ),
        Share(
            cause, f"{followed:.3g} operations of all ranks", remedy,
            ranks * _BYTES_A_RANK_OF_A_STEP + followed * BYTES_AN_OPERATION_OF_A_RANK,
            ranks * _A_RANK_OF_A_STEP + followed * _AN_OPERATION_OF_A_RANK,
        ),
    )  # fmt: skip
    # Plans and timelines of all different steps are alive until the last one is simulated.
    return tuple(replace(each, nbytes=times * each.nbytes, seconds=times * each.seconds) for each in shares)


def of_real_training(scenario: Scenario) -> tuple[Share, ...]:
    """Return the shares of memory and time for a scenario's real training; empty without."""
    spec, ranks = scenario.training, scenario.cluster.world_size
    # Real training costs nothing unless requested.
    if spec is None or not spec.numerics:
        return ()
    model = load_transformer(spec.model, spec.seq_len, scenario.base)
    tokens = sequences(spec, ranks) * spec.seq_len
    passes = 2 * (model.num_layers + 2) * spec.gradient_accumulation_steps * ranks
    seconds = spec.steps * (passes * A_PASS + training_flops_per_token(model, spec.seq_len) * tokens * A_FLOP)
    # Only a single micro-batch's activations are kept at a time.
    activations = tokens // spec.gradient_accumulation_steps * model.num_layers * model.hidden_size
    return (
        Share(
            f"training.steps: {spec.steps:,} steps with numerics",
            f"{spec.steps * passes:.3g} passes of a layer in numpy",
            "take fewer steps, fewer ranks, or a smaller model",
            total(model) * ranks * BYTES_A_PARAMETER + activations * _BYTES_AN_ACTIVATION, seconds,
        ),
    )  # fmt: skip


def _roughly_noted(step: TrainingStep) -> float:
    """Return the total number of operations in all pipeline stages' lists, within a factor of three."""
    layers = step.model.num_layers + 2 * step.parallelism.pp
    return step.accumulation * step.rounds * layers * _OPERATIONS_A_LAYER


def _counted(scenario: Scenario, step: TrainingStep) -> float:
    """Return the number of operations of all pipeline stages, extrapolated from few micro-batches; 0 if impossible."""
    # A multiple accepted by every schedule.
    few = lcm(2 * step.parallelism.pp, step.parallelism.microbatch_group or 1)
    ranks = scenario.cluster.world_size
    if few >= step.accumulation or step.model.num_layers > _MOST_COUNTED_LAYERS or ranks > _MOST_COUNTED_RANKS:
        return 0.0
    gpu = scenario.cluster.gpu or facts(scenario.cluster.topology, scenario.base).gpu
    try:
        lone = build("star_100g", 1, gpu=gpu, base=scenario.base)
        notes = few_micro_batches(lone, step.with_keys(gradient_accumulation_steps=few), ranks)
    # Planning the step reports this fault with its key.
    except ValueError:
        return 0.0
    return sum(_operations_of(stage_notes, step.accumulation / few) for stage_notes in notes)


def _operations_of(notes: StageNotes, times: float) -> float:
    """Return an operation list's extrapolated length: each representative pass counts `times` times."""
    ends = [*notes.begins.values(), notes.ends][1:]
    length = {step_pass: end - begin for (step_pass, begin), end in zip(notes.begins.items(), ends, strict=True)}
    others = len(notes.ops) - sum(length.values())
    return others + times * sum(length[step_pass] for step_pass in notes.stand_for)


def _schedule_rows(scenario: Scenario, step: TrainingStep, planned: dict[str, int]) -> float:
    """Return a step's number of schedule rows to route, within a factor of two, from the same step on few ranks.

    0 if the step cannot be planned on few ranks. Steps that are equal on few ranks are planned once: `planned` keeps
    their rows.

    Rows grow by a constant factor with each doubling: 1 if groups keep their size, 4 if every rank sends to every
    rank. If the factor lies between 2 and 3 (algorithms with levels), rows per rank grow by a constant number instead.

    Examples
    --------
    A step with 624 rows a rank on 128 ranks and 672 on 256 has 672 + 6 x 48 = 960 on 16,384.
    """
    ranks = scenario.cluster.world_size
    few = _few_ranks(scenario, step)
    if 2 * few > min(ranks, _MOST):
        return 0.0
    try:
        small, large = (_rows_on_few(scenario, step, count, planned) for count in (few, 2 * few))
    # The full step's plan reports this fault later, with its key.
    except ValueError:
        return 0.0
    # Two sizes give a growth factor per doubling, which is extrapolated. Without any row on the fewer ranks, whose
    # collectives have closed forms, the factor is the largest that there is.
    doublings, growth = log2(ranks / (2 * few)), min(_MOST_GROWTH, large / max(small, 1))
    if 2.0 <= growth <= 3.0:
        return ranks * (large + doublings * (large - 2 * small)) / (2 * few)
    return float(large * growth**doublings)


def _rows_on_few(scenario: Scenario, step: TrainingStep, ranks: int, planned: dict[str, int]) -> int:
    """Return the number of schedule rows of the same step on `ranks` ranks, with few micro-batches."""
    # Keep the slowest straggler; links and placement may refer to parts missing in the small cluster.
    slow = {0: min(scenario.cluster.stragglers.values())} if scenario.cluster.stragglers else {}
    # A multiple accepted by every schedule.
    spec = scenario.cluster.replaced(world_size=ranks, stragglers=slow, link_factors={}, placement=None, ecmp=None)
    few = lcm(2 * step.parallelism.pp, step.parallelism.microbatch_group or 1)
    short = step.with_keys(gradient_accumulation_steps=min(step.accumulation, few))
    key = repr((spec, scenario.base, short))
    if key not in planned:
        steady = spec.jitter.compute == 0 and spec.jitter.latency == 0
        plan = plan_step(build_cluster(scenario.replaced(cluster=spec)), short, steady=steady)
        planned[key] = rows(simulated_collectives(plan.program), by_schedule=steady)
    return planned[key]


def _few_ranks(scenario: Scenario, step: TrainingStep) -> int:
    """Return a small number of ranks on which the step has two copies of the model in whole nodes, at least `_FEW`."""
    groups = groups_of(step, scenario.cluster.world_size)
    shard = groups.shard_size if groups.hybrid else 1
    experts = groups.expert_ranks * groups.expert_tensor
    period = lcm(groups.size("model") * shard, experts, facts(scenario.cluster.topology, scenario.base).node_size or 1)
    return period * max(2, _FEW // period)
