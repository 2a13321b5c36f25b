"""How long does a collective take on a cluster, at any size and rate cap? Predicted from a few simulations.

Latencies are paid once and bytes by rate, therefore time = L(pieces) + S g(cap, pieces). A small array gives L. A large
array, simulated at the caps where g bends, gives g; between these caps g is linear in 1 / cap.

Example: a ring over 8 ranks sends 1.75 S through each port, so g = 1.75 / cap. With a cap of 100 GB/s, an array of 1 GB
takes L + 17.5 ms.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from simulator.basics.arrays import Floats
from simulator.basics.dtypes import find
from simulator.calibration.machines.sweep_cluster import with_machine
from simulator.cluster.cluster import Cluster, MachineCollective
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.engine.events import execute
from simulator.records.timeline import Timeline

Limit = Literal["inside", "across"]

# Simulated caps, as shares of the fastest link. The time as a function of 1 / cap bends where flows sharing a link stop
# limiting each other (a half, a third). Smaller caps alone bound the flows, and the function is a straight line.
_CAPS: Final = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 1 / 3, 0.2, 0.1)
# Sizes of the large and the small array [B]: with 4 GiB latencies vanish, with 4 KiB bytes do.
_LARGE: Final = 2**32
_SMALL: Final = 2**12


def played(cluster: Cluster, operation: str, machine: MachineCollective, nbytes: int, dtype: str) -> Timeline:
    """Return the simulated timeline of a collective on an array with `nbytes` bytes, with a machine's constants."""
    elements = nbytes // find(dtype).itemsize
    everyone = tuple(range(cluster.world_size))
    task = Task(CollectiveRequest(operation, cluster.world_size, elements), machine.algorithm, everyone, dtype)
    return execute(plan(with_machine(cluster, operation, machine), task).program, cluster)


@dataclass(slots=True)
class TimeModel:
    """Predicts the time of a collective at any size, with a rate cap on flows inside nodes or across nodes."""

    cluster: Cluster  # the simulated machine
    # `operation`, `algorithm`, `dtype`: The collective.
    operation: str
    algorithm: str
    dtype: str
    limit: Limit  # the cap to vary
    fastest: float  # bandwidth of the fastest link bounded by the cap [B/s]
    _tables: dict[int | None, tuple[float, Floats]] = field(default_factory=dict)  # simulated results

    def machine(self, cap: float, chunks: int | None = None) -> MachineCollective:
        """Return the algorithm's constants with this rate cap [B/s] and no other constant."""
        if self.limit == "inside":
            return MachineCollective(self.algorithm, rate_cap=cap, chunks=chunks)
        return MachineCollective(self.algorithm, cross_rate_cap=cap, chunks=chunks)

    @property
    def caps(self) -> Floats:
        """Rate caps at which the collective is simulated, in falling order [B/s]."""
        return self.fastest * np.array(_CAPS)

    def table(self, pieces: int | None) -> tuple[float, Floats]:
        """Return the latency L [s], and the slope g at each simulated cap [s/B], for an array cut into `pieces` pieces;
        cached.
        """
        if pieces not in self._tables:
            latency = self._time(_SMALL, float("inf"), pieces)
            times = [self._time(_LARGE, float(cap), pieces) for cap in self.caps]
            self._tables[pieces] = latency, (np.array(times) - latency) / _LARGE
        return self._tables[pieces]

    def _time(self, nbytes: int, cap: float, pieces: int | None) -> float:
        # The number of pieces is requested explicitly, because a machine does not cut small arrays by itself.
        machine = self.machine(cap)
        elements = nbytes // find(self.dtype).itemsize
        n = self.cluster.world_size
        request = CollectiveRequest(self.operation, n, elements, chunks=pieces)
        cluster = with_machine(self.cluster, self.operation, machine)
        planned = plan(cluster, Task(request, self.algorithm, tuple(range(n)), self.dtype))
        return execute(planned.program, cluster).end

    def times(self, sizes: Floats, caps: Floats, chunks: int | None) -> Floats:
        """Return the predicted time of each array size [B] under its own rate cap [B/s], without start-up [s]."""
        seconds = np.empty_like(sizes)
        # Small arrays are cut into fewer pieces; sizes with equal numbers of pieces share a table.
        bounds = [MachineCollective(self.algorithm, chunks=chunks).segments(size) for size in sizes]
        for pieces in set(bounds):
            mine = np.array([bound == pieces for bound in bounds])
            latency, slopes = self.table(pieces)
            seconds[mine] = latency + sizes[mine] * self._slope(caps[mine], slopes)
        return seconds

    def _slope(self, caps: Floats, slopes: Floats) -> Floats:
        # Interpolate in 1 / cap; below the smallest simulated cap, extend the last straight line.
        inverse, samples = 1.0 / caps, 1.0 / self.caps
        within = np.interp(inverse, samples, slopes)
        steep = (slopes[-1] - slopes[-2]) / (samples[-1] - samples[-2])
        beyond = slopes[-1] + steep * (inverse - samples[-1])
        return np.asarray(np.where(inverse > samples[-1], beyond, within))
