"""Reads damaged files of one kind in a process with limits, and prints what became of them as JSON.

`python -B -m tests.reading_damaged_files PLACE SEED COUNT FOLDER` reads COUNT damaged copies of the PLACE-th of
`readable_files()` in FOLDER. A file is read, or refused in lines with exit code 2; any other end is listed, with the
name of the copy, which stays in FOLDER. A process of its own has a limit of memory, and an audit hook that sees
every file that is opened for writing, every process that is started and every class that a pickle names.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import sys
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, Final

from simulator.basics.errors import MOST_FAULTS
from simulator.cli.guard import guarded
from tests.damaging import DAMAGES
from tests.readable_files import ReadableFile, readable_files

# Limits for a single file: CPU time [s], and memory above that of a process that has read the right file [B].
MOST_CPU: Final = 2.0
MOST_MEMORY: Final = 500 * 10**6
_WRITES: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES: Final = frozenset(
    {
        "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod",
        "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "pickle.find_class",
    }
)  # fmt: skip


def outcome(file: ReadableFile, content: bytes, folder: Path, watch: Watch) -> tuple[str, str]:
    """Return "read", "refused" or "failed" for a damaged copy in an empty folder, and the reason of a failure."""
    path = file.written(content, folder)
    said = io.StringIO()
    begin = time.process_time()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()), watch:
            code = guarded(lambda: file.read(path) and None)
    except BaseException:
        return "failed", traceback.format_exc(limit=-4)
    seconds = time.process_time() - begin
    lines = [line for line in said.getvalue().splitlines() if not line.startswith("note: ")]
    if watch.caught:
        return "failed", f"changed {watch.caught}"
    if seconds > MOST_CPU:
        return "failed", f"took {seconds:.1f} s of CPU; code {code}; {said.getvalue()[:300]}"
    if code == 0:
        return "read", ""
    if code != 2 or not 0 < len(lines) <= MOST_FAULTS + 1 or not all(line.strip() for line in lines):
        return "failed", f"code {code}: {said.getvalue()[:600]!r}"
    if not all(line.isprintable() and len(line) < 6500 for line in lines):
        return "failed", f"lines: {said.getvalue()[:600]!r}"
    return "refused", ""


def main(place: int, seed: str, count: int, folder: Path) -> dict[str, Any]:
    """Return the numbers of files read and refused, and the failures."""
    warnings.simplefilter("ignore")
    os.chdir(folder)
    file, watch = readable_files()[place], Watch()
    attempt = folder / "right"
    attempt.mkdir()
    # Imports, and the caches of imported packages, are made before the limits are set, and by a file without a fault.
    with contextlib.redirect_stdout(io.StringIO()):
        file.read(file.written(file.content, attempt))
    _limit_memory()
    chance, ends, failures = random.Random(f"{file.kind} {file.name} {seed}"), Counter[str](), []
    damages = list(DAMAGES.values())
    for number in range(count):
        content = file.content
        for _ in range(chance.choice((1, 1, 2))):
            content = damages[(number + chance.randrange(2)) % len(damages)](content or b" ", chance)
        attempt = folder / str(number)
        attempt.mkdir()
        end, reason = outcome(file, content, attempt, watch)
        ends[end] += 1
        if end == "failed":
            failures.append((attempt.name, end, reason))
        else:
            shutil.rmtree(attempt)
    return {"kind": file.kind, "file": file.name, **ends, "failures": failures}


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + MOST_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


class Watch:
    """An audit hook, which stays for the rest of the process: lists what is written, started or unpickled inside."""

    def __init__(self) -> None:
        self.caught: list[str] = []
        self._active = False
        sys.addaudithook(self._hook)

    def __enter__(self) -> None:
        self.caught.clear()
        self._active = True

    def __exit__(self, *_: object) -> None:
        self._active = False

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._active:
            return
        writes = event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & _WRITES)
        if (writes and str(arguments[0]) != os.devnull) or event in _CHANGES:
            self.caught.append(f"{event} {arguments[0]!r}")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))))
