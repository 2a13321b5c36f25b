"""The compiled core touches no memory but its own: drawn programs under address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.engine.compiled import library

ROOT = Path(__file__).parents[1]
FLAGS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
# Seeds of each run; some three seconds a seed on one core.
FEW, MANY = 1, 150


def simulated(folder: Path, first: int, last: int) -> int:
    """Simulate programs of some seeds under sanitizers; return how many. Skips where gcc has no sanitizers."""
    try:
        core = library.compile_core(folder / "core.so", *FLAGS)
        runtimes = [_runtime(name) for name in ("libasan.so", "libubsan.so")]
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no compiler with sanitizers: {error}")
    # Python's own memory is never freed at its end, which is no leak of the core.
    more = {"LD_PRELOAD": ":".join(runtimes), "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.sanitized", str(core), str(first), str(last)]
    done = subprocess.run(command, env=os.environ | more, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return int(done.stdout.split()[0])


def _runtime(name: str) -> str:
    found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True)
    path = found.stdout.strip()
    if not Path(path).is_absolute():
        raise OSError(f"{name} is not there")
    return path


@pytest.mark.long
def test_a_few_drawn_programs_under_sanitizers(tmp_path: Path) -> None:
    assert simulated(tmp_path, 0, FEW) >= 10 * FEW


@pytest.mark.long
def test_many_drawn_programs_under_sanitizers(tmp_path: Path) -> None:
    assert simulated(tmp_path, 1000, 1000 + MANY) >= 10 * MANY


@pytest.mark.long
def test_the_sanitizers_see_a_read_beyond_an_array(tmp_path: Path) -> None:
    """A core whose instances forget one participant: proof that the test would see what it is for."""
    for path in library.sources():
        text = path.read_text()
        if path.name == "transfers.h":
            assert "live->left = calloc((size_t)participants + 1, 1);" in text
            text = text.replace("live->left = calloc((size_t)participants + 1, 1);", "live->left = calloc(1, 1);")
        (tmp_path / path.name).write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "_FOLDER", tmp_path)
        with pytest.raises(AssertionError, match="heap-buffer-overflow"):
            simulated(tmp_path, 0, 1)
