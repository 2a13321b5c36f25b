"""Parameters and batches that a user brings: read as they are, and refused in one line where they cannot be."""

from __future__ import annotations

import io
import os
import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.basics.errors import ScenarioError
from simulator.model.shape import Transformer
from simulator.scenario.learning_files import parameter_shapes, read_batches, read_initial

SHAPES = {"tok.weight": (4, 2), "lnf.bias": (2,)}
BATCHES = (3, 2, 5)
Array = np.ndarray[Any, Any]


def numbers(**changed: Array) -> dict[str, Array]:
    return {"tok.weight": np.arange(8.0).reshape(4, 2), "lnf.bias": np.ones(2, np.float32), **changed}


def npz(path: Path, **arrays: Array) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]


def npy(array: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def header(text: str, version: int = 1, length: int | None = None) -> bytes:
    """As numpy.save begins a file, whatever the text says."""
    size = len(text) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size) + text.encode()


def archive(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> None:
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)


# ---------------------------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("dtype", ["<f2", "<f4", "<f8", ">f8"])
@pytest.mark.parametrize("compressed", [False, True])
def test_parameters_are_read_as_they_were_written(tmp_path: Path, dtype: str, compressed: bool) -> None:
    written = numbers(**{"tok.weight": np.asfortranarray(np.arange(8.0).reshape(4, 2).astype(dtype))})
    (np.savez_compressed if compressed else np.savez)(tmp_path / "x.npz", **written)  # type: ignore[arg-type]
    found = read_initial("x.npz", tmp_path, SHAPES)
    assert list(found) == list(SHAPES)
    for name, array in written.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("dtype", ["u1", "<i4", ">i8"])
def test_batches_are_the_first_steps_of_the_file(tmp_path: Path, dtype: str) -> None:
    written = np.arange(50).reshape(5, 2, 5).astype(dtype)
    np.save(tmp_path / "x.npy", written)
    np.testing.assert_array_equal(read_batches("x.npy", tmp_path, BATCHES, 30), written[:3])


def test_names_follow_the_model() -> None:
    """PyTorch's GPT of docs/learning.md: V d + S d + L (12 d^2 + 13 d) + 2 d, and V d for a head of its own."""
    v, d, s, n = 32, 8, 16, 3
    for tied in (True, False):
        shapes = parameter_shapes(Transformer("x", n, d, 2, 2, 4, 4 * d, v, s, tied=tied))
        total = v * d + s * d + n * (12 * d * d + 13 * d) + 2 * d + (0 if tied else v * d)
        assert sum(int(np.prod(shape)) for shape in shapes.values()) == total
        assert ("head.weight" in shapes) is not tied
        assert shapes["blocks.2.qkv.weight"] == (3 * d, d)


# ----------------------------------------------------------------------------------------------------- what is not


class Trap:
    """Whoever unpickles this makes a file."""

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, ("unpickled",)


def trap(shape: tuple[int, ...]) -> Array:
    found = np.empty(shape, object)
    found.fill(Trap())
    return found


MUST = "must be float16, float32 or float64"


