"""What pyproject.toml promises of versions: every package has a lower bound, and the checks run above it."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TOOL = runpy.run_path(str(ROOT / "tools" / "environments.py"))


def test_every_package_that_is_needed_at_run_time_has_a_lower_bound_below_what_the_checks_run_with() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    checked = dict(line.lower().split("==") for line in lines if "==" in line)
    pins = TOOL["lowest"](PROJECT)
    assert len(pins) == len(PROJECT["dependencies"]) + 2
    for pin in pins:
        name, bound = pin.lower().split("==")
        assert Version(bound) <= Version(checked[name]), name


def test_a_package_without_a_lower_bound_is_told() -> None:
    with pytest.raises(SystemExit, match=r"'rich' has no lower bound; write for example 'rich>=1\.0'"):
        TOOL["lowest"]({"dependencies": ["numpy>=2.0", "rich"], "optional-dependencies": {}}, [])


def test_the_oldest_python_is_the_first_of_the_classifiers() -> None:
    named = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if line.count("::") == 2]
    versions = [name for name in named if "." in name]
    assert versions == sorted(versions, key=Version)
    assert PROJECT["requires-python"] == f">={versions[0]}"


def test_a_python_that_is_not_there_or_does_not_run_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = tmp_path / "python9.9"
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert TOOL["_version"]("python9.9") is None
    assert TOOL["_version"]("python9.8") is None


def test_trying_no_python_at_all_is_a_failure() -> None:
    with pytest.raises(SystemExit, match="no Python was tried"):
        TOOL["on_pythons"](["python9.8"])
