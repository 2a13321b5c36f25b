"""Reads a user's file (bytes, text or JSON) without trusting the content.

A file above the caller's limit is not read. Every fault is a ScenarioError that names the file. The module does not
know a file's purpose.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

from simulator.basics.errors import ScenarioError, one_line
from simulator.basics.plain_data import DEEPEST, is_deep
from simulator.basics.units import format_bytes

# Limit for files written by people, or by programs on their behalf (scenarios, topologies, graphs, models): about
# 150,000 lines.
MOST_TEXT: Final = 2**24
# Limit for bulk files written by programs: measured sweeps, and reports (10,000 points take about 100 MB).
MOST_DATA: Final = 2**28
# With more digits, a whole number exceeds every float (the largest is 1.8e308), and Python may refuse to read it.
MOST_DIGITS: Final = sys.float_info.max_10_exp
# JSON may write a character as two halves (surrogates); a single half cannot be written to a file.
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")


def read_bytes(path: Path | str, *, source: str | None = None, most: int = MOST_TEXT) -> bytes:
    """Return the content of a file with at most `most` bytes.

    Parameters
    ----------
    path : path
        Path of the file.
    source : str, optional
        Name of the file in faults; by default its path.
    most : int
        Maximum size [B].

    Raises
    ------
    ScenarioError
        The file cannot be read, or is larger.
    """
    name = source or str(path)
    try:
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # A device or a pipe has no size, and may never end: read at most one byte beyond the limit.
            content = b"" if size > most else file.read(most + 1)
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if max(size, len(content)) > most:
        has = f"{size} B" if size > most else "more"
        raise ScenarioError(f"{name}: has {has}; must be at most {format_bytes(most)}; is it the right file?")
    return content


def read_text(path: Path | str, *, source: str | None = None, most: int = MOST_TEXT) -> str:
    r"""Return the text of a UTF-8 file, without a byte order mark, with "\n" as the only line end.

    Raises
    ------
    ScenarioError
        As for `read_bytes`; or invalid UTF-8, with the first invalid byte.
    """
    content = read_bytes(path, source=source, most=most)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad = f"byte {error.start} is {error.object[error.start]:#x}"
        raise ScenarioError(f"{source or path}: not a UTF-8 text file: {bad}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path | str, *, source: str | None = None, most: int = MOST_TEXT) -> Any:
    """Return the data in a JSON file with at most `most` bytes.

    Raises
    ------
    ScenarioError
        As for `read_text` and `parse_json`.
    """
    return parse_json(read_text(path, source=source, most=most), source or str(path))


def parse_json(text: str, source: str = "<text>") -> Any:
    """Return the data in a JSON text; `source` names the text in faults.

    Raises
    ------
    ScenarioError
        Invalid JSON, with line and column; a duplicate key; numbers with more than 308 digits; nesting deeper than 40
        levels.

    Examples
    --------
    >>> parse_json('{"ranks": 4, "ranks": 8}', "job.json")
    Traceback (most recent call last):
        ...
    simulator.basics.errors.ScenarioError: job.json: ranks: occurs 2 times in an object, with 4 and 8; keep one
    """
    try:
        data = json.loads(text, parse_int=_parse_int, object_pairs_hook=_mapping)
    except json.JSONDecodeError as error:
        place = f"{source}:{error.lineno}:{error.colno}"
        raise ScenarioError(f"{place}: not JSON: {error.msg[:1].lower()}{error.msg[1:]}") from error
    except ValueError as error:
        raise ScenarioError(f"{source}: {error}") from error
    except RecursionError:
        raise _too_deep(source) from None
    if is_deep(data):
        raise _too_deep(source)
    # Checked only if the text contains a surrogate escape, because encoding large data takes time.
    if _HALF.search(text):
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start].encode("unicode_escape").decode()
            raise ScenarioError(f"{source}: contains {half}, half of a character; remove the half character") from None
    return data


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict; ValueError if a key occurs twice."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in mapping if names.count(key) > 1)
        values = " and ".join(json.dumps(value) for key, value in pairs if key == twice)
        raise ValueError(one_line(f"{twice}: occurs {names.count(twice)} times in an object, with {values}; keep one"))
    return mapping


def _too_deep(source: str) -> ScenarioError:
    return ScenarioError(f"{source}: nested too deeply; at most {DEEPEST} nested lists and mappings")


def _parse_int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"got a number of {len(digits)} digits; must have at most {MOST_DIGITS}")
    return int(digits)
