"""How does a program update the parameters? Overflow check, gradient norm, update, and gather of updated parameters.

The place of the states (GPU, host, parameter servers) decides where the update runs; sharding decides how much a rank
updates.

Order of operations under ZeRO-1 with loss scaling::

    unscale and check gradients, exchange overflow flags, gradient norm, sum gradient norm, optimizer step, gather
    parameters
"""

from __future__ import annotations

from simulator.basics.dtypes import find
from simulator.records.operation import Computation, Exchange, NumericAction
from simulator.step.kernel_timer import KernelCost, KernelTimer
from simulator.step.learning_spec import LossScaling
from simulator.step.matrix_update import update_matrices
from simulator.step.optimizer_update import temporary_bytes, update_cost
from simulator.step.passes import Passes
from simulator.step.process_groups import Scope
from simulator.step.program_builder import ProgramBuilder
from simulator.step.spec import Gathering, Updater
from simulator.step.states import States, shard
from simulator.step.strategies.strategy import Strategy
from simulator.step.training_spec import Offload


def update(builder: ProgramBuilder, passes: Passes, timer: KernelTimer, states: States, strategy: Strategy) -> None:
    """Append to a rank's program the optimizer's update, the gather of updated parameters, and the frees of
    gradients.
    """
    step = passes.step
    summed = _sum_partial(builder, passes)
    if strategy.updater is not Updater.SERVERS:
        if step.gradients_leave:
            done = _on_host(builder, passes, step.keys.offload, states, strategy, summed)
        else:
            done = _on_gpu(builder, passes, timer, states, strategy)
        _hand_out(builder, passes, done, strategy)
    for name in passes.gradients:
        builder.free(name)


def _sum_partial(builder: ProgramBuilder, passes: Passes) -> list[str]:
    """Append all-reduces for gradients held in parts by tensor-parallel ranks or both pipeline ends; return the
    operations' names.

    With sequence parallelism, each rank sums the gradients of norm weights over its part of the sequence, and the
    gradients of every layer are exchanged together. With a tied head, the first and the last stage each hold a copy of
    the embedding table. After Megatron-LM, core/distributed/finalize_model_grads.py.
    """
    # Without data parallelism, no collective follows the last gradients: wait for the last kernels too.
    last = [*{op.stream: op.name for op in builder.collectives}.values(), builder.last_kernels]
    dtype = passes.step.precision.reduce
    partial = sum(unit.partial for unit in passes.units)
    done: list[str | None] = []
    if partial:
        act = NumericAction(Exchange.SUM_PARTIAL)
        done.append(builder.communicate("sum partial gradients", "all_reduce", partial, dtype, last, "tensor", act))
    shared = sum(unit.shared for unit in passes.units)
    if shared:
        act, name = NumericAction(Exchange.SUM_SHARED), "sum the shared table's gradient"
        done.append(builder.communicate(name, "all_reduce", shared, dtype, last, "ends", act))
    return [name for name in done if name is not None]


def _on_gpu(builder: ProgramBuilder, passes: Passes, timer: KernelTimer, states: States, strategy: Strategy) -> str:
    """Append the optimizer's update on the GPU, with gradient norm and overflow check; return its last kernels."""
    # Streams are in order: waiting for the last collective of each stream covers earlier collectives.
    last: list[str | None] = list({op.stream: op.name for op in builder.collectives}.values())
    grads = states.updated * find(passes.step.precision.grads).itemsize
    if passes.step.loss_scaling:
        unscale = timer.one_pass("unscale", grads, grads)
        check = builder.compute(
            "unscale and check gradients", unscale, "optimizer", last, NumericAction(Computation.CHECK)
        )
        last = [_checked(builder, passes.step.loss_scaling, check)]
    last = _widened(builder, passes, timer, states, last)
    norm = builder.compute(
        "gradient norm", timer.one_pass("gradient norm", grads, 0), "optimizer", last, NumericAction(Computation.NORM)
    )
    total = _summed(builder, passes, norm, strategy)
    has_matrices = passes.step.optimizer.of_matrices is not None
    tensors = sum(unit.vectors if has_matrices and unit.is_layer else unit.tensors for unit in passes.units)
    total = update_matrices(builder, passes, timer, states, strategy, total)
    # Only `foreach` holds temporaries.
    on_gpu = 1 - passes.step.keys.offload.fraction if passes.step.splits_update else 1
    temporaries = round(on_gpu * temporary_bytes(passes.step, states))
    if temporaries:
        builder.allocate("update temporaries", temporaries, "optimizer")
    cost = update_cost(timer, states, tensors)
    # bitsandbytes fetches pages before the update's kernels. The next forward pass drives them out again, which counts
    # here, because a step ends with its update.
    if states.paged:
        total = builder.copy("page in optimizer states", states.paged, "to device", after=[total], paged=True)
    if passes.step.splits_update:
        done = _on_both(builder, passes, timer, states, total, cost)
    else:
        done = builder.compute("optimizer step", cost, "optimizer", [total], NumericAction(Computation.UPDATE))
    if states.paged:
        builder.copy("page out optimizer states", states.paged, "to host", after=[done], paged=True)
    if temporaries:
        builder.free("update temporaries")
    return done


