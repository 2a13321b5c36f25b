"""Puts faults into the package, one at a time, to see which tests notice: before and after tests are removed.

`python -m tools.mutants draw --seed 61 --number 80` draws faults (mutants) over all folders of the package, by their
lines of code, and writes tools/mutants.json. `cover` runs the suite once, in one process, and records which tests enter
functions of the mutated modules (tools/entered.py). `try [NUMBER ...] --out FILE` puts each mutant, named by its place
in the list from 1, into a copy of the checkout, runs the tests that enter its function, the fast ones first, then the
files that `cover` has not run, and appends the outcome to FILE. `cover` and `try` go on where they stopped. Outcomes:

- caught: the named test fails with the mutant, and passes without it;
- survived: every chosen test passes;
- timeout: the time was over, while the named test ran;
- gone: the line is no longer in a function of its name, or stands there twice.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.util import cache_from_source
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Final

from tools import entered
from tools.faults import edits

ROOT: Final = Path(__file__).parents[1]
LIST: Final = ROOT / "tools" / "mutants.json"
_PYTEST: Final = (
    sys.executable,
    "-m",
    "pytest",
    "-p",
    "no:cacheprovider",
    "-p",
    "tools.entered",
    "--hypothesis-seed=61",
)


@dataclass(frozen=True)
class Mutant:
    """A fault: `line` of `function` (its qualified name; "" outside functions) becomes `mutated`, both stripped."""

    package: str
    file: str
    function: str
    line: str
    mutated: str
    operator: str


def applied(mutant: Mutant, root: Path = ROOT) -> tuple[Path, str] | None:
    """Return the file that a mutant changes and its changed text; None: gone.

    The file that the mutant names is searched first, then the whole package, because functions move.
    """
    for files in ([root / mutant.file], sorted((root / "simulator").rglob("*.py"))):
        places = []
        for file in files:
            text = file.read_text() if file.exists() else ""
            if mutant.line in text:
                lines, names = text.split("\n"), entered.qualified_names(ast.parse(text))
                rows = (row for row, line in enumerate(lines) if line.strip() == mutant.line)
                places += [(file, lines, row) for row in rows if names.get(row, "") == mutant.function]
        if len(places) == 1:
            file, lines, row = places[0]
            lines[row] = lines[row].replace(mutant.line, mutant.mutated)
            return file, "\n".join(lines)
        if places:
            break
    return None


def draw(seed: int, number: int, root: Path = ROOT) -> list[Mutant]:
    """Draw mutants over the folders of the package: one of each, the others by lines of code."""
    files = {
        each.parent: sorted(each.parent.rglob("*.py")) for each in sorted((root / "simulator").glob("*/__init__.py"))
    }
    lines = {folder: sum(len(file.read_text().split("\n")) for file in files[folder]) for folder in files}
    counts = dict.fromkeys(lines, 1)
    while sum(counts.values()) < number:
        counts[max(lines, key=lambda folder: lines[folder] / counts[folder])] += 1
    mutants: list[Mutant] = []
    for folder, count in counts.items():
        mutants += islice(_drawn(files[folder], root, random.Random(f"{seed} {folder.name}")), count)
    # Whoever tries only the first of the list tries some of every folder.
    random.Random(seed).shuffle(mutants)
    return mutants


def _drawn(files: list[Path], root: Path, dice: random.Random) -> Iterator[Mutant]:
    """Yield mutants of files, every operator as often, and no function twice."""
    choices = defaultdict(list)
    for file in files:
        for operator, row, line in edits(file.read_text()):
            choices[operator].append((file, row, line))
    places = set()
    while choices:
        operator = dice.choice(sorted(choices))
        file, row, line = choices[operator].pop(dice.randrange(len(choices[operator])))
        if not choices[operator]:
            del choices[operator]
        text, path = file.read_text(), file.relative_to(root)
        place = path.as_posix(), entered.qualified_names(ast.parse(text)).get(row, "")
        mutant = Mutant("/".join(path.parts[:2]), *place, text.split("\n")[row].strip(), line.strip(), operator)
        changed = applied(mutant, root)
        if changed and place not in places and _differs(text, changed[1]):
            places.add(place)
            yield mutant


def _differs(text: str, changed: str) -> bool:
    """Return whether a changed text compiles, and to something else."""
    with suppress(SyntaxError):
        compile(changed, "mutant", "exec")
        return ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    return False


def read() -> list[Mutant]:
    """Return the drawn mutants."""
    return [Mutant(**fields) for fields in json.loads(LIST.read_text())]


@contextmanager
def scratch() -> Iterator[Path]:
    """Copy the checkout, with the compiled core, into a folder that is removed afterwards."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    cores = [core.relative_to(ROOT) for core in ROOT.glob("simulator/engine/compiled/_core-*.so")]
    with TemporaryDirectory(prefix="mutants-") as folder:
        for name in [*listed.splitlines(), *cores]:
            if (ROOT / name).is_file():
                Path(folder, name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, Path(folder, name))
        yield Path(folder)


