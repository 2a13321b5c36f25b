"""Is a measured step time normal, and which single cause would explain the difference from the prediction?

Each cause is simulated: the same step with one thing changed. A cause with a size (kernels, transfers, the host, one
GPU) gets the size at which the simulated step takes as long as the measured step; a cause without a size (no overlap,
full recompute, ...) explains a share of the gap. Causes are alternatives and must not be added.

A described step that does not fit into memory cannot be the measured one. The nearest settings that fit are then
simulated in place of causes.

Example: predicted 1.00 s, measured 1.20 s, 0.10 s of exposed communication. Transfers 3 times as slow add about 0.2 s
and explain the gap; kernels 1.22 times as slow do as well; full recompute would add 0.25 s.

A size beyond a factor of 3 is unlikely: several smaller causes are likelier. A cause with a step time far beyond the
measured one is unlikely too. Without measured collectives, transfers are the least known: slow
transfers are then the first cause to look at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.basics.work_unit import work_unit
from simulator.cluster.locate import read_named
from simulator.model.load import load_model
from simulator.model.model import modules, training_flops_per_token
from simulator.model.shape import Transformer
from simulator.records.memory_margin import MemoryMargin, margin_of
from simulator.run.scenario_cluster import Clusters
from simulator.run.simulate import simulate_point
from simulator.scenario.records import Scenario
from simulator.step.framework import changed_file, load_framework
from simulator.step.kernels.kernel_time import attention_generations
from simulator.step.training_spec import OptimizerSpec, TrainingSpec

# Largest factor tried for slow kernels, transfers and GPUs, and longest time for the host to issue a kernel [s].
_MOST: Final = 16.0
_SLOWEST_ISSUE: Final = 200e-6
# Rated power of a board relative to the lowest limit that its driver accepts: an H100 with 700 W accepts 200 W.
_LEAST_POWER: Final = 3.5
# A size is found when the simulated step time is this close to the measured one, or after so many simulations.
_CLOSE: Final = 0.003
# Largest factor of a likely cause.
_LIKELY: Final = 3.0
# The host's time to issue a kernel from which its factor counts at least [s]: the slowest fitted host, nanotron's, has
# three times as much.
_USUAL_ISSUE: Final = 40e-6
_TRIALS: Final = 8


@dataclass(frozen=True, slots=True)
class Explanation:
    """A cause with its simulated step time."""

    # The cause in words: "transfers take 2.3 times as long".
    cause: str
    step_time: float  # simulated step time with this cause [s]
    # Part of the gap between predicted and measured time that the cause explains; 1: all.
    share: float
    # What to write in the scenario to simulate the cause; empty without a key.
    key: str = ""
    # False for a cause with a size beyond a factor of 3, or with a step time far beyond the measured one.
    likely: bool = True
    usual: bool = False  # True for slow transfers on a machine whose collectives were not measured


@dataclass(frozen=True, slots=True)
class FittingSetting:
    """A change after which a step that does not fit into memory fits, with its simulated time."""

    # What to write in the scenario: "activation_checkpointing: full".
    key: str
    step_time: float  # simulated step time [s]
    # `low`, `high`: Ends of its 80 % interval [s].
    low: float
    high: float
    margin: MemoryMargin  # reserved and free memory


@dataclass(frozen=True, slots=True)
class Expectation:
    """A measured step time beside its prediction."""

    # `measured`, `predicted`: Step times [s].
    measured: float
    predicted: float
    # `low`, `high`: Ends of the prediction's 80 % interval [s].
    low: float
    high: float
    work: float  # tokens or samples per step
    # Unit of work: "token" or "sample".
    unit: str
    # Causes that change the step time towards the measured one: likely causes first, share closest to 1 first; empty
    # with `fitting`.
    explanations: tuple[Explanation, ...]
    margin: MemoryMargin  # memory of the step as described
    # Settings with which the step fits, if it does not fit as described; the mildest first.
    fitting: tuple[FittingSetting, ...] = ()
    # `needed_flops`, `peak_flops`: FLOP/s that the measured step needs at least on each GPU, and a GPU's dense peak in
    # the matmuls' dtype.
    needed_flops: float = 0.0
    peak_flops: float = math.inf

    @property
    def possible(self) -> bool:
        """True unless the measured step would need more FLOP/s than the GPUs have."""
        return self.needed_flops <= self.peak_flops

    @property
    def normal(self) -> bool:
        """True if the measured step time lies in the prediction's 80 % interval."""
        return self.low <= self.measured <= self.high

    def to_dict(self) -> dict[str, Any]:
        """Return the expectation in a plain dict."""
        return {
            "measured_step_time_s": self.measured,
            "predicted_step_time_s": self.predicted,
            "interval_80": [self.low, self.high],
            "normal": self.normal,
            "possible": self.possible,
            "fits": self.margin.fits,
            "reserved_bytes": self.margin.reserved,
            "process_bytes": self.margin.process,
            "capacity_bytes": self.margin.capacity,
            "settings_that_fit": [
                {
                    "key": entry.key,
                    "step_time_s": entry.step_time,
                    "interval_80": [entry.low, entry.high],
                    "reserved_bytes": entry.margin.reserved,
                    "process_bytes": entry.margin.process,
                }
                for entry in self.fitting
            ],
            "explanations": [
                {
                    "cause": entry.cause,
                    "step_time_s": entry.step_time,
                    "share_of_gap": entry.share,
                    "key": entry.key,
                    "likely": entry.likely,
                    "usual": entry.usual,
                }
                for entry in self.explanations
            ],
        }


