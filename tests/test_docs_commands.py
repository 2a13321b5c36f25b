"""The commands of documentation pages print what the pages show; files on the pages are those that they use."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.docs_commands import ROOT, blocks, matches, pages, with_outputs

PAGES = [page.relative_to(ROOT) for page in pages()]
# Pages whose commands take nearly two seconds or more.
LARGE = {
    Path("docs", f"{name}.md")
    for name in (
        "howto/reinforcement_learning", "howto/slow_links_between_sites", "howto/own_cluster",
        "howto/communication_dominates", "howto/gradient_accumulation", "howto/fits_my_card", "howto/goodput",
        "howto/own_parts", "howto/several_jobs", "howto/pipeline_bubble", "howto/own_network", "howto/optimizers",
        "howto/own_algorithm", "start/plan_a_layout", "start/sweep_and_plot", "howto/normal_throughput",
        "howto/low_mfu", "howto/micro_batch", "howto/experts", "howto/longest_sequence", "howto/tp_or_fsdp",
        "howto/fsdp_slower_than_ddp", "howto/zero_memory", "howto/hsdp", "howto/lengths",
    )
}  # fmt: skip


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.long] * (page in LARGE)) for page in PAGES], ids=str
)
def test_commands_print_what_a_page_shows(page: Path) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    # What differs is written by `python -m tools.docs_commands`.
    assert with_outputs(text) == text


def test_large_pages_exist() -> None:
    assert set(PAGES) >= LARGE


def test_an_output_that_differs_is_found() -> None:
    page = "Save as `a.yaml`:\n\n```yaml\n# x?\n```\n\n```console\n$ simulator list gpus\nl4\n```\n"
    assert [block.file for block in blocks(page)] == ["a.yaml", ""]
    written = with_outputs(page)
    assert written != page
    (line,) = (line for line in written.splitlines() if line.startswith("l4 "))
    # The page's own choice of lines is kept.
    chosen = page.replace("\nl4\n", f"\n...\n{line}\n...\n")
    assert with_outputs(chosen) == chosen
    assert not matches(["...", "l5"], ["l4"])


def test_python_of_a_page_is_run_with_the_variables_of_its_earlier_blocks() -> None:
    page = "```python\n>>> x = 2\n>>> if x:\n...     print(x)\n1\n```\n\nText.\n\n```python\n>>> x + 1\n```\n"
    shown = page.replace("\n1\n", "\n2\n").replace("x + 1\n", "x + 1\n3\n")
    assert with_outputs(page) == shown
    assert with_outputs(shown) == shown


def test_every_question_is_on_the_index_with_its_title() -> None:
    index = (ROOT / "docs" / "howto" / "index.md").read_text(encoding="utf-8")
    pages_there = [page for page in sorted((ROOT / "docs" / "howto").glob("*.md")) if page.name != "index.md"]
    assert len(pages_there) >= 25
    for page in pages_there:
        title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        assert title.endswith("?")
        assert f"- [{title}]({page.name})" in index


def test_an_argument_in_quotation_marks_may_have_two_lines() -> None:
    page = (
        "Save as `a.yaml`:\n\n```yaml\n# x?\nname: a\ncluster: {topology: star_100g, world_size: 4}\n"
        "collective: {operation: all_reduce, size: 1 KiB}\n```\n\n"
        "```console\n$ simulator check a.yaml --set 'sweep={cluster.world_size: [2, 4],\n"
        "    collective.algorithm: [ring]}' \\\n    --set seed=1\n...\npoints:    2\n...\n```\n"
    )
    assert with_outputs(page) == page
    with pytest.raises(ValueError, match=r"^simulator check 'a: the command has no end$"):
        with_outputs("```console\n$ simulator check 'a\n```\n")


# A number with a unit, or behind a sign of uncertainty.
MEASURE = re.compile(
    r"(?<![\w.,/-])(?:±(?P<spread>\d[\d.,]*)|(?P<number>\d[\d,]*(?:\.\d+)?)\s?(?:%|[mu]?s|[KMGTP]i?B(?:/s)?|tokens/s|times)(?![\w/]))"
)


def stale(text: str) -> list[str]:
    """Numbers in sentences about outputs that neither an output nor an input of the page contains.

    Sentences about outputs are those of the paragraph "How to read it". A number behind "=" is worked out in its
    sentence. What a sentence says of an uncertainty (±) is printed, wherever it stands.
    """
    shown = " ".join(re.findall(r"```.*?```|`[^`\n]+`", text, re.DOTALL))
    printed = {number.rstrip(".,") for number in re.findall(r"(?<!\w)\d[\d,.]*", shown)}
    found = []
    for paragraph in re.sub(r"```.*?```", "", text, flags=re.DOTALL).split("\n\n"):
        explains = paragraph.startswith("**How to read it.**")
        for sentence in re.split(r"(?<=[.:;])\s", re.sub(r"`[^`\n]+`", "", paragraph)):
            for match in MEASURE.finditer(sentence):
                number = (match["spread"] or match["number"]).rstrip(".,")
                told = match["spread"] is not None or (explains and "=" not in sentence)
                found += [number] if told and number not in printed else []
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if page.parts[1] in ("howto", "start")], ids=str)
def test_sentences_about_outputs_have_the_numbers_that_are_printed(page: Path) -> None:
    assert stale((ROOT / page).read_text(encoding="utf-8")) == []


def test_a_number_that_no_output_has_is_found() -> None:
    page = "```console\n$ simulator\nzero3 takes 5 % more time, 3.1 s\n```\n\n**How to read it.** {}\n\n**Why.** 9 GB."
    for sentence, wrong in (
        ("It takes 5 % more, 3.1 s.", []),
        ("It takes 6 % more, 3.1 s.", ["6"]),
        ("2 x 3.1 = 6.2 s.", []),
        ("It is ±7 % off.", ["7"]),
        ("It moves 12.5 GB/s.", ["12.5"]),
    ):
        assert stale(page.format(sentence)) == wrong
