"""Which pages does Sphinx read? The repository's pages at their own paths; links between pages stay valid."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from tools.site.gallery_runs import ROOT

_SITE: Final = ROOT / "docs" / "site"
# Paths for the site's own pages. Pages in docs/, notebooks and others keep their paths.
_OWN: Final = {
    "start.md": "start.md",
    "guide.md": "guide.md",
    "reference.md": "reference.md",
    "notebooks.md": "notebooks/index.md",
    "python.rst": "reference/python.rst",
}
_KEPT: Final = (
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "docs/*.md",
    "docs/[!s]*/*.md",
    "docs/start/*.md",
    "docs/images/*",
    "notebooks/*.ipynb",
)


def assemble(source: Path) -> None:
    """Copy and write every page except the gallery; unchanged files keep their time, and Sphinx reads them once."""
    front = (ROOT / "README.md").read_text(encoding="utf-8")
    # In the repository, gallery and notebooks are folders; on the site they have pages.
    for folder, page in (("scenarios", "gallery/index.md"), ("notebooks", "notebooks/index.md")):
        front = front.replace(f"]({folder})", f"]({page})")
    _write(source / "index.md", front + (_SITE / "contents.md").read_text(encoding="utf-8"))
    for name, place in _OWN.items():
        _copy(_SITE / name, source / place)
    # Sorted, because the order of a folder differs between machines.
    for pattern in _KEPT:
        for origin in sorted(ROOT.glob(pattern)):
            _copy(origin, source / origin.relative_to(ROOT))

    # On a code host the index is a list of links; Sphinx also needs the order of the pages.
    questions = source / "docs" / "howto" / "index.md"
    contents = "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"
    questions.write_text(questions.read_text(encoding="utf-8") + contents, encoding="utf-8")


def _write(target: Path, text: str) -> None:
    # Writing an equal file would renew its time.
    if not target.is_file() or target.read_text(encoding="utf-8") != text:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def _copy(origin: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(origin, target)
