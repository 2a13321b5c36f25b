"""The optimizer's step in a program: overflow check, gradient norm, update, and the gather of what was updated.

Rule: where states live (GPU, host, parameter servers) decides where the update runs; what is sharded decides how much
of it a rank runs.
"""

from __future__ import annotations

from simulator.basics.dtypes import find
from simulator.records.operation import Act, Computation, Exchange
from simulator.step.kernel_timer import KernelTimer
from simulator.step.optimizer_update import temporary_bytes, update_cost
from simulator.step.passes import Passes
from simulator.step.process_groups import Scope
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import Gathering, LossScaling, Offload, Updater
from simulator.step.states import States, shard
from simulator.step.strategies.strategy import Strategy


def update(builder: ProgramBuilder, passes: Passes, timer: KernelTimer, states: States, strategy: Strategy) -> None:
    """Note the update, then what it frees and what it must hand out."""
    step = passes.step
    summed = _sum_partial(builder, passes)
    if strategy.updater is not Updater.SERVERS:
        if step.offload is not None:
            done = _on_host(builder, passes, step.offload, states, strategy, summed)
        else:
            done = _on_gpu(builder, passes, timer, states, strategy)
        _hand_out(builder, passes, done, strategy)
    for name in passes.gradients:
        builder.free(name)


def _sum_partial(builder: ProgramBuilder, passes: Passes) -> list[str]:
    """Sum gradients of which each rank of a tensor-parallel group, or each end of a pipeline, has a part.

    Norms' weights where sequences are cut: each rank has summed over its part of the sequence, and all layers' travel
    together. A head that is the embedding: the first and the last stage have a copy each. After Megatron-LM,
    core/distributed/finalize_model_grads.py.
    """
    # Where nobody else holds the same part nothing was sent behind the last gradients.
    last = [*{op.stream: op.name for op in builder.collectives}.values(), builder.last_kernels]
    dtype = passes.step.precision.reduce
    partial = sum(unit.partial for unit in passes.units)
    done: list[str | None] = []
    if partial:
        act = Act(Exchange.SUM_PARTIAL)
        done.append(builder.communicate("sum partial gradients", "all_reduce", partial, dtype, last, "tensor", act))
    shared = sum(unit.shared for unit in passes.units)
    if shared:
        act, name = Act(Exchange.SUM_SHARED), "sum the shared table's gradient"
        done.append(builder.communicate(name, "all_reduce", shared, dtype, last, "ends", act))
    return [name for name in done if name is not None]


def _on_gpu(builder: ProgramBuilder, passes: Passes, timer: KernelTimer, states: States, strategy: Strategy) -> str:
    # The last collective of each stream stands for all before it.
    last: list[str | None] = list({op.stream: op.name for op in builder.collectives}.values())
    grads = states.updated * find(passes.step.precision.grads).itemsize
    if passes.step.loss_scaling:
        unscale = timer.one_pass("unscale", grads, grads)
        found = builder.compute("unscale and check gradients", unscale, "optimizer", last, Act(Computation.CHECK))
        last = [_checked(builder, passes.step.loss_scaling, found)]
    norm = builder.compute(
        "gradient norm", timer.one_pass("gradient norm", grads, 0), "optimizer", last, Act(Computation.NORM)
    )
    total = _summed(builder, passes, norm, strategy)
    tensors = sum(unit.tensors for unit in passes.units)
    temporaries = temporary_bytes(passes.step, states)
    if temporaries:
        builder.allocate("update temporaries", temporaries, "optimizer")
    cost = update_cost(timer, states, tensors)
    done = builder.compute("optimizer step", cost, "optimizer", [total], Act(Computation.UPDATE))
    if temporaries:
        builder.free("update temporaries")
    return done


