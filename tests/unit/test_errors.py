"""Errors: one line, an exit code, facts as attributes, and they pickle."""

from __future__ import annotations

import pickle

import pytest

from simulator.basics import errors
from simulator.basics.errors import (
    DeadlockError,
    NoRouteError,
    OutOfMemoryError,
    ScenarioError,
    ScheduleError,
    SimulationError,
    SimulatorError,
    TooLargeError,
    UnknownNameError,
    one_of,
)

EXAMPLES = [
    ScenarioError("x.yaml: collective.size: got 3"),
    UnknownNameError("algorithm", "rng", ["tree", "ring"]),
    ScheduleError("ring all_reduce: rank 3, chunk 1: ends with ranks 0, wanted ranks 0, 1"),
    SimulationError("the run cannot go on"),
    OutOfMemoryError(3, 0.182, 84 * 2**30, 80 * 2**30, (("activations", 51 * 2**30),)),
    DeadlockError(1.5, {"rank 0 (communication)": "'A', which rank 1 has not reached"}),
    NoRouteError("gpu0", "gpu1", "islands"),
    TooLargeError("cluster.world_size: 1,000,000 ranks would take about 48 GiB, this machine has 24 GiB"),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_an_error_survives_pickling_with_its_facts(error: SimulatorError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__
    assert again.args == error.args


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: type(e).__name__)
def test_an_error_is_one_line_with_an_exit_code(error: SimulatorError) -> None:
    assert "\n" not in str(error)
    assert error.exit_code == (2 if isinstance(error, ScenarioError | TooLargeError) else 1)


def test_every_error_is_below_simulator_error_and_a_wrong_file_is_a_value_error() -> None:
    raised = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    found = [e for e in raised if not issubclass(e, Warning)]
    assert len(found) == 10
    assert all(issubclass(e, SimulatorError) for e in found)
    assert issubclass(ScenarioError, ValueError)
    assert not issubclass(SimulationError, ValueError)


def test_messages_say_what_was_got_and_what_is_allowed() -> None:
    assert str(EXAMPLES[1]) == "algorithm: got 'rng'; one of ring, tree; did you mean 'ring'?"
    assert str(EXAMPLES[4]) == "rank 3 ran out of memory at 0.182 s: needs 84 GiB, has 80 GiB (activations 51 GiB)"
    assert str(EXAMPLES[5]) == ("deadlock at 1.5 s: rank 0 (communication) waits for 'A', which rank 1 has not reached")
    assert str(EXAMPLES[6]).startswith("no route from gpu0 to gpu1 in topology 'islands'")


def test_a_deadlock_of_many_names_eight_and_counts_the_rest() -> None:
    error = DeadlockError(0.0, {f"rank {r}": "'A'" for r in range(20)})
    assert str(error).count("waits for") == 8
    assert str(error).endswith("; and 12 more")
    assert len(error.waiting) == 20


def test_names_far_from_all_others_get_no_hint() -> None:
    assert one_of(["ring", "tree"], "zzz") == "one of ring, tree"
    assert "did you mean 'ring'?" in one_of(["ring", "tree"], "Ring")
    assert one_of([f"n{i:02d}" for i in range(20)], "zzz").endswith("n11, ...")


def test_a_part_of_a_name_means_the_names_that_contain_it() -> None:
    machines = ["aws_p4d", "aws_p5", "dgx_a100", "dgx_h100", "h100_ethernet_100g"]
    assert one_of(machines, "p5").endswith("; did you mean 'aws_p5'?")
    assert one_of(machines, "a100").endswith("; did you mean 'dgx_a100'?")
    assert one_of(machines, "ethernet").endswith("; did you mean 'h100_ethernet_100g'?")
    assert one_of(machines, "net").endswith("; did you mean 'h100_ethernet_100g'?")
    # Two letters are a part of too many names.
    assert "did you mean" not in one_of(machines, "gx")
    assert one_of(["double_binary_tree", "multi_ring", "wide_ring"], "ring").endswith(
        "; did you mean 'multi_ring' or 'wide_ring'?"
    )


def test_of_many_names_the_closest_three_are_proposed_with_the_command_that_lists_all() -> None:
    names = ["llama2_7b", "llama2_13b", "llama2_70b", "llama3_8b", "llama3_70b", "gpt2", "mistral_7b"]
    listed = "`simulator list models` lists all"
    # Similarity 2 M / T of SequenceMatcher, with M equal letters of T: "llama3_9b" has 2 * 8 / 18 = 0.89 in common with
    # llama3_8b, 2 * 8 / 19 = 0.84 with llama3_70b, and 2 * 7 / 18 = 0.78 with llama2_7b, which is more than 0.05 less.
    assert one_of(names, "llama3_9b", "simulator list models") == (
        f"did you mean 'llama3_8b' or 'llama3_70b'? {listed}"
    )
    assert one_of(names, "zzz", "simulator list models") == listed
    # Six names fit into the line.
    assert one_of(names[:6], "zzz", "simulator list models") == "one of " + ", ".join(sorted(names[:6]))


def test_a_list_hides_no_single_name() -> None:
    names = [f"n{number:02}" for number in range(14)]
    assert one_of(names[:13], "x") == "one of " + ", ".join(names[:13])
    assert one_of(names, "x") == "one of " + ", ".join(names[:12]) + ", ..."
