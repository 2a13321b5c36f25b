"""Asynchronous parameter servers: what each worker sees is decided by the clock, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.basics.arrays import Array
from simulator.basics.errors import ScenarioError
from simulator.numerics import task
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.gpt import Gpt
from simulator.numerics.optimizer import Adam, fresh, step
from simulator.numerics.packing import pack, unpack
from simulator.records.timeline import Span
from simulator.run.simulate import SimulatedRun, simulate
from simulator.scenario.load import load_scenario
from simulator.sweeps.artifacts import ArtifactWriter

MODEL = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 32}
SEED, WORKERS, STEPS, BATCH = 3, 3, 8, 2


def run(stragglers: dict[int, float] | None = None, workers: int = WORKERS, **changed: Any) -> SimulatedRun:
    sharding = {"strategy": "parameter_server", "asynchronous": True} | changed.pop("sharding", {})
    training = {"model": MODEL, "seq_len": 8, "micro_batch_size": BATCH, "numerics": True, "steps": STEPS}
    training |= {"precision": "fp32", "sharding": sharding, "attention": "standard"} | changed
    cluster = {"topology": "star_100g", "world_size": workers, "stragglers": stragglers or {}}
    facts = {"name": "x", "seed": SEED, "engine": training.pop("engine", "auto")}
    return simulate(load_scenario(facts | {"cluster": cluster, "training": training}))


def losses(*args: Any, **facts: Any) -> tuple[float, ...]:
    learning = run(*args, **facts).report.learning  # type: ignore[union-attr]
    assert learning is not None
    return learning.losses


def by_hand(played: SimulatedRun) -> list[list[float]]:
    """Workers and a server in a plain loop, in the order of the played spans: who looks, who applies.

    Losses, staleness and norms, each as a mean over as many as there are workers.
    """
    gpt = Gpt(32, 16, 2, 8, 2, arithmetic("float32"), tied=True)
    start = {u: {n: v.astype(np.float32) for n, v in own.items()} for u, own in task.initial(gpt, SEED).items()}
    order = gpt.units[::-1]  # one bucket holds everything
    server = pack(gpt, start, order)
    state = fresh(Adam(), server)
    seen = {worker: server.copy() for worker in range(WORKERS)}
    looked, late, squares = dict.fromkeys(range(WORKERS), 0), [], []
    found: dict[tuple[int, int], float] = {}
    heads = of(played, "head forward")
    moments = [(span.end, 0, span) for span in of(played, "update bucket")]
    moments += [(span.start, 1, span) for span in of(played, "pull bucket")]
    for _, looks, span in sorted(moments, key=lambda moment: (moment[0], moment[1], moment[2].rank)):
        number = int(span.name.split()[3])
        if looks:
            seen[span.rank], looked[span.rank] = server.copy(), len(late)
            continue
        rows = np.split(task.sequences(SEED, number, WORKERS * BATCH, 9, 32), WORKERS)[span.rank]
        found[span.rank, number], gradient = gpt.gradients(unpack(gpt, seen[span.rank], order), rows)
        late.append(len(late) - looked[span.rank])
        squares.append(float((packed(gpt, gradient, order).astype(np.float64) ** 2).sum()))
        step(Adam(), server, packed(gpt, gradient, order), state)
    # In the order in which losses were known, as many at a time as there are workers.
    order_of = [(s.rank, int(s.name.split()[2])) for s in sorted(heads, key=lambda s: (s.end, s.start, s.rank))]
    losses = [found[one] for one in order_of]
    cut = range(0, len(losses), WORKERS)
    means = [[float(np.mean(values[n : n + WORKERS])) for n in cut] for values in (losses, late, squares)]
    return [means[0], means[1], np.sqrt(means[2]).tolist()]


def of(played: SimulatedRun, name: str) -> list[Span]:
    return [span for span in played.timeline.spans if span.name.startswith(name)]


def packed(gpt: Gpt, gradient: dict[str, Array], order: tuple[str, ...]) -> Array:
    return np.concatenate([gradient[name].ravel() for unit in order for name in gpt.shapes(unit)])


@pytest.mark.parametrize("stragglers", [None, {1: 0.4}, {0: 0.7, 2: 0.3}])
def test_a_plain_loop_in_the_order_of_the_clock_learns_the_same(stragglers: dict[int, float] | None) -> None:
    played = run(stragglers)
    learning = played.report.learning  # type: ignore[union-attr]
    assert learning is not None
    losses_, staleness, norms = by_hand(played)
    np.testing.assert_allclose(learning.losses, losses_, rtol=2e-6)
    assert learning.staleness == pytest.approx(staleness)
    np.testing.assert_allclose(learning.gradient_norms, norms, rtol=1e-5)


def test_who_is_slow_changes_what_is_learned_and_the_same_twice_is_the_same() -> None:
    assert losses() == losses()
    assert losses() != losses({1: 0.4})


def test_nobody_waits_for_a_slow_worker_unless_staleness_is_bound() -> None:
    ends = {
        bound: [max(span.end for span in played.timeline.spans if span.rank == rank) for rank in range(WORKERS)]
        for bound in (None, 4, 0)
        for played in [run({2: 0.2}, sharding={} if bound is None else {"staleness": bound})]
    }
    alone = [max(s.end for s in run().timeline.spans if s.rank == rank) for rank in range(WORKERS)]
    assert ends[None][0] < 1.05 * alone[0]
    assert ends[None][2] > 3 * ends[None][0]
    assert ends[None][0] < ends[4][0] < ends[0][0]
    # With no room at all fast workers end a step, not more, before the slow one.
    assert ends[0][0] > 0.8 * ends[0][2]


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_no_worker_is_further_ahead_than_it_may_be(bound: int) -> None:
    """Steps that workers have begun, less steps that the slowest has ended, at every start of a step.

    A step has ended when its updates are made, as with the `clock()` of Ho et al.
    """
    played = run({2: 0.2}, sharding={"staleness": bound})
    begun = {(s.rank, int(s.name.split()[2])): s.start for s in of(played, "embedding forward")}
    ended = {(s.rank, int(s.name.split()[3])): s.end for s in of(played, "update bucket")}
    ahead = [
        number - min(sum(ended[rank, n] <= time for n in range(STEPS)) for rank in range(WORKERS))
        for (_, number), time in begun.items()
    ]
    assert max(ahead) == bound


@pytest.mark.parametrize("engine", ["events", "compiled"])
@pytest.mark.parametrize("stragglers", [{2: 0.2}, {0: 0.7, 1: 0.5}], ids=str)
@pytest.mark.parametrize("bound", [0, 1, 3])
def test_what_a_worker_reads_holds_every_update_of_long_ago(
    bound: int, stragglers: dict[int, float], engine: str
) -> None:
    """A read for step n holds all workers' updates up to step n - bound - 1 (Ho et al. 2013, section 3).

    So of two workers' updates of steps n and m one may miss the other where |n - m| <= bound, and only the one that
    comes later: of N steps and W workers each gradient misses (W - 1) / 2 x (2 bound + 1 - bound (bound + 1) / N) at
    most, on average.
    """
    played = run(stragglers, sharding={"staleness": bound, "bucket_size": "4 KiB"}, engine=engine)
    made: dict[int, float] = {}
    for span in of(played, "update bucket"):
        number = int(span.name.split()[3])
        made[number] = max(made.get(number, 0.0), span.end)
    reads = [(int(span.name.split()[3]) + 1, span.start) for span in of(played, "pull bucket")]
    assert len(reads) > WORKERS * STEPS
    assert all(made[old] <= time for n, time in reads for old in range(n - bound))
    learning = played.report.learning  # type: ignore[union-attr]
    assert learning is not None
    most = (WORKERS - 1) / 2 * (2 * bound + 1 - bound * (bound + 1) / STEPS)
    assert 0 < np.mean(learning.staleness) <= most


def test_staleness_is_what_others_did_in_between() -> None:
    """Equal workers in turn: all others update once while one computes; alone nobody does."""
    learning = run().report.learning  # type: ignore[union-attr]
    assert learning is not None
    assert learning.staleness[1:-1] == pytest.approx([WORKERS - 1] * (STEPS - 2), abs=1)
    assert max(learning.staleness) <= 2 * (WORKERS - 1)


def test_accumulation_and_buckets_take_nothing_away() -> None:
    whole = losses(micro_batch_size=4)
    cut = losses(micro_batch_size=2, gradient_accumulation_steps=2)
    np.testing.assert_allclose(cut, whole, rtol=1e-3)
    assert len(losses(sharding={"bucket_size": "1 KiB", "servers": 2})) == STEPS


def test_others_go_on_where_a_worker_stops_and_wait_where_they_must() -> None:
    stops = [{"step": 3, "what": "stopped", "rank": 1}]
    played = run(faults=stops)
    learning = played.report.learning  # type: ignore[union-attr]
    assert learning is not None
    # Two of three workers go through all their steps, and nobody notices that there are fewer gradients.
    assert len(learning.losses) == (2 * STEPS + 4) // 3
    assert (learning.stopped, learning.seen) == ("", {})
    bound = run(faults=stops, sharding={"staleness": 2}).report.learning  # type: ignore[union-attr]
    assert bound is not None
    assert "'clock 3', which rank 1 has not reached" in bound.stopped
    assert bound.seen == {"watchdog": 3}
    # Others are through with steps up to 3 + 2, rank 1 has begun its step 3.
    assert len(bound.losses) == (2 * 6 + 4) // 3


@pytest.mark.parametrize("what", ["dropped", "doubled", "stale", "bit_flip"])
@pytest.mark.parametrize("rank", [0, 2])
def test_a_fault_of_one_workers_push_is_seen_in_its_step(what: str, rank: int) -> None:
    clean, faulty = (
        run(faults=f).report.learning
        for f in ([], [{"step": 3, "what": what, "rank": rank, "bit": 0 if what != "bit_flip" else 29}])
    )  # type: ignore[union-attr]
    assert clean is not None
    assert faulty is not None
    assert faulty.seen["sums"] == 3
    assert faulty.losses[:3] == clean.losses[:3]
    assert faulty.losses != clean.losses


def test_an_overflow_of_one_worker_ends_everybodys_training() -> None:
    learning = run(faults=[{"step": 3, "what": "overflow", "rank": 1}]).report.learning  # type: ignore[union-attr]
    assert learning is not None
    assert np.isfinite(learning.losses[:4]).all()
    assert not np.isfinite(learning.losses[5:]).any()


def test_a_push_that_is_not_that_workers_is_told() -> None:
    fault = {"step": 3, "what": "dropped", "rank": 1, "collective": "push bucket 0 2 (worker 1)"}
    with pytest.raises(ScenarioError, match="is no push of rank 1 in step 3; the first push is 'push bucket 0 3"):
        run(faults=[fault])


def test_losses_stand_at_the_time_when_the_last_of_them_was_known() -> None:
    played = run({2: 0.2})
    learning = played.report.learning  # type: ignore[union-attr]
    assert learning is not None
    known = sorted(span.end for span in of(played, "head forward"))
    assert learning.ended_s == tuple(known[WORKERS - 1 :: WORKERS])


def test_one_run_of_them_leaves_its_directory(tmp_path: Path) -> None:
    played = run()
    ArtifactWriter(tmp_path, single=True, trace=True)(0, played)
    assert list((tmp_path / "trace").iterdir())


def test_memory_returns_to_its_start() -> None:
    played = run()
    for rank in range(WORKERS):
        held = [sample.nbytes for sample in played.timeline.memory if sample.rank == rank]
        assert held[-1] == held[1]  # parameters and states; workers have no states
        assert max(held) > held[1]