def _on_host(
    builder: ProgramBuilder,
    passes: Passes,
    offload: Offload,
    states: States,
    strategy: Strategy,
    summed: list[str],
) -> str:
    """Unit by unit, so that one's parameters travel back while the next are updated.

    What ranks of one model have summed last (`summed`) follows the other gradients to the host.
    """
    precision = passes.step.precision
    grads, rate = states.updated * find(precision.grads).itemsize, offload.host_rate
    last: list[str | None] = [passes.last_offload]
    if summed:
        few = sum(shard(unit.partial + unit.shared, passes.ranks_of(unit)) for unit in passes.units)
        nbytes = few * find(precision.grads).itemsize
        last.append(builder.copy("hand over what was summed last", nbytes, "to host", after=summed))
    if passes.step.loss_scaling:
        found = builder.on_host("unscale and check gradients", 2 * grads, rate, after=last, act=Act(Computation.CHECK))
        last = [_checked(builder, passes.step.loss_scaling, found)]
    norm = builder.on_host("gradient norm", grads, rate, after=last, act=Act(Computation.NORM))
    total = _summed(builder, passes, norm, strategy)
    traffic = (states.update_read + states.update_written) / max(states.updated, 1)
    done = norm
    for unit in passes.units:
        own = shard(unit.elements, passes.ranks_of(unit))
        # Numbers are all updated by the last of them: how they are cut up is not by units.
        act = Act(Computation.UPDATE) if unit is passes.units[-1] else None
        new = builder.on_host(f"update {unit.name}", own * traffic, rate, after=[total], act=act)
        done = builder.copy(f"return {unit.name}", own * find(precision.params).itemsize, "to device", after=[new])
    return done


def _summed(builder: ProgramBuilder, passes: Passes, norm: str, strategy: Strategy) -> str:
    """Squares of all parts; where every rank has the whole gradient nobody needs to ask.

    In float64, so that neither sharding nor bucketing shows in a clipped step: sums in another order differ there by
    less than single precision sees. Where parameters are float64 themselves each rank tells its sum and what that
    leaves over, and all add up exactly what all told.
    """
    done = norm
    if strategy.updater is not Updater.EVERY_RANK:
        name = "sum gradient norm"
        if passes.step.precision.updated == "float64":
            act, elements = Act(Exchange.GATHER_NORMS), 2 * passes.ranks
            done = builder.communicate(name, "all_gather", elements, "float64", [norm], "shard", act) or norm
        else:
            act = Act(Exchange.SUM_NORM)
            done = builder.communicate(name, "all_reduce", 1, "float64", [norm], "shard", act) or norm
    elif passes.step.parallelism.experts.ranks > 1:
        # Others' experts have gradients that this rank has not seen.
        over = "sum gradient norm over experts"
        done = builder.communicate(over, "all_reduce", 1, "float64", [norm], "experts", Act(Exchange.SUM_NORM)) or norm
    # Each rank of a copy of the model has gradients of its own part.
    over_model = "sum gradient norm over the model"
    return builder.communicate(over_model, "all_reduce", 1, "float64", [done], "model", Act(Exchange.SUM_NORM)) or done


def _checked(builder: ProgramBuilder, scaling: LossScaling, done: str) -> str:
    """All ranks learn of an overflow on any of them, before anybody updates; or nobody tells."""
    if not scaling.shared:
        return done
    act = Act(Exchange.FLAG)
    told = builder.communicate("any overflow", "all_reduce", 1, "float32", after=[done], act=act) or done
    return builder.communicate("any overflow in the model", "all_reduce", 1, "float32", [told], "model", act) or told


def _hand_out(builder: ProgramBuilder, passes: Passes, done: str, strategy: Strategy) -> None:
    step = passes.step
    if strategy.gathering is Gathering.AFTER_UPDATE:
        kinds: tuple[tuple[str, Scope, int, bool], ...] = (
            ("gather parameters", "all", passes.ranks, False),
            ("gather experts", "expert data", passes.expert_ranks, True),
        )
        for name, scope, ranks, spread in kinds:
            # Every bucket was padded when it was cut up.
            parts = [sum(unit.elements for unit in part) for part in passes.parts if part[0].spread == spread]
            if parts:
                elements = ranks * sum(shard(part, ranks) for part in parts)
                act = Act(Exchange.GATHER_UPDATED, what="experts" if spread else "")
                builder.communicate(name, "all_gather", elements, step.precision.params, [done], scope, act)
    resident = sum(unit.resident for unit in passes.units)
    if resident:
        dtype = step.precision.params
        builder.communicate("gather kept parameters", "all_gather", resident, dtype, after=[done], scope="shard")
