"""The package's weight and order do not get worse: every figure of tools/house.py keeps its limit."""

from __future__ import annotations

import pytest

from tools import house


@pytest.mark.parametrize("name", house.FIGURES)
def test_a_figure_of_the_house_keeps_its_limit(name: str) -> None:
    figure = house.FIGURES[name]
    assert figure.value() <= figure.limit, f"python -m tools.house {name!r} lists what is counted"


def test_a_limit_is_lowered_with_its_figure() -> None:
    """Lines may fall without a word; what is counted in tens is held where it is."""
    for name in ("fields written twice", "records of more than 20 fields", "edges that hang on one module", "layers"):
        assert house.FIGURES[name].value() == house.FIGURES[name].limit, name


def test_each_edge_that_hangs_on_one_module_has_a_reason_in_the_design() -> None:
    text = (house.ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    table = text.partition("| package | imports | reason |\n|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [row.replace("`", "").replace(".py", "").split(" | ") for row in table.splitlines()]
    reasons = {f"{start.removeprefix('| ')} -> {end}" for start, ends, _ in rows for end in ends.split(", ")}
    assert reasons == {edge.partition(":")[0] for edge in house.single_module_edges()}


def test_the_counts_see_what_they_count() -> None:
    """Each count on what is known: a repeated field, a large record, a thin edge, a vague name, an example."""
    assert "_Collective.half_size = MachineCollective.half_size" in house.fields_twice()
    assert any("Transformer (" in record for record in house.large_records())
    assert {"own", "one"} <= set(house.vague_names())
    assert "simulator.scenario.records.adapter" in set(house.documented()) - set(house.without_example())
    assert "basics" in house.layers()[0]
    assert "simulator.cli.commands" in house.entered_by("refusal")()
