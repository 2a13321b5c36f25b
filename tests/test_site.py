"""The documentation site is built without a warning, every link leads somewhere, and pages say what the code says."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

import simulator
from simulator import plots
from simulator.scenario.records import axis_keys
from tools.site import gallery_pages, key_pages
from tools.site.__main__ import QUICK
from tools.site.built_links import faults
from tools.site.gallery_runs import ROOT, GalleryRun, run_of

SMALL = """\
# How fast is a ring of four?
name: small
cluster: {topology: star_100g, world_size: 4}
collective: {operation: all_reduce, algorithm: ring, size: 4 KiB}
plots: []
"""


@pytest.mark.long
def test_the_site_is_built_and_nothing_of_it_is_loaded_from_afar(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.site", "--quick", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    html = tmp_path / "html"
    # A page for each scenario, document and notebook; those that were played have a picture.
    for name in gallery_pages.scenarios():
        assert (html / "gallery" / f"{name}.html").is_file()
        assert (tmp_path / "source" / "gallery" / f"{name}.png").is_file() == (name in QUICK)
    for folder, pattern in (("docs", "*.md"), ("notebooks", "*.ipynb")):
        for page in (ROOT / folder).glob(pattern):
            assert (html / folder / f"{page.stem}.html").is_file()
    python = (html / "reference" / "python.html").read_text()
    public = [name for name in simulator.__all__ if name != "__version__"] + [f"plots.{name}" for name in plots.__all__]
    assert [name for name in public if f'id="simulator.{name}"' not in python] == []
    assert "<math" in (html / "notebooks" / "01_collectives_step_by_step.html").read_text()


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('<a href="other.html#there">', []),
        ('<a href="other.html">', []),
        ('<a href="https://example.org">', []),
        ('<a href="gone.html">', ["page.html: gone.html: there is no such file"]),
        ('<img src="gone.png">', ["page.html: gone.png: there is no such file"]),
        ('<a href="other.html#nowhere">', ["page.html: other.html#nowhere: there is no such anchor"]),
        ('<a href="#nowhere">', ["page.html: #nowhere: there is no such anchor"]),
        ('<script src="//cdn.org/a.js">', ["page.html: //cdn.org/a.js: <script> loads it from another machine"]),
        (
            '<link href="https://cdn.org/a.css">',
            ["page.html: https://cdn.org/a.css: <link> loads it from another machine"],
        ),
    ],
)
def test_a_link_that_leads_nowhere_is_found(body: str, found: list[str], tmp_path: Path) -> None:
    (tmp_path / "other.html").write_text('<p id="there">')
    (tmp_path / "page.html").write_text(body)
    assert faults(tmp_path) == found


def test_the_page_of_scenario_keys_tells_all_that_can_be_varied() -> None:
    page = key_pages.scenario_page()
    # What is short for a mapping's first key is that mapping here.
    sections = {line.strip("#` ") for line in page.splitlines() if line.startswith("## `")}
    for key in axis_keys():
        mapping, _, name = key.rpartition(".")
        assert f"\n| `{name}` |" in page, key
        assert not mapping or mapping in sections, key
    kind = "whole number, 1 to 1,000,000; or text, such as `8k`"
    meaning = "Number of ranks, each on its own GPU; 1k is 1000."
    assert f"| `world_size` | {meaning} | {kind} | required | `world_size: 64` |" in page
    engines = "`auto`, `events`, `compiled` | `auto` | `engine: compiled`"
    assert f"| `engine` | Simulation engine. | {engines} |" in page


def test_the_page_of_topology_keys_tells_every_builders_options() -> None:
    page = key_pages.topology_page()
    assert "## `options` of `fat_tree`" in page
    assert (
        "| `startup` | Start-up time of every rank, once before its first transfer. | text, such as `5 us` | `0.0` |"
    ) in page


def test_code_of_the_site_can_be_copied() -> None:
    """Smart quotes turn --set into a dash and quotes into curly ones, inside code of docstrings too."""
    conf = runpy.run_path(str(ROOT / "docs" / "site" / "conf.py"))
    assert conf["smartquotes"] is False


def test_a_run_is_kept_until_its_scenario_changes(tmp_path: Path) -> None:
    scenario, store = tmp_path / "small.yaml", tmp_path / "store"
    scenario.write_text(SMALL)
    first = run_of(scenario, store)
    assert first.answer
    assert first.pictures == []
    (first.folder / "mark").touch()
    assert (run_of(scenario, store).folder / "mark").is_file()
    scenario.write_text(SMALL.replace("4 KiB", "8 KiB"))
    assert not (run_of(scenario, store).folder / "mark").exists()


@pytest.mark.long
def test_a_scenario_that_cannot_be_played_ends_the_build_and_is_not_kept(tmp_path: Path) -> None:
    scenario, store = tmp_path / "small.yaml", tmp_path / "store"
    scenario.write_text(SMALL.replace("star_100g", "no_such_topology"))
    for _ in range(2):
        with pytest.raises(SystemExit, match="no_such_topology"):
            run_of(scenario, store)


def test_a_page_of_the_gallery_has_question_answer_picture_file_and_report(tmp_path: Path) -> None:
    scenario, folder = tmp_path / "small.yaml", tmp_path / "run"
    scenario.write_text(SMALL)
    (folder / "plots").mkdir(parents=True)
    Image.new("RGB", (1000, 500)).save(folder / "plots" / "scaling.png")
    (folder / "report.html").write_text("the report")
    answer = {"sentences": ["The ring wins by 2 * 3."], "why": "Its links are idle."}
    (folder / "report.json").write_text(json.dumps({"answer": answer}))
    run = GalleryRun(folder)
    source, html = tmp_path / "source", tmp_path / "html"
    (html / "gallery").mkdir(parents=True)
    entries = [gallery_pages.entry(scenario, run), gallery_pages.entry(ROOT / "scenarios" / "zero_stages.yaml", None)]
    gallery_pages.write(entries, source)
    gallery_pages.write_reports(entries, html)
    page = (source / "gallery" / "small.md").read_text()
    assert "# How fast is a ring of four?" in page
    assert "> The ring wins by 2 \\* 3.\n>\n> Its links are idle.\n" in page
    assert SMALL in page
    assert 'href="small_report.html"' in page
    assert (html / "gallery" / "small_report.html").read_text() == "the report"
    with Image.open(source / "gallery" / "small_small.png") as image:
        assert image.size == (640, 320)
    assert "did not simulate the scenario" in (source / "gallery" / "zero_stages.md").read_text()
    assert "simulated 1 of them" in (source / "gallery" / "index.md").read_text()
