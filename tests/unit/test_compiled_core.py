"""The compiled core: Python and C say the same of each other, and what is computed may be followed at any time."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.basics import tolerances
from simulator.basics.errors import DeadlockError, DefectError
from simulator.cluster.build import build
from simulator.cluster.changes import Event, changes
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.compiled import core, fields
from simulator.engine.compiled.core import NO_MEMORY, OUTSIDE, PLAYED, STUCK, run
from simulator.engine.compiled.engine import execute as compiled
from simulator.engine.compiled.library import build as build_library
from simulator.engine.compiled.library import library_path
from simulator.engine.compiled.prepared import prepare
from simulator.engine.events import execute as events
from simulator.engine.jitter import Jitter
from simulator.records.operation import Compute
from simulator.records.program import Program
from tests.engines import farthest
from tests.playing import planned, star

NEVER = 2**62
FOLDER = Path(fields.__file__).parent


def members(text: str, struct: str) -> list[str]:
    """Names of a C struct's fields, in order."""
    body = re.sub(r"/\*.*?\*/", "", text[: text.index(f"}} {struct};")], flags=re.DOTALL).split("typedef struct {")[-1]
    names = []
    for declaration in body.split(";"):
        names += [re.sub(r"[^\w]", "", name.split()[-1]) for name in declaration.split(",") if name.strip()]
    return names


def test_both_sides_know_the_same_fields() -> None:
    header = (FOLDER / "problem.h").read_text()
    assert members(header, "Problem") == list(fields.FIELDS)
    assert members(header, "Lengths") == list(fields.LENGTHS)
    assert members(header, "Result") == [name for name, _ in fields.ResultStruct._fields_]
    assert "enum OpKind { KERNEL, COLLECTIVE, MEMORY }" in header
    assert (fields.KERNEL, fields.COLLECTIVE, fields.MEMORY) == (0, 1, 2)
    for name, value in (("ON_GPU", 1), ("TAKES_SMS", 2), ("TOGETHER", 1), ("IN_ORDER", 2)):
        assert f"{name} = {value}" in header
        assert getattr(fields, name) == value
    for name, value in (("PLAYED", PLAYED), ("NO_MEMORY", NO_MEMORY), ("STUCK", STUCK), ("OUTSIDE", OUTSIDE)):
        assert f"{name} = {value}" in header


def test_both_sides_have_the_same_tolerances() -> None:
    defined = dict(re.findall(r"#define (\w+) ([\d.e-]+) ", (FOLDER / "fabric.h").read_text() + " "))
    defined |= dict(re.findall(r"#define (\w+) ([\d.e-]+)\n", (FOLDER / "fabric.h").read_text()))
    for name in ("ENDS_TOGETHER", "SUM_OF_RATES"):
        assert float(defined[name]) == getattr(tolerances, name)


def test_the_library_is_of_these_sources() -> None:
    """A change of any C file gives another name, so that an old library is never loaded."""
    assert build_library() == library_path()
    assert list(FOLDER.glob("_core-*.so")) == [library_path()]


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather", "reduce_scatter"])
def test_a_ring_over_unlike_links_ends_as_events_do_to_the_bit(operation: str) -> None:
    ranks = 48
    slower = {f"gpu{rank}->switch0": 0.5 + 0.5 * ((rank * 7919) % ranks) / ranks for rank in range(ranks)}
    cluster = build("star_100g", ranks, link_factors=slower)
    task = Task(CollectiveRequest(operation, ranks, 1000 * ranks), "ring", tuple(range(ranks)), "float32")  # type: ignore[arg-type]
    program = plan(cluster, task).program
    assert farthest(events(program, cluster), compiled(program, cluster)) == 0.0


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("after", np.linspace(0.0, 1.2, 13).tolist())
def test_what_was_computed_is_followed_when_another_comes_to_its_links(after: float, noise: float) -> None:
    """A ring, and at some time of its life a second one over the same ports on another stream."""
    cluster, request = star(16), CollectiveRequest("all_reduce", 16, 160_000)
    first = planned(cluster, "ring", request).ops[0]
    second = replace(planned(cluster, "ring", replace(request, elements=16_000)).ops[0], name="second", stream="other")
    jitter = Jitter(latency=noise)
    alone = events(Program(((first,),) * 16), cluster, jitter=jitter).end
    lists = [
        (
            Compute("late", 1e-6 * rank, stream="communication"),
            Compute("later", after * alone + 1e-7 * rank, stream="other"),
            first,
            second,
        )
        for rank in range(16)
    ]
    program = Program(tuple(lists))
    assert farthest(events(program, cluster, jitter=jitter), compiled(program, cluster, jitter=jitter)) <= 1e-12
    times = run(prepare(program, cluster, jitter).problem())
    if 0.1 < after < 0.9:
        assert times.followed > 0
        assert times.in_order > 0


