"""Which output do the commands on a documentation page print? Runs them, and writes the output into the page.

    python -m tools.docs_commands            every page below docs/
    python -m tools.docs_commands PAGE ...   these pages

Three kinds of fenced blocks are carried out, in the page's order and in one empty folder:

- A block after a line that ends in "Save as `NAME`:" is written to the file NAME.
- A ``console`` block has lines `$ COMMAND`, each followed by the command's output. Commands are `simulator ...`,
  and `python NAME`. After a backslash and within quotation marks, a command goes on in the next line. A line `...` in
  the output stands for any number of lines that are left out.
- A ``python`` block with `>>> ` is an interactive session; the sessions of a page share their variables.

`tests/test_docs_commands.py` compares the outputs on each page with the outputs now.
"""

from __future__ import annotations

import contextlib
import difflib
import doctest
import io
import os
import re
import runpy
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from simulator.cli.commands import application
from simulator.cli.guard import guarded

ROOT: Final = Path(__file__).resolve().parents[1]
# Characters per line of tables: as wide as code on a documentation page.
_WIDTH: Final = 100
# A paragraph, and the fenced block after it.
_BLOCK: Final = re.compile(
    r"^(?P<before>(?:(?!```)[^\n]+\n)*)\n?```(?P<kind>\w*)\n(?P<body>.*?)```\n", re.DOTALL | re.MULTILINE
)
_SAVED: Final = re.compile(r"[Ss]ave\s+as\s+`(?P<name>[\w./-]+)`:\n$")
_LEFT_OUT: Final = "..."
# Likeness below which no printed line stands for a line on the page; further lines that are shown between such lines.
_LEAST_LIKENESS: Final = 0.6
_FEW: Final = 2


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block that is carried out.

    Attributes
    ----------
    start, end : int
        Place of the block's body in the page, in characters.
    body : str
        Text between the fences.
    file : str
        Name of the file to write; empty for a block that is run.
    is_python : bool
        Whether the block is an interactive session.
    """

    start: int
    end: int
    body: str
    file: str = ""
    is_python: bool = False


def pages() -> list[Path]:
    """Return the pages with commands."""
    return [page for page in sorted((ROOT / "docs").rglob("*.md")) if any(blocks(page.read_text(encoding="utf-8")))]


def blocks(text: str) -> Iterator[Block]:
    """Yield the blocks of a page that are carried out."""
    for found in _BLOCK.finditer(text):
        saved = _SAVED.search(found["before"])
        is_python = found["kind"] == "python" and not saved and ">>> " in found["body"]
        if saved or is_python or found["kind"] == "console":
            name = saved["name"] if saved else ""
            yield Block(found.start("body"), found.end("body"), found["body"], name, is_python)


def with_outputs(text: str) -> str:
    """Return a page's text with the outputs that its commands print now; unchanged where `...` covers the rest."""
    parts, done = [], 0
    variables: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, _inside(Path(folder)):
        for block in blocks(text):
            parts += [text[done : block.start], _carried_out(block, variables)]
            done = block.end
    return "".join([*parts, text[done:]])


def _carried_out(block: Block, variables: dict[str, Any]) -> str:
    """Write the block's file or run its lines; return the block's body with the outputs printed now."""
    if block.file:
        Path(block.file).parent.mkdir(parents=True, exist_ok=True)
        Path(block.file).write_text(block.body, encoding="utf-8")
        return block.body
    if block.is_python:
        return "".join(_session(block.body, variables))
    lines = []
    for command, told in _commands(block.body):
        printed = _output(command)
        lines += [f"$ {command}", *(told if matches(told, printed) else chosen(told, printed))]
    return "\n".join(lines) + "\n"


def _session(body: str, variables: dict[str, Any]) -> Iterator[str]:
    """Run an interactive session; yield its text with the outputs printed now."""
    for part in doctest.DocTestParser().parse(body):
        if isinstance(part, str):
            yield part
            continue
        first, *more = part.source.rstrip("\n").split("\n")
        yield "".join([f">>> {first}\n", *(f"... {line}\n" for line in more)])
        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            exec(compile(part.source, "<page>", "single"), variables)
        printed = [line.rstrip() for line in told.getvalue().rstrip("\n").split("\n")] if told.getvalue() else []
        shown = part.want.rstrip("\n").split("\n") if part.want else []
        yield "".join(f"{line}\n" for line in (shown if matches(shown, printed) else chosen(shown, printed)))


