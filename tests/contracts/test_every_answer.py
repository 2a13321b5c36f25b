"""Every shipped scenario answers its question: every number that is said stands in report.json, and nothing is cut.

The long ones (real trainings, thousands of GPUs) are played under the marker `long`, and so are those that take seconds
and whose findings others have.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from simulator.basics import registry
from simulator.basics.sentence import capital
from simulator.basics.units import format_bandwidth, format_bytes, format_memory, format_time
from simulator.cli.results_output import print_results
from simulator.findings.answer import Answer, answer
from simulator.findings.comparison import Comparison
from simulator.records.measures import factor_text, interval_width, percent_text
from simulator.records.setting_text import label
from simulator.results.drawn import DrawnPictures
from simulator.results.run_directory import report_text
from simulator.results.small_table import small_tables
from simulator.scenario.load import load_scenario, points
from simulator.sweeps.sweep import play_points
from simulator.testing.looking import begins_well

LONG = {
    "deepseek_v3", "faults_in_training", "forgotten_overflow", "llama3_405b", "servers_that_do_not_wait",
    "training_for_real",
    # Their findings are those of ring_vs_parameter_server, tensor_fusion, fsdp_vs_ddp and straggler.
    "nvlink_box_algorithms", "n_servers", "resnet50_ddp", "slow_link",
}  # fmt: skip
every_scenario = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long if n in LONG else ()) for n in registry.names("scenario")]
)
# What a scenario's own words may count without a number of the report behind it.
# What the first sentence must contain, because the question asks for it: names of settings, and kinds of numbers.
KINDS = {
    "name": r"",  # one of the settings, see `contains`
    "share": r"\d %",
    "factor": r"\d(\.\d+)?x|\d %",
    "time": r"\d (us|ms|s)\b",
    "memory": r"\d (MiB|GiB)\b|\d % (more|less) peak memory|needs the same peak memory",
    "speed": r"\d tokens/s|\d % more tokens/s",
    "place": r"from (\d|micro-batch \d)|above \d|under (all|both)|in \d+ of \d+ conditions",
    "fits": r"\bfits?\b",
    "loss": r"\d\.\d|NaN|exactly",
}
ASKED = {
    "all_to_all_direct": ("factor",),
    "checkpointing_tradeoff": ("name", "memory", "share", "time"),
    "context_length": ("name", "factor"),
    "deepseek_v3": ("name", "speed", "memory"),
    "dit_training": ("name", "share"),
    "faults_in_training": ("name", "loss"),
    "flapping_link": ("name", "share", "time"),
    "flash_vs_standard": ("name", "place", "factor"),
    "forgotten_overflow": ("name", "loss"),
    "fragmentation": ("name", "fits", "memory"),
    "fsdp_vs_ddp": ("name", "place", "share"),
    "fsdp_with_tp": ("name", "factor"),
    "gradient_accumulation": ("name", "speed"),
    "interleaving": ("name", "share", "time", "memory"),
    "llama3_405b": ("name", "speed"),
    "llama3_8b_fsdp": ("name", "speed"),
    "long_documents": ("name", "share"),
    "lora_on_one_card": ("name", "fits", "memory"),
    "low_precision_sum": ("name", "share", "time"),
    "megatron_3d": ("name", "speed"),
    "moe_dispatch": ("name", "time"),
    "moving_experts": ("name", "share"),
    "muon_or_adam": ("name", "share", "time", "memory"),
    "n_servers": ("name", "share", "time"),
    "nvlink_box_algorithms": ("name", "place", "factor"),
    "packing_or_padding": ("name", "factor"),
    "parameter_server_training": ("name", "place"),
    "pipeline_schedules": ("name", "share"),
    "precision": ("name", "time", "memory"),
    "resnet50_ddp": ("name", "place", "share"),
    "qlora_70b": ("name", "fits", "memory"),
    "ring_vs_parameter_server": ("name", "place", "factor"),
    "sequence_parallel": ("name", "memory", "time"),
    "servers_that_do_not_wait": ("name", "loss"),
    "slow_link": ("name", "factor"),
    "slow_network": ("name", "factor"),
    "straggler": ("name",),
    "stragglers": ("name", "share"),
    "tensor_fusion": ("name", "share", "time"),
    "training_for_real": ("name", "loss"),
    "two_boxes_hierarchical": ("name", "place", "factor"),
    "vit_scaling": ("name", "speed", "factor"),
    "zero_stages": ("name", "memory", "share", "time"),
}
WORDS = re.compile(r"H100|[A-Za-z]+\d[\w.]*|\d+(?=[A-Za-z_])")


def leaves(data: Any) -> Iterator[float]:
    """Every number in plain data."""
    if isinstance(data, dict):
        for value in data.values():
            yield from leaves(value)
    elif isinstance(data, list | tuple):
        for value in data:
            yield from leaves(value)
    elif isinstance(data, int | float) and not isinstance(data, bool):
        yield float(data)


def texts(value: float) -> set[str]:
    """How a number may stand in a sentence."""
    size = abs(value)
    told = {
        percent_text(size), f"{100 * size:.1f} %", f"{size:,.0f}", f"{size:.2g}", f"{size:.3g}", f"{size:.4g}",
        factor_text(size), factor_text(1 + value), format_time(size), format_memory(size), format_bytes(size),
        format_bandwidth(size), f"{size:,}", f"{int(float(f'{size:.3g}')):,}", f"{size / 1000:,.3g}",
        f"{100 * size:.0f}%",
    }  # fmt: skip
    if size > 1e12:
        told.add(f"{size / 1e12:,.0f}")  # FLOP/s are said in TFLOP/s
    if size:
        told |= {f"{1 / size:,.0f}", percent_text(abs(1 / size - 1)), percent_text(abs(value - 1))}
    for factor in (1, 2**10, 2**20, 2**30):
        told.add(f"{float(f'{size / factor:.3g}'):g}")
    return {number for text in told for number in re.findall(r"\d[\d,.]*(?:e[+-]?\d+)?", text)}


def without_names(sentence: str, compared: Comparison) -> str:
    """A sentence without the names of settings and places, in which numbers are the scenario's own."""
    settings = [{**row.setting, **row.condition} for row in compared.rows]
    names = {label(key, value) for one in settings for key, value in one.items()}
    names |= {compared.name(setting) for setting in compared.settings}
    names |= {f"{n} GPU{'' if n == 1 else 's'}" for one in settings if (n := one.get("cluster.world_size"))}
    for name in sorted(names, key=len, reverse=True):
        # A name begins with a capital where it begins the sentence.
        sentence = sentence.replace(capital(name), " ").replace(name, " ")
    return WORDS.sub(" ", sentence)


