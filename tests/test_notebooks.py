"""Every notebook is stored with the outputs of its code, runs from top to bottom, and asks for nothing from inside."""

from __future__ import annotations

import ast
import re
from base64 import b64decode
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from simulator import parts, plots
from tools.notebooks import FOLDER, code_cells, digest, execute, read

RECORDED = Path(__file__).parent / "traced"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
# One of them measures how long it takes, and asks for the largest cluster that there is time for.
LIBRARIES = {"numpy", "pandas", "matplotlib", "os", "time", "warnings"}
PUBLIC = {"simulator", "simulator.errors", "simulator.parts"}
# Of a file, pictures included.
MOST_BYTES = 300_000
FIGURES = {
    "01_collectives_step_by_step": 11,
    "02_where_the_bandwidth_goes": 8,
    "03_sweeping_worker_counts": 3,
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
    "17_which_layout": 2,
    "18_does_it_fit": 6,
    "19_your_own_model": 3,
    "20_thirty_days": 5,
    "21_two_jobs": 5,
    "22_why_gpus_wait": 4,
}

# Takes ten seconds; `make notebooks` runs all.
SHORT = {"01_collectives_step_by_step"}

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
every_notebook_run = pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=() if p.stem in SHORT else pytest.mark.long) for p in NOTEBOOKS],
    ids=lambda p: p.stem,
)


@cache
def stored(path: Path) -> Any:
    """Read a notebook once for all tests, none of which changes it."""
    return read(path)


def python_of(notebook: Any) -> str:
    """All code, without the lines that only IPython understands."""
    lines = [line for cell in code_cells(notebook) for line in cell.source.splitlines()]
    return "\n".join(line for line in lines if not line.startswith("%"))


def tags(cell: Any) -> list[str]:
    found: list[str] = cell.metadata.get("tags", [])
    return found


def pictures(cell: Any) -> list[str]:
    return [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]


def texts(cell: Any) -> list[Any]:
    """All that a cell prints or shows but its pictures."""
    return [
        {kind: text for kind, text in output.data.items() if kind != "image/png"} if "data" in output else output
        for output in cell.outputs
    ]


def size(picture: str) -> tuple[int, int]:
    """Width and height, to 4 pixels.

    Equal figures are equal bytes with one version of matplotlib on one machine. Other versions set letters a hair
    differently, which moves a cropped edge by a pixel or two, so bytes are not compared.
    """
    with Image.open(BytesIO(b64decode(picture))) as image:
        return round(image.width / 8), round(image.height / 8)


def test_the_notebooks_are_all_there() -> None:
    assert [path.stem for path in NOTEBOOKS] == list(FIGURES)


