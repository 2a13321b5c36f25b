"""Is each kernel constant needed? An ablation: remove each constant, and refit the constants fitted together with it.

Errors of the matmul table come from its own rows. Errors of training rows come from the linear system of their fit.
Rows are simulated again only without `communication_sms`, because only a simulation shows its effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from simulator.calibration.kernels import DTYPES, FitErrors, fit, measured, misfit
from simulator.calibration.kernels import NEUTRAL as KERNELS
from simulator.calibration.training_runs.fitting import fit as fit_rows
from simulator.calibration.training_runs.fitting import kernel_time, linear
from simulator.calibration.training_runs.playing import PlayedRow, play_rows
from simulator.calibration.training_runs.rows import BEST_MATMUL, Changes, cluster_of
from simulator.calibration.training_runs.summary import Errors, errors, is_fitted
from simulator.cluster.gpu_file import load_gpu
from simulator.step.framework import Framework
from simulator.step.kernels.kernel_model import REFERENCE, KernelModel, kernel_model

# Constants not determined by the matmul table, each with its value without effect.
_OTHERS: Final[Mapping[str, float]] = {BEST_MATMUL: 1.0, "hbm_efficiency": 1.0, "attention_2": 1.0}
_BESIDE: Final = "communication_sms"
# Rounds of the search: a few seconds, enough to see whether a constant matters.
_ROUNDS: Final = 25


@dataclass(frozen=True, slots=True)
class AblationErrors:
    """Errors of simulated times without a kernel constant, for the matmul table by dtype and for training rows."""

    name: str
    tables: Mapping[str, FitErrors]
    rows: Errors


def without_kernel_constants(
    outcomes: Sequence[PlayedRow], framework: Framework, jobs: int = 2
) -> Iterator[AblationErrors]:
    """Yield the errors of simulated times with every kernel constant, then without each constant."""
    played = [outcome for outcome in outcomes if is_fitted(outcome.row)]
    yield _without("all constants", {}, played, framework)
    for name, neutral in (*KERNELS.items(), *_OTHERS.items()):
        yield _without(f"without {name}", {name: neutral}, played, framework)
    alone = play_rows([o.row for o in played], {framework.name: framework}, jobs, changes=((_BESIDE, 0.0),))
    yield AblationErrors(f"without {_BESIDE}", _tables(_model({})), _errors(_BESIDE, alone, framework, ()))


def _without(
    name: str, removed: Mapping[str, float], played: Sequence[PlayedRow], framework: Framework
) -> AblationErrors:
    model = _model(removed)
    refitted: dict[str, float] = {}
    # Attention's share does not enter the matmul table, and nothing needs refitting.
    if removed and "attention_2" not in removed:
        fixed = {key: value for key, value in removed.items() if key in KERNELS}
        refitted = fit({dtype: measured(dtype) for dtype in DTYPES}, model, fixed=fixed, rounds=_ROUNDS)
    changes = tuple({**removed, **refitted}.items())
    # Moving each row by the change in kernel time avoids simulating it again.
    moved = [replace(o, step_time=o.step_time + _longer(o, framework, changes)) for o in played]
    return AblationErrors(name, _tables(model.changed(refitted)), _errors(name, moved, framework, changes))


def _model(removed: Mapping[str, float]) -> KernelModel:
    if not removed:
        return kernel_model(load_gpu(REFERENCE))
    return kernel_model(cluster_of(REFERENCE, 1, tuple(removed.items())).gpus[0])


def _tables(model: KernelModel) -> dict[str, FitErrors]:
    return {dtype: misfit(model.matmul(dtype), measured(dtype)) for dtype in DTYPES}


def _longer(outcome: PlayedRow, framework: Framework, changes: Changes) -> float:
    """Return the additional kernel time of a row's step under changed GPU constants [s]."""
    return kernel_time(outcome.row, framework, changes) - kernel_time(outcome.row, framework)


def _errors(name: str, played: Sequence[PlayedRow], framework: Framework, changes: Changes) -> Errors:
    system = linear(played, framework, changes=changes)
    return errors(name, system.errors(fit_rows(system)))
