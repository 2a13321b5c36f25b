"""What a model learns, where the user brings it: a text, an array in a file, or numbers written out.

Rule: a text's tokens are its characters, numbered in the order of their code points; an array's are its numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simulator.basics.input_files import read_text
from simulator.errors import ScenarioError

# Of a file [B]: so many characters take half a gigabyte as numbers, and a model that numpy trains sees a fraction of
# them.
_MOST: Final = 2**26


def read_tokens(given: str | tuple[int, ...], base: Path | None) -> tuple[int, ...]:
    """Token numbers, one text after the other.

    Parameters
    ----------
    given : str or tuple of int
        A path, or the numbers.
    base : Path or None
        Folder from which a relative path is read.

    Raises
    ------
    ScenarioError
        No such file, or none that can be read.

    Examples
    --------
    >>> read_tokens((3, 1, 2), None)
    (3, 1, 2)
    """
    if not isinstance(given, str):
        return given
    path = Path(given) if base is None else base / given
    try:
        if path.suffix != ".npy":
            return _text(read_text(path, source=given, most=_MOST))
        return _array(given, base)
    except ScenarioError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise ScenarioError(f"{given}: there is no such file; a path starts from the scenario's folder") from None
        if isinstance(error.__cause__, UnicodeDecodeError):
            raise ScenarioError(f"{given}: is no text in UTF-8; an array's name ends in .npy") from None
        raise


def _text(text: str) -> tuple[int, ...]:
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    return tuple(numbers[character] for character in text)


def _array(given: str, base: Path | None) -> tuple[int, ...]:
    """Row after row, where it has several."""
    from simulator.scenario.array_files import opened, stored

    with opened(given, base, _MOST) as stream:
        there = stored(stream)
        if there.dtype.kind not in "iu":
            raise ValueError(f"holds {there.kind}; must be whole numbers from 0 on")
        found = there.read()
        if found.size and found.min() < 0:
            raise ValueError(f"holds {found.min()}; must be whole numbers from 0 on")
        return tuple(found.ravel().tolist())
