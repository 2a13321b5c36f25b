"""Parameter server: servers hold the optimizer's states; workers push gradients and pull parameters, in buckets.

Like pupils who hand in their results and copy the corrected page from the board. A bucket is updated when all workers
have pushed it, while others are still on their way; without a global norm, so gradients are not clipped.

References
----------
.. [1] Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014.
"""

from __future__ import annotations

from simulator.dtypes import find
from simulator.program import Act
from simulator.training.passes import Passes
from simulator.training.score import Score
from simulator.training.sharding.ddp import Bucket, bucketed
from simulator.training.spec import Offload, TrainingStep

# Servers are boxes of processors, like the hosts of offloaded optimizers.
_RATE = Offload().host_rate


def plan(score: Score, passes: Passes) -> None:
    """Note all micro-batches; only the last one communicates."""
    step = passes.step

    def exchanged(bucket: Bucket) -> str | None:
        elements, name = bucket.elements, bucket.name
        to, fro = (Act(what, bucket.names, bucket.micro) for what in ("push", "pull"))
        dtype, sharding = step.precision.reduce, step.sharding
        pushed = score.serve(f"push {name}", "push", elements, dtype, sharding, [bucket.done], to)
        passes.drop_gradients(bucket.units, bucket.micro, "communication push", [pushed or bucket.done])
        # Stands on every rank's own list, but a pull starts when the last rank is there: that is when all have pushed.
        seconds = elements / step.sharding.servers * traffic_per_parameter(step) / _RATE
        new = score.at_server(f"update {name}", seconds, after=[pushed or bucket.done])
        score.serve(f"pull {name}", "pull", elements, step.precision.params, sharding, [new], fro)
        return pushed

    bucketed(passes, exchanged)


def traffic_per_parameter(step: TrainingStep) -> int:
    """Bytes that a server reads and writes to update a parameter: sum of gradients, states, master copy [B]."""
    states = 4 * step.optimizer.states
    gradient, working = find(step.precision.reduce).itemsize, find(step.precision.params).itemsize
    master = working if step.precision.master is None else find(step.precision.master).itemsize
    return gradient + 2 * (states + master) + (0 if step.precision.master is None else working)
