"""The page of every shipped scenario can be read: no text is cut, lies on another text, or begins in small letters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from simulator.basics import registry
from simulator.findings.answer import answer
from simulator.findings.comparison import Comparison
from simulator.results import run_directory
from simulator.results.page.page import FILE
from simulator.scenario.load import load_scenario, points
from simulator.sweeps.artifacts import ArtifactWriter
from simulator.sweeps.sweep import play_points
from tests.browser.chromium import CHROMIUM, DRAWN_TEXTS, MISSING, browser, opened
from tests.browser.readable import cut, open_all, overlapping, small_starts

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)

# A pipeline; the others take minutes. Pages of collectives and of compared trainings are read in test_report_page.py.
SHORT: Final = ("interleaving",)
# Played for half a minute or more.
LARGE: Final = ("llama3_405b", "deepseek_v3")


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.mark.parametrize(
    "name",
    [
        name if name in SHORT else pytest.param(name, marks=pytest.mark.long)
        for name in registry.names("scenario")
        if name not in LARGE
    ],
)
def test_a_page_can_be_read(running: Any, tmp_path: Path, name: str) -> None:
    """On a phone, a tablet and a desktop, light and dark; the whole run, and a part of it."""
    scenario = load_scenario(name)
    numbered = list(enumerate(points(scenario)))
    writer = ArtifactWriter(tmp_path, len(numbered) == 1, trace=True, view=True)
    compared = Comparison(scenario, list(play_points(numbered, 1, writer)))
    told = answer(compared)
    run_directory.begin(tmp_path, scenario)
    run_directory.finish(tmp_path, compared, told, 0.0)
    for width, scheme in ((390, "light"), (768, "dark"), (1400, "light")):
        with opened(running, tmp_path / FILE, width=width, script=DRAWN_TEXTS, color_scheme=scheme) as one:
            one.drawn()
            open_all(one)
            body = one.text("body")
            assert all(sentence in body for sentence in [told.question, *told.sentences])
            assert small_starts(one) == []
            for window in ((0, 1), (0.4, 0.5)):
                one.value(f"state.view?.set({window[0]} * state.view.end, {window[1]} * state.view.end)")
                assert (cut(one), overlapping(one)) == ([], [])
            assert one.value("document.documentElement.scrollWidth") <= width
            assert one.said == []


FLAWED = """<!doctype html><body><h1>A title</h1><p>small start</p><p style="margin-left: -30px">Cut at the left</p>
<svg viewBox="0 0 200 50" width="200"><text x="20" y="20">one</text><text x="22" y="22">another</text>
<text x="190" y="40">beyond</text></svg>
<div id="timeline"><canvas width="200" height="40"></canvas></div>
<script>
  const pen = document.querySelector("canvas").getContext("2d");
  pen.clearRect(0, 0, 200, 40);
  pen.fillText("bar", 10, 20);
  pen.fillText("next bar", 15, 20);
  pen.fillText("below", 100, 39);
</script>"""


def test_flaws_are_seen(running: Any, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(FLAWED, encoding="utf-8")
    with opened(running, tmp_path / FILE, script=DRAWN_TEXTS) as one:
        assert cut(one) == ["Cut at the left", "beyond", "below"]
        assert overlapping(one) == [["one", "another"], ["bar", "next bar"]]
        assert small_starts(one) == ["small start"]
