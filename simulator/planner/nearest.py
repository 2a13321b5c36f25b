"""Nothing fits: which setting comes nearest, and what would make one fit?

Rule: nothing is played. Memory is that of what a rank of each stage does, noted of a few micro-batches, which is what a
played step reaches at least (`stage_memory.py`); settings are looked at by rising bounds of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from simulator.planner.bound import Bounds
from simulator.planner.setting import Setting
from simulator.planner.space import Choices, Refused, settings
from simulator.playing.scenario_cluster import Clusters
from simulator.scenario.records import Scenario
from simulator.step.plan import few_micro_batches
from simulator.step.spec import TrainingStep
from simulator.step.stage_memory import memory_of_notes

# Settings whose memory is worked out, of those with the lowest bounds.
_LOOKED_AT: Final = 24


@dataclass(frozen=True, slots=True)
class Need:
    """What a setting needs.

    Attributes
    ----------
    setting : Setting
    nbytes : int
        Of the rank that holds most [B].
    capacity : int
        HBM of its GPU [B].
    """

    setting: Setting
    nbytes: int
    capacity: int

    @property
    def fits(self) -> bool:
        """Whether it does."""
        return self.nbytes <= self.capacity


@dataclass(frozen=True, slots=True)
class Way:
    """A change after which something fits, in words, and what then needs least."""

    change: str
    need: Need


def least_memory(choices: Choices, base: Scenario, sequences: int) -> Need | None:
    """What needs least memory of all that may be chosen; None where nothing can be."""
    cluster = Clusters().of(base)
    bounds, waiting = Bounds(cluster), list[tuple[int, int, Setting, TrainingStep]]()
    for number, (setting, step) in enumerate(settings(choices, base, sequences, Refused())):
        try:
            waiting.append((bounds.of(setting, step).memory, number, setting, step))
        except ValueError:
            continue
    least: Need | None = None
    for bound, _, setting, step in sorted(waiting, key=lambda one: one[:2])[:_LOOKED_AT]:
        if least is not None and bound >= least.nbytes:
            break
        nbytes = max(one.nbytes for one in memory_of_notes(few_micro_batches(cluster, step, setting.gpus)))
        if least is None or nbytes < least.nbytes:
            least = Need(setting, nbytes, cluster.gpus[0].hbm_bytes)
    return least


def ways_to_fit(choices: Choices, base: Scenario, sequences: int) -> Iterator[Way]:
    """Changes, each alone, after which something fits: less kept, the host's memory, a smaller batch, more GPUs."""
    for change, changed, scenario, fewer in _changes(choices, base, sequences):
        need = least_memory(changed, scenario, fewer)
        if need is not None and need.fits:
            yield Way(change, need)
            if change.startswith("--gpus"):
                return


def _changes(choices: Choices, base: Scenario, sequences: int) -> Iterator[tuple[str, Choices, Scenario, int]]:
    values = choices.values

    def among(name: str, value: Any) -> Choices:
        return Choices({**values, name: (value,)}, choices.why)

    for name, value in (("checkpointing", "full"), ("micro_batch", 1), ("sharding", "zero3"), ("offload", "optimizer")):
        if value not in values[name]:
            yield f"--among {name}={value}", among(name, value), base, sequences
    if sequences > 1:
        yield f"--global-batch {sequences // 2}seq", choices, base, sequences // 2
    (gpus,) = values["gpus"]
    for times in (2, 4, 8, 16):
        cluster = replace(base.cluster, world_size=times * gpus)
        yield f"--gpus {times * gpus}", among("gpus", times * gpus), replace(base, cluster=cluster), sequences
