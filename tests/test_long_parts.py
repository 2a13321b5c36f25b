"""Long tests run in parts, with all examples of properties: each test is in one part, a record says what is left."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import draw_examples, out_of_turn, part_of
from tools import long_tests


@pytest.mark.parametrize("count", [1, 2, 6, 9])
def test_parts_are_disjoint_and_cover_all_tests(count: int) -> None:
    tests = list(range(50))
    parts = [part_of(tests, name) for name in long_tests.parts(count)]
    assert sorted(test for part in parts for test in part) == tests
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("name", ["0/6", "7/6", "2", "2/", "two/6", "1/0"])
def test_a_part_that_does_not_exist_is_refused(name: str) -> None:
    with pytest.raises(pytest.UsageError, match="--part: must be K/N"):
        part_of([1, 2, 3], name)


def test_cases_of_a_function_are_in_all_parts() -> None:
    """Blocks of a function take equally long, so no part may have all of them."""
    blocks = [("light", number) for number in range(5)] + [("heavy", number) for number in range(12)]
    parts = [part_of(blocks, name) for name in long_tests.parts(6)]
    assert [sum(function == "heavy" for function, _ in part) for part in parts] == [2] * 6


def test_short_runs_draw_a_third_of_the_examples_and_long_runs_all() -> None:
    @settings(max_examples=120)
    @given(st.none())
    def law(value: None) -> None:
        assert value is None

    marks: list[Any] = []
    items: list[Any] = [SimpleNamespace(obj=law, add_marker=marks.append)] * 2
    draw_examples(items, all_of_them=True)
    assert (marks, law._hypothesis_internal_use_settings.max_examples) == ([pytest.mark.long] * 2, 120)  # type: ignore[attr-defined]
    draw_examples(items, all_of_them=False)
    assert law._hypothesis_internal_use_settings.max_examples == 40  # type: ignore[attr-defined]


def test_cases_take_turns_so_that_each_value_meets_each_value_of_another_axis(pytester: pytest.Pytester) -> None:
    """Axes of four, three and three values, the second of two names: one of three cases is short."""
    pytester.makepyfile("""
        import pytest

        @pytest.mark.one_of(3)
        @pytest.mark.parametrize("d", "xyz")
        @pytest.mark.parametrize(("b", "c"), [(0, 1), (1, 2), (2, 3)])
        @pytest.mark.parametrize("a", "pqrs")
        def test_it(a, b, c, d): ...
    """)
    items, _ = pytester.inline_genitems()
    long = {item.name for item in out_of_turn(items)}
    short = [item.callspec.params for item in items if item.name not in long]
    assert (len(items), len(short)) == (36, 12)
    for first, second, pairs in (("a", "b", 12), ("a", "d", 12), ("b", "d", 9)):
        assert len({(values[first], values[second]) for values in short}) == pairs


def test_a_run_without_a_part_goes_on_where_the_last_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ended: list[str] = []
    at, failing = "a" * 40, {"3/6"}

    def run(part: str) -> bool:
        ended.append(part)
        return part not in failing

    record = tmp_path / "build" / "long_tests.json"
    monkeypatch.setattr(long_tests, "run", run)
    monkeypatch.setattr(long_tests, "commit", lambda: at)
    monkeypatch.setattr(long_tests, "passed", lambda at, read=long_tests.passed: read(at, record))
    monkeypatch.setattr(long_tests, "note", lambda at, part, write=long_tests.note: write(at, part, record))
    assert long_tests.main(["2/6"]) == 0
    assert capsys.readouterr().out == "long tests: parts left at aaaaaaaa: 1/6, 3/6, 4/6, 5/6, 6/6\n"
    assert long_tests.main([]) == 1
    assert capsys.readouterr().out == "long tests: parts left at aaaaaaaa: 3/6\n"
    failing.clear()
    assert long_tests.main([]) == 0
    assert ended == ["2/6", "1/6", "3/6", "4/6", "5/6", "6/6", "3/6"]
    assert capsys.readouterr().out == "long tests: all passed at aaaaaaaa\n"
    # Another commit begins anew, and files that differ from a commit leave no record.
    assert long_tests.passed("b" * 40) == []
    at = ""
    assert long_tests.main(["1/6"]) == 0
    assert capsys.readouterr().out == "long tests: files differ from the commit, so no part is recorded\n"
    assert "1/6" in record.read_text(encoding="utf-8")
