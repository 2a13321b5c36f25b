"""The page of a run in a real browser: it asks for nothing, answers first, and every picture follows the pick."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from benchmarks.pages import many_spans
from simulator.basics.units import format_time
from simulator.findings.answer import answer
from simulator.findings.comparison import Comparison
from simulator.report.numbers.memory_at import allocations_at
from simulator.report.views import view as views
from simulator.results import run_directory
from simulator.results.page.page import FILE, report_page
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario, points
from simulator.scenario.records import Scenario
from simulator.sweeps.artifacts import ArtifactWriter
from simulator.sweeps.sweep import play_points
from tests.browser.chromium import CHROMIUM, DRAWN_TEXTS, MISSING, Opened, browser, opened
from tests.browser.readable import ALONG_TIME, cut, open_all, overlapping

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason=MISSING)

COLLECTIVE: dict[str, Any] = {
    "name": "ring_or_naive",
    "question": "Which is faster, a ring or the naive way?",
    "cluster": {"topology": "star_100g", "world_size": 8},
    "collective": {"operation": "all_reduce", "size": "1 MiB", "payload": False},
    "compare": {"collective.algorithm": ["ring", "naive"]},
    "sweep": {"cluster.world_size": [4, 8], "collective.size": ["64 KiB", "1 MiB", "16 MiB"]},
    "plots": [],
}
TRAINING: dict[str, Any] = {
    "name": "sharded",
    "question": "What does sharding save?",
    "cluster": {"topology": "dgx_a100", "world_size": 8},
    "training": {
        "model": "gpt2_medium",
        "seq_len": 512,
        "collectives": "played",
        "cuda_graphs": "full_iteration",
    },
    "compare": {"training.sharding": ["ddp", "zero3"]},
    "sweep": {"training.micro_batch_size": [1, 4]},
    "plots": [],
}
PIPELINE: dict[str, Any] = {
    "name": "staged",
    "question": "Which order is best?",
    "cluster": {"topology": "dgx_h100", "world_size": 8},
    "training": {
        "model": "gpt2_medium", "seq_len": 512, "gradient_accumulation_steps": 8, "sharding": "zero1",
        "parallelism": {"pp": 4}, "cuda_graphs": "full_iteration",
    },
    "compare": {"training.parallelism.schedule": ["gpipe", "1f1b"]},
    "plots": [],
}  # fmt: skip
HOSTILE = '</script><script>alert(1)</script><img src=x onerror="alert(2)"> & <b>bold</b>?'


def run(folder: Path, data: dict[str, Any]) -> Scenario:
    """Play a scenario into a folder, as `simulator run` does."""
    scenario = load_scenario(data)
    numbered = list(enumerate(points(scenario)))
    folder.mkdir()
    keeper = ArtifactWriter(folder, len(numbered) == 1, trace=True, view=True)
    outcomes = list(play_points(numbered, 1, keeper))
    compared = Comparison(scenario, outcomes)
    run_directory.begin(folder, scenario)
    run_directory.finish(folder, compared, answer(compared), 0.0)
    return scenario


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("runs")
    found = {}
    for data in (COLLECTIVE, TRAINING, PIPELINE):
        found[data["name"]] = base / data["name"]
        run(found[data["name"]], data)
    return found


def report(folder: Path) -> Any:
    return json.loads((folder / "report.json").read_text(encoding="utf-8"))


def pixels(one: Opened, selector: str) -> Any:
    return imread(io.BytesIO(one.page.locator(selector).screenshot()))


@pytest.mark.parametrize("name", ["ring_or_naive", "sharded", "staged"])
@pytest.mark.one_of(3)
def test_it_asks_for_nothing_but_itself_and_says_nothing(running: Any, folders: dict[str, Path], name: str) -> None:
    with opened(running, folders[name] / FILE) as one:
        one.drawn()
        assert one.requests == [(folders[name] / FILE).as_uri()]
        assert one.said == []
        # The policy holds against what the page itself would try.
        assert one.value("fetch('https://example.com').then(() => 'went out', () => 'refused')") == "refused"


def test_the_answer_stands_on_the_first_screen(running: Any, folders: dict[str, Path]) -> None:
    told = report(folders["ring_or_naive"])["answer"]
    with opened(running, folders["ring_or_naive"] / FILE) as one:
        one.drawn()
        for sentence in [*told["sentences"], told["why"]]:
            place = one.page.get_by_text(sentence, exact=False).first.bounding_box()
            assert place["y"] + place["height"] < 900
        winners = one.page.locator("td[data-point]").first.bounding_box()
        assert winners["y"] + winners["height"] < 900


def test_without_scripts_the_answer_and_all_figures_are_there(running: Any, folders: dict[str, Path]) -> None:
    told = report(folders["sharded"])
    with opened(running, folders["sharded"] / FILE, java_script_enabled=False) as one:
        body = one.text("body")
        assert all(sentence in body for sentence in told["answer"]["sentences"])
        assert all(format_time(point["report"]["step_time_s"]) in body for point in told["points"])
        assert "Point: " not in body


def test_hovered_values_are_those_of_the_report(running: Any, folders: dict[str, Path]) -> None:
    told = report(folders["ring_or_naive"])["points"]
    with opened(running, folders["ring_or_naive"] / FILE) as one:
        one.drawn()
        dots = one.page.locator("#overview circle")
        assert dots.count() == 6
        for i in range(dots.count()):
            dots.nth(i).hover(force=True)
            time = told[int(dots.nth(i).get_attribute("data-index"))]["report"]["time_s"]
            assert one.text("#tip").endswith(f": {format_time(time)}")
        point = one.value("state.point")
        one.page.mouse.move(*middle_of_lane(one, 0))
        assert f"takes {format_time(told[point]['report']['time_s'])}" in one.text("#tip")


def middle_of_lane(one: Opened, lane: int) -> tuple[float, float]:
    """A place on a lane of the timeline, right of its labels."""
    one.page.locator("#timeline canvas").scroll_into_view_if_needed()
    box = one.page.locator("#timeline canvas").bounding_box()
    return box["x"] + 200 + (box["width"] - 200) / 2, box["y"] + (lane + 0.5) * one.value("state.timeline.row")


def test_spans_are_those_of_the_run(running: Any, folders: dict[str, Path]) -> None:
    """Every span that is drawn stands in spans.csv with its times; alike ranks count once for all of them."""
    with opened(running, folders["sharded"] / FILE) as one:
        one.drawn()
        place = folders["sharded"] / "points" / f"{one.value('state.point'):04d}"
        rows = [line.split(",") for line in (place / "spans.csv").read_text(encoding="utf-8").splitlines()[1:]]
        assert one.value("state.timeline.lanes.reduce((n, l) => n + l.alike * l.start.length, 0)") == len(rows)
        drawn = one.value(
            "state.timeline.lanes.flatMap((l) => [...l.start].map((s, i) => "
            "[l.rank, l.stream, l.nameOf(i), s * state.timeline.unit, l.end[i] * state.timeline.unit]))"
        )
        known = sorted((int(r[0]), r[1], float(r[4]), float(r[5]), r[2]) for r in rows)
        shown = {rank for rank, *_ in drawn}
        wanted = [row for row in known if row[0] in shown]
        assert len(drawn) == len(wanted) > 100
        for (rank, stream, name, start, end), row in zip(
            sorted(drawn, key=lambda span: (span[0], span[1], span[3])), wanted, strict=True
        ):
            assert (rank, stream, name) == (row[0], row[1], row[4])
            assert (start, end) == pytest.approx((row[2], row[3]), abs=1e-9)


def test_the_breakdown_names_the_condition_of_its_points(running: Any, folders: dict[str, Path]) -> None:
    """Two shardings at two micro-batches: bars of the two points with the micro-batch of the selected point."""
    with opened(running, folders["sharded"] / FILE) as one:
        one.drawn()
        for place, micro in enumerate(("1", "4")):
            one.value(f"pick(pointAt([0, {place}]))")
            value = one.value(f"data.axes[1].values[{place}]")
            assert micro in value
            assert one.text("#breakdown caption").endswith(f", with {value} (2 of 4 points)")
            assert one.page.locator("#breakdown tbody tr").count() == 2
    # Without a swept axis every point has a bar.
    with opened(running, folders["staged"] / FILE) as one:
        one.drawn()
        assert "points with" not in one.text("#overview caption")
        assert one.page.locator("#overview tbody tr").count() == 2


@pytest.mark.parametrize("name", ["sharded", "staged"])
def test_every_colour_of_the_memory_picture_is_in_its_legend(running: Any, folders: dict[str, Path], name: str) -> None:
    """Categories that hold nothing at the peak are drawn at other times, and need a name too."""
    with opened(running, folders[name] / FILE) as one:
        one.drawn()
        drawn = np.rint(255 * pixels(one, "#memory canvas")[..., :3]).astype(int)
        # A category's inner pixels have its colour exactly; edges are blends, one pixel high.
        inner = (drawn[1:-1] == drawn[:-2]).all(axis=-1) & (drawn[1:-1] == drawn[2:]).all(axis=-1)
        colours = np.unique(drawn[1:-1][inner], axis=0)
        # Axes, texts and the background are grey.
        coloured = colours[np.ptp(colours, axis=1) > 24]
        named = one.value(
            "[...document.querySelectorAll('#memory .legend i')].map(i => getComputedStyle(i).backgroundColor)"
        )
        legend = {tuple(map(int, re.findall(r"\d+", colour)[:3])) for colour in named}
        assert len(coloured) > 2
        assert {tuple(map(int, colour)) for colour in coloured} <= legend
        # Buffers are grey, like texts: every category that holds bytes at any time is named.
        held = one.value(
            "(({categories, held}) => categories.filter((_, c) => Math.max(...held[c]) > 0))(state.memory.memory)"
        )
        assert all(f"{category} " in one.text("#memory .legend") for category in held)


def test_the_legend_explains_copies(running: Any, folders: dict[str, Path]) -> None:
    with opened(running, folders["sharded"] / FILE) as one:
        one.drawn()
        names = one.page.locator("#timeline .legend span").all_inner_texts()
        assert "copies (kernels that copy and cast tensors around collectives)" in names
        assert "forward" in names


def test_numbers_are_whole_in_print(running: Any, folders: dict[str, Path]) -> None:
    """On paper of 720 pixels no figure of the points breaks between its digits, and no column is cut."""
    lines = (
        "(cell => { const r = document.createRange(); r.selectNodeContents(cell); return r.getClientRects().length; })"
    )
    with opened(running, folders["staged"] / FILE, width=720) as one:
        one.drawn()
        one.page.emulate_media(media="print")
        cells = "[...document.querySelectorAll('#all tbody td:not(.text)')].filter(c => !/\\s/.test(c.textContent))"
        assert one.value(f"{cells}.length") > 0
        assert set(one.value(f"{cells}.map({lines})")) == {1}
        assert one.value("document.querySelector('#all').getBoundingClientRect().right") <= 720


def test_pictures_are_drawn_for_the_paper_and_in_light_colours(running: Any, folders: dict[str, Path]) -> None:
    """Of a dark window 1,400 pixels wide; afterwards, everything is as before."""
    with opened(running, folders["sharded"] / FILE, script=DRAWN_TEXTS, color_scheme="dark") as one:
        one.drawn()
        shape = (
            "[document.querySelector('#timeline canvas').clientWidth, document.querySelector('#front svg').clientWidth,"
            " getComputedStyle(document.body).backgroundColor]"
        )
        before, shot = one.value(shape), pixels(one, "#timeline canvas")
        one.value("dispatchEvent(new Event('beforeprint'))")
        one.page.emulate_media(media="print")
        lanes, front, ground = one.value(shape)
        assert 600 < lanes <= 720
        assert 600 < front <= 720
        assert ground == "rgb(255, 255, 255)"
        # Texts of the canvas are not squeezed: the canvas is shown in the size in which it was drawn.
        shown = one.value(
            "(c => [c.clientWidth, c.clientHeight, c.width, c.height])(document.querySelector('#timeline canvas'))"
        )
        assert shown[1] / shown[0] == pytest.approx(shown[3] / shown[2], rel=0.01)
        # Browsers leave out backgrounds unless they are asked for: bars and legends are nothing else.
        for part in (".bar span", ".legend i", "td.best"):
            assert one.value(f"getComputedStyle(document.querySelector('{part}')).printColorAdjust") == "exact"
        one.page.emulate_media(media="screen")
        one.value("dispatchEvent(new Event('afterprint'))")
        assert one.value(shape) == before
        assert (pixels(one, "#timeline canvas") == shot).all()


def test_the_pick_changes_every_view(running: Any, folders: dict[str, Path]) -> None:
    told = report(folders["sharded"])["points"]
    with opened(running, folders["sharded"] / FILE) as one:
        seen = []
        for index in (0, 3):
            setting, condition = divmod(index, 2)
            one.page.select_option("#axis0", str(setting))
            one.page.select_option("#axis1", str(condition))
            one.drawn()
            assert one.value("state.point") == index
            peak = told[index]["report"]["peak_memory_bytes"]
            assert one.value("state.memory.total[state.memory.memory.peak]") == peak
            assert one.text("#because") == told[index]["report"]["because"]
            assert one.page.locator("#all tr.spoken").get_attribute("data-index") == str(index)
            assert one.page.locator("#breakdown tr.spoken").count() == 1
            one.page.locator("#linkspanel").evaluate("panel => { panel.open = true; state.view.tell(); }")
            seen.append(
                [
                    one.text("#shown"),
                    one.text("#memory p"),
                    one.text("#holders"),
                    one.page.get_attribute("#trace a", "href"),
                ]
                + [pixels(one, f"{view} canvas").tobytes() for view in ("#timeline", "#memory", "#links")]
            )
        assert all(before != after for before, after in zip(*seen, strict=True))


def test_parts_of_the_breakdown_add_up_to_the_step(running: Any, folders: dict[str, Path]) -> None:
    told = report(folders["staged"])["points"]
    with opened(running, folders["staged"] / FILE) as one:
        one.drawn()
        parts = one.value("data.points.map((p) => p.parts)")
        for point, own in zip(told, parts, strict=True):
            assert sum(value for _, value in own) == pytest.approx(point["report"]["step_time_s"], rel=1e-9)
        widths = one.value(
            "[...document.querySelectorAll('.bar')].map((b) => [...b.children]"
            ".reduce((n, c) => n + c.getBoundingClientRect().width, 0) / b.clientWidth)"
        )
        longest = max(point["report"]["step_time_s"] for point in told)
        assert widths == pytest.approx([p["report"]["step_time_s"] / longest for p in told], abs=0.02)


def test_it_zooms_pans_sums_up_and_searches(running: Any, folders: dict[str, Path]) -> None:
    with opened(running, folders["sharded"] / FILE) as one:
        one.drawn()
        whole = one.value("state.view.end")
        x, y = middle_of_lane(one, 0)
        one.page.mouse.move(x, y)
        one.page.keyboard.down("Control")
        one.page.mouse.wheel(0, -200)
        one.page.keyboard.up("Control")
        one.until("state.view.to - state.view.from < state.view.end * 0.9")
        before = one.value("state.view.from")
        one.page.mouse.down()
        one.page.mouse.move(x - 80, y)
        one.page.mouse.up()
        assert one.value("state.view.from") > before
        one.page.click("#whole")
        assert one.value("[state.view.from, state.view.to]") == [0, whole]
        one.page.keyboard.down("Shift")
        one.page.mouse.move(x - 200, y)
        one.page.mouse.down()
        one.page.mouse.move(x + 200, y)
        one.page.mouse.up()
        one.page.keyboard.up("Shift")
        assert one.page.locator("table.sums tbody tr").count() > 1
        from_, to = one.value("state.timeline.selection")
        compute = one.value(
            "(() => { const l = state.timeline.lanes[0], [a, b] = state.timeline.selection; let n = 0;"
            " l.start.forEach((s, i) => { n += Math.max(0, Math.min(l.end[i], b) - Math.max(s, a)); }); return n; })()"
        )
        assert 0 < compute <= to - from_
        one.page.fill("#search", "layer 3 ")
        found = one.value(
            "state.timeline.lanes.flatMap((l) => l.name).filter((n) => state.timeline.matches.has(n)).length"
        )
        assert found > 0
        assert one.text("#timeline p").startswith(f"{found} spans, ")
        one.page.press("#search", "Enter")
        assert one.value("state.view.to - state.view.from") < whole / 3


def test_the_keyboard_goes_from_span_to_span(running: Any, folders: dict[str, Path]) -> None:
    with opened(running, folders["sharded"] / FILE) as one:
        one.drawn()
        one.page.focus("#timeline canvas")
        said = []
        for key in ("n", "n", "n", "p"):
            one.page.keyboard.press(key)
            said.append(one.text("#timeline p"))
        assert said[3] == said[1] != said[2]
        one.page.keyboard.press("+")
        assert one.value("state.view.to - state.view.from < state.view.end")
        one.page.keyboard.press("0")
        assert one.value("state.view.to - state.view.from === state.view.end")


def test_the_keys_of_perfetto_move_the_window_and_the_page_says_which_is_shown(
    running: Any, folders: dict[str, Path]
) -> None:
    with opened(running, folders["sharded"] / FILE) as one:
        one.drawn()
        end = one.value("write(state.view.end * state.played.unit_s, 's')")
        assert one.text("#window") == f"Shown: the whole run ({end})."
        one.page.focus("#timeline canvas")
        one.page.keyboard.press("w")
        near = one.value("[state.view.from, state.view.to]")
        assert near[1] - near[0] < one.value("state.view.end")
        assert one.text("#window").endswith(f" of {end}.")
        one.page.keyboard.press("d")
        right = one.value("[state.view.from, state.view.to]")
        assert right[0] > near[0]
        one.page.keyboard.press("a")
        assert one.value("[state.view.from, state.view.to]") == pytest.approx(near)
        one.page.keyboard.press("s")
        assert one.value("state.view.to - state.view.from") == pytest.approx(1.6 * (near[1] - near[0]))


def test_the_address_leads_to_a_point_and_a_window(running: Any, folders: dict[str, Path]) -> None:
    with opened(running, folders["sharded"] / FILE) as one:
        one.drawn()
        one.value("pick(2)")
        one.until("state.drawn === 2")
        one.value("state.view.set(state.view.end * 0.25, state.view.end * 0.5)")
        one.until("location.hash.startsWith('#point=2&window=')")
        link = one.value("location.href")
        window = one.value("[state.view.from, state.view.to]")
    with opened(running, folders["sharded"] / FILE) as other:
        # A page that is still drawing its first point would write this point's address over the link.
        other.drawn()
        other.page.goto(link)
        other.page.reload()
        other.until("state.drawn === 2 && state.view.from > 0")
        # Six digits of a second stand in the address.
        assert other.value("[state.view.from, state.view.to]") == pytest.approx(window, rel=1e-5)
        # What no point has is not followed.
        other.page.goto(link.split("#")[0] + "#point=77")
        other.page.reload()
        other.drawn()
        assert other.value("state.point") < 4


def rows_of_points(one: Opened) -> list[int]:
    """Numbers of the points in the table, from top to bottom, without the filtered ones."""
    rows = "[...document.querySelectorAll('#all tbody tr:not(.hidden)')]"
    return one.value(f"{rows}.map((row) => Number(row.dataset.index))")


def test_the_address_restores_filter_order_and_panels(running: Any, folders: dict[str, Path]) -> None:
    with opened(running, folders["ring_or_naive"] / FILE) as one:
        one.drawn()
        assert one.value("location.hash") == f"#point={one.value('state.point')}"
        plain = rows_of_points(one)
        one.page.fill("#filter", "size<=1 MiB, naive")
        for _ in range(2):
            one.page.get_by_role("button", name="sort by time").click()
        one.page.locator("#linkspanel summary").click()
        one.until("location.hash.includes('open=')")
        rows, link = rows_of_points(one), one.value("location.href")
        times = [report(folders["ring_or_naive"])["points"][index]["report"]["time_s"] for index in rows]
        assert (len(rows), times) == (4, sorted(times, reverse=True))
        # The picture of the links was drawn again when it became visible.
        one.until("parseFloat(document.querySelector('#links canvas').width) > 1000")
    with opened(running, folders["ring_or_naive"] / FILE) as other:
        other.drawn()
        assert rows_of_points(other) == plain
        # A link to the page that is open, and a link that opens the page.
        other.page.goto(link)
        other.until("document.getElementById('linkspanel').open")
        assert rows_of_points(other) == rows
        other.page.reload()
        other.drawn()
        assert rows_of_points(other) == rows
        assert other.page.input_value("#filter") == "size<=1 MiB, naive"
        assert other.page.locator("#all th[aria-sort=descending]").inner_text().startswith("time")
        assert other.value("[...document.querySelectorAll('details[id]')].filter(d => d.open).map(d => d.id)") == [
            "pipelinepanel", "linkspanel",
        ]  # fmt: skip
        assert other.said == []


def test_a_table_with_a_failed_point_is_sorted(running: Any, tmp_path: Path) -> None:
    """The row of a failed point has its error in the place of all figures, and is first in the order of numbers."""
    scenario = load_scenario(COLLECTIVE | {"compare": {}})
    first, *others = play_points(list(enumerate(points(scenario))))
    compared = Comparison(scenario, [replace(first, report=None, error="no route"), *others])
    (tmp_path / FILE).write_text(report_page(compared, answer(compared), {}), encoding="utf-8")
    with opened(running, tmp_path / FILE) as one:
        one.drawn()
        for edge in (0, -1):
            one.page.get_by_role("button", name="sort by time").click()
            assert rows_of_points(one)[edge] == 0
        assert one.said == []


@pytest.mark.long
def test_the_most_important_columns_need_no_scrolling(running: Any, tmp_path: Path) -> None:
    """Three axes and eleven figures: all settings, the time, the memory and whether it fits are on a screen."""
    sweep = {"training.micro_batch_size": [1, 2], "training.seq_len": [256, 512]}
    training = TRAINING["training"] | {"activation_checkpointing": "full", "framework": "torchtitan"}
    run(tmp_path / "many", TRAINING | {"sweep": sweep, "training": training})
    with opened(running, tmp_path / "many" / FILE) as one:
        one.drawn()
        edge = one.value("document.querySelector('#all').parentElement.getBoundingClientRect().right")
        heads = one.page.locator("#all thead th").all()
        assert len(heads) >= 14
        seen = [
            head.inner_text().strip() for head in heads if head.evaluate("h => h.getBoundingClientRect().right") <= edge
        ]
        assert [name.split("\n")[0] for name in seen[:10]] == [
            "sharding", "micro batch size", "seq len", "step", "vs ddp", "uncertainty (80 %)", "tokens/s", "MFU",
            "peak memory", "fits",
        ]  # fmt: skip


def test_a_span_tells_what_it_waited_for(running: Any, folders: dict[str, Path]) -> None:
    """A gather of the next layer begins when the last of what it waits for has ended."""
    with opened(running, folders["sharded"] / FILE) as one:
        one.drawn()
        told = one.value(
            "state.timeline.lanes.flatMap((lane) => [...lane.start.keys()].filter((i) => (lane.waits[i] ?? -1) >= 0)"
            ".map((i) => [state.timeline.describe({ lane, i }), lane.start[i], lane.texts.names[lane.waits[i]]]))"
        )
        ends = dict(
            one.value("state.timeline.lanes.flatMap((l) => [...l.start.keys()].map((i) => [l.nameOf(i), l.end[i]]))")
        )
        assert len(told) > 10
        for text, start, name in told:
            assert text.endswith(f"waited for {name}")
            assert ends[name] <= start + 1


def test_shown_rows_are_copied_as_csv(running: Any, folders: dict[str, Path]) -> None:
    with opened(running, folders["ring_or_naive"] / FILE) as one:
        one.drawn()
        one.page.fill("#filter", "naive")
        # Headless Chromium has no clipboard for files: what would be written there is kept.
        writer = "{ writeText: async (text) => { window.copied = text; } }"
        one.value(f"Object.defineProperty(navigator, 'clipboard', {{ value: {writer} }})")
        one.page.click("#copy")
        one.until("window.copied !== undefined")
        head, *rows = one.value("window.copied").splitlines()
        assert head.split(",")[0] == "algorithm"
        assert len(rows) == 6
        assert all(row.startswith("naive,") for row in rows)
        assert one.text("#copy") == "6 rows copied"


def test_tables_sort_and_filter(running: Any, folders: dict[str, Path]) -> None:
    with opened(running, folders["ring_or_naive"] / FILE) as one:
        one.drawn()
        one.page.get_by_role("button", name="sort by time").click()
        times = [
            float(v)
            for v in one.value("[...document.querySelectorAll('#all tbody tr')].map((r) => r.cells[3].dataset.v)")
        ]
        assert times == sorted(times)
        assert len(times) == 12
        one.page.fill("#filter", "NAIVE 64 KiB")
        shown = one.value("[...document.querySelectorAll('#all tbody tr:not(.hidden)')].map((r) => r.textContent)")
        assert len(shown) == 2
        # The number and its unit stay in one line.
        assert all(text.startswith("naive") and "64\u00a0KiB" in text for text in shown)
        assert one.text("#filtered") == "2 of 12 points"


def test_a_pipeline_has_its_passes_and_its_groups(running: Any, folders: dict[str, Path]) -> None:
    with opened(running, folders["staged"] / FILE) as one:
        one.drawn()
        assert one.value("state.pipeline.lanes.length") == 4
        # Eight micro-batches go forward and backward through each stage.
        names = one.value("state.pipeline.lanes.map((l) => [...l.name].map((n, i) => l.nameOf(i)))")
        for own in names:
            assert sorted(name for name in own if "forward" in name) == [f"{i} forward" for i in range(8)]
            assert sorted(name for name in own if "backward" in name) == [f"{i} backward" for i in range(8)]
        one.page.locator("#groupspanel summary").click()
        # Neighbours hold the same stage: tp and cp are 1, then data-parallel ranks, then stages.
        assert "pp 4\t0, 2, 4, 6; 1, 3, 5, 7" in one.text("#groups")


def test_whatever_a_scenario_says_stays_text(running: Any, tmp_path: Path) -> None:
    run(tmp_path / "hostile", COLLECTIVE | {"question": HOSTILE, "sweep": {}})
    with opened(running, tmp_path / "hostile" / FILE) as one:
        one.drawn()
        assert one.text("h1") == HOSTILE
        assert one.page.title() == HOSTILE
        assert one.said == []
        assert one.page.locator("h1 *").count() == one.page.locator("img").count() == 0
        assert one.page.locator("script").count() == 2


@pytest.mark.parametrize("width", [390, 700, 768, 1000, 1400, 1600])
@pytest.mark.one_of(3)
def test_nothing_is_wider_than_the_window(running: Any, folders: dict[str, Path], width: int) -> None:
    for folder in folders.values():
        with opened(running, folder / FILE, width=width) as one:
            one.drawn()
            assert one.value("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_drawn_light_and_dark(running: Any, folders: dict[str, Path], scheme: str) -> None:
    with opened(running, folders["sharded"] / FILE, color_scheme=scheme) as one:
        one.drawn()
        ground = one.value("getComputedStyle(document.body).backgroundColor")
        assert ground == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}[scheme]
        for view in ("#timeline", "#memory"):
            shot = pixels(one, f"{view} canvas")
            colours = np.unique(shot.reshape(-1, shot.shape[-1]), axis=0)
            assert len(colours) > 20


def test_equal_runs_give_equal_pages(folders: dict[str, Path], tmp_path: Path) -> None:
    for data in (COLLECTIVE, TRAINING):
        run(tmp_path / data["name"], data)
        assert (tmp_path / data["name"] / FILE).read_bytes() == (folders[data["name"]] / FILE).read_bytes()


def test_a_hundred_thousand_spans_are_carried(running: Any, tmp_path: Path) -> None:
    scenario = load_scenario(COLLECTIVE | {"compare": {}, "sweep": {}})
    outcomes = list(play_points(list(enumerate(points(scenario)))))
    compared = Comparison(scenario, outcomes)
    ranks, each = 10, 10_000
    page = report_page(compared, answer(compared), {0: views.compressed(many_spans(ranks, each))})
    (tmp_path / FILE).write_text(page, encoding="utf-8")
    with opened(running, tmp_path / FILE) as one:
        one.drawn()
        assert one.value("state.timeline.lanes.reduce((n, l) => n + l.start.length, 0)") == ranks * each
        assert one.value("performance.memory.usedJSHeapSize") < 250e6
        one.page.fill("#search", "layer 499")
        assert one.text("#timeline p") == "200 spans, 140 us in total"
        assert one.said == []


def test_two_runs_share_one_cursor(running: Any, folders: dict[str, Path], tmp_path: Path) -> None:
    from simulator.cli.commands.diff import command as diff

    run(tmp_path / "other", TRAINING | {"training": TRAINING["training"] | {"seq_len": 1024}})
    diff(folders["sharded"], tmp_path / "other", as_json=False, page=tmp_path / "diff.html")
    with opened(running, tmp_path / "diff.html") as one:
        one.until("state.drawn === 0")
        assert one.said == []
        assert one.value("state.timelines.length") == 2
        assert one.value("state.timelines[0].view === state.timelines[1].view")
        ends = one.value(
            "state.timelines.map((t) => Math.max(...t.lanes.map((l) => l.end[l.end.length - 1])) * t.unit)"
        )
        told = [
            report(folder)["points"][0]["report"]["step_time_s"] for folder in (folders["sharded"], tmp_path / "other")
        ]
        assert ends == pytest.approx(told, rel=1e-6)
        before = pixels(one, "#run1 canvas").tobytes()
        box = one.page.locator("#run0 canvas").bounding_box()
        one.page.mouse.move(box["x"] + 500, box["y"] + 5)
        one.until("state.view.cursor !== null")
        assert pixels(one, "#run1 canvas").tobytes() != before


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.one_of(2)
def test_figures_of_two_runs_stand_below_their_headings_the_main_measures_first(
    running: Any, folders: dict[str, Path], tmp_path: Path, width: int
) -> None:
    """Four common points of a sweep, and a single one."""
    from simulator.cli.commands.diff import command as diff

    longer = {"training": TRAINING["training"] | {"seq_len": 1024}}
    run(tmp_path / "other", TRAINING | longer)
    run(tmp_path / "single", TRAINING | longer | {"compare": {}, "sweep": {}})
    diff(folders["sharded"], tmp_path / "other", as_json=False, page=tmp_path / "diff.html")
    diff(tmp_path / "single", tmp_path / "other", as_json=False, page=tmp_path / "none.html")
    main = {"step_time_s", "tokens_per_s", "exposed_comm_time_s", "peak_memory_bytes"}
    with opened(running, tmp_path / "diff.html", width=width) as one:
        for number in range(4):
            if number:
                one.page.select_option("#pair", str(number))
            one.until(f"state.drawn === {number}")
            head, *rows = [
                row.locator("th, td").all_inner_texts()
                for row in one.page.locator("#differences tbody:not(.hidden) tr").all()
            ]
            assert head == [f"{one.value(f'data.pairs[{number}].label')}: {len(rows)} figures differ"]
            # The order of step time, tokens/s, exposed communication and memory is that of their changes.
            first = [row for row in rows if row[0] in main]
            assert len(first) >= 3
            assert rows[: len(first)] == first
            factors = [1 + float(change.removesuffix(" %")) / 100 for *_, change in first]
            assert factors == sorted(factors, key=lambda factor: -abs(np.log(factor)))
        # The left or the right edge of a cell is that of its heading.
        edges = one.value(
            "[...document.querySelectorAll('#keys thead tr, #differences thead tr')].map(head => [...head.cells]"
            ".map((cell, i) => [cell, head.closest('table').querySelector('tbody:not(.hidden) tr:last-child').cells[i]]"
            ".map(one => [getComputedStyle(one).textAlign, one.getBoundingClientRect().left])))"
        )
        assert all(heading == cell for row in edges for heading, cell in row)
        assert one.value("document.documentElement.scrollWidth") <= width
        assert one.page.locator("#pair").is_visible()
    with opened(running, tmp_path / "none.html", width=width) as one:
        one.until("state.drawn === 0")
        assert one.value("data.pairs.length") == 1
        assert not one.page.locator("#pair").is_visible()


WIDE: dict[str, Any] = {
    "name": "wide",
    "cluster": {"topology": "star_100g", "world_size": 64},
    "collective": {"operation": "all_reduce", "algorithm": "ring", "size": "64 MiB", "payload": False},
    "plots": [],
}


def test_every_cable_of_the_machine_has_the_colour_of_its_use(running: Any, tmp_path: Path) -> None:
    """64 cables of a star, all equally busy in a ring: none is grey, and none is said to carry nothing."""
    run(tmp_path / "wide", WIDE)
    with opened(running, tmp_path / "wide" / FILE) as one:
        one.drawn()
        one.page.locator("#linkspanel").evaluate("panel => { panel.open = true; state.view.tell(); }")
        assert one.page.locator("#topology line.cable.used").count() == 64
        # Equal uses have one colour, which is not the grey of what is unused.
        strokes = one.value(
            "[...document.querySelectorAll('#topology line.cable')].map(line => line.getAttribute('stroke'))"
        )
        assert len(set(strokes)) == 1
        assert strokes[0].startswith("rgba(213,94,0,")
        assert one.page.locator("#topology line.cable.idle, #topology line.cable.unknown").count() == 0
        assert "nothing" not in one.value(
            "[...document.querySelectorAll('#topology line title')].map(t => t.textContent).join()"
        )
        assert {"GPU", "switch"} <= set(one.text("#topology .legend").split("\n"))


def test_the_sentence_of_links_is_of_the_window_and_the_machine_of_the_whole_run(running: Any, tmp_path: Path) -> None:
    """A server receives in the first half and sends in the second."""
    served = WIDE["collective"] | {"algorithm": "parameter_server"}
    run(tmp_path / "served", WIDE | {"collective": served, "cluster": {"topology": "star_100g", "world_size": 4}})
    with opened(running, tmp_path / "served" / FILE) as one:
        one.drawn()
        one.page.locator("#linkspanel").evaluate("panel => { panel.open = true; state.view.tell(); }")
        assert "over the whole run: server0->switch0, 50.0 % utilised" in one.text("#links")
        for share, link in ((0.1, "switch0->server0"), (0.6, "server0->switch0")):
            one.value(f"state.view.set({share} * state.view.end, {share + 0.2} * state.view.end)")
            assert f": {link}, 100.0 % utilised." in one.text("#links")
            assert "over the whole run" not in one.text("#links")
            assert one.text("#topology").startswith("4 GPUs on star_100g, over the whole run")


def test_closed_forms_leave_no_busiest_link_and_name_the_key_that_shows_links(running: Any, tmp_path: Path) -> None:
    """With closed forms the links of a step carry next to nothing: no link of them is called the busiest."""
    training = {"model": "gpt2", "seq_len": 512, "sharding": "zero3", "collectives": "closed_form"}
    cluster = {"topology": "dgx_h100", "world_size": 16}
    run(tmp_path / "closed", {"name": "closed", "cluster": cluster, "training": training})
    with opened(running, tmp_path / "closed" / FILE) as one:
        one.drawn()
        one.page.locator("#linkspanel").evaluate("panel => { panel.open = true; state.view.tell(); }")
        assert "Busiest" not in one.text("#linkspanel")
        assert "training.collectives=played" in one.text("#linkspanel")


@pytest.mark.parametrize("width", [390, 768, 1400])
@pytest.mark.parametrize(("name", "count"), [("ring_or_naive", 2), ("sharded", 3), ("staged", 4)])
@pytest.mark.one_of(3)
def test_pictures_along_time_agree_on_the_window_to_the_pixel(
    running: Any, folders: dict[str, Path], width: int, name: str, count: int
) -> None:
    """Lanes, pipeline, memory and links have the same time at the same pixel, before and after a zoom."""
    with opened(running, folders[name] / FILE, width=width, script=DRAWN_TEXTS) as one:
        one.drawn()
        one.value("document.querySelectorAll('details').forEach(panel => { panel.open = true; })")
        for window in ((0, 1), (0.25, 0.375)):
            one.value(f"state.view.set({window[0]} * state.view.end, {window[1]} * state.view.end)")
            drawn = one.value(
                f"{ALONG_TIME}.map(canvas => [canvas.getBoundingClientRect().left, canvas.clientWidth, canvas.texts])"
            )
            assert len(drawn) == count
            # Times of the axis are the lowest texts of a picture.
            axes = {
                (left, wide, tuple((text, at) for text, at, _, low in texts if low == max(row[3] for row in texts)))
                for left, wide, texts in drawn
            }
            assert len(axes) == 1
            ((_, _, ticks),) = axes
            # Times of the axis do not touch.
            assert len(ticks) > 1
            lowest = max(row[3] for row in drawn[0][2])
            boxes = [(begin, end) for _, begin, end, low in drawn[0][2] if low == lowest]
            assert all(end < begin for (_, end), (begin, _) in pairwise(boxes))


@pytest.mark.parametrize("width", [390, 768, 1400])
@pytest.mark.one_of(3)
def test_no_text_is_cut(running: Any, folders: dict[str, Path], width: int) -> None:
    """Texts of pictures lie within their pictures, and all other texts within the window or in a box that scrolls."""
    for folder in folders.values():
        with opened(running, folder / FILE, width=width, script=DRAWN_TEXTS) as one:
            one.drawn()
            open_all(one)
            assert cut(one) == []
            assert overlapping(one) == []
            assert one.value(f"{ALONG_TIME}.reduce((sum, canvas) => sum + canvas.texts.length, 0)") > 8
            # A name of links has its room left of the bars, or all of the width above a bar.
            names = one.value("document.querySelector('#links canvas')?.texts.filter(([, left]) => left === 2) ?? []")
            assert all(right <= (width if width < 600 else 262) for _, _, right, _ in names)


# Names that break within a word: the second line begins after a letter or a digit.
BROKEN_WORDS = """
  [...document.querySelectorAll("td:first-child:not(:has(details)), #holders td:nth-child(2)")]
    .filter(cell => cell.offsetParent && cell.firstChild).filter(cell => {
      const characters = [];
      const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
      for (let node = walk.nextNode(); node; node = walk.nextNode()) {
        for (let i = 0; i < node.length; i++) {
          const one = document.createRange();
          one.setStart(node, i);
          one.setEnd(node, i + 1);
          const box = one.getBoundingClientRect();
          if (box.width) characters.push([node.data[i], box.top, box.bottom]);
        }
      }
      return characters.some(([letter, top], i) => {
        const [before, , bottom] = characters[i - 1] ?? ["", 0, Infinity];
        return top > bottom - 2 && /[a-z0-9]{2}/i.test(before + letter) && cell.textContent.includes(before + letter);
      });
    }).map(cell => cell.textContent)
