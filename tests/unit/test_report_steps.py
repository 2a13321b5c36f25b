"""The steps of a collective, replayed and drawn."""

import pytest

from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.collectives.verify import promised
from simulator.records.schedule import Schedule
from simulator.report.plots.collective import steps as plot_steps
from simulator.report.plots.collective.steps import origins_text, replay


def plan(algorithm: str, operation: str, ranks: int) -> Schedule:
    return ALGORITHMS.find(algorithm).plans[operation](CollectiveRequest(operation, ranks, 64 * ranks))


@pytest.mark.parametrize(("algorithm", "operation"), ALGORITHMS.pairs())
def test_the_last_step_holds_what_the_operation_promises(algorithm: str, operation: str) -> None:
    schedule = plan(algorithm, operation, 4)
    last = replay(schedule, 12)[-1]
    for rank in range(4):
        for chunk in range(schedule.chunks):
            wanted = promised(schedule, rank, chunk)
            assert wanted is None or last.held[rank][chunk] == wanted


def test_in_each_step_of_a_ring_every_rank_receives_one_chunk_from_the_rank_before() -> None:
    steps = replay(plan("ring", "all_reduce", 4), 12)
    assert len(steps) == 1 + 2 * (4 - 1)
    for step in steps[1:]:
        assert step.transfers == 4
        assert sorted(rank for rank, _ in step.senders) == [0, 1, 2, 3]
        assert all(senders == ((rank - 1) % 4,) for (rank, _), senders in step.senders.items())


def test_after_the_reduce_half_of_a_ring_each_chunk_is_whole_on_one_rank() -> None:
    step = replay(plan("ring", "all_reduce", 4), 12)[3]
    whole = [(rank, chunk) for rank in range(4) for chunk in range(4) if step.held[rank][chunk] == 0b1111]
    assert len({rank for rank, _ in whole}) == len({chunk for _, chunk in whole}) == len(whole) == 4


def test_of_many_steps_the_first_and_the_last_are_kept() -> None:
    steps = replay(plan("ring", "all_reduce", 16), 12)
    assert [step.number for step in steps] == [*range(10), 2 * (16 - 1)]


def test_the_panel_between_says_what_is_missing() -> None:
    drawn = plot_steps.figure(plan("ring", "all_reduce", 8))
    assert len(drawn.axes) == 12
    assert any("steps 10 to 13" in text.get_text() for axes in drawn.axes for text in axes.texts)


def test_cells_name_the_ranks_in_the_sum() -> None:
    drawn = plot_steps.figure(plan("ring", "all_reduce", 2))
    assert {text.get_text() for text in drawn.axes[0].texts} == {"0", "1"}
    assert [text.get_text() for text in drawn.axes[2].texts].count("all") == 2


def test_a_server_is_named_and_the_title_counts_steps_and_transfers() -> None:
    schedule = plan("parameter_server", "all_reduce", 4)
    drawn = plot_steps.figure(schedule)
    assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == ["0", "1", "2", "3", "server"]
    assert plot_steps.finding(schedule) == (
        "parameter_server all_reduce of 4 ranks: every rank holds the whole sum after 2 steps and 8 transfers"
    )


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather"])
def test_sixty_four_ranks_are_coloured_without_text(operation: str) -> None:
    drawn = plot_steps.figure(plan("ring", operation, 64))
    assert all(axes.images and not axes.texts for axes in drawn.axes if axes.axison)


def test_more_than_128_ranks_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 128"):
        plot_steps.figure(plan("ring", "all_reduce", 129))


@pytest.mark.parametrize(
    ("origins", "expected"),
    [(0, ""), (0b1, "0"), (0b110, "1+2"), (0b11110000, "4…7"), (0b11000011, "6…1"), (0b01010101, "4/8"), (0xFF, "all")],
)
def test_a_sum_is_named_as_briefly_as_its_cell_needs(origins: int, expected: str) -> None:
    assert origins_text(origins, 8) == expected
