"""How is the documentation site built? By Sphinx, from a source folder put together here.

    python -m tools.site              every page; scenarios without a stored run are simulated (minutes at first)
    python -m tools.site --quick      simulate a few scenarios; show the rest with question and file

Pages are written to FOLDER/html (default build/site/html). The exit code is 1 if Sphinx warns or a link is broken.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tools.site import assemble, built_links, gallery_pages
from tools.site.gallery_runs import ROOT, run_of

# A collective and a training step of a few seconds each: they test that a simulated scenario shows answer and picture.
QUICK: Final = ("n_servers", "gradient_accumulation")


def main() -> int:
    """Assemble the source, build the site, and check every link."""
    parser = argparse.ArgumentParser(prog="python -m tools.site", description="Build the documentation site.")
    parser.add_argument("--quick", action="store_true", help="Play a few scenarios alone.")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "site", help="Where all of it goes.")
    asked = parser.parse_args()
    source, html = asked.folder / "source", asked.folder / "html"
    assemble.assemble(source)
    entries = _entries(asked.folder / "runs", quick=asked.quick)
    gallery_pages.write(entries, source)
    # Warnings are errors (-W); --keep-going reports every warning first.
    if _sphinx(source, html, asked.folder / "doctrees"):
        return 1
    # Reports are complete pages, and are added after Sphinx has built the others.
    gallery_pages.write_reports(entries, html)
    faults = built_links.faults(html)
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"pages: {html / 'index.html'}")
    return 1 if faults else 0


def _entries(store: Path, *, quick: bool) -> list[gallery_pages.Entry]:
    def entry(name: str, path: Path) -> gallery_pages.Entry:
        # Without a run, the page shows question and file.
        played = name in QUICK or not quick
        if played:
            print(f"scenario: {name}", flush=True)
        return gallery_pages.entry(path, run_of(path, store) if played else None)

    scenarios = gallery_pages.scenarios()
    # Each run is a process of its own: as many at once as there are processors.
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(entry, scenarios, scenarios.values()))


def _sphinx(source: Path, html: Path, doctrees: Path) -> int:
    options = ["-b", "html", "-c", str(ROOT / "docs" / "site"), "-d", str(doctrees), "-W", "--keep-going", "-q"]
    command = [sys.executable, "-m", "sphinx", *options, str(source), str(html)]
    # Sphinx runs in a subprocess and imports this repository's modules.
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}).returncode


if __name__ == "__main__":
    sys.exit(main())