"""


def test_words_are_whole_on_a_phone(running: Any, folders: dict[str, Path]) -> None:
    for folder in folders.values():
        with opened(running, folder / FILE, width=390) as one:
            one.drawn()
            assert one.value(BROKEN_WORDS) == []


def test_a_finger_marks_a_time_and_moves_the_window(running: Any, folders: dict[str, Path]) -> None:
    with opened(running, folders["sharded"] / FILE, width=390, has_touch=True, is_mobile=True) as one:
        one.drawn()
        assert one.page.locator(".touch").is_visible()
        assert not one.page.locator(".mouse").is_visible()
        one.page.locator("#memory canvas").scroll_into_view_if_needed()
        box = one.page.locator("#memory canvas").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + 60
        one.page.touchscreen.tap(x, y)
        one.until("state.view.marked !== null")
        assert "Back to the peak" in one.text("#holders")
        # A finger that goes to the left shows what is later; the page stays where it is.
        one.page.locator("#closer").tap()
        before, scrolled = one.value("[state.view.from, scrollY]")
        one.page.locator("#memory canvas").scroll_into_view_if_needed()
        box = one.page.locator("#memory canvas").bounding_box()
        y, scrolled = box["y"] + 60, one.value("scrollY")
        touch = one.page.context.new_cdp_session(one.page)
        for kind, moved in (("Start", [0]), ("Move", [20]), ("Move", [40]), ("Move", [60]), ("End", [])):
            points = [{"x": x - by, "y": y} for by in moved]
            touch.send("Input.dispatchTouchEvent", {"type": f"touch{kind}", "touchPoints": points})
        one.until(f"state.view.from > {before}")
        assert one.value("scrollY") == scrolled


def test_memory_stands_below_the_lanes_on_the_same_axis_and_counts_alike_at_every_point(
    running: Any, folders: dict[str, Path]
) -> None:
    with opened(running, folders["sharded"] / FILE) as one:
        axes = set()
        for number in range(len(report(folders["sharded"])["points"])):
            one.value(f"pick({number})")
            one.drawn()
            boxes = [one.page.locator(f"{name} canvas").bounding_box() for name in ("#timeline", "#memory")]
            assert [(box["x"], box["width"]) for box in boxes[:1]] == [(box["x"], box["width"]) for box in boxes[1:]]
            axes.add(one.value("state.memory.most"))
        assert len(axes) == 1
        # A group opens to its allocations, in their natural order.
        group = one.page.locator("#holders details", has_text="layer 0-23 activations").first
        summary = group.locator("summary").inner_text()
        assert not group.locator("div").is_visible()
        group.locator("summary").click()
        rows = group.locator("div").inner_text().splitlines()
        assert summary.endswith(f" ×{len(rows)}")
        assert [int(row.split()[1]) for row in rows] == list(range(24))


def test_a_click_marks_a_time_in_every_picture_and_lists_its_allocations(
    running: Any, folders: dict[str, Path]
) -> None:
    with opened(running, folders["sharded"] / FILE) as one:
        one.drawn()
        at_peak = one.text("#holders")
        assert "Largest allocations at the peak, of " in at_peak
        before = pixels(one, "#timeline canvas").tobytes()
        one.page.locator("#memory canvas").scroll_into_view_if_needed()
        box = one.page.locator("#memory canvas").bounding_box()
        x, y = box["x"] + box["width"] - 20, box["y"] + 60
        # A drag moves the window and marks nothing.
        one.page.mouse.move(x, y)
        one.page.mouse.down()
        one.page.mouse.move(x - 60, y)
        one.page.mouse.up()
        assert one.value("state.view.marked") is None
        one.page.mouse.click(x, y)
        one.page.mouse.move(0, 0)
        marked = one.value("state.view.marked")
        assert 0.9 < marked / one.value("state.view.end") < 1
        # The timeline has a line at the same time.
        assert pixels(one, "#timeline canvas").tobytes() != before
        assert "(at the marked time)" in one.text("#memory .legend")
        head = one.text("#holders caption")
        total = one.value("write(state.memory.total[state.memory.at(state.view.marked)], 'B')")
        when = one.value("write(state.view.marked * state.memory.unit, 's')")
        assert head.startswith(f"Largest allocations at {when}, of {total}. ")
        # The rows are groups of the allocator's log of the point at this time, the largest group first.
        setting, condition = divmod(one.value("state.point"), 2)
        data = TRAINING | {"compare": {}, "sweep": {}}
        own = {"sharding": ["ddp", "zero3"][setting], "micro_batch_size": [1, 4][condition]}
        run_again = simulate(load_scenario(data | {"training": TRAINING["training"] | own}))
        time = marked * one.value("state.memory.unit")
        held: dict[tuple[str, str], list[int]] = {}
        for holder in allocations_at(run_again.timeline, time, one.value("state.memory.memory.rank")):
            held.setdefault((re.sub(r"\d+", "#", holder.name), holder.category), []).append(holder.nbytes)
        wanted = sorted(held.items(), key=lambda group: -sum(group[1]))[:15]
        peak = one.value("Math.max(...state.memory.total)")
        told = one.value(
            "[...document.querySelectorAll('#holders tbody tr')].map(row => [row.cells[0].querySelector('summary') ||"
            " row.cells[0], row.cells[1], row.cells[2]].map(cell => cell.textContent))"
        )
        counted = [(*name.partition(" ×")[::2], category, amount) for name, category, amount in told]
        assert [
            (re.sub(r"\d+(-\d+)?", "#", name), category, int(count or 1), amount)
            for name, count, category, amount in counted
        ] == [
            (name, category, len(sizes), one.value(f"write({sum(sizes)}, 'B')"))
            for (name, category), sizes in wanted
            if sum(sizes) >= 1e-3 * peak
        ]
        one.page.get_by_role("button", name="Back to the peak").click()
        assert one.text("#holders") == at_peak
        # A click on the timeline lists the allocations of its time, too; Escape goes back.
        one.page.mouse.click(*middle_of_lane(one, 0))
        assert "Back to the peak" in one.text("#holders")
        one.page.keyboard.press("Escape")
        assert one.text("#holders") == at_peak


def test_passes_are_coloured_by_kinds_of_kernels_on_demand(running: Any, folders: dict[str, Path]) -> None:
    with opened(running, folders["sharded"] / FILE) as one:
        one.drawn()
        phases = one.text("#timeline .legend")
        assert "forward" in phases
        assert "matmul" not in phases
        before = pixels(one, "#timeline canvas").tobytes()
        one.page.select_option("#colourby", "kernel kind")
        kinds = one.text("#timeline .legend")
        assert {"matmul", "attention", "elementwise"} <= set(kinds.split("\n"))
        assert "Within a pass, kinds of kernels are drawn in their order" in kinds
        assert pixels(one, "#timeline canvas").tobytes() != before
        # The tooltip of a pass has the shares of the kinds.
        told = one.value(
            "(lane => [...lane.start.keys()].filter(i => lane.partsOf(i))"
            ".map(i => state.timeline.describe({ lane, i })))(state.timeline.lanes[0])"
        )
        assert len(told) > 40
        assert all("\nkernels: " in text for text in told)
        # The choice stays with the next point.
        one.value("pick(state.point === 0 ? 1 : 0)")
        one.drawn()
        assert "matmul" in one.text("#timeline .legend")
        one.page.select_option("#colourby", "phase")
        assert "matmul" not in one.text("#timeline .legend")
    with opened(running, folders["ring_or_naive"] / FILE) as one:
        one.drawn()
        # A collective has no kernels.
        assert not one.page.locator("#colourby").is_visible()


def test_green_is_the_best_and_an_outline_what_is_shown(running: Any, folders: dict[str, Path]) -> None:
    """The shown point may be the slowest: it gets an outline, and the best keeps its green."""
    with opened(running, folders["ring_or_naive"] / FILE) as one:
        one.drawn()
        assert one.page.locator("#all tr.spoken").count() == 1
        outline, ground = (
            one.value(f"getComputedStyle(document.querySelector('#all tr.spoken')).{name}")
            for name in ("outlineStyle", "backgroundColor")
        )
        assert (outline, ground) == ("solid", "rgba(0, 0, 0, 0)")
    with opened(running, folders["sharded"] / FILE) as one:
        one.drawn()
        points = report(folders["sharded"])["points"]
        for number in range(len(points)):
            one.value(f"pick({number})")
            one.drawn()
            best = one.value("[...document.querySelectorAll('td.best')].map(cell => Number(cell.dataset.point))")
            assert best
            # Peak memory is in the first table: zero3 is smallest with every micro-batch, whatever is shown.
            for index in best[:2]:
                settings = points[index]["settings"]
                assert settings["training.sharding"] in ("zero3", "ddp")


def test_a_filter_means_numbers_whole_and_names_columns(running: Any, folders: dict[str, Path]) -> None:
    """12 points of a ring and the naive way on 4 and 8 GPUs with three sizes."""
    with opened(running, folders["ring_or_naive"] / FILE) as one:
        one.drawn()
        assert one.text("#filtered") == "12 points"
        for text, shown in (
            ("8", 6), ("world size=8", 6), ("world size=8, ring", 3), ("size=64 KiB", 4), ("64 KiB, naive", 2),
            ("16", 4), ("1", 4), ("8 GPUs", 6), ("4 GPUs, 64 KiB", 2), ("64 GPUs", 0), ("64 ring", 2),
            ("world size>4", 6), ("size>=1 MiB", 8), ("size<1 MiB, world size<=4, ring", 1),
            ("size<1,024 KiB", 4), ("", 12),
        ):  # fmt: skip
            one.page.fill("#filter", text)
            assert one.page.locator("#all tbody tr:not(.hidden)").count() == shown, text
            assert one.text("#filtered") == ("12 points" if shown == 12 else f"{shown} of 12 points")
        # Figures are compared in their units; the example in the empty box is a filter of this table.
        times = [point["report"]["time_s"] for point in report(folders["ring_or_naive"])["points"]]
        one.page.fill("#filter", "time<1 ms")
        assert one.text("#filtered") == f"{sum(time < 1e-3 for time in times)} of 12 points"
        one.page.fill("#filter", one.page.get_attribute("#filter", "placeholder"))
        assert 1 <= one.page.locator("#all tbody tr:not(.hidden)").count() < 12
        for text, fault in (
            ("wrold size=8", 'No column is named "wrold size".'), ("time<1", 'Write a unit after "time<1".'),
            ("time<fast", 'Write a number after "time<".'),
        ):  # fmt: skip
            one.page.fill("#filter", text)
            assert one.text("#filtered") == f"12 points. {fault}"


def test_headers_that_sort_look_like_it(running: Any, folders: dict[str, Path]) -> None:
    with opened(running, folders["ring_or_naive"] / FILE) as one:
        one.drawn()
        heads = one.page.locator("#all thead th")
        assert {heads.nth(i).get_attribute("aria-sort") for i in range(heads.count())} == {"none"}
        assert one.value("getComputedStyle(document.querySelector('#all th button'), '::after').content") != "none"
        heads.nth(0).locator("button").click()
        assert heads.nth(0).get_attribute("aria-sort") == "ascending"


@pytest.mark.parametrize("name", ["ring_or_naive", "staged"])
def test_every_file_that_the_page_names_is_there(running: Any, folders: dict[str, Path], name: str) -> None:
    with opened(running, folders[name] / FILE) as one:
        one.drawn()
        links = one.value("[...document.querySelectorAll('a')].map(link => link.getAttribute('href'))")
        assert {"report.json", "table.csv", "scenario.yaml", "run.json"} <= set(links)
        assert any(link.endswith("spans.csv") for link in links)
        assert all((folders[name] / link).exists() for link in links)


def test_every_colour_is_seen_on_a_dark_page_and_what_is_idle_stays_behind(
    running: Any, folders: dict[str, Path]
) -> None:
    with opened(running, folders["staged"] / FILE, color_scheme="dark") as one:
        one.drawn()
        seen = one.value(
            "Object.fromEntries(Object.keys(data.colours).map(n => [n, contrast(colourOf(n), themed('--panel'))]))"
        )
        quiet = {name: seen.pop(name) for name in ("idle", "latency and waiting", "other")}
        assert min(seen.values()) >= 3
        assert max(quiet.values()) < min(seen.values())
        assert min(quiet.values()) > 1.3
    with opened(running, folders["staged"] / FILE) as one:
        one.drawn()
        assert one.value("Object.keys(data.colours).every(n => colourOf(n) === data.colours[n])")


def test_ranks_of_one_stage_are_one_block_of_lanes(running: Any, folders: dict[str, Path]) -> None:
    """Two ranks a stage, whose groups have names of their own and end a few nanoseconds apart."""
    with opened(running, folders["staged"] / FILE) as one:
        one.drawn()
        ranks = one.value("[...new Set(state.timeline.lanes.map(lane => lane.who))]")
        assert ranks == ["ranks 0-1 ×2", "ranks 2-3 ×2", "ranks 4-5 ×2", "ranks 6-7 ×2"]


def test_lanes_name_the_ranks_that_share_them(running: Any, tmp_path: Path) -> None:
    """Two slow ranks share lanes, and so do the others: names are ranges, and the tooltip of a name has all."""
    slow = {"topology": "star_100g", "world_size": 16, "stragglers": {5: 0.5, 9: 0.5}}
    data = {**TRAINING, "cluster": slow, "training": {"model": "gpt2_small", "seq_len": 256, "sharding": "ddp"}}
    run(tmp_path / "slow", {key: value for key, value in data.items() if key not in ("compare", "sweep")})
    with opened(running, tmp_path / "slow" / FILE) as one:
        one.drawn()
        everybody = one.value("[...new Set(state.timeline.lanes.map(lane => lane.everybody()))]")
        assert everybody == ["ranks 0-4, 6-8, 10-15 ×14", "ranks 5, 9 ×2"]
        # A narrower place has fewer ranges, and no noun at last.
        fitting = one.value("[25, 23, 22, 17].map(n => state.timeline.lanes[0].shortened(text => text.length <= n))")
        assert fitting == [everybody[0], "ranks 0-4, 6-8, ... ×14", "ranks 0-4, ... ×14", "0-4, 6-8, ... ×14"]
        one.page.locator("#timeline canvas").scroll_into_view_if_needed()
        box = one.page.locator("#timeline canvas").bounding_box()
        one.page.mouse.move(box["x"] + 30, box["y"] + 5)
        assert one.text("#tip").splitlines() == [everybody[0], "compute"]


def test_lines_on_each_other_share_one_name(running: Any, tmp_path: Path) -> None:
    """With one GPU a node nothing distinguishes zero1 from zero2 in time: one line, and both names beside it."""
    sweep = {"cluster.world_size": [2, 4, 8]}
    data = TRAINING | {"compare": {"training.sharding": ["ddp", "zero1", "zero2"]}, "sweep": sweep}
    run(tmp_path / "same", data)
    with opened(running, tmp_path / "same" / FILE) as one:
        one.drawn()
        assert "zero1, zero2 (same line)" in one.text("#overview .legend")
        assert one.page.locator("#overview path").count() == 2


def boxes_of(one: Opened, selector: str) -> list[list[float]]:
    """Left, top, right and bottom of each element of a drawing, in the drawing's units."""
    return one.value(
        f"[...document.querySelectorAll('{selector}')].map(e => e.getBBox())"
        ".map(b => [b.x, b.y, b.x + b.width, b.y + b.height])"
    )


