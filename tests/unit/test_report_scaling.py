"""Crossings, the finding, and the figures drawn from them."""

import math
from pathlib import Path

import pytest

from simulator.report.plots import style
from simulator.report.plots.collective.scaling import ScalingPoint, crossings, figures, finding, headline, spread

LATENCY = 1e-5
BANDWIDTH = 12.5e9
MIB = 2**20


def ring(n: int, nbytes: int) -> float:
    return 2 * (n - 1) * (LATENCY + nbytes / n / BANDWIDTH)


def server(n: int, nbytes: int) -> float:
    return 2 * (LATENCY + n * nbytes / BANDWIDTH)


def swept(workers: tuple[int, ...], sizes: tuple[int, ...]) -> list[ScalingPoint]:
    forms = {"ring": ring, "parameter_server": server}
    return [
        ScalingPoint(name, n, nbytes, form(n, nbytes), form(n, nbytes))
        for name, form in forms.items()
        for n in workers
        for nbytes in sizes
    ]


def test_a_crossing_lies_where_both_power_laws_are_equal() -> None:
    # a(x) = x and b(x) = 8 x^0.5 / 2: straight lines on logarithmic axes, equal at x = 16.
    points = [ScalingPoint("a", 2, x, float(x)) for x in (4, 64)]
    points += [ScalingPoint("b", 2, x, 4.0 * math.sqrt(x)) for x in (4, 64)]
    (crossing,) = crossings(points)
    assert (crossing.before, crossing.after, crossing.along, crossing.fixed) == ("a", "b", "nbytes", 2)
    assert crossing.at == pytest.approx(16)
    assert crossing.time == pytest.approx(16)
    assert crossing.leads


def test_a_tie_at_a_run_is_the_crossing_itself() -> None:
    points = [ScalingPoint("a", n, 8, t) for n, t in ((2, 1.0), (4, 2.0), (8, 3.0))]
    points += [ScalingPoint("b", n, 8, t) for n, t in ((2, 2.0), (4, 2.0), (8, 2.0))]
    (crossing,) = crossings(points)
    assert (crossing.at, crossing.time, crossing.before, crossing.after) == (4.0, 2.0, "a", "b")


def test_lines_that_touch_and_part_again_do_not_cross() -> None:
    points = [ScalingPoint("a", n, 8, t) for n, t in ((2, 1.0), (4, 2.0), (8, 1.0))]
    points += [ScalingPoint("b", n, 8, 2.0) for n in (2, 4, 8)]
    assert crossings(points) == ()


def test_a_crossing_behind_the_leader_does_not_change_the_lead() -> None:
    points = [ScalingPoint("fast", n, 8, 0.1) for n in (2, 4)]
    points += [ScalingPoint("a", n, 8, t) for n, t in ((2, 1.0), (4, 2.0))]
    points += [ScalingPoint("b", n, 8, t) for n, t in ((2, 2.0), (4, 1.0))]
    assert [crossing.leads for crossing in crossings(points)] == [False]
    assert finding(points).endswith("; no crossover")


def test_ring_beats_the_server_everywhere_by_the_closed_forms_ratio() -> None:
    points = swept((2, 8, 64), (256 * MIB,))
    least = server(2, 256 * MIB) / ring(2, 256 * MIB)
    most = server(64, 256 * MIB) / ring(64, 256 * MIB)
    expected = (
        f"ring beats parameter_server everywhere, by {least:.1f}x (2 GPUs, 256 MiB) "
        f"to {most:.0f}x (64 GPUs, 256 MiB); no crossover"
    )
    assert finding(points) == expected
    assert headline(points) == f"ring beats parameter_server everywhere, by {least:.1f}x to {most:.0f}x; no crossover"


