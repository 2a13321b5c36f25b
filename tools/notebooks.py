"""How are the stored outputs of notebooks made? Notebooks run from top to bottom, without outputs that vary by run.

    python -m tools.notebooks            every notebook
    python -m tools.notebooks 01 07      notebooks with these prefixes

Pictures are small, with a fixed resolution (`_DPI`) and few colours (`_COLOURS`). Counters, times of day and memory
addresses are removed. The metadata hold a digest of the executed code: a test notices changed code with old outputs
without running anything.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from base64 import b64decode, b64encode
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "notebooks"
# Longest wait for a kernel's answer [s]; a hanging kernel then fails. Cells take seconds, the longest minutes.
_TIMEOUT: Final = 3600
# Resolution and colours of pictures: legible at page width, and small enough to be stored with the code.
_DPI: Final = 80
_COLOURS: Final = 64
_KERNEL_SETTINGS: Final = f"""\
c = get_config()
c.InlineBackend.print_figure_kwargs = {{"bbox_inches": "tight", "dpi": {_DPI}}}
"""


def read(path: Path) -> Any:
    """Read a stored notebook."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def code_cells(notebook: Any) -> list[Any]:
    """Return the code cells in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def digest(notebook: Any) -> str:
    """Return a digest of the code in every cell."""
    # A NUL between cells: moving code from one cell to the next changes the digest.
    code = "\0".join(cell.source for cell in code_cells(notebook))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def execute(notebook: Any, work: Path) -> None:
    """Run a notebook, and store its outputs in the notebook, equal for equal code.

    Parameters
    ----------
    notebook : nbformat's notebook
        Notebook to run; changed in place.
    work : Path
        Empty folder; the notebook's working folder is created inside.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        A cell failed.
    """
    # A fresh IPython profile: the user's own settings must not change pictures.
    profile, folder = work / "ipython" / "profile_default", work / "folder"
    profile.mkdir(parents=True)
    folder.mkdir()
    (profile / "ipython_kernel_config.py").write_text(_KERNEL_SETTINGS)
    # The kernel and its subprocesses must find this package from any folder.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    surroundings = os.environ | {"PYTHONPATH": path, "IPYTHONDIR": str(work / "ipython")}
    client = NotebookClient(
        notebook, timeout=_TIMEOUT, startup_timeout=_TIMEOUT, iopub_timeout=_TIMEOUT, record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    client.execute(env=surroundings)
    _clean(notebook)


def _clean(notebook: Any) -> None:
    # Metadata are fixed, because IPython would store a version number.
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "outputs_of": digest(notebook),
    }
    for cell in code_cells(notebook):
        cell.execution_count = None
        for output in cell.outputs:
            if "execution_count" in output:
                output.execution_count = None
            if "image/png" in output.get("data", {}):
                output.data = {"image/png": _small(output.data["image/png"]), "text/plain": "a figure"}
                output.metadata = {}


def _small(picture: str) -> str:
    """Return a base64 PNG with fewer colours and without metadata about the drawing program."""
    with Image.open(BytesIO(b64decode(picture))) as image:
        # Without dithering, equal areas stay equal and compress well.
        few = image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    written = BytesIO()
    few.save(written, "PNG", optimize=True)
    return b64encode(written.getvalue()).decode()


def main(prefixes: list[str]) -> None:
    """Run and store the notebooks with these prefixes, or every notebook."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if prefixes and not path.name.startswith(tuple(prefixes)):
            continue
        notebook = read(path)
        # A fresh folder for each notebook: files of one notebook must not help another.
        with tempfile.TemporaryDirectory() as work:
            execute(notebook, Path(work))
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
