"""Real arrays through the events engine, against the necessary numpy work: n(n-1) additions and n(n-1) copies."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np

from benchmarks.events import program
from benchmarks.timing import best_of
from simulator.basics.dtypes import find
from simulator.cluster.build import build
from simulator.collectives.payload import inputs
from simulator.collectives.payload.carry import Payload, ended_order
from simulator.collectives.payload.judge import Numbers, judge
from simulator.engine.events import execute
from simulator.records.timeline import Timeline


def engine(world_size: int, nbytes: int) -> tuple[float, float, float, float, int]:
    """Return the CPU times of simulation, its floor, drawing and judging [s], and the number of wrong elements."""
    began = time.process_time()
    played, dtype = program(world_size, nbytes), find("float32")
    op = played.collectives()["all_reduce"]
    drawn = inputs.buffers(op.schedule, op.elements, dtype, 0)
    drawing = time.process_time() - began
    buffers = [array.copy() for array in drawn]
    payload = Payload(buffers, dtype, "sum", dtype.numpy)
    there, timelines = build("star_100g", world_size), list[Timeline]()
    # The floor overwrites the buffers, therefore inputs are copied again before each simulation.
    best, least = float("inf"), float("inf")
    for _ in range(5):
        # On the same memory, because pages touched before are faster.
        least = min(least, best_of(1, partial(_floor, buffers))[0])
        for buffer, array in zip(buffers, drawn, strict=True):
            buffer[...] = array
        best = min(best, best_of(1, lambda: timelines.append(execute(played, there, payloads={op.name: payload})))[0])
    log = timelines[-1].logs[0]
    began = time.process_time()
    order = ended_order(log.transfers, log.end)
    verdict = judge(op.schedule, log.transfers, order, Numbers(dtype, "sum", dtype.numpy), drawn, buffers)
    return best, least, drawing, time.process_time() - began, verdict.wrong


def _floor(buffers: list[Any]) -> None:
    """Do the additions and copies of a ring, n(n-1) each."""
    n = len(buffers)
    chunks = [np.array_split(buffer, n) for buffer in buffers]
    for step in range(n - 1):
        for c in range(n):
            # The arithmetic of a ring: in step s, chunk c is added on the next rank.
            into = chunks[(c + step + 2) % n][c]
            np.add(into, chunks[(c + step + 1) % n][c], out=into)
    for step in range(n - 1):
        for c in range(n):
            np.copyto(chunks[(c + step + 1) % n][c], chunks[(c + step) % n][c])
