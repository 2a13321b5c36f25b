"""What editors, the page of docs and `simulator check` say of topology files is what is read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from simulator.basics import registry
from simulator.cluster.builder import BUILDERS
from simulator.cluster.topology_schema import options, schema
from tests.commands import Command, commands_in

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "topologies.md").read_text()


@pytest.mark.parametrize("name", registry.names("topology"))
def test_the_schema_accepts_every_shipped_file(name: str) -> None:
    jsonschema.validate(yaml.safe_load(registry.find("topology", name).read_text()), schema())


@pytest.mark.parametrize(
    "wrong",
    [
        {"builder": "star"},
        {"builder": "star", "options": {"bandwidth": "1 GB/s", "latency": "1 us", "speed": 3}},
        {"builder": "stars", "options": {}},
        {"builder": "star", "graph": "a.json", "options": {"bandwidth": "1 GB/s", "latency": "1 us"}},
        {"gpu": "h100_sxm"},
        {"builder": "star", "options": {"bandwidth": 12.5, "latency": "1 us"}},
    ],
)
def test_the_schema_refuses_what_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, schema())


@pytest.mark.parametrize("name", BUILDERS.names())
def test_the_page_tells_every_option_of_a_builder_in_the_builders_words(name: str) -> None:
    section = re.split(r"^### ", PAGE.partition("## Builders")[2], flags=re.M)
    (own,) = (part for part in section if part.startswith(f"`{name}`"))
    described = options(name)
    assert re.findall(r"^\| `(\w+)` \|", own, flags=re.M) == list(described)
    for option, facts in described.items():
        assert f"| {facts['description'].replace('|', 'or')} |" in own, option


def test_the_page_tells_every_key() -> None:
    made = schema()
    keys = {*made["properties"], *(key for part in made["$defs"].values() for key in part["properties"])}
    assert [key for key in sorted(keys) if f"`{key}`" not in PAGE and f"`{{{key}:" not in PAGE] == []


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def test_check_says_what_a_topology_is_or_what_is_wrong_with_it(cli: Command, tmp_path: Path) -> None:
    right, wrong = tmp_path / "mine.yaml", tmp_path / "wrong.yaml"
    right.write_text(PAGE.partition("```yaml\n")[2].partition("```")[0])
    wrong.write_text("builder: star\noptions:\n  bandwith: 3 GB/s\n")
    answer = cli("check", str(right))
    assert answer.code == 0
    assert "nodes of 8 GPUs" in answer.out
    answer = cli("check", str(wrong))
    assert answer.code == 2
    assert f"{wrong}:3:3: options.bandwith: unknown key" in answer.err
