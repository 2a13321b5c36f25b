"""Which options does a shell script give to its commands? Reads the script, and executes nothing.

Variables and arrays that the same file assigns plain values are replaced. Nothing else is evaluated: a command inside a
branch has the values of this branch, after `if` and `else` the first branch counts, options under another condition are
marked, and a value that needs a command, arithmetic or the environment is unresolved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.basics.plain_data import DEEPEST
from simulator.basics.yaml_dialect import MOST_VALUES
from simulator.importing.settings import MOST_BYTES, Setting, Unresolved
from simulator.importing.syntax.shell_words import Command, RawWord, Scanner, WordPart

_ASSIGNMENT: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=(.*)\Z", re.DOTALL)
_OPENING: Final = frozenset({"if", "while", "until", "for", "case", "select", "{"})
_CLOSING: Final = frozenset({"fi", "done", "esac", "}"})
_BETWEEN: Final = frozenset({"then", "do", "else", "elif", "!", "time"})
# $@ and $*, and a variable alone, between the marks of a piece without a value.
_ARGUMENTS: Final = re.compile(r"\0\$\{?[@*][:0-9]*\}?\0\Z")
_VARIABLE: Final = re.compile(r"\0\$(?:[A-Za-z_][A-Za-z0-9_]*|[0-9])\0\Z")
_NAMES: Final = re.compile(r"\$\{?([A-Za-z_][A-Za-z0-9_]*|[0-9])")
_PREFIXES: Final = frozenset({"export", "declare", "local", "readonly", "typeset", "set"})
_TESTS: Final = frozenset({"[", "[[", "test"})
_OPTION: Final = re.compile(r"--?[A-Za-z]")
# Words that begin the program that a launcher runs; they are no values of the option before them.
_PROGRAM: Final = re.compile(r".*\.(py|sh)\Z|-m\Z")
_SBATCH: Final = re.compile(r"^#(?:SBATCH|PBS|BSUB)[ \t]+(--[a-z-]+)(?:=|[ \t]+)(\S+)", re.MULTILINE)


# Stands around a piece of text without a value. Files cannot contain it: it is removed from their text.
_LOST: Final = "\0"


@dataclass(frozen=True, slots=True)
class Arm:
    """A branch of a condition, loop or function: number of the statement, its line, and the branch's number."""

    statement: int
    line: int
    number: int = 0


