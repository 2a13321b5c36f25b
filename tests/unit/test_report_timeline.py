"""Lanes, merging, and what the title says."""

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.ring import all_reduce
from simulator.records.timeline import RouteLinks, Span, Timeline, TransferLog
from simulator.records.transfers import write_out
from simulator.report.plots import style
from simulator.report.plots.both import timeline as plot_timeline
from simulator.report.plots.both.timeline import Bar, merge
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario


def lanes(drawn: Figure) -> list[str]:
    return [label.get_text() for label in drawn.axes[0].get_yticklabels()]


def texts(drawn: Figure) -> set[str]:
    return {text.get_text() for text in drawn.axes[0].texts}


def steps(ranks: int, slow: int = 0) -> Timeline:
    spans = []
    for rank in range(ranks):
        late = 0.5 if rank == slow else 0.0
        spans += [
            Span(rank, "communication", "grads", "all_reduce", 2.0, 4.0 + late),
            Span(rank, "compute", "layer", "backward", 0.0, 3.0),
        ]
    return Timeline("events", 4.5, tuple(spans))


def test_the_title_splits_the_time_of_the_rank_that_ends_last() -> None:
    # Rank 1 ends at 4.5 s: 3 s compute, 4.5 - 3 s of exposed communication.
    assert plot_timeline.finding(steps(2, slow=1)) == (
        "rank 1 ends last, at 4.5 s: 67 % compute, 33 % exposed communication, 0 % idle"
    )


def test_ranks_that_end_together_are_told_together() -> None:
    spans = tuple(Span(rank, "communication", "op", "all_reduce", 0.0, 2.0) for rank in range(3))
    told = plot_timeline.finding(Timeline("events", 2.0, spans))
    assert told == "all 3 ranks end at 2 s: 100 % communication, 0 % idle"


def test_each_rank_has_a_lane_a_stream_compute_first() -> None:
    drawn = plot_timeline.figure(steps(2))
    two = ["rank 0  compute", "rank 0  communication", "rank 1  compute", "rank 1  communication"]
    assert lanes(plot_timeline.figure(steps(2, slow=1)))[:4] == two
    assert {"layer", "grads"} <= texts(drawn)


def test_a_name_stands_in_the_middle_of_its_bar() -> None:
    written = {text.get_text(): text for text in plot_timeline.figure(steps(2, slow=1)).axes[0].texts}
    # Rank 0 computes from 0 s to 3 s in the first row, and communicates from 2 s to 4 s in the second.
    assert written["layer"].get_position()[0] == 1.5
    assert {text.get_horizontalalignment() for text in written.values()} == {"center"}


def test_ranks_that_are_alike_share_their_lanes_and_a_slow_one_stands_alone() -> None:
    assert lanes(plot_timeline.figure(steps(64, slow=37)))[::2] == ["rank 0 (63 equal)  compute", "rank 37  compute"]
    # Rank 2 is slow by the scenario's word, although it looks like the others.
    named = lanes(plot_timeline.figure(steps(4, slow=3), slow=[2]))
    assert named[::2] == ["ranks 0-1 (2 equal)  compute", "rank 2 (slow)  compute", "rank 3  compute"]


def test_at_most_32_lanes_with_the_first_the_slowest_and_the_slow_ranks_are_shown() -> None:
    unlike = [
        span
        for rank in range(64)
        for span in (
            Span(rank, "communication", "grads", "all_reduce", 2.0, 3.0 + (rank * 7 + 26) % 64 / 64),
            Span(rank, "compute", "layer", "backward", 0.0, 3.0),
        )
    ]
    drawn = plot_timeline.figure(Timeline("events", 4.0, tuple(unlike)), slow=[50])
    shown = lanes(drawn)
    assert len(shown) == 32
    # The last to end has the largest remainder; 63 is the remainder of rank 51 alone: 51 x 7 + 26 = 383 = 5 x 64 + 63.
    assert {"rank 0  compute", "rank 50 (slow)  compute", "rank 51  compute"} <= set(shown)
    assert drawn.legends[0].get_title().get_text() == (
        "16 of 64 ranks shown: the last to end (rank 51), slow ranks and evenly chosen ranks"
    )


def test_short_bars_of_one_pixel_become_one_of_the_kind_that_fills_most() -> None:
    bars = [Bar(0.0, 0.1, "a", "x"), Bar(0.1, 0.4, "b", "y"), Bar(0.4, 0.45, "a", "z"), Bar(3.0, 9.0, "a", "long")]
    assert merge(bars, 1.0) == (Bar(0.0, 0.45, "b", ""), Bar(3.0, 9.0, "a", "long"))


def test_full_pixels_of_one_kind_become_one_bar() -> None:
    bars = [Bar(i / 10, (i + 0.9) / 10, "a", "") for i in range(40)]
    (bar,) = merge(bars, 1.0)
    assert (bar.start, bar.end) == pytest.approx((0.0, 4.0))


