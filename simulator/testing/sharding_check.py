"""Does a sharding strategy keep the laws of strategies? A small model on four ranks, with each of its options."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from simulator.basics.foreign_code import located
from simulator.step.strategies.strategy import STRATEGIES
from simulator.testing import sharding_laws as laws
from simulator.testing.law import PartCheck, judged

_ByOptions = Callable[[str, Mapping[str, Any]], bool | None]
_WITH_OPTIONS: Final[dict[str, _ByOptions]] = {
    "losses and parameters of ddp": laws.learns_what_ddp_learns,
    "losses and parameters of ddp beside a slow rank": lambda name, options: laws.learns_what_ddp_learns(
        name, options, laws.SLOW
    ),
    "elements on the wire": lambda name, options: laws.sends_its_volume(name, options, 1),
    "elements on the wire with 3 micro-batches": lambda name, options: laws.sends_its_volume(name, options, 3),
    "memory returns to the states": laws.returns_to_its_states,
    "kernels of ddp": laws.runs_the_kernels_of_ddp,
    "the same time in both engines": laws.is_simulated,
}
_PREFETCHED: Final = (0, 1, 2)


def check_sharding(strategy: str | Path) -> PartCheck:
    """Check a sharding strategy: losses and parameters, elements sent, memory, kernels, gathers, both engines.

    `strategy` is the path of a file with a STRATEGY, or a shipped name. Raises ScenarioError if the file declares no
    strategy.

    >>> check_sharding("zero1").holds
    True
    """
    name, path = str(strategy), located(str(strategy))
    # Loaded first: an error of the file is no broken law.
    STRATEGIES.find(path)
    results = (
        judged("", "states of the updater", [("", partial(laws.declares_states_of_its_updater, path))]),
        *(judged("", law, _cases(check, path)) for law, check in _WITH_OPTIONS.items()),
        judged("", "micro-batches with gradients", [("", partial(laws.sends_gradients_as_declared, path))]),
        judged(
            "", "layers gathered ahead", ((f"prefetch {n}", partial(laws.gathers_ahead, path, n)) for n in _PREFETCHED)
        ),
    )
    return PartCheck(name, "sharding strategies", results, f"{laws.RANKS} ranks")


def _cases(check: _ByOptions, path: str) -> Iterator[tuple[str, Callable[[], bool | None]]]:
    """Yield each setting of a strategy's options in words, with the check of the setting."""
    for options in laws.settings_of(path):
        words = ", ".join(f"{option} {value}" for option, value in options.items())
        yield words or "the default options", partial(check, path, options)
