"""What holds for every kind of links in the library's table: the model asks for it, and finds all that it asks for."""

from __future__ import annotations

from math import isfinite
from typing import get_args

import pytest

from simulator.basics.measured_tables import read_table
from simulator.cluster import library
from simulator.cluster.library import TABLE, LibraryName, Transport, UsedLinks, Way, library_of
from simulator.records.collective_operation import COLLECTIVE_OPERATIONS

ROWS = read_table(TABLE)
MODELS = [
    model
    for name in get_args(LibraryName)
    for transport in get_args(Transport)
    if (model := library_of(name, transport)) is not None
]
OPERATIONS = list(COLLECTIVE_OPERATIONS)


def uses(operation: str) -> list[UsedLinks]:
    """Everything that a cluster can ask of any library about an operation."""
    ways = [(way, adds) for way in get_args(Way) for adds in (False, True)]
    inside = [model.within(operation, way, adds=adds) for model in MODELS for way, adds in ways]
    return inside + [model.between(operation) for model in MODELS]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Kinds of links that all libraries ask for over all ways and transports."""
    kinds = set[str]()
    own = library._use

    def noting(kind: str, operation: str, without: str) -> UsedLinks:
        kinds.add(kind)
        return own(kind, operation, without)

    monkeypatch.setattr(library, "_use", noting)
    for operation in OPERATIONS:
        uses(operation)
    return kinds


def test_every_kind_in_the_table_is_asked_for(asked: set[str]) -> None:
    """A row of another kind, such as a misspelt one, would never be read."""
    assert {row["kind"] for row in ROWS} <= asked


def test_every_kind_that_is_asked_for_has_rows_or_a_stand_in(asked: set[str]) -> None:
    """A kind with neither would silently have the figures of an NVSwitch."""
    assert asked <= {row["kind"] for row in ROWS} | set(library._STAND_IN)
    stand_ins = {kind for kinds in library._STAND_IN.values() for kind in kinds}
    assert set(library._STAND_IN) | stand_ins <= asked


def test_a_kind_that_stands_in_for_others_has_every_figure() -> None:
    """Each chain of kinds ends in one that leaves no column empty."""
    for kind in {chain[-1] for chain in library._STAND_IN.values()}:
        own = [row for row in ROWS if row["kind"] == kind]
        assert own
        assert all(row[column] for row in own for column in ("startup_us", "share", "half_time_us", "exponent"))


def test_every_row_is_of_a_known_operation_and_names_its_links_and_source() -> None:
    assert {row["operation"] for row in ROWS} <= set(OPERATIONS)
    assert all(row["links"] and row["source"] for row in ROWS)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_has_sensible_figures_on_every_kind(operation: str) -> None:
    for use in uses(operation):
        assert 0.0 < use.share <= 1.0
        assert all(isfinite(value) and value > 0 for value in (use.startup, use.half_time, use.exponent))
