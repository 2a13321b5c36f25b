"""Pictures of `simulator jobs` can be read, and draw the numbers of the run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle, StepPatch

from simulator import simulate_jobs
from simulator.report.plots.jobs import lanes, later_starts, link_shares
from simulator.run.jobs.job_pictures import pictures
from simulator.run.jobs.sharing import SharedRun
from simulator.testing.looking import check

TRAINING = {"model": "gpt2", "seq_len": 256}
SPREAD = {"training": TRAINING, "world_size": 4, "placement": "spread"}


def shared(shifts: int = 0, **jobs: Any) -> SharedRun:
    return simulate_jobs({"cluster": {"topology": "leaf_spine_100g"}, "jobs": jobs}, shifts=shifts)


@pytest.fixture(scope="module")
def two() -> SharedRun:
    return shared(2, first=SPREAD, second=SPREAD | {"start": "5 ms"})


def drawn(run: SharedRun) -> dict[str, Figure]:
    return {picture.name: picture.figure for picture in pictures(run)}


def blocks(figure: Figure, height: float) -> list[tuple[float, float]]:
    """Begin and end of each block of a height."""
    found = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    return [(one.get_x(), one.get_x() + one.get_width()) for one in found if abs(one.get_height() - height) < 1e-9]


def test_every_picture_of_a_run_can_be_read(two: SharedRun) -> None:
    found = drawn(two)
    assert list(found) == ["jobs", "shared_link", "later_starts"]
    for name, figure in found.items():
        check(figure, name)


def test_jobs_on_servers_of_their_own_have_lanes_alone() -> None:
    packed = {"training": TRAINING, "world_size": 2}
    assert list(drawn(shared(a=packed, b=packed))) == ["jobs"]


def test_lanes_have_the_steps_of_each_job_beside_the_others_and_alone(two: SharedRun) -> None:
    figure = drawn(two)["jobs"]
    ends = [end for job in two.jobs for end in job.step_ends]
    assert [end for _, end in blocks(figure, 0.5)] == pytest.approx(ends)
    alone = [job.start + job.alone * (step + 1) for job in two.jobs for step in range(len(job.step_ends))]
    assert [end for _, end in blocks(figure, 0.16)] == pytest.approx(alone)


def test_the_area_of_a_link_is_the_bytes_of_each_job(two: SharedRun) -> None:
    (axes,) = drawn(two)["shared_link"].axes
    link, below = two.links[0], 0.0
    for patch, (job, nbytes) in zip(
        [p for p in axes.patches if isinstance(p, StepPatch)], link.nbytes.items(), strict=True
    ):
        data = patch.get_data()
        assert patch.get_label() == job
        assert data.baseline is not None
        area = float(((data.values - data.baseline) * np.diff(data.edges)).sum()) / 100
        # Shares of the bandwidth, summed over time, are bytes over bandwidth.
        assert area * link.bandwidth == pytest.approx(nbytes, rel=1e-6)
        below += area
        assert data.values.max() <= 100.0 + 1e-9
    assert below <= two.timeline.end


def test_later_starts_begin_with_the_start_of_the_file(two: SharedRun) -> None:
    (axes,) = drawn(two)["later_starts"].axes
    for job, line in zip(two.jobs, axes.lines, strict=True):
        assert line.get_xdata().tolist() == [0.0, *(shift.delay for shift in two.shifts)]
        assert line.get_ydata().tolist() == [job.slowdown, *(shift.slowdowns[job.name] for shift in two.shifts)]


@pytest.mark.long
def test_many_jobs_with_long_names_and_many_steps_can_be_read() -> None:
    names = [f"a_training_of_somebody_with_a_long_name_{number}" for number in range(30)]
    steps = tuple((float(step), float(step + 1)) for step in range(200))
    figure = lanes.figure([lanes.JobLane(name, 0.0, steps, 0.8) for name in names], "Job a loses most")
    check(figure, "lanes")
    assert len(blocks(figure, 0.5)) == 24 * 200
    shares = {name: np.full(10, 1 / 30) for name in names}
    check(link_shares.figure("leaf0->spine1", np.linspace(0.0, 1.0, 11), shares), "link")
    slowdowns = {name: [1.5, 1.5 + 1e-9, 1.5] for name in names}
    check(later_starts.figure(names[0], [0.0, 1e-5, 2e-5], slowdowns, "No other start makes the jobs faster"), "starts")


def test_an_average_of_copies_does_not_lengthen_the_step_of_the_first_copy() -> None:
    outer = {"copies": 2, "every": 8, "delay": 2}
    slow = {"topology": "leaf_spine_100g", "link_factors": {"*nic*->*leaf*": 0.01, "*leaf*->*nic*": 0.01}}
    site = {"training": TRAINING, "world_size": 2, "outer": outer}
    first, second = simulate_jobs({"cluster": slow, "jobs": {"site": site}}).jobs
    # Both copies do the same; the average goes on during the two steps after it.
    assert first.step_ends == pytest.approx(second.step_ends)


def test_a_step_that_waits_for_its_batch_has_a_gap_before_it() -> None:
    jobs = {
        "makes": {"generation": {"time": "2 s"}, "world_size": 2},
        "trains": SPREAD | {"placement": "packed", "batches_from": "makes", "lag": 0, "steps_per_batch": 3},
    }
    run = simulate_jobs({"cluster": {"topology": "dgx_h100"}, "jobs": jobs})
    figure = drawn(run)["jobs"]
    check(figure, "jobs")
    maker, trainer = run.jobs
    made, trained = np.split(np.array(blocks(figure, 0.5)), [len(maker.step_ends)])
    assert np.diff(made) == pytest.approx(2.0, rel=1e-3)
    # The trainer waits for the generation of each batch. Its steps take their time alone; the last one of a batch also
    # returns the weights.
    within = np.arange(len(trained)) % 3
    assert np.diff(trained[within < 2]) == pytest.approx(trainer.alone, rel=1e-3)
    assert trained[3::3, 0] - trained[2:-1:3, 1] == pytest.approx(2.0, rel=0.1)
