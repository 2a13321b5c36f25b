"""Which errors and warnings does this package raise, and which exit code has each error?

Every error that the command line prints as a single line is a subclass of SimulatorError and has an exit code.

    SimulatorError                       everything that the command line prints as one line
      ScenarioError (ValueError)         a file or option is wrong: one line per fault             exit 2
        UnknownNameError                 + "did you mean 'ring'?"                                  exit 2
      ScheduleError                      an algorithm breaks its promise                           exit 1
      SimulationError                    the run cannot continue                                   exit 1
        TooLargeError                    the request, and the memory that this machine lacks       exit 2
        OutOfMemoryError                 rank, time, needed, capacity, largest holders
        DeadlockError                    ranks, and what each waits for
        NoRouteError                     src, dst, topology
        DefectError                      the simulator itself is wrong: the record, and the scenario    exit 70

    ScenarioWarning (UserWarning)        a key without effect: one line per key, and the run continues
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final

from simulator.basics.units import format_memory

# Maximum faults in a file that are printed at once, one line each: about a screenful.
MOST_FAULTS: Final = 50
# Maximum characters in a line about a fault.
_LONGEST: Final = 1000
# Most names that a message writes out, if a command lists them and if none does.
_MOST_LISTED: Final = 6
_MOST_UNLISTED: Final = 12
# Most names that a message proposes, and fewest letters that mean any name which contains them.
MOST_MEANT: Final = 3
_LEAST_PART: Final = 3
# A further name is proposed if its similarity, from 0 to 1, is at most this much below the most similar name's.
_AS_SIMILAR: Final = 0.05
# Maximum characters in compared names: a comparison costs the product of both lengths.
_MOST_COMPARED: Final = 200


class SimulatorError(Exception):
    """Base class for errors shown to the user in a single line."""

    exit_code: ClassVar[int] = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # Unpickling would call the class with `args`, but subclasses may have different parameters. Without
        # this method, an error could not return from a worker process.
        return _rebuild, (type(self), self.args, dict(self.__dict__))


def _rebuild(kind: type[SimulatorError], args: tuple[Any, ...], facts: Mapping[str, Any]) -> SimulatorError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(facts)
    return error


class ScenarioError(SimulatorError, ValueError):
    """Error: a user's file or option is wrong; the message has a line for each fault."""

    exit_code = 2


class ScenarioWarning(UserWarning):
    """Warning: a scenario key changes no number; the message is a single line, like a line of a ScenarioError."""


class ForeignCodeWarning(ScenarioWarning):
    """Warning: code from outside this package begins to run; once for each file."""


class UnknownNameError(ScenarioError):
    """Error: a name does not exist; the message suggests a similar name.

    Attributes
    ----------
    kind, name : str
        Kind of the name, such as "topology", and the given name.
    allowed : tuple of str
        Existing names, sorted.
    """

    def __init__(
        self, kind: str, name: str, allowed: Iterable[str], hint: str = "", listed_by: str = "", instead: str = ""
    ) -> None:
        self.kind = kind
        self.name = name
        self.allowed = tuple(sorted(allowed))
        # A name of another kind is no misspelling: `instead` says what it is.
        meant = instead or f"{one_of(self.allowed, name, listed_by)}{f'; {hint}' if hint else ''}"
        super().__init__(f"{kind}: got {name!r}; {meant}")


class ScheduleError(SimulatorError):
    """Error: a collective algorithm breaks its promise.

    The message names rank, chunk, the data held and the data wanted.
    """


class SimulationError(SimulatorError):
    """Error: the simulation cannot continue."""


class DefectError(SimulationError):
    """Error: the simulator itself is wrong; a record contains no number, so no result of the run can be trusted.

    Attributes
    ----------
    record : str
        The faulty record, and the fault.
    scenario : str
        A scenario file that reproduces the defect; empty if the error occurs below a scenario.
    """

    # EX_SOFTWARE of BSD's sysexits.h: an internal software error.
    exit_code = 70

    def __init__(self, record: str, scenario: str = "") -> None:
        self.record = record
        self.scenario = scenario
        super().__init__(
            f"defect of the simulator, not of the scenario: {record}; no report is written; please report this "
            "defect together with the scenario"
        )


class TooLargeError(SimulationError):
    """Error: the scenario needs more memory than this machine has.

    An estimate raises this error before anything is built. If the estimate was too low, the error is raised before the
    part that is too large is built.
    """

    exit_code = 2


class OutOfMemoryError(SimulationError):
    """Error: a simulated rank needs more GPU memory (HBM) than it has.

    Attributes
    ----------
    rank : int
        Rank without enough memory.
    time : float
        Time of the failing allocation [s].
    needed, capacity : int
        Memory that the process needs, and memory of the GPU [B].
    holders : tuple of (str, int)
        The three largest labels and their bytes.
    beside : int
        Part of `needed` that is CUDA context and NCCL buffers [B].
    """

    def __init__(
        self,
        rank: int,
        time: float,
        needed: int,
        capacity: int,
        holders: tuple[tuple[str, int], ...],
        beside: int = 0,
    ) -> None:
        self.rank = rank
        self.time = time
        self.needed = needed
        self.capacity = capacity
        self.holders = holders
        self.beside = beside
        others = [("CUDA context and NCCL buffers", beside)] if beside else []
        parts = ", ".join(f"{label} {format_memory(nbytes)}" for label, nbytes in (*holders, *others))
        super().__init__(
            f"rank {rank} ran out of memory at {time:.6g} s: needs {format_memory(needed, 4)}, "
            f"has {format_memory(capacity, 4)} ({parts})"
        )


