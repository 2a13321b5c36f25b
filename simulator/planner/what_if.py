"""A form for "what if": model, GPUs, network, method, sequence length, batch and layout; the answer follows a change.

The form is built on Panel (HoloViz), which shows the same widgets in a notebook and in a page of a local server. It
says what `simulator run` says of the scenario beside it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from html import escape
from importlib import import_module
from typing import Any, Final

from simulator.basics import registry, yaml_dialect
from simulator.basics.errors import ScenarioError, SimulatorError, one_of
from simulator.basics.units import format_memory, format_time
from simulator.findings.answer import answer
from simulator.findings.comparison import Comparison
from simulator.planner.sizing.fit_question import METHODS, FitQuestion
from simulator.records.memory_margin import margin_of
from simulator.report.plots import style
from simulator.report.plots.training.breakdown import coloured_parts
from simulator.run.outcome import PointOutcome
from simulator.run.simulate import SimulatedRun, simulate
from simulator.scenario.load import load_scenario

# The simulator's own choice, where it has one.
AUTO: Final = "auto"
# Largest numbers of the form: an answer may take seconds, and not minutes.
_MOST: Final = {"gpus": 1024, "seq_len": 1_048_576, "micro_batch": 1024, "accumulation": 64}
_POWERS: Final = tuple(2**power for power in range(11))
# A part narrower than this share of the bar is left out of it [%].
_THINNEST: Final = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A training step as the form describes it, a field for each widget."""

    model: str = "llama3_8b"
    gpu: str = "h100_sxm"
    gpus: int = 8
    network: str = AUTO  # topology; auto: the shipped machine whose slots the card fits
    framework: str = "torchtitan"
    method: str = "full"  # training of all parameters ("full"), or of adapters ("lora", "qlora")
    precision: str = AUTO  # auto: the GPU's usual mixed precision
    sharding: str = AUTO  # auto: zero3 on several GPUs, ddp on one
    seq_len: int = 4096  # [tokens]
    micro_batch: int = 1  # sequences per micro-batch and data-parallel rank
    accumulation: int = 1  # micro-batches of a step
    recompute: str = "none"  # activations that are computed again: an activation_checkpointing policy
    tp: int = 1  # tensor-parallel ranks
    pp: int = 1  # pipeline stages
    cp: int = 1  # context-parallel ranks
    ep: int = 1  # expert-parallel ranks

    def __post_init__(self) -> None:
        for name, allowed in choices().items():
            value = getattr(self, name)
            if allowed and value not in allowed:
                raise ScenarioError(f"{name}: got {value!r}; {one_of(list(map(str, allowed)), str(value))}")
            if not allowed and not (isinstance(value, int) and 1 <= value <= _MOST[name]):
                raise ScenarioError(f"{name}: got {value!r}; must be a whole number from 1 to {_MOST[name]:,}")

    @property
    def document(self) -> dict[str, Any]:
        """The step as a scenario, in plain data, without keys at their defaults."""
        layout = {name: size for name in ("tp", "pp", "cp", "ep") if (size := getattr(self, name)) > 1}
        further = {
            "training.sharding": None if self.sharding == AUTO else self.sharding,
            "training.precision": None if self.precision == AUTO else self.precision,
            "training.gradient_accumulation_steps": self.accumulation if self.accumulation > 1 else None,
            "training.activation_checkpointing": None if self.recompute == "none" else self.recompute,
            "training.parallelism": layout or None,
            "cluster.topology": None if self.network == AUTO else self.network,
        }
        question = FitQuestion(
            model=self.model, gpu=self.gpu, gpus=self.gpus, method=self.method, seq_len=self.seq_len,
            micro_batch=self.micro_batch, framework=self.framework,
        )  # fmt: skip
        return question.document({key: value for key, value in further.items() if value}) | {"name": "what_if"}

    @property
    def text(self) -> str:
        """The scenario as the text of a file for `simulator run`."""
        return yaml_dialect.dump(self.document)

    def run(self) -> SimulatedRun:
        """Simulate the step, also one that needs more memory than there is; ScenarioError for a contradiction."""
        return simulate(load_scenario(self.document), limit_memory=False)