def meet(one: list[float], other: list[float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.parametrize("width", [390, 1400])
@pytest.mark.one_of(2)
def test_names_of_points_are_free_and_the_legend_names_what_is_drawn(running: Any, tmp_path: Path, width: int) -> None:
    """Six policies of checkpointing: all are on the front, neighbours lie close to each other."""
    policies = ["none", "selective_op", "attention", {"every": 2}, "sqrt", "full"]
    data = TRAINING | {"sweep": {}, "compare": {"training.activation_checkpointing": policies}}
    data["training"] = TRAINING["training"] | {"micro_batch_size": 8, "sharding": "zero3", "attention": "standard"}
    run(tmp_path / "policies", data)
    with opened(running, tmp_path / "policies" / FILE, width=width) as one:
        one.drawn()
        names, dots = boxes_of(one, "#front svg .label"), boxes_of(one, "#front svg circle")
        assert len(names) >= (5 if width > 1000 else 2)
        for number, name in enumerate(names):
            assert not any(meet(name, other) for other in [*names[:number], *dots])
        # Places along the line, at most a unit apart.
        line = one.value(
            "(p => [...Array(Math.ceil(p.getTotalLength())).keys()]"
            ".map(i => p.getPointAtLength(i)).map(q => [q.x, q.y]))"
            "(document.querySelector('#front svg path'))"
        )
        assert not any(name[0] < x < name[2] and name[1] < y < name[3] for name in names for x, y in line)
        legend = one.value("[...document.querySelectorAll('#front .legend span')].map(s => s.textContent)")
        colours = one.value(
            "[...new Set([...document.querySelectorAll('#front circle')].map(c => c.getAttribute('fill')))]"
        )
        assert "Pareto front" in legend
        assert len(legend) == len(colours)


def test_a_front_of_one_point_is_not_called_a_front(running: Any, tmp_path: Path) -> None:
    data = TRAINING | {
        "sweep": {"cluster.world_size": [2, 8]},
        "training": TRAINING["training"] | {"sharding": "zero3"},
    }
    run(tmp_path / "one", data | {"compare": {}})
    with opened(running, tmp_path / "one" / FILE) as one:
        one.drawn()
        assert one.text("#front .legend").split() == ["fastest,", "and", "least", "memory", "fits"]
        assert one.page.locator("#front path").count() == 0


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (768, "dark"), (1400, "light")])
@pytest.mark.one_of(3)
def test_a_table_wider_than_its_box_says_how_many_columns_follow(
    running: Any, folders: dict[str, Path], width: int, scheme: str
) -> None:
    cut = (
        "[...document.querySelectorAll('.scroll')].filter(b => b.clientWidth)"
        ".map(b => [b.scrollWidth - b.clientWidth > 1, getComputedStyle(b).boxShadow !== 'none', "
        "b.nextElementSibling?.matches('.cue') ? b.nextElementSibling.textContent : ''])"
    )
    wide = 0
    for folder in folders.values():
        with opened(running, folder / FILE, width=width, color_scheme=scheme) as one:
            one.drawn()
            # Each frame draws what the frame before has changed.
            one.until("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")
            for is_wider, has_shadow, text in one.value(cut):
                assert is_wider == has_shadow == text.startswith("Scroll right for "), text
                wide += is_wider
            points = one.page.locator("#all").locator("xpath=..")
            if points.evaluate("box => box.scrollWidth - box.clientWidth > 1"):
                told = points.locator("xpath=following-sibling::p").inner_text()
                hidden = one.value(
                    "[...document.querySelectorAll('#all th')].filter(h => h.getBoundingClientRect().right"
                    " > document.querySelector('#all').parentElement.getBoundingClientRect().right + 1).length"
                )
                assert told.startswith(f"Scroll right for {hidden} more column{'s' if hidden > 1 else ''}.")
                points.evaluate("box => { box.scrollLeft = box.scrollWidth; }")
                one.until("!document.querySelector('#all').parentElement.classList.contains('cutright')")
                assert "right" not in points.locator("xpath=following-sibling::p").inner_text()
                assert points.evaluate("box => box.classList.contains('cutleft')")
    assert wide or width == 1400