@pytest.mark.parametrize(
    ("arrays", "line"),
    [
        (
            {"tok.weight": np.ones((4, 2))},
            ("x.npz: lacks 'lnf.bias'; names and shapes must equal the names and shapes in a run's parameters"),
        ),
        (numbers(wte=np.ones(2)), "x.npz: has unknown names: 'wte'; names and shapes"),
        (
            {"a": np.ones(2), "b": np.ones(2)},
            "x.npz: lacks 'tok.weight' and 1 more; has unknown names: 'a' and",
        ),
        (numbers(**{"tok.weight": np.ones((2, 4))}), "x.npz: tok.weight: has shape (2, 4); must be (4, 2)"),
        (numbers(**{"tok.weight": np.ones((4, 2), int)}), f"x.npz: tok.weight: holds int64; {MUST}"),
        (numbers(**{"tok.weight": np.ones((4, 2), complex)}), f"x.npz: tok.weight: holds complex128; {MUST}"),
        (numbers(**{"lnf.bias": np.array([1, np.nan])}), "x.npz: lnf.bias: contains numbers that are not finite"),
        (numbers(**{"tok.weight": trap((4, 2))}), f"x.npz: tok.weight: holds Python objects; {MUST}"),
    ],
)
def test_other_parameters_are_refused(
    tmp_path: Path, arrays: dict[str, Array], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    npz(tmp_path / "x.npz", **arrays)
    with pytest.raises(ScenarioError) as told:
        read_initial("x.npz", tmp_path, SHAPES)
    assert str(told.value).startswith(line)
    assert len(str(told.value).splitlines()) == 1
    assert not Path("unpickled").exists()


LONG = 2**32 - 1


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "is not readable as a numpy array"),
        (npy(np.ones((4, 2)))[:-1], "has fewer bytes than its header says"),
        (npy(np.ones((4, 2))) + b"x", "has more bytes than its header says"),
        (header("{'descr': '<f8', 'fortran_order': False, 'shape': (4, 2)"), "is not readable as a numpy array"),
        (header("{'descr': '<f8', 'fortran_order': False, 'shape': (4, -2)}"), "is not readable as a numpy array"),
        (header("{'descr': '<f8', 'fortran_order': False, 'shape': (4, 10**9)}"), "is not readable as a numpy array"),
        (
            header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000000000)}"),
            "has shape (1000000000,",
        ),
        (header("{'descr': '<f8', 'fortran_order': 1, 'shape': (4, 2)}"), "is not readable as a numpy array"),
        (header("(" * 9000), "is not readable as a numpy array"),
        (header("{'descr': '|O', 'fortran_order': False, 'shape': (4, 2)}"), "holds Python objects"),
        (header("{'descr': [('a', '<f8')], 'fortran_order': False, 'shape': (4, 2)}"), "holds [('a', '<f8')]"),
        (header("{}", 2, LONG), "is not readable as a numpy array"),
        (header("{}", 3), "is not readable as a numpy array"),
    ],
    ids=range(13),
)
def test_a_strange_array_is_refused_before_its_numbers_are_read(tmp_path: Path, content: bytes, line: str) -> None:
    archive(tmp_path / "x.npz", {"tok.weight.npy": content, "lnf.bias.npy": npy(np.ones(2))})
    with pytest.raises(ScenarioError) as told:
        read_initial("x.npz", tmp_path, SHAPES)
    assert str(told.value).startswith(f"x.npz: tok.weight: {line}")