def test_a_shared_lead_tells_how_often_by_how_much_and_where_it_changes() -> None:
    points = swept((4, 64), (64, 64 * MIB))
    told = finding(points)
    large = server(64, 64 * MIB) / ring(64, 64 * MIB)
    small = ring(64, 64) / server(64, 64)
    assert told.startswith(
        f"ring wins 2 of 4 conditions by up to {large:.0f}x (64 GPUs, 64 MiB), "
        f"parameter_server 2 by up to {small:.0f}x (64 GPUs, 64 B)"
    )
    assert "; ring beats parameter_server above " in told
    assert "(4 GPUs) to " in told


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], "no run to compare"),
        ([ScalingPoint("ring", 2, 1024, 1e-3)], "ring takes 1 ms (2 GPUs, 1 KiB)"),
        (
            [ScalingPoint("a", 2, 1024, 1.0), ScalingPoint("b", 2, 1024, 1.0)],
            "a and b take equal times (2 GPUs, 1 KiB)",
        ),
        (
            [ScalingPoint("a", 2, 1024, 1.0), ScalingPoint("b", 4, 1024, 1.0)],
            "no comparison: no two lines share a number of GPUs and an array size",
        ),
        (
            [ScalingPoint("a", n, 8, 1.0) for n in (2, 4)] + [ScalingPoint("b", n, 8, n / 2) for n in (2, 4)],
            "a beats b by up to 2.0x (4 GPUs, 8 B), equal in 1 of 2 conditions; no crossover",
        ),
        (
            [ScalingPoint(name, 2, 8, t) for name, t in (("a", 1.0), ("b", 2.0), ("c", 30.0))],
            "a beats b by 2.0x (2 GPUs, 8 B) and c by 30x (2 GPUs, 8 B)",
        ),
    ],
)
def test_the_finding_fits_what_was_run(points: list[ScalingPoint], expected: str) -> None:
    assert finding(points) == expected


def test_the_same_setting_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="stands twice at 2 GPUs, 8 B"):
        crossings([ScalingPoint("a", 2, 8, 1.0), ScalingPoint("a", 2, 8, 2.0)])


def test_a_time_that_is_not_positive_is_refused() -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        finding([ScalingPoint("a", 2, 8, 0.0)])


def test_spread_keeps_the_first_and_the_last() -> None:
    assert spread(list(range(100)), 4) == [0, 33, 66, 99]


def test_only_figures_with_something_on_their_axis_are_drawn() -> None:
    assert set(figures(swept((2, 4), (8, 16)))) == {"time_against_workers", "time_against_size"}
    assert set(figures(swept((2, 4), (8,)))) == {"time_against_workers"}
    assert set(figures(swept((2,), (8, 16)))) == {"time_against_size"}
    assert set(figures(swept((2,), (8,)))) == {"time_by_setting"}


def test_of_many_settings_each_has_a_panel_of_its_own() -> None:
    points = [ScalingPoint(f"way {way}", n, 8, 1.0 + way * n) for way in range(7) for n in (2, 4)]
    drawn = figures(points)["time_against_workers"]
    shown = [axes.get_title(loc="left") for axes in drawn.axes if axes.get_visible()]
    assert shown == [f"way {way}" for way in range(7)]


def test_times_of_single_settings_are_bars_with_their_numbers() -> None:
    points = [ScalingPoint("ring", 8, 8, 2e-3, 2e-3), ScalingPoint("tree", 8, 8, 1e-3)]
    (axes,) = figures(points)["time_by_setting"].axes
    assert [bar.get_width() for bar in axes.patches] == [2e-3, 1e-3]
    assert [text.get_text() for text in axes.texts] == ["2 ms", "1 ms"]


def test_at_most_six_panels_are_drawn_and_the_title_says_so() -> None:
    drawn = figures(swept((2, 4, 8, 16, 32, 64, 128), (64, 64 * MIB)))["time_against_size"]
    assert sum(axes.get_visible() for axes in drawn.axes) == 6
    assert "(6 of 7 panels shown)" in drawn.get_suptitle().replace("\n", " ")


def test_no_points_make_no_figure() -> None:
    with pytest.raises(ValueError, match="at least one run"):
        figures([])


def test_equal_points_give_equal_bytes(tmp_path: Path) -> None:
    points = swept((2, 64), (64, 64 * MIB))
    for folder in ("a", "b"):
        style.save(figures(points)["time_against_workers"], tmp_path / folder, "x", svg=True)
    for name in ("x.png", "x.svg"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
