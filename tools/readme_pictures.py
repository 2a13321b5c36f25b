"""Which two pictures does README.md show, and how are they drawn again?

    python -m tools.readme_pictures

Both come from `simulator run`: the first screen of a shipped scenario's page in Chromium, and the timeline of a
training step with few enough ranks to see each rank.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from PIL import Image

from tools.site.gallery_runs import ROOT, run_of

_STEP: Final = """\
# What does a rank do during a step with sharded parameters?
name: training_step
cluster: {topology: leaf_spine_100g, world_size: 4}
training: {model: gpt2_medium, seq_len: 1024, micro_batch_size: 4, sharding: zero3}
plots: [timeline]
"""
_IMAGES: Final = ROOT / "docs" / "images"
# Few colours: pictures are stored with the code.
_COLOURS: Final = 64


def main() -> None:
    """Draw both pictures into docs/images."""
    with tempfile.TemporaryDirectory() as folder:
        step = Path(folder) / "training_step.yaml"
        step.write_text(_STEP, encoding="utf-8")
        ring = ROOT / "scenarios" / "ring_vs_parameter_server.yaml"
        runs = Path(folder) / "runs"
        page = run_of(ring, runs).folder / "report.html"
        # A screen shot has text in many greys.
        _store(_first_screen(page, Path(folder) / "screen.png"), _IMAGES / "report.png", colours=256)
        drawn = {path.stem: path for path in run_of(step, runs).pictures}
        _store(drawn["timeline"], _IMAGES / "training_step.png")


def _first_screen(page: Path, target: Path) -> Path:
    """Return a picture of the page in a window of 1,400 x 900 pixels."""
    # Imported late: the browser's driver is needed only here.
    from tests.browser.chromium import browser, opened

    with browser() as running, opened(running, page) as one:
        one.drawn()
        one.page.screenshot(path=str(target))
    return target


def _store(picture: Path, target: Path, colours: int = _COLOURS) -> None:
    with Image.open(picture) as image:
        image.convert("RGB").quantize(colours, dither=Image.Dither.NONE).save(target, optimize=True)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
