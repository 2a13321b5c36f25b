"""Does an optimizer keep the laws of optimizers? Its states, traffic and kernels, with three strategies."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from simulator.step.optimizers.optimizer import OPTIMIZERS
from simulator.step.precision import MIXED
from simulator.testing import optimizer_laws as laws
from simulator.testing.law import LawResult, PartCheck, judged


def check_optimizer(optimizer: str | Path) -> PartCheck:
    """Check an optimizer: its states against its kernels, its memory, the traffic and the time of its update.

    `optimizer` is the path of a file with an OPTIMIZER, or a shipped name. Raises ScenarioError if the file declares no
    optimizer.

    >>> check_optimizer("lion").holds
    True
    """
    record = OPTIMIZERS.find(str(optimizer))
    each, kernels = record.states * record.state_itemsize, record.update
    traffic = (
        (f"{strategy}, {precision.params}", partial(laws.moves_its_arrays, record, strategy, precision, kernels))
        for strategy in laws.SHARDINGS
        for precision in (MIXED, laws.WHOLE)
    )
    results = (
        judged("", "states and accesses of its kernels", [("", partial(laws.counts_its_update, record, kernels))]),
        _of_shardings("memory of its states", lambda strategy: laws.holds_its_states(record, strategy, each)),
        _of_shardings("time of its traffic", lambda strategy: laws.takes_its_traffic(record, strategy, each)),
        judged("", "traffic of separate kernels", traffic),
        judged("", "launches of separate kernels", [("", partial(laws.differs_by_launches, record))]),
        judged("", "numbers of each shard", [("", partial(laws.updates_shards_alike, record))]),
        _of_shardings("the same time in both engines", lambda strategy: laws.is_simulated(record, strategy)),
    )
    return PartCheck(str(optimizer), "optimizers", results, f"{', '.join(laws.SHARDINGS)} on {laws.RANKS} ranks")


def _of_shardings(law: str, check: Callable[[str], bool | None]) -> LawResult:
    """Return the result of a law under each sharding strategy of the check."""
    return judged("", law, ((strategy, partial(check, strategy)) for strategy in laws.SHARDINGS))
