"""How do notebooks get the outputs that they are stored with?

They are run from top to bottom, and stored without what differs from run to run.

    python -m tools.notebooks            all of them
    python -m tools.notebooks 01 07      those whose names begin so

Pictures have one resolution (`_DPI`) and few colours (`_COLOURS`), so that they are small. Counters, times of day and
addresses in memory are left out. A digest of the code that was run stands in a notebook's metadata: a test sees by it,
without running anything, that code was changed and outputs were not.
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
# Limit of each wait for a kernel [s], so that a kernel that hangs fails; a cell takes seconds, the longest minutes.
_TIMEOUT: Final = 3600
# Of pictures: legible at the width of a page, and small enough to be kept with the code.
_DPI: Final = 80
_COLOURS: Final = 64
_KERNEL_SETTINGS: Final = f"""\
c = get_config()
c.InlineBackend.print_figure_kwargs = {{"bbox_inches": "tight", "dpi": {_DPI}}}
"""


def read(path: Path) -> Any:
    """A notebook as it is stored."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def code_cells(notebook: Any) -> list[Any]:
    """Its cells of code, in order."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def digest(notebook: Any) -> str:
    """Digest of all of its code."""
    code = "\0".join(cell.source for cell in code_cells(notebook))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def execute(notebook: Any, work: Path) -> None:
    """Run a notebook, and leave in it what it prints and draws, the same for the same code.

    Parameters
    ----------
    notebook : nbformat's notebook
        Changed in place.
    work : Path
        An empty folder: the one that the notebook is run in is made there.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        A cell failed.
    """
    profile, folder = work / "ipython" / "profile_default", work / "folder"
    profile.mkdir(parents=True)
    folder.mkdir()
    (profile / "ipython_kernel_config.py").write_text(_KERNEL_SETTINGS)
    # The kernel and the processes that it starts must find this package, also from another folder.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    surroundings = os.environ | {"PYTHONPATH": path, "IPYTHONDIR": str(work / "ipython")}
    client = NotebookClient(
        notebook, timeout=_TIMEOUT, startup_timeout=_TIMEOUT, iopub_timeout=_TIMEOUT, record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    client.execute(env=surroundings)
    _clean(notebook)


def _clean(notebook: Any) -> None:
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
    """A picture with few colours and no words of who drew it, in base64 as before."""
    with Image.open(BytesIO(b64decode(picture))) as image:
        few = image.convert("RGB").quantize(_COLOURS, dither=Image.Dither.NONE)
    written = BytesIO()
    few.save(written, "PNG", optimize=True)
    return b64encode(written.getvalue()).decode()


def main(prefixes: list[str]) -> None:
    """Run and store notebooks whose names begin with one of these, or all."""
    for path in sorted(FOLDER.glob("*.ipynb")):
        if prefixes and not path.name.startswith(tuple(prefixes)):
            continue
        notebook = read(path)
        with tempfile.TemporaryDirectory() as work:
            execute(notebook, Path(work))
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call]
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