def test_a_table_higher_than_its_box_says_how_many_rows_follow(running: Any, folders: dict[str, Path]) -> None:
    """Two of the twelve points are in sight at first; a filter that leaves one point leaves nothing to scroll for."""
    with opened(running, folders["ring_or_naive"] / FILE) as one:
        one.drawn()
        told = "document.querySelector('#all').parentElement.nextElementSibling?.textContent"
        assert one.value(f"{told} ?? ''") == ""
        box = one.page.locator("#all").locator("xpath=..")
        # Room for the headings and two rows.
        box.evaluate("box => { const b = box.querySelectorAll('tr')[2].getBoundingClientRect().bottom; "
                     "box.style.maxHeight = `${Math.ceil(b - box.getBoundingClientRect().top) + 1}px`; }")  # fmt: skip
        one.until(f"{told} === 'Scroll down for 10 more rows.'")
        box.evaluate("box => { box.scrollTop = box.scrollHeight; }")
        one.until(f"{told} === ''")
        box.evaluate("box => { box.scrollTop = 0; }")
        one.until(f"{told} === 'Scroll down for 10 more rows.'")
        one.page.fill("#filter", "naive, 64 KiB, 4 GPUs")
        one.until(f"{told} === ''")


def test_points_without_enough_memory_have_hollow_dots_and_both_axes_say_that_they_are_logarithmic(
    running: Any, tmp_path: Path
) -> None:
    """Four layers of Llama 3 on eight cards of 24 GB: four sequences a micro-batch do not fit without checkpointing."""
    model = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000,
    }  # fmt: skip
    data: dict[str, Any] = {
        "name": "hollow",
        "cluster": {"topology": "dgx_h100", "world_size": 8, "gpu": "l4"},
        "training": {"model": model, "seq_len": 8192},
        "compare": {"training.activation_checkpointing": ["none", "full"]},
        "sweep": {"training.micro_batch_size": [1, 4]},
        "plots": [],
    }
    run(tmp_path / "hollow", data)
    with opened(running, tmp_path / "hollow" / FILE) as one:
        one.drawn()
        lacking = one.value("data.points.map((p, i) => (p.fits ? -1 : i)).filter((i) => i >= 0)")
        assert len(lacking) == 1
        hollow = one.page.locator("#overview circle.lacks")
        assert [int(dot.get_attribute("data-index")) for dot in hollow.all()] == lacking
        assert "Hollow dots: the point does not fit in memory." in one.page.locator("#overview").inner_text()


