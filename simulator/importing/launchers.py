"""Which options of launchers (torchrun, srun, deepspeed, accelerate) tell the number of GPUs?"""

from __future__ import annotations

from typing import Final

from simulator.importing.rules import Means, Table, size

_NODES: Final = Means("nodes", size, needed=False)
_PER_NODE: Final = Means("gpus_per_node", size, needed=False)
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
    "gpus-per-node": _PER_NODE,
    "ntasks-per-node": _PER_NODE,
}
# Options of launchers that change no step.
IDLE: Final = (
    # A launcher's short options ("-N") have another meaning in each command.
    "?", "master-*", "main-process-*", "rdzv-*", "node-rank", "machine-rank", "hostfile", "include", "exclude",
    "job-name", "partition", "account", "time", "output", "error", "exclusive", "mem", "cpus-per-task", "container-*",
    "standalone", "max-restarts", "log-dir", "redirects", "tee", "local-ranks-filter", "mpi", "export", "chdir",
    "label", "unbuffered", "gres", "mail-*", "qos", "signal", "dependency",
)  # fmt: skip
