"""How does a valid scenario get the defaults that depend on other keys? `completed` fills them in, without checks.

Examples: every plot, if `plots` names no kinds; a single server for algorithm: parameter_server; micro-batches from
`global_batch`; 8000 for an axis value written "8k".
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from simulator.scenario import plot_names
from simulator.scenario.answer_spec import FindingSpec
from simulator.scenario.records import (
    BUFFER,
    CYCLE,
    CollectiveSpec,
    FusionSpec,
    PlotsSpec,
    Scenario,
    ServersSpec,
    adapter,
    is_axis_key,
)
from simulator.step.global_batch import SEQUENCES, sequences_of


def completed(scenario: Scenario, question: str, source: str, base: Path) -> Scenario:
    """Return a valid scenario with the defaults that depend on other keys filled in.

    Parameters
    ----------
    scenario : Scenario
        The validated scenario.
    question : str
        First comment in the file, for a scenario without the key `question`.
    source : str
        Name of the file, for errors.
    base : Path
        Folder for relative paths.
    """
    plotted, training, plan = scenario.plotted, scenario.training, scenario.plan
    # For plots, None means every kind; an empty tuple means no plot.
    kinds = plot_names.names_of(scenario.kind) if plotted.kinds is None else plotted.kinds
    if training is not None:
        if plan is not None:
            # Convert tokens into sequences here, because PlanSpec.sequences knows no seq_len.
            plan = plan.replaced(global_batch=f"{sequences_of(plan.global_batch, training.seq_len)}{SEQUENCES}")
        from simulator.scenario.build_training import with_accumulation

        written = training.global_batch
        training = with_accumulation(training, scenario.cluster.world_size).replaced(global_batch=written)
    return scenario.replaced(
        # A comment may span several lines; a question is a single line.
        question=" ".join((scenario.question or question).split()),
        collective=None if scenario.collective is None else _collective(scenario.collective, base),
        training=training,
        plan=plan,
        compare=_axes(scenario.compare),
        sweep=_axes(scenario.sweep),
        baseline={key: _plain_number(key, value) for key, value in scenario.baseline.items()},
        answer=tuple(map(_finding, scenario.answer)),
        plots=PlotsSpec.model_construct(kinds=tuple(dict.fromkeys(kinds)), points=plotted.points),
        source=source,
        base=base,
    )


def _finding(entry: FindingSpec) -> FindingSpec:
    """Return an `answer` entry in which counts such as 8k in its key `between` are numbers."""
    if not entry.between or not is_axis_key(entry.along):
        return entry
    return entry.replaced(between=tuple(_plain_number(entry.along, end) for end in entry.between))


def _axes(axes: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    return {key: tuple(_plain_number(key, value) for value in values) for key, values in axes.items()}


def _plain_number(key: str, written: Any) -> Any:
    """Return a count written as 8k or 1e6 for the key as a number, and any other axis value unchanged."""
    reads = adapter(key).validate_python
    if not isinstance(written, str | float) or not isinstance(value := reads(written), int):
        return written
        # Sizes are read as whole numbers too, but a plain number is no valid size: those stay text.
    try:
        return value if reads(value) == value else written
    except ValidationError:
        return written


def _collective(spec: CollectiveSpec, base: Path) -> CollectiveSpec:
    from simulator.scenario.collective_rules import chosen, reads

    # Algorithms with servers have one by default.
    servers = spec.servers
    if servers is None and reads(chosen(spec.algorithm, base), "servers"):
        servers = ServersSpec()
    return spec.replaced(size=spec.nbytes, servers=servers, root=spec.root or 0, fusion=_fusion(spec.fusion))


def _fusion(fusion: FusionSpec | None) -> FusionSpec | None:
    if fusion is None or fusion.buckets is not None:
        return fusion
    buffer = BUFFER if fusion.buffer is None else fusion.buffer
    return fusion.replaced(buffer=buffer, cycle=CYCLE if fusion.cycle is None else fusion.cycle)
