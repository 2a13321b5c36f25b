"""Twelve MSCCL programs: the results are exact on real arrays, and a program with one wrong step is refused.

Six were printed by msccl-tools, and six are exports of this package's algorithms.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import pytest

from simulator.basics.errors import ScenarioError
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.collectives.msccl.convert import algorithm_of_program
from simulator.collectives.msccl.xml_writer import exported
from simulator.testing import check_algorithm

SAMPLES: Final = sorted((Path(__file__).parents[1] / "golden" / "msccl").glob("*.xml"))
EXPORTED: Final = (
    ("tree", "all_reduce", 5), ("double_binary_tree", "all_reduce", 6), ("halving_doubling", "all_reduce", 5),
    ("halving_doubling", "reduce_scatter", 8), ("ring", "reduce_scatter", 3), ("direct", "all_to_all", 4),
)  # fmt: skip
PROGRAMS: Final[Mapping[str, str]] = {
    **{path.stem: path.read_text(encoding="utf-8") for path in SAMPLES},
    **{
        f"{name} {operation} {ranks}": exported(
            ALGORITHMS.find(name).plans[operation](CollectiveRequest(operation, ranks, 64))
        )
        for name, operation, ranks in EXPORTED
    },
}
STEP: Final = re.compile(r"<step [^>]*?/>")
# Steps that send or receive; a copy that is done twice changes nothing.
MOVES: Final = re.compile(r'type="(?:s|r|rcs|rrc|rrs|rrcs)"')
BLOCK: Final = re.compile(r'<tb id="\d+" send="(\d+)"')


def numbered(text: str) -> str:
    """The program with the steps of each block numbered from 0, and dependencies on these numbers unchanged."""

    def block(found: re.Match[str]) -> str:
        numbers = iter(range(10_000))
        return re.sub(r'(<step s=)"\d+"', lambda one: f'{one[1]}"{next(numbers)}"', found[0])

    return re.sub(r"<tb .*?</tb>", block, text, flags=re.DOTALL)


def moving(text: str, chance: random.Random) -> re.Match[str]:
    return chance.choice([one for one in STEP.finditer(text) if MOVES.search(one[0])])


def dropped(text: str, chance: random.Random) -> str:
    one = moving(text, chance)
    return numbered(text[: one.start()] + text[one.end() :])


def doubled(text: str, chance: random.Random) -> str:
    one = moving(text, chance)
    return numbered(text[: one.end()] + one[0] + text[one.end() :])


def misdirected(text: str, chance: random.Random) -> str:
    """A block that sends to the next rank that is neither its own nor the right one."""
    ranks = len(re.findall(r"<gpu ", text))
    one = chance.choice(list(BLOCK.finditer(text)))
    own = int(re.findall(r'<gpu id="(\d+)"', text[: one.start()])[-1])
    other = next(rank for step in range(1, ranks) if (rank := (int(one[1]) + step) % ranks) != own)
    return text[: one.start(1)] + str(other) + text[one.end(1) :]


def test_there_are_twelve_programs() -> None:
    assert len(PROGRAMS) == 12
    assert len(set(PROGRAMS.values())) == 12


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_results_are_exact(name: str) -> None:
    checked = check_algorithm(algorithm_of_program(PROGRAMS[name].encode(), f"{name}.xml"))
    assert [line for line in checked.lines() if "BROKEN" in line] == []
    (exact,) = [result for result in checked.results if result.law == "exact elements of int64"]
    assert exact.cases > 0


@pytest.mark.parametrize("change", [dropped, doubled, misdirected])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_a_wrong_step_is_refused(name: str, change: Callable[[str, random.Random], str]) -> None:
    for seed in range(5):
        wrong = change(PROGRAMS[name], random.Random(f"{name} {seed}"))
        assert wrong != PROGRAMS[name]
        with pytest.raises(ScenarioError):
            algorithm_of_program(wrong.encode(), f"{name}.xml")
