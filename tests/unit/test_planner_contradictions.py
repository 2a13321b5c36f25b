"""What cannot be asked together is told: no more than contradicts itself, and nothing that could be."""

from __future__ import annotations

import random
from itertools import combinations
from typing import Any

import pytest

from simulator.basics.errors import ScenarioError
from simulator.planner.contradictions import refuse_contradictions
from simulator.planner.plan_question import Constraint, PlanQuestion, shared_scenario
from simulator.planner.setting import PlanSetting
from simulator.planner.space import InfeasibleCounts, settings
from simulator.scenario.plan_spec import PlanSpec

MODEL = {"model_type": "gpt2", "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 256, "vocab_size": 512}
POOL: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2, 3, 8), "pp": (1, 2, 4, 8), "cp": (1, 2, 16), "ep": (1, 2), "micro_batch": (1, 4, 6, 16),
    "sharding": ("ddp", "zero3"), "shard_size": (2, 3, 8), "checkpointing": ("none", "full"),
    "schedule": ("1f1b", "interleaved", "zb_v"), "virtual_stages": (2, 5),
}  # fmt: skip

BATCH = PlanSpec(global_batch="16seq")


def asked(draw: random.Random) -> PlanQuestion:
    names = draw.sample(sorted(POOL), draw.randint(1, 5))
    said = tuple(
        Constraint(f"--fix {name}={value}", name, [value]) for name in names for value in [draw.choice(POOL[name])]
    )
    base = shared_scenario(MODEL, {"topology": "dgx_a100", "world_size": 8}, 256, {})
    return PlanQuestion(base, BATCH, said)


def there(question: PlanQuestion, said: tuple[Constraint, ...]) -> list[PlanSetting]:
    """What can be if no more than this were asked."""
    less = PlanQuestion(question.base, question.plan, said)
    return [setting for setting, _ in settings(less.choices(), less.base, less.sequences, InfeasibleCounts())]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.one_of(3)
def test_those_that_are_told_contradict_each_other_and_all_of_them_are_needed(seed: int) -> None:
    question = asked(random.Random(seed))
    try:
        refuse_contradictions(question)
    except ScenarioError as error:
        where, _, why = str(error).partition(": ")
        told = tuple(one for one in question.said if one.where in where.split(", "))
        if why.startswith("has no effect"):
            (idle,) = told
            less = {*there(question, tuple(one for one in question.said if one is not idle))}
            assert {*there(question, question.said)} <= less
            return
        assert not there(question, told)
        assert all(there(question, some) for some in combinations(told, len(told) - 1))
        assert ("contradict each other" in why) is (len(told) > 1)
    else:
        assert there(question, question.said)


def test_both_sorts_are_among_the_drawn() -> None:
    """Otherwise the test above would say little."""
    possible = [bool(there(question, question.said)) for question in (asked(random.Random(seed)) for seed in range(40))]
    assert 5 < sum(possible) < 35


@pytest.mark.parametrize(
    ("name", "value", "others"),
    [("tp", 5, ()), ("pp", 3, (("tp", 2),)), ("cp", 16, ()), ("tp", 8, (("checkpointing", "none"),))],
)
def test_an_impossible_constraint_names_the_possible_values(
    name: str, value: int, others: tuple[tuple[str, Any], ...]
) -> None:
    """The named values are the numbers from 1 to 8 GPUs for which a setting exists beside the other constraints."""
    base = shared_scenario(MODEL, {"topology": "dgx_a100", "world_size": 8}, 256, {})
    kept = tuple(Constraint(f"--fix {key}={own}", key, [own]) for key, own in others)

    def of(number: int) -> tuple[Constraint, ...]:
        return (Constraint(f"--fix {name}={number}", name, [number]), *kept)

    question = PlanQuestion(base, BATCH, of(value))
    with pytest.raises(ScenarioError) as caught:
        refuse_contradictions(question)
    possible = [number for number in range(1, 9) if there(question, of(number))]
    assert possible
    where, _, why = str(caught.value).partition(": ")
    assert where == f"--fix {name}={value}"
    assert why.endswith(f"; possible values of {name}: {', '.join(map(str, possible))}")


def test_an_impossible_constraint_is_reported_also_if_no_ranks_can_share_the_global_batch() -> None:
    """On 12 GPUs, dp = 12 / (tp x pp) is a multiple of 3 for powers of two; 3 does not divide 16 sequences. The values
    of tp divide 12 GPUs and 4 heads: 1, 2, 4.
    """
    base = shared_scenario(MODEL, {"topology": "dgx_a100", "world_size": 12}, 256, {})
    question = PlanQuestion(base, BATCH, (Constraint("--fix tp=5", "tp", [5]),))
    assert not there(question, ())
    possible = ", ".join(str(tp) for tp in range(1, 13) if 12 % tp == 0 and 4 % tp == 0)
    with pytest.raises(ScenarioError, match=f"is impossible with 12 GPUs: .*; possible values of tp: {possible}$"):
        refuse_contradictions(question)
    # A possible value is no contradiction: the search counts the settings whose ranks cannot share the batch.
    refuse_contradictions(PlanQuestion(base, BATCH, (Constraint("--fix tp=4", "tp", [4]),)))
