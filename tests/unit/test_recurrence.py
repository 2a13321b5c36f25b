"""Chunks of one size round a ring: the formula against the hops one by one.

Hops that are equally slow are drawn often: the formula keeps one line for each of them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.collectives import recurrence
from simulator.collectives.recurrence import advance, largest_between
from simulator.engine.compiled import library

TIMES = st.sampled_from([0.0, 1e-6, 3.3e-6, 1e-4, 2e-3])


@dataclass(frozen=True, slots=True)
class Ring:
    """Ends, latencies and times of each hop [s], and how many rounds."""

    ends: list[float]
    latencies: list[float]
    takes: list[float]
    rounds: int

    def written_out(self) -> list[float]:
        """A hop begins a chunk when the hop before has brought it and its own last one has ended."""
        now = self.ends
        for _ in range(self.rounds):
            now = [
                max(now[r - 1] + latency, now[r]) + takes
                for r, (latency, takes) in enumerate(zip(self.latencies, self.takes, strict=True))
            ]
        return now

    def advanced(self) -> list[float]:
        columns = (np.array([column]) for column in (self.ends, self.latencies, self.takes))
        found: list[float] = advance(*columns, self.rounds)[0].tolist()
        return found


@pytest.fixture
def formula(monkeypatch: pytest.MonkeyPatch) -> None:
    """The formula wherever it holds; the rounds that are faster on small rings are the test's own."""
    monkeypatch.setattr(recurrence, "_SOLVING", 0)
    monkeypatch.setattr(recurrence, "_HOP", 0)


def drawn(generator: np.random.Generator, hops: int, values: list[float]) -> Ring:
    """Hops of a few speeds: some are as slow as others, and starts far enough apart for each of them to matter."""
    apart = float(generator.choice([1e-6, 1e-4, 1e-2]))
    ends, latencies = (generator.random(hops) * scale for scale in (apart, float(generator.choice([0.0, 1e-6, 1e-4]))))
    takes = generator.choice(values, hops)
    rounds = int(generator.integers(max(hops - 2, 1), 4 * hops))
    return Ring(ends.tolist(), latencies.tolist(), takes.tolist(), rounds)


@pytest.mark.usefixtures("formula")
@pytest.mark.parametrize("speeds", [1, 2, 3, 5, 12])
def test_chunks_go_round_as_hop_by_hop(speeds: int) -> None:
    generator = np.random.default_rng([31, speeds])
    for number in range(120):
        values = np.sort(generator.choice(np.arange(1, 40), speeds, replace=False) * 1e-5).tolist()
        ring = drawn(generator, int(generator.integers(2, 24)), values)
        assert ring.advanced() == pytest.approx(ring.written_out(), rel=1e-12), (number, ring)


@st.composite
def rings(draw: st.DrawFn) -> Ring:
    n = draw(st.integers(2, 9))

    def each(values: st.SearchStrategy[float]) -> list[float]:
        return draw(st.lists(values, min_size=n, max_size=n))

    return Ring(each(TIMES), each(TIMES), each(st.sampled_from([1e-5, 2e-5, 3e-5])), draw(st.integers(0, 4 * n)))


@settings(max_examples=300, derandomize=True)
@given(rings())
def test_any_small_ring_goes_round_as_hop_by_hop(ring: Ring) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recurrence, "_SOLVING", 0)
        patch.setattr(recurrence, "_HOP", 0)
        assert ring.advanced() == pytest.approx(ring.written_out(), rel=1e-12)


@pytest.mark.usefixtures("formula")
def test_of_two_equally_slow_hops_the_earlier_ones_start_counts_for_the_later_one_too() -> None:
    """Hops 1 and 3 are equally slow, 0 slower, 2 and 4 faster. What hop 1 has been late with waits at hop 3 as well.

    Hop 1 begins at 100 and all others at 0, so after 3 rounds hop 4 ends what hop 1 had ended at 100: over hops 2, 3
    and 4 it moves, which takes 1 + 2 + 1; hop 3 had nothing to do before. After 4 rounds it waits once, for 2.
    """
    ring = Ring([0.0, 100.0, 0.0, 0.0, 0.0], [0.0] * 5, [3.0, 2.0, 1.0, 2.0, 1.0], 3)
    assert ring.advanced()[4] == 100.0 + 1 + 2 + 1
    later = Ring(ring.ends, ring.latencies, ring.takes, 4)
    assert later.advanced()[4] == 100.0 + 2 + 1 + 2 + 1