@cache
def choices() -> dict[str, tuple[Any, ...]]:
    """Return the allowed values of each field of the form; an empty tuple where any positive number is allowed."""
    networks = tuple(name for name in registry.names("topology"))
    allowed: dict[str, tuple[Any, ...]] = {
        "model": tuple(registry.names("model")),
        "gpu": tuple(registry.names("gpu")),
        "network": (AUTO, *networks),
        "framework": ("bare", *registry.names("framework")),
        "method": METHODS,
        "precision": (AUTO, "bf16", "fp16", "fp8", "fp32"),
        "sharding": (AUTO, "ddp", "zero1", "zero2", "zero3"),
        "recompute": ("none", "selective_op", "attention", "full"),
    } | dict.fromkeys(("tp", "pp", "cp", "ep"), _POWERS)
    return {field.name: allowed.get(field.name, ()) for field in fields(WhatIf)}


def answered(setting: WhatIf) -> str:
    """Return the answer as HTML: sentences, the bars of memory and of the step, and warnings; or what contradicts."""
    with warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        try:
            run = setting.run()
            sentences = _sentences(run)
        except SimulatorError as error:
            lines = "".join(f"<p>{escape(line)}</p>" for line in refusal(error).splitlines())
            return f'<div role="alert" class="refused">{lines}</div>'
    report = run.report.to_dict()
    margin = margin_of(report)
    memory = dict(report["peak_memory_by_category"])
    memory["CUDA, NCCL and fragments"] = margin.process - sum(memory.values())
    colours = style.colours(memory)
    step = coloured_parts(report)
    # The same warning may come from several places.
    notes = list(dict.fromkeys(str(warning.message) for warning in issued))
    return "".join((
        f"<p class='first'>{escape(sentences[0])}</p>",
        *(f"<p>{escape(sentence)}</p>" for sentence in sentences[1:]),
        _bar(f"Memory at the peak: {format_memory(margin.process)}; the GPU has {format_memory(margin.capacity)}",
             {name: (size, colours[name]) for name, size in memory.items()}, format_memory, margin.capacity),
        _bar(f"A step{'' if margin.fits else ', if it fitted'}: {_duration(report)}", step, format_time),
        _folded(notes) if notes else "",
    ))  # fmt: skip


def _folded(notes: Sequence[str]) -> str:
    texts = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<details><summary>Notes ({len(notes)})</summary>{texts}</details>"


def refusal(error: SimulatorError) -> str:
    """Return the lines of an error; those of plain data begin with its kind in place of a file's name."""
    return "\n".join(line.removeprefix("<dict>: ") for line in str(error).splitlines())


def compared(run: SimulatedRun) -> Comparison:
    """Return the run as a sweep's only point."""
    return Comparison(run.scenario, [PointOutcome.of(0, {}, run)])


def _sentences(run: SimulatedRun) -> list[str]:
    margin = margin_of(run.report.to_dict())
    if not margin.fits:
        return [f"The step {margin.verdict}."]
    reply = answer(compared(run))
    return [*reply.sentences, *([f"Why: {reply.why}"] if reply.why else [])]


def _duration(report: Mapping[str, Any]) -> str:
    """Return a step's time with its interval, in words."""
    low, high = (report["intervals"].get(f"step_time_s_80_{end}") for end in ("low", "high"))
    interval = (
        "" if low is None or high is None else f"; {format_time(low)} to {format_time(high)} in four of five cases"
    )
    return format_time(report["step_time_s"]) + interval


def _bar(
    title: str, parts: Mapping[str, tuple[float, str]], text: Callable[[float], str], capacity: float = 0.0
) -> str:
    """Return a bar in HTML: named parts (size, colour), and a mark at the capacity, also if the parts exceed it."""
    total = sum(size for size, _ in parts.values())
    longest = max(total, capacity)
    shares = {name: 100 * size / longest for name, (size, _) in parts.items()}
    visible = [name for name, share in shares.items() if share >= _THINNEST]
    pieces = "".join(
        f'<span style="width:{shares[name]:.2f}%;background:{parts[name][1]}" title="{escape(name)}"></span>'
        for name in visible
    )
    mark = f'<i style="left:{100 * capacity / longest:.2f}%"></i>' if capacity else ""
    legend = "".join(
        f'<li><b style="background:{parts[name][1]}"></b>{escape(name)} {text(parts[name][0])}</li>' for name in visible
    )
    return f"<h2>{escape(title)}</h2><div class='bar'>{pieces}{mark}</div><ul>{legend}</ul>"


