"""The compiled core as a library: built at installation, or at first use in a checkout where a C compiler is there.

Rule: knows the C functions and nothing of what they play. Its name carries a hash of its sources, so that a library of
other sources is never loaded.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, Final

_FOLDER: Final = Path(__file__).parent
_NO_CORE: Final = (
    "engine: there is no compiled core, for no C compiler was there to build it; the events engine follows every "
    "transfer in Python, some 30 times slower (docs/speed.md)"
)
# No fused multiply-add: the core rounds after each operation, as Python does.
_FLAGS: Final = ("-std=c11", "-O3", "-fPIC", "-shared", "-ffp-contract=off")


def sources() -> tuple[Path, ...]:
    """The C files, sorted."""
    return tuple(sorted([*_FOLDER.glob("*.c"), *_FOLDER.glob("*.h")]))


def library_path() -> Path:
    """Where the library of just these sources lies, or would lie."""
    digest = hashlib.sha256()
    for source in sources():
        digest.update(source.read_bytes())
    return _FOLDER / f"_core-{digest.hexdigest()[:16]}.so"


def build() -> Path:
    """Compile the core, and put it beside its sources in one step.

    Raises
    ------
    OSError
        No compiler (`CC`, cc, gcc or clang), or no writing here.
    subprocess.CalledProcessError
        The compiler refuses.
    """
    target = library_path()
    with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
        os.replace(compile_core(Path(folder) / "core.so"), target)
    for old in _FOLDER.glob("_core-*.so"):
        if old != target:
            old.unlink(missing_ok=True)
    return target


def compile_core(target: Path, *flags: str, source: Path | None = None) -> Path:
    """Compile the core into a file, with more flags than usual; return the file.

    Benchmarks set constants ("-DSOLVE_FROM=0") so, and tests look for undefined behaviour
    ("-fsanitize=address,undefined") or compile another `source` that includes a part of the core.
    """
    command = [*_compiler(), *_FLAGS, *flags, str(source or _FOLDER / "core.c"), "-o", str(target), "-lm"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


def opened(path: Path) -> ctypes.CDLL:
    """Return the library in a file, with the types of its functions."""
    return _typed(ctypes.CDLL(str(path)))


def _compiler() -> list[str]:
    if os.environ.get("CC"):
        return os.environ["CC"].split()
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise OSError("no C compiler: neither CC, cc, gcc nor clang")


@cache
def load() -> ctypes.CDLL | None:
    """The library, or None where there is none and none can be built."""
    path = library_path()
    try:
        return opened(path if path.exists() else build())
    except (OSError, subprocess.CalledProcessError):
        return None


def is_there() -> bool:
    """Whether there is a core."""
    return load() is not None


def engine_warnings(engine: str) -> tuple[str, ...]:
    """What a user should be told, once, of the engine that was asked for."""
    return (_NO_CORE,) if engine == "auto" and not is_there() else ()


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    library.core_play.restype = ctypes.c_int32
    library.core_play.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.core_free.restype = None
    library.core_free.argtypes = [ctypes.c_void_p]
    return library


def main() -> Any:
    """`python -m simulator.engine.compiled.library`: build, and say where."""
    sys.stdout.write(f"{build()}\n")


if __name__ == "__main__":
    main()
