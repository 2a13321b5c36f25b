"""What does a checkpoint in flight send? Each rank copies its share to pinned host memory, which writes it to storage.

The copy and the write follow each other. The rank's operation ends with the copy, and the optimizer's update waits for
it; the write goes on behind, beside the step's own traffic, and may last longer than the step.

Each state is saved once: rank by rank, an equal share of all bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from simulator.basics.dtypes import find
from simulator.cluster.cluster import Cluster
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.model.model import modules
from simulator.model.partition import WHOLE
from simulator.records.operation import Collective, ElementSizes, RateCaps
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Repeat, Round, Schedule, kept
from simulator.step.spec import TrainingStep

# Name of a rank's copy and write in the program.
SAVE: Final = "save checkpoint"


def checkpoint_bytes(step: TrainingStep) -> float:
    """Return the bytes of a training's checkpoint: working parameters, and master copy and optimizer states of trained
    parameters, each once [B]. With adapters, which alone are trained, the frozen model is not saved. Frameworks whose
    working parameters are temporary casts of the master copy save that copy alone (`MemoryConstants.saves_parameters`).

    Adam with bfloat16 parameters has 2 + 4 + 2 x 4 bytes for each parameter; torchtitan saves 4 + 2 x 4.

    >>> from simulator.model.load import load_model
    >>> from simulator.step.framework import load_framework
    >>> from simulator.step.spec import bare_step
    >>> checkpoint_bytes(bare_step(load_model("llama3_8b"), 8192, 1)) / 8_030_261_248
    14.0
    >>> titan = bare_step(load_model("llama3_8b"), 8192, 1, framework=load_framework("torchtitan"))
    >>> checkpoint_bytes(titan) / 8_030_261_248
    12.0
    """
    master = 0 if step.precision.master is None else find(step.precision.master).itemsize
    states = step.optimizer.states * step.optimizer.state_itemsize
    full = step.framework.memory.saves_parameters or step.precision.master is None
    saved = trained = 0
    for module in modules(step.model, WHOLE):
        names = None if step.trained is None else step.trained.of(module.name)
        for tensor in module.parameters:
            updated = tensor.trained and (names is None or tensor.name in names)
            saved += tensor.elements if (full or not updated) and (tensor.trained or step.model.adapters is None) else 0
            trained += tensor.elements if updated else 0
    return saved * find(step.trained_dtype).itemsize + trained * (master + states)


def save_operation(cluster: Cluster, nbytes: int, cap: float) -> Collective:
    """Return rank 0's copy of `nbytes` bytes to its host, at most at the rate `cap` [B/s], and the host's write to the
    storage.
    """

    def parts() -> Iterator[Round | Repeat]:
        builder = ScheduleBuilder()
        copied = builder.send(0, 1, 0, 1, reduce=False, channel=0)
        builder.end_round()
        builder.send(1, 2, 0, 1, reduce=False, channel=1, after=[copied])
        return builder.parts()

    order = ReductionOrder.IN_SEQUENCE
    return Collective(
        name=SAVE,
        group=(0,),
        schedule=Schedule("copy to host", "copy", 1, 2, 1, order, kept(parts), rows=2),
        elements=nbytes,
        sizes=ElementSizes(1, 1),
        dtype="uint8",
        auxiliaries=(cluster.host_of(0), cluster.storage),
        caps=RateCaps(cap, cap),
        stream="copy to host",
        takes_sms=False,
    )
