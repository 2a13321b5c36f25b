"""Tell whether a measured step is normal, and why not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from simulator.basics.errors import ScenarioError
from simulator.basics.sentence import started
from simulator.basics.units import format_memory, format_time
from simulator.basics.work_unit import SAMPLE, TOKEN, USEFUL_TOKEN, rate_name
from simulator.calibration.table import Table
from simulator.cli.console import print_text, width
from simulator.cli.options import AsJson, NoPlugins, ScenarioName, Settings
from simulator.cli.progress import progress
from simulator.cli.settings import as_overrides
from simulator.cli.warnings_output import print_assumed_framework
from simulator.model.load import load_model

if TYPE_CHECKING:
    from simulator.run.expectation import Expectation, Explanation
    from simulator.scenario.records import Scenario

# Simulations of the largest question: the prediction, five causes with sizes, and six without.
_MOST_SIMULATED: Final = 1 + 5 * 9 + 6
# Units of a step time, with their factor to seconds.
_TIMES: Final[Mapping[str, float]] = {"s": 1.0, "ms": 1e-3}
# Units of a rate over all GPUs together, by the model's unit of work; with one of the endings, the rate is per GPU.
_RATES: Final[Mapping[str, tuple[str, ...]]] = {TOKEN: ("tokens/s", "tok/s"), SAMPLE: ("samples/s", "images/s")}
_PER_GPU: Final = ("/gpu", " per gpu")
# Before the unit of a rate that leaves out padding.
_USEFUL: Final = "useful "
# A measurement within this factor of the prediction is plausible.
_PLAUSIBLE: Final = 3.0
# A measurement beyond this factor of the prediction may contain time that is not simulated.
_NOT_SIMULATED: Final = 2.0
# Distance from the whole gap up to which a cause explains it.
_WHOLE: Final = 0.1


@dataclass(frozen=True, slots=True)
class _Measurement:
    """A measurement as the user wrote it."""

    step_time: float | None = None  # time per step [s]; None for a rate
    # Tokens (padding included) or samples per second of all GPUs together; None for a step time
    rate: float | None = None
    per_gpu: bool = False  # whether the user wrote the rate of each GPU


def command(
    source: ScenarioName,
    measured: Annotated[
        str,
        typer.Option(
            metavar="TEXT",
            help="Your measurement: '14.7 s', '120000 tokens/s' or '5700 tokens/s/GPU' (samples/s for images).",
        ),
    ],
    settings: Settings = None,
    as_json: AsJson = False,
    no_plugins: NoPlugins = False,
) -> None:
    from simulator.run.expectation import expectation
    from simulator.scenario.build_training import tokens_used
    from simulator.scenario.load import load_scenario

    scenario = load_scenario(source, as_overrides(settings or ()))
    gpus = scenario.cluster.world_size
    used = 1.0 if scenario.training is None else tokens_used(scenario.training, gpus, scenario.base)
    measurement = _measurement(measured, gpus, _unit(scenario), used)
    print_assumed_framework(scenario)
    with progress(_MOST_SIMULATED, what=scenario.name, counted="simulations at most") as advance:
        answer = expectation(scenario, measurement.step_time, measurement.rate, advance)
    if scenario.compare or scenario.sweep:
        print_text(
            f"{source}: `compare` and `sweep` do not count here; the scenario's other values are simulated", stderr=True
        )
    for hint in filter(None, (_hint(answer, measurement, gpus), _padding_hint(measurement, measured, used))):
        print_text(f"note: {hint}", stderr=True)
    if as_json:
        typer.echo(json.dumps(answer.to_dict(), indent=2))
        return
    if not answer.margin.fits:
        _print_fitting(answer, measurement, gpus)
        if answer.fitting:
            return
    print_text(_said(answer, measurement, gpus))
    # A normal time needs no explanation.
    if answer.normal or not answer.explanations:
        return
    print_text(_why(answer.explanations))
    lines = [
        (_cause(why), format_time(why.step_time), f"{100 * why.share:.0f} %", why.key) for why in answer.explanations
    ]
    head = ("what if", "step time", "of the gap", "to simulate it")
    typer.echo(f"\n{Table('simulated explanations, each alone', head, tuple(lines)).text(width())}")
    print_text(
        "\nEach cause is simulated alone, and shares do not add up; in a real run several causes may act together, "
        "each with a smaller size."
    )
    if not all(why.likely for why in answer.explanations):
        print_text(
            "Unlikely: a size beyond a factor of 3 for one cause alone, or a step time far beyond the measured one."
        )
    if any(why.likely and why.usual for why in answer.explanations):
        print_text(
            "No collective of this machine was measured: the prediction follows from its links, therefore slow "
            "transfers come first."
        )
    if answer.measured > _NOT_SIMULATED * answer.predicted:
        print_text(
            f"More than {_NOT_SIMULATED:g} times the predicted time: first rule out what is not simulated: loading of "
            "data, work of the host between steps (Python, logging, evaluation), checkpoints, and the first steps of a "
            "run."
        )


def _why(causes: Sequence[Explanation]) -> str:
    """Return a sentence on the causes that explain a gap alone, at most three, and on the one that explains most of the
    others.

    >>> from simulator.run.expectation import Explanation
    >>> _why([Explanation("kernels take 2 times as long", 1.0, 1.0), Explanation("layers are recomputed", 0.6, 0.4)])
    'Each of these alone explains it: kernels take 2 times as long. Layers are recomputed: 40 % of it.'
    """
    likely = [why for why in causes if why.likely]
    entire = [why.cause for why in likely if abs(why.share - 1) <= _WHOLE][:3]
    parts = [why for why in likely if _WHOLE < 1 - why.share < 1]
    clauses = [f"Each of these alone explains it: {'; '.join(entire)}."] if entire else []
    if parts:
        most = max(parts, key=lambda why: why.share)
        clauses.append(f"{started(most.cause)}: {100 * most.share:.0f} % of it.")
    return " ".join(clauses) or "No likely cause that was tried explains it."


def _cause(cause: Explanation) -> str:
    """Return a cause in words, with a mark if it is unlikely."""
    return cause.cause if cause.likely else f"{cause.cause} (unlikely)"


def _print_fitting(answer: Expectation, measurement: _Measurement, gpus: int) -> None:
    """Print that the described step does not fit into memory, and the measurement beside settings that fit."""
    print_text(
        f"The step as described {answer.margin.verdict}: the measured run recomputes more or holds less. Without the "
        f"limit it would take {format_time(answer.predicted)}; measured {format_time(answer.measured)}."
    )
    if not answer.fitting:
        print_text("It fits with no tested setting; the comparison below ignores the limit.")
        return
    rate = (f"{rate_name(answer.unit)} per GPU",) if measurement.rate is not None else ()
    head = ("setting", "step time", *rate, "measured against it", "normal", "reserved memory")
    lines = []
    for fit in answer.fitting:
        ends = f"{format_time(fit.low)} to {format_time(fit.high)}"
        speed = (f"{answer.work / gpus / fit.step_time:,.0f}",) if rate else ()
        excess = f"{answer.measured / fit.step_time - 1:+.1%}"
        normal = f"{'yes' if fit.low <= answer.measured <= fit.high else 'no'}: {ends}"
        lines.append((fit.key, format_time(fit.step_time), *speed, excess, normal, format_memory(fit.margin.process)))
    typer.echo(f"\n{Table('settings with which it fits, each simulated', head, tuple(lines)).text(width())}")
    print_text("\nWrite the setting of your run into the scenario, and run `expect` again: it then simulates causes.")


def _unit(scenario: Scenario) -> str:
    """Return the unit of work of the scenario's model; tokens without a training."""
    training = scenario.training
    return TOKEN if training is None else load_model(training.model, training.seq_len, scenario.base).work_unit


