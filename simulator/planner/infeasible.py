"""Which setting needs the least memory if none fits, and which changes would help?

A setting's memory is a lower bound from recorded operations of a few micro-batches of each stage (`stage_memory.py`).
Settings are examined by ascending cheaper bound. Before a setting is reported as fitting, the allocator is simulated
(`memory.checked_need`), because fragmentation may exceed the memory even if the bytes fit.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice
from typing import Any, Final

from simulator.basics.errors import ScenarioError, TooLargeError
from simulator.basics.units import format_memory
from simulator.cluster.cluster import Cluster
from simulator.planner.bound import BoundCalculator
from simulator.planner.setting import PlanSetting
from simulator.planner.space import Choices, InfeasibleCounts, settings
from simulator.run.memory_need import checked_need, least_need
from simulator.run.scenario_cluster import Clusters
from simulator.scenario.records import Scenario
from simulator.step.spec import TrainingStep

_SEGMENTS: Final = "expandable_segments"
# Text if no change makes a setting fit.
NO_WAY: Final = "no tested change is enough, alone or in pairs; take a smaller model or shorter sequences"
# Number of settings, with the lowest bounds on memory, that are examined more closely.
_LOOKED_AT: Final = 24
# Kinds of parallelism among them to try with the allocator, each with its smallest setting.
_TRIED: Final = 4
# Checkpointing policies that store more than full checkpointing.
_MORE_THAN_FULL: Final = frozenset({"none", "attention", "selective_op", "feed_forward", "activation"})
# Micro-batches per pipeline stage; further micro-batches repeat the memory pattern.
_FEW_ROUNDS: Final = 4
# Pairs of changes to report, if no single change suffices.
_MOST_PAIRS: Final = 2
# Numbers of GPUs and sequences to try on each side of the requested number.
_NEIGHBOURS: Final = 256


@dataclass(frozen=True, slots=True)
class SettingMemoryNeed:
    """Memory that a setting of a training step needs, compared with the GPU's."""

    setting: PlanSetting
    nbytes: int  # memory of the fullest rank's process, or its lower bound if that exceeds the capacity [B]
    capacity: int  # HBM of the rank's GPU [B]
    fits: bool  # whether the setting fits
    holes: bool = False  # whether the allocations would fit without fragmentation


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that makes a setting fit, in words, and the setting with the least memory after the change."""

    change: str
    need: SettingMemoryNeed

    @property
    def text(self) -> str:
        """A sentence part with the change, the needed memory, and the setting."""
        return f"{self.change}: {format_memory(self.need.nbytes)}, {self.need.setting.text}"


def least_memory(choices: Choices, base: Scenario, sequences: int) -> SettingMemoryNeed | None:
    """Return the search space's setting with the least memory; None if no setting is feasible."""
    return _least_memory(_smallest(choices), base, sequences) or _least_memory(choices, base, sequences)


def _smallest(choices: Choices) -> Choices:
    """Return the choices without values that never need less memory than another value.

    A larger micro-batch stores at least as many activations, because a pipeline stage then holds as many sequences in
    fewer micro-batches. With full checkpointing available, policies that store more than the inputs of layers drop out.
    The interleaved schedule holds more micro-batches than 1F1B (Narayanan et al., arXiv:2104.04473, section 2.2.2).
    """
    values = dict(choices.values)
    if "1f1b" in values["schedule"]:
        values["schedule"] = tuple(name for name in values["schedule"] if name != "interleaved")
    if "full" in values["checkpointing"]:
        values["checkpointing"] = tuple(kind for kind in values["checkpointing"] if kind not in _MORE_THAN_FULL)
    return replace(choices, values=values | {"micro_batch": (min(values["micro_batch"]),)})


