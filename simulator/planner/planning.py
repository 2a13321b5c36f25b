"""`simulator.plan`: the fastest layouts of a training, asked for from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.planner.asked import Said, base_scenario, choices_of, sequences_of
from simulator.planner.search import BEST, Plan, search
from simulator.sweeps.sweep import Backend


def plan(
    model: str | Mapping[str, Any],
    *,
    topology: str | Mapping[str, Any],
    gpus: int,
    seq_len: int,
    global_batch: str | int,
    fix: Mapping[str, Any] | None = None,
    among: Mapping[str, Sequence[Any]] | None = None,
    without: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    best: int = BEST,
    jobs: int | None = None,
    scheduler: str | None = None,
    cache: Path | str | None = None,
) -> Plan:
    """Find the fastest layouts of a training on so many GPUs.

    Parameters
    ----------
    model : str or mapping
        A catalog's name, the path of a config.json, or its content.
    topology : str or mapping
    gpus, seq_len : int
        Ranks; tokens of a sequence.
    global_batch : str or int
        Of a step: tokens (`"4M"`, 4194304) or sequences (`"512seq"`).
    fix, among : mapping, optional
        By name what is chosen already, or the values to choose among: {"tp": 8}, {"pp": [1, 2, 4]}.
    without : sequence of str
        Values to leave out: "zero3", "offload".
    settings : mapping, optional
        Other keys of the scenario: {"training.framework": "nemo"}.
    best : int
        How many are wanted.
    jobs : int, optional
        Processes of this machine; all is played in this one if it is left out.
    scheduler : str, optional
        "tcp://HOST:PORT" of a Dask cluster that plays instead.
    cache : path, optional
        Folder in which outcomes are kept, and looked up before they are played.

    Returns
    -------
    Plan
        `best` are records, `frame()` is a pandas table of them.

    Raises
    ------
    ScenarioError
        What is asked for cannot be, or contradicts itself.

    Examples
    --------
    >>> found = plan("gpt2", topology="dgx_a100", gpus=8, seq_len=1024, global_batch="64seq",
    ...              fix={"pp": 1, "checkpointing": "none"}, among={"sharding": ["zero1", "zero3"]}, best=1)
    >>> found.best[0].setting.sharding
    'zero3'
    """
    base = base_scenario(model, {"topology": topology, "world_size": gpus}, seq_len, settings or {})
    sequences = sequences_of(global_batch, seq_len, "global_batch")
    said = [Said(f"fix {name}={value}", name, [value]) for name, value in (fix or {}).items()]
    said += [Said(f"among {name}={list(values)}", name, values) for name, values in (among or {}).items()]
    choices = choices_of(base, sequences, said, [Said(f"without {value}", "", [value]) for value in without])
    backend = Backend(jobs, scheduler, None if cache is None else Path(cache))
    *_, found = search(base, sequences, choices, best=best, backend=backend)
    return found
