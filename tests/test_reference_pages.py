"""The stored pages of the reference are those that the code gives."""

from __future__ import annotations

import pytest
import yaml

from simulator.basics.yaml_dialect import Loader
from simulator.scenario.load import load_scenario
from tools.reference_pages import FOLDER, pages
from tools.site import key_pages

PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_stored_page_is_that_of_the_code(name: str) -> None:
    # What differs is written by `python -m tools.reference_pages`.
    assert (FOLDER / name).read_text(encoding="utf-8") == PAGES[name]


def test_examples_of_keys_are_yaml_of_that_key() -> None:
    rows = [row.split(" | ") for row in key_pages.scenario_page().splitlines() if row.startswith("| `")]
    examples = [(row[0].strip("| `"), row[-1].strip("| `")) for row in rows]
    assert sum(bool(example) for _, example in examples) > 100
    for key, example in examples:
        if example:
            assert list(yaml.load(example, Loader)) == [key]


def _examples(section: str) -> list[str]:
    """The examples on the page of scenario keys for the keys of a mapping."""
    rows = key_pages.scenario_page().split(f"## `{section}`\n")[1].split("\n## ")[0].splitlines()
    found = [row.rsplit(" | ", 1)[1].strip("| `") for row in rows if row.startswith("| `")]
    return [example for example in found if example]


@pytest.mark.parametrize("line", _examples("training"))
def test_examples_of_a_training_are_accepted(line: str) -> None:
    training = {"model": "llama3_8b", "seq_len": 8192} | yaml.load(line, Loader)
    tiny = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 128}
    real = {"model": tiny, "seq_len": 64, "numerics": True} if {"numerics", "steps"} & set(training) else {}
    cluster = {"topology": "dgx_h100", "world_size": 8}
    # A checkpoint needs a place to go.
    cluster |= {"storage": "20 GB/s"} if "checkpoint_traffic" in training else {}
    load_scenario({"name": "x", "cluster": cluster, "training": training | real})
