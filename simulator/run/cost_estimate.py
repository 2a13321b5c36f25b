"""How much time and memory will a point's simulation take? Estimated from the plan, before routes exist.

The estimate takes no longer than planning and is good to a factor of three (`benchmarks/estimates.py` compares).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from simulator.basics.progress import stage
from simulator.engine.compiled.prepared import REDUCED_FROM
from simulator.engine.jitter import Jitter
from simulator.engine.play import BYTES_A_TRANSFER, SECONDS_A_TRANSFER, chosen
from simulator.records.operation import Collective
from simulator.records.program import Program, RanksByList
from simulator.report.numbers.training_summary import first_of_stages
from simulator.run.collective import plan_collective
from simulator.run.cost_parts import (
    A_FLOP,
    A_PASS,
    BYTES_A_PARAMETER,
    BYTES_AN_OPERATION_OF_A_RANK,
    SimulatedCollective,
    rows,
    simulated_collectives,
)
from simulator.run.scenario_cluster import Clusters
from simulator.run.size_estimate import refuse_too_large
from simulator.scenario.payload import carries_payload
from simulator.scenario.records import Scenario

if TYPE_CHECKING:
    from simulator.step.plan import StepPlan

# Measured on one of two cores (benchmarks/estimates.py) [s].
_A_POINT: Final = 8e-3  # fixed cost of any point
_A_REPORTED_OPERATION: Final = 20e-6  # report, memory and spans for an operation
_AN_OPERATION: Final = {"events": 20e-6, "compiled": 0.3e-6}  # an operation in the engine
_A_ROW: Final = {"events": 5e-6, "compiled": 15e-6}  # routing and writing a schedule row
_A_COMPILED_TRANSFER: Final = 0.5e-6  # a transfer without noise
_A_NOISY_TRANSFER: Final = 20e-9  # a noisy transfer in a single collective
_A_SHARING_TRANSFER: Final = 5e-6  # a noisy transfer in a step, with parallel groups
_A_SHARER: Final = 0.4e-6  # added for each transfer sharing links, if latencies are noisy
_A_PAYLOAD_BYTE: Final = 8e-9  # drawing, adding and checking
# Memory [B].
_BYTES_AN_OPERATION: Final = {"events": 1000, "compiled": 40}
_BYTES_A_ROW: Final = 400


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """Estimated cost of simulating a point."""

    engine: str  # "events" or "compiled"
    why: str  # why this engine was chosen
    transfers: int  # number of transfers
    memory: int  # memory in addition to the program's own [B]
    seconds: float  # time on one core [s]


def effort(scenario: Scenario, clusters: Clusters | None = None) -> CostEstimate:
    """Return the estimated cost (engine, transfers, memory, time) of simulating a point.

    `clusters` caches clusters shared with other points.

    Raises
    ------
    TooLargeError
        This machine cannot hold the point.
    """
    refuse_too_large(scenario)
    began = time.process_time()
    cluster, ranks = (clusters or Clusters()).of(scenario), scenario.cluster.world_size
    spec, training, learning = scenario.collective, scenario.training, (0, 0.0)
    payload = ranks * spec.nbytes if spec is not None and carries_payload(spec.payload, ranks * spec.nbytes) else 0
    noisy = scenario.cluster.jitter.compute > 0 or scenario.cluster.jitter.latency > 0
    plan = None
    if training is not None:
        from simulator.scenario.build_training import to_step
        from simulator.step.plan import plan_step

        stage("planning")
        plan = plan_step(cluster, to_step(training, ranks, scenario.base), steady=not noisy)
        program, learning = plan.program, _learning(plan)
    else:
        program = plan_collective(scenario, cluster).program
    # Planning is part of a simulation and has just been done: its time is measured, not estimated.
    planning = time.process_time() - began
    engine, why = chosen(scenario.engine, arrays=payload > 0 or learning[1] > 0)
    simulated = simulated_collectives(program)
    transfers = sum(collective.transfers for collective in simulated)
    # The compiled engine then simulates one rank per class, and one group for equal groups.
    reduced = engine == "compiled" and not noisy and transfers >= REDUCED_FROM
    written = rows(simulated, by_schedule=reduced)
    # The group's first rank, because rank 0 may have no operations.
    of_rank = len(program.lists.lists[program.lists.list_of[spec.group[0] if spec is not None and spec.group else 0]])
    operations = len(program.ranks) * of_rank
    # The report reads a rank of each pipeline stage, and without a pipeline a single rank.
    stages = [] if plan is None else first_of_stages(plan)
    reported = sum(len(program.lists.lists[program.lists.list_of[rank]]) for rank in stages) or of_rank
    seconds = planning + _A_POINT + reported * _A_REPORTED_OPERATION
    seconds += operations * _AN_OPERATION[engine] + written * _A_ROW[engine] + payload * _A_PAYLOAD_BYTE + learning[1]
    if training is not None and training.lengths is not None:
        # Each step is simulated with its own work and with even work.
        seconds *= 2 * training.lengths.steps
    elif training is not None:
        seconds *= training.parallelism.experts.steps
    memory = (
        operations * (BYTES_AN_OPERATION_OF_A_RANK if reduced else _BYTES_AN_OPERATION[engine])
        + 2 * payload
        + learning[0]
    )
    if engine == "events":
        seconds += transfers * SECONDS_A_TRANSFER
        memory += transfers * BYTES_A_TRANSFER
    else:
        late = scenario.cluster.jitter.latency > 0
        # Beyond this number of transfers, equal ranks are simulated once.
        steady = min(transfers, REDUCED_FROM) * _A_COMPILED_TRANSFER
        seconds += _noisy(program, simulated, late=late) if noisy else steady
        memory += written * _BYTES_A_ROW
    return CostEstimate(engine, why, transfers, memory, seconds)


def seconds_to_play(program: Program, jitter: Jitter) -> float:
    """Return the estimated time [s] for simulating the program of a step, apart from planning and report."""
    engine, _ = chosen("auto", arrays=False)
    noisy, simulated = jitter.compute > 0 or jitter.latency > 0, simulated_collectives(program)
    transfers = sum(collective.transfers for collective in simulated)
    written = rows(simulated, by_schedule=engine == "compiled" and not noisy and transfers >= REDUCED_FROM)
    operations = len(program.ranks) * len(program.lists.lists[program.lists.list_of[0]])
    seconds = operations * _AN_OPERATION[engine] + written * _A_ROW[engine]
    if engine == "events":
        return seconds + transfers * SECONDS_A_TRANSFER
    if noisy:
        return seconds + _noisy(program, simulated, late=jitter.latency > 0)
    return seconds + min(transfers, REDUCED_FROM) * _A_COMPILED_TRANSFER


def _noisy(program: Program, simulated: list[SimulatedCollective], *, late: bool) -> float:
    """Return the estimated time [s] for simulating transfers one by one: with noise, no two ranks are alike."""
    each = _A_SHARING_TRANSFER if isinstance(program.ranks, RanksByList) else _A_NOISY_TRANSFER
    # If every rank sends to every rank at once, each arrival changes every share.
    sharing = {
        id(collective.op.schedule): _A_SHARER * collective.op.schedule.rows
        for collective in simulated
        if late and _wide(collective.op)
    }
    return sum(collective.transfers * (each + sharing.get(id(collective.op.schedule), 0.0)) for collective in simulated)


def _wide(op: Collective) -> bool:
    """Return True if a rank of the collective sends to many ranks at once in its first round."""
    first = next(op.schedule.repeats(), None)
    return first is not None and len(first.round) > 8 * op.schedule.world_size


def _learning(plan: StepPlan) -> tuple[int, float]:
    """Return the memory [B] and time [s] on this machine for a step's real training; zeros without."""
    step = plan.step
    if step.lesson is None:
        return 0, 0.0
    from simulator.model.model import total

    ranks = len(plan.program.ranks)
    passes = 2 * (step.model.num_layers + 2) * step.accumulation * ranks
    seconds = plan.hardware_flops * A_FLOP + passes * A_PASS
    return total(step.model) * ranks * BYTES_A_PARAMETER, step.keys.steps * seconds
