"""How is a scenario made in Python, with key names known to editors and type checkers?

`collective_scenario` and `training_scenario` take keyword arguments, checked like a file. Keys of the scenario, its
cluster and its job are given side by side, because no two of these keys share a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from simulator.scenario.load import load_scenario
from simulator.scenario.records import KINDS, Scenario, fields
from simulator.scenario.typed_keys import CollectiveKeys, TrainingKeys


def collective_scenario(**keys: Unpack[CollectiveKeys]) -> Scenario:
    """Build a scenario with a single collective operation.

    Parameters
    ----------
    **keys
        Keys of a scenario file, of `cluster` and of `collective`, written like in a file. Required: `topology`,
        `world_size` [ranks], `operation`, and `size` ("256 MiB") or `tensors`. `CollectiveKeys` lists further keys. The
        default for `name` is "collective".

    Raises
    ------
    ScenarioError
        A line for each fault, as in `load_scenario`.

    Examples
    --------
    >>> scenario = collective_scenario(topology="star_100g", world_size=8, operation="all_reduce", size="1 MiB")
    >>> scenario.collective.size, scenario.collective.algorithm
    (1048576, 'auto')
    """
    return _scenario("collective", keys)


def training_scenario(**keys: Unpack[TrainingKeys]) -> Scenario:
    """Build a scenario with a single training step.

    Parameters
    ----------
    **keys
        Keys of a scenario file, of `cluster` and of `training`, written like in a file. Required: `topology`,
        `world_size` [ranks], `model` and `seq_len` [tokens]. `TrainingKeys` lists further keys. The default for `name`
        is "training".

    Raises
    ------
    ScenarioError
        A line for each fault, as in `load_scenario`.

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
    """Return a scenario from keyword arguments; unknown keys go to the kind's mapping, and are refused there."""
    # `cluster` and the kind are present even without keys: their own faults then name the missing keys.
    data: dict[str, Any] = {"name": kind, "cluster": {}, kind: {}}
    for key, value in keys.items():
        # The order decides nothing, because the mappings share no key.
        if key in fields(("cluster",)):
            data["cluster"][key] = value
        elif key in fields(()) and key not in ("cluster", *KINDS):
            data[key] = value
        else:
            data[kind][key] = value
    return load_scenario(data)
