"""How is a shell script cut into commands and words? A scanner that evaluates nothing.

Comments, quotes, continued lines, arrays and here-documents are known; commands in $( ) and arithmetic become a part
that has no value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from simulator.basics.errors import ScenarioError
from simulator.basics.yaml_dialect import MOST_VALUES

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ASSIGNED: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(\+?)=\Z")
_HERE: Final = re.compile(r"<<-?[ \t]*(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\1")
_OPERATORS: Final = ("&&", "||", ";;&", ";;", ";&", ";", "&", "|", "(", ")")
_REDIRECTIONS: Final = re.compile(r"[0-9]?(?:>>|>&|>|<<<|<&|<|&>)")
_BLANKS: Final = " \t"


@dataclass(frozen=True, slots=True)
class WordPart:
    """A piece of a word."""

    # Written text; a variable's name, with `default` for ${NAME:-default}; a piece that is not evaluated.
    kind: Literal["text", "variable", "opaque"]
    text: str
    quoted: bool = False
    default: str | None = None


@dataclass(frozen=True, slots=True)
class RawWord:
    """A word before variables are replaced; `items` are the words of an array assignment NAME=( ... )."""

    line: int
    parts: tuple[WordPart, ...]
    items: tuple[RawWord, ...] | None = None

    @property
    def literal(self) -> str:
        """The word's text, if it has no variables; otherwise an empty text."""
        return "".join(part.text for part in self.parts) if all(part.kind == "text" for part in self.parts) else ""


@dataclass(frozen=True, slots=True)
class Command:
    """The words of a command, and the operator before it ("" at the start of a line)."""

    after: str
    words: tuple[RawWord, ...]


