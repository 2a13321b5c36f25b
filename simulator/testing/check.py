"""Does an algorithm keep the laws of collectives? Every operation, many numbers of ranks, one law after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from simulator.basics.errors import ScenarioError, SimulatorError
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import Algorithm, CollectiveRequest
from simulator.collectives.algorithm_files import find_algorithm
from simulator.testing import laws
from simulator.testing.machines import requests

# Odd numbers, a prime and powers of two: most mistakes show at one of them.
WORLD_SIZES: Final = (2, 3, 4, 5, 7, 8, 16)
Law = Callable[[Algorithm, Cluster, CollectiveRequest], bool | None]
# Elements of the arrays: fewer than ranks, and a number that no number of ranks divides.
_ELEMENTS: Final = (1, 1003)
# Elements that 2, 3, 4, 5, 7, 8 and 16 divide: closed forms need equal parts.
_EQUAL_PARTS: Final = 1680
_LAWS: Final[dict[str, tuple[Law, tuple[int, ...]]]] = {
    "rows are counted": (laws.counts_rows, _ELEMENTS),
    "proof without a clock": (laws.keeps_its_promise, _ELEMENTS),
    "elements on the wire": (laws.sends_its_volume, (0, *_ELEMENTS)),
    "exact elements of int64": (laws.gives_exact_results, _ELEMENTS),
    "elements of float16": (lambda a, c, r: laws.gives_exact_results(a, c, r, "float16"), (1003,)),
    "closed form": (laws.takes_its_closed_form, (*_ELEMENTS, _EQUAL_PARTS)),
}


@dataclass(frozen=True, slots=True)
class LawResult:
    """The result of a law for an operation of an algorithm.

    Attributes
    ----------
    operation, law : str
        Names.
    cases : int
        Number of settings (ranks, elements, roots, options) in which the law holds.
    fault : str
        First setting in which the law is broken, and how; empty if the law holds.
    """

    operation: str
    law: str
    cases: int
    fault: str = ""


@dataclass(frozen=True, slots=True)
class AlgorithmCheck:
    """The result of `check_algorithm`.

    Attributes
    ----------
    name : str
        Name, or path, of the algorithm.
    results : tuple of LawResult
        In the order of operations and laws.
    world_sizes : tuple of int
        Numbers of ranks of the check.
    refused : mapping of int to str
        Numbers of ranks that the algorithm refuses, with its reason.
    """

    name: str
    results: tuple[LawResult, ...]
    world_sizes: tuple[int, ...]
    refused: dict[int, str] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """Return True if the algorithm keeps every law."""
        return not any(result.fault for result in self.results)

    def lines(self) -> tuple[str, ...]:
        """Return the results as text, a line for each operation and law."""
        sizes = ", ".join(map(str, self.world_sizes))
        told = [
            f"{self.name}: {'keeps' if self.holds else 'breaks'} the laws of collectives, checked with {sizes} ranks"
        ]
        for result in self.results:
            cases = f"holds in {result.cases} cases" if result.cases else "none declared"
            told.append(f"  {result.operation}, {result.law}: {result.fault or cases}")
        told += [f"  refuses {ranks} ranks: {why}" for ranks, why in self.refused.items()]
        return tuple(told)


def check_algorithm(
    algorithm: str | Path | Algorithm, world_sizes: Sequence[int] | None = None, *, name: str = ""
) -> AlgorithmCheck:
    """Check an algorithm's record: proof, exact sums, elements on the wire, closed form.

    Parameters
    ----------
    algorithm : str, Path or Algorithm
        Path of a file, name in the catalog, or the record itself.
    world_sizes : sequence of int, optional
        Numbers of ranks; by default 2 to 16, or the only number that the algorithm supports. A number that the
        algorithm refuses by a ValueError is left out.
    name : str, optional
        Name of the record in the result.

    Returns
    -------
    AlgorithmCheck
        `holds` is True if every law holds; `lines()` tells the results.

    Raises
    ------
    ScenarioError
        The file declares no algorithm, or the algorithm refuses every number of ranks.

    Examples
    --------
    >>> from simulator.testing import check_algorithm
    >>> print(check_algorithm("ring", [2, 5]).lines()[0])
    ring: keeps the laws of collectives, checked with 2, 5 ranks
    """
    found = algorithm if isinstance(algorithm, Algorithm) else find_algorithm(str(algorithm))
    named = name or ("own algorithm" if isinstance(algorithm, Algorithm) else str(algorithm))
    if world_sizes is None:
        world_sizes = WORLD_SIZES if found.ranks is None else (found.ranks,)
    possible, refused = _possible(found, world_sizes)
    if not possible:
        raise ScenarioError(
            f"{named}: refuses {', '.join(map(str, world_sizes))} ranks: {next(iter(refused.values()))}"
        )
    results = tuple(_judged(found, operation, law, possible) for operation in found.operations for law in _LAWS)
    return AlgorithmCheck(named, results, tuple(possible), refused)


def _possible(algorithm: Algorithm, world_sizes: Iterable[int]) -> tuple[list[int], dict[int, str]]:
    """Return the numbers of ranks that an algorithm accepts, and the reason for each number that it refuses."""
    possible, refused = list[int](), dict[int, str]()
    for ranks in world_sizes:
        try:
            for operation in algorithm.operations:
                algorithm.plans[operation](CollectiveRequest(operation, ranks, ranks))
        except ScenarioError:
            # An error of the code is a broken law, and not a refusal.
            possible.append(ranks)
        except ValueError as error:
            refused[ranks] = str(error)
        else:
            possible.append(ranks)
    return possible, refused


def _judged(algorithm: Algorithm, operation: str, law: str, world_sizes: Sequence[int]) -> LawResult:
    check, elements = _LAWS[law]
    cases = 0
    for cluster, request in _settings(algorithm, operation, world_sizes, elements):
        try:
            cases += check(algorithm, cluster, request) is not False
        # The functions of a user's record may raise any error.
        except Exception as error:
            kind = "" if isinstance(error, SimulatorError) else f"{type(error).__name__}: "
            root = f", root {request.root}" if request.root else ""
            setting = f"{request.world_size} ranks, {request.elements} elements{root}"
            return LawResult(operation, law, cases, f"BROKEN with {setting}: {kind}{error}")
    return LawResult(operation, law, cases)


def _settings(
    algorithm: Algorithm, operation: str, world_sizes: Sequence[int], elements: Sequence[int]
) -> Iterator[tuple[Cluster, CollectiveRequest]]:
    for ranks in world_sizes:
        for count in elements:
            yield from requests(algorithm, operation, ranks, count)
