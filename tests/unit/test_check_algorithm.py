"""`check_algorithm` names the law that a wrong algorithm breaks, with the first setting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from simulator.basics.errors import ScenarioError
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.records.schedule import Round, Schedule
from simulator.testing import check_algorithm
from tests.commands import Command, commands_in

RING, DIRECT = ALGORITHMS.find("ring"), ALGORITHMS.find("direct")


def broken_laws(algorithm: object) -> dict[str, str]:
    checked = check_algorithm(algorithm, [3, 4])  # type: ignore[arg-type]
    assert checked.holds is not any(result.fault for result in checked.results)
    return {result.law: result.fault for result in checked.results if result.fault}


def without_waits(request: CollectiveRequest) -> Schedule:
    """The direct all-reduce whose second round waits for nothing."""
    made = DIRECT.plans["all_reduce"](request)

    def parts():  # type: ignore[no-untyped-def]
        for part in made.parts():
            assert isinstance(part, Round)
            yield replace(part, after=part.after * 0 - 1)

    return replace(made, parts=parts)


def test_a_race_breaks_the_proof() -> None:
    laws = broken_laws(replace(DIRECT, plans={"all_reduce": without_waits}))
    assert "written by transfer 2, for which it does not wait; add 2 to its `after`" in laws["proof without a clock"]
    assert laws["proof without a clock"].startswith("BROKEN with 3 ranks, 1 element: ")


def test_a_wrong_volume_is_told_with_both_numbers() -> None:
    laws = broken_laws(replace(RING, plans={"all_gather": RING.plans["all_gather"]}, volume=lambda request: 7))
    # (N - 1) S elements travel: none of an empty array.
    assert laws == {
        "elements on the wire": "BROKEN with 3 ranks, 0 elements: sends 0 elements, and declares a volume of 7"
    }


def test_an_algorithm_of_another_operation_gives_wrong_elements() -> None:
    def gathers(request: CollectiveRequest) -> Schedule:
        return RING.plans["all_gather"](replace(request, operation="all_gather"))

    laws = broken_laws(replace(RING, plans={"all_reduce": gathers}, minimal=lambda request: False))
    assert "exact elements of int64" in laws


def test_a_wrong_closed_form_is_told_with_both_times() -> None:
    form = RING.closed_form
    laws = broken_laws(
        replace(RING, plans={"all_gather": RING.plans["all_gather"]}, closed_form=lambda *a: 2 * (form(*a) or 0.0))
    )
    assert set(laws) == {"closed form"}


def test_any_error_of_a_record_is_a_broken_law() -> None:
    laws = broken_laws(replace(RING, plans={"all_gather": RING.plans["all_gather"]}, volume=lambda request: 1 // 0))
    assert "ZeroDivisionError" in laws["elements on the wire"]


def test_numbers_of_ranks_that_an_algorithm_refuses_are_left_out() -> None:
    def powers_of_two(request: CollectiveRequest) -> Schedule:
        if request.world_size & (request.world_size - 1):
            raise ValueError("the number of ranks must be a power of two")
        return RING.plans["all_gather"](request)

    checked = check_algorithm(replace(RING, plans={"all_gather": powers_of_two}), [2, 3, 4])
    assert checked.holds
    assert (checked.world_sizes, checked.refused) == ((2, 4), {3: "the number of ranks must be a power of two"})
    with pytest.raises(ScenarioError, match="own algorithm: refuses 3 ranks: the number of ranks must be"):
        check_algorithm(replace(RING, plans={"all_gather": powers_of_two}), [3])


def test_the_command_prints_a_line_for_each_law(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command: Command = commands_in(tmp_path, monkeypatch, capsys)
    good = "from dataclasses import replace\nfrom simulator.collectives.tree import ALGORITHM\n"
    (tmp_path / "own.py").write_text(good)
    done = command("check-algorithm", "own.py", "--ranks", "3")
    assert (done.code, done.err) == (0, "warning: runs the code of own.py\n")
    assert done.out.startswith("own.py: keeps the laws of collectives, checked with 3 ranks\n")
    (tmp_path / "own.py").write_text(good + "ALGORITHM = replace(ALGORITHM, volume=lambda request: 1)\n")
    wrong = command("check-algorithm", "own.py", "--ranks", "3")
    assert wrong.code == 1
    assert "all_reduce, elements on the wire: BROKEN with 3 ranks, 0 elements" in wrong.out
    refused = command("check-algorithm", "own.py", "--no-plugins")
    assert (refused.code, len(refused.faults)) == (2, 1)