@dataclass(slots=True)
class Scanner:
    """Scanner of a script's text; `source` names the text in faults. ScenarioError for more than 100,000 words."""

    text: str
    source: str = "<text>"
    at: int = 0
    line: int = 1
    count: int = 0
    here: list[str] = field(default_factory=list)

    def commands(self) -> Iterator[Command]:
        """Yield the commands of the script."""
        after, words = "", list[RawWord]()
        while self.at < len(self.text):
            self._skip_blanks()
            operator = self._operator()
            if operator is None:
                if self.at < len(self.text):
                    words.append(self._word())
                continue
            if words or operator in ("(", ")"):
                yield Command(after, tuple(words))
            words = []
            after = operator if operator in ("&&", "||", "|") else ""
            if operator in ("(", ")"):
                yield Command(operator, ())
            # Each of these ends a branch of `case`.
            if operator in (";;", ";;&", ";&"):
                yield Command(";;", ())
        if words:
            yield Command(after, tuple(words))

    def _skip_blanks(self) -> None:
        while self.at < len(self.text):
            if self.text[self.at] in _BLANKS:
                self.at += 1
            elif self.text.startswith("\\\n", self.at):
                self.at, self.line = self.at + 2, self.line + 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            elif self._here_document() or not self._redirection():
                return

    def _here_document(self) -> bool:
        match = _HERE.match(self.text, self.at)
        if match:
            self.here.append(match[2])
            self.at = match.end()
        return False

    def _redirection(self) -> bool:
        match = _REDIRECTIONS.match(self.text, self.at)
        if match is None:
            return False
        self.at = match.end()
        while self.at < len(self.text) and self.text[self.at] in _BLANKS:
            self.at += 1
        # The target of a redirection is no word of the command.
        if self.at < len(self.text) and self.text[self.at] not in "\n;&|()":
            self._word()
        return True

    def _operator(self) -> str | None:
        """Return the operator or line end here, and step over it; None at a word."""
        if self.text.startswith("\n", self.at):
            self.at, self.line = self.at + 1, self.line + 1
            self._skip_here_documents()
            return "\n"
        for operator in _OPERATORS:
            if self.text.startswith(operator, self.at):
                self.at += len(operator)
                return operator
        return None

    def _skip_here_documents(self) -> None:
        for word in self.here:
            while self.at < len(self.text):
                end = self.text.find("\n", self.at)
                end = len(self.text) if end < 0 else end
                row, self.at, self.line = self.text[self.at : end], end + 1, self.line + 1
                if row.strip() == word:
                    break
        self.here = []

    def _word(self) -> RawWord:
        self.count += 1
        if self.count > MOST_VALUES:
            raise ScenarioError(f"{self.source}:{self.line}: more than {MOST_VALUES} words; is it the right file?")
        line, parts = self.line, list[WordPart]()
        start = self.at
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\n;&|)<>":
                break
            if char == "(":
                match = _ASSIGNED.match(self.text[start : self.at])
                if match is None or len(parts) != 1:
                    break
                self.at += 1
                return RawWord(line, tuple(parts), tuple(self._items()))
            if char == "\\":
                self._escape(parts)
            elif char == "'":
                self._single(parts)
            elif char == '"':
                self._double(parts)
            elif char in "$`":
                self._variable(parts, quoted=False)
            else:
                self._plain(parts)
        # A character that starts nothing known is stepped over, so that the scan always advances.
        if self.at == start:
            self.at += 1
        return RawWord(line, tuple(parts))

    def _items(self) -> Iterator[RawWord]:
        """Yield the words of an array, up to its closing bracket."""
        while self.at < len(self.text):
            self._skip_blanks()
            if self.at >= len(self.text):
                return
            char = self.text[self.at]
            if char == ")":
                self.at += 1
                return
            if char == "\n":
                self.at, self.line = self.at + 1, self.line + 1
            elif char in ";&|(":
                self.at += 1
            else:
                yield self._word()

    def _plain(self, parts: list[WordPart]) -> None:
        end = self.at
        while end < len(self.text) and self.text[end] not in " \t\n;&|()<>\\'\"$`":
            end += 1
        parts.append(WordPart("text", self.text[self.at : end]))
        self.at = end

    def _escape(self, parts: list[WordPart]) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if following == "\n":
            self.line += 1
        elif following:
            parts.append(WordPart("text", following, quoted=True))
        self.at += 2

    def _single(self, parts: list[WordPart]) -> None:
        end = self.text.find("'", self.at + 1)
        end = len(self.text) if end < 0 else end
        inner = self.text[self.at + 1 : end]
        parts.append(WordPart("text", inner, quoted=True))
        self.line += inner.count("\n")
        self.at = end + 1

    def _double(self, parts: list[WordPart]) -> None:
        self.at += 1
        pieces = list[str]()
        while self.at < len(self.text) and self.text[self.at] != '"':
            char = self.text[self.at]
            if char in "$`":
                parts.append(WordPart("text", "".join(pieces), quoted=True))
                pieces = []
                self._variable(parts, quoted=True)
                continue
            if char == "\\":
                following = self.text[self.at + 1 : self.at + 2]
                # A continued line inside quotation marks joins words without a blank.
                pieces.append("" if following == "\n" else following)
                self.line += following == "\n"
                self.at += 2
                continue
            self.line += char == "\n"
            pieces.append(char)
            self.at += 1
        self.at += 1
        parts.append(WordPart("text", "".join(pieces), quoted=True))

    def _variable(self, parts: list[WordPart], *, quoted: bool) -> None:
        """Read a variable, or a command or arithmetic whose value nobody computes."""
        start = self.at
        following = self.text[self.at + 1 : self.at + 2]
        name = _NAME.match(self.text, self.at + 1)
        if self.text[self.at] == "`":
            end = self.text.find("`", self.at + 1)
            self.at = len(self.text) if end < 0 else end + 1
        elif following == "(":
            self._balanced("(", ")")
        elif following == "{":
            self._balanced("{", "}")
            parts.append(_braced(self.text[start : self.at], quoted=quoted))
            self.line += self.text.count("\n", start, self.at)
            return
        elif name is not None:
            self.at = name.end()
            parts.append(WordPart("variable", name[0], quoted))
            return
        elif following and following in "0123456789":
            self.at += 2
            parts.append(WordPart("variable", following, quoted))
            return
        else:
            # $@, $? or a single dollar.
            self.at += 2 if following and following in "@*#?$!-" else 1
        self.line += self.text.count("\n", start, self.at)
        parts.append(WordPart("opaque", self.text[start : self.at], quoted))

    def _balanced(self, opening: str, closing: str) -> None:
        """Step behind the bracket that closes the one after the dollar."""
        depth, self.at = 0, self.at + 1
        while self.at < len(self.text):
            char = self.text[self.at]
            self.at += 1
            depth += (char == opening) - (char == closing)
            if depth == 0:
                return


# ${NAME}, ${NAME[@]}, ${NAME:-default}; a default with a variable has no plain value.
_BRACED: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*|[0-9])(\[[@*]\])?(?::?-([^${}`]*))?\}\Z", re.DOTALL)


def _braced(text: str, *, quoted: bool) -> WordPart:
    match = _BRACED.match(text)
    if match is None:
        return WordPart("opaque", text, quoted)
    default = match[3]
    return WordPart("variable", match[1], quoted, None if default is None else default.strip("\"'"))
