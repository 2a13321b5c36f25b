"""Which pictures of a run do README.md and docs/start show, and how are they drawn again?

    python -m tools.readme_pictures

All come from `simulator run`: the first screen of a shipped scenario's page in Chromium, the whole page of training
steps with a number at each part, and the timeline of a training step with few enough ranks to see each rank. The form
is that of `simulator app`.
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
# Selectors of the parts that docs/start/read_the_report.md explains, in the order of its numbers.
_PARTS: Final = (
    "h1", ".glance table", "#overview", "#pointpanel h2", "#timeline canvas", "#pipelinepanel", "#memory canvas",
    "#holders", "#linkspanel", "#frontpanel h2", "section:has(#all) h2", "section:has(> .scroll):not(:has(#all)) h2",
)  # fmt: skip
# Draws a number left of each part, in a margin that is wide enough.
_NUMBER: Final = """(selectors) => {
document.querySelector("main").style.paddingLeft = "38px";
dispatchEvent(new Event("resize"));
selectors.forEach((selector, i) => {
  const box = document.querySelector(selector).getBoundingClientRect();
  const mark = make("div", { class: "number", text: i + 1 });
  Object.assign(mark.style, { position: "absolute", left: `${box.left - 31}px`, top: `${box.top + scrollY}px`,
    width: "26px", height: "26px", borderRadius: "50%", background: "#b3261e", color: "#fff", textAlign: "center",
    font: "700 15px/26px system-ui, sans-serif", zIndex: 8 });
  document.body.append(mark);
});
}"""
# Few colours: pictures are stored with the code.
_COLOURS: Final = 64


def main() -> None:
    """Draw the pictures into docs/images."""
    with tempfile.TemporaryDirectory() as folder:
        step = Path(folder) / "training_step.yaml"
        step.write_text(_STEP, encoding="utf-8")
        runs = Path(folder) / "runs"
        pages = (("report", "ring_vs_parameter_server", False), ("report_parts", "pipeline_schedules", True))
        # A screen shot has text in many greys.
        for name, scenario, numbered in pages:
            page = run_of(ROOT / "scenarios" / f"{scenario}.yaml", runs).folder / "report.html"
            _store(_screen(page, Path(folder) / f"{name}.png", numbered=numbered), _IMAGES / f"{name}.png", colours=256)
        drawn = {path.stem: path for path in run_of(step, runs).pictures}
        _store(drawn["timeline"], _IMAGES / "training_step.png")
        _store(_form(Path(folder) / "what_if.png"), _IMAGES / "what_if.png", colours=256)


def _screen(page: Path, target: Path, *, numbered: bool) -> Path:
    """Return a picture of the page in a window of 1,400 x 900 pixels: its first screen, or the whole page numbered."""
    # Imported late: the browser's driver is needed only here.
    from tests.browser.chromium import browser, opened

    with browser() as running, opened(running, page) as one:
        one.drawn()
        if numbered:
            one.page.evaluate(_NUMBER, list(_PARTS))
        one.page.screenshot(path=str(target), full_page=numbered)
    return target


def _form(target: Path) -> Path:
    """Return a picture of the form of `simulator app`."""
    from tests.browser.chromium import browser
    from tests.browser.test_app import FIRST, served, tab

    with served() as (_, address), browser() as running, tab(running, address, 1100) as page:
        page.set_viewport_size({"width": 1100, "height": 520})
        page.wait_for_selector(f"text={FIRST}")
        page.screenshot(path=str(target))
    return target


def _store(picture: Path, target: Path, colours: int = _COLOURS) -> None:
    with Image.open(picture) as image:
        # Rare colours keep their hue: a legend's swatch of few pixels must look like its bars.
        reduced = image.convert("RGB").quantize(colours, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        reduced.save(target, optimize=True)
    print(f"{target.relative_to(ROOT)}: {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
