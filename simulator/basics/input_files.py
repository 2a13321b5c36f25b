"""Reads a user's file as bytes, text or JSON, and trusts nothing in it.

Rule: a file larger than the caller's limit is not read, and whatever is wrong with a file is a ScenarioError that names
it. Nothing here knows what a file is for.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Final

from simulator.basics.errors import ScenarioError
from simulator.basics.plain_data import DEEPEST, is_deep
from simulator.basics.units import format_bytes

# What people write or a program writes for them (scenarios, topologies, graphs, models): some 150,000 lines.
MOST_TEXT: Final = 2**24
# What programs write in bulk: measured sweeps, and reports, of which 10,000 points take some 100 MB.
MOST_DATA: Final = 2**28
# Beyond it a whole number has no float any more (the largest is 1.8e308), and Python itself may refuse to read it.
MOST_DIGITS: Final = sys.float_info.max_10_exp
# JSON may write a character in two halves; one alone is nothing that a file can hold.
_HALF: Final = re.compile(r"\\u[dD][89a-fA-F]")


def read_bytes(path: Path | str, *, source: str | None = None, most: int = MOST_TEXT) -> bytes:
    """Read a file of at most `most` bytes.

    Parameters
    ----------
    path : path
    source : str, optional
        How it is called in a fault; its path otherwise.
    most : int
        [B]

    Raises
    ------
    ScenarioError
        It cannot be read, or is larger.
    """
    name = source or str(path)
    try:
        with Path(path).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            # A device or a pipe has no size, and may never end.
            content = b"" if size > most else file.read(most + 1)
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if max(size, len(content)) > most:
        has = f"{size} B" if size > most else "more"
        raise ScenarioError(f"{name}: has {has}; must be at most {format_bytes(most)}; is it the right file?")
    return content


def read_text(path: Path | str, *, source: str | None = None, most: int = MOST_TEXT) -> str:
    r"""Read a file of text in UTF-8, without a byte order mark, lines ending in "\n" alone.

    Raises
    ------
    ScenarioError
        As `read_bytes`; or no such text, with the first byte that is wrong.
    """
    content = read_bytes(path, source=source, most=most)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad = f"byte {error.start} is {error.object[error.start]:#x}"
        raise ScenarioError(f"{source or path}: not a UTF-8 text file: {bad}") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_json(path: Path | str, *, source: str | None = None, most: int = MOST_TEXT) -> Any:
    """Read a JSON document.

    Raises
    ------
    ScenarioError
        As `read_text` and `parse_json`.
    """
    return parse_json(read_text(path, source=source, most=most), source or str(path))


def parse_json(text: str, source: str = "<text>") -> Any:
    """Read the text of a JSON document.

    Raises
    ------
    ScenarioError
        Not JSON, with line and column; numbers of more than 308 digits; nested more than 40 deep.
    """
    try:
        data = json.loads(text, parse_int=_whole)
    except json.JSONDecodeError as error:
        place = f"{source}:{error.lineno}:{error.colno}"
        raise ScenarioError(f"{place}: not JSON: {error.msg[:1].lower()}{error.msg[1:]}") from error
    except ValueError as error:
        raise ScenarioError(f"{source}: {error}") from error
    except RecursionError:
        raise _too_deep(source) from None
    if is_deep(data):
        raise _too_deep(source)
    if _HALF.search(text):
        try:
            json.dumps(data, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start].encode("unicode_escape").decode()
            raise ScenarioError(f"{source}: holds {half}, half of a character; remove it") from None
    return data


def _too_deep(source: str) -> ScenarioError:
    return ScenarioError(f"{source}: nested too deeply; at most {DEEPEST} lists and mappings inside each other")


def _whole(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"got a number of {len(digits)} digits; must have at most {MOST_DIGITS}")
    return int(digits)
