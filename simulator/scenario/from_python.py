"""How is a scenario made in Python, with names that an editor completes and a type checker knows?

Rule: what is given is checked as a file is. Keys of the scenario, of its cluster and of what it plays stand side by
side, for none of them share a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from simulator.scenario.load import load_scenario
from simulator.scenario.records import KINDS, Scenario, fields
from simulator.scenario.typed_keys import CollectiveKeys, TrainingKeys


def collective_scenario(**keys: Unpack[CollectiveKeys]) -> Scenario:
    """Make a scenario of one collective operation.

    Parameters
    ----------
    **keys
        The keys of a scenario file, of `cluster` and of `collective`, written as there: `topology`, `world_size`
        [ranks] and `operation` must be given, and `size` ("256 MiB") or `tensors`; `CollectiveKeys` lists all others.
        Without `name` it is called "collective".

    Returns
    -------
    Scenario

    Raises
    ------
    ScenarioError
        One line for each fault, as `load_scenario`.

    Examples
    --------
    >>> scenario = collective_scenario(topology="star_100g", world_size=8, operation="all_reduce", size="1 MiB")
    >>> scenario.collective.size, scenario.collective.algorithm
    (1048576, 'auto')
    """
    return _scenario("collective", keys)


def training_scenario(**keys: Unpack[TrainingKeys]) -> Scenario:
    """Make a scenario of one training step.

    Parameters
    ----------
    **keys
        The keys of a scenario file, of `cluster` and of `training`, written as there: `topology`, `world_size` [ranks],
        `model` and `seq_len` [tokens] must be given; all others are listed in `TrainingKeys`. Without `name` it is
        called "training".

    Returns
    -------
    Scenario

    Raises
    ------
    ScenarioError
        One line for each fault, as `load_scenario`.

    Examples
    --------
    >>> scenario = training_scenario(
    ...     topology="dgx_h100", world_size=16, model="llama3_8b", seq_len="8k",
    ...     parallelism={"tp": 8}, sharding="zero3", compare={"training.micro_batch_size": [1, 2]},
    ... )
    >>> scenario.training.seq_len, scenario.training.parallelism.tp, scenario.compare
    (8192, 8, {'training.micro_batch_size': (1, 2)})
    """
    return _scenario("training", keys)


def _scenario(kind: str, keys: Mapping[str, Any]) -> Scenario:
    """Put the keys into the mappings in which a file has them; a key of none of them is refused among the kind's."""
    data: dict[str, Any] = {"name": kind, "cluster": {}, kind: {}}
    for key, value in keys.items():
        if key in fields(("cluster",)):
            data["cluster"][key] = value
        elif key in fields(()) and key not in ("cluster", *KINDS):
            data[key] = value
        else:
            data[kind][key] = value
    return load_scenario(data)
