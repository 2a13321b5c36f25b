"""Things found by name: a file is enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.basics import registry
from simulator.basics.errors import ScenarioError, UnknownNameError


@pytest.mark.parametrize(("kind", "name"), [("topology", "star_100g"), ("scenario", "straggler"), ("gpu", "h100_sxm")])
def test_a_shipped_name_is_a_file_of_that_name(kind: registry.Kind, name: str) -> None:
    path = registry.find(kind, name)
    assert path.stem == name
    assert path.is_file()
    assert name in registry.names(kind)


@pytest.mark.parametrize("kind", ["topology", "scenario", "gpu"])
def test_names_are_sorted_and_all_can_be_found(kind: registry.Kind) -> None:
    names = registry.names(kind)
    assert list(names) == sorted(names)
    assert len(names) >= 5
    assert all(registry.find(kind, name).stem == name for name in names)


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("builder: star\n")
    assert registry.find("topology", str(mine)) == mine


@pytest.mark.parametrize("name", ["folder/nothing", "nothing.yaml", "nothing.json", "nothing.graphml"])
def test_a_path_to_nothing_is_told_as_a_path(name: str) -> None:
    with pytest.raises(ScenarioError, match="no such topology file") as caught:
        registry.find("topology", name)
    assert not isinstance(caught.value, UnknownNameError)


def test_a_misspelt_name_gets_the_right_one() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'star_100g'"):
        registry.find("topology", "star_10g")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError):
        registry.find("topology", f"{tmp_path}/")


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        ("topology", "L4", "l4 is the name of a gpu"),
        ("scenario", "llama3-8b", "llama3_8b is the name of a model"),
        ("model", "dgx_h100", "dgx_h100 is the name of a topology"),
        ("gpu", "h100_hbm2e_500w", "this is a board of measured runs; copy .* change power to 500, .* file's path"),
    ],
)
def test_a_name_of_another_kind_is_told_as_one(kind: registry.Kind, name: str, hint: str) -> None:
    with pytest.raises(UnknownNameError, match=f"; {hint}$"):
        registry.find(kind, name)


def test_a_runs_directory_as_a_scenario_is_refused_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"give the path of a scenario file or a name; `simulator list scenarios` "):
        registry.find("scenario", str(tmp_path))
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ScenarioError, match=rf"again, use `simulator rerun {tmp_path}`$"):
        registry.find("scenario", str(tmp_path))