@pytest.mark.parametrize("algorithm", ["ring", "hierarchical", "direct"])
def test_transfers_that_ended_before_their_last_rank_came_have_times(algorithm: str) -> None:
    """Rank 7 is late for the first collective; the second one comes to its links when most ranks have sent to rank 6.

    The events engine logs every transfer when it ends, so the compiled engine must have the same times and no NaN.
    """
    cluster, request = star(8), CollectiveRequest("all_gather", 8, 80_000, nodes=(tuple(range(4)), tuple(range(4, 8))))
    first = planned(cluster, algorithm, request).ops[0]
    second = replace(first, name="second", stream="other")
    lists = [
        (
            Compute("late", 1e-3 if rank == 7 else 0.0, stream=first.stream),
            Compute("later", 5e-4, stream="other"),
            first,
            second,
        )
        for rank in range(8)
    ]
    program = Program(tuple(lists))
    expected, found = events(program, cluster), compiled(program, cluster)
    early = [int(np.count_nonzero(log.end < 5e-4)) for log in expected.logs]
    assert early[0] > 0
    assert early[1] == 0
    assert not any(np.isnan(log.end).any() or np.isnan(log.enter).any() for log in found.logs)
    assert farthest(expected, found) <= 1e-12


@pytest.mark.parametrize("operation", ["all_reduce", "all_gather"])
@pytest.mark.parametrize("elements", [40_000, 40_001])
@pytest.mark.parametrize("factors", [0, 1, 100])
def test_closed_recurrences_stand_for_rounds(operation: Any, elements: int, factors: int) -> None:
    """Rings of enough transfers for a formula: even and uneven chunks, on equal and on more and more unequal links."""
    ranks = 400
    generator = np.random.default_rng(factors)
    chosen = generator.choice(ranks, factors, replace=False)
    slower = {f"gpu{rank}->switch0": float(generator.choice([0.5, 0.7, 0.9])) for rank in chosen.tolist()}
    cluster = build("star_100g", ranks, link_factors=slower)
    program = plan(
        cluster, Task(CollectiveRequest(operation, ranks, elements), "ring", tuple(range(ranks)), "float32")
    ).program
    late = [(Compute("late", 1e-6 * float(generator.integers(5)), stream="communication"),) for _ in range(ranks)]
    program = Program(tuple((*own, *ops) for own, ops in zip(late, program.ranks, strict=True)))
    prepared = prepare(program, cluster, Jitter(), reduced_from=NEVER)
    by_formula = run(prepared.problem()).end
    by_rounds = run(prepared.problem(logged=prepared.instances)).end
    np.testing.assert_allclose(by_formula, by_rounds, rtol=1e-12)


def test_what_is_raised_meanwhile_stops_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flows of everybody to everybody that share links: at least a second."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(core, "tell", interrupted)
    cluster = build("torus_2d", 49)
    task = Task(CollectiveRequest("all_to_all", 49, 2**24), "direct", tuple(range(49)), "float32")
    prepared = prepare(plan(cluster, task).program, cluster, Jitter(), reduced_from=NEVER)
    with pytest.raises(KeyboardInterrupt):
        run(prepared.problem())


@pytest.mark.parametrize("execute", [events, compiled])
@pytest.mark.parametrize(("slowed", "end"), [(0, 3.0), (1, 2.0), (6, 2.0), (7, 2.0)])
def test_events_on_ranks_without_operations_slow_no_other_rank(execute: Any, slowed: int, end: float) -> None:
    """A program of one rank on a cluster of eight: a kernel of 2 s, and one GPU at half its speed from 1 s on."""
    cluster = star(8)
    memory = len(cluster.router.bandwidth) + slowed
    event = Event(1.0, float("inf"), 0.5, (memory,), (slowed,))
    slow = replace(cluster, changes=changes([event]))
    assert execute(Program(((Compute("kernel", 2.0),),)), slow).end == pytest.approx(end)


