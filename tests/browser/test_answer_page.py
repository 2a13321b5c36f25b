"""The page of an answer on days or on jobs in a real browser: any window, light and dark, and no requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator import goodput, simulate_jobs
from simulator.results.answer_directory import write
from simulator.results.page.answer_page import FILE
from simulator.results.presentation import Presentation
from simulator.run.jobs import job_pictures as of_jobs
from simulator.run.reliability import goodput_pictures as of_days
from simulator.testing.looking import begins_well
from tests.browser.chromium import CHROMIUM, MISSING, browser, opened
from tests.browser.readable import cut

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)

HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)"> & <b>bold</b>?'
STEP: dict[str, Any] = {
    "name": "days",
    "cluster": {"topology": "dgx_h100", "world_size": 16},
    "training": {"model": "llama3_8b", "seq_len": 2048, "sharding": "zero3", "framework": "torchtitan"},
}
SPREAD = {"training": {"model": "gpt2", "seq_len": 256}, "world_size": 4, "placement": "spread"}


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module", params=["days", "jobs"])
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "days":
        found = goodput(STEP, days=30.0, failures=0.5)
        drawn = of_days.pictures(found)
        shown = Presentation(HOSTILE, found.subject, found.sentences, found.to_dict(), found.tables, drawn)
    else:
        run = simulate_jobs({"cluster": {"topology": "leaf_spine_100g"}, "jobs": {"a": SPREAD, "b": SPREAD}}, shifts=1)
        shown = Presentation(HOSTILE, "a, b", run.sentences, run.to_dict(), run.tables, of_jobs.pictures(run))
    write(folder, shown)
    return folder / FILE


@pytest.mark.parametrize("width", [1400, 390])
@pytest.mark.one_of(4)
def test_it_fits_into_the_window_and_asks_for_nothing(running: Any, page: Path, width: int) -> None:
    with opened(running, page, width=width) as one:
        assert one.requests == [page.as_uri(), *(url for url in one.requests[1:] if url.startswith("data:image/png"))]
        assert one.said == []
        assert one.text("h1") == HOSTILE
        assert one.value("document.documentElement.scrollWidth") <= width
        sizes = one.value("[...document.images].map(image => [image.naturalWidth, image.width])")
        assert len(sizes) >= 3
        # Letters of 9.5 points on 150 pixels an inch stay legible at two fifths of the size.
        assert all(drawn >= 0.38 * natural > 0 for natural, drawn in sizes)
        assert [text for text in cut(one) if width > 500] == []
        assert all(map(begins_well, one.page.locator("h2").all_inner_texts()))


@pytest.mark.parametrize("width", [1400, 390])
def test_a_box_that_scrolls_says_so(running: Any, page: Path, width: int) -> None:
    boxes = """[...document.querySelectorAll('.flow .panel')].map(box => ({
        hidden: box.scrollWidth > box.clientWidth + 1,
        picture: !!box.querySelector('img.picture'),
        cue: getComputedStyle(box, '::before').content,
        shadow: getComputedStyle(box).backgroundAttachment,
    }))"""
    with opened(running, page, width=width) as one:
        found = one.value(boxes)
    assert all("local, local, scroll, scroll" in box["shadow"] for box in found)
    assert all(("Swipe" in box["cue"]) == box["picture"] for box in found if box["hidden"])
    assert any(box["hidden"] for box in found) == (width == 390)
    assert all(box["cue"] == "none" for box in found if width == 1400)


def test_it_follows_the_colours_of_the_system(running: Any, page: Path) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        with opened(running, page, color_scheme=scheme) as one:
            grounds.append(one.value("getComputedStyle(document.body).backgroundColor"))
            # Pictures have black letters, and keep their white ground.
            assert one.value("getComputedStyle(document.images[0]).backgroundColor") == "rgb(255, 255, 255)"
    assert grounds[0] != grounds[1]
