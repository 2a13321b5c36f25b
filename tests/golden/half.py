"""The small GPT in float16 on played ranks, with an overflow put in at step 7, as PyTorch's runs were made."""

from __future__ import annotations

from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from simulator.basics.arrays import Array
from simulator.learning.learn import gpt_of
from simulator.learning.setting import TrainingContext
from simulator.learning.start import start
from simulator.learning.state import StepResult
from simulator.learning.training import Training
from simulator.model.shape import Transformer
from simulator.numerics.loss_scaling import Scale, grad_scaler
from simulator.step.learning_spec import LossScaling
from simulator.step.precision import Precision
from tests.golden.gpt import BATCH, STEPS, golden, tokens
from tests.training import play, step

SHAPE = Transformer("golden", 2, 64, 4, 4, 16, 256, 128, 32, tied=False)
OVERFLOW = 7
HALF = Precision(params="float16", grads="float16", reduce="float16", master="float32", matmul="float16")


def half(
    strategy: str, scale: Scale | None = None, *, ranks: int = 4, steps: int = STEPS, spoiled: int = 2, **facts: Any
) -> tuple[Training, list[StepResult]]:
    """Train; rank `spoiled` has an infinite gradient once."""
    batch = BATCH // ranks // facts.get("gradient_accumulation_steps", 1)
    facts |= {"precision": HALF, "seq_len": 32, "micro_batch_size": batch, "loss_scaling": LossScaling(rule="dynamic")}
    made = step(strategy, SHAPE, **facts)
    played, gpt = play(made, ranks), gpt_of(made)
    begun = {u: {name: golden("init")[name] for name in gpt.shapes(u)} for u in gpt.units}
    training = start(TrainingContext(gpt, played.plan, played.timeline), begun, scale or grad_scaler())

    def spoil(rank: int, unit: str, gradients: dict[str, Array], step: int) -> None:
        if rank == spoiled and unit == "head":
            gradients["head.weight"][3, 5] = np.inf

    # Matrices are too small to share among threads.
    with threadpool_limits(1, user_api="blas"):
        told = [training.step(tokens(n), spoil if n == OVERFLOW else None) for n in range(steps)]
    return training, told
