"""Dumps of PyTorch's NCCL flight recorder, version 2.4, written by hand.

Four ranks have done 3 collectives of the group "0". In number 4, an all-reduce of 4 MiB, rank 2 does not arrive.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RANKS, MS, BEGIN = 4, 1_000_000, 1_717_800_000_000_000_000
# Operation, elements of inputs and outputs, and for each rank: issued [ms], time on the GPU [ms].
DONE: Sequence[tuple[str, list[int], list[int], list[tuple[int, float]]]] = (
    ("nccl:_all_gather_base", [1000], [4000], [(0, 9.0), (3, 6.0), (7, 2.0), (1, 8.0)]),
    ("nccl:_reduce_scatter_base", [4000], [1000], [(10, 5.0), (10, 5.0), (12, 3.0), (11, 4.0)]),
    ("nccl:all_reduce", [1], [1], [(20, 4.0), (23, 1.0), (21, 3.0), (20, 4.0)]),
)
HANGS = ("nccl:all_reduce", [1024, 1024], [1024, 1024])
# Rank 3's kernel has not begun.
STATES = {0: "started", 1: "started", 3: "scheduled"}


def entry(
    rank: int, number: int, name: str, sizes: tuple[list[int], list[int]], created: int, **more: Any
) -> dict[str, Any]:
    return {
        "frames": [{"name": "all_reduce", "filename": "distributed_c10d.py", "line": 2696}],
        "record_id": number - 1, "pg_id": 0, "process_group": ("0", "default_pg"), "thread_name": "pt_main_thread",
        "thread_id": "1", "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number, "profiling_name": name,
        "time_created_ns": BEGIN + created * MS, "input_sizes": [sizes[0]], "input_dtypes": ["Float"],
        "output_sizes": [sizes[1]], "output_dtypes": ["Float"], "state": "completed",
        "time_discovered_started_ns": None, "time_discovered_completed_ns": None, "retired": True,
        "timeout_ms": 600000, "is_p2p": False,
    } | more  # fmt: skip


def dump(rank: int) -> dict[str, Any]:
    """The dump of a rank as plain data."""
    entries = []
    for number, (name, sent, received, ranks) in enumerate(DONE, 1):
        created, took = ranks[rank]
        # All ranks end together, when the last has come and the bytes have arrived.
        ended = BEGIN + round((max(c for c, _ in ranks) + min(t for _, t in ranks)) * MS)
        entries.append(entry(rank, number, name, (sent, received), created, duration_ms=took,
                             time_discovered_started_ns=BEGIN + created * MS + MS // 2,
                             time_discovered_completed_ns=ended))  # fmt: skip
    if rank in STATES:
        started = BEGIN + 31 * MS if STATES[rank] == "started" else None
        entries.append(entry(rank, 4, HANGS[0], (HANGS[1], HANGS[2]), 30 + rank, state=STATES[rank], retired=False,
                             time_discovered_started_ns=started))  # fmt: skip
    return {
        "version": "2.4",
        "entries": entries,
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
        "pg_status": {"0": {"last_enqueued_collective": len(entries), "last_completed_collective": 3}},
        "nccl_comm_state": {},
    }


def write(folder: Path, dumps: Sequence[Any] | None = None, *, pickled: bool = False) -> Path:
    """Write a file for each rank into a folder, as PyTorch names them; return the folder."""
    folder.mkdir(exist_ok=True)
    for rank, data in enumerate(dumps or [dump(rank) for rank in range(RANKS)]):
        # PyTorch's pickler writes protocol 2.
        content = pickle.dumps(data, protocol=2) if pickled else json.dumps(data).encode()
        (folder / f"nccl_trace_rank_{rank}").write_bytes(content)
    return folder
