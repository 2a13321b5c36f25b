"""Predictions move only on purpose: a share of the grid agrees with the stored table, and the gate sees what moves."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tools import prediction_gate as gate
from tools.prediction_grid import HEADER, Point, Row, computed, points, read, share, write

KINDS = ("kernel", "collective", "step", "memory")
RENEWAL = (
    "python -m tools.prediction_gate --out tests/golden/predictions.csv renews the table; CONTRIBUTING.md asks for a "
    "note of what moved and why"
)


def assert_stored(grid: Iterable[Point]) -> None:
    """Assert that these predictions are within a hundredth of the stored ones."""
    stored = {row.point: row for row in read(gate.STORED)}
    new = computed(grid)
    (comparison,) = gate.compare([stored[row.point] for row in new], new)
    moved = "\n".join(map(str, comparison.moved))
    assert not moved, f"predictions moved by more than 1 %:\n{moved}\n{RENEWAL}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_tenth_of_the_predictions_agrees_with_the_stored_table(kind: str) -> None:
    """All kernels together take a tenth of a second, so each of them is compared."""
    assert_stored(point for point in (points() if kind == "kernel" else share(points())) if point.kind == kind)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS[1:])
def test_all_predictions_agree_with_the_stored_table(kind: str) -> None:
    assert_stored(point for point in points() if point.kind == kind)


def test_the_stored_table_has_the_points_of_the_grid() -> None:
    grid, stored = points(), read(gate.STORED)
    assert {(row.kind, row.point, row.unit) for row in stored} == {(p.kind, p.sentence, p.unit) for p in grid}, RENEWAL
    assert len({point.sentence for point in grid}) == len(grid) == len(stored)
    assert list(dict.fromkeys(row.kind for row in stored)) == list(KINDS)
    # A setting that the package refuses predicts nothing; two GPUs lack a dtype on purpose.
    assert [row.value for row in stored if row.value.startswith("refused")] == ["refused: UnknownNameError"] * 4


def test_a_share_takes_turns_with_the_values_of_a_list() -> None:
    """Ten GPUs within each shape: one point in ten would otherwise be the same GPU each time."""
    grid = [Point("kernel", f"{shape} {gpu}", "s", lambda: 1.0) for shape in range(10) for gpu in range(10)]
    members = [point.sentence.split() for point in share(grid)]
    assert {shape for shape, _ in members} == {gpu for _, gpu in members} == {str(number) for number in range(10)}


def test_a_refusal_is_one_word_and_a_value_has_six_digits() -> None:
    def refuse() -> float:
        raise KeyError("dtype")

    rows = computed([Point("step", "a", "s", refuse), Point("step", "b", "s", lambda: 1 / 3)])
    assert [row.value for row in rows] == ["refused: KeyError", "0.333333"]


def rows(*values: str, kind: str = "step", first: int = 0) -> list[Row]:
    """Return rows with these values; points are numbered."""
    return [Row(kind, f"point {number}", value, "s") for number, value in enumerate(values, first)]


def test_a_move_of_more_than_a_hundredth_is_listed_and_the_largest_first() -> None:
    old, new = rows("1", "1", "1", "1", "0", "0"), rows("1.0099", "1.02", "0.5", "1", "0", "3")
    (comparison,) = gate.compare(old, new)
    assert [pair.old.point for pair in comparison.moved] == ["point 5", "point 2", "point 1"]
    assert list(gate.lines([comparison])) == [
        "step: 6 points, 3 moved by more than 1 %, median x 1.0000, largest x 0.5000",
        "\nstep, moved:",
        "  point 5: 0 s -> 3 s",
        "  point 2: 1 s -> 0.5 s, x 0.5000",
        "  point 1: 1 s -> 1.02 s, x 1.0200",
    ]


def test_a_refusal_moves_if_only_one_table_has_it() -> None:
    old, new = rows("refused: A", "refused: A", "1"), rows("refused: B", "1", "refused: A")
    (comparison,) = gate.compare(old, new)
    assert list(map(str, comparison.moved)) == ["point 1: refused: A -> 1 s", "point 2: 1 s -> refused: A"]


def test_points_that_appear_and_vanish_are_listed_by_kind() -> None:
    comparisons = gate.compare(rows("1", "2"), [*rows("2", "3", first=1), *rows("4", kind="memory")])
    assert list(gate.lines(comparisons)) == [
        "step: 1 points, 0 moved by more than 1 %, median x 1.0000, largest x 1.0000, 1 new, 1 gone",
        "memory: 0 points, 0 moved by more than 1 %, 1 new",
        "\nstep, new:",
        "  point 2: 3 s",
        "\nstep, gone:",
        "  point 0: 1 s",
        "\nmemory, new:",
        "  point 0: 4 s",
    ]


def test_at_most_twenty_moved_points_are_shown_unless_all_are_asked_for() -> None:
    comparisons = gate.compare(rows(*25 * ["1"]), rows(*25 * ["2"]))
    assert list(gate.lines(comparisons))[-2:] == ["  point 19: 1 s -> 2 s, x 2.0000", "  (5 more: --all)"]
    assert len(list(gate.lines(comparisons, None))) == 27


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit of one file, in which the gate looks for commits."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "file").write_text("text\n")
    for command in ("init", "add file", "-c user.name=x -c user.email=x@localhost commit --message text"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True, capture_output=True)
    monkeypatch.setattr(gate, "ROOT", folder)
    return folder


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_a_checkout_is_removed_also_after_an_interruption(repository: Path, error: type[BaseException]) -> None:
    trees = []

    def interrupt() -> None:
        with gate.checkout("HEAD") as tree:
            assert (tree / "file").read_text() == "text\n"
            trees.append(tree)
            raise error

    with pytest.raises(error):
        interrupt()
    assert not trees[0].exists()
    assert not list((repository / ".git").glob("worktrees/*"))


def test_bad_input_is_one_line(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    monkeypatch.setattr(gate, "STORED", empty)
    for arguments, fault in (
        (["nowhere"], "'nowhere' is no commit of this repository"),
        (["--nothing"], "unrecognized arguments: --nothing"),
        (["a", "b", "c"], "give at most two commits, and none with --out"),
        (["HEAD", "--out", "table.csv"], "give at most two commits, and none with --out"),
        (["--out", str(tmp_path)], "cannot be written: it is a folder, or its folder does not exist"),
        (["HEAD"], "has no package simulator"),
        ([], f"{empty} is no table of predictions; its columns must be {', '.join(HEADER)}"),
    ):
        assert gate.main(arguments) == 2, arguments
        message = capsys.readouterr().err
        assert message.startswith("prediction gate: "), message
        assert fault in message
        assert message.count("\n") == 1


def test_the_exit_code_says_whether_a_prediction_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gate, "STORED", tmp_path / "stored.csv")
    monkeypatch.setattr(gate, "table", lambda tree: rows("1", "2"))
    assert gate.main(["--out", str(gate.STORED)]) == 0
    assert read(gate.STORED) == rows("1", "2")
    assert gate.main([]) == 0
    assert capsys.readouterr().out.startswith("predictions, the stored table -> this tree\nstep: 2 points, 0 moved")
    for stored in (rows("1", "3"), rows("1"), rows("1", "2", "3")):
        write(stored, gate.STORED)
        assert gate.main([]) == 1


def test_a_table_is_computed_by_the_package_of_the_tree(tmp_path: Path) -> None:
    """A package without any module refuses each point, so the table is not the installed package's."""
    (tmp_path / "simulator").mkdir()
    (tmp_path / "simulator" / "__init__.py").write_text("")
    table = gate.table(tmp_path)
    assert [row.point for row in table] == [row.point for row in read(gate.STORED)]
    assert {row.value for row in table} == {"refused: ImportError", "refused: ModuleNotFoundError"}
