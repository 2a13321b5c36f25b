"""What every figure shares."""

import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.ring import all_reduce
from simulator.records.timeline import LinkUse, Span, Timeline
from simulator.report.numbers.algorithm_crossovers import ScalingPoint
from simulator.report.plots import style
from simulator.report.plots.both import bandwidth_utilization as plot_bandwidth
from simulator.report.plots.both import timeline as plot_timeline
from simulator.report.plots.collective import scaling as plot_scaling
from simulator.report.plots.collective import steps as plot_steps


def test_the_user_s_own_settings_are_untouched_after_drawing() -> None:
    before = dict(rcParams)
    with style.applied():
        assert rcParams["svg.hashsalt"] == "simulator"
    assert dict(rcParams) == before


def test_kinds_of_work_keep_their_colour_in_any_company() -> None:
    assert style.colours(["forward", "other"])["forward"] == style.colours(["x", "forward"])["forward"] == style.BLUE


def test_sixteen_names_get_sixteen_colours() -> None:
    assert len(set(style.colours([f"n{i}" for i in range(16)]).values())) == 16


@pytest.mark.parametrize(
    ("end", "label"), [(2.0, "time (s)"), (3e-3, "time (ms)"), (4e-6, "time (us)"), (0.0, "time (ns)")]
)
def test_a_time_axis_has_the_unit_that_fits(end: float, label: str) -> None:
    with style.applied():
        axes = style.new_figure(3, 2).subplots()
        style.time_axis(axes, end)
    assert axes.get_xlabel() == label


def test_importing_the_figures_does_not_import_matplotlib() -> None:
    names = ("both.bandwidth_utilization", "collective.scaling", "collective.steps", "both.timeline", "topology")
    imports = ", ".join(f"simulator.report.plots.{name}" for name in names)
    program = f"import sys, {imports}; sys.exit('matplotlib' in sys.modules or 'networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def figures() -> dict[str, Figure]:
    """One figure of each sort, of 2 and of 64 workers where that changes it."""
    points = [ScalingPoint(name, n, 8, n * t) for name, t in (("ring", 1.0), ("naive", 2.0)) for n in (2, 64)]
    spans = tuple(Span(r, "communication", "op", "all_reduce", 0.0, 1.0 + r) for r in range(64))
    links = tuple(LinkUse(f"gpu{i}->switch", 1e9, 1e9, 1.0) for i in range(128))
    timeline = Timeline("events", 64.0, spans, links=links)
    found = {
        "scaling": plot_scaling.time_against_workers(points),
        "timeline": plot_timeline.figure(timeline),
        "bandwidth": plot_bandwidth.figure(timeline),
    }
    return found | {
        f"steps {n}": plot_steps.figure(all_reduce(CollectiveRequest("all_reduce", n, 64))) for n in (2, 16, 64)
    }


def test_no_text_of_any_figure_is_smaller_than_8_points() -> None:
    for name, drawn in figures().items():
        drawn.draw_without_rendering()
        texts = [text for text in drawn.findobj(Text) if isinstance(text, Text) and text.get_text()]
        assert min(float(text.get_fontsize()) for text in texts) >= style.SMALLEST_TEXT, name


def test_every_figure_has_a_title_that_says_something() -> None:
    assert all(len(drawn.get_suptitle()) > 20 for drawn in figures().values())


@pytest.mark.long
def test_a_figure_is_saved_twice_with_equal_bytes(tmp_path: Path) -> None:
    for name, drawn in figures().items():
        if name in ("steps 2", "steps 16"):
            continue
        plain = style.save(drawn, tmp_path, name).read_bytes()
        both = [
            (style.save(drawn, tmp_path, name, svg=True).read_bytes(), (tmp_path / f"{name}.svg").read_bytes())
            for _ in range(2)
        ]
        assert both[0] == both[1], name
        assert plain == both[0][0], name


# A scenario of a collective plays one of these, and no training step does.
ALONE = {"reduce", "gather", "broadcast", "scatter"}


@pytest.mark.parametrize("table", [style.OPERATIONS, style.MEMORY, style.DIMENSIONS])
def test_what_may_stand_in_one_picture_has_colours_of_its_own(table: dict[str, str]) -> None:
    together = [colour for name, colour in table.items() if name not in ALONE]
    # A host that issues kernels and what is copied to the device are both pale grey: lanes tell them apart.
    twice = {colour for colour in together if together.count(colour) > 1}
    assert twice <= {style.LIGHT}


def test_kernels_and_dimensions_in_one_breakdown_have_colours_of_their_own() -> None:
    kernels = {style.OPERATIONS[name] for name in ("forward", "recompute", "optimizer", "idle")}
    assert not kernels & set(style.DIMENSIONS.values())


def test_an_operation_has_its_colour_in_any_company() -> None:
    assert style.colours(["push", "own", "all_reduce"])["all_reduce"] == style.colours(["all_reduce"])["all_reduce"]
    assert style.colours(["own", "forward"])["own"] != style.OPERATIONS["forward"]


def test_the_point_stands_below_the_title_on_as_many_lines_as_it_needs() -> None:
    figure = style.new_figure(4, 3)
    with pytest.raises(ValueError, match="no title"):
        style.set_point(figure, "point")
    style.set_title(figure, "a finding")
    style.set_point(figure, "word " * 30)
    lines = [artist.get_text() for artist in figure.artists if isinstance(artist, Annotation)]
    assert [" ".join(text.split()) for text in lines] == [("word " * 30).strip()]
    assert figure.get_suptitle().startswith("A finding\n")
