"""A stopped search: its answer is the fastest setting so far, and undecided settings are not called slower."""

from __future__ import annotations

from contextlib import closing

import pytest

from simulator.planner.plan_report import document, reasons, sentences
from simulator.planner.question import PlanQuestion, plan_question
from simulator.planner.search import SearchResult, search
from simulator.results.page.plan_page import plan_page
from simulator.scenario.load import load_scenario

SLOWER = "pruned: their lower bound is slower than the best settings"


def question() -> PlanQuestion:
    return plan_question(
        load_scenario(
            {
                "name": "stopped",
                "cluster": {"topology": "dgx_a100", "world_size": 8},
                "training": {"model": "gpt2", "seq_len": 512},
                "plan": {"global_batch": "16seq", "best": 2, "among": {"checkpointing": ["none"]}},
            }
        )
    )


def stopped(jobs: int) -> SearchResult:
    """Return the search result after three simulated settings."""
    asked = question()
    with closing(search(asked.base, asked.sequences, asked.choices(), best=asked.best, backend=jobs)) as found:
        return next(result for result in found if len(result.played) == 3)


@pytest.mark.parametrize("jobs", [1, 2])
def test_each_setting_is_counted_once_while_simulations_run(jobs: int) -> None:
    """With two processes, three more settings are submitted ahead; these count as not examined."""
    found = stopped(jobs)
    counts = reasons(found)
    assert SLOWER not in counts
    assert counts["not examined yet"] == found.pending > 0
    assert sum(counts.values()) + len(found.played) == found.considered


def test_a_complete_search_leaves_nothing_pending() -> None:
    asked = question()
    *_, found = search(asked.base, asked.sequences, asked.choices(), best=asked.best)
    counts = reasons(found)
    assert (found.pending, "not examined yet" in counts) == (0, False)
    assert counts[SLOWER] == found.slower > 0
    assert sentences(found)[0].startswith(f"The fastest setting is {found.best[0].setting.text}: ")


def test_the_answer_begins_with_the_stop_in_the_terminal_in_json_and_on_the_page() -> None:
    found = stopped(1)
    start = f"Search stopped after 3 simulated settings. Fastest so far: {found.best[0].setting.text}: "
    told = document(found)
    assert sentences(found)[0].startswith(start)
    assert told["sentences"] == sentences(found)
    assert next(iter(told)) == "sentences"
    assert (told["ended"], told["reasons"]) == (False, reasons(found))
    page = plan_page(told, "Which?", "")
    assert f'<p class="answer">{start}' in page
    assert "lower bound is slower" not in page
    assert "lower bounds above the slowest" not in page