def _least_memory(choices: Choices, base: Scenario, sequences: int) -> SettingMemoryNeed | None:
    cluster = Clusters().of(base)
    bounds, waiting = BoundCalculator(cluster), list[tuple[int, int, PlanSetting, TrainingStep]]()
    for number, (setting, step) in enumerate(settings(choices, base, sequences, InfeasibleCounts())):
        try:
            waiting.append((bounds.of(setting, step).memory, number, setting, step))
        except ValueError:
            continue
    least: list[tuple[int, int, PlanSetting, TrainingStep]] = []
    for bound, number, setting, step in sorted(waiting, key=lambda candidate: candidate[:2])[:_LOOKED_AT]:
        # Every remaining bound is at least as large: the least memory is found.
        if least and bound >= least[0][0]:
            break
        least = sorted(
            [*least, (least_need(cluster, step), number, setting, step)], key=lambda candidate: candidate[:2]
        )
    # Send buffers and fragmentation depend on the kind of parallelism: try each kind once.
    # `found` ascends: the reversed order lets the smallest setting overwrite larger ones.
    least_of_cut = {candidate[2].cut: candidate for candidate in reversed(least)}
    nearest: SettingMemoryNeed | None = None
    for candidate in sorted(least_of_cut.values(), key=lambda candidate: candidate[:2])[:_TRIED]:
        need = _tried(cluster, *candidate)
        if need.fits:
            return need
        nearest = nearest or need
    return nearest


def _tried(cluster: Cluster, nbytes: int, _: int, setting: PlanSetting, step: TrainingStep) -> SettingMemoryNeed:
    """Return a setting's memory need from the lower bound `nbytes` [B]; the simulated allocator tells if it fits."""
    hbm = cluster.gpus[0].hbm_bytes
    if nbytes > hbm:
        return SettingMemoryNeed(setting, nbytes, hbm, fits=False)
    # The allocator follows every allocation: fewer micro-batches save time.
    needed = checked_need(cluster, _of_few(cluster, step))
    if needed.fits:
        return SettingMemoryNeed(setting, needed.margin.process, hbm, fits=True)
    holes = needed.nbytes + needed.beside.nbytes <= hbm
    return SettingMemoryNeed(setting, max(needed.margin.process, nbytes), hbm, fits=False, holes=holes)


def _of_few(cluster: Cluster, step: TrainingStep) -> TrainingStep:
    """Return the step with fewer micro-batches if its lower bound on memory is equal; otherwise the step itself."""
    few = step.with_keys(gradient_accumulation_steps=min(step.accumulation, _FEW_ROUNDS * step.parallelism.pp))
    try:
        return few if least_need(cluster, few) == least_need(cluster, step) else step
    except ValueError:  # the order needs more micro-batches
        return step


@dataclass(frozen=True, slots=True)
class _Asked:
    """A plan's question: values to search, scenario with cluster and shared keys, and global batch [sequences]."""

    choices: Choices
    base: Scenario
    sequences: int


@dataclass(frozen=True, slots=True)
class _Change:
    """A change to an option in a plan's question, to try if no setting fits."""

    option: str  # name of the option; two changes to an option are never combined
    text: str  # the option in the user's notation
    made: Callable[[_Asked], _Asked]  # returns the changed question


def remedies(choices: Choices, base: Scenario, sequences: int, need: SettingMemoryNeed) -> Iterator[Remedy]:
    """Yield changes to a plan's question that make a setting fit: recompute, offload to the host, a smaller batch, more
    GPUs.

    Each change is tried alone; if no single change suffices, pairs are tried. Numbers of GPUs beyond the topology are
    skipped.

    Parameters
    ----------
    choices, base, sequences
        See `least_memory`.
    need : SettingMemoryNeed
        Result of `least_memory`, which does not fit.
    """
    search = _Asked(choices, base, sequences)
    changes = [(change,) for change in _changes(search, holes=need.holes)]
    single_helps = yield from _fitting(search, changes)
    if not single_helps:
        # Changes to the same option exclude each other.
        pairs = (pair for pair in combinations([change for (change,) in changes], 2) if len(_options(pair)) == 2)
        yield from islice(_fitting(search, pairs), _MOST_PAIRS)


def _options(together: tuple[_Change, ...]) -> frozenset[str]:
    """Return the set of option names changed together by these changes."""
    return frozenset(change.option for change in together)


