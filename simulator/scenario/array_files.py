"""How an array is read safely from a user's .npy file: the header is checked before any number is read.

Rule: nothing is unpickled, and no more memory is taken than the header says and the caller allows.

References
----------
.. [1] NumPy, numpy.lib.format: the layout of .npy files; an .npz is a ZIP archive of them.
"""

from __future__ import annotations

import math
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, Final

import numpy as np
from numpy.lib import format as npy

from simulator.basics.arrays import Array
from simulator.basics.errors import ScenarioError

# numpy itself reads no longer headers (max_header_size of numpy.load); magic, version and length stand before them.
_LONGEST_HEADER: Final = 10_000 + npy.MAGIC_LEN + 4
_HEADERS: Final = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# Read at once [B].
_PIECE: Final = 2**20
_NO_ARRAY: Final = "is no array that numpy can read; write it with numpy.save"
# A header is a Python literal, so a damaged one raises whatever Python's own parser raises.
_UNREADABLE: Final = (ValueError, TypeError, SyntaxError, TokenError, KeyError, RecursionError, MemoryError)
# What zipfile raises for a damaged or encrypted archive.
_BROKEN: Final = (EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in a file, of which only the header has been read.

    Attributes
    ----------
    shape : tuple of int
    dtype : dtype
    fortran : bool
        Whether the first index runs fastest.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool
    _begun: bytes
    _rest: IO[bytes]

    @property
    def nbytes(self) -> int:
        """Of all numbers, as the header says [B]."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def kind(self) -> str:
        """What its numbers are, in a word or two."""
        return "Python objects" if self.dtype.hasobject else str(self.dtype)

    def read(self) -> Array:
        """Read all numbers, and no byte more than one.

        Raises
        ------
        ValueError
            There are fewer or more than the header says, or they are Python objects.
        """
        if self.dtype.hasobject:
            raise ValueError("holds Python objects, which are not unpickled")
        data = bytearray(self._begun)
        # In pieces: a header may promise more than any memory holds, and a file is asked for no more than it has.
        while len(data) <= self.nbytes and (piece := self._rest.read(min(_PIECE, self.nbytes + 1 - len(data)))):
            data += piece
        if len(data) != self.nbytes:
            raise ValueError(f"has {'fewer' if len(data) < self.nbytes else 'more'} bytes than its header says")
        return np.frombuffer(data, self.dtype).reshape(self.shape, order="F" if self.fortran else "C")


def read_header(stream: IO[bytes]) -> StoredArray:
    """Read the header of an array [1]_.

    Raises
    ------
    ValueError
        There is none.
    """
    beginning = stream.read(_LONGEST_HEADER)
    head = BytesIO(beginning)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote
            shape, fortran, dtype = _HEADERS[npy.read_magic(head)](head)
    except _UNREADABLE as error:
        raise ValueError(_NO_ARRAY) from error
    if any(n < 0 for n in shape):
        raise ValueError(_NO_ARRAY)
    return StoredArray(shape, dtype, fortran, beginning[head.tell() :], stream)


@contextmanager
def open_array_file(name: str, base: Path | None, most: int) -> Iterator[IO[bytes]]:
    """Open a file that a scenario names; whatever goes wrong with it becomes one line.

    Parameters
    ----------
    name : str
        The path as the user wrote it.
    base : Path or None
        Folder from which a relative path is read.
    most : int
        Bytes that the file may have [B].

    Raises
    ------
    ScenarioError
        No such file, no file at all, too large a one, or the caller raises ValueError or finds it broken.
    """
    path = Path(name) if base is None else base / name
    try:
        if path.exists() and not path.is_file():
            raise ValueError("is no file")  # reading a pipe waits for its writer, and a device may never end
        with path.open("rb") as stream:
            size = path.stat().st_size
            if size > most:
                raise ValueError(f"has {size:,} bytes; what is to be read from it takes {most:,} at most")
            yield stream
    except FileNotFoundError:
        raise ScenarioError(f"{name}: there is no such file; a path starts from the scenario's folder") from None
    except OSError as error:
        raise ScenarioError(f"{name}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ScenarioError(f"{name}: {error}") from None
    except _BROKEN as error:
        raise ScenarioError(f"{name}: is broken: {str(error) or 'it ends too early'}") from None
