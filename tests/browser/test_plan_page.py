"""The page of a plan in a real browser: it asks for nothing, and every picture is of the numbers that were told."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.basics.units import format_time
from simulator.planner.plan_report import document
from simulator.results.page.plan_page import FILE, plan_page
from simulator.scenario.answer_spec import BudgetSpec
from tests.browser.chromium import CHROMIUM, MISSING, browser, opened

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)

MODEL = {"model_type": "gpt2", "n_embd": 512, "n_layer": 8, "n_head": 8, "n_positions": 512, "vocab_size": 4096}
HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)"> & <b>bold</b>?'


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    plan = simulator.plan(
        MODEL, topology="dgx_a100", gpus=8, seq_len=256, global_batch="16seq", best=5,
        fix={"checkpointing": "none"}, among={"sharding": ["zero1", "zero3"], "schedule": ["1f1b"]},
    )  # fmt: skip
    budget = BudgetSpec(tokens=1e12, price=2.5)
    return document(plan, budget, 30.0)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, told: dict[str, Any]) -> Path:
    path = tmp_path_factory.mktemp("plan") / FILE
    path.write_text(plan_page(told, HOSTILE, f"name: {HOSTILE}"), encoding="utf-8")
    return path


def test_it_asks_for_nothing_and_says_nothing(running: Any, page: Path) -> None:
    with opened(running, page) as one:
        one.until("state.drawn === 0")
        assert one.requests == [page.as_uri()]
        assert one.said == []
        assert one.text("h1") == HOSTILE


def test_the_answer_stands_on_the_first_screen_and_without_scripts(
    running: Any, page: Path, told: dict[str, Any]
) -> None:
    with opened(running, page) as one:
        for sentence in told["sentences"]:
            box = one.page.get_by_text(sentence, exact=True).first.bounding_box()
            assert box["y"] + box["height"] < 900
    with opened(running, page, java_script_enabled=False) as one:
        # A number and its unit stay on one line.
        body = one.text("body")
        assert all(sentence in body for sentence in told["sentences"])
        assert all(format_time(best["report"]["step_time_s"]) in body for best in told["best"])


def test_every_played_setting_is_a_dot_and_a_line_with_its_own_numbers(
    running: Any, page: Path, told: dict[str, Any]
) -> None:
    by_number = {str(one["number"]): one for one in told["all_played"]}
    with opened(running, page) as one:
        one.until("state.drawn === 0")
        for selector, key in (("#planfront circle", "data-index"), ("#coordinates path.setting", "data-number")):
            marks = one.page.locator(selector)
            numbers = [marks.nth(i).get_attribute(key) for i in range(marks.count())]
            assert sorted(numbers) == sorted(by_number)
        dots = one.page.locator("#planfront circle")
        for i in range(dots.count()):
            dots.nth(i).hover(force=True)
            shown = one.text("#tip")
            own = by_number[dots.nth(i).get_attribute("data-index")]
            # Dots may lie on each other: then the one above is told.
            assert any(shown.startswith(f"{other['setting']}\n") for other in by_number.values()
                       if other["step_time_s"] == pytest.approx(own["step_time_s"], rel=0.02))  # fmt: skip


def test_bars_add_up_to_the_step_and_a_picked_one_is_found_in_the_table(
    running: Any, page: Path, told: dict[str, Any]
) -> None:
    with opened(running, page) as one:
        one.until("state.drawn === 0")
        for shown, best in zip(one.value("data.plan.best"), told["best"], strict=True):
            assert sum(value for _, value in shown["parts"]) == pytest.approx(best["report"]["step_time_s"])
        one.page.locator("#planbars td.pick").nth(1).click()
        picked = one.page.locator("#best tr.spoken")
        assert picked.count() == 1
        assert picked.get_attribute("data-number") == str(told["best"][1]["number"])
        assert one.page.locator("#coordinates path.picked").get_attribute("data-number") == str(
            told["best"][1]["number"]
        )


def test_each_number_of_gpus_has_its_front_and_its_row(running: Any, tmp_path: Path) -> None:
    found = simulator.plan(
        MODEL, topology="dgx_a100", seq_len=256, global_batch="16seq", best=2,
        fix={"checkpointing": "none", "pp": 1, "tp": 1}, among={"gpus": [2, 4, 8]},
    )  # fmt: skip
    page = tmp_path / FILE
    page.write_text(found.to_html(), encoding="utf-8")
    front = found.front()
    with opened(running, page) as one:
        one.until("state.drawn === 0")
        told = one.text("#planfront")
        for gpus in (2, 4, 8, 16):
            # A front of one point is no line, and is not called a front.
            points = sum(front["gpus"] == gpus)
            assert (f"Pareto front with {gpus} GPUs" in told) is (points > 1)
            assert (f"fastest, and least memory with {gpus} GPUs" in told) is (points == 1)
        assert one.value("data.plan.played.filter((one) => one.front).map((one) => one.gpus).sort()") == sorted(
            front["gpus"]
        )
        assert one.page.locator("#planfront circle").count() == len(one.value("data.plan.played"))
        (row,) = [row for row in found.sizes().to_dict("records") if row["gpus"] == 4]
        assert f"4\t{format_time(row['step_time_s'])}\t{row['tokens_per_s_per_gpu']:,.0f}" in one.text("body")


def test_nothing_is_cut_on_paper(running: Any, page: Path) -> None:
    """The table of the best settings and all axes of the settings lie within paper of 720 pixels."""
    with opened(running, page) as one:
        one.until("state.drawn === 0")
        one.value("dispatchEvent(new Event('beforeprint'))")
        one.page.emulate_media(media="print")
        right = "document.querySelector('main').getBoundingClientRect().right"
        for part in ("#best", "#kinds", "#coordinates svg", "#planbars table", "#planfront svg"):
            assert one.value(f"document.querySelector('{part}').getBoundingClientRect().right <= {right}"), part
        assert one.page.locator("#planbars tbody tr").last.is_visible()


@pytest.mark.parametrize("width", [390, 1400])
def test_names_of_axes_do_not_touch_and_a_cut_picture_says_so(running: Any, page: Path, width: int) -> None:
    with opened(running, page, width=width) as one:
        one.until("state.drawn === 0")
        assert one.value("document.documentElement.scrollWidth") <= width
        # The legend names the kinds of settings that are drawn.
        legend = one.value("document.querySelectorAll('#coordinates .legend span').length")
        assert legend == one.value(
            "new Set([...document.querySelectorAll('#coordinates path')].map(p => p.getAttribute('stroke'))).size"
        )
        places = one.value(
            "[...document.querySelectorAll('#coordinates text.soft')].map(t => t.getBBox())"
            ".map(b => [b.x, b.x + b.width])"
        )
        assert len(places) > 5
        assert all(end < begin for (_, end), (begin, _) in pairwise(places))
        box = one.page.locator("#coordinates .scroll")
        one.until(
            "document.querySelector('#coordinates .scroll').classList.contains('cutright') === "
            + str(width < 1000).lower()
        )
        assert ("Scroll right for the rest." in one.text("#coordinates")) is (width < 1000)
        assert box.evaluate("box => box.scrollWidth > box.clientWidth") is (width < 1000)
