"""How is the documentation site built?

    python -m tools.site              all of it; scenarios whose run is not kept are played, minutes at first
    python -m tools.site --quick      a few scenarios alone, the others with question and file

Pages are in FOLDER/html (build/site/html where --folder is left out). The exit code is 1 where Sphinx warns or a link
leads nowhere.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from tools.site import assemble, built_links, gallery_pages
from tools.site.gallery_runs import ROOT, run_of

# Collective and step, each of a few seconds: they show that a played scenario gets its answer and its picture.
QUICK: Final = ("n_servers", "gradient_accumulation")


def main() -> int:
    """Put the source together, build it, and look every link up."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description="Build the documentation site.")
    parser.add_argument("--quick", action="store_true", help="Play a few scenarios alone.")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "site", help="Where all of it goes.")
    asked = parser.parse_args()
    source, html = asked.folder / "source", asked.folder / "html"
    assemble.assemble(source)
    entries = _entries(asked.folder / "runs", quick=asked.quick)
    gallery_pages.write(entries, source)
    if _sphinx(source, html, asked.folder / "doctrees"):
        return 1
    gallery_pages.write_reports(entries, html)
    faults = built_links.faults(html)
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"pages: {html / 'index.html'}")
    return 1 if faults else 0


def _entries(store: Path, *, quick: bool) -> list[gallery_pages.Entry]:
    entries = []
    for name, path in gallery_pages.scenarios().items():
        played = name in QUICK or not quick
        if played:
            print(f"scenario: {name}", flush=True)
        entries.append(gallery_pages.entry(path, run_of(path, store) if played else None))
    return entries


def _sphinx(source: Path, html: Path, doctrees: Path) -> int:
    options = ["-b", "html", "-c", str(ROOT / "docs" / "site"), "-d", str(doctrees), "-W", "--keep-going", "-q"]
    command = [sys.executable, "-m", "sphinx", *options, str(source), str(html)]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}).returncode


if __name__ == "__main__":
    sys.exit(main())
