"""Gives every rank its initial parameters, cut according to the plan's sharding.

Steps whose numbers cannot be carried are refused here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.basics.arrays import Array
from simulator.basics.dtypes import find
from simulator.learning.parameter_servers import ParameterServers
from simulator.learning.rank_shard import RankShard
from simulator.learning.setting import TrainingContext
from simulator.learning.state import Parameters, Rank
from simulator.learning.training import Training
from simulator.numerics.loss_scaling import Scale, static_scaler
from simulator.numerics.optimizer import fresh
from simulator.numerics.packing import pack
from simulator.numerics.server import Server
from simulator.step.plan import StepPlan
from simulator.step.spec import Gathering, Updater


def start(setting: TrainingContext, initial: Mapping[str, Parameters], scale: Scale | None = None) -> Training:
    """Return a training with each rank's part of the initial parameters in place, ready for the first step.

    Parameters
    ----------
    setting : TrainingContext
        Setting whose model has as many layers as the planned model.
    initial : mapping of unit to parameters
        Whole initial parameters.
    scale : Scale, optional
        Loss scale; 1 if omitted.

    Raises
    ------
    ValueError
        The step's numbers cannot be carried.
    """
    plan = setting.plan
    _refuse_uncarried(setting)
    stored, wide = setting.gpt.arithmetic.stored, _wide(plan)
    ranks = []
    for number, place in enumerate(setting.places):
        own_part = _of_rank(setting, initial, place)
        # ZeRO-3 gathers parameters before use, so ranks start without whole parameters. Experts held by no other rank
        # are not sharded, hence present from the start.
        gathers = plan.strategy.gathering is Gathering.BEFORE_USE
        # Round from the master weights, like the update does, for the same bits in gathered parameters.
        working = {
            u: {name: value.astype(wide).astype(stored) for name, value in parameters.items()}
            for u, parameters in own_part.items()
            if not gathers or setting.cut_of((u,)) == 1
        }
        ranks.append(Rank(number, scale or static_scaler(1.0), working))
    if plan.strategy.updater is Updater.SERVERS and setting.world_size > 1:
        return Training(setting, ranks, _servers(setting, initial))
    for rank, place in zip(ranks, setting.places, strict=True):
        own_part = _of_rank(setting, initial, place)
        for units in place.travelling:
            cut = setting.cut_of(units)
            # Shards must be equal: 10 elements over 4 ranks become 12, so 3 each.
            packed = pack(place.gpt, own_part, units).astype(wide)
            part = _padded(setting.layout(rank.number, units).arranged(packed), cut)
            rank.parts[units] = np.split(part, cut)[setting.part_of(rank.number, units)].copy()
    return Training(setting, ranks)


def _servers(setting: TrainingContext, initial: Mapping[str, Parameters]) -> ParameterServers:
    """Return the parameter servers with the initial parameters of each bucket."""
    servers = {}
    for units in setting.places[0].travelling:
        packed = pack(setting.gpt, initial, units).astype(_wide(setting.plan))
        parameters = _padded(packed, setting.plan.step.sharding.server_count)
        servers[units] = Server(parameters, fresh(setting.rule, parameters))
    return ParameterServers(servers)


def _of_rank(setting: TrainingContext, initial: Mapping[str, Parameters], place: RankShard) -> dict[str, Parameters]:
    """Return the part of the initial parameters that a rank computes with, by unit and name."""
    by_name = {name: value for parameters in initial.values() for name, value in parameters.items()}
    gpt = place.gpt
    return {u: {name: gpt.share.part(name, by_name[name]) for name in gpt.shapes(u)} for u in place.units}


def _padded(packed: Array, parts: int) -> Array:
    """Return a flat array padded with zeros to a multiple of `parts`."""
    return np.pad(packed, (0, -len(packed) % parts))


def _wide(plan: StepPlan) -> np.dtype[np.generic]:
    """Return the dtype in which the plan's optimizer updates parameters (the master weights' dtype)."""
    return find(plan.step.precision.updated).numpy


def _refuse_uncarried(setting: TrainingContext) -> None:
    """Raise ValueError for `keep_below`, or for collectives without transfers: real training supports neither."""
    plan = setting.plan
    if plan.step.sharding.keep_below:
        raise ValueError("real training does not support sharding.keep_below; omit the key")
    # A closed form has a duration but no transfers that could carry arrays.
    if any(op.duration is not None for op in plan.program.collectives().values()):
        raise ValueError("real training needs simulated transfers; write collectives: played")