def test_a_hundred_thousand_spans_become_at_most_a_bar_a_pixel() -> None:
    bars = [Bar(i * 1e-5, (i + 0.5) * 1e-5, "ab"[i % 2], "") for i in range(100_000)]
    assert len(merge(bars, 1 / 1500)) <= 1501


def test_bars_of_zero_length_timelines_are_kept_as_they_are() -> None:
    assert merge([Bar(0.0, 0.0, "a", "x")], 0.0) == (Bar(0.0, 0.0, "a", "x"),)


def test_transfers_have_a_lane_under_their_sender() -> None:
    transfers = write_out(all_reduce(CollectiveRequest("all_reduce", 2, 8)))
    t = len(transfers)
    enter = [1.0 + number // 2 for number in range(t)]
    start = np.array(enter)
    log = TransferLog(
        "op", transfers, np.full(t, 16.0), start, start + 0.5, np.zeros(t, np.int32), RouteLinks.of([[0]]), ("a", "b")
    )
    spans = tuple(Span(rank, "communication", "op", "all_reduce", 0.0, 3.0) for rank in range(2))
    drawn = plot_timeline.figure(Timeline("events", 3.0, spans, (log,)), groups={"op": (0, 1)})
    # Two transfers of each of two ranks, which send at the same times and share a row.
    assert lanes(drawn) == ["ranks 0-1 (2 equal)  communication", "ranks 0-1 (2 equal)  sends"]
    assert [len(collection.get_paths()) for collection in drawn.axes[0].collections] == [1, 2]


def test_a_server_has_lanes_of_its_own_and_whoever_receives_at_other_times_two() -> None:
    collective = {"operation": "all_reduce", "algorithm": "parameter_server", "size": "1 MiB"}
    cluster = {"topology": "star_100g", "world_size": 4}
    run = simulate(load_scenario({"name": "served", "cluster": cluster, "collective": collective}))
    drawn = plot_timeline.figure(run.timeline, groups={"all_reduce": (0, 1, 2, 3)})
    ranks = [f"ranks 0-3 (4 equal)  {lane}" for lane in ("communication", "sends", "receives")]
    assert lanes(drawn) == [*ranks, "server0  sends", "server0  receives"]


def test_no_span_is_lost_however_short_it_is() -> None:
    """A hundred spans of 1/20 of a pixel in one lane, and one at the border of two long ones in another."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    short = tuple(Span(0, "communication", f"send {i}", "send", i + 0.5, i + 0.5 + 0.003) for i in range(100))
    border = (
        Span(0, "compute", "a", "forward", 0.0, 50.0),
        Span(0, "compute", "b", "backward", 50.0, 50.002),
        Span(0, "compute", "c", "forward", 50.002, 100.0),
    )
    # So many spans that bars become an image, whose pixels are filled or not.
    filler = tuple(Span(1, "compute", f"{i}", "forward", 0.04 * i, 0.04 * i + 0.02) for i in range(2500))
    for spans in ((*border, *short), (*border, *short, *filler)):
        drawn = plot_timeline.figure(Timeline("events", 100.0, spans))
        canvas = FigureCanvasAgg(drawn)
        canvas.draw()
        image = np.asarray(canvas.buffer_rgba())[:, :, :3]

        def count(kind: str, row: int, image: Any = image, axes: Any = drawn.axes[0]) -> int:
            """Runs of pixels along a lane that are at least half of a kind's colour."""
            wanted = [int(style.OPERATIONS[kind][i : i + 2], 16) for i in (1, 3, 5)]
            (x0, y), (x1, _) = axes.transData.transform([(0, row), (100, row)])
            line = image[image.shape[0] - round(y), round(x0) + 3 : round(x1) - 1].astype(int)
            near = (np.abs(line - wanted).sum(axis=1) < {"send": 390, "backward": 200}[kind]).astype(int)
            return int((np.diff(near, prepend=0) == 1).sum())

        assert count("send", row=1) == 100
        assert count("backward", row=0) == 1


def test_no_spans_make_no_figure() -> None:
    with pytest.raises(ValueError, match="no spans"):
        plot_timeline.figure(Timeline("events", 0.0, ()))


def test_idle_time_of_one_rank_stands_beside_the_mean_of_all_ranks_where_they_differ() -> None:
    """The report tells the mean of a pipeline's stages: a title with the last rank's share alone contradicts it."""
    spans = (Span(0, "compute", "a", "forward", 0.0, 4.0), Span(1, "compute", "b", "forward", 1.0, 3.0))
    told = plot_timeline.finding(Timeline("events", 4.0, spans, at_work={0: 4.0, 1: 2.0}))
    assert told.endswith("0 % exposed communication, 0 % idle (mean of all ranks: 25 %)")
    same = plot_timeline.finding(Timeline("events", 4.0, spans, at_work={0: 4.0, 1: 4.0}))
    assert same.endswith("0 % exposed communication, 0 % idle")
