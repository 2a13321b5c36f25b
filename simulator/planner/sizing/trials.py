"""Simulates a question's training after changes of its scenario.

A lower bound on memory (milliseconds) excludes trainings that cannot fit, before a step is simulated.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.basics.errors import ScenarioError, TooLargeError
from simulator.cluster.cluster import Cluster
from simulator.planner.sizing.fit_question import FitQuestion, Keys
from simulator.records.memory_margin import MemoryMargin, margin_of
from simulator.run.memory_need import checked_need, least_need
from simulator.run.scenario_cluster import Clusters
from simulator.run.simulate import simulate_point
from simulator.scenario.build_training import to_step
from simulator.step.spec import TrainingStep


@dataclass(frozen=True, slots=True)
class Trial:
    """A simulated step: its reserved memory, and its speed."""

    margin: MemoryMargin
    tokens_per_s_per_gpu: float


class Trials:
    """Trainings that differ from a question by keys of the scenario; clusters are built once."""

    def __init__(self, question: FitQuestion) -> None:
        self._question = question
        self._clusters = Clusters()

    def simulated(self, keys: Keys) -> Trial:
        """Return the simulated step, without a limit on memory.

        Raises
        ------
        ScenarioError
            There is no such training.
        """
        scenario = self._question.scenario(keys)
        report = simulate_point(scenario, limit_memory=False, keep=(0,), clusters=self._clusters).report.to_dict()
        return Trial(margin_of(report), report["tokens_per_s_per_gpu"])

    def exists(self, keys: Keys) -> bool:
        """Return True if there is such a training: cards in the machine, positions of the model, shards of a state."""
        return self._step(keys) is not None

    def may_fit(self, keys: Keys) -> bool:
        """Return True if there is such a training, and its lower bound on memory is at most the card's memory."""
        step = self._step(keys)
        return step is not None and _may_fit(*step)

    def fits(self, keys: Keys) -> bool:
        """Return True if there is such a training, and it fits."""
        step = self._step(keys)
        return step is not None and _may_fit(*step) and checked_need(*step).fits

    def _step(self, keys: Keys) -> tuple[Cluster, TrainingStep] | None:
        """Return the machine and the step; None if there is no such training."""
        try:
            scenario = self._question.scenario(keys)
            if scenario.training is None:
                raise TypeError("the scenario of a training has a training step")
            step = to_step(scenario.training, scenario.cluster.world_size, scenario.base)
            return self._clusters.of(scenario), step
        except (ScenarioError, TooLargeError, ValueError):
            return None


def _may_fit(cluster: Cluster, step: TrainingStep) -> bool:
    return least_need(cluster, step) <= cluster.gpus[0].hbm_bytes
