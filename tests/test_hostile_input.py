"""What somebody could hand to a command to bring it down: one line, exit code 2, and nothing left behind."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.results import run_directory
from simulator.scenario.load import load_scenario
from tests.commands import SMALL, Command, commands_in
from tests.interrupting import ROOT

STEP = """\
name: step
cluster: {topology: star_100g, world_size: 2}
training:
  model: {model_type: gpt2, n_layer: 1, n_embd: 8, n_head: 2, n_positions: 8, vocab_size: 300}
  seq_len: 8
  numerics: true
  learning: {tokens: TOKENS}
plots: []
"""


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def graph(**edge: Any) -> str:
    """Two GPUs and a link, as node-link JSON."""
    nodes = [{"id": "a", "kind": "gpu"}, {"id": "b", "kind": "gpu"}]
    link = {"source": "a", "target": "b", "bandwidth": 1e9, "latency": 1e-6} | edge
    return json.dumps({"directed": False, "nodes": nodes, "edges": [link]})


def npy(header: str, data: bytes = b"", *, magic: bytes = b"\x93NUMPY\x01\x00") -> bytes:
    """A file as numpy.save writes it, with any header."""
    text = header.encode("latin1") + b"\n"
    return magic + len(text).to_bytes(2, "little") + text + data


def zipped() -> bytes:
    file = io.BytesIO()
    np.savez(file, a=np.arange(20))
    return file.getvalue()


SHAPE = "{{'descr': '<i8', 'fortran_order': False, 'shape': {}, }}"
DEEP = {"[": "[" * 100_000 + "]" * 100_000, "{": '{"nodes":' * 100_000 + "1" + "}" * 100_000}
SETTINGS = [
    ("cluster.link_factors={gpu0->switch0: 1e-320}", "got 1e-320; must be at least 1e-30"),
    ("cluster.stragglers={0: 1e-320}", "got 1e-320; must be at least 1e-30"),
    ("cluster.stragglers={0: " + "9" * 400 + "}", "must be a number"),
    ("cluster.topology={builder: star, gpu: l4, options: {bandwidth: 1e-320 B/s, latency: 1 us}}", "outside the range"),
    ("cluster.topology={builder: star, gpu: l4, options: {bandwidth: 1 GB/s, latency: 1e300 s}}", "outside the range"),
    ("cluster.topology={builder: fat_tree, gpu: l4, options: {k: 1000000, bandwidth: 1 GB/s, latency: 1 us}}",
     "make a machine of 250000000000000000 GPUs; must be at most 1000000"),
    ("cluster.topology={builder: hypercube, gpu: l4, options: {dimensions: 999999, bandwidth: 1 GB/s, latency: 1 us}}",
     "make a machine of over 10^18 GPUs"),
    ("cluster.topology={builder: star, gpu: l4, options: {bandwidth: 1 GB/s, latency: 1 us}, "
     "collectives: {all_reduce: {one_node: {algorithm: ring, half_size: 1 MB, exponent: 1e308}}}}",
     "got 1e+308; must be at most 10"),
    ("cluster.gpu={vector_flops: {float32: 1 TFLOP/s}, hbm_bytes: 1 GB, hbm_bandwidth: 1 GB/s, sms: 1, "
     "host_bandwidth: 1 GB/s, constants: {launch: -1e308}}", "got -1e+308; must be 0, or from 1e-30 to 1e+30"),
    ('question="\\ud800"', "contains half of a character"),
]  # fmt: skip
GRAPHS = [
    (graph(latency=1e300), "edges.0.latency: got 1e+300; outside the range that can be simulated"),
    (graph(bandwidth=1e-320), "edges.0.bandwidth: got 1e-320; outside the range that can be simulated"),
    (graph(latency=7).replace("7", "9" * 400), "got a number of 400 digits; must have at most 308"),
    (DEEP["["], "nested too deeply"),
    (DEEP["{"], "nested too deeply"),
    (graph(source="\ud800"), "contains \\ud800, half of a character"),
]
NO_ARRAY = "is not readable as a numpy array"
FEWER = "has fewer bytes than its header says"
TOKENS = [
    (npy(SHAPE.format("(1000000000000,)")), FEWER),
    (npy(SHAPE.format("(-1,)")), NO_ARRAY),
    (npy(SHAPE.format("(9" + "9" * 30 + ",)")), FEWER),
    (npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"), "holds Python objects"),
    (npy("(" * 5000), NO_ARRAY),
    (npy("'" * 3), NO_ARRAY),
    (npy("{'descr': [('a', ((1,)))], 'fortran_order': 1, 'shape': 3}"), NO_ARRAY),
    (npy("{" + "1:1," * 2000 + "}", magic=b"\x93NUMPY\x09\x00"), NO_ARRAY),
    (zipped(), NO_ARRAY),
    (zipped()[:40], NO_ARRAY),
    (b"", NO_ARRAY),
]


def check_refused(cli: Command, folder: Path, arguments: tuple[str, ...], told: str) -> None:
    before = sorted(folder.rglob("*"))
    answer = cli(*arguments)
    assert (answer.code, answer.out) == (2, "")
    assert len(answer.faults) == 1
    assert told in answer.err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(("setting", "told"), SETTINGS, ids=lambda value: value[:40])
def test_values_that_nothing_can_be_divided_by_are_refused(
    cli: Command, tmp_path: Path, setting: str, told: str
) -> None:
    check_refused(cli, tmp_path, ("run", "small.yaml", "--out", "here", "--set", setting), told)


@pytest.mark.parametrize(("text", "told"), GRAPHS, ids=lambda value: value[:10] + str(len(value)))
def test_a_graph_that_brings_numbers_or_readers_down_is_refused(
    cli: Command, tmp_path: Path, text: str, told: str
) -> None:
    (tmp_path / "g.json").write_text(text, encoding="utf-8")
    options = ("--set", "cluster.topology=g.json", "--set", "cluster.gpu=l4", "--set", "cluster.world_size=2")
    check_refused(cli, tmp_path, ("run", "small.yaml", "--out", "here", *options), told)


@pytest.mark.parametrize(("content", "told"), TOKENS, ids=range(len(TOKENS)))
def test_an_array_that_is_none_is_refused(cli: Command, tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "t.npy").write_bytes(content)
    (tmp_path / "step.yaml").write_text(STEP.replace("TOKENS", "t.npy"), encoding="utf-8")
    check_refused(cli, tmp_path, ("run", "step.yaml", "--out", "here"), f"t.npy: {told}")


def test_a_token_that_is_nothing_is_refused(cli: Command, tmp_path: Path) -> None:
    (tmp_path / "step.yaml").write_text(STEP.replace("TOKENS", "[1, null, 2]"), encoding="utf-8")
    check_refused(cli, tmp_path, ("run", "step.yaml", "--out", "here"), "got nothing in a list")


WRONG = ["", "\x00", "null", "3", "[]", "{}", DEEP["["], DEEP["{"], "[" + "9" * 400 + "]", "\\ud800", '"\x00"']


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_a_runs_files_that_are_wrong_are_refused(cli: Command, tmp_path: Path, text: str) -> None:
    assert cli("run", "small.yaml", "--out", "here").code == 0
    (tmp_path / "here" / "run.json").write_text(text, encoding="utf-8")
    check_refused(cli, tmp_path, ("rerun", "here"), "here/run.json")
    (tmp_path / "here" / "report.json").write_text(text, encoding="utf-8")
    check_refused(cli, tmp_path, ("diff", "here", "here"), "here/report.json")


def test_a_zero_byte_in_a_runs_folder_is_refused(cli: Command, tmp_path: Path) -> None:
    assert cli("run", "small.yaml", "--out", "here").code == 0
    path = tmp_path / "here" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | {"base": "a\0b"}), encoding="utf-8")
    check_refused(cli, tmp_path, ("rerun", "here"), "here/run.json: base: got 'a\\x00b'; must be the folder")


@pytest.mark.parametrize("report", [{}, {"time_s": "x"}, 3, None, "x"])
def test_outcomes_that_are_none_are_played_again(cli: Command, tmp_path: Path, report: object) -> None:
    """In the notes of an interrupted run, and in a cache: they are the simulator's own, so nobody is to blame."""
    assert cli("run", "both.yaml", "--out", "whole", "--cache", "cache").code == 0
    scenario = load_scenario("both.yaml")
    folder = run_directory.create("both", tmp_path / "torn")
    run_directory.begin(folder, scenario)
    settings = {"collective.algorithm": "ring"}
    wrong = {"index": 0, "settings": settings, "engine": "events", "report": report}
    notes = [json.dumps(wrong), json.dumps(wrong | {"index": []}), json.dumps(wrong | {"index": 10**9}), DEEP["["]]
    (folder / "points.jsonl").write_text("\n".join(notes) + "\n", encoding="utf-8")
    assert cli("sweep", "both.yaml", "--out", "torn", "--resume", "--jobs", 1).code == 0
    for path in (tmp_path / "cache").rglob("*.json"):
        path.write_text(json.dumps({"engine": "events", "report": report}), encoding="utf-8")
    assert cli("run", "both.yaml", "--out", "again", "--cache", "cache").code == 0
    whole = (tmp_path / "whole" / "report.json").read_bytes()
    assert (tmp_path / "torn" / "report.json").read_bytes() == whole
    assert (tmp_path / "again" / "report.json").read_bytes() == whole