@pytest.mark.parametrize("pairs", [0, 400])
def test_several_rings_and_either_way_of_solving_give_what_each_gives(
    monkeypatch: pytest.MonkeyPatch, pairs: int
) -> None:
    """Hops in sorted order have too many pairs for the formula, and are tried round by round."""
    monkeypatch.setattr(recurrence, "_SOLVING", 0)
    monkeypatch.setattr(recurrence, "_HOP", 0)
    monkeypatch.setattr(recurrence, "_MOST_PAIRS", pairs)
    generator = np.random.default_rng(5)
    several = [drawn(generator, 11, [1e-5, 2e-5, 5e-5]) for _ in range(6)]
    columns = [np.array([getattr(ring, name) for ring in several]) for name in ("ends", "latencies", "takes")]
    found = advance(*columns, 25)
    for ring, own in zip(several, found.tolist(), strict=True):
        assert own == pytest.approx(Ring(ring.ends, ring.latencies, ring.takes, 25).written_out(), rel=1e-12)


def test_the_largest_of_every_window_is_numpys() -> None:
    generator = np.random.default_rng(9)
    values = generator.standard_normal(37)
    first, last = np.triu_indices(37)
    expected = [values[a : b + 1].max() for a, b in zip(first, last, strict=True)]
    assert largest_between(values, first, last).tolist() == expected


def test_a_ring_that_is_large_enough_is_solved_and_a_small_one_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice is by cost alone: it must not be that the formula is never asked for."""
    asked: list[int] = []
    solve: Callable[..., object] = recurrence._solved
    monkeypatch.setattr(recurrence, "_solved", lambda end, *rest: asked.append(len(end)) or solve(end, *rest))
    generator = np.random.default_rng(3)
    for hops in (8, 2048):
        ends, latencies = generator.random((1, hops)) * 1e-4, generator.random((1, hops)) * 1e-5
        advance(ends, latencies, generator.choice([1e-5, 2e-5], (1, hops)), 2 * hops)
    assert asked == [2048]


SHIM = """
#include "recurrence.h"
int even(int32_t hops, double *end, const double *latency, const double *takes, int64_t rounds) {
    RingHops ring = {hops, end, latency, takes, takes, 1.0};
    return advance_even(&ring, rounds);
}
int uneven(int32_t hops, double *end, const double *latency, const double *nbytes, double rate, int64_t rounds) {
    RingHops ring = {hops, end, latency, nbytes, nbytes, rate};
    return advance_uneven(&ring, rounds);
}
"""


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return the core's recurrences, which the core itself takes for rings of 200,000 transfers and more alone."""
    folder = tmp_path_factory.mktemp("recurrence")
    source, headers = folder / "shim.c", library.sources()[0].parent
    source.write_text(SHIM)
    return ctypes.CDLL(str(library.compile_core(folder / "shim.so", f"-I{headers}", source=source)))


def pointer(column: npt.NDArray[np.float64]) -> ctypes.c_void_p:
    return ctypes.c_void_p(column.ctypes.data)


def test_the_cores_recurrence_of_equal_chunks_is_the_rounds_one_by_one(in_c: ctypes.CDLL) -> None:
    """Few different times, so that hops are often equally slow: one of several is put aside for the others."""
    generator = np.random.default_rng(29)
    for _ in range(4000):
        hops = int(generator.integers(2, 10))
        rounds = int(generator.integers(max(1, hops - 2), 3 * hops))
        ends, latency = generator.choice([0.0, 1e-6, 5e-6, 2e-5], (2, hops))
        takes = generator.choice([1e-6, 2e-6, 3e-6, 7e-6], hops)
        expected = Ring(ends.tolist(), latency.tolist(), takes.tolist(), rounds).written_out()
        found = ends.copy()
        solved = in_c.even(hops, pointer(found), pointer(latency), pointer(takes), ctypes.c_int64(rounds))
        assert solved
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-18)


def test_the_cores_recurrence_of_two_sizes_is_the_rounds_one_by_one(in_c: ctypes.CDLL) -> None:
    """A chunk keeps its size as it moves on: hop k has in round r what hop k - r had in the first round."""
    generator = np.random.default_rng(30)
    for _ in range(2000):
        hops = int(generator.integers(2, 10))
        rounds = int(generator.integers(max(1, hops - 2), 3 * hops))
        ends, latency = generator.choice([0.0, 1e-6, 5e-6, 2e-5], (2, hops))
        nbytes = generator.choice([1000.0, 3000.0], hops)
        now = ends.tolist()
        for turn in range(rounds):
            carried = np.roll(nbytes, turn) / 1e9
            now = [max(now[hop - 1] + latency[hop], now[hop]) + carried[hop] for hop in range(hops)]
        found = ends.copy()
        rate = ctypes.c_double(1e9)
        solved = in_c.uneven(hops, pointer(found), pointer(latency), pointer(nbytes), rate, ctypes.c_int64(rounds))
        assert solved
        np.testing.assert_allclose(found, now, rtol=1e-12, atol=1e-18)
