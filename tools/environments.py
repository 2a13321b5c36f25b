"""Run the smoke tests in fresh environments: on the lowest versions in pyproject.toml, and on other Pythons.

    python tools/environments.py lowest                            in .venv-lowest
    python tools/environments.py pythons python3.12 python3.13     in .venv-smoke-3.12 and .venv-smoke-3.13

Versions come from pyproject.toml alone; pip installs from its configured index.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Optional extras covered by the smoke tests.
EXTRAS = ("distributed", "parquet")
# Scenarios with equal reports on every Python: a collective with arrays, and training steps. Every number comes from
# Python or numpy itself.
SAME = ("n_servers", "stragglers")


def lowest(project: dict[str, Any], extras: Sequence[str] = EXTRAS) -> list[str]:
    """Return a pin for every dependency, at its lower bound.

    Examples
    --------
    >>> lowest({"dependencies": ["numpy>=2.0"], "optional-dependencies": {"parquet": ["pyarrow>=17"]}}, ["parquet"])
    ['numpy==2.0', 'pyarrow==17']
    """
    wanted = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    pins = []
    for line in wanted:
        # Only plain lower bounds are understood; any other form fails, and must be added here.
        name, operator, bound = re.fullmatch(r"([\w.-]+)\s*(>=)?\s*([\w.]*)", line).groups()  # type: ignore[union-attr]
        if not operator:
            raise SystemExit(f"pyproject.toml: {line!r} has no lower bound; write for example '{name}>=1.0'")
        pins.append(f"{name}=={bound}")
    return pins


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command; exit with the command's code after a failure."""
    done = subprocess.run(list(map(str, command)), cwd=cwd, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def made(folder: Path, python: str, wanted: Iterable[str]) -> Path:
    """Make an environment with this project, `wanted`, pytest and hypothesis, which tests/conftest.py imports.

    Returns the environment's Python.
    """
    # From scratch, because packages left from an earlier run would hide missing dependencies.
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder)
    inside = folder / "bin" / "python"
    run(inside, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "pytest", "hypothesis", *wanted)
    return inside


def smoke(inside: Path) -> None:
    """Run the smoke tests; warnings between foreign packages are not errors here."""
    run(inside, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "default", "-m", "smoke", "tests/test_smoke.py")


def on_lowest() -> None:
    """Run the smoke tests on exactly the lower bounds, with the oldest allowed Python."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = project["requires-python"].removeprefix(">=")
    # Old packages have no wheels for newer Pythons.
    if f"{sys.version_info.major}.{sys.version_info.minor}" != oldest:
        raise SystemExit(f"lower bounds are of Python {oldest}, and this is {sys.version.split()[0]}; set PYTHON=...")
    pins = lowest(project)
    print("lowest:", *pins)
    smoke(made(ROOT / ".venv-lowest", sys.executable, ["--editable", ".", *pins]))


def on_pythons(names: Iterable[str]) -> None:
    """Run the smoke tests on each available Python, and compare their reports byte by byte."""
    reports: dict[str, bytes] = {}
    for name in names:
        version = _version(name)
        if version is None:
            print(f"{name}: not here")
            continue
        print(f"{name}: {version}", flush=True)
        folder = ROOT / f".venv-smoke-{version.rpartition('.')[0]}"
        # constraints.txt fixes every other version: differences then come from Python.
        inside = made(folder, name, ["--constraint", "constraints.txt", "--editable", f".[{','.join(EXTRAS)}]"])
        smoke(inside)
        reports[version] = b"".join(_report(inside, folder / "runs" / scenario, scenario) for scenario in SAME)
    if not reports:
        raise SystemExit("no Python was tried; set PYTHONS to paths of Pythons that are here")
    # Reports must not depend on the Python version.
    if len(set(reports.values())) > 1:
        raise SystemExit(f"reports of {', '.join(SAME)} differ between Python {' and '.join(reports)}")
    print(f"Python {', '.join(reports)}: reports of {', '.join(SAME)} are the same to the byte")


def _version(name: str) -> str | None:
    """Return a Python's version; None if absent, or if a version manager's shim does not run."""
    # `which` also finds a shim without a Python behind; only a run shows the difference.
    if shutil.which(name) is None:
        return None
    asked = [name, "-c", "import platform; print(platform.python_version())"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def _report(inside: Path, folder: Path, scenario: str) -> bytes:
    run(inside, "-m", "simulator", "run", scenario, "--set", "plots=[]", "--out", folder)
    return (folder / "report.json").read_bytes()


if __name__ == "__main__":
    if sys.argv[1:2] == ["pythons"]:
        on_pythons(sys.argv[2:])
    elif sys.argv[1:] == ["lowest"]:
        on_lowest()
    else:
        raise SystemExit((__doc__ or "").strip())