def _measurement(text: str, gpus: int, work: str, used: float) -> _Measurement:
    """Return the measurement in a text; raise ScenarioError without a positive number and a unit that the model has.

    `work` is the model's unit of work: "token" or "sample"; `used` is the share of tokens that are not padding.
    """
    number, _, unit = text.strip().partition(" ")
    rates, name = _RATES[work], rate_name(work)
    allowed = f"write a number and a unit, such as '14.7 s', '980 ms', '120000 {name}' or '5700 {name}/GPU'"
    try:
        value = float(number.replace(",", ""))
    except ValueError:
        raise ScenarioError(f"--measured: got {text!r}; {allowed}") from None
    unit = " ".join(unit.split()).lower()
    if used < 1.0:
        allowed += f", or '3400 {rate_name(USEFUL_TOKEN)}' without padding"
        if unit.startswith(_USEFUL):
            unit, value = unit.removeprefix(_USEFUL), value / used
    if value > 0 and unit in _TIMES:
        return _Measurement(step_time=value * _TIMES[unit])
    if value > 0 and unit in rates:
        return _Measurement(rate=value)
    if value > 0 and unit in {f"{rate}{ending}" for rate in rates for ending in _PER_GPU}:
        # A rate of one GPU, times the number of GPUs, is the rate of the job.
        return _Measurement(rate=value * gpus, per_gpu=True)
    raise ScenarioError(f"--measured: got {text!r}; {allowed}")


