"""How is an array read safely from a user's .npy file? The header is checked before any number is read.

Nothing is unpickled. Memory use is bounded by the header and by the caller's limit.

References
----------
.. [1] NumPy, numpy.lib.format: the layout of .npy files; an .npz is a ZIP archive with .npy files.
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

# Most bytes before the numbers: magic, version and length, then the header. numpy.load itself refuses longer headers
# (max_header_size).
_LONGEST_HEADER: Final = 10_000 + npy.MAGIC_LEN + 4
_HEADERS: Final = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
# Bytes per read call.
_PIECE: Final = 2**20
_NO_ARRAY: Final = "is not readable as a numpy array; write the array with numpy.save"
# A header is a Python literal. Reading a damaged header raises any error of Python's parser.
_UNREADABLE: Final = (ValueError, TypeError, SyntaxError, TokenError, KeyError, RecursionError, MemoryError)
# Errors raised by zipfile for a damaged or encrypted archive.
_BROKEN: Final = (EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True, slots=True)
class StoredArray:
    """An array in a file; only the header has been read."""

    # `shape`, `dtype`: As stated in the header.
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran: bool  # whether the first index varies fastest
    _begun: bytes  # first bytes of the numbers, read together with the header
    _rest: IO[bytes]  # the remaining bytes

    @property
    def nbytes(self) -> int:
        """Size of the array's numbers, according to the header [B]."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def kind(self) -> str:
        """Kind of the array's numbers (dtype, or "Python objects"), for messages."""
        return "Python objects" if self.dtype.hasobject else str(self.dtype)

    def read(self) -> Array:
        """Return the array of a file: read every number, and at most one byte beyond.

        Raises
        ------
        ValueError
            The numbers are fewer or more than in the header, or Python objects.
        """
        if self.dtype.hasobject:
            raise ValueError("contains Python objects, which are not loaded")
        data = bytearray(self._begun)
        # In pieces: a header may promise more bytes than memory holds, and reading stops where the file ends. The extra
        # byte reveals a file that is too long.
        while len(data) <= self.nbytes and (piece := self._rest.read(min(_PIECE, self.nbytes + 1 - len(data)))):
            data += piece
        if len(data) != self.nbytes:
            raise ValueError(f"has {'fewer' if len(data) < self.nbytes else 'more'} bytes than its header says")
        return np.frombuffer(data, self.dtype).reshape(self.shape, order="F" if self.fortran else "C")


def read_header(stream: IO[bytes]) -> StoredArray:
    """Return the array of an .npy stream with only its header read [1]_.

    Raises
    ------
    ValueError
            The file has no readable header.
    """
    beginning = stream.read(_LONGEST_HEADER)
    head = BytesIO(beginning)
    try:
        with warnings.catch_warnings():
            # numpy warns about headers written by Python 2.
            warnings.simplefilter("ignore")
            shape, fortran, dtype = _HEADERS[npy.read_magic(head)](head)
    except _UNREADABLE as error:
        raise ValueError(_NO_ARRAY) from error
    if any(n < 0 for n in shape):
        raise ValueError(_NO_ARRAY)
    return StoredArray(shape, dtype, fortran, beginning[head.tell() :], stream)


@contextmanager
def open_array_file(name: str, base: Path | None, most: int) -> Iterator[IO[bytes]]:
    """Open an array file named in a scenario; within the `with` block, any error becomes a single-line ScenarioError.

    Parameters
    ----------
    name : str
        Path as the user wrote it.
    base : Path or None
        Folder for a relative path.
    most : int
        Most bytes allowed.

    Raises
    ------
    ScenarioError
        No such file, not a regular file, too large, or damaged; or a ValueError raised by the caller.
    """
    path = Path(name) if base is None else base / name
    try:
        if path.exists() and not path.is_file():
            # Reading a pipe waits for its writer, and a device may never end.
            raise ValueError("is not a file")
        with path.open("rb") as stream:
            size = path.stat().st_size
            if size > most:
                raise ValueError(f"has {size:,} bytes; must have at most {most:,} for the expected arrays")
            yield stream
    except FileNotFoundError:
        raise ScenarioError(f"{name}: there is no such file; a path starts from the scenario's folder") from None
    except OSError as error:
        raise ScenarioError(f"{name}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise ScenarioError(f"{name}: {error}") from None
    except _BROKEN as error:
        raise ScenarioError(f"{name}: is broken: {str(error) or 'the file ends too early'}") from None