def _commands(body: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a block, with the output lines on the page."""
    for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]:
        lines = part.rstrip("\n").split("\n")
        last = next((number for number in range(len(lines)) if _is_complete("\n".join(lines[: number + 1]))), None)
        if last is None:
            raise ValueError(f"{lines[0]}: the command has no end")
        yield "\n".join(lines[: last + 1]), lines[last + 1 :]


def _is_complete(command: str) -> bool:
    r"""Return whether a command ends here: no backslash at the end, and no open quotation.

    Examples
    --------
    >>> _is_complete("simulator list " + chr(92)), _is_complete("simulator check 'a"), _is_complete("simulator list")
    (False, False, True)
    """
    try:
        shlex.split(command)
    except ValueError:
        # A quotation, or the character behind a backslash, stands on the next line.
        return False
    return not command.endswith("\\")


def _output(command: str) -> list[str]:
    """Run a command in this process; return the lines that it prints to stdout, then those to stderr."""
    program, *arguments = shlex.split(command.replace("\\\n", " "))
    told, faults = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(faults):
        if program == "simulator":
            code = guarded(lambda: application(arguments, prog_name="simulator", standalone_mode=False))
        elif program == "python":
            code = 0
            runpy.run_path(arguments[0], run_name="__main__")
        else:
            raise ValueError(f"{command}: a page runs `simulator` and `python FILE` only")
    # A successful command prints only progress to stderr.
    text = told.getvalue() + (faults.getvalue() if code else "")
    return [line.rstrip() for line in text.rstrip("\n").split("\n")]


def matches(told: Sequence[str], printed: Sequence[str]) -> bool:
    """Return whether output on a page is the printed output, with `...` for any number of lines.

    Examples
    --------
    >>> matches(["a", "...", "d"], ["a", "b", "c", "d"]), matches(["a", "..."], ["b"])
    (True, False)
    """
    pattern = "".join(r"(?:[^\n]*\n)*" if line == _LEFT_OUT else re.escape(line) + r"\n" for line in told)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


def chosen(told: Sequence[str], printed: Sequence[str]) -> list[str]:
    """Return the printed output without the parts that the page leaves out by `...`: the lines most like those shown.

    One or two further lines between lines that stood together are shown.

    Examples
    --------
    >>> chosen(["step 3 s", "...", "done"], ["step 4 s", "tokens 7", "memory 5", "room 2", "done"])
    ['step 4 s', '...', 'done']
    """
    if _LEFT_OUT not in told:
        return list(printed)
    places, first = [], 0
    for line in told:
        likeness = [_likeness(line, other) for other in printed[first:]]
        if line == _LEFT_OUT or not likeness or max(likeness) < _LEAST_LIKENESS:
            continue
        first += likeness.index(max(likeness))
        places.append(first)
        first += 1
    lines: list[str] = []
    for before, place in zip([-1, *places], [*places, len(printed)], strict=True):
        between = printed[before + 1 : place]
        lines += [_LEFT_OUT] if len(between) > _FEW or (between and not 0 <= before < place < len(printed)) else between
        lines += printed[place : place + 1]
    return lines


def _likeness(line: str, other: str) -> float:
    """Return how alike two lines are without their digits, 0 to 1."""
    return difflib.SequenceMatcher(None, *(re.sub(r"[\d.,]+", "0", text) for text in (line, other))).ratio()


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Run commands in a folder, with a terminal's width that does not depend on this machine."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "NO_COLOR")}
    os.environ.update(COLUMNS=str(_WIDTH), NO_COLOR="1")
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def main() -> None:
    """Write the outputs into the pages given on the command line, or into all pages."""
    for page in [Path(name).resolve() for name in sys.argv[1:]] or pages():
        text = page.read_text(encoding="utf-8")
        written = with_outputs(text)
        if written != text:
            page.write_text(written, encoding="utf-8")
            print(f"{page}: written anew")


if __name__ == "__main__":
    main()
