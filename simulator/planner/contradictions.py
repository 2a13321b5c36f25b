"""Which of the things that are asked of a plan cannot be together?

Rule: where no setting can be, whatever memory there is, what is fixed or left out is taken back, one after the other,
as long as none can be; what is left of it contradicts itself. Nothing is played.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from simulator.basics.errors import ScenarioError
from simulator.planner.asked import Question, Said
from simulator.planner.space import Choices, Refused, settings
from simulator.step.pipelines.schedule import SCHEDULES


def refuse_contradictions(question: Question) -> None:
    """Raise ScenarioError for what has no effect beside something else that is asked, and for what cannot be beside it.

    Where nothing can be whatever is chosen, the search itself says why.
    """
    choices = question.choices()
    for one, why in _without_effect(choices, {one.name: one for one in question.said}):
        raise ScenarioError(f"{one.where}: has no effect, for {why}")
    if not _can_be(question, Refused()):
        parts = _contradicting(question)
        if parts:
            refused = Refused()
            _can_be(_of_parts(question, parts), refused)
            together = "contradict each other" if len(parts) > 1 else "cannot be"
            size = f"{question.base.cluster.world_size:,} GPUs and {question.sequences:,} sequences a step"
            message = f"{together} with {size}: {refused.usual_example}"
            raise ScenarioError(f"{', '.join(one.where for one in parts)}: {message}")


def _without_effect(choices: Choices, said: dict[str, Said]) -> Iterator[tuple[Said, str]]:
    """What is said of pipelines where none has it, and why not."""
    values = choices.values
    piped = max(values["pp"]) > 1
    no_pipeline = f"{said['pp'].where} leaves no pipeline" if "pp" in said else "there can be no pipeline"
    if "schedule" in said and not piped:
        yield said["schedule"], no_pipeline
    if "virtual_stages" not in said or values["virtual_stages"] == (1,):
        return
    if not piped:
        yield said["virtual_stages"], no_pipeline
    if all(SCHEDULES.find(str(name)).chunks is not None for name in values["schedule"]):
        names = ", ".join(map(str, values["schedule"]))
        yield said["virtual_stages"], f"of the schedules that are left ({names}) each has its own number of them"


def _contradicting(question: Question) -> Sequence[Said]:
    """The parts of what is asked of which none can be taken back; empty where nothing can be without all of them."""
    needed, before = [*question.said, *question.without], -1
    while len(needed) != before:  # what leaves a value out is taken back before what adds that value
        before = len(needed)
        for one in [*needed]:
            fewer = [other for other in needed if other is not one]
            try:
                there = _can_be(_of_parts(question, fewer), Refused())
            except ScenarioError:
                there = True
            needed = needed if there else fewer
    return needed


def _of_parts(question: Question, parts: Sequence[Said]) -> Question:
    """The question if no more than this were asked."""
    said, without = (tuple(one for one in whole if one in parts) for whole in (question.said, question.without))
    return replace(question, said=said, without=without)


def _can_be(question: Question, refused: Refused) -> bool:
    """Whether any setting can be."""
    return next(settings(question.choices(), question.base, question.sequences, refused), None) is not None