def _widened(
    builder: ProgramBuilder, passes: Passes, timer: KernelTimer, states: States, last: list[str | None]
) -> list[str | None]:
    """Append the cast of gradients to the dtype of the updated numbers, if the framework needs one; return the
    operations that the gradient norm waits for.

    The cast is freed when the next step begins, hence not by this program.
    """
    precision = passes.step.precision
    narrow, wide = find(precision.grads).itemsize, find(precision.updated).itemsize
    if not passes.step.framework.memory.widens_gradients or narrow >= wide:
        return last
    builder.allocate("gradients for the update", states.updated * wide, "gradients")
    cast = timer.one_pass("cast gradients", states.updated * narrow, states.updated * wide)
    return [builder.compute("cast gradients", cast, "optimizer", last)]


def _on_host(
    builder: ProgramBuilder,
    passes: Passes,
    offload: Offload,
    states: States,
    strategy: Strategy,
    summed: list[str],
) -> str:
    """Append the optimizer's update on the host, unit by unit; return the last copy of parameters to the GPU.

    A unit's parameters return while the next unit is updated. Gradients summed last (`summed`) follow the other
    gradients to the host.
    """
    precision = passes.step.precision
    grads, rate = states.updated * find(precision.grads).itemsize, offload.host_rate
    last: list[str | None] = [passes.last_offload]
    if summed:
        few = sum(shard(unit.partial + unit.shared, passes.ranks_of(unit)) for unit in passes.units)
        nbytes = few * find(precision.grads).itemsize
        last.append(builder.copy("hand over what was summed last", nbytes, "to host", after=summed))
    if passes.step.loss_scaling:
        check = builder.on_host(
            "unscale and check gradients", 2 * grads, rate, after=last, act=NumericAction(Computation.CHECK)
        )
        last = [_checked(builder, passes.step.loss_scaling, check)]
    norm = builder.on_host("gradient norm", grads, rate, after=last, act=NumericAction(Computation.NORM))
    total = _summed(builder, passes, norm, strategy)
    traffic = (states.update_read + states.update_written) / max(states.updated, 1)
    done = norm
    for unit in passes.units:
        share = shard(unit.trained, passes.ranks_of(unit))
        # Real training updates every parameter with the last unit, because shards do not follow units.
        act = NumericAction(Computation.UPDATE) if unit is passes.units[-1] else None
        new = builder.on_host(f"update {unit.name}", share * traffic, rate, after=[total], act=act)
        done = builder.copy(f"return {unit.name}", share * find(precision.params).itemsize, "to device", after=[new])
    return done


def _on_both(
    builder: ProgramBuilder, passes: Passes, timer: KernelTimer, states: States, total: str, cost: KernelCost
) -> str:
    """Append the update of a fraction of every unit's parameters on the host and of the others on the GPU; return the
    last operation, which is the cast of what the host returned if there are working copies.

    `cost` is that of the GPU for all parameters.

    The gradients' norm `total` is known before a gradient moves, as in Megatron-LM
    (core/optimizer/cpu_offloading/hybrid_optimizer.py). There, a parameter is updated on either side as a whole.
    """
    offload, precision = passes.step.keys.offload, passes.step.precision
    wide, narrow = find(precision.updated).itemsize, find(passes.step.trained_dtype).itemsize
    # The GPU makes the working copies.
    traffic = (states.update_read + states.update_written - states.copied) / max(states.updated, 1)
    on_gpu: list[str] = []
    if offload.fraction < 1:
        on_gpu.append(builder.compute("optimizer step", cost.times(1 - offload.fraction), "optimizer", [total]))
    done = total
    for unit in passes.units:
        share = round(offload.fraction * shard(unit.trained, passes.ranks_of(unit)))
        moved = builder.copy(f"hand over {unit.name}", share * find(precision.grads).itemsize, "to host", after=[total])
        # Real training updates every parameter with the last operation, which waits for the GPU's part too.
        last = unit is passes.units[-1] and not states.copied
        act = NumericAction(Computation.UPDATE) if last else None
        new = builder.on_host(f"update {unit.name}", share * traffic, offload.host_rate, after=[moved], act=act)
        done = builder.copy(f"return {unit.name}", share * wide, "to device", after=[new, *(on_gpu if last else [])])
    if not states.copied:
        return done
    cast = timer.one_pass("cast", offload.fraction * states.updated * wide, offload.fraction * states.updated * narrow)
    return builder.compute("cast parameters", cast, "optimizer", [done], NumericAction(Computation.UPDATE))


