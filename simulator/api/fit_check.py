"""How do Python users ask whether a training fits on their cards? `simulator.fit_check` returns a FitCheck."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from simulator.model.load import sequence_length
from simulator.planner.sizing import search
from simulator.planner.sizing.answer import FitCheck
from simulator.planner.sizing.fit_question import FitQuestion


def fit_check(
    model: str | Mapping[str, Any],
    *,
    gpu: str,
    gpus: int = 1,
    method: str = "full",
    rank: int | None = None,
    seq_len: int | None = None,
    micro_batch_size: int = 1,
    optimizer: str = "adam",
    framework: str = "transformers",
) -> FitCheck:
    """Find out whether the training of a model fits on cards of a kind, and which changes would make it fit.

    Parameters
    ----------
    model : str or mapping
        A catalog model, the path to a config.json, or its content.
    gpu : str
        The card: a catalog name, or the path of a GPU file.
    gpus : int
        Number of cards; on several cards the states are sharded (zero3).
    method : {"full", "lora", "qlora"}
        Training of all parameters, of low-rank adapters, or of adapters on a model in 4-bit NF4.
    rank : int, optional
        Rank of the adapters; 16 if omitted.
    seq_len : int, optional
        Sequence length [tokens]; 2048, or the model's learned positions if fewer, if omitted.
    micro_batch_size : int
        Sequences of a micro-batch on each card.
    optimizer, framework : str
        As the keys `training.optimizer` and `training.framework` of a scenario.

    Returns
    -------
    FitCheck
        `fits` and `margin` (reserved, free and missing memory [B]), `fewest_gpus`, `changes` that make the training
        fit, or `largest_micro_batch` and `longest_sequence`; `sentences` says all of it, `to_dict()` is plain data.

    Raises
    ------
    ScenarioError
        The question is invalid, or the card does not support such a training; one line for each fault.

    Warns
    -----
    ScenarioWarning
        A key has no effect.

    Examples
    --------
    >>> found = fit_check("llama3_8b", gpu="rtx_4090", method="qlora", seq_len=1024)
    >>> found.fits, found.margin.text
    (True, 'reserved memory 16.4 GiB, process 16.8 GiB, 7.21 GiB free')
    """
    return search.fit_check(
        FitQuestion(
            model=model,
            gpu=gpu,
            gpus=gpus,
            method=method,
            rank=rank,
            seq_len=sequence_length(seq_len, model),
            micro_batch=micro_batch_size,
            optimizer=optimizer,
            framework=framework,
        )
    )
