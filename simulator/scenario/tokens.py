"""Which tokens does a model learn from? The characters of a text, an array in a file, or numbers in the scenario.

A text's tokens are its characters, numbered by code point; an array's tokens are its numbers.

    >>> _text("abca")
    (0, 1, 2, 0)
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from simulator.basics.errors import ScenarioError
from simulator.basics.input_files import read_text

# Largest file [B]. This many characters take half a gigabyte as numbers, and models trained with numpy see only a
# fraction of them.
_MOST: Final = 2**26


def read_tokens(source: str | tuple[int, ...], base: Path | None) -> tuple[int, ...]:
    """Return the training tokens of a file (text or array), or the given token numbers.

    Parameters
    ----------
    source : str or tuple of int
        A path, or the numbers.
    base : Path or None
        Folder for a relative path.

    Raises
    ------
    ScenarioError
        Missing or unreadable file.

    Examples
    --------
    >>> read_tokens((3, 1, 2), None)
    (3, 1, 2)
    """
    if not isinstance(source, str):
        return source
    path = Path(source) if base is None else base / source
    try:
        if path.suffix != ".npy":
            return _text(read_text(path, source=source, most=_MOST))
        return _array(source, base)
    except ScenarioError as error:
        # `read_text` reports the cause in general words; name the scenario's folder, and the suffix for arrays.
        if isinstance(error.__cause__, FileNotFoundError):
            raise ScenarioError(f"{source}: there is no such file; a path starts from the scenario's folder") from None
        if isinstance(error.__cause__, UnicodeDecodeError):
            raise ScenarioError(
                f"{source}: not a UTF-8 text file; the name of an array file must end in .npy"
            ) from None
        raise


def _text(text: str) -> tuple[int, ...]:
    # Sorted, therefore the numbers do not depend on the order of the text.
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    return tuple(numbers[character] for character in text)


def _array(path: str, base: Path | None) -> tuple[int, ...]:
    """Return the whole numbers of an array file as token numbers; several rows are concatenated."""
    from simulator.scenario.array_files import open_array_file, read_header

    with open_array_file(path, base, _MOST) as stream:
        array = read_header(stream)
        if array.dtype.kind not in "iu":
            raise ValueError(f"holds {array.kind}; must be whole numbers of at least 0")
        numbers = array.read()
        if numbers.size and numbers.min() < 0:
            raise ValueError(f"holds {numbers.min()}; must be whole numbers of at least 0")
        return tuple(numbers.ravel().tolist())