@every_scenario
@pytest.mark.one_of(3)
def test_it_answers_its_question(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences of points that there are, with numbers of the report, of which nothing is lost at any width."""
    scenario = load_scenario(name)
    compared = Comparison(scenario, list(play_points(list(enumerate(points(scenario))))))
    told = answer(compared)
    assert told.question.endswith("?")
    assert told.sentences
    assert all(sentence.endswith(".") and len(sentence) < 700 for sentence in told.sentences)
    assert told.spoken
    assert all(compared.rows[place].report is not None for place in told.spoken)
    check_numbers(compared, told)
    check_starts(compared, told)
    check_points(compared, told)
    for kind in ASKED[name]:
        assert contains(compared, told.sentences[0], kind), f"{told.question} {told.sentences[0]} has no {kind}"
    for columns in (80, 100, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        check_nothing_is_lost(compared, told, columns)


def check_numbers(compared: Comparison, told: Answer) -> None:
    """Every number that is said is one of the report's, rounded."""
    written = json.loads(report_text(compared.outcomes, told))
    spoken = [written["points"][place]["report"] for place in told.spoken]
    # Of an interval, sentences say half of the width.
    widths = [width for row in compared.rows if (width := interval_width(row.report or {})) is not None]
    known = set().union(*(texts(value) for value in leaves([written["answer"], spoken, widths])))
    for sentence in [*told.sentences, told.why]:
        for number in re.findall(r"\d[\d,.]*(?:e[+-]?\d+)?", without_names(sentence, compared)):
            assert number.rstrip(".,") in known, f"{number} of {sentence!r}"


def check_starts(compared: Comparison, told: Answer) -> None:
    """Sentences and titles of tables begin with a capital; names of the scenario keep their form."""
    titles = [table.title for table in small_tables(compared, told) if table.title]
    for text in [told.question, *told.sentences, *([told.why] if told.why else []), *titles]:
        assert begins_well(text), text
    assert all(title[0].isupper() for title in titles)


def check_points(compared: Comparison, told: Answer) -> None:
    """Reasons of several points say of which point they are, and the page opens on a point that fits, if any does."""
    names = {
        name.lower() for row in compared.rows for name in (compared.name(row.setting), compared.where(row.condition))
    }
    several = len(compared.rows) > 1
    for sentence in told.why.removesuffix(".").split(". ") if told.why and several else ():
        assert any(name in sentence.lower() for name in names if name), sentence
    for text in [*told.sentences, told.why, *(one.text for one in told.caveats)]:
        # A loss may be NaN; a missing number of Python is no word of a sentence.
        assert not re.search(r"\bNone\b|\bnan\b", text), text
    assert compared.rows[told.spoken[0]].fits or not any(row.fits for row in compared.rows)


def contains(compared: Comparison, sentence: str, kind: str) -> bool:
    """Whether a sentence has a name of a setting, or a number of a kind."""
    if kind != "name":
        return re.search(KINDS[kind], sentence) is not None
    settings = [{**row.setting, **row.condition} for row in compared.rows]
    names = {compared.name(setting) for setting in compared.settings}
    names |= {label(key, value) for one in settings for key, value in one.items() if key in compared.scenario.compare}
    return any(name.lower() in sentence.lower() for name in names)


def test_every_question_has_a_kind_of_answer() -> None:
    assert set(ASKED) == set(registry.names("scenario"))
    assert {kind for kinds in ASKED.values() for kind in kinds} == set(KINDS)


def check_nothing_is_lost(compared: Comparison, told: Answer, columns: int) -> None:
    """Lines keep to the width, and every sentence and every cell is there."""
    for full in (False, True):
        out = io.StringIO()
        with redirect_stdout(out):
            print_results(compared, told, Path("runs/x"), DrawnPictures((), ""), full=full)
        assert max(map(len, out.getvalue().splitlines())) <= columns
        assert "…" not in out.getvalue()
        said = "".join(out.getvalue().split())
        assert all("".join(sentence.split()) in said for sentence in [*told.sentences, told.why])
        if not full:
            cells = (cell for table in small_tables(compared, told) for _, row in table.rows for cell in row)
            assert all(_there(cell, out.getvalue()) for cell in cells)


def _there(cell: str, text: str) -> bool:
    """Whether every word of a cell stands in the text: a folded cell's words stand below each other."""
    return all(word in text for word in cell.split())
