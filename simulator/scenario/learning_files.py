"""Reads a user's initial parameters (.npz) and batches of tokens (.npy) for real training.

Names and shapes are PyTorch's (see `simulator.numerics.gpt`). A file holds every parameter, and nothing else.

    parameters.npz    wte.weight.npy, wpe.weight.npy, ...    a member for each parameter
    batches.npy       int array, shape (steps, sequences, seq_len + 1)
"""

from __future__ import annotations

import math
import zipfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.gpt import Gpt
from simulator.scenario.array_files import StoredArray, open_array_file, read_header

if TYPE_CHECKING:
    from simulator.model.shape import Transformer

Shapes = Mapping[str, tuple[int, ...]]

_FLOATS: Final = ("float16", "float32", "float64")
# Bytes per array besides its numbers [B]: numpy's header (128 B) and ZIP's headers, with room for longer ones.
_BESIDE: Final = 1024
# Methods written by numpy.savez and numpy.savez_compressed. Other methods need as much memory as a file demands.
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# Largest file with batches [B]. Batches are held in memory as a whole; 1 GiB is a quarter of a small machine's memory.
_MOST_BATCHES: Final = 2**30


def parameter_shapes(model: Transformer) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a GPT-2's parameters by PyTorch name, in forward order."""
    sizes = (model.vocab_size, model.hidden_size, model.num_heads, model.max_positions, model.num_layers)
    # Shapes do not depend on the dtype.
    gpt = Gpt(*sizes, arithmetic=arithmetic("float32"), tied=model.tied)
    return {name: shape for unit in gpt.units for name, shape in gpt.shapes(unit).items()}


def read_initial(path: str, base: Path | None, shapes: Shapes) -> dict[str, Array]:
    """Read parameters from an .npz archive, in their stored dtypes.

    Parameters
    ----------
    path : str
        Path of the archive.
    base : Path or None
        Folder for a relative path.
    shapes : mapping of name to shape
        Required names, each with its shape.

    Returns
    -------
    dict of name to array
        In the order of `shapes`.

    Raises
    ------
    ScenarioError
        Missing file, missing or unknown names, wrong shapes, or values other than finite floats.
    """
    # At most float64, 8 bytes per number. Larger files are refused before they are read.
    most = sum(8 * math.prod(shape) + _BESIDE for shape in shapes.values()) + _BESIDE
    with open_array_file(path, base, most) as stream:
        if not zipfile.is_zipfile(stream):
            raise ValueError("is not an .npz archive; write the file with numpy.savez")
        with zipfile.ZipFile(stream) as archive:
            _refuse_other_members(archive, shapes)
            parameters = {}
            for name, shape in shapes.items():
                with archive.open(f"{name}.npy") as member:
                    parameters[name] = _parameter(name, shape, member)
            return parameters


def _refuse_other_members(archive: zipfile.ZipFile, shapes: Shapes) -> None:
    # A ZIP archive may hold two members with the same name; a Counter shows them.
    counts = Counter(entry.filename for entry in archive.infolist())
    members = {f"{name}.npy": name for name in shapes}
    if any(entry.compress_type not in _METHODS for entry in archive.infolist()):
        raise ValueError("has a compression that numpy does not use; write the file with numpy.savez")
    missing = [name for entry, name in members.items() if entry not in counts]
    unknown = [entry.removesuffix(".npy") for entry in counts if entry not in members]
    twice = [name for entry, name in members.items() if counts[entry] > 1]
    faults = ((missing, "lacks"), (unknown, "has unknown names:"), (twice, "has twice"))
    message = "; ".join(f"{what} {_some(names)}" for names, what in faults if names)
    if message:
        raise ValueError(f"{message}; names and shapes must equal the names and shapes in a run's parameters.npz")


def _some(names: Iterable[str]) -> str:
    first, *others = names
    return f"{first!r}" + (f" and {len(others)} more" if others else "")


def _parameter(name: str, shape: tuple[int, ...], member: IO[bytes]) -> Array:
    try:
        array = read_header(member)
        if array.dtype.name not in _FLOATS:
            raise ValueError(f"holds {array.kind}; must be {', '.join(_FLOATS[:-1])} or {_FLOATS[-1]}")
        if array.shape != shape:
            raise ValueError(f"has shape {array.shape}; must be {shape}")
        values = array.read()
        if not np.isfinite(values).all():
            raise ValueError("contains numbers that are not finite")
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    return values


def read_batches(path: str, base: Path | None, shape: tuple[int, int, int], vocabulary: int) -> Array:
    """Read the tokens for all steps from an .npy file.

    Parameters
    ----------
    path : str
        Path of the file.
    base : Path or None
        Folder for a relative path.
    shape : tuple of int
        (steps, sequences per step over all ranks, seq_len + 1); the file may have more steps.
    vocabulary : int
        Number of different tokens.

    Returns
    -------
    int array
        Tokens, with the given shape.

    Raises
    ------
    ScenarioError
        Missing file, another shape, too few steps, values that are not whole numbers or outside the vocabulary.
    """
    with open_array_file(path, base, _MOST_BATCHES) as stream:
        array = read_header(stream)
        _refuse_other_shape(array, shape)
        if array.dtype.kind not in "iu":
            raise ValueError(f"holds {array.kind}; must be whole numbers")
        tokens = array.read()[: shape[0]]
        least, most = int(tokens.min()), int(tokens.max())
        if least < 0 or most >= vocabulary:
            raise ValueError(f"has token {least if least < 0 else most}; the vocabulary is 0 .. {vocabulary - 1}")
        return tokens


def _refuse_other_shape(array: StoredArray, shape: tuple[int, int, int]) -> None:
    steps, *rest = shape
    if len(array.shape) != len(shape) or list(array.shape[1:]) != rest:
        layout = f"(steps, {rest[0]}, {rest[1]}): steps, sequences of all ranks, seq_len + 1"
        raise ValueError(f"has shape {array.shape}; must be {layout}")
    if array.shape[0] < steps:
        raise ValueError(f"has {array.shape[0]} steps; the training takes {steps}")