def _hint(answer: Expectation, measurement: _Measurement, gpus: int) -> str:
    """Return a hint if a rate of all GPUs is plausible only as the rate of each GPU; otherwise ""."""
    if measurement.rate is None or measurement.per_gpu:
        return ""
    predicted = answer.work / answer.predicted

    def plausible(rate: float) -> bool:
        return predicted / _PLAUSIBLE <= rate <= predicted * _PLAUSIBLE

    if plausible(measurement.rate) or not plausible(measurement.rate * gpus):
        return ""
    name = rate_name(answer.unit)
    return f"if {measurement.rate:,.0f} {name} is per GPU, write '{measurement.rate:.0f} {name}/GPU'"


def _padding_hint(measurement: _Measurement, measured: str, used: float) -> str:
    """Return a hint on which tokens a measured rate counts, if some are padding; otherwise ""."""
    if measurement.rate is None or used == 1.0:
        return ""
    share = f"{100 * (1 - used):.3g} % of the tokens"
    if _USEFUL in measured:
        return f"{share} are padding; the rates below count them"
    return f"the rate counts padding, {share}; write 'useful tokens/s' for a rate without"


def _said(answer: Expectation, measurement: _Measurement, gpus: int) -> str:
    """Return a sentence on whether the measured step time is normal, with rates if the measurement is a rate."""
    excess = answer.measured / answer.predicted - 1
    ends = f"{format_time(answer.low)} to {format_time(answer.high)}"
    if measurement.rate is not None:
        # The longest normal step has the lowest normal rate.
        times = (answer.measured, answer.predicted, answer.high, answer.low)
        measured, predicted, lowest, highest = (f"{answer.work / gpus / seconds:,.0f}" for seconds in times)
        ends += f" (= {measured} against {predicted} {rate_name(answer.unit)} per GPU; normal {lowest} to {highest})"
    if not answer.possible:
        needed, peak = (f"{flops / 1e12:,.0f}" for flops in (answer.needed_flops, answer.peak_flops))
        return (
            f"Impossible: a step in {format_time(answer.measured)} needs at least {needed} TFLOP/s on each GPU, and a "
            f"GPU has {peak} at most ({100 * answer.needed_flops / answer.peak_flops:.0f} %); check the model, the "
            f"number of GPUs and the tokens of a step. Predicted: {format_time(answer.predicted)}."
        )
    if answer.normal:
        return (
            f"Normal: measured {format_time(answer.measured)}, predicted {format_time(answer.predicted)} "
            f"({excess:+.1%}); four in five comparable runs lie within {ends}."
        )
    return (
        f"{'Slower' if excess > 0 else 'Faster'} than expected: measured {format_time(answer.measured)}, predicted "
        f"{format_time(answer.predicted)} ({excess:+.1%}); four in five comparable runs lie within {ends}."
    )
