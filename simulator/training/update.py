"""The optimizer's step: after all gradients are summed, on the GPU, with the host, or at the parameter servers.

Rule: where states live decides where the update runs; what is sharded decides how much of it. Like bookkeeping: in the
shop, with an accountant across the street, or at the bank.
"""

from __future__ import annotations

from simulator.dtypes import find
from simulator.program import Act
from simulator.training.passes import Passes
from simulator.training.score import Score
from simulator.training.spec import Offload
from simulator.training.states import States, shard
from simulator.training.work import Gauge


def update(score: Score, passes: Passes, gauge: Gauge, held: States) -> None:
    """Note the update, then what it frees and what it must hand out."""
    step = passes.step
    if step.sharding.strategy != "parameter_server":
        if step.offload is not None:
            done = _on_host(score, passes, step.offload, held)
        else:
            done = _on_gpu(score, passes, gauge, held)
        _hand_out(score, passes, done)
    for name in passes.gradients:
        score.free(name)


def _on_gpu(score: Score, passes: Passes, gauge: Gauge, held: States) -> str:
    # The last collective of each stream stands for all before it.
    last: list[str | None] = list({op.stream: op.name for op in score.collectives}.values())
    grads = held.updated * find(passes.step.precision.grads).itemsize
    if passes.step.loss_scaling:
        unscale = gauge.swept("unscale", grads, grads)
        last = [_checked(score, score.compute("unscale and check gradients", unscale, "optimizer", last, Act("check")))]
    norm = score.compute("gradient norm", gauge.swept("gradient norm", grads, 0), "optimizer", last)
    total = score.communicate("sum gradient norm", "all_reduce", 1, "float32", after=[norm])
    done = gauge.swept("update", held.update_read, held.update_written)
    return score.compute("optimizer step", done, "optimizer", [total], Act("update"))


def _on_host(score: Score, passes: Passes, offload: Offload, held: States) -> str:
    """Unit by unit, so that one's parameters travel back while the next are updated."""
    precision = passes.step.precision
    grads, rate = held.updated * find(precision.grads).itemsize, offload.host_rate
    last: list[str | None] = [passes.handed_over]
    if passes.step.loss_scaling:
        last = [_checked(score, score.on_host("unscale and check gradients", 2 * grads, rate, after=last))]
    norm = score.on_host("gradient norm", grads, rate, after=last)
    total = score.communicate("sum gradient norm", "all_reduce", 1, "float32", after=[norm])
    traffic = (held.update_read + held.update_written) / max(held.updated, 1)
    done = norm
    for unit in passes.units:
        own = shard(unit.elements, passes.ranks)
        new = score.on_host(f"update {unit.name}", own * traffic, rate, after=[total])
        done = score.copy(f"return {unit.name}", own * find(precision.params).itemsize, "to device", after=[new])
    return done


def _checked(score: Score, done: str) -> str:
    """All ranks learn of an overflow on any of them, before anybody updates."""
    return score.communicate("any overflow", "all_reduce", 1, "float32", after=[done], act=Act("flag")) or done


def _hand_out(score: Score, passes: Passes, done: str) -> None:
    step = passes.step
    if step.sharding.strategy in ("zero1", "zero2"):
        # Every bucket was padded when it was cut up.
        elements = passes.ranks * sum(shard(sum(unit.elements for unit in part), passes.ranks) for part in passes.parts)
        act = Act("gather updated")
        score.communicate("gather parameters", "all_gather", elements, step.precision.params, [done], act=act)
    resident = sum(unit.resident for unit in passes.units)
    if resident:
        dtype = step.precision.params
        score.communicate("gather kept parameters", "all_gather", resident, dtype, after=[done], scope="shard")
