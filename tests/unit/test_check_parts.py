"""The check of a part's kind names the law that a wrong part breaks, with the first setting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from simulator.basics.errors import ScenarioError
from simulator.testing import PartCheck, check_plugin, check_schedule
from tests.commands import commands_in
from tests.own_parts import PARTS, OwnPart

CHECKS: Final[dict[str, Callable[[str], PartCheck]]] = {"schedule": check_schedule}
every_kind = pytest.mark.parametrize("kind", PARTS)


def changed(part: OwnPart, folder: Path, before: str, after: str) -> str:
    """The path of a part's file with a changed text."""
    assert before in part.source
    path = folder / part.file
    path.write_text(part.source.replace(before, after))
    return str(path)


@every_kind
def test_a_sound_part_keeps_every_law(kind: str, tmp_path: Path) -> None:
    path = PARTS[kind].write(tmp_path)
    checked = CHECKS[kind](str(path))
    assert checked.holds, "\n".join(checked.lines())
    assert all(result.cases for result in checked.results), "\n".join(checked.lines())
    assert [one.lines() for one in check_plugin(path)] == [checked.lines()]


# A change of the sound file, the law that it breaks, and the beginning of the fault.
WRONG: Final = [
    (
        "schedule",
        "for micro in reversed(micros)),",
        "for micro in list(micros)[1:]),",
        "every pass once",
        "BROKEN with 2 ranks, 1 micro-batches: rank 0 runs F of stage 0 and micro-batch 0; must run F and B",
    ),
    (
        "schedule",
        "order=order,",
        # Rank 0 runs F0 B0 F1 B1, the others F0 F1 B1 B0.
        "order=lambda s: (tuple(sorted(order(s)[0], key=lambda slot: slot[0].micro)), *order(s)[1:]),",
        "no deadlock",
        "BROKEN with 2 ranks, 2 micro-batches: no rank can continue; the next passes are B0.0, F1.1",
    ),
    (
        "schedule",
        "(shape.ranks - 1) * (times.forward + times.backward)",
        "shape.ranks * (times.forward + times.backward)",
        "closed form of the bubble",
        "BROKEN with 2 ranks, 1 micro-batches: the bubble lasts 3 s, and its closed form gives 6 s",
    ),
    (
        "schedule",
        "shape.micro_batches,",
        "1,",
        "activations in memory",
        "BROKEN with 2 ranks, 2 micro-batches: rank 0 holds 2 activations at most, and declares 1",
    ),
]


@pytest.mark.parametrize(("kind", "before", "after", "law", "fault"), WRONG)
def test_a_wrong_part_is_refused(kind: str, before: str, after: str, law: str, fault: str, tmp_path: Path) -> None:
    checked = CHECKS[kind](changed(PARTS[kind], tmp_path, before, after))
    broken = {result.law: result.fault for result in checked.results if result.fault}
    assert law in broken, "\n".join(checked.lines())
    assert broken[law].startswith(fault)


@every_kind
def test_an_error_in_the_code_names_its_line(kind: str, tmp_path: Path) -> None:
    (tmp_path / PARTS[kind].file).write_text("\n\nimport no_such_module\n")
    with pytest.raises(ScenarioError, match=rf"^{PARTS[kind].file}:3: ModuleNotFoundError"):
        CHECKS[kind](str(tmp_path / PARTS[kind].file))


def test_a_file_without_a_part_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(ScenarioError, match=r"declares no part; must have one of ALGORITHM \(Algorithm\), SCHEDULE"):
        check_plugin(tmp_path / "empty.py")


def test_a_file_with_several_parts_is_checked_for_each(tmp_path: Path) -> None:
    path = tmp_path / "both.py"
    path.write_text(f"{PARTS['schedule'].source}\nfrom simulator.collectives.ring import ALGORITHM\n")
    assert {checked.laws for checked in check_plugin(path)} == {"collectives", "pipeline schedules"}


def test_the_command_prints_the_laws_and_ends_with_code_1_if_one_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = commands_in(tmp_path, monkeypatch, capsys)
    PARTS["schedule"].write(tmp_path)
    done = command("check-plugin", "lifo.py")
    assert (done.code, done.err.splitlines()) == (0, ["warning: runs the code of lifo.py"])
    assert done.out.startswith("lifo.py: keeps the laws of pipeline schedules")
    refused = command("check-plugin", "lifo.py", "--no-plugins")
    assert (refused.code, len(refused.faults)) == (2, 1)
    changed(PARTS["schedule"], tmp_path, "shape.micro_batches,", "1,")
    assert command("check-plugin", "lifo.py").code == 1
