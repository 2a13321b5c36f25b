"""Which laws does a part keep? The result of each law, and of all laws of a part."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from simulator.basics.errors import SimulatorError


class BrokenLawError(SimulatorError):
    """Error: a part breaks a law; the message says what was found and what the law demands."""


def require(holds: bool, fault: str) -> None:
    """Raise BrokenLawError with the text `fault` unless a law holds."""
    if not holds:
        raise BrokenLawError(fault)


@dataclass(frozen=True, slots=True)
class LawResult:
    """The result of a law."""

    # Operation of a collective algorithm; empty for laws about the whole part.
    operation: str
    law: str  # name of the law
    cases: int  # number of settings in which the law holds
    # First setting in which the law is broken, and how; empty if the law holds.
    fault: str = ""

    @property
    def line(self) -> str:
        """The result as text."""
        of = f"{self.operation}, " if self.operation else ""
        verdict = f"holds in {self.cases} case{'s' if self.cases > 1 else ''}" if self.cases else "none declared"
        return f"{of}{self.law}: {self.fault or verdict}"


@dataclass(frozen=True, slots=True)
class PartCheck:
    """The result of a check such as `check_schedule`."""

    name: str  # name, or path, of the part
    # Whose laws: "pipeline schedules".
    laws: str
    results: tuple[LawResult, ...]  # A result for each law
    # Settings of the check, in words; may be empty.
    tried: str = ""

    @property
    def holds(self) -> bool:
        """Return True if the part keeps every law."""
        return not any(result.fault for result in self.results)

    def lines(self) -> tuple[str, ...]:
        """Return the results as text, a line for each law."""
        verdict = f"{self.name}: {'keeps' if self.holds else 'breaks'} the laws of {self.laws}"
        head = f"{verdict}, checked with {self.tried}" if self.tried else verdict
        return (head, *(f"  {result.line}" for result in self.results))


def judged(operation: str, law: str, cases: Iterable[tuple[str, Callable[[], bool | None]]]) -> LawResult:
    """Return the result of a law over cases, up to the first case in which the law is broken.

    Parameters
    ----------
    operation, law : str
        As in LawResult.
    cases : iterable of (setting in words, function)
        A function raises an error if the law is broken, and returns False if the law says nothing about the case.

    Examples
    --------
    >>> judged("", "is even", [("2 ranks", lambda: True), ("a chain", lambda: False)])
    LawResult(operation='', law='is even', cases=1, fault='')
    """
    count = 0
    for setting, holds in cases:
        try:
            count += holds() is not False
        # The functions of a user's record may raise any error.
        except Exception as error:
            kind = "" if isinstance(error, SimulatorError) else f"{type(error).__name__}: "
            where = f" with {setting}" if setting else ""
            return LawResult(operation, law, count, f"BROKEN{where}: {kind}{' '.join(str(error).split())}")
    return LawResult(operation, law, count)
