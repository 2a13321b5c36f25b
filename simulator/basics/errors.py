"""Which errors and warnings this package raises, and the exit code of each.

Rule: every error that the command line prints as one line is below SimulatorError and knows its exit code.

    SimulatorError                       everything the command line prints as one line
      ScenarioError (ValueError)         your file or option is wrong: one line a fault            exit 2
        UnknownNameError                 + "did you mean 'ring'?"                                  exit 2
      ScheduleError                      an algorithm breaks its promise                           exit 1
      SimulationError                    the run cannot go on                                      exit 1
        TooLargeError                    what was asked for, and what this machine lacks for it   exit 2
        OutOfMemoryError                 rank, time, needed, capacity, largest holders
        DeadlockError                    ranks, and what each waits for
        NoRouteError                     src, dst, topology
        DefectError                      the simulator itself is wrong: which record, and the scenario    exit 70

    ScenarioWarning (UserWarning)        a key that changes nothing: one line a key, and the run goes on
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

_GIB: Final = 2**30
# Faults of a file that are printed at once, one line each: about a screenful.
MOST_FAULTS: Final = 50
# Letters of a line that tells a fault.
_LONGEST: Final = 1000
# Letters of a name that are compared with others; comparing takes as long as both are long, multiplied.
_MOST_COMPARED: Final = 200


class SimulatorError(Exception):
    """Anything that goes wrong and that the user sees as one line."""

    exit_code: ClassVar[int] = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # By default unpickling calls the class with `args`, which subclasses with other parameters refuse; without this
        # an error could not come back from a worker process.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[SimulatorError], args: tuple[Any, ...], facts: Mapping[str, Any]) -> SimulatorError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class ScenarioError(SimulatorError, ValueError):
    """The user's file or option is wrong. The message has one line for each fault."""

    exit_code = 2


class ScenarioWarning(UserWarning):
    """A key of a scenario changes no number. The message is one line, as of a ScenarioError."""


class UnknownNameError(ScenarioError):
    """A name that does not exist, with the name that was probably meant.

    Attributes
    ----------
    kind, name : str
        What was looked for ("topology") and the name that was given.
    allowed : tuple of str
        The names that exist, sorted.
    """

    def __init__(self, kind: str, name: str, allowed: Iterable[str]) -> None:
        self.kind = kind
        self.name = name
        self.allowed = tuple(sorted(allowed))
        super().__init__(f"{kind}: got {name!r}; {one_of(self.allowed, name)}")


class ScheduleError(SimulatorError):
    """A collective algorithm breaks its promise: rank, chunk, what it held and what was wanted."""


class SimulationError(SimulatorError):
    """The run cannot go on."""


class DefectError(SimulationError):
    """The simulator itself is wrong: a record holds no number, so that nothing of the run can be trusted.

    Attributes
    ----------
    record : str
        Which record is wrong, and how.
    scenario : str
        A scenario file that reproduces the defect; empty if the error comes from below a scenario.
    """

    # EX_SOFTWARE of BSD's sysexits.h: an internal software error.
    exit_code = 70

    def __init__(self, record: str, scenario: str = "") -> None:
        self.record = record
        self.scenario = scenario
        super().__init__(
            f"defect of the simulator, not of the scenario: {record}; no report is written; please report it with the "
            "scenario"
        )


class TooLargeError(SimulationError):
    """The scenario needs more memory than this machine has.

    An estimate raises this error before anything is built; where the estimate was too low, the part that would be too
    large is not built.
    """

    exit_code = 2


class OutOfMemoryError(SimulationError):
    """A rank needs more HBM than it has.

    Attributes
    ----------
    rank : int
    time : float
        When [s].
    needed, capacity : int
        [B]
    holders : tuple of (str, int)
        The three largest labels and their bytes.
    """

    def __init__(
        self, rank: int, time: float, needed: int, capacity: int, holders: tuple[tuple[str, int], ...]
    ) -> None:
        self.rank = rank
        self.time = time
        self.needed = needed
        self.capacity = capacity
        self.holders = holders
        held = ", ".join(f"{label} {nbytes / _GIB:.3g} GiB" for label, nbytes in holders)
        super().__init__(
            f"rank {rank} ran out of memory at {time:.6g} s: needs {needed / _GIB:.4g} GiB, "
            f"has {capacity / _GIB:.4g} GiB ({held})"
        )


class DeadlockError(SimulationError):
    """Nothing can happen any more, but not everything has ended.

    Attributes
    ----------
    waiting : mapping of str to str
        Who waits ("rank 0, stream 'communication'") and for what.
    """

    def __init__(self, time: float, waiting: Mapping[str, str]) -> None:
        self.time = time
        self.waiting = dict(waiting)
        shown = list(self.waiting.items())[:8]
        reasons = "; ".join(f"{who} waits for {what}" for who, what in shown)
        more = f"; and {len(self.waiting) - len(shown)} more" if len(self.waiting) > len(shown) else ""
        super().__init__(f"deadlock at {time:.6g} s: {reasons}{more}")


class NoRouteError(SimulationError):
    """Two vertices of a topology are not connected."""

    def __init__(self, src: str, dst: str, topology: str) -> None:
        self.src = src
        self.dst = dst
        self.topology = topology
        super().__init__(
            f"no route from {src} to {dst} in topology {topology!r}; add links until every rank is reached"
        )


def one_line(text: str) -> str:
    r"""Say something in one line of bounded length: a name may hold line breaks, and a value may fill a file.

    Examples
    --------
    >>> one_line("a\nb")
    'a\\nb'
    """
    short = text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in short)


def in_lines(faults: Sequence[str]) -> str:
    """Join faults, one a line: the first 50, and how many more there are.

    Examples
    --------
    >>> in_lines(["a.yaml:1:1: x", "a.yaml:2:1: y"])
    'a.yaml:1:1: x\\na.yaml:2:1: y'
    """
    more = len(faults) - MOST_FAULTS
    return "\n".join([*map(one_line, faults[:MOST_FAULTS]), *([f"and {more} more faults"] if more > 0 else [])])


def one_of(allowed: Iterable[str], name: object) -> str:
    """Say which names are allowed, and the one that was probably meant.

    Examples
    --------
    >>> one_of(["ring", "tree"], "rng")
    "one of ring, tree; did you mean 'ring'?"
    """
    names = sorted(allowed)
    shown = ", ".join(names) if len(names) <= 12 else ", ".join(names[:12]) + ", ..."
    typed = str(name)[:_MOST_COMPARED].lower()
    # A name that begins as typed is likelier than one that differs in a letter: h100 means h100_sxm and not h200.
    close = [n for n in names if typed and n.startswith(f"{typed}_")] or difflib.get_close_matches(
        typed, names, n=1, cutoff=0.6
    )
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"one of {shown}{hint}"