class DeadlockError(SimulationError):
    """Error: a simulated program hangs; no further event is possible, but operations are unfinished.

    Attributes
    ----------
    waiting : mapping of str to str
        Each waiting stream ("rank 0 (communication)"), and the event that it waits for.
    """

    def __init__(self, time: float, waiting: Mapping[str, str]) -> None:
        self.time = time
        self.waiting = dict(waiting)
        entries = list(self.waiting.items())[:8]
        reasons = "; ".join(f"{who} waits for {what}" for who, what in entries)
        more = f"; and {len(self.waiting) - len(entries)} more" if len(self.waiting) > len(entries) else ""
        super().__init__(f"deadlock at {time:.6g} s: {reasons}{more}")


class NoRouteError(SimulationError):
    """Error: no route connects two vertices in a topology graph."""

    def __init__(self, src: str, dst: str, topology: str) -> None:
        self.src = src
        self.dst = dst
        self.topology = topology
        super().__init__(
            f"no route from {src} to {dst} in topology {topology!r}; add links until every rank is reached"
        )


def one_line(text: str) -> str:
    r"""Return a text as a single line of bounded length: line breaks are escaped, and the middle may be omitted.

    >>> one_line("a\nb")
    'a\\nb'
    """
    short = text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in short)


def in_lines(faults: Sequence[str]) -> str:
    """Return faults joined to a text, a line each: the first 50, and the number of further faults.

    >>> in_lines(["a.yaml:1:1: x", "a.yaml:2:1: y"])
    'a.yaml:1:1: x\\na.yaml:2:1: y'
    """
    more = len(faults) - MOST_FAULTS
    return "\n".join([*map(one_line, faults[:MOST_FAULTS]), *([f"and {more} further mistakes"] if more > 0 else [])])


def few(names: Sequence[str], most: int, more: str = ", ...") -> str:
    """Return names as a list; of more than `most` + 1 names, only the first `most`, followed by `more`.

    A single further name is written out, because an ellipsis would hide it and save no room.

    >>> few(["a", "b", "c"], most=2), few(["a", "b", "c", "d"], most=2)
    ('a, b, c', 'a, b, ...')
    """
    return ", ".join(names) if len(names) <= most + 1 else ", ".join(names[:most]) + more


def one_of(allowed: Iterable[str], name: object, listed_by: str = "") -> str:
    """Return a text with the allowed names, and at most three of them that `name` probably meant.

    Of many names, the text contains only the probable ones and `listed_by`, the command that lists all.

    >>> one_of(["ring", "tree"], "rng")
    "one of ring, tree; did you mean 'ring'?"
    >>> one_of(map(str, range(100)), "3x", "simulator list numbers")
    "did you mean '3'? `simulator list numbers` lists all"
    """
    names = sorted(allowed)
    # Names that the text lists anyway need one proposal.
    unlisted = bool(listed_by) and len(names) > _MOST_LISTED
    proposal = did_you_mean(similar(names, str(name), MOST_MEANT if unlisted else 1))
    if unlisted:
        return f"{proposal} `{listed_by}` lists all".lstrip()
    return f"one of {few(names, _MOST_UNLISTED)}{proposal and f'; {proposal}'}"


def did_you_mean(names: Sequence[str]) -> str:
    """Return the question which of the names was meant; empty without names.

    >>> did_you_mean(["ring", "tree", "mesh"])
    "did you mean 'ring', 'tree' or 'mesh'?"
    """
    choices = " or ".join(filter(None, [", ".join(map(repr, names[:-1])), *map(repr, names[-1:])]))
    return f"did you mean {choices}?" if choices else ""


def similar(names: Sequence[str], written: str, most: int) -> list[str]:
    """Return the names that a text probably means; empty if no name is similar.

    At most `most` names continue or resemble the text; up to three names contain the text.

    >>> similar(["h100_sxm", "h200_sxm"], "h100", 3)
    ['h100_sxm']
    """
    typed = written[:_MOST_COMPARED].lower()
    if not typed:
        return []
    # A name that continues the typed text is likelier than a name with one different letter: h100 means h100_sxm, not
    # h200. A name that ends in the typed text is almost as likely: p5 means aws_p5.
    close = [name for name in names if name.startswith(f"{typed}_")][:most]
    close = close or [name for name in names if f"_{typed}_" in f"_{name.lower()}_"][:MOST_MEANT]
    close = close or _closest(names, typed, most)
    if not close and len(typed) >= _LEAST_PART:
        close = [name for name in names if typed in name.lower()][:MOST_MEANT]
    return close


def _closest(names: Sequence[str], typed: str, most: int) -> list[str]:
    """Return the name most similar to the typed text, and names about as similar; empty if none is similar."""
    close = difflib.get_close_matches(typed, names, n=most, cutoff=0.6)
    similarity = [difflib.SequenceMatcher(None, name, typed).ratio() for name in close]
    return [name for name, ratio in zip(close, similarity, strict=True) if ratio >= similarity[0] - _AS_SIMILAR]