def expectation(
    scenario: Scenario,
    step_time: float | None = None,
    rate: float | None = None,
    advance: Callable[[], None] | None = None,
) -> Expectation:
    """Return a measured step beside its prediction, with the causes that would explain the difference.

    Parameters
    ----------
    scenario : Scenario
        A single training step.
    step_time, rate : float
        The measurement, one of both: time per step [s], or tokens (samples) per second of all GPUs together.
    advance : function, optional
        Called after each simulation.

    Raises
    ------
    ScenarioError
        The scenario is no training step, or the measurement is missing or not positive.
    """
    if scenario.training is None:
        raise ScenarioError("expect: the scenario has no `training`; only training steps have a normal time")
    if (step_time is None) == (rate is None):
        raise ScenarioError("expect: give one measurement, a step time or a rate")
    value = step_time if step_time is not None else rate
    if value is None or not (0.0 < value < math.inf):
        raise ScenarioError(f"expect: got {value}; a measurement must be more than 0")
    clusters = Clusters()

    def simulated(changed: Scenario) -> dict[str, Any]:
        report = simulate_point(changed, limit_memory=False, clusters=clusters).report.to_dict()
        if advance is not None:
            advance()
        return report

    report = simulated(scenario)
    predicted, work = report["step_time_s"], report["tokens_per_s"] * report["step_time_s"]
    measured = step_time if step_time is not None else work / float(rate or 1.0)
    margin = margin_of(report)
    fitting = () if margin.fits else tuple(_fitting(scenario, scenario.training, simulated))
    reached = report["model_flops_per_s_per_gpu"]
    peak = reached / report["mfu"]
    needed = _least_share(scenario.training, scenario.base) * reached * predicted / measured
    causes: list[Explanation] = []
    if not fitting and needed <= peak:
        # A factor within which predictions are right.
        low, high = (end / predicted for end in _interval(report))
        close = 1 / low if measured < predicted else high
        machine = clusters.of(scenario)
        unmeasured = not machine.collectives and not machine.in_node
        times = _explanations(
            scenario, lambda changed: float(simulated(changed)["step_time_s"]), predicted, measured, close, unmeasured
        )
        causes = list(times)
    return Expectation(
        measured,
        predicted,
        *_interval(report),
        work,
        work_unit([report]),
        # The usual cause first, then likely causes that explain the whole gap and no more.
        tuple(
            sorted(causes, key=lambda cause: (not cause.likely, not cause.usual, round(abs(math.log(cause.share)), 1)))
        ),
        margin,
        fitting,
        needed,
        peak,
    )


