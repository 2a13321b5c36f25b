"""A stopped search: its answer is the fastest setting so far, and undecided settings are not called slower."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from simulator.basics.units import format_time
from simulator.cli.plan_output import progress_text
from simulator.planner.plan_question import PlanQuestion, plan_question
from simulator.planner.plan_report import document, not_listed, reasons, sentences
from simulator.planner.search import SearchResult, _ahead, search
from simulator.results.page.plan_page import plan_page
from simulator.scenario.load import load_scenario
from simulator.sweeps.sweep import Backend

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
    with closing(search(asked.base, asked.sequences, asked.choices(), best=asked.plan.best, backend=jobs)) as found:
        return next(result for result in found if len(result.played) == 3)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.one_of(2)
def test_each_setting_is_counted_once_while_simulations_run(jobs: int) -> None:
    """With two processes, three more settings are submitted ahead; these count as not examined."""
    found = stopped(jobs)
    counts = reasons(found)
    assert SLOWER not in counts
    assert counts["not examined yet"] == found.pending > 0
    assert sum(counts.values()) + len(found.played) == found.considered


def test_every_process_has_a_setting_while_the_next_is_chosen() -> None:
    """A process at work for each job, and a setting that waits; one process alone chooses by every outcome."""
    assert [_ahead(Backend(jobs)) for jobs in (1, 2, 4, 16)] == [0, 3, 5, 17]


def test_a_complete_search_leaves_nothing_pending() -> None:
    asked = question()
    *_, found = search(asked.base, asked.sequences, asked.choices(), best=asked.plan.best)
    counts = reasons(found)
    assert (found.pending, "not examined yet" in counts) == (0, False)
    assert counts[SLOWER] == found.slower > 0
    assert sentences(found)[0].startswith(f"The fastest setting is {found.best[0].setting.text}: ")


def test_simulated_settings_outside_the_list_are_counted_by_reason() -> None:
    """Three settings are simulated, of which two are listed. Each report says whether its setting fits."""
    found = stopped(1)
    slower = "1 of 3 simulated settings is not in this list: 1 is slower than the 2 listed settings."
    assert (len(found.best), not_listed(found)) == (2, slower)
    assert document(found)["not_listed"] == slower
    assert f"<caption>{slower}</caption>" in plan_page(document(found), "Which?", "")
    fourth = replace(found.played[0], report={**found.played[0].report, "fits": False})
    both = replace(found, played=(*found.played, fourth))
    assert not_listed(both) == (
        "2 of 4 simulated settings are not in this list: 1 does not fit into memory, 1 is slower than the 2 listed "
        "settings."
    )
    assert not not_listed(replace(found, played=found.best))


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.one_of(2)
def test_places_called_certain_are_the_places_of_the_complete_search(jobs: int) -> None:
    asked = question()
    *partial, ended = search(asked.base, asked.sequences, asked.choices(), best=20, backend=jobs)
    for found in partial:
        assert [one.setting for one in found.best[: found.certain]] == [
            one.setting for one in ended.best[: found.certain]
        ]
        # A setting that is left has a bound up to the slowest of the best settings, or up to infinity without them.
        assert found.left <= found.pending
    # Bounds rise, hence a certain place stays certain. The first places are certain before the twentieth is found.
    assert [found.certain for found in partial] == sorted(found.certain for found in partial)
    assert any(found.certain and len(found.best) < 20 for found in partial)
    assert (ended.certain, ended.left) == (len(ended.best), 0)


def test_a_progress_line_tells_the_certain_place_and_the_time_left() -> None:
    """3 simulations took 60 s, 20 s each: a missing place takes at least one, each setting that is left at most one."""
    found = replace(stopped(1), certain=1, left=7, considered=1234, do_not_fit=5)
    assert len(found.best) == 2
    lead = f"best {format_time(found.best[0].step_time)}"
    sure = f"{lead}, first place certain, the next places are still searched"
    assert progress_text(found, 60.0, 4) == f"3 simulated, 5 do not fit, 7 of 1,234 left (at least 40 seconds); {sure}"
    assert progress_text(found, 60.0, 2) == f"3 simulated, 5 do not fit, 7 of 1,234 left (at most 2.3 minutes); {sure}"
    none_fits = replace(found, best=(), certain=0)
    line = "3 simulated, 5 do not fit, 7 of 1,234 left (at least 20 seconds); no setting fits yet"
    assert progress_text(none_fits, 60.0, 1) == line


def test_the_answer_begins_with_the_stop_in_the_terminal_in_json_and_on_the_page() -> None:
    found = stopped(1)
    start = f"Search stopped after 3 simulated settings. Fastest so far: {found.best[0].setting.text}: "
    certain = sentences(replace(found, certain=1))[0]
    found = replace(found, certain=0)
    lead = "Search stopped after 3 simulated settings, the first place is certain. The fastest setting is "
    assert certain.startswith(f"{lead}{found.best[0].setting.text}: ")
    told = document(found)
    assert sentences(found)[0].startswith(start)
    assert told["sentences"] == sentences(found)
    assert next(iter(told)) == "sentences"
    assert (told["ended"], told["reasons"]) == (False, reasons(found))
    page = plan_page(told, "Which?", "")
    assert f'<p class="answer">{start}' in page
    assert "lower bound is slower" not in page
    assert "lower bounds above the slowest" not in page