def _summed(builder: ProgramBuilder, passes: Passes, norm: str, strategy: Strategy) -> str:
    """Append the sums of squared gradient norms over ranks with different gradients; return the last of these
    operations, or `norm` if none.

    The sum is float64, hence neither sharding nor bucketing changes a clipped step: differences of rounding are below
    single precision. If parameters are float64 themselves, each rank contributes its sum and the rounding remainder,
    and every rank adds the contributions exactly.
    """
    done = norm
    if strategy.updater is not Updater.EVERY_RANK:
        name = "sum gradient norm"
        if passes.step.precision.updated == "float64":
            act, elements = NumericAction(Exchange.GATHER_NORMS), 2 * passes.ranks
            done = builder.communicate(name, "all_gather", elements, "float64", [norm], "shard", act) or norm
        else:
            act = NumericAction(Exchange.SUM_NORM)
            done = builder.communicate(name, "all_reduce", 1, "float64", [norm], "shard", act) or norm
    elif passes.step.parallelism.ep > 1:
        # This rank has not seen the gradients of other ranks' experts.
        over = "sum gradient norm over experts"
        done = (
            builder.communicate(over, "all_reduce", 1, "float64", [norm], "experts", NumericAction(Exchange.SUM_NORM))
            or norm
        )
    # Each model-parallel rank has the gradients of its own part.
    over_model = "sum gradient norm over the model"
    return (
        builder.communicate(over_model, "all_reduce", 1, "float64", [done], "model", NumericAction(Exchange.SUM_NORM))
        or done
    )


def _checked(builder: ProgramBuilder, scaling: LossScaling, done: str) -> str:
    """Append the exchange of overflow flags; return its last operation, or `done` if flags are not shared."""
    if not scaling.shared:
        return done
    act = NumericAction(Exchange.FLAG)
    flag = builder.communicate("any overflow", "all_reduce", 1, "float32", after=[done], act=act) or done
    return builder.communicate("any overflow in the model", "all_reduce", 1, "float32", [flag], "model", act) or flag


def _hand_out(builder: ProgramBuilder, passes: Passes, done: str, strategy: Strategy) -> None:
    """Append the all-gathers of updated parameters after `done`, if the strategy gathers after the update."""
    step = passes.step
    if strategy.gathering is Gathering.AFTER_UPDATE:
        kinds: tuple[tuple[str, Scope, int, bool], ...] = (
            ("gather parameters", "shard" if passes.copies else "all", passes.ranks, False),
            ("gather experts", "expert data", passes.expert_ranks, True),
        )
        owned = passes.parts_of_states() if step.optimizer.owns_whole_tensors else None
        for name, scope, ranks, spread in kinds:
            # Every bucket was padded when it was sharded.
            parts = [sum(unit.trained for unit in part) for part in passes.parts if part[0].spread == spread]
            if parts:
                share = owned[spread].own if owned else sum(shard(part, ranks) for part in parts)
                elements = ranks * share
                act = NumericAction(Exchange.GATHER_UPDATED, what="experts" if spread else "")
                builder.communicate(name, "all_gather", elements, step.trained_dtype, [done], scope, act, owners=ranks)
    resident = sum(unit.resident for unit in passes.units)
    # Parameters below `keep_below` are updated by shard too, and stay whole on every rank.
    if resident:
        dtype = step.trained_dtype
        builder.communicate("gather kept parameters", "all_gather", resident, dtype, after=[done], scope="shard")
