"""`simulator plan`: finds the fastest settings of a training, prints them, and leaves the best as a scenario file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import typer

from simulator.basics import document
from simulator.basics.atomic_files import write_atomically
from simulator.basics.units import format_memory, format_time
from simulator.cli.as_options import as_options
from simulator.cli.console import print_table, print_text
from simulator.cli.interruption import INTERRUPTIONS, exit_code, word
from simulator.errors import ScenarioError
from simulator.planner.asked import Said, base_scenario, choices_of, sequences_of
from simulator.planner.explain import against
from simulator.planner.search import Plan, Played, search
from simulator.planner.setting import scenario_of
from simulator.planner.space import Choices
from simulator.report.tables.layout import Column
from simulator.scenario.records import Scenario
from simulator.scenario.resolve import to_yaml
from simulator.sweeps.sweep import Backend

# By the key of a scenario the option that sets it.
_OPTIONS: Final = {
    "cluster.topology": "--topology",
    "cluster.world_size": "--gpus",
    "cluster.gpu": "--gpu",
    "training.model": "MODEL",
    "training.seq_len": "--seq-len",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the options ask for."""

    model: str
    topology: str
    gpus: int
    seq_len: int
    global_batch: str
    gpu: str | None = None
    fix: Sequence[str] = ()
    among: Sequence[str] = ()
    without: Sequence[str] = ()
    settings: Mapping[str, str] | None = None
    best: int = 10
    out: Path | None = None


def plan(asked: Asked, backend: Backend, *, as_json: bool) -> None:
    """Search, print, and write best.yaml and plan.json where there is a folder for them."""
    base = _base(asked)
    sequences = sequences_of(asked.global_batch, asked.seq_len, "--global-batch")
    choices = _choices(asked, base, sequences)
    found, ended = None, None
    try:
        for found in search(base, sequences, choices, best=asked.best, backend=backend):
            if not as_json:
                typer.echo(f"\r{_progress(found)}", nl=False, err=True)
    except INTERRUPTIONS as error:
        ended = error
    if not as_json:
        typer.echo("", err=True)
    if found is None or (ended is not None and not found.best):
        typer.echo(f"{word(ended)}; nothing was played", err=True)
        raise typer.Exit(exit_code(ended))
    if asked.out is not None:
        _write(found, asked.out)
    if as_json:
        typer.echo(json.dumps(_document(found), indent=2))
    else:
        _print(found, asked)
    if ended is not None:
        typer.echo(f"{word(ended)}: the best so far, of {len(found.played)} that were played", err=True)
        raise typer.Exit(exit_code(ended))
    if not found.best:
        raise typer.Exit(1)


def _base(asked: Asked) -> Scenario:
    cluster: dict[str, Any] = {"topology": asked.topology, "world_size": asked.gpus}
    if asked.gpu is not None:
        cluster["gpu"] = asked.gpu
    try:
        return base_scenario(asked.model, cluster, asked.seq_len, asked.settings or {})
    except ScenarioError as error:
        error.args = (as_options(str(error), _OPTIONS),)
        raise


def _choices(asked: Asked, base: Scenario, sequences: int) -> Choices:
    """The defaults, with what --fix, --among and --without say."""
    said = [_said(option, text) for option, texts in (("--fix", asked.fix), ("--among", asked.among)) for text in texts]
    return choices_of(base, sequences, said, [Said(f"--without {text}", "", [text]) for text in asked.without])


def _said(option: str, text: str) -> Said:
    where = f"{option} {text}"
    name, equals, written = (part.strip() for part in text.partition("="))
    if not equals or not written:
        raise ScenarioError(f"{where}: must be NAME=VALUE, such as {option} tp=8")
    pieces = [written] if option == "--fix" else written.split(",")
    return Said(where, name, [document.parse(piece.strip(), where).data for piece in pieces])


def _progress(found: Plan) -> str:
    lead = f"best {format_time(found.best[0].step_time)}" if found.best else "none fits yet"
    ruled_out = f"{found.do_not_fit:,} do not fit, {found.slower:,} of {found.considered:,} wait"
    return f"{len(found.played):,} played, {ruled_out}; {lead}    "


def _print(found: Plan, asked: Asked) -> None:
    if not found.best:
        print_text(f"No setting of {asked.model} fits on {asked.gpus:,} GPUs, of {found.considered:,}.")
    else:
        best = found.best[0]
        print_text(
            f"{best.setting.text}: {format_time(best.step_time)} a step, "
            f"{best.report['tokens_per_s_per_gpu']:,.0f} tokens/s a GPU, {100 * best.report['mfu']:.1f} % MFU, "
            f"{format_memory(best.report['peak_memory_bytes'])} of memory"
        )
        _print_best(found)
    print_text(f"\n{found.considered:,} settings considered, {len(found.played):,} played:")
    reasons = {**found.refused.counts, "do not fit into memory": found.do_not_fit}
    reasons["cannot be among the best: their bound is above them"] = found.slower
    reasons |= {f"failed: {error}": count for error, count in found.failed.items()}
    for reason, count in sorted(reasons.items(), key=lambda one: -one[1]):
        if count:
            print_text(f"  {count:,} {reason}", indent="    ")


def _print_best(found: Plan) -> None:
    heads = ("", "step", "tokens/s/GPU", "MFU", "memory", "exposed", "idle")
    columns = [*(Column(head) for head in heads), Column("setting", left=True, folds=True)]
    columns.append(Column("why it loses", left=True, folds=True))
    rows = []
    for number, one in enumerate(found.best, 1):
        report = one.report
        rows.append(
            [
                str(number),
                format_time(one.step_time),
                f"{report['tokens_per_s_per_gpu']:,.0f}",
                f"{100 * report['mfu']:.1f} %",
                format_memory(report["peak_memory_bytes"]),
                f"{100 * report['exposed_comm_time_s'] / one.step_time:.1f} %",
                f"{100 * report['bubble_time_s'] / one.step_time:.1f} %",
                one.setting.text,
                against(found.best[0], one).text,
            ]
        )
    typer.echo("")
    print_table(columns, rows)


def _document(found: Plan) -> dict[str, Any]:
    """All of it as plain data."""
    return {
        "sequences": found.sequences,
        "considered": found.considered,
        "played": len(found.played),
        "ended": found.ended,
        "refused": dict(found.refused.counts),
        "do_not_fit": found.do_not_fit,
        "slower_by_their_bound": found.slower,
        "failed": found.failed,
        "choices": {name: list(values) for name, values in found.choices.values.items()},
        "why": dict(found.choices.why),
        "best": [_of_one(found, one) for one in found.best],
    }


def _of_one(found: Plan, one: Played) -> dict[str, Any]:
    difference = against(found.best[0], one)
    return {
        "setting": dict(one.setting.overrides()),
        "bound_s": one.bound,
        "report": one.report,
        "against_best": {"whole_s": difference.whole, "parts_s": difference.parts},
    }


def _write(found: Plan, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "plan.json", json.dumps(_document(found), indent=2) + "\n")
    if found.best:
        best = replace(
            scenario_of(found.base, found.best[0].setting), name="best", question="The fastest setting that was found."
        )
        write_atomically(folder / "best.yaml", to_yaml(best))
