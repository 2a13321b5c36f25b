"""Real training on the simulated step, against the bare arithmetic of the same four ranks."""

from __future__ import annotations

import time

import numpy as np
from threadpoolctl import threadpool_limits

from simulator.basics.arrays import Array
from simulator.numerics import task
from simulator.numerics.arithmetic import arithmetic
from simulator.numerics.gpt import Gpt
from simulator.numerics.optimizer import Adam, fresh, step
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario

STEPS, RANKS, BATCH, LENGTH = 20, 4, 4, 32


def played() -> float:
    """Return the CPU time for a scenario that simulates a step and trains [s]."""
    model = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 128}
    training = {"model": model | {"tie_word_embeddings": False}, "seq_len": LENGTH, "micro_batch_size": BATCH}
    training |= {"sharding": "zero3", "precision": "fp32", "numerics": True, "steps": STEPS}
    cluster = {"topology": "star_100g", "world_size": RANKS}
    scenario = load_scenario({"name": "bench", "cluster": cluster, "training": training})
    began = time.process_time()
    simulate(scenario)
    return time.process_time() - began


def bare() -> float:
    """Return the CPU time of forward, backward and update alone [s]."""
    gpt = Gpt(128, 64, 4, 32, 2, arithmetic("float32"), "flash")
    parameters = {u: {n: v.astype(np.float32) for n, v in own.items()} for u, own in task.initial(gpt, 0).items()}
    states = {n: fresh(Adam(), v) for own in parameters.values() for n, v in own.items()}
    # The same setting as in real training.
    with threadpool_limits(1, user_api="blas"):
        began = time.process_time()
        for number in range(STEPS):
            # Each rank's part of the batch, in sequence.
            rows = np.split(task.sequences(0, number, RANKS * BATCH, LENGTH + 1, gpt.vocabulary), RANKS)
            total: dict[str, Array] = {}
            for part in rows:
                for name, gradient in gpt.gradients(parameters, part)[1].items():
                    total[name] = total.get(name, np.float32(0)) + gradient / np.float32(RANKS)
            for own in parameters.values():
                for name, value in own.items():
                    step(Adam(), value, total[name], states[name])
        return time.process_time() - began
