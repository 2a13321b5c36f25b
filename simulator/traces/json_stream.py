"""Reads a large JSON file of trace events piece by piece, plain or gzipped, within fixed limits.

The file is an object with a list of events (`traceEvents`), or the list alone. Only one event is in memory at a time;
the other entries of the object are small, and read whole.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final

from simulator.basics.errors import ScenarioError, one_line
from simulator.basics.plain_data import DEEPEST, is_deep
from simulator.basics.units import format_bytes

# Limits: text of a file after decompression, and of a single event or entry [characters].
MOST_TEXT: Final = 2**32
_MOST_VALUE: Final = 2**24
_PIECE: Final = 2**20
# A value cut at the end of the text is faulty at most this many characters before the end, unless a string is cut.
_LOOKAHEAD: Final = 16
_GZIP: Final = b"\x1f\x8b"
# Characters that a gzipped file may have for each of its bytes, and for the smallest file: traces have about 20.
_MOST_UNPACKED: Final = 300
_LEAST_UNPACKED: Final = 2**26
_SPACE: Final = re.compile(r"[ \t\r\n]*")
_DECODER: Final = json.JSONDecoder()


class JsonStream:
    """Reader of a JSON file with a long list of events, a single event at a time.

    Parameters
    ----------
    path : path
        The file; gzip is recognised by its first bytes.
    keys : sequence of str
        Names of entries beside the events that are kept.
    most_text : int
        Maximum characters, after decompression.

    Attributes
    ----------
    header : dict
        The kept entries; complete when the events have been read.
    """

    def __init__(self, path: Path | str, keys: Sequence[str] = (), most_text: int = MOST_TEXT) -> None:
        self.source = str(path)
        self.header: dict[str, Any] = {}
        self._kept = frozenset(keys)
        self._most_text = most_text
        self._text, self._at, self._before = "", 0, 0
        self._ended = False
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._file: IO[bytes] | gzip.GzipFile

    def events(self, key: str = "traceEvents") -> Iterator[Any]:
        """Yield each event of the list under `key`, or of the outermost list.

        Raises
        ------
        ScenarioError
            The file cannot be read, is not such JSON, or exceeds a limit.
        """
        try:
            with self._opened() as self._file:
                yield from self._document(key)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or error
            raise ScenarioError(one_line(f"{self.source}: cannot be read: {reason}")) from error

    def _opened(self) -> IO[bytes] | gzip.GzipFile:
        path = Path(self.source)
        with path.open("rb") as file:
            zipped = file.read(2) == _GZIP
        if not zipped:
            return path.open("rb")
        self._most_text = min(self._most_text, _LEAST_UNPACKED + _MOST_UNPACKED * path.stat().st_size)
        return gzip.open(path)

    def _document(self, key: str) -> Iterator[Any]:
        first = self._next()
        if first == "[":
            yield from self._list()
        elif first == "{":
            has_list = False
            for name in self._names():
                if name == key:
                    has_list = True
                    self._expect("[")
                    yield from self._list()
                else:
                    value = self._value()
                    # Others may be many, and are dropped at once.
                    if name in self._kept:
                        self.header[name] = value
            if not has_list:
                raise self._fault(f"has no list {key}; give a trace that PyTorch's profiler wrote")
        else:
            raise self._fault(f"not JSON with trace events: begins with {first!r}")
        if self._next(optional=True):
            raise self._fault("not JSON: text follows the end")

    def _names(self) -> Iterator[str]:
        """Yield the names of the open object; the caller reads the value after each."""
        self._at += 1
        if self._next() == "}":
            self._at += 1
            return
        while True:
            name = self._value()
            if not isinstance(name, str):
                raise self._fault(f"not JSON: got {str(name)[:40]!r} as a name")
            self._expect(":")
            self._at += 1
            yield name
            if not self._goes_on("}"):
                return

    def _list(self) -> Iterator[Any]:
        """Yield the values of the list that begins here."""
        self._at += 1
        if self._next() == "]":
            self._at += 1
            return
        while True:
            yield self._value()
            if not self._goes_on("]"):
                return

    def _goes_on(self, end: str) -> bool:
        """Return True after a comma, and False after the character `end`."""
        character = self._next()
        if character not in (",", end):
            raise self._fault(f"not JSON: got {character!r}; must be ',' or '{end}'")
        self._at += 1
        return character == ","

    def _expect(self, mark: str) -> None:
        character = self._next()
        if character != mark:
            raise self._fault(f"not JSON with trace events: got {character!r}; must be '{mark}'")

    def _next(self, *, optional: bool = False) -> str:
        """Return the next character that is no white space, without consuming it; empty at the end if `optional`."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                if optional:
                    return ""
                raise self._fault("ends in the middle; was the trace written completely?")

    def _value(self) -> Any:
        """Return the value that begins at the next character."""
        self._next()
        length = _PIECE
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except RecursionError:
                raise self._too_deep() from None
            except json.JSONDecodeError as error:
                # The value may go on behind the text read so far: twice as much each time, so that the work stays
                # linear.
                unfinished = error.pos > len(self._text) - _LOOKAHEAD or error.msg.startswith("Unterminated")
                if self._ended or not unfinished:
                    raise self._fault(f"not JSON: {error.msg[:1].lower()}{error.msg[1:]}", error.pos) from error
                if len(self._text) - self._at > _MOST_VALUE:
                    raise self._fault(f"has a value of more than {_MOST_VALUE // 2**20} Mi characters") from None
            except ValueError as error:
                # Numbers with thousands of digits.
                raise self._fault(f"not JSON: {error}") from error
            else:
                # A number at the end of the text may have further digits.
                if end < len(self._text) or self._ended:
                    # Few values have enough brackets to be worth the check.
                    brackets = self._text.count("[", self._at, end) + self._text.count("{", self._at, end)
                    if brackets > DEEPEST and is_deep(value):
                        raise self._too_deep()
                    self._at = end
                    return value
            while len(self._text) - self._at < length and self._more():
                pass
            length *= 2

    def _more(self) -> bool:
        """Append a piece of the file to the text, and return True; return False at the end of the file."""
        if self._ended:
            return False
        piece = self._file.read(_PIECE)
        self._ended = not piece
        self._before += self._at
        self._text = self._text[self._at :] + self._decode.decode(piece, self._ended)
        self._at = 0
        if self._before + len(self._text) > self._most_text:
            raise self._fault(f"has more than {format_bytes(self._most_text)} of text; profile fewer steps")
        return True

    def _too_deep(self) -> ScenarioError:
        return self._fault(f"nested too deeply; at most {DEEPEST} nested lists and mappings")

    def _fault(self, message: str, place: int | None = None) -> ScenarioError:
        """Return a fault at a character of the text, by default the next one."""
        where = self._before + (self._at if place is None else place) + 1
        return ScenarioError(one_line(f"{self.source}: character {where}: {message}"))


def whole_number(value: Any, least: int = 0, most: int = 2**53) -> int | None:
    """Return a value of a JSON file as a whole number within limits; None for any other value.

    >>> whole_number("8"), whole_number(8.0), whole_number(True), whole_number(-1)
    (8, None, None, None)
    """
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        return None
    return value