@dataclass(frozen=True, slots=True)
class Word:
    """A word after variables were replaced; a piece without a value keeps its text as written, between marks.

    `arms` are the branches around the word, outermost first.
    """

    text: str
    line: int
    arms: tuple[Arm, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Variable:
    words: tuple[Word, ...]
    # Branches in which a scalar got its value.
    arms: tuple[Arm, ...] = ()


@dataclass(slots=True)
class _Statement:
    """An open condition, loop, function or bracket, and its present branch."""

    opening: str
    arm: Arm
    # Of the variables that the present branch assigns, the values before the statement.
    before: dict[str, _Variable | None] = field(default_factory=dict)
    # The values after the statement, from the branches so far.
    after: dict[str, _Variable] = field(default_factory=dict)


@dataclass(slots=True)
class _Script:
    source: str
    variables: dict[str, _Variable] = field(default_factory=dict)
    # Names whose values come from outside, and stay.
    outside: frozenset[str] = frozenset()
    # Statements around the present command, outermost first.
    open: list[_Statement] = field(default_factory=list)
    # Statements with an `else`: one of their branches runs.
    complete: set[int] = field(default_factory=set)
    # Names that an earlier branch gave values, and that a command of a later branch uses with its own.
    differing: set[str] = field(default_factory=set)
    statements: int = 0
    size: int = 0
    count: int = 0
    guarded: bool = False

    def run(self, commands: Iterator[Command]) -> Iterator[tuple[list[Word], tuple[Arm, ...]]]:
        """Yield the words of each command, with variables replaced, and the branches around the command; note the
        assignments on the way.
        """
        for command in commands:
            # The command after a test and && depends on the test.
            guarded = command.after == "||" or (command.after == "&&" and self.guarded)
            raw = list(command.words)
            self._follow(command, raw)
            first = raw[0].literal if raw else ""
            self.guarded = first in _TESTS or (guarded and command.after == "&&")
            if guarded and raw:
                self._open("&&", raw[0].line)
            around = self.arms
            words = list(self._assigned(raw, around))
            if guarded and raw:
                self._close()
            if words:
                used = {part.text for word in raw for part in word.parts if part.kind == "variable"}
                self.differing |= {name for name in used if any(name in statement.after for statement in self.open)}
                yield words, around
        while self.open:
            self._close()

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The branches around the present command, outermost first."""
        return tuple(statement.arm for statement in self.open)

    def _follow(self, command: Command, raw: list[RawWord]) -> None:
        """Follow branches, loops and functions; remove their words from the command."""
        innermost = self.open[-1].opening if self.open else ""
        if command.after == "(":
            self._open("(", 0)
        # The bracket behind a pattern of `case` closes nothing.
        elif command.after == ")" and innermost == "(":
            self._close()
        elif command.after == ";;" and innermost == "case":
            self._advance()
        while raw and raw[0].literal in _OPENING | _CLOSING | _BETWEEN:
            line, word = raw[0].line, raw.pop(0).literal
            if word in _OPENING:
                self._open(word, line)
            elif word in _CLOSING and self.open:
                self._close()
            elif word in ("else", "elif") and self.open:
                self._advance()
                self.complete |= {self.open[-1].arm.statement} if word == "else" else set()
            # The words of a `for` and a `case` are no command.
            if word in ("for", "case", "select"):
                raw.clear()

    def _open(self, opening: str, line: int) -> None:
        """Begin the first branch of a new statement."""
        if len(self.open) == DEEPEST:
            raise ScenarioError(f"{self.source}: nested too deeply; at most {DEEPEST} levels")
        self.statements += 1
        self.open.append(_Statement(opening, Arm(self.statements, line)))

    def _advance(self) -> None:
        """Begin the next branch of the innermost statement, with the values before the statement."""
        statement = self.open[-1]
        for name, before in statement.before.items():
            value, old = self.variables[name], before or _Variable(())
            if before is None:
                del self.variables[name]
            else:
                self.variables[name] = before
            # Of a scalar's branches, the first counts; its other branches change nothing.
            if statement.arm in value.arms:
                statement.after.setdefault(name, value)
                continue
            # An array keeps the words of all branches, any of which may be the one that runs.
            first = len(old.words) if value.words[: len(old.words)] == old.words else 0
            variable = statement.after.get(name, old)
            statement.after[name] = replace(variable, words=(*variable.words, *value.words[first:]))
        statement.before = {}
        statement.arm = replace(statement.arm, number=statement.arm.number + 1)

    def _close(self) -> None:
        """End the innermost statement; its variables get the values that they may have after it."""
        self._advance()
        for name, value in self.open.pop().after.items():
            self._set(name, value)

    def _set(self, name: str, value: _Variable) -> None:
        if self.open:
            self.open[-1].before.setdefault(name, self.variables.get(name))
        self.variables[name] = value

    def is_taken(self, arms: Iterable[Arm]) -> bool:
        """Return True if every branch is the first one of an `if` with an `else`."""
        return all(arm.number == 0 and arm.statement in self.complete for arm in arms)

    def _assigned(self, raw: Sequence[RawWord], arms: tuple[Arm, ...]) -> Iterator[Word]:
        """Note the assignments at the start of a command; yield its other words."""
        at_start = True
        for word in raw:
            if at_start and word.literal in _PREFIXES:
                continue
            match = _ASSIGNMENT.match(word.parts[0].text) if word.parts and word.parts[0].kind == "text" else None
            if at_start and match is not None and not word.parts[0].quoted:
                self._assign(word, match, arms)
                continue
            at_start = False
            yield from (replace(piece, arms=_joined(arms, piece.arms)) for piece in self._expanded(word))

    def _assign(self, word: RawWord, match: re.Match[str], arms: tuple[Arm, ...]) -> None:
        name, adds = match[1], bool(match[2])
        if name in self.outside:
            return
        if word.items is not None:
            value = [piece for item in word.items for piece in self._expanded(item)]
        else:
            first = WordPart("text", match[3], word.parts[0].quoted)
            value = [self._scalar(RawWord(word.line, (first, *word.parts[1:])))]
        value = [replace(piece, arms=_joined(arms, piece.arms)) for piece in value]
        variable = self.variables.get(name)
        if variable is not None and adds:
            self._set(name, replace(variable, words=(*variable.words, *value)))
        else:
            self._set(name, _Variable(tuple(value), arms if word.items is None else ()))

    def _scalar(self, word: RawWord) -> Word:
        """Return a word in which variables are replaced by their text, without splitting at blanks."""
        parts = [self._value(part) for part in word.parts]
        note = next((value.note for values in parts for value in values if value.note), "")
        arms = _joined(*(value.arms for values in parts for value in values))
        text = "".join(" ".join(value.text for value in values) for values in parts)
        return self._counted(Word(text, word.line, arms, note))

    def _value(self, part: WordPart) -> tuple[Word, ...]:
        """Return the words of a part: of a variable its value, or its name between marks."""
        if part.kind == "text":
            return (Word(part.text, 0),)
        if part.kind == "opaque":
            return (Word(f"{_LOST}{part.text}{_LOST}", 0),)
        variable = self.variables.get(part.text)
        # A scalar that a branch may change has a plain value only in this branch.
        if variable is not None and self.is_taken(set(variable.arms).difference(self.arms)):
            return variable.words
        if variable is None and part.default is not None:
            return (Word(part.default, 0, note=f"the default of ${{{part.text}}}"),)
        return (Word(f"{_LOST}${part.text}{_LOST}", 0),)

    def _counted(self, word: Word) -> Word:
        # Each variable may repeat another one: a few lines would stand for gigabytes.
        self.size += len(word.text) + 1
        self.count += 1
        if self.size > MOST_BYTES or self.count > MOST_VALUES:
            raise ScenarioError(
                f"{self.source}:{word.line}: more than 4 MiB, or {MOST_VALUES} words, after variables are replaced"
            )
        return word

    def _expanded(self, word: RawWord) -> Iterator[Word]:
        """Yield the words for a word: an array gives its items, and unquoted text is split at blanks."""
        current: Word | None = None
        for part in word.parts:
            splits = part.kind == "variable" and not part.quoted
            pieces = [piece for value in self._value(part) for piece in _split(value, splits)]
            for place, piece in enumerate(pieces):
                if place and current is not None:
                    yield from self._options_of(current)
                    current = None
                # The words of an array keep the lines of the array.
                before = current or Word("", 0)
                current = self._counted(
                    Word(
                        before.text + piece.text,
                        (before.line if before.text else piece.line) or word.line,
                        _joined(before.arms, piece.arms),
                        piece.note or before.note,
                    )
                )
        if current is not None:
            yield from self._options_of(current)

    def _options_of(self, word: Word) -> Iterator[Word]:
        """Yield a word; an option with its value in one word ("--split 99,1,0") gives two."""
        if _OPTION.match(word.text) and " " in word.text.strip():
            yield from (replace(word, text=piece) for piece in word.text.split())
        else:
            yield word


def _joined(*several: tuple[Arm, ...]) -> tuple[Arm, ...]:
    return tuple(dict.fromkeys(arm for arms in several for arm in arms))


def _split(word: Word, splits: bool) -> list[Word]:
    return [replace(word, text=piece) for piece in word.text.split()] if splits else [word]


def read(text: str, source: str, variables: Mapping[str, str] | None = None) -> list[list[Setting]]:
    r"""Return the options of each command of a script, and last the options in its variables.

    Parameters
    ----------
    text : str
        The script.
    source : str
        Name of the file.
    variables : mapping of str to str, optional
        Values from outside, which win over the script's own assignments.

    Raises
    ------
    ScenarioError
        The script has more than 4 MiB or 100,000 words after variables are replaced, or is nested too deeply.

    Examples
    --------
    >>> [(setting.key, setting.value) for setting in read("N=8\ntorchrun job.py --tp $N --bf16", "job.sh")[0]]
    [('--tp', '8'), ('--bf16', True)]
    """
    script = _Script(source, outside=frozenset(variables or ()))
    for name, value in (variables or {}).items():
        script.variables[name] = _Variable((Word(value, 0, note=f"--define {name}"),))
    # Requests to the batch system stand in comments.
    batch = [
        Setting(match[1], match[2], source, text.count("\n", 0, match.start()) + 1) for match in _SBATCH.finditer(text)
    ]
    commands = list[tuple[list[Word], tuple[Arm, ...]]]()
    for words, around in script.run(Scanner(text.replace(_LOST, ""), source).commands()):
        # A file of arguments has no command; its lines belong together.
        if commands and _OPTION.match(words[0].text) and _OPTION.match(commands[-1][0][0].text):
            commands[-1][0].extend(words)
        else:
            commands.append((words, around))
    # An option depends on a condition if its command does not.
    by_command = [options for words, around in commands if (options := list(_options(words, script, around)))]
    readings = [[*batch, *options] for options in by_command]
    # The readings compete: values of an earlier branch must not win over a command that has others.
    contents = [value.words for name, value in script.variables.items() if name not in script.differing]
    split = ([piece for word in words for piece in _split(word, splits=True)] for words in contents)
    readings.append([*batch, *(option for words in split for option in _options(words, script))])
    return readings


def _options(words: Sequence[Word], script: _Script, around: Sequence[Arm] = ()) -> Iterator[Setting]:
    """Yield the options among a command's words, each with the words after it as value."""
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not _OPTION.match(word.text) or _PROGRAM.match(word.text):
            continue
        name, equals, inline = word.text.partition("=")
        values, empty = [replace(word, text=inline)] if equals else [], list[str]()
        while not equals and at < len(words) and not _OPTION.match(words[at].text):
            if _PROGRAM.match(words[at].text):
                break
            # Further arguments of the script, or a variable for further options.
            if _ARGUMENTS.match(words[at].text) or (values and _VARIABLE.match(words[at].text)):
                empty.append(words[at].text.replace(_LOST, ""))
            else:
                values.append(words[at])
            at += 1
        arms = tuple(arm for arm in _joined(word.arms, *(value.arms for value in values)) if arm not in around)
        yield _setting(name, word, values, empty, script, arms)


def _setting(
    name: str, word: Word, values: Sequence[Word], empty: Sequence[str], script: _Script, arms: Sequence[Arm]
) -> Setting:
    notes = [value.note for value in values if value.note][:1]
    is_taken = script.is_taken(arms)
    if arms and is_taken:
        notes.append(f"the first branch of the condition in line {arms[-1].line}")
    if empty:
        notes.append(f"{', '.join(empty)} taken as empty")
    if any(_LOST in value.text for value in values):
        text = " ".join(value.text for value in values).replace(_LOST, "")
        names = dict.fromkeys(variable for value in values for variable in _NAMES.findall(value.text))
        defined = [f"--define {variable}=VALUE" for variable in names]
        remedy = f"give {' and '.join(defined)}" if defined else "write the value in its place"
        is_variable = len(values) == 1 and _VARIABLE.match(values[0].text) is not None
        value: object = Unresolved(text, remedy, is_variable)
    elif not values:
        value = True
    else:
        value = values[0].text if len(values) == 1 else tuple(value.text for value in values)
    return Setting(name.replace(_LOST, ""), value, script.source, word.line, not is_taken, ", ".join(notes))
