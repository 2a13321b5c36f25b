"""How does the core number rows? A shape's columns in problem.h are computed from the row graph.

The core counts transfers and gates together, the schedule counts transfers only. An in-order computation stores a
single slot for each row in a ring, whatever its number of repetitions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from simulator.basics.arrays import Ints
from simulator.engine.compiled.rows import Rows, by_key, starts

Columns = dict[str, npt.NDArray[Any]]


def shape_columns(rows: Rows) -> Columns:
    """Return the core's columns for a schedule's rows, by their names in problem.h; offsets start at the first row."""
    of, times = rows.round_of, rows.times
    place = np.arange(len(rows)) - rows.first[of]
    # A ring needs a slot per row, any other round a slot per transfer.
    slots = np.where(rows.ring, 1, times) * rows.lengths
    # The core looks waits up by the awaited row.
    inner, outer = by_key(rows.inner), by_key(rows.outer)
    noise, noise_stride = _sent_before(rows)
    initial = _initial(rows)
    return {
        "participants": np.array([rows.participants]),
        "shape_transfers": np.array([(rows.lengths * times).sum()]),
        "shape_slots": np.array([slots.sum()]),
        "row_src": rows.src,
        "row_dst": rows.dst,
        "row_base": starts(rows.lengths * times)[of] + place,
        "row_stride": rows.lengths[of],
        "row_log": rows.log_base[of] + rows.place,
        "row_log_stride": rows.transfer_lengths[of],
        "row_slot": starts(slots)[of] + place,
        "row_slot_stride": rows.lengths[of],
        "row_times": times[of],
        "row_waits": rows.waits,
        "row_follows": rows.follows,
        "row_next": rows.next,
        "row_next_shift": rows.next_shift,
        "row_exit": rows.exit,
        "row_noise": noise,
        "row_noise_stride": noise_stride,
        "inner_count": np.bincount(inner[0], minlength=len(rows)),
        "inner_row": inner[1],
        "inner_shift": inner[2],
        "outer_count": np.bincount(outer[0], minlength=len(rows)),
        "outer_at": outer[1],
        "outer_row": outer[2],
        "outer_times": outer[3],
        "part_row": rows.first,
        "part_rows": rows.lengths,
        "part_times": times,
        # 0: no ring, 1: ring, 2: ring continuing the round before.
        "part_ring": rows.ring.astype(np.uint8) + rows.joined,
        "part_moves": rows.moves,
        "ring_behind": rows.behind,
        "initial_count": initial[0],
        "initial": initial[1],
    }


def _sent_before(rows: Rows) -> tuple[Ints, Ints]:
    """Return, for each row, how many transfers the sender starts before, and how many per repetition."""
    transfers = np.flatnonzero(~rows.is_gate)
    rounds = len(rows.times)
    # A key for each pair (sender, round), with the pair's row count.
    key, which, count = np.unique(
        rows.src[transfers] * rounds + rows.round_of[transfers], return_inverse=True, return_counts=True
    )
    sent = starts(count * rows.times[key % rounds]) if rounds else count
    first_of_sender = np.searchsorted(key, key // max(rounds, 1) * rounds)
    before = sent - sent[first_of_sender]
    order = np.argsort(which, kind="stable")
    in_round = np.empty(len(transfers), np.int64)
    in_round[order] = np.arange(len(transfers)) - np.repeat(starts(count), count)
    noise, stride = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    noise[transfers], stride[transfers] = before[which] + in_round, count[which]
    return noise, stride


def _initial(rows: Rows) -> tuple[Ints, Ints]:
    """Return the rows without awaited transfers: the count by participant that starts a row, and the sorted rows.

    The sender starts its row, or the receiver if a server sends.
    """
    free = np.flatnonzero(~rows.is_gate & (rows.waits == 0) & ~rows.follows)
    by = np.where(rows.src[free] < rows.ranks, rows.src[free], rows.dst[free])
    order = np.argsort(by, kind="stable")
    return np.bincount(by, minlength=rows.participants), free[order]
