"""`simulator.plan`: the fastest layouts of a training, asked for from Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from simulator.errors import ScenarioError
from simulator.planner.asked import Question, Said, base_scenario, batch_of, question_of
from simulator.planner.search import BEST, Plan, search
from simulator.scenario.load import load_scenario
from simulator.scenario.records import Scenario
from simulator.sweeps.sweep import Backend


def plan(
    model: str | Mapping[str, Any] | Scenario,
    *,
    topology: str | Mapping[str, Any] | None = None,
    gpus: int | None = None,
    seq_len: int | None = None,
    global_batch: str | int | None = None,
    fix: Mapping[str, Any] | None = None,
    among: Mapping[str, Sequence[Any]] | None = None,
    without: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    best: int | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    cache: Path | str | None = None,
) -> Plan:
    """Find the fastest layouts of a training on so many GPUs.

    Parameters
    ----------
    model : str, mapping or Scenario
        A catalog's name, the path of a config.json, or its content. Without `topology` a scenario that has `plan`: its
        name, path or content, or what `load_scenario` gives; then it says all that is asked for here.
    topology : str or mapping, optional
    gpus, seq_len : int, optional
        Ranks; tokens of a sequence.
    global_batch : str or int, optional
        Of a step: tokens (`"4M"`, 4194304) or sequences (`"512seq"`).
    fix, among : mapping, optional
        By name what is chosen already, or the values to choose among: {"tp": 8}, {"pp": [1, 2, 4]}.
    without : sequence of str
        Values to leave out: "zero3", "offload".
    settings : mapping, optional
        Other keys of the scenario: {"training.framework": "nemo"}.
    best : int, optional
        How many are wanted; ten if it is left out.
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
    given = {"topology": topology, "gpus": gpus, "seq_len": seq_len, "global_batch": global_batch}
    if topology is None or isinstance(model, Scenario):
        others = given | {"fix": fix, "among": among, "without": without or None, "settings": settings}
        question = _of_scenario(model, [name for name, value in others.items() if value is not None])
    elif gpus is None or seq_len is None or global_batch is None:
        missing = [name for name, value in given.items() if value is None]
        raise ScenarioError(f"plan: of a model needs {', '.join(missing)} too")
    else:
        base = base_scenario(model, {"topology": topology, "world_size": gpus}, seq_len, settings or {})
        said = [Said(f"fix {name}={value}", name, [value]) for name, value in (fix or {}).items()]
        said += [Said(f"among {name}={list(values)}", name, values) for name, values in (among or {}).items()]
        left_out = tuple(Said(f"without {value}", "", [value]) for value in without)
        question = Question(base, batch_of(global_batch, seq_len, "global_batch"), tuple(said), left_out, BEST)
    backend = Backend(jobs, scheduler, None if cache is None else Path(cache))
    *_, found = search(
        question.base, question.sequences, question.choices(), best=best or question.best, backend=backend
    )
    return found


def _of_scenario(source: str | Mapping[str, Any] | Scenario, others: Sequence[str]) -> Question:
    """What a scenario asks for, which says everything itself."""
    if others:
        raise ScenarioError(f"plan: {others[0]}: goes with a model and a topology; a scenario's `plan` says it itself")
    return question_of(source if isinstance(source, Scenario) else load_scenario(source))