_STYLE: Final = """
<style>
.first { font-size: 17px; font-weight: 600 } p, li, summary { font-size: 14px; line-height: 1.4; margin: 0 0 6px }
h2 { font-size: 14px; margin: 14px 0 6px } .refused { border-left: 4px solid #D55E00; padding-left: 10px }
.bar { position: relative; display: flex; height: 26px; background: #eee } .bar span { display: block }
.bar i { position: absolute; top: -4px; bottom: -4px; border-left: 3px solid #000; margin-left: -3px }
ul { display: flex; flex-wrap: wrap; gap: 2px 16px; padding: 6px 0 0; margin: 0; list-style: none }
li b { display: inline-block; width: 11px; height: 11px; margin-right: 6px }
pre { font-size: 13px; white-space: pre-wrap; overflow-wrap: anywhere; background: #f5f5f5; padding: 10px; margin: 0 }
</style>
"""


def what_if(*, page: Callable[[WhatIf], str] | None = None, **settings: Any) -> Any:
    """Return a form whose answer, bars and scenario follow each change; a notebook shows it.

    Parameters
    ----------
    page : function (WhatIf) -> str, optional
        Returns the address of the page of a step's run, for the link "Open as page"; without it there is no link.
    **settings : optional
        What the form describes at first: `model`, `gpu`, `gpus`, `method`, `seq_len` and other fields of `WhatIf`.

    Raises
    ------
    ScenarioError
        Panel is not installed, or a setting is unknown or not allowed.

    Examples
    --------
    >>> form = what_if(model="gpt2", gpu="a100_sxm_80gb", gpus=8, seq_len=1024)
    """
    pn = panel("what_if")
    unknown = next((name for name in settings if name not in choices()), None)
    if unknown is not None:
        raise ScenarioError(f"what_if: got {unknown!r}; {one_of(list(choices()), unknown)}")
    pn.extension(inline=True)
    present = WhatIf(**settings)
    widgets = {name: _widget(name, getattr(present, name)) for name in choices()}
    reply, text = (pn.pane.HTML("", sizing_mode="stretch_width", min_width=280) for _ in range(2))

    def follow(*_: object) -> None:
        try:
            described = replace(present, **{name: widget.value for name, widget in widgets.items()})
        except ScenarioError as error:
            reply.object = f'{_STYLE}<div role="alert" class="refused"><p>{escape(str(error))}</p></div>'
            text.object = ""
            return
        reply.object = _STYLE + answered(described)
        link = "" if page is None else f'<p><a href="{escape(page(described))}" target="_blank">Open as page</a></p>'
        text.object = f"{_STYLE}{link}<h2>The scenario, for simulator run</h2><pre>{escape(described.text)}</pre>"

    for widget in widgets.values():
        widget.param.watch(follow, "value")
    follow()
    form = pn.FlexBox(*widgets.values(), width_policy="max", max_width=380)
    answer_side = pn.Column(reply, text, sizing_mode="stretch_width", min_width=280, styles={"flex": "1 1 340px"})
    return pn.FlexBox(form, answer_side, styles={"gap": "8px 28px"}, sizing_mode="stretch_width")


def panel(asking: str) -> Any:
    """Return the module panel; a ScenarioError that begins with the name of what asks if it is not installed."""
    try:
        return import_module("panel")
    except ImportError:
        raise ScenarioError(f"{asking}: needs the package panel; install it: pip install '.[app]'") from None


# Two widgets beside each other on a phone.
_SIZE: Final = {"width": 163, "margin": (3, 2, 5, 10)}
_LABELS: Final = {
    "model": "Model", "gpu": "GPU", "gpus": "Number of GPUs", "network": "Machine and network",
    "framework": "Framework", "method": "Method", "precision": "Precision", "sharding": "Sharding",
    "seq_len": "Sequence length [tokens]", "micro_batch": "Sequences of a micro-batch",
    "accumulation": "Micro-batches of a step", "recompute": "Recompute of activations", "tp": "Tensor parallel",
    "pp": "Pipeline stages", "cp": "Context parallel", "ep": "Expert parallel",
}  # fmt: skip


def _widget(name: str, value: Any) -> Any:
    """Return the widget of a field: a list of its values, or a number."""
    pn = panel("what_if")
    allowed, label = choices()[name], _LABELS[name]
    if not allowed:
        return pn.widgets.IntInput(label=label, value=value, start=1, end=_MOST[name], **_SIZE)
    return pn.widgets.Select(label=label, value=value, options=list(allowed), **_SIZE)