@every_notebook_run
def test_it_runs_to_the_end_and_gives_the_outputs_that_are_stored(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 131,072 GPUs take a minute and 6 GB.
    monkeypatch.setenv("LARGEST", "16384")
    notebook = read(path)
    execute(notebook, tmp_path)
    for before, now in zip(code_cells(stored(path)), code_cells(notebook), strict=True):
        if "varies" in tags(now):  # with the machine: how long something took, or the last digits of a matmul
            assert [sorted(output.data) for output in now.outputs] == [sorted(o.data) for o in before.outputs]
        else:
            assert texts(now) == texts(before), now.id
            assert [size(picture) for picture in pictures(now)] == [size(picture) for picture in pictures(before)]
    # Nothing is left in the folder that it ran in.
    assert list((tmp_path / "folder").iterdir()) == []


@every_notebook
def test_its_outputs_are_those_of_its_code_and_of_nothing_before(path: Path) -> None:
    notebook = stored(path)
    assert notebook.metadata["outputs_of"] == digest(notebook), "run `make notebooks-write`"


@every_notebook
def test_it_is_stored_small_with_its_figures_and_without_messages_or_counters(path: Path) -> None:
    cells = code_cells(stored(path))
    assert path.stat().st_size <= MOST_BYTES
    assert sum(len(pictures(cell)) for cell in cells) == FIGURES[path.stem]
    kinds = {output.output_type for cell in cells for output in cell.outputs}
    assert kinds <= {"execute_result", "display_data"}
    assert [cell.execution_count for cell in cells if cell.execution_count is not None] == []


@every_notebook
def test_its_first_code_is_its_parameters(path: Path) -> None:
    notebook = stored(path)
    first, *others = code_cells(notebook)
    assert tags(first) == ["parameters"]
    assert [cell.id for cell in others if "parameters" in tags(cell)] == []
    given = {node.id for node in names_in(first.source) if isinstance(node.ctx, ast.Store)}
    assert given
    # Who changes a parameter changes what is run: each is read.
    rest = python_of(notebook).removeprefix(first.source)
    assert given - {node.id for node in names_in(rest) if isinstance(node.ctx, ast.Load)} == set()


def names_in(code: str) -> list[ast.Name]:
    return [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]


@every_notebook
def test_it_ends_with_exercises_and_an_answer_to_each_that_is_run(path: Path) -> None:
    cells = stored(path).cells
    [exercises] = [cell.source for cell in cells if cell.id == "exercises"]
    questions = re.findall(r"^\d+\. ", exercises, re.M)
    answers = [cell.id for cell in cells if re.fullmatch(r"answer-\d", cell.id) and cell.cell_type == "code"]
    words = [cell.source[:3] for cell in cells if re.fullmatch(r"answer-\d-words", cell.id)]
    assert len(questions) >= 2
    assert len(answers) == len(questions)
    assert words == questions


@every_notebook
def test_it_asks_for_the_kernel_that_every_installation_has(path: Path) -> None:
    assert stored(path).metadata.kernelspec.name == "python3"


@every_notebook
def test_it_imports_nothing_but_public_names_and_the_libraries_of_tables_and_figures(path: Path) -> None:
    found: set[str] = set()
    for node in ast.walk(ast.parse(python_of(stored(path)))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            module = str(node.module)
            found.add(module if module.startswith("simulator") else module.partition(".")[0])
    assert "simulator" in found
    assert found <= LIBRARIES | PUBLIC


@pytest.mark.parametrize("name", parts.__all__)
def test_every_part_is_where_it_is_said_to_be(name: str) -> None:
    assert getattr(parts, name) is not None


def test_the_trace_in_a_notebook_is_a_recorded_one() -> None:
    [cell] = [cell for cell in stored(FOLDER / "19_your_own_model.ipynb").cells if cell.id == "recorded-file"]
    [value] = [node.value for node in ast.parse(cell.source).body if isinstance(node, ast.Assign)]
    assert ast.literal_eval(value).strip() == (RECORDED / "llama.json").read_text().strip()


def test_every_part_and_every_plot_is_used_by_a_notebook() -> None:
    code = "\n".join(python_of(stored(path)) for path in NOTEBOOKS)
    assert [name for name in parts.__all__ if not re.search(rf"\b{name}\b", code)] == []
    assert [name for name in plots.__all__ if f"plots.{name}(" not in code] == []


@every_notebook
def test_its_functions_are_a_few_lines_long(path: Path) -> None:
    for node in ast.walk(ast.parse(python_of(stored(path)))):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 8, node.name


@every_notebook
def test_it_names_no_folder_of_a_machine(path: Path) -> None:
    cells = stored(path).cells
    text = "\n".join(cell.source for cell in cells) + "\n".join(str(texts(cell)) for cell in code_cells(stored(path)))
    assert re.findall(r"(?<![\w.])/(?:home|root|tmp|work|usr|Users|mnt|opt|var)\b|[A-Z]:\\\\", text) == []


@every_notebook
def test_its_cells_are_named_and_no_two_alike(path: Path) -> None:
    names = [cell.id for cell in stored(path).cells]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)
    # Names that a tool makes up are eight hexadecimal digits, and differ each time.
    assert not [name for name in names if re.fullmatch(r"[0-9a-f]{8}", name)]


@every_notebook
def test_it_begins_with_a_title_and_ends_with_words(path: Path) -> None:
    cells = stored(path).cells
    assert cells[0].cell_type == cells[-1].cell_type == "markdown"
    assert cells[0].source.startswith("# ")


@every_notebook
def test_at_most_three_code_cells_follow_each_other_without_words(path: Path) -> None:
    kinds = "".join("c" if cell.cell_type == "code" else " " for cell in stored(path).cells)
    assert max(len(run) for run in kinds.split()) <= 3
