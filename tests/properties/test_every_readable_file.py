"""Damaged files of every kind that the simulator reads: each is read, or refused in lines with exit code 2.

No file takes more than 2 s of CPU time or 500 MB, writes a file, starts a process, or names a class to unpickle.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.importing.format import FORMATS as CONFIGURATIONS
from simulator.importing.machines.machine_format import FORMATS as MACHINES
from tests.interrupting import ROOT
from tests.readable_files import readable_files

FILES = readable_files()
# More than 5,000 damaged files in total.
EACH = -(-6_000 // len(FILES))


def test_every_format_has_a_file() -> None:
    kinds = {file.kind for file in FILES}
    assert len([kind for kind in kinds if kind.startswith("configuration of ")]) == len(CONFIGURATIONS.names())
    # Of topology.conf and topology.yaml, which are two formats, the samples are in one folder.
    assert len([kind for kind in kinds if kind.startswith("machine of ")]) == len(MACHINES.names()) - 1


@pytest.mark.long
@pytest.mark.parametrize("place", range(len(FILES)), ids=[f"{file.kind}, {file.name}" for file in FILES])
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, place: int) -> None:
    command = [sys.executable, "-B", "-m", "tests.reading_damaged_files", str(place), "1", str(EACH), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["failures"] == []
    assert found.get("read", 0) + found.get("refused", 0) == EACH
