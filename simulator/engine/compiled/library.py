"""The compiled core: a library built at installation, or at first use in a checkout with a C compiler.

The file name contains a hash computed from the C sources; a library built from older sources is never loaded.
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
# No fused multiply-add: the core must round after each operation, as Python does.
_FLAGS: Final = ("-std=c11", "-O3", "-fPIC", "-shared", "-ffp-contract=off")


def sources() -> tuple[Path, ...]:
    """Return the paths of the compiled core's C sources and headers, sorted."""
    return tuple(sorted([*_FOLDER.glob("*.c"), *_FOLDER.glob("*.h")]))


def library_path() -> Path:
    """Return the path of the library for the present sources, existing or not."""
    digest = hashlib.sha256()
    for source in sources():
        digest.update(source.read_bytes())
    # 16 hexadecimal digits: 64 bits.
    return _FOLDER / f"_core-{digest.hexdigest()[:16]}.so"


def build() -> Path:
    """Compile the C core, move the library next to its sources atomically, delete older libraries, and return its path.

    Raises
    ------
    OSError
        No compiler (`CC`, cc, gcc or clang) was found, or the folder is not writable.
    subprocess.CalledProcessError
        The compiler reports an error.
    """
    target = library_path()
    # A rename is atomic: a second process never loads a half-written library.
    with tempfile.TemporaryDirectory(dir=_FOLDER) as folder:
        os.replace(compile_core(Path(folder) / "core.so"), target)
    # Libraries for older sources are useless.
    for old in _FOLDER.glob("_core-*.so"):
        if old != target:
            old.unlink(missing_ok=True)
    return target


def compile_core(target: Path, *flags: str, source: Path | None = None) -> Path:
    """Compile the C core into the file `target`, with additional compiler flags; return `target`.

    Benchmarks pass constants ("-DSOLVE_FROM=0"). Tests pass sanitizers ("-fsanitize=address,undefined") or another
    `source` that includes core parts.
    """
    command = [*_compiler(), *_FLAGS, *flags, str(source or _FOLDER / "core.c"), "-o", str(target), "-lm"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


def opened(path: Path) -> ctypes.CDLL:
    """Load the compiled core from `path`, declare its functions' types, and return the library."""
    return _typed(ctypes.CDLL(str(path)))


def _compiler() -> list[str]:
    """Return the C compiler's command as words: `CC`, cc, gcc or clang; OSError if there is no compiler."""
    if os.environ.get("CC"):
        return os.environ["CC"].split()
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise OSError("no C compiler: neither CC, cc, gcc nor clang")


@cache
def load() -> ctypes.CDLL | None:
    """Return the compiled core's library, built if necessary; None if the library is missing and cannot be built."""
    path = library_path()
    try:
        return opened(path if path.exists() else build())
    except (OSError, subprocess.CalledProcessError):
        return None


def is_there() -> bool:
    """Return True if a compiled core exists or could be built."""
    return load() is not None


def engine_warnings(engine: str) -> tuple[str, ...]:
    """Return a warning, in a tuple, if `engine` is "auto" and there is no compiled core; otherwise an empty tuple.

    >>> engine_warnings("events")
    ()
    """
    return (_NO_CORE,) if engine == "auto" and not is_there() else ()


def _typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the argument and result types of the core library's functions; return the library."""
    library.core_play.restype = ctypes.c_int32
    library.core_play.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.core_border.restype = ctypes.c_int32
    library.core_border.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    library.core_free.restype = None
    library.core_free.argtypes = [ctypes.c_void_p]
    return library


def main() -> Any:
    """Run `python -m simulator.engine.compiled.library`: build the core and print its path."""
    sys.stdout.write(f"{build()}\n")


if __name__ == "__main__":
    main()
