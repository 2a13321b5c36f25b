"""Files from outside: what is too large, too deep, too long or half a character is one line, and is not read first."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path

import pytest

from simulator.basics import document
from simulator.basics.errors import MOST_FAULTS, ScenarioError, in_lines
from simulator.basics.input_files import MOST_DATA, MOST_TEXT, parse_json, read_bytes, read_text
from simulator.basics.plain_data import DEEPEST, is_deep
from simulator.calibration.machines.measured_sweep import read_sweep
from simulator.cluster.graph_file import load_graph
from simulator.cluster.topology_file import load_topology
from simulator.model.load import load_model


def refused(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse_json(text, "f.json")
    return str(caught.value)


def test_what_is_written_for_people_is_at_most_16_mib() -> None:
    assert MOST_TEXT == 16 * 2**20


@pytest.mark.parametrize(
    ("name", "read", "most"),
    [
        ("a.yaml", document.load, MOST_TEXT),
        ("a.yaml", lambda path: load_topology(str(path)), MOST_TEXT),
        ("a.json", load_graph, MOST_TEXT),
        ("a.graphml", load_graph, MOST_TEXT),
        ("config.json", lambda path: load_model(str(path)), MOST_TEXT),
        ("a.log", read_sweep, MOST_DATA),
    ],
)
def test_a_file_is_refused_by_its_size_before_it_is_read(tmp_path: Path, name: str, read: object, most: int) -> None:
    """A file with a hole of a tebibyte: reading it would take the memory of a rack."""
    path = tmp_path / name
    with path.open("wb") as file:
        file.truncate(2**40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ScenarioError) as caught:
        read(path)  # type: ignore[operator]
    told = f"{path}: has {2**40} B; must be at most {most // 2**20} MiB; is it the right file?"
    assert str(caught.value) == told
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**16  # [KiB]


def test_a_file_of_just_the_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    assert read_bytes(path, most=100) == b"x" * 100
    with pytest.raises(ScenarioError, match="has 100 B; must be at most 99 B"):
        read_bytes(path, most=99)


def test_a_pipe_that_never_ends_is_read_no_further(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def pour() -> None:
        with pipe.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(b"x" * 1000)
            except BrokenPipeError:
                return

    thread = threading.Thread(target=pour)
    thread.start()
    with pytest.raises(ScenarioError, match="pipe: has more; must be at most"):
        read_bytes(pipe, most=10_000)
    thread.join()


def test_lines_end_alike_and_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"\xef\xbb\xbfa\r\nb\rc\n")
    assert read_text(path) == "a\nb\nc\n"


@pytest.mark.parametrize("opening", ["[", '{"a":'])
@pytest.mark.parametrize("depth", [DEEPEST + 1, 900, 100_000])
def test_json_that_goes_too_deep_is_refused(opening: str, depth: int) -> None:
    closing = "]" if opening == "[" else "}"
    text = opening * depth + "1" + closing * depth
    assert refused(text) == f"f.json: nested too deeply; at most {DEEPEST} nested lists and mappings"
    fits = opening * DEEPEST + "1" + closing * DEEPEST
    assert not is_deep(parse_json(fits))


def test_numbers_that_no_float_can_hold_are_refused() -> None:
    assert refused("[" + "9" * 400 + "]") == "f.json: got a number of 400 digits; must have at most 308"
    assert refused("9" * 5000) == "f.json: got a number of 5000 digits; must have at most 308"
    assert parse_json("9" * 308) == 10**308 - 1


def test_half_a_character_is_refused_and_two_halves_are_one() -> None:
    assert parse_json('"\\ud83d\\ude00"') == "\U0001f600"
    assert refused('["\\ud83d"]') == "f.json: contains \\ud83d, half of a character; remove the half character"
    assert document.parse('a: "\\ud83d\\ude00"').data == {"a": "\U0001f600"}
    with pytest.raises(ScenarioError, match=r"f:1:4: a: contains half of a character"):
        document.parse('a: "\\ud83d"', "f").refuse([])


def test_what_is_no_json_is_told_at_its_place() -> None:
    assert refused('{"a": 1,\n "b" 2}') == "f.json:2:6: not JSON: expecting ':' delimiter"


def test_a_key_that_occurs_twice_in_an_object_is_refused_with_both_values() -> None:
    told = "f.json: bandwidth: occurs 2 times in an object, with 1 and [2]; keep one"
    assert refused('[{"a": 1}, {"a": 1}, {"bandwidth": 1, "a": 0, "bandwidth": [2]}]') == told


def test_fifty_faults_are_told_and_how_many_more() -> None:
    text = "\n".join(f"a{i}: x\na{i}: y" for i in range(MOST_FAULTS + 7))
    with pytest.raises(ScenarioError) as caught:
        document.parse(text, "f")
    lines = str(caught.value).splitlines()
    assert len(lines) == 51
    assert lines[-2].startswith(f"f:{2 * MOST_FAULTS}:1: a{MOST_FAULTS - 1}: occurs twice")
    assert lines[-1] == "and 7 further mistakes"
    assert in_lines(["a"] * MOST_FAULTS).count("\n") == MOST_FAULTS - 1


def test_a_value_that_fills_the_file_is_not_told_in_full() -> None:
    read = document.parse(f"a: {'x' * 100_000}", "f")
    told = read.fault(("a",), f"got {read.data['a']!r}; must be short").as_line("f")
    assert 900 < len(told) < 1100
    assert told.startswith("f:1:4: a: got 'xxx")
    assert told.endswith("x'; must be short")


def test_endless_yaml_is_given_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is one and each item; the reader looks a line ahead."""
    monkeypatch.setattr("simulator.basics.yaml_dialect.MOST_VALUES", 1000)
    with pytest.raises(ScenarioError, match=r"^f: not readable as YAML: more than 1000 values, in line 200[01]$"):
        document.parse("- a\n" * 30_000, "f")
