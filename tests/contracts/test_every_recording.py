"""Every recording that proves kernels exists, is compared by the tests, and is named with its module and versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, get_args

import pytest

from simulator.model.operation import LossKernels, ProgramName
from simulator.model.programs.recordings import RECORDINGS, Recording

TESTS: Final = Path(__file__).parents[1]
FILES: Final = {file.stem: file for file in (TESTS / "recordings").glob("*.json")}


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: recording.name)
def test_a_named_recording_is_of_the_named_module(recording: Recording) -> None:
    facts = json.loads(FILES[recording.name].read_text(encoding="utf-8"))
    versions = ", ".join(f"{package} {version}" for package, version in facts["versions"].items())
    assert (recording.module, recording.versions) == (facts["module"], versions)
    assert recording.proves in get_args(ProgramName if recording.part == "layer" else LossKernels)
    # A layer's program has the name of the package that was recorded.
    if recording.part == "layer":
        assert recording.name.startswith(f"{recording.proves}_")


def test_each_recording_that_the_tests_compare_is_named() -> None:
    text = (TESTS / "test_recordings.py").read_text(encoding="utf-8")
    compared = {name for name in FILES if f'"{name}"' in text}
    assert sorted(compared) == sorted(recording.name for recording in RECORDINGS)