@pytest.mark.parametrize(
    ("begin", "line"),
    [
        (header("{'descr': '<f8', 'fortran_order': False, 'shape': (4, 2)}"), "has more bytes than its header says"),
        (header("{}", 2, LONG), "is not readable as a numpy array; write the array with numpy.save"),
    ],
)
def test_a_bomb_is_not_blown_up(tmp_path: Path, begin: bytes, line: str) -> None:
    """Two megabytes of zeros in two kilobytes, as numbers and as a header: no more is unpacked than a header has."""
    archive(tmp_path / "x.npz", {"tok.weight.npy": begin + bytes(2**21), "lnf.bias.npy": npy(np.ones(2))})
    tracemalloc.start()
    try:
        with pytest.raises(ScenarioError, match=f"^x.npz: tok.weight: {line}$"):
            read_initial("x.npz", tmp_path, SHAPES)
        assert tracemalloc.get_traced_memory()[1] < 2**19
    finally:
        tracemalloc.stop()


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    """10 parameters of 8 bytes, and 1 KiB for the archive and for each of 2 arrays."""
    with (tmp_path / "x.npz").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(
        ScenarioError, match=r"^x.npz: has 1,099,511,627,776 bytes; must have at most 3,152 for the expected arrays$"
    ):
        read_initial("x.npz", tmp_path, SHAPES)
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(ScenarioError, match=r"^x.npy: has 1,099,511,627,776 bytes"):
        read_batches("x.npy", tmp_path, BATCHES, 30)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_bytes(npy(np.ones(2)))
    with pytest.raises(ScenarioError, match=r"^x.npz: is not an .npz archive; write the file with numpy.savez$"):
        read_initial("x.npz", tmp_path, SHAPES)
    archive(tmp_path / "x.npz", {"archive/data.pkl": b"", "archive/version": b"3"})  # what torch.save writes
    with pytest.raises(ScenarioError, match=r"^x.npz: lacks 'tok.weight' and 1 more; has .* 'archive/data.pkl' and 1"):
        read_initial("x.npz", tmp_path, SHAPES)
    archive(tmp_path / "x.npz", {f"{name}.npy": npy(array) for name, array in numbers().items()}, zipfile.ZIP_LZMA)
    with pytest.raises(
        ScenarioError, match=r"^x.npz: has a compression that numpy does not use; write the file with numpy.savez$"
    ):
        read_initial("x.npz", tmp_path, SHAPES)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    (tmp_path / "folder.npz").mkdir()
    for name in ("pipe.npz", "folder.npz", "/dev/zero"):
        with pytest.raises(ScenarioError, match=f"^{name}: is not a file$"):
            read_initial(name, tmp_path, SHAPES)
    for name in ("absent.npz", "pipe.npz/absent.npz"):
        with pytest.raises(ScenarioError, match=f"^{name}: (there is no such file|cannot be read: Not a directory)"):
            read_initial(name, tmp_path, SHAPES)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_archive_gives_its_numbers_or_one_line(tmp_path: Path, data: st.DataObject) -> None:
    npz(tmp_path / "x.npz", **numbers())
    content = bytearray((tmp_path / "x.npz").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    (tmp_path / "y.npz").write_bytes(content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans())
                                     else content)  # fmt: skip
    told = ""
    try:
        found = read_initial("y.npz", tmp_path, SHAPES)
    except ScenarioError as error:
        told = str(error)
    assert told or {name: array.shape for name, array in found.items()} == SHAPES
    assert not told or (told.startswith("y.npz: ") and len(told.splitlines()) == 1)


@pytest.mark.parametrize(
    ("array", "line"),
    [
        (np.zeros((3, 2, 4), int), "x.npy: has shape (3, 2, 4); must be (steps, 2, 5): steps, sequences of all ranks,"),
        (np.zeros((3, 10), int), "x.npy: has shape (3, 10); must be (steps, 2, 5)"),
        (np.zeros((2, 2, 5), int), "x.npy: has 2 steps; the training takes 3"),
        (np.zeros((3, 2, 5)), "x.npy: holds float64; must be whole numbers"),
        (np.zeros((3, 2, 5), bool), "x.npy: holds bool; must be whole numbers"),
        (np.full((3, 2, 5), 30), "x.npy: has token 30; the vocabulary is 0 .. 29"),
        (np.full((3, 2, 5), -1), "x.npy: has token -1; the vocabulary is 0 .. 29"),
        (np.full((3, 2, 5), 2**63, np.uint64), f"x.npy: has token {2**63}; the vocabulary is 0 .. 29"),
        (trap((3, 2, 5)), "x.npy: holds Python objects; must be whole numbers"),
    ],
)
def test_other_batches_are_refused(tmp_path: Path, array: Array, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(ScenarioError) as told:
        read_batches("x.npy", tmp_path, BATCHES, 30)
    assert str(told.value).startswith(line)
    assert not Path("unpickled").exists()


def test_batches_that_are_none_are_refused(tmp_path: Path) -> None:
    npz(tmp_path / "x.npz", **numbers())
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    with pytest.raises(
        ScenarioError, match=r"^x.npy: is not readable as a numpy array; write the array with numpy.save$"
    ):
        read_batches("x.npy", tmp_path, BATCHES, 30)
