"""What a model learns, where the user brings it: a text, an array in a file, or numbers written out.

Rule: a text's tokens are its characters, numbered in the order of their code points; an array's are its numbers.
"""

from __future__ import annotations

from pathlib import Path

from simulator.errors import ScenarioError


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
            return _text(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ScenarioError(f"{given}: there is no such file; a path starts from the scenario's folder") from None
    except UnicodeDecodeError:
        raise ScenarioError(f"{given}: is no text in UTF-8; an array's name ends in .npy") from None
    except OSError as error:
        raise ScenarioError(f"{given}: cannot be read: {error.strerror}") from None
    return _array(given, path)


def _text(text: str) -> tuple[int, ...]:
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    return tuple(numbers[character] for character in text)


def _array(given: str, path: Path) -> tuple[int, ...]:
    """Row after row, where it has several."""
    import numpy as np

    try:
        found = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise ScenarioError(f"{given}: there is no such file; a path starts from the scenario's folder") from None
    except (OSError, ValueError, EOFError):
        raise ScenarioError(f"{given}: is no array that numpy can read; write it with numpy.save") from None
    if not np.issubdtype(found.dtype, np.integer):
        raise ScenarioError(f"{given}: holds {found.dtype}; must be whole numbers from 0 on")
    if found.size and found.min() < 0:
        raise ScenarioError(f"{given}: holds {found.min()}; must be whole numbers from 0 on")
    return tuple(found.ravel().tolist())