def _fitting(search: _Asked, tried: Iterable[tuple[_Change, ...]]) -> Generator[Remedy, None, bool]:
    """Yield for each set of options the first changes after which a setting fits; return True if there are any."""
    sufficient = set[frozenset[str]]()
    for together in tried:
        options = _options(together)
        # A milder change of the same option already helps.
        if options in sufficient:
            continue
        changed = search
        for change in together:
            changed = change.made(changed)
        try:
            need = least_memory(changed.choices, changed.base, changed.sequences)
        except (ScenarioError, TooLargeError):  # the topology has fewer GPUs, or is too large to build
            continue
        if need is not None and need.fits:
            sufficient.add(options)
            yield Remedy(" ".join(change.text for change in together), need)
    return bool(sufficient)


def possible_numbers(choices: Choices, base: Scenario, sequences: int) -> list[str]:
    """Return options with the nearest other numbers of GPUs or sequences for which settings exist.

    Parameters
    ----------
    choices, base, sequences
        See `least_memory`, which found no feasible setting.

    Returns
    -------
    list of str
        For 60 GPUs and 64 sequences: ["--gpus 32", "--gpus 64", "--global-batch 60seq", "--global-batch 75seq"]. For
        each kind the nearest below and the nearest above, omitted if too far away to be found.
    """
    search = _Asked(choices, base, sequences)
    gpus = base.cluster.world_size
    tried = [[_with_gpus(number) for number in side] for side in _neighbours(gpus)]
    tried += [[_with_batch(number) for number in side] for side in _neighbours(sequences)]
    texts = (next((change.text for change in side if _is_possible(change.made(search))), None) for side in tried)
    return [text for text in texts if text is not None]


def _neighbours(number: int) -> tuple[range, range]:
    """Return the whole numbers below a number, down to its half, and above, up to its double, nearest first."""
    below = range(number - 1, max(number // 2, number - _NEIGHBOURS, 1) - 1, -1)
    return below, range(number + 1, min(2 * number, number + _NEIGHBOURS) + 1)


def _is_possible(search: _Asked) -> bool:
    """Return True if a setting exists for a plan's question, on a cluster that the topology has."""
    try:
        if next(settings(search.choices, search.base, search.sequences, InfeasibleCounts()), None) is None:
            return False
        Clusters().of(search.base)
    except (ScenarioError, TooLargeError):
        return False
    return True


def _changes(search: _Asked, *, holes: bool) -> Iterator[_Change]:
    """Yield the question's changes that may make a setting fit, mildest first; `holes` includes the allocator."""
    values, sequences, training = search.choices.values, search.sequences, search.base.training
    if holes and training is not None and training.allocator != _SEGMENTS:
        yield _Change("allocator", f"--set training.allocator={_SEGMENTS}", _in_segments)
    for name, value in (("checkpointing", "full"), ("micro_batch", 1), ("sharding", "zero3"), ("offload", "optimizer")):
        if value not in values[name]:
            yield _Change(name, f"--among {name}={value}", partial(_among, name=name, value=value))
    if sequences > 1:
        yield _with_batch(sequences // 2)
    # The search space has a single number of GPUs here.
    (gpus,) = values["gpus"]
    for number in (2 * gpus, 4 * gpus, 8 * gpus, 16 * gpus):
        yield _with_gpus(number)


def _with_batch(number: int) -> _Change:
    """Return a change to a global batch of `number` sequences in the plan's question."""
    return _Change("batch", f"--global-batch {number}seq", lambda search: replace(search, sequences=number))


def _with_gpus(number: int) -> _Change:
    """Return a change to `number` GPUs in the plan's question."""
    return _Change("gpus", f"--gpus {number}", partial(_on_gpus, number=number))


def _among(search: _Asked, name: str, value: Any) -> _Asked:
    """Return the plan's question with a single value for the dimension `name` of the search."""
    return replace(search, choices=Choices({**search.choices.values, name: (value,)}, search.choices.why))


def _in_segments(search: _Asked) -> _Asked:
    """Return the plan's question with the allocator's expandable segments, which avoid fragmentation."""
    training = search.base.training
    if training is None:
        return search
    return replace(search, base=search.base.replaced(training=training.replaced(allocator=_SEGMENTS)))


def _on_gpus(search: _Asked, number: int) -> _Asked:
    """Return the plan's question on a cluster of `number` GPUs."""
    cluster = search.base.cluster.replaced(world_size=number)
    return replace(_among(search, "gpus", number), base=search.base.replaced(cluster=cluster))
