"""Text to plain data in which every key knows its place."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.basics.document import Fault, load, parse
from simulator.basics.errors import ScenarioError
from simulator.basics.yaml_dialect import dump


def refused(text: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        parse(text, "f.yaml")
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("12:30:45", "12:30:45"),
        ("2024-01-31", "2024-01-31"),
        ("0x10", "0x10"),
        ("1e9", 1e9),
        ("5e-6", 5e-6),
        (".5", 0.5),
        ("+7", 7),
        ("007", 7),
        ("true", True),
        ("~", None),
        ("", None),
        ("'1e9'", "1e9"),
        ("256 MiB", "256 MiB"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_scalars_are_read_as_yaml_1_2_reads_them(text: str, value: object) -> None:
    read = parse(f"a: {text}").data["a"]
    assert read == value
    assert type(read) is type(value)


def test_every_key_and_value_knows_its_line_and_column() -> None:
    document = parse("a: 1\nb:\n  - x\n  - {c: 2}\n")
    assert document.keys[("b",)] == (2, 1)
    assert document.values[("a",)] == (1, 4)
    assert document.values[("b", 0)] == (3, 5)
    assert document.values[("b", 1, "c")] == (4, 9)


def test_what_is_not_in_the_text_is_placed_at_its_nearest_parent() -> None:
    document = parse("a:\n\n  b: 1\n")
    assert document.place(("a", "c")) == (1, 1)
    assert document.place(("a", "b", "d"), of_key=True) == (3, 3)
    assert document.place(("x",)) == (1, 1)


def test_a_mapping_below_its_key_is_told_at_its_key() -> None:
    document = parse("a: 1\nb:\n\n  c: 1\nd: {e: 1}\n")
    assert document.place(("b",)) == (2, 1)
    assert document.place(("d",)) == (5, 4)


def test_the_first_comment_is_the_question() -> None:
    assert parse("# How fast\n# is it?\nname: x  # not this\n").question == "How fast is it?"
    assert parse("# yaml-language-server: $schema=s.json\n# Why?\na: 1").question == "Why?"
    assert parse("a: 1\n# Too late?\n").question == ""


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: 1\nb: 'x\nc: 2\n", "2:4"),
        ("a: 1\nb: {x: 1\nc: 2\n", "2:4"),
        ("a: 1\nb: [x\nc: 2\n", "2:4"),
        ("a: 1\nno colon\nc: 2\n", "2:1"),
        ("a:\n  b: 1\n   c: 2\n", "3:5"),
        ("a:\n  b: 1\n c: 2\n", "3:2"),
        ("a:\n\tb: 1\n", "2:1"),
        ("a: 1\nb: c: 2\n", "2:5"),
        ("a: 1\nb: *c\n", "2:4"),
        ("a: 1\nb: \x07\n", "2:4"),
        ("a: 1\n--- 2\n", "2:1"),
        ("a: 1\na: 2\n", "2:1"),
        ("a: !!python/none x\n", "1:4"),
        ("? [1]\n: 2\n", "1:3"),
        ("", "1:1"),
    ],
)
def test_what_is_not_yaml_is_told_in_one_line_where_it_begins(text: str, place: str) -> None:
    told = refused(text)
    assert told.startswith(f"f.yaml:{place}: ")
    assert "\n" not in told


def test_a_key_that_stands_twice_names_the_first_line() -> None:
    assert refused("x:\n  a: 1\n  a: 2\n") == "f.yaml:3:3: x.a: occurs twice, first in line 2; keep one"


def test_aliases_that_multiply_are_refused_at_once() -> None:
    names = "abcdefghijklmnop"
    lines = ["a: &a [1, 1, 1, 1]"] + [f"{n}: &{n} [*{m}, *{m}, *{m}, *{m}]" for m, n in itertools.pairwise(names)]
    assert "more than 100000 values" in refused("\n".join(lines))


def test_an_alias_of_itself_is_refused() -> None:
    assert "nested too deeply" in refused("a: &a [*a, *a]")


def test_brackets_without_end_are_refused() -> None:
    assert "nested too deeply" in refused("[" * 100_000)


def test_faults_are_told_in_the_order_of_the_file_and_once() -> None:
    document = parse("a: 1\nb: 2\n", "f.yaml")
    faults = [document.fault(("b",), "late"), document.fault(("a",), "early"), document.fault(("b",), "late")]
    with pytest.raises(ScenarioError, match=r"\Af\.yaml:1:4: a: early\nf\.yaml:2:4: b: late\Z"):
        document.refuse(faults)
    document.refuse([])


def test_a_fault_is_one_line_whatever_its_key_holds() -> None:
    assert Fault(("a\nb",), "got '\x00'").as_line("f") == "f: a\\nb: got '\\x00'"


def test_files_that_cannot_be_read_are_scenario_errors(tmp_path: Path) -> None:
    bad = tmp_path / "latin.yaml"
    bad.write_bytes(b"name: caf\xe9\n")
    for path, told in ((bad, "byte 9 is 0xe9"), (tmp_path, "Is a directory"), (tmp_path / "none", "No such file")):
        with pytest.raises(ScenarioError, match=told):
            load(path)


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "bom.yaml"
    path.write_bytes(b"\xef\xbb\xbf# Why?\na: 1\n")
    assert load(path).question == "Why?"
    assert load(path).data == {"a": 1}


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12),
    st.sampled_from(["1e9", "on", "null", "0x1F", "12:30", "-", "~", "1_000", "a: b", "# x", ".5", "+1"]),
)
KEYS = st.one_of(st.text("abcxyz_.", min_size=1, max_size=6), st.integers(0, 99))
PLAIN = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@given(st.dictionaries(KEYS, PLAIN, min_size=1, max_size=5))
def test_what_is_dumped_is_parsed_back(data: dict[str | int, object]) -> None:
    assert parse(dump(data)).data == data
    assert parse(dump(data, one_line=True)).data == data
    assert "\n" not in dump(data, one_line=True)


@given(st.text(max_size=60))
def test_no_text_does_anything_but_parse_or_be_refused(text: str) -> None:
    try:
        parse(text)
    except ScenarioError as error:
        lines = str(error).split("\n")
    else:
        lines = []
    assert all(line.isprintable() for line in lines)
