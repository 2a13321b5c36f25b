"""Every notebook runs from top to bottom, shows its figures, and is stored without outputs."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# Seconds for one cell; a whole notebook takes a few.
TIMEOUT = 120
# One of them measures how long it takes, and asks how much memory there is.
ALLOWED = {"simulator", "numpy", "pandas", "matplotlib", "os", "time"}
FIGURES = {
    "01_collectives_step_by_step": 11,
    "02_where_the_bandwidth_goes": 8,
    "03_sweeping_worker_counts": 2,
    "04_low_precision_sums": 1,
    "05_zero_memory_and_time": 4,
    "06_checkpointing_tradeoff": 4,
    "07_flash_attention": 3,
    "08_seventeen_questions": 12,
    "09_one_loss_curve": 3,
    "10_half_precision": 5,
    "11_servers_that_do_not_wait": 4,
    "12_flash_attention_is_exact": 1,
    "13_from_8_to_131072_gpus": 1,
    "14_pipelines_drawn_and_compared": 6,
    "15_three_dimensions": 2,
    "16_experts": 1,
}

# These take less than a quarter of a minute each; `make notebooks` runs all.
SHORT = {
    "01_collectives_step_by_step",
    "02_where_the_bandwidth_goes",
    "06_checkpointing_tradeoff",
    "07_flash_attention",
}

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
every_notebook_run = pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=() if p.stem in SHORT else pytest.mark.long) for p in NOTEBOOKS],
    ids=lambda p: p.stem,
)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def python_of(notebook: Any) -> str:
    """All code, without the lines that only IPython understands."""
    lines = [line for cell in code_cells(notebook) for line in cell.source.splitlines()]
    return "\n".join(line for line in lines if not line.startswith("%"))


def test_the_notebooks_are_all_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(FIGURES)


@every_notebook_run
def test_it_runs_to_the_end_and_shows_its_figures(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The kernel and the processes that it starts must find this package, also from another folder.
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    # 131,072 GPUs take a minute and 6 GB.
    monkeypatch.setenv("LARGEST", "16384")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    work = tmp_path / "work"
    work.mkdir()
    notebook = read(path)
    NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": str(work)}}).execute()
    outputs = [output for cell in code_cells(notebook) for output in cell.outputs]
    figures = sum("image/png" in output.get("data", {}) for output in outputs)
    assert figures == FIGURES[path.stem]
    assert [output.text for output in outputs if output.output_type == "stream"] == []
    assert list(work.iterdir()) == []


@every_notebook
def test_no_outputs_and_no_execution_counts_are_stored(path: Path) -> None:
    for cell in code_cells(read(path)):
        assert cell.outputs == []
        assert cell.execution_count is None


@every_notebook
def test_it_asks_for_the_kernel_that_every_installation_has(path: Path) -> None:
    assert read(path).metadata.kernelspec.name == "python3"


@every_notebook
def test_it_imports_nothing_but_the_package_and_the_libraries_of_tables_and_figures(path: Path) -> None:
    found: set[str] = set()
    for node in ast.walk(ast.parse(python_of(read(path)))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found.add(str(node.module).partition(".")[0])
    assert "simulator" in found
    assert found <= ALLOWED


@every_notebook
def test_its_functions_are_a_few_lines_long(path: Path) -> None:
    for node in ast.walk(ast.parse(python_of(read(path)))):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 8, node.name


@every_notebook
def test_it_names_no_folder_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.])/(?:home|root|tmp|work|usr|Users|mnt|opt|var)\b|[A-Z]:\\\\", text) == []


@every_notebook
def test_its_cells_are_named_and_no_two_alike(path: Path) -> None:
    names = [cell.id for cell in read(path).cells]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)
    # Names that a tool makes up are eight hexadecimal digits, and differ each time.
    assert not [name for name in names if re.fullmatch(r"[0-9a-f]{8}", name)]


@every_notebook
def test_it_begins_with_a_title_and_ends_with_words(path: Path) -> None:
    cells = read(path).cells
    assert cells[0].cell_type == cells[-1].cell_type == "markdown"
    assert cells[0].source.startswith("# ")


@every_notebook
def test_at_most_three_code_cells_follow_each_other_without_words(path: Path) -> None:
    kinds = "".join("c" if cell.cell_type == "code" else " " for cell in read(path).cells)
    assert max(len(run) for run in kinds.split()) <= 3
