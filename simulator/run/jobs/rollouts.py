"""How long do jobs take to generate their batches, if the batches consist of answers of unequal lengths?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from simulator.basics.errors import ScenarioError
from simulator.cluster.cluster import Cluster
from simulator.model.load import load_model
from simulator.model.shape import Transformer
from simulator.scenario.jobs_file import JobSetting, JobsFile, Rollout
from simulator.step.decoding import Decoder, Generated, generated


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
    slowest = slowest_engine(decoder, lengths, rollout.prompt, part.world_size // rollout.tp)
    tokens = sum(lengths) + len(lengths) * rollout.prompt
    return replace(job, generation=slowest.seconds, tokens=tokens, rollout=replace(rollout, generated=slowest))


def drawn_answers(rollout: Rollout) -> list[int]:
    """Return the tokens of each answer of a batch, drawn with the seed of the lengths."""
    lengths = rollout.lengths
    uncut = lengths.source(rollout.answers, np.random.default_rng(lengths.seed))
    tokens: list[int] = np.minimum(uncut, lengths.max or int(uncut.max())).tolist()
    return tokens


def slowest_engine(decoder: Decoder, lengths: Sequence[int], prompt: int, engines: int) -> Generated:
    """Return the generation of the engine that ends last, if answers are dealt to the engines in turn."""
    shares = [share for engine in range(engines) if (share := lengths[engine::engines])]
    return max(
        (
            generated(share, prompt, decoder.room, decoder.step, decoder.read, decoder.prefill(len(share), prompt))
            for share in shares
        ),
        key=lambda outcome: outcome.seconds,
    )