def test_a_transfer_without_bytes_does_not_wait_for_a_link_that_is_down() -> None:
    """Two elements in four parts: two parts are empty. All links are down for the first millisecond."""
    cluster = star(4)
    program = plan(
        cluster, Task(CollectiveRequest("reduce_scatter", 4, 2), "direct", tuple(range(4)), "float32")
    ).program
    down = replace(cluster, changes=changes([Event(0.0, 1e-3, 0.0, tuple(range(len(cluster.router.bandwidth))))]))
    found = [execute(program, down, limit_memory=False) for execute in (events, compiled)]
    assert farthest(*found) == 0.0
    [log] = found[0].logs
    assert np.count_nonzero(log.nbytes == 0) == 6
    np.testing.assert_array_less(log.end[log.nbytes == 0], 1e-3)
    np.testing.assert_array_less(1e-3, log.end[log.nbytes > 0])


def test_a_deadlock_names_the_streams_in_one_order_on_both_engines() -> None:
    """Rank 1 never comes to the collective; the kernel behind it stands first in the program of each rank."""
    ring = planned(star(2), "ring", CollectiveRequest("all_reduce", 2, 8)).ops[0]
    behind = Compute("behind", 1.0, stream="second", after=(ring.name,))
    lists = (
        (Compute("before", 1.0, stream="second"), ring, behind),
        (Compute("stuck", 1.0, stream=ring.stream, after=("never",)), Compute("never", 1.0, after=("stuck",)), ring),
    )
    waiting = []
    for execute in (events, compiled):
        with pytest.raises(DeadlockError) as raised:
            execute(Program(lists), star(2))
        waiting.append(list(raised.value.waiting.items()))
    assert waiting[0] == waiting[1]
    assert [who for who, _ in waiting[0][:2]] == ["rank 0 (second)", f"rank 0 ({ring.stream})"]


def whole_problem() -> fields.Problem:
    """The core's input for a ring behind kernels, with noise, work, an event on a link and one on a GPU."""
    cluster = star(4)
    task = Task(CollectiveRequest("all_reduce", 4, 4000), "ring", tuple(range(4)), "float32")
    program = plan(cluster, task).program
    lists = [
        (Compute("late", 1e-6 * rank, stream="other", work=0), *(replace(op, after=("late",)) for op in ops))
        for rank, ops in enumerate(program.ranks)
    ]
    slow = replace(cluster, changes=changes([Event(1e-6, 1.0, 0.5, (0, 1), (2,), reroute_after=0.0)]))
    prepared = prepare(Program(tuple(lists), work=np.ones((1, 4))), slow, Jitter(latency=0.1), reduced_from=NEVER)
    return prepared.problem(logged=prepared.instances)


@pytest.mark.parametrize("name", [name for name, kind in fields.FIELDS.items() if kind in ("int32", "int64")])
def test_an_index_outside_the_core_s_arrays_is_refused_before_the_core_runs(name: str) -> None:
    """Every array of integers, with its last entry too large and too small; numbers of noise are no indices."""
    if name in ("noise_rank", "noise_number", "row_noise", "row_noise_stride", "lane"):
        return
    problem = whole_problem()
    run(problem)
    assert problem.values[name].size, "nothing would be tested"
    for wrong in (10**6, -(10**6)):
        damaged = problem.values[name].copy()
        damaged[-1] = wrong
        with pytest.raises(DefectError, match=name):
            run(replace(problem, values={**problem.values, name: damaged}))


@pytest.mark.parametrize("name", [name for name, kind in fields.FIELDS.items() if isinstance(kind, str)])
def test_an_array_that_is_too_short_is_refused_before_the_core_runs(name: str) -> None:
    problem = whole_problem()
    short = {name: problem.values[name][:-1]} if name in problem.values else {}
    if not short:
        # Without noise on kernels there is no table.
        assert name == "noise_compute"
        return
    with pytest.raises(DefectError):
        run(replace(problem, values={**problem.values, **short}))
