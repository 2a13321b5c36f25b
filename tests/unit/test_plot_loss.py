"""What a picture of losses says above itself, and which panels it has."""

from __future__ import annotations

from typing import Any

from simulator.report.plots.training import loss as plot_loss


def run(losses: list[float], seconds: float, **more: Any) -> dict[str, Any]:
    ended = [seconds * (n + 1) for n in range(len(losses))]
    return {"learning": {"losses": losses, "ended_s": ended, "skipped": [], "stopped": "", "seen": {}} | more}


def test_one_run_says_how_far_it_came() -> None:
    assert plot_loss.finding([("x", run([4.0, 3.0], 0.5))]) == "x completes 2 steps after 1 s with loss 3"


def test_runs_that_learn_alike_say_so_and_who_is_first() -> None:
    rows = [("slow", run([4.0, 3.0], 0.5)), ("fast", run([4.0, 3.0], 0.25))]
    told = "all last losses are equal; fast completes 2 steps first, after 500 ms"
    assert plot_loss.finding(rows) == told
    rows[0] = ("slow", run([4.0, 3.0001], 0.5))
    assert plot_loss.finding(rows).startswith("last losses differ by at most 0.0001")


def test_losses_that_differ_by_half_a_per_cent_do_not_yet_count_as_apart() -> None:
    """0.5 % of 200 is 1, exactly also in floating point; runs that reach a loss of 0 are equal."""
    rows = [("a", run([400.0, 200.0], 0.5)), ("b", run([400.0, 201.0], 0.5))]
    assert plot_loss.finding(rows) == "last losses differ by at most 1"
    assert plot_loss.finding([(name, run([1.0, 0.0], 0.5)) for name in "ab"]) == "all last losses are equal"


def test_runs_that_learn_differently_say_which_is_lowest_and_which_is_ahead_at_first() -> None:
    rows = [("sound", run([4.0, 3.9, 3.0, 2.0], 0.4)), ("hasty", run([4.0, 3.2, 3.1, 3.0], 0.3))]
    assert (
        plot_loss.finding(rows) == "hasty is ahead at first (loss 3.2 after 600 ms); sound has the lowest last loss (2)"
    )
    rows = [("both", run([4.0, 2.0], 0.1)), ("other", run([4.0, 3.0], 0.2))]
    told = "last loss: both 2 (lowest), other 3 (highest); both completes 2 steps first, after 200 ms"
    assert plot_loss.finding(rows) == told


def test_what_stops_or_is_no_number_is_told_beside_the_others() -> None:
    rows = [("a", run([4.0, 3.0], 0.5)), ("b", run([4.0], 0.5, stopped="rank 1 has stopped")),
            ("c", run([4.0, float("nan")], 0.5))]  # fmt: skip
    told = "a completes 2 steps after 1 s with loss 3; b stops before step 1; c ends with loss NaN"
    assert plot_loss.finding(rows) == told
    assert plot_loss.finding(rows[1:]) == "b stops before step 1; c ends with loss NaN"


def test_runs_on_one_line_are_drawn_once_and_each_panel_has_its_own_legend() -> None:
    rows = [
        ("sound", run([4.0, 3.0], 0.5)), ("near", run([4.0, 3.0001], 0.5)), ("same", run([4.0, 3.0], 0.5)),
        ("far", run([4.0, 3.5], 0.5)), ("lost", run([4.0, float("nan")], 0.5)),
    ]  # fmt: skip
    figure = plot_loss.figure(rows)
    by_step, beside = figure.axes
    lines = [line.get_label() for line in by_step.lines if not str(line.get_label()).startswith("_")]
    assert lines == ["sound (2 more within 0.5 %)", "far", "lost"]
    assert [text.get_text() for text in figure.legends[1].get_texts()] == [*lines, "then NaN"]
    assert beside.get_ylabel() == "loss difference from sound (nats)"
    own = figure.legends[0]
    words = ["near", "far", "same: no difference", "lost: no difference"]
    assert [text.get_text() for text in own.get_texts()] == words


def test_time_is_drawn_where_it_differs_and_the_distance_from_the_first_where_not() -> None:
    rows = [("a", run([4.0, 3.0], 0.5, skipped=[1])), ("b", run([4.0, 3.1], 0.5))]
    by_step, beside = plot_loss.figure(rows).axes
    assert (by_step.get_ylabel(), beside.get_ylabel()) == ("loss (nats per token)", "loss difference from a (nats)")
    assert len(beside.lines) == 1
    rows[1] = ("b", run([4.0, 3.1], 0.25))
    by_step, beside = plot_loss.figure(rows).axes
    assert beside.get_xlabel() == "simulated time (s)"
    assert [line.get_marker() for line in by_step.lines].count("x") == 2
