"""`simulator plan`: finds the fastest settings of a training, prints them, and leaves the best as a scenario file."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import typer

from simulator.basics import document as documents
from simulator.basics.atomic_files import write_atomically
from simulator.basics.units import format_memory, format_time
from simulator.cli.as_options import as_options
from simulator.cli.console import print_table, print_text
from simulator.cli.interruption import INTERRUPTIONS, exit_code, word
from simulator.errors import ScenarioError
from simulator.findings.budget import amount_text
from simulator.planner.asked import Said, base_scenario, choices_of, sequences_of
from simulator.planner.explain import against
from simulator.planner.nearest import Need, Way, least_memory, ways_to_fit
from simulator.planner.search import Plan, Played, search
from simulator.planner.setting import scenario_of
from simulator.planner.sizes import Size, sizes
from simulator.planner.space import Choices
from simulator.planner.told import document, holders, nearest_document, reasons, sentences, sizes_sentence
from simulator.report.tables.layout import Column
from simulator.results.page.plan_page import FILE, plan_page
from simulator.scenario.records import Budget, Scenario
from simulator.scenario.resolve import to_yaml
from simulator.sweeps.sweep import Backend

# Between two lines of progress in a file or a pipe [s].
_EVERY: Final = 10.0
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
    tokens: float | None = None
    price: float | None = None
    watts: float | None = None
    deadline: float | None = None
    resume: bool = False


def plan(asked: Asked, backend: Backend, *, as_json: bool) -> None:
    """Search, print, and write best.yaml and plan.json where there is a folder for them."""
    base = _base(asked)
    sequences = sequences_of(asked.global_batch, asked.seq_len, "--global-batch")
    choices, budget, own = _choices(asked, base, sequences=sequences), _budget(asked), _kept(asked, backend)
    backend = replace(backend, cache=backend.cache or own)
    found, ended, show = None, None, _Progress(quiet=as_json)
    try:
        for found in search(base, sequences, choices, best=asked.best, backend=backend):
            show.tell(found)
    except INTERRUPTIONS as error:
        ended = error
    show.end()
    if found is None or (ended is not None and not found.best):
        typer.echo(f"{word(ended)}; nothing was played", err=True)
        raise typer.Exit(exit_code(ended))
    data = document(found, budget)
    if not found.best:
        need, ways = least_memory(choices, base, sequences), ways_to_fit(choices, base, sequences)
        data |= nearest_document(need, list(ways) if as_json else _print_nearest(asked, need, ways))
    tried = _sizes(found, asked, budget, backend) if ended is None else []
    data |= {"sizes": [one.to_dict() for one in tried]}
    if asked.out is not None:
        _write(found, asked, budget, data, asked.out)
    if as_json:
        typer.echo(json.dumps(data, indent=2))
    else:
        _print(found, asked, budget)
        _print_sizes(tried, budget)
    if ended is not None:
        more = "" if own is None else f"; go on with the same command and --resume --out {asked.out}"
        typer.echo(f"{word(ended)}: the best so far, of {len(found.played)} that were played{more}", err=True)
        raise typer.Exit(exit_code(ended))
    if own is not None:
        shutil.rmtree(own, ignore_errors=True)
    if not found.best:
        raise typer.Exit(1)


def _kept(asked: Asked, backend: Backend) -> Path | None:
    """Where outcomes are kept until the search has ended, so that it can go on; None without, or with a cache."""
    if asked.out is None:
        if asked.resume:
            raise ScenarioError("--resume: goes on with the directory that --out names; give --out DIR")
        return None
    kept = asked.out / "outcomes" if backend.cache is None else None
    if asked.resume and kept is not None and not kept.is_dir():
        raise ScenarioError(f"--resume: {asked.out} holds no plan that was interrupted; leave --resume out")
    if not asked.resume and asked.out.exists() and (not asked.out.is_dir() or any(asked.out.iterdir())):
        raise ScenarioError(f"--out: {asked.out} is there and not empty; give another, or --resume to go on with it")
    return kept


def _budget(asked: Asked) -> Budget | None:
    """What the whole training is; a price, a power or a deadline without its tokens says nothing."""
    given = {"--price": asked.price, "--watts": asked.watts, "--deadline": asked.deadline}
    if asked.tokens is None:
        option = next((name for name, value in given.items() if value is not None), None)
        if option is not None:
            raise ScenarioError(f"{option}: needs --tokens, the length of the training; write --tokens 1e12")
        return None
    return Budget(tokens=asked.tokens, price=asked.price, watts=asked.watts)


def _base(asked: Asked) -> Scenario:
    cluster: dict[str, Any] = {"topology": asked.topology, "world_size": asked.gpus}
    if asked.gpu is not None:
        cluster["gpu"] = asked.gpu
    try:
        return base_scenario(asked.model, cluster, asked.seq_len, asked.settings or {})
    except ScenarioError as error:
        error.args = (as_options(str(error), _OPTIONS),)
        raise


def _choices(asked: Asked, base: Scenario, *, sequences: int) -> Choices:
    """The defaults, with what --fix, --among and --without say."""
    said = [_said(option, text) for option, texts in (("--fix", asked.fix), ("--among", asked.among)) for text in texts]
    return choices_of(base, sequences, said, [Said(f"--without {text}", "", [text]) for text in asked.without])


def _said(option: str, text: str) -> Said:
    where = f"{option} {text}"
    name, equals, written = (part.strip() for part in text.partition("="))
    if not equals or not written:
        raise ScenarioError(f"{where}: must be NAME=VALUE, such as {option} tp=8")
    pieces = [written] if option == "--fix" else written.split(",")
    return Said(where, name, [documents.parse(piece.strip(), where).data for piece in pieces])


@dataclass(slots=True)
class _Progress:
    """How far a search is: one line that changes on a terminal, a line every ten seconds in a file or a pipe."""

    quiet: bool
    told: float = field(default_factory=time.monotonic)
    wide: int = 0

    def tell(self, found: Plan) -> None:
        """Tell it, if it is time to."""
        if self.quiet:
            return
        lead = f"best {format_time(found.best[0].step_time)}" if found.best else "none fits yet"
        ruled_out = f"{found.do_not_fit:,} do not fit, {found.slower:,} of {found.considered:,} wait"
        text = f"{len(found.played):,} played, {ruled_out}; {lead}"
        if sys.stderr.isatty():
            typer.echo(f"\r{text:<{self.wide}}", nl=False, err=True)
            self.wide = len(text)
        elif time.monotonic() > self.told + _EVERY:
            typer.echo(text, err=True)
            self.told = time.monotonic()

    def end(self) -> None:
        """Leave the line that was shown."""
        if self.wide:
            typer.echo("", err=True)


def _print(found: Plan, asked: Asked, budget: Budget | None) -> None:
    if found.best:
        for sentence in sentences(found, budget, asked.deadline):
            print_text(sentence)
        _print_best(found)
        _print_holders(found.best[0])
    print_text(f"\n{found.considered:,} settings considered, {len(found.played):,} played:")
    for reason, count in reasons(found).items():
        print_text(f"  {count:,} {reason}", indent="    ")


def _sizes(found: Plan, asked: Asked, budget: Budget | None, backend: Backend) -> list[Size]:
    """Other numbers of GPUs, where a deadline is to be met."""
    if budget is None or asked.deadline is None:
        return []
    tried = []
    choose = partial(_choices, asked, sequences=found.sequences)
    for one in sizes(found, choose, budget, asked.deadline, backend):
        tried.append(one)
        days = f"{amount_text(one.takes['days'])} days" if one.takes else "nothing fits"
        typer.echo(f"{one.gpus:,} GPU{'' if one.gpus == 1 else 's'}: {days}", err=True)
    return tried


def _print_sizes(tried: Sequence[Size], budget: Budget | None) -> None:
    if not tried or budget is None:
        return
    columns = [Column("GPUs"), Column("step"), Column("days"), Column("GPU hours"), Column("cost"), Column("deadline")]
    columns.append(Column("fastest setting", left=True, folds=True))
    rows = []
    for one in tried:
        if one.best is None:
            rows.append([f"{one.gpus:,}", "", "", "", "", "", "nothing fits, or no setting can be"])
            continue
        cost = "" if one.takes["cost"] is None else amount_text(one.takes["cost"])
        taken = [amount_text(one.takes["days"]), amount_text(one.takes["gpu_hours"]), cost]
        word = "met" if one.meets else "missed"
        rows.append([f"{one.gpus:,}", format_time(one.best.step_time), *taken, word, one.best.setting.text])
    print_text(f"\n{sizes_sentence(tried)}")
    print_table(columns, rows)


def _print_best(found: Plan) -> None:
    heads = ("", "step", "80 %", "tokens/s/GPU", "MFU", "memory", "exposed", "idle")
    columns = [*(Column(head) for head in heads), Column("setting", left=True, folds=True)]
    columns.append(Column("why it loses", left=True, folds=True))
    rows = []
    for number, one in enumerate(found.best, 1):
        report = one.report
        rows.append(
            [
                str(number),
                format_time(one.step_time),
                _interval(report),
                f"{report['tokens_per_s_per_gpu']:,.0f}",
                f"{100 * report['mfu']:.1f} %",
                format_memory(report["peak_memory_bytes"]),
                _exposed(report, one.step_time),
                f"{100 * report['bubble_time_s'] / one.step_time:.1f} %",
                one.setting.text,
                against(found.best[0], one).text,
            ]
        )
    typer.echo("")
    print_table(columns, rows)


def _interval(report: Mapping[str, Any]) -> str:
    """Where four of five runs like this one are expected."""
    ends = [report["intervals"].get(f"step_time_s_80_{end}") for end in ("low", "high")]
    return "" if None in ends else " to ".join(format_time(end) for end in ends)


def _exposed(report: Mapping[str, Any], step_time: float) -> str:
    """Share of a step in which nothing hides communication, and whose it is most of all."""
    by = {name: seconds for name, seconds in report["exposed_comm_time_by_dimension"].items() if seconds > 0}
    most = f" ({max(by, key=lambda name: by[name])})" if by else ""
    return f"{100 * report['exposed_comm_time_s'] / step_time:.1f} %{most}"


def _print_holders(best: Played) -> None:
    held = ", ".join(f"{name} {format_memory(nbytes)}" for name, nbytes in holders(best.report))
    print_text(f"\nThe best one's memory at its peak: {held}")


def _print_nearest(asked: Asked, need: Need | None, ways: Iterable[Way]) -> list[Way]:
    """What comes nearest where nothing fits, and each way to make something fit as soon as it is known."""
    told = []
    if need is not None:
        print_text(
            f"No setting of {asked.model} fits on {asked.gpus:,} GPUs. The nearest needs {format_memory(need.nbytes)} "
            f"of {format_memory(need.capacity)}: {need.setting.text}. What would fit:"
        )
        for way in ways:
            print_text(f"  {way.change}: {format_memory(way.need.nbytes)}, {way.need.setting.text}", indent="    ")
            told.append(way)
        if not told:
            print_text("  nothing that was tried; a smaller model or shorter sequences", indent="    ")
    return told


def _write(found: Plan, asked: Asked, budget: Budget | None, data: Mapping[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "plan.json", json.dumps(data, indent=2) + "\n")
    written = ""
    if found.best:
        best = replace(
            scenario_of(found.base, found.best[0].setting), name="best", question="The fastest setting that was found."
        )
        written = to_yaml(best)
        write_atomically(folder / "best.yaml", written)
    question = f"How is {asked.model} trained fastest on {asked.gpus:,} GPUs ({asked.topology}), {found.sequences:,} "
    question += f"sequences of {asked.seq_len:,} tokens a step?"
    page = plan_page(data, question, sentences(found, budget, asked.deadline), written)
    write_atomically(folder / FILE, page)
