"""Speeds of models whose samples are no sequences: samples everywhere that people read, tokens for sequences."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from matplotlib.text import Text

from simulator.basics.work_unit import SAMPLE, TOKEN
from simulator.findings.budget import length_text
from simulator.model.load import load_model
from simulator.records.measures import find, for_reports
from simulator.report.plots.plot import ComparedPoints, Throughput
from simulator.report.plots.training import breakdown, memory_vs_time, scaling
from simulator.scenario.description import describe
from simulator.scenario.load import load_scenario
from tests.commands import Command, commands_in

# Names of fields in the page's data, which the scripts use and nobody reads.
FIELDS = re.compile(r"tokens_per_s|time_per_token_s")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def read_texts(page: str) -> str:
    """Everything that a page may show: its HTML without scripts and styles, and the strings of its data."""
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    # Timelines are compressed: chance alone decides on their letters.
    data.pop("views")
    shown = re.sub(r"<(script|style).*?</\1>", "", page, flags=re.S)
    return "\n".join([shown, *(text for text in strings(data) if not FIELDS.fullmatch(text))])


def strings(data: Any) -> Iterator[str]:
    """The strings among the values of plain data; keys are names of fields."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for value in data.values():
            yield from strings(value)
    elif isinstance(data, list):
        for value in data:
            yield from strings(value)


def texts_of(figure: Any) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


# Sixteen trainings of resnet50_ddp differ in numbers alone; long runs have those with 8, 16 and 32 GPUs.
FEW = ("--set", "cluster.world_size=4")


@pytest.mark.parametrize(
    ("name", "settings"),
    [("resnet50_ddp", FEW), ("dit_training", ()), pytest.param("resnet50_ddp", (), marks=pytest.mark.long)],
)
@pytest.mark.one_of(2)
def test_no_text_about_images_counts_tokens(cli: Command, tmp_path: Path, name: str, settings: tuple[str, ...]) -> None:
    told = cli("run", name, *settings, "--out", tmp_path / "run")
    assert told.code == 0
    page = read_texts((tmp_path / "run" / "report.html").read_text())
    for text in (told.out, told.err, page):
        assert "token" not in text.lower()
    # Table titles begin with a capital.
    assert "samples/s" in told.out.lower()
    assert "samples/s" in page
    points = json.loads((tmp_path / "run" / "report.json").read_text())["points"]
    for point in points:
        report = point["report"]
        scenario = load_scenario(name)
        assert scenario.training is not None
        gpus = point["settings"].get("cluster.world_size", 4 if settings else scenario.cluster.world_size)
        images = gpus * scenario.training.micro_batch_size
        # The field keeps its name, and counts the images of a step over its time.
        assert report["tokens_per_s"] == pytest.approx(images / report["step_time_s"], rel=1e-12)
        assert report["work_unit"] == SAMPLE
    # All columns of all points, in both forms.
    assert "token" not in cli("run", name, *settings, "--table", "--out", tmp_path / "again").out.lower()
    rows = [(str(number), point["report"]) for number, point in enumerate(points)]
    throughputs = [Throughput("ddp", 4 * 2**number, 1000.0, 0.2) for number in range(2)]
    for plot in (breakdown, memory_vs_time, scaling):
        drawn = plot.PLOT.figures(ComparedPoints(rows, throughputs=throughputs))
        for figure in drawn.values():
            assert "token" not in texts_of(figure).lower()
            assert "samples" in texts_of(figure)


def test_patches_of_images_are_tokens(cli: Command, tmp_path: Path) -> None:
    """ViT-B/16 has 197 of them per image; as for any transformer, these are counted and told."""
    told = cli("run", "vit_scaling", "--set", "compare.cluster.world_size=[8, 16]", "--out", tmp_path / "run")
    assert told.code == 0
    assert "197 tokens" in told.out
    assert "tokens/s" in told.out
    assert "sample" not in told.out
    report = json.loads((tmp_path / "run" / "report.json").read_text())["points"][0]["report"]
    assert report["work_unit"] == TOKEN
    assert report["tokens_per_s"] == pytest.approx(4096 * 197 / report["step_time_s"], rel=1e-12)


def test_the_unit_belongs_to_the_model() -> None:
    tokens = {"input": {"tokens": 16}, "layers": [{"embedding": [100, 8]}, {"linear": [8, 100]}]}
    units = {name: load_model(name).work_unit for name in ("resnet50", "dit_xl_2", "vit_b16", "llama3_8b")}
    assert units == {"resnet50": SAMPLE, "dit_xl_2": SAMPLE, "vit_b16": TOKEN, "llama3_8b": TOKEN}
    # A list of layers on a sequence has tokens too.
    assert load_model(tokens).work_unit == TOKEN


