"""Which options of launchers (torchrun, srun, deepspeed, accelerate) tell the number of GPUs?

A node has as many GPUs as a launcher starts processes, or as a scheduler starts tasks or gives GPUs. A single task of a
scheduler may start a launcher, and tells nothing.
"""

from __future__ import annotations

from typing import Any, Final

from simulator.importing.facts import Facts
from simulator.importing.rules import Means, Table, single, size


def _count(value: Any) -> int | None:
    """Return a number; None for a range of nodes (2:4), and for torchrun's words for all GPUs of a node."""
    word = str(single(value))
    return None if word in ("gpu", "auto") or ":" in word else size(value)


def _resource(value: Any) -> int | None:
    """Return the GPUs of a generic resource of Slurm: gpu:4, gpu:a100:4."""
    kind, *rest = str(single(value)).split(":")
    return size(rest[-1]) if kind == "gpu" and rest and rest[-1].isdigit() else None


_NODES: Final = Means("nodes", _count, needed=False)
_PER_NODE: Final = Means("launcher_processes", _count, needed=False)
_WORLD: Final = Means("cluster.world_size", size, needed=False)
# Keys in the spelling with dashes; `deepspeed --num_gpus` counts the GPUs of each node.
LAUNCHERS: Final[Table] = {
    "nproc-per-node": _PER_NODE,
    "nnodes": _NODES,
    "num-gpus": _PER_NODE,
    "num-nodes": _NODES,
    "num-processes": _WORLD,
    "num-machines": _NODES,
    "nodes": _NODES,
    "gpus-per-node": Means("node_gpus", lambda value: size(str(single(value)).rpartition(":")[2]), needed=False),
    "gres": Means("node_gpus", _resource, needed=False),
    "ntasks-per-node": Means("tasks", lambda value: size(value) if str(single(value)) != "1" else None, needed=False),
}


def derive_node(facts: Facts) -> None:
    """Add the number of GPUs of a node."""
    for name in ("launcher_processes", "tasks", "node_gpus"):
        if facts.has(name) and not facts.has("gpus_per_node"):
            facts.derive("gpus_per_node", facts.value(name), name)


# Options of launchers that change no step.
IDLE: Final = (
    # A launcher's short options ("-N") have another meaning in each command.
    "?", "master-*", "main-process-*", "rdzv-*", "node-rank", "machine-rank", "hostfile", "include", "exclude",
    "job-name", "partition", "account", "time", "output", "error", "exclusive", "mem", "cpus-per-task", "container-*",
    "standalone", "max-restarts", "log-dir", "redirects", "tee", "local-ranks-filter", "mpi", "export", "chdir",
    "label", "unbuffered", "mail-*", "qos", "signal", "dependency",
)  # fmt: skip