@pytest.mark.parametrize("coding", ["ascii"])
@pytest.mark.long
def test_a_question_is_told_in_whatever_letters_there_are(tmp_path: Path, coding: str) -> None:
    """Escapes stand for the others, brackets and colons are no markup, and the results are there."""
    question = "How many µs → [/b] :fire: does it take?"
    (tmp_path / "q.yaml").write_text(SMALL.replace("How fast is a small ring?", question), encoding="utf-8")
    told = subprocess.run(
        [sys.executable, "-m", "simulator", "run", "q.yaml", "--out", "here"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": coding, "LANG": "C", "PYTHONUTF8": "0"},
        capture_output=True,
        check=False,
    )
    assert (told.returncode, told.stderr) == (0, b"")
    assert told.stdout.startswith(question.encode(coding, "backslashreplace"))
    assert (tmp_path / "here" / "run.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("run", "small.yaml", "--ranks", "9" * 5000), "must be ranks or ascending ranges of ranks"),
        (("run", "small.yaml", "--ranks", "²"), "must be ranks or ascending ranges of ranks"),
        (("collective", "all_reduce", "--begin", "9" * 5000), "which has no unit"),
        (("collective", "all_reduce", "--begin", "²"), "must be a number and a unit"),
        (("run", "a\nb.yaml"), "'a\\nb.yaml': no such scenario file"),
        (("run", "a" * 5000), "which cannot be read: File name too long"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_options_that_are_no_numbers_or_names_are_refused(
    cli: Command, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    check_refused(cli, tmp_path, arguments, told)


def test_a_fault_that_quotes_a_long_text_is_told_in_a_line_of_bounded_length(cli: Command, tmp_path: Path) -> None:
    text = f"size_bytes,time_us,nodes\n1048576,30,1{'(' * 100_000}\n2097152,50,1\n"
    (tmp_path / "sweep.csv").write_text(text, encoding="utf-8")
    check_refused(cli, tmp_path, ("fit", "sweep.csv", "--topology", "dgx_h100"), "nodes")
    assert len(cli("fit", "sweep.csv", "--topology", "dgx_h100").err) < 1100
