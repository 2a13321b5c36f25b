"""What every configuration format promises: its sample is understood, nothing is passed over, faults are one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulator.basics.document import parse
from simulator.basics.errors import ScenarioError
from simulator.importing.format import formats
from simulator.importing.importer import import_files
from simulator.importing.rules import Means
from simulator.importing.settings import Imported, Reason
from simulator.scenario.load import parse_scenario
from simulator.scenario.records import axis_keys
from tests.configurations import SAMPLES, Sample

ALL = [
    pytest.param(name, sample, id=f"{name} {sample.file}") for name, several in SAMPLES.items() for sample in several
]


def of(folder: Path, sample: Sample, text: str | None = None) -> Imported:
    """The import of a sample's text."""
    path = folder / sample.file
    path.write_text(sample.written() if text is None else text, encoding="utf-8")
    return import_files([f"{path}:{sample.function}" if sample.function else str(path)], sample.options)


def test_every_format_has_a_sample() -> None:
    assert set(SAMPLES) == set(formats())


@pytest.mark.parametrize(("name", "sample"), ALL)
def test_a_sample_has_its_keys(tmp_path: Path, name: str, sample: Sample) -> None:
    found = of(tmp_path, sample)
    assert set(found.formats.values()) == {name}
    values = {one.key: one.value for one in found.understood} | {one.key: one.assumed for one in found.missing}
    assert {key: values.get(key) for key in sample.expected} == sample.expected
    # Every understood key names its setting; a value that no file has is told as missing.
    assert all(one.settings for one in found.understood)
    assert {one.key for one in found.understood}.isdisjoint(one.key for one in found.missing)


@pytest.mark.parametrize(("name", "sample"), ALL)
def test_what_is_written_is_a_scenario_with_these_keys(tmp_path: Path, name: str, sample: Sample) -> None:
    found = of(tmp_path, sample)
    document = parse(found.text)
    scenario = parse_scenario(document, tmp_path)
    # Keys without effect were removed.
    assert [line for line in scenario.warnings if "no effect" in line] == []
    for one in found.understood:
        value = document.data
        for step in one.key.split("."):
            value = value[step]
        assert value == one.value, one.key
        assert one.settings[0].key in found.text


@pytest.mark.parametrize(("name", "sample"), ALL)
def test_no_setting_is_passed_over(tmp_path: Path, name: str, sample: Sample) -> None:
    found = of(tmp_path, sample)
    not_modelled = {one.setting.key for one in found.ignored_for(Reason.NOT_MODELLED)}
    idle = {one.setting.key for one in found.ignored_for(Reason.NO_MEANING)}
    assert set(sample.ignored) <= not_modelled
    assert set(sample.idle) <= idle
    assert [one.setting.key for one in found.ignored_for(Reason.UNKNOWN) if not one.why] == []
    assert all(one.why for one in found.ignored_for(Reason.NOT_MODELLED))


@pytest.mark.parametrize(("name", "sample"), ALL)
def test_an_unknown_setting_is_named_with_its_line(tmp_path: Path, name: str, sample: Sample) -> None:
    text = sample.written(sample.unknown)
    found = of(tmp_path, sample, text)
    (unknown,) = (one for one in found.ignored_for(Reason.UNKNOWN) if not one.why)
    assert unknown.setting.key.replace("-", "_").endswith("brand_new")
    lines = text.split("\n")
    assert unknown.setting.line is not None
    # A command that goes on in further lines, and a call of several lines, count from their words.
    assert "brand" in lines[unknown.setting.line - 1]


@pytest.mark.parametrize(("name", "sample"), ALL)
def test_a_wrong_type_gives_one_line(tmp_path: Path, name: str, sample: Sample) -> None:
    right, wrong = sample.wrong
    text = sample.written()
    assert right in text
    with pytest.raises(ScenarioError) as caught:
        of(tmp_path, sample, text.replace(right, wrong))
    (line,) = str(caught.value).splitlines()
    assert str(tmp_path / sample.file) in line
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("name", formats())
def test_a_table_names_keys_of_scenarios(name: str) -> None:
    facts = {rule.fact for rule in formats()[name].table.values() if isinstance(rule, Means)}
    named = {fact for fact in facts if fact.startswith(("training.", "cluster."))}
    assert named <= set(axis_keys())
