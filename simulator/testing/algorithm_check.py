"""Does an algorithm keep the laws of collectives? Every operation, many numbers of ranks, one law after another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from simulator.basics.counts import number_of
from simulator.basics.errors import ScenarioError
from simulator.cluster.cluster import Cluster
from simulator.collectives.algorithm import Algorithm, CollectiveRequest
from simulator.collectives.algorithm_files import find_algorithm
from simulator.testing import algorithm_laws as laws
from simulator.testing.law import LawResult, PartCheck, judged
from simulator.testing.machines import requests

# Odd numbers, a prime and powers of two: most mistakes show at one of them.
WORLD_SIZES: Final = (2, 3, 4, 5, 7, 8, 16)
Law = Callable[[Algorithm, Cluster, CollectiveRequest], bool | None]
# Elements of the arrays: fewer than ranks, and a number that no number of ranks divides.
_ELEMENTS: Final = (1, 1003)
# Elements that 2, 3, 4, 5, 7, 8 and 16 divide: closed forms need equal parts.
_EQUAL_PARTS: Final = 1680
_PROOF: Final = "proof without a clock"
_LAWS: Final[dict[str, tuple[Law, tuple[int, ...]]]] = {
    "rows are counted": (laws.counts_rows, _ELEMENTS),
    _PROOF: (laws.keeps_its_promise, _ELEMENTS),
    "elements on the wire": (laws.sends_its_volume, (0, *_ELEMENTS)),
    "exact elements of int64": (laws.gives_exact_results, _ELEMENTS),
    "elements of float16": (lambda a, c, r: laws.gives_exact_results(a, c, r, "float16"), (1003,)),
    "closed form": (laws.takes_its_closed_form, (*_ELEMENTS, _EQUAL_PARTS)),
}
# Laws that simulate, for which a schedule is proved first.
_SIMULATED: Final = ("exact elements of int64", "elements of float16", "closed form")


@dataclass(frozen=True, slots=True)
class AlgorithmCheck(PartCheck):
    """The result of `check_algorithm`."""

    world_sizes: tuple[int, ...] = ()  # numbers of ranks of the check
    # Numbers of ranks that the algorithm refuses, with its reason.
    refused: Mapping[int, str] = field(default_factory=dict)

    def lines(self) -> tuple[str, ...]:
        """Return the results as text, a line for each operation and law, and for each refused number of ranks."""
        # `super()` knows the class by its name here, because a dataclass with slots is a new class.
        lines = super(AlgorithmCheck, self).lines()
        return (*lines, *(f"  refuses {ranks} ranks: {why}" for ranks, why in self.refused.items()))


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
    record = algorithm if isinstance(algorithm, Algorithm) else find_algorithm(str(algorithm))
    label = name or ("own algorithm" if isinstance(algorithm, Algorithm) else str(algorithm))
    if world_sizes is None:
        world_sizes = WORLD_SIZES if record.ranks is None else (record.ranks,)
    possible, refused = _possible(record, world_sizes)
    if not possible:
        raise ScenarioError(
            f"{label}: refuses {', '.join(map(str, world_sizes))} ranks: {next(iter(refused.values()))}"
        )
    results = tuple(result for operation in record.operations for result in _of_operation(record, operation, possible))
    tried = f"{', '.join(map(str, possible))} ranks"
    return AlgorithmCheck(label, "collectives", results, tried, tuple(possible), refused)


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


def _of_operation(algorithm: Algorithm, operation: str, world_sizes: Sequence[int]) -> Iterator[LawResult]:
    """Yield the result of each law; laws about a simulation are left out if the proof fails, because none begins."""
    broken = False
    for law in _LAWS:
        if broken and law in _SIMULATED:
            continue
        result = _judged(algorithm, operation, law, world_sizes)
        broken = broken or (law == _PROOF and bool(result.fault))
        yield result


def _judged(algorithm: Algorithm, operation: str, law: str, world_sizes: Sequence[int]) -> LawResult:
    check, elements = _LAWS[law]
    settings = _settings(algorithm, operation, world_sizes, elements)
    return judged(operation, law, ((_words(r), partial(check, algorithm, c, r)) for c, r in settings))


def _words(request: CollectiveRequest) -> str:
    root = f", root {request.root}" if request.root else ""
    return f"{number_of(request.world_size, 'rank')}, {number_of(request.elements, 'element')}{root}"


def _settings(
    algorithm: Algorithm, operation: str, world_sizes: Sequence[int], elements: Sequence[int]
) -> Iterator[tuple[Cluster, CollectiveRequest]]:
    for ranks in world_sizes:
        for count in elements:
            yield from requests(algorithm, operation, ranks, count)
