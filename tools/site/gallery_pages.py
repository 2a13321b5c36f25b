"""Which pages does the gallery contain? A page for each scenario: question, answer, picture, file, and report."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image

from simulator.results.page.page import without_files
from simulator.scenario.load import load_scenario
from simulator.scenario.records import Scenario
from tools.site.gallery_runs import ROOT, GalleryRun

# Width in pixels: twice the displayed width, for screens with double resolution.
_THUMBNAIL: Final = 640
_TOPICS: Final = {
    "collective": "Collectives and links",
    "data": "Data parallelism and sharding",
    "cut": "Tensor, pipeline, context and expert parallelism",
    "memory": "Memory, kernels and precision",
    "numerics": "Real training",
}
# Varied keys that make a scenario a question of memory, kernels or precision.
_MEMORY_KEYS: Final = ("activation_checkpointing", "offload", "allocator", "attention", "precision", "seq_len")
_NOT_SIMULATED: Final = "This build did not simulate the scenario; `make docs` does."


@dataclass(frozen=True, slots=True)
class Entry:
    """A scenario in the gallery.

    Attributes
    ----------
    name, question : str
        Name of the file, and the scenario's question.
    topic : str
        A key of _TOPICS, the index's headings.
    text : str
        Text of the file.
    run : GalleryRun or None
        None if this build does not simulate the scenario.
    """

    name: str
    question: str
    topic: str
    text: str
    run: GalleryRun | None


def entry(path: Path, run: GalleryRun | None) -> Entry:
    """Read a scenario file."""
    scenario = load_scenario(path)
    return Entry(path.stem, scenario.question or path.stem, _topic(scenario), path.read_text(encoding="utf-8"), run)


def _topic(scenario: Scenario) -> str:
    """Return a scenario's heading on the index (a key of _TOPICS), from its job and its varied keys."""
    step, keys = scenario.training, [*scenario.compare, *scenario.sweep]
    if step is None:
        return "collective"
    if step.numerics:
        return "numerics"
    sizes = step.parallelism
    if max(sizes.tp, sizes.pp, sizes.cp, sizes.ep) > 1 or any(".parallelism" in key for key in keys):
        return "cut"
    return "memory" if any(key.endswith(_MEMORY_KEYS) for key in keys) else "data"


def write(entries: Sequence[Entry], source: Path) -> None:
    """Write the gallery's pages and thumbnails into Sphinx's source folder."""
    folder = source / "gallery"
    # From scratch, because a removed scenario must lose its page.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for one in entries:
        picture = _picture(one)
        # Two sizes: the page shows the whole picture, the index a thumbnail.
        if picture is not None:
            shutil.copyfile(picture, folder / f"{one.name}.png")
            _shrink(picture, folder / f"{one.name}_small.png")
        (folder / f"{one.name}.md").write_text(_page(one), encoding="utf-8")
    (folder / "index.md").write_text(_index(entries), encoding="utf-8")


def write_reports(entries: Sequence[Entry], html: Path) -> None:
    """Write each run's report beside the built pages that link to the report."""
    for one in entries:
        report = _report(one)
        if report is not None:
            # Files that the report links to are not on the site.
            page = without_files(report.read_text(encoding="utf-8"))
            (html / "gallery" / f"{one.name}_report.html").write_text(page, encoding="utf-8")


def _shrink(picture: Path, target: Path) -> None:
    with Image.open(picture) as image:
        image.thumbnail((_THUMBNAIL, _THUMBNAIL))
        image.save(target, optimize=True)


def _picture(one: Entry) -> Path | None:
    return None if one.run is None else next(iter(one.run.pictures), None)


def _report(one: Entry) -> Path | None:
    report = None if one.run is None else one.run.folder / "report.html"
    return report if report is not None and report.is_file() else None


def _page(one: Entry) -> str:
    parts = [f"# {one.question}", *_answered(one)]
    parts += [f"The scenario `{one.name}`:", f"```yaml\n{one.text.rstrip()}\n```", f"    simulator run {one.name}"]
    return "\n\n".join(parts) + "\n"


def _answered(one: Entry) -> list[str]:
    if one.run is None:
        return [_NOT_SIMULATED]
    parts = [_quoted(one.run.answer)]
    if _picture(one) is not None:
        parts += [f"```{{image}} {one.name}.png\n:alt: {one.question}\n:class: gallery-picture\n```"]
    if _report(one) is not None:
        parts += [f'<a href="{one.name}_report.html">The whole report of this run</a>']
    return parts


def _quoted(sentences: Sequence[str]) -> str:
    """Return a program's sentences as a Markdown quotation, one paragraph each, with markup escaped."""
    return "\n>\n".join(f"> {_escaped(line)}" for line in sentences)


def _escaped(line: str) -> str:
    """Return a program's text with the characters escaped that have a meaning in Markdown."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|$~" else c for c in line)


def _index(entries: Sequence[Entry]) -> str:
    # A quick build says so on the page.
    played = sum(one.run is not None for one in entries)
    words = (
        f"The package contains {len(entries)} scenarios. Each answers a question, and `simulator run NAME` "
        "simulates it. The cards show the question and the first sentence of the answer."
    )
    if played < len(entries):
        words += f" This build simulated {played} of them; `make docs` simulates all."
    parts = ["# Gallery", words]
    for topic, title in _TOPICS.items():
        cards = [_card(one) for one in entries if one.topic == topic]
        parts += [f"## {title}", "\n\n".join(["::::{grid} 1 1 2 2\n:gutter: 3", *cards, "::::"])]
    names = "\n".join(one.name for one in entries)
    return "\n\n".join([*parts, f"```{{toctree}}\n:hidden:\n:maxdepth: 1\n\n{names}\n```"]) + "\n"


def _card(one: Entry) -> str:
    image = [f":img-top: {one.name}_small.png", f":img-alt: {one.question}"] if _picture(one) else []
    options = [f":link: {one.name}", ":link-type: doc", *image]
    said = _escaped(one.run.answer[0]) if one.run is not None and one.run.answer else ""
    return "\n".join([f":::{{grid-item-card}} {one.question}", *options, "", said, "", f"`{one.name}`", ":::"])


def scenarios() -> Mapping[str, Path]:
    """Return the shipped scenarios by name."""
    return {path.stem: path for path in sorted((ROOT / "scenarios").glob("*.yaml"))}