def test_a_mixed_comparison_is_told_in_tokens() -> None:
    def report(unit: str, work: float) -> dict[str, Any]:
        return {"work_unit": unit, "tokens_per_s": work, "step_time_s": 1.0, "mfu": 0.4}

    images, sequences = report(SAMPLE, 100.0), report(TOKEN, 8192.0)
    speed, time = find("speed", "training"), find("time", "training")
    assert for_reports(speed, [images, images]).text(100.0) == "100 samples/s"
    assert for_reports(speed, [images, sequences]).text(100.0) == "100 tokens/s"
    # Steps with different work are compared by the time of a unit.
    assert for_reports(time, [images, report(SAMPLE, 200.0)]).noun == "time per sample"
    assert for_reports(time, [images, sequences]).noun == "time per token"
    assert length_text(3e9, images) == "3 billion samples"
    assert length_text(3e9, sequences) == "3 billion tokens"


@pytest.mark.parametrize(
    ("model", "seq_len", "told"),
    [("resnet50", 1, "micro-batch 4;"), ("gpt2", 1, "micro-batch 4, 1 token;"), ("gpt2", 64, "micro-batch 4, 64 tok")],
)
def test_a_sample_that_is_no_sequence_has_no_length(model: str, seq_len: int, told: str) -> None:
    training = {"model": model, "seq_len": seq_len, "micro_batch_size": 4}
    cluster = {"topology": "star_100g", "world_size": 2}
    assert told in describe(load_scenario({"name": "length", "cluster": cluster, "training": training})).text


def test_kernels_of_images_are_of_a_number_of_samples(cli: Command) -> None:
    for size, told in ((1, "per micro-batch of 1 sample,"), (256, "per micro-batch of 256 samples,")):
        assert told in " ".join(cli("kernels", "resnet50", "--micro-batch-size", size).out.split())
    assert "micro-batch of 2 x 64 tokens," in " ".join(
        cli("kernels", "gpt2", "--micro-batch-size", 2, "--seq-len", 64).out.split()
    )


@pytest.mark.long
def test_the_memory_of_images_is_simulated_without_closed_forms_of_activations(cli: Command) -> None:
    out = cli("memory", "resnet50", "--micro-batch-size", 64).out
    # Stage 0 of the ZeRO paper: 2 + 2 + 12 bytes per parameter.
    assert f"{16 * 25_557_032 / 2**30:.2f} GiB" in next(line for line in out.splitlines() if "paper, stage 0" in line)
    assert "micro-batch of 64 samples" in " ".join(out.split())
    assert "activations and logits" not in out
    assert "logits" in cli("memory", "gpt2").out


def test_a_plan_for_images_needs_a_batch_in_samples(cli: Command) -> None:
    told = cli("plan", "resnet50", "--topology", "dgx_h100", "--gpus", 8)
    assert (told.code, told.out, len(told.faults)) == (2, "", 1)
    assert "--global-batch: missing" in told.err
    assert "--global-batch 256seq" in told.err


def test_the_memory_of_stages_is_of_samples(cli: Command) -> None:
    for model, told in (("resnet50", "4 micro-batches of 2 samples"), ("gpt2", "4 micro-batches of 2 x 1,024 tokens")):
        asked = ("--pp", 2, "--micro-batches", 4, "--micro-batch-size", 2)
        assert told in " ".join(cli("memory", model, *asked).out.split())


# A network of images with two layers, which is simulated in a hundredth of the time of ResNet-50.
IMAGES = """\
input: [3, 224, 224]
layers:
- conv2d: {in: 3, out: 64, kernel: 7, stride: 2, padding: 3}
- relu
- global_pool
- linear: [64, 1000]
loss: cross_entropy
"""


@pytest.mark.parametrize(
    ("model", "size", "code"),
    [
        ("images.yaml", 8, 0), ("images.yaml", 8192, 1),
        *(pytest.param("resnet50", size, code, marks=pytest.mark.long) for size, code in ((8, 0), (4096, 1))),
    ],
)  # fmt: skip
@pytest.mark.one_of(2)
def test_whether_images_fit_is_told_in_samples(cli: Command, tmp_path: Path, model: str, size: int, code: int) -> None:
    """Also the changes that make a training fit: their speed is a column."""
    (tmp_path / "images.yaml").write_text(IMAGES)
    told = cli("fit-check", model, "--gpu", "rtx_4090", "--micro-batch-size", size)
    assert told.code == code
    assert "token" not in told.out
    assert "samples/s per GPU" in told.out


@pytest.mark.long
def test_a_plan_for_images_counts_samples(cli: Command, tmp_path: Path) -> None:
    fixed = [text for name in ("pp=1", "sharding=ddp", "micro_batch=8") for text in ("--fix", name)]
    asked = ("--topology", "star_100g", "--gpus", 2, "--among", "gpus=2,4", "--global-batch", "32seq")
    told = cli("plan", "resnet50", *asked, *fixed, "--tokens", "1e9", "--out", tmp_path / "plan")
    assert told.code == 0
    assert "token" not in told.out
    assert "1 billion samples take" in told.out
    page = (tmp_path / "plan" / "report.html").read_text()
    # The scenario of the best setting has the key `budget.tokens`.
    shown = re.sub(r"<(script|style|pre).*?</\1>", "", page, flags=re.S)
    assert "32 samples per step" in shown
    assert "samples/s/GPU" in shown
    assert "token" not in shown
