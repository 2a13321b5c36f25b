"""Run the long tests in parts, and record the parts that have passed: `make test-long`, `make test-long PART=2/6`.

    python -m tools.long_tests 2/6    the second of six parts
    python -m tools.long_tests        the parts of six that have not passed yet at this commit

With CASES=all in the environment, tests with drawn cases have all cases of a release, five times as many as without.
build/long_tests.json (with CASES=all long_tests_all.json) has the parts that passed, by commit. A part is recorded if
no file differs from the commit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
# Runs with all cases of a release (tests/many.py) have a record of their own.
RECORD: Final = ROOT / "build" / f"long_tests{'_all' * (os.environ.get('CASES') == 'all')}.json"
# Parts of a run without a number of parts; each takes minutes.
PARTS: Final = 6
# pytest's exit code if a part has no test.
_NO_TESTS: Final = 5


def parts(count: int) -> list[str]:
    """Return the names of all parts.

    Examples
    --------
    >>> parts(3)
    ['1/3', '2/3', '3/3']
    """
    return [f"{number}/{count}" for number in range(1, count + 1)]


def commit() -> str:
    """Return the commit of the working tree; an empty text if files differ from it, or where there is no repository."""
    state = _git("status", "--porcelain")
    return "" if state is None or state else _git("rev-parse", "HEAD") or ""


def _git(*arguments: str) -> str | None:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return None if done.returncode else done.stdout.strip()


def passed(at: str, record: Path = RECORD) -> list[str]:
    """Return the parts that have passed at a commit."""
    return json.loads(record.read_text(encoding="utf-8")).get(at, []) if at and record.exists() else []


def note(at: str, part: str, record: Path = RECORD) -> None:
    """Record that a part has passed at a commit; the records of other commits stay."""
    commits = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    commits[at] = sorted({*commits.get(at, []), part})
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(commits, indent=1) + "\n", encoding="utf-8")


def run(part: str) -> bool:
    """Run a part of the long tests; return whether it passed."""
    jobs = os.environ.get("JOBS", "auto")
    command = [sys.executable, "-m", "pytest", "-n", jobs, "--dist", "worksteal", "-m", "long", "--part", part]
    return subprocess.run(command, cwd=ROOT, check=False).returncode in (0, _NO_TESTS)


def main(arguments: Sequence[str]) -> int:
    """Run the given part, or the parts that are left; print what is left, and return the exit code."""
    at = commit()
    count = int(arguments[0].partition("/")[2]) if arguments else PARTS
    wanted = [arguments[0]] if arguments else [part for part in parts(count) if part not in passed(at)]
    failed = []
    for part in wanted:
        if not run(part):
            failed.append(part)
        elif commit() == at != "":
            note(at, part)
    if not at:
        print("long tests: files differ from the commit, so no part is recorded")
    else:
        left = [part for part in parts(count) if part not in passed(at)]
        print(f"long tests: {f'parts left at {at[:8]}: ' + ', '.join(left) if left else f'all passed at {at[:8]}'}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