def run_tests(copy: Path, seconds: float, tests: list[str], *options: str) -> tuple[str, str]:
    """Run tests in a copy until the first failure; return "caught", "survived" or "timeout", and the last test."""
    (copy / "chosen.txt").write_text("\n".join(tests))
    command = [*_PYTEST, "-xv", "--tb=no", *options, *dict.fromkeys(name.partition("::")[0] for name in tests)]
    # The copy precedes the checkout that this environment's Python has in its path.
    paths = {"PYTHONPATH": str(copy), entered.CHOSEN: "chosen.txt", "MPLCONFIGDIR": f"{sys.prefix}/matplotlib"}
    environment = {**os.environ, **paths, "COLUMNS": "999"}
    with TemporaryFile("w+") as log:
        process = subprocess.Popen(command, cwd=copy, env=environment, stdout=log, stderr=log, process_group=0)
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(max(0, seconds))
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.seek(0)
        text = log.read()
    # A line is the test's name, and its outcome once it ended; a file that cannot be read is in the summary.
    names = re.findall(r"^(?:ERROR )?((?:tests|simulator)/.+?)(?: (?:[A-Z]{4,} |- ).*)?\s*$", text, re.M)
    return {0: "survived", 5: "survived", None: "timeout"}.get(code, "caught"), names[-1] if names else text[-200:]


def outcome(mutant: Mutant, copy: Path, limit: float, unsound: set[str]) -> dict[str, str]:
    """Return the outcome of a mutant in a copy, and its test; `unsound`: tests that fail without mutants too."""
    change = applied(mutant, copy)
    if change is None:
        return {"outcome": "gone"}
    file, text = change
    original, end = file.read_text(), time.monotonic() + limit
    entering = entered.tests_of(file.relative_to(copy).as_posix(), mutant.function)
    # A test that every line of the list stands in the code would catch every mutant.
    tests, count = [name for name in entering if not name.startswith("tests/test_code_mutants.py")], 3
    while tests:
        # Reading a file of tests takes longer than most tests: few files at first, because they catch most mutants.
        files = list(dict.fromkeys(name.partition("::")[0] for name in tests))[:count]
        some = [name for name in tests if name.partition("::")[0] in files]
        deselected = [f"--deselect={name}" for name in unsound]
        try:
            _write(file, text)
            verdict, test = run_tests(copy, end - time.monotonic(), some, *deselected)
        finally:
            _write(file, original)
        if verdict == "timeout":
            return {"outcome": "timeout", "test": test}
        if verdict == "caught":
            only = [] if "::" in test else ["--collect-only"]
            if run_tests(copy, limit, [test], *only)[0] == "survived":
                return {"outcome": "caught", "test": test}
            unsound.add(test)
        else:
            tests, count = [name for name in tests if name not in some], 2 * count
    return {"outcome": "survived"}


def _write(file: Path, text: str) -> None:
    # Compiled code is recognised by seconds and bytes, which a mutant may share.
    Path(cache_from_source(str(file))).unlink(missing_ok=True)
    file.write_text(text)


def main() -> None:
    """Draw mutants, record the tests that may notice them, or try them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing, _, trying = (commands.add_parser(name) for name in ("draw", "cover", "try"))
    drawing.add_argument("--seed", type=int, default=61)
    drawing.add_argument("--number", type=int, default=80)
    trying.add_argument("numbers", type=int, nargs="*")
    trying.add_argument("--out", type=Path, required=True)
    trying.add_argument("--limit", type=float, default=240, help="seconds for one mutant")
    options = parser.parse_args()
    if options.command == "draw":
        LIST.write_text(json.dumps([asdict(mutant) for mutant in draw(options.seed, options.number)], indent=1) + "\n")
    elif options.command == "cover":
        entered.cover(change[0] for mutant in read() if (change := applied(mutant)))
    else:
        try_mutants(options.numbers or range(1, len(read()) + 1), options.out, options.limit)


def try_mutants(numbers: Iterable[int], out: Path, limit: float) -> None:
    """Try mutants of the list that are not in `out` yet, and append their outcomes to it."""
    mutants, unsound = read(), set[str]()
    results = json.loads(out.read_text()) if out.exists() else []
    tried = {result["number"] for result in results}
    with scratch() as copy:
        for number in (each for each in numbers if each not in tried):
            start, mutant = time.monotonic(), mutants[number - 1]
            result = outcome(mutant, copy, limit, unsound)
            results.append({"number": number, **result, "seconds": round(time.monotonic() - start), **asdict(mutant)})
            out.write_text(json.dumps(results, indent=1) + "\n")
            print(number, *result.values(), flush=True)


if __name__ == "__main__":
    main()
