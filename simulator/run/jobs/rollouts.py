"""How long do jobs take to generate their batches, if the batches consist of answers of unequal lengths?

What lies between generation and training was measured for GRPO steps of NeMo RL v0.3 (NVIDIA-NeMo/RL, issue 959: Llama
3.1 8B on 8 and 70B on 64 H100, 2,048 answers a batch, Megatron and DTensor, two runs of each).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from simulator.basics.errors import ScenarioError
from simulator.cluster.cluster import Cluster
from simulator.model.load import load_model
from simulator.model.shape import Transformer
from simulator.run.jobs.joined_program import Phase
from simulator.scenario.jobs_file import JobSetting, JobsFile, Rollout
from simulator.step.decoding import Decoder, Generated, generated

# Name of the phase that generates a batch.
GENERATE: Final = "generate"
# Rate at which new weights arrive on a GPU of an engine [B/s]: the geometric mean of 16.1 GB in 4, 5, 6 and 8 s (8B, an
# engine for each GPU), 35.3 GB in 14, 15, 20 and 26 s (70B, 4 GPUs an engine), and 41.9 GB in 14.2 and 15.5 s (DeepSeek
# V3, 32 GPUs an engine, NCCL; NeMo RL at 7ea279abf, docs/guides/checkpoint-engine-refit.md).
_REFIT_RATE: Final = 2.5e9
# Time of rewards, advantages, packing and moves of data for an answer [s]: the geometric mean of what the phases of the
# eight runs leave of the steps, 3 to 14 s.
_PER_ANSWER: Final = 3.2e-3


def with_rollouts(file: JobsFile, parts: Sequence[Cluster]) -> JobsFile:
    """Return the jobs with the time of each batch of answers, on each job's part of the cluster.

    Raises
    ------
    ScenarioError
        The model does not generate tokens, or does not fit on an engine's GPUs.
    """
    return replace(file, jobs=tuple(_simulated(job, part) for job, part in zip(file.jobs, parts, strict=True)))


def _simulated(job: JobSetting, part: Cluster) -> JobSetting:
    rollout = job.rollout
    if rollout is None:
        return job
    where = f"jobs.{job.name}.generation"
    if part.world_size % rollout.tp:
        raise ScenarioError(f"{where}.tp: got {rollout.tp}; must divide the {part.world_size} GPUs of the job")
    lengths = drawn_answers(rollout)
    model = load_model(rollout.model, max(lengths) + rollout.prompt, job.base)
    if not isinstance(model, Transformer):
        raise ScenarioError(f"{where}.model: {model.name} generates no tokens")
    decoder = Decoder(model, part, rollout.tp, host=rollout.host)
    if decoder.room < max(lengths) + rollout.prompt:
        raise ScenarioError(
            f"{where}.tp: got {rollout.tp}; the weights of {model.name} and the longest answer take more than the "
            f"memory of {rollout.tp} {part.gpus[0].name}; take more GPUs for each engine"
        )
    engines = part.world_size // rollout.tp
    slowest = slowest_engine(decoder, lengths, rollout.prompt, engines, partial=rollout.partial)
    tokens = sum(lengths) + len(lengths) * rollout.prompt
    rollout = replace(
        rollout,
        refit=decoder.weights / _REFIT_RATE if rollout.refit is None else rollout.refit,
        processing=_PER_ANSWER * rollout.answers if rollout.processing is None else rollout.processing,
        generated=slowest,
    )
    return replace(job, generation=slowest.seconds, tokens=tokens, rollout=rollout)


def generation_phases(job: JobSetting) -> tuple[Phase, ...]:
    """Return what a job does to generate a batch: load new weights, and generate."""
    loads = (
        (Phase("refit", "refit", job.rollout.refit, False, "loading new weights"),)
        if job.rollout and job.rollout.refit
        else ()
    )
    return (*loads, Phase(GENERATE, "generation", job.generation)) if job.generation else ()


def training_phases(maker: JobSetting | None, forward: float) -> tuple[Phase, ...]:
    """Return the phases of a training before its first step on a batch, in order: work on the answers, for the time of
    the job `maker` that generated them, and all forward passes for probabilities, which take `forward` [s].
    """
    seconds = maker.rollout.processing if maker and maker.rollout else None
    processes = (Phase("process", "processing", seconds, False, "processing the answers"),) if seconds else ()
    return (
        (*processes, Phase("probabilities", "forward", forward, True, "forward passes for probabilities"))
        if forward
        else processes
    )


def drawn_answers(rollout: Rollout) -> list[int]:
    """Return the tokens of each answer of a batch, drawn with the seed of the lengths."""
    lengths = rollout.lengths
    uncut = lengths.source(rollout.answers, np.random.default_rng(lengths.seed))
    tokens: list[int] = np.minimum(uncut, lengths.max or int(uncut.max())).tolist()
    return tokens


def slowest_engine(
    decoder: Decoder, lengths: Sequence[int], prompt: int, engines: int, *, partial: bool = False
) -> Generated:
    """Return the generation of the engine that ends last, if answers are dealt to the engines in turn."""
    shares = [share for engine in range(engines) if (share := lengths[engine::engines])]
    return max(
        (
            generated(
                share,
                prompt,
                decoder.room,
                decoder.step,
                decoder.read,
                decoder.prefill(len(share), prompt),
                partial=partial,
            )
            for share in shares
        ),
        key=lambda outcome: outcome.seconds,
    )
