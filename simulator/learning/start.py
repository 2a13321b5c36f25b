"""What every rank holds before the first step.

Rule: cuts up initial parameters as the plan's sharding says; a step whose numbers nobody carries is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from simulator.basics.arrays import Array
from simulator.basics.dtypes import find
from simulator.learning.place import Place
from simulator.learning.serving import Serving
from simulator.learning.setting import Setting
from simulator.learning.state import Parameters, Rank
from simulator.learning.training import Training
from simulator.numerics.flat import flat
from simulator.numerics.gpt import Gpt
from simulator.numerics.optimizer import fresh
from simulator.numerics.scaling import Scale, static_scaler
from simulator.numerics.server import Server
from simulator.step.plan import StepPlan
from simulator.step.spec import Gathering, Updater


def start(setting: Setting, initial: Mapping[str, Parameters], scale: Scale | None = None) -> Training:
    """Give every rank what it holds before the first step.

    Parameters
    ----------
    setting : Setting
        Its model is as deep as the planned one.
    initial : mapping of unit to parameters
    scale : Scale, optional
        Of the loss; 1 where it is left out.

    Raises
    ------
    ValueError
        A step whose numbers are not carried.
    """
    plan = setting.plan
    _refuse_uncarried(setting)
    stored, wide = setting.gpt.arithmetic.stored, _wide(plan)
    ranks = []
    for number, place in enumerate(setting.places):
        own_part = _of_rank(setting, initial, place)
        # Parameters that are sharded are gathered before anybody computes. Experts that no other rank has are not
        # sharded even if all else is.
        gathers = plan.strategy.gathering is Gathering.BEFORE_USE
        # Rounded from the copy that is updated, as after each step, so that whoever gathers them has the same.
        working = {
            u: {name: value.astype(wide).astype(stored) for name, value in own.items()}
            for u, own in own_part.items()
            if not gathers or setting.cut_of((u,)) == 1
        }
        ranks.append(Rank(number, scale or static_scaler(1.0), working))
    if plan.strategy.updater is Updater.SERVERS and setting.world_size > 1:
        return Training(setting, ranks, _servers(setting, initial))
    for rank, place in zip(ranks, setting.places, strict=True):
        own_part = _of_rank(setting, initial, place)
        for units in place.travelling:
            cut = setting.cut_of(units)
            part = _padded(setting, place.gpt, own_part, units, cut)
            rank.parts[units] = np.split(part, cut)[setting.part_of(rank.number, units)].copy()
    return Training(setting, ranks)


def _servers(setting: Setting, initial: Mapping[str, Parameters]) -> Serving:
    servers = {}
    for units in setting.places[0].travelling:
        parameters = _padded(setting, setting.gpt, initial, units, setting.plan.step.sharding.servers)
        servers[units] = Server(parameters, fresh(setting.rule, parameters))
    return Serving(servers)


def _of_rank(setting: Setting, initial: Mapping[str, Parameters], place: Place) -> dict[str, Parameters]:
    """A rank's part of the model, by unit."""
    by_name = {name: value for own in initial.values() for name, value in own.items()}
    gpt = place.gpt
    return {u: {name: gpt.share.part(name, by_name[name]) for name in gpt.shapes(u)} for u in place.units}


def _padded(setting: Setting, gpt: Gpt, initial: Mapping[str, Parameters], units: tuple[str, ...], parts: int) -> Array:
    """Parameters as wide as they are updated, so many that they can be cut into equal parts."""
    packed = flat(gpt, initial, units).astype(_wide(setting.plan))
    return np.pad(packed, (0, -len(packed) % parts))


def _wide(plan: StepPlan) -> np.dtype[np.generic]:
    return find(plan.step.precision.updated).numpy


def _refuse_uncarried(setting: Setting) -> None:
    plan = setting.plan
    if plan.step.sharding.keep_below:
        raise ValueError("numbers are carried without kept tensors; leave sharding.keep_below out")
    if any(op.duration is not None for op in plan.program.collectives().values()):
        raise ValueError("numbers are carried by played transfers alone; write collectives: played")