def _least_share(training: TrainingSpec, base: Path | None) -> float:
    """Return a lower bound on the share of the model FLOPs that kernels compute: MFU counts all scores, of which causal
    attention needs half, and 6 FLOP for each parameter of the embedding.

    With frozen parts, attention is at most all of the counted FLOPs.
    """
    model, tokens = load_model(training.model, training.seq_len, base), training.seq_len
    if not isinstance(model, Transformer):
        return 1.0
    if training.lora.rank or training.trainable != "all":
        return 0.5
    # Rows of an embedding are looked up, unless the head multiplies by them.
    looked_up = 0 if model.tied else modules(model)[0].elements
    least = training_flops_per_token(model, tokens // 2) - 6 * looked_up
    return least / training_flops_per_token(model, tokens)


def _interval(report: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ends of the 80 % interval of the step time in a report [s]."""
    return report["intervals"]["step_time_s_80_low"], report["intervals"]["step_time_s_80_high"]


def _fitting(
    scenario: Scenario, training: TrainingSpec, simulated: Callable[[Scenario], dict[str, Any]]
) -> Iterator[FittingSetting]:
    """Yield the settings with which a step fits that does not fit as described, the mildest of each kind."""
    sufficient = set[str]()
    for kind, key, changes in _smaller(training):
        if kind in sufficient:
            continue
        report = simulated(scenario.replaced(training=training.replaced(**changes)))
        margin = margin_of(report)
        if margin.fits:
            sufficient.add(kind)
            yield FittingSetting(key, report["step_time_s"], *_interval(report), margin)


def _smaller(training: TrainingSpec) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield changes that save memory and keep the global batch: kind, key, and changed fields of `training`."""
    if training.allocator != "expandable_segments":
        yield "allocator", "allocator: expandable_segments", {"allocator": "expandable_segments"}
    policies = {"none": ("selective_op", "full"), "full": ()}.get(str(training.activation_checkpointing), ("full",))
    # Of a run that fits, either policy may be the setting: each is a kind of its own.
    for policy in policies:
        yield policy, f"activation_checkpointing: {policy}", {"activation_checkpointing": policy}
    size, times = training.micro_batch_size, 1
    while size % 2 == 0:
        size, times = size // 2, 2 * times
        keys: dict[str, Any] = {"micro_batch_size": size}
        # A global batch gives the number of micro-batches.
        if training.global_batch is None:
            keys["gradient_accumulation_steps"] = times * training.gradient_accumulation_steps
        text = ", ".join(f"{key}: {value}" for key, value in keys.items())
        yield "micro_batch_size", text, keys
        for policy in policies[-1:]:
            yield "micro_batch_size", f"{text}, activation_checkpointing: {policy}", {
                **keys, "activation_checkpointing": policy,
            }  # fmt: skip


def _explanations(
    scenario: Scenario,
    time_of: Callable[[Scenario], float],
    predicted: float,
    measured: float,
    close: float,
    unmeasured: bool,
) -> Iterator[Explanation]:
    """Yield the causes that change the step time towards the measured one.

    Predictions are right within the factor `close`. `unmeasured`: no collective of the
    machine was measured.
    """
    training = scenario.training
    if training is None:
        return
    slower = measured > predicted

    def explanations(
        cause: str, seconds: float, key: str = "", *, likely: bool = True, usual: bool = False
    ) -> Iterator[Explanation]:
        share = (seconds - predicted) / (measured - predicted) if measured != predicted else 0.0
        # A cause that hardly matters, or works the other way, is none.
        if share > 0.01:
            beyond = seconds / measured if slower else measured / seconds
            yield Explanation(cause, seconds, share, key, likely and beyond <= close, usual)

    sized = _sized(scenario, training, slower=slower, unmeasured=unmeasured)
    sizes = [(change, *_solved(_times(time_of, change), predicted, measured, change.most)) for change in sized]
    # The smaller the change, the likelier the cause.
    for change, size, seconds in sorted(sizes, key=lambda solved: abs(math.log(solved[1]))):
        likely = max(size, 1 / size) <= change.likely
        yield from explanations(change.words(size), seconds, change.key(size), likely=likely, usual=change.usual)
    for cause, key, changes in _plain(scenario, training, slower=slower):
        yield from explanations(cause, time_of(scenario.replaced(training=training.replaced(**changes))), key)


@dataclass(frozen=True, slots=True)
class _Sized:
    """A cause with a size; size 1 changes nothing."""

    words: Callable[[float], str]  # the cause in words
    key: Callable[[float], str]  # what to write in the scenario
    most: float  # largest size that is tried; below 1 for causes that make a step faster
    changed: Callable[[float], Scenario]  # the scenario with the cause
    likely: float = _LIKELY  # largest factor of the size, up or down, that a real machine is likely to have
    usual: bool = False  # as in `Explanation`


def _times(time_of: Callable[[Scenario], float], cause: _Sized) -> Callable[[float], float]:
    """Return the function from a cause's size to the simulated step time [s]."""
    return lambda size: time_of(cause.changed(size))


def _sized(scenario: Scenario, training: TrainingSpec, *, slower: bool, unmeasured: bool) -> Iterator[_Sized]:
    """Yield causes with a size that change the step time in one direction; `unmeasured` as in `_explanations`."""
    constants = load_framework(training.framework, scenario.base)
    most = _MOST if slower else 1 / _MOST

    def with_constant(name: str, value: Any) -> Scenario:
        framework: Any = changed_file(training.framework, scenario.base, {name: value})
        return scenario.replaced(training=training.replaced(framework=framework))

    def factor(name: str, words: str, shipped: float, *, usual: bool = False) -> _Sized:
        return _Sized(
            lambda size: f"{words} take {size:.2f} times as long",
            lambda size: f"{name}: {shipped * size:.3g} in a framework file",
            most,
            lambda size: with_constant(name, shipped * size),
            # Without a measurement nothing bounds the factor of a library that copies through the host.
            _MOST if usual else _LIKELY,
            usual,
        )

    yield factor("kernel_time", "kernels", constants.kernel_time)
    if scenario.cluster.world_size > 1:
        yield factor("network_time", "transfers", constants.network_time, usual=slower and unmeasured)
    if not slower:
        return
    # The issue time grows from its own value, or from 1 us.
    issue = constants.host.issue or 1e-6
    yield _Sized(
        lambda size: f"the host needs {1e6 * issue * size:.0f} us to issue a kernel",
        lambda size: f"host.issue: {issue * size:.2g} in a framework file",
        max(_SLOWEST_ISSUE / issue, 2.0),
        lambda size: with_constant("host", {"issue": issue * size}),
        _LIKELY * max(_USUAL_ISSUE / issue, 1.0),
    )
    if scenario.cluster.world_size > 1 and not scenario.cluster.stragglers:
        yield _Sized(
            lambda size: f"one GPU has {100 / size:.0f} % of its speed",
            lambda size: f"cluster.stragglers: {{0: {1 / size:.2f}}}",
            most,
            lambda size: scenario.replaced(cluster=scenario.cluster.replaced(stragglers={0: 1 / size})),
        )
    yield from _power_limit(scenario)


def _power_limit(scenario: Scenario) -> Iterator[_Sized]:
    """Yield the cause that every board is limited to less power; nothing for a GPU without known power."""
    gpu = Clusters().of(scenario).gpus[0]
    power, file = gpu.facts.get("power"), scenario.cluster.gpu or gpu.name
    # A topology may describe a GPU of its own, in a file that only the topology can find.
    if power is None or (scenario.cluster.gpu is None and gpu.name not in registry.names("gpu")):
        return
    keys = read_named("gpu", file, scenario.base)[1].data
    yield _Sized(
        lambda size: f"every GPU is limited to {power / size:.0f} W of its {power:.0f} W",
        lambda size: f"power: {power / size:.0f} in a GPU file",
        _LEAST_POWER,
        lambda size: scenario.replaced(cluster=scenario.cluster.replaced(gpu={**keys, "power": power / size})),
    )


def _plain(scenario: Scenario, training: TrainingSpec, *, slower: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield causes without a size: words, key, and changed fields of `training`."""
    constants = load_framework(training.framework, scenario.base)
    if slower:
        if constants.sharding.overlaps and scenario.cluster.world_size > 1:
            framework = changed_file(training.framework, scenario.base, {"sharding": {"overlaps": False}})
            yield (
                "communication does not overlap with kernels",
                "sharding.overlaps: false in a framework file",
                {"framework": framework},
            )
        if training.activation_checkpointing != "full":
            yield "every layer is recomputed", "activation_checkpointing: full", {"activation_checkpointing": "full"}
        if training.attention == "flash":
            yield "attention writes its scores to memory", "attention: standard", {"attention": "standard"}
        if training.attention_generation in (3, 4):
            yield "attention runs on kernels of generation 2", "attention_generation: 2", {"attention_generation": 2}
        if training.compile:
            yield "kernels are not merged by a compiler", "compile: false", {"compile": False}
        if training.optimizer.implementation != "for_loop" and training.offload.what == "none":
            loop = OptimizerSpec(name=training.optimizer.name, implementation="for_loop")
            yield "the optimizer updates tensor by tensor", "optimizer.implementation: for_loop", {"optimizer": loop}
        return
    if training.activation_checkpointing != "none":
        yield "nothing is recomputed", "activation_checkpointing: none", {"activation_checkpointing": "none"}
    newer = 3 in attention_generations(Clusters().of(scenario).gpus[0])
    if training.attention_generation in ("auto", 2) and newer:
        yield "attention runs on kernels of generation 3", "attention_generation: 3", {"attention_generation": 3}
    if not training.compile and constants.kernels.compiled:
        yield "a compiler merges kernels", "compile: true", {"compile": True}


def _solved(time_of: Callable[[float], float], predicted: float, measured: float, most: float) -> tuple[float, float]:
    """Return the size (1 changes nothing) at which a step takes the measured time, and its simulated time [s]; the
    largest size if none does.

    Regula falsi (Illinois) over the logarithm of the size; times grow with it.
    """
    low, high = 0.0, math.log(most)
    below, above = predicted - measured, time_of(most) - measured
    if below * above >= 0:
        return most, above + measured
    for _ in range(_TRIALS):
        middle = (low * above - high * below) / (above - below)
        seconds = time_of(math.exp(middle))
        off = seconds - measured
        if abs(off) < _CLOSE * measured:
            break
        if off * above < 0:
            low, below = high, above
        else:
            # The Illinois rule: halve the value at the bound that has not moved, because otherwise the bound may never
            # move and the iteration converges slowly.
            below /= 2
        high, above = middle, off
    return math.exp(middle), seconds
