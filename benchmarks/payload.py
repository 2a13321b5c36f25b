"""Real arrays through the events engine beside the numpy work that must be: n(n-1) adds and as many copies."""

from __future__ import annotations

import time

import numpy as np

from benchmarks.events import program
from benchmarks.timing import best_of
from simulator.cluster.build import build
from simulator.collectives import inputs
from simulator.collectives.expected import Numbers, judge
from simulator.dtypes import find
from simulator.engine.events import execute
from simulator.engine.payload import Payload, ended_order


def floor(world_size: int, nbytes: int) -> float:
    """CPU time [s] of the adds and copies of a ring, chunk arrays ready at hand; best of 5."""
    arrays = [np.full(nbytes // 4, r, np.float32) for r in range(world_size)]
    chunks = [np.array_split(a, world_size) for a in arrays]
    n = world_size

    def work() -> None:
        for step in range(n - 1):
            for c in range(n):
                into = chunks[(c + step + 2) % n][c]
                np.add(into, chunks[(c + step + 1) % n][c], out=into)
        for step in range(n - 1):
            for c in range(n):
                np.copyto(chunks[(c + step + 1) % n][c], chunks[(c + step) % n][c])

    return best_of(5, work)[0]


def engine(world_size: int, nbytes: int) -> tuple[float, float, float, int]:
    """CPU times [s] of the play from inputs in memory to results, of drawing and of judging, and wrong elements."""
    began = time.process_time()
    played, dtype = program(world_size, nbytes), find("float32")
    op = played.collectives()["all_reduce"]
    drawn = inputs.buffers(op.schedule, op.elements, dtype, 0)
    drawing = time.process_time() - began
    buffers = [array.copy() for array in drawn]
    payload = Payload(buffers, dtype, "sum", dtype.numpy)
    there = build("star_100g", world_size)
    best = float("inf")
    for _ in range(5):
        for buffer, array in zip(buffers, drawn, strict=True):
            buffer[...] = array
        began = time.process_time()
        timeline = execute(played, there, payloads={op.name: payload})
        best = min(best, time.process_time() - began)
    log = timeline.logs[0]
    began = time.process_time()
    order = ended_order(log.transfers, log.end)
    verdict = judge(op.schedule, log.transfers, order, Numbers(dtype, "sum", dtype.numpy), drawn, buffers)
    return best, drawing, time.process_time() - began, verdict.wrong