def test_every_pass_of_a_pipeline_has_the_number_of_its_micro_batch(running: Any, folders: dict[str, Path]) -> None:
    with opened(running, folders["staged"] / FILE, script=DRAWN_TEXTS) as one:
        one.drawn()
        texts = one.value("document.querySelector('#pipeline canvas').texts")
    numbers = [int(text.split()[0]) for text, *_ in texts if re.fullmatch(r"\d+( (forward|backward))?", text)]
    # Four stages, forward and backward.
    assert {number: numbers.count(number) for number in range(8)} == dict.fromkeys(range(8), 8)


def test_exposed_communication_adds_up_to_the_reports_and_a_click_shows_a_span(
    running: Any, folders: dict[str, Path]
) -> None:
    told = report(folders["sharded"])["points"]
    with opened(running, folders["sharded"] / FILE) as one:
        for number, point in enumerate(told):
            one.value(f"pick({number})")
            one.until(f"state.drawn === {number}")
            ranks = one.value("new Set(state.timeline.lanes.map(lane => lane.who)).size")
            every = "exposedSpans(state.timeline.lanes, 1e9).reduce((sum, one) => sum + one.exposed, 0)"
            exposed = one.value(f"{every} * state.timeline.unit")
            assert exposed == pytest.approx(ranks * point["report"]["exposed_comm_time_s"], rel=0.02)
        assert 1 <= one.page.locator("#exposed li").count() <= 10
        one.page.get_by_text("Exposed communication:").click()
        one.page.locator("#exposed button").first.click()
        begin, end, start = one.value(
            "(({ lane, i }) => [state.view.from, state.view.to, lane.start[i]])(state.timeline.chosen)"
        )
        assert begin <= start < end
        assert "of" in one.page.locator("#exposed li").first.inner_text()
    with opened(running, folders["staged"] / FILE) as one:
        one.drawn()
        streams = one.value("exposedSpans(state.timeline.lanes, 1e9).map(({ lane }) => lane.stream)")
        assert "sends to stages" in streams


def test_memory_is_scaled_to_all_points_or_to_the_point(running: Any, folders: dict[str, Path]) -> None:
    with opened(running, folders["sharded"] / FILE) as one:
        one.drawn()
        one.value("pick(2)")
        one.until("state.drawn === 2")
        before = pixels(one, "#memory canvas")
        one.page.get_by_label("scale of this point alone").check()
        assert not np.array_equal(before, pixels(one, "#memory canvas"))
        assert one.value("state.memory.reach") == 0


def test_several_notes_on_trust_are_folded_below_the_first(running: Any, folders: dict[str, Path]) -> None:
    caveats = report(folders["staged"])["answer"]["caveats"]
    with opened(running, folders["staged"] / FILE) as one:
        one.drawn()
        folded = one.page.locator("details.trust")
        assert f"{len(caveats) - 1} further note" in folded.locator("summary").inner_text()
        assert not folded.locator("p").first.is_visible()
        folded.locator("summary").click()
        assert folded.locator("p").last.is_visible()
