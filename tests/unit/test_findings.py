"""What findings say is what points, formulas and brute force say: changes, winners, crossings, thresholds, fronts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simulator
from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.basics.units import format_memory, format_time
from simulator.collectives.algorithm import ALGORITHMS
from simulator.findings.answer import Answer, answer
from simulator.findings.axis_search import WIDTH, sign_change
from simulator.findings.comparison import Comparison
from simulator.findings.crossovers import Axis
from simulator.findings.found import FINDING_KINDS, FindingResult
from simulator.findings.kinds.change import _ranges
from simulator.findings.kinds.learned import find as find_learned
from simulator.findings.kinds.threshold import _playable
from simulator.findings.pareto_front import pareto_front
from simulator.findings.text import bracket_text, bracketed
from simulator.findings.why import parts_of_step, why
from simulator.planner.setting import PlanSetting
from simulator.records.measures import find, interval_width, percent_text
from simulator.records.memory_margin import margin_of
from simulator.report.tables.table import points_tables
from simulator.results.budget_table import budget_table
from simulator.results.page.point_table import figures
from simulator.results.small_table import _best, small_tables
from simulator.run.outcome import PointOutcome
from simulator.scenario.answer_spec import FINDINGS, FindingSpec
from simulator.scenario.load import load_scenario, points
from simulator.sweeps.sweep import play_points

# One switch, 100 Gb/s a port, 10 us from port to port.
LATENCY, BANDWIDTH = 10e-6, 12.5e9
RING_OR_NAIVE: dict[str, Any] = {
    "name": "ring_or_naive",
    "cluster": {"topology": "star_100g", "world_size": 8},
    "collective": {"operation": "all_reduce", "size": "1 MiB", "payload": False},
    "compare": {"collective.algorithm": ["ring", "naive"]},
    "sweep": {"collective.size": ["64 KiB", "1 MiB"]},
    "plots": [],
}
# Launches of small models would take longer than their kernels.
AT_ONCE = {"cuda_graphs": "full_iteration"}
SHARDED: dict[str, Any] = {
    "name": "sharded",
    "cluster": {"topology": "dgx_a100", "world_size": 8},
    "training": {"model": "gpt2_medium", "seq_len": 512, "micro_batch_size": 2, "cuda_graphs": "full_iteration"},
    "compare": {"training.sharding": ["ddp", "zero1", "zero3"]},
    "plots": [],
}


def compared(data: dict[str, Any]) -> Comparison:
    scenario = load_scenario(data)
    return Comparison(scenario, list(play_points(list(enumerate(points(scenario))))))


def answered(data: dict[str, Any]) -> Answer:
    return answer(compared(data))


def reports(of: Comparison) -> list[Any]:
    return [row.report for row in of.rows]


def test_every_kind_that_a_scenario_may_ask_for_exists() -> None:
    assert set(FINDING_KINDS.names()) == set(FINDINGS)


@pytest.mark.parametrize("workers", [4, 8, 16, 64])
def test_a_crossing_is_where_the_closed_forms_are_equal(workers: int) -> None:
    """Ring: 2 (n-1) steps of latency and S / n; naive: twice latency and (n-1) S. Equal at 2 (n-2) latencies."""
    n = workers
    exact = (n - 2) * LATENCY * BANDWIDTH / ((n - 1) * (1 - 1 / n))
    told = answered(RING_OR_NAIVE | {"cluster": {"topology": "star_100g", "world_size": n}})
    (crossing,) = told.findings[0].numbers["crossings"]
    assert (crossing["before"], crossing["after"]) == (
        {"collective.algorithm": "naive"},
        {"collective.algorithm": "ring"},
    )
    assert crossing["from"] <= exact <= crossing["to"] <= (1 + WIDTH) * crossing["from"]
    assert crossing["at"] == pytest.approx(exact, rel=0.02)
    assert told.further > 0


def test_the_demo_crosses_at_120_kib_with_8_workers_between_two_simulated_sizes() -> None:
    """The closed forms are equal at 6 latencies x bandwidth / (7 x 7/8), which is 119.6 KiB."""
    exact = 6 * LATENCY * BANDWIDTH / (7 * 7 / 8) / 1024
    (told,) = (one for one in answered(RING_OR_NAIVE).sentences if one.startswith("Crossover"))
    pattern = (
        r"Crossover: ring beats naive above about 120 KiB \(between the simulated points (\d+) KiB and (\d+) KiB\)."
    )
    found = re.fullmatch(pattern, told)
    assert found is not None
    low, high = map(int, found.groups())
    assert low <= exact <= high <= 1.03 * low


def test_changes_are_those_of_the_reports() -> None:
    of = compared(SHARDED | {"answer": [{"finding": "change", "of": ["memory", "time"]}]})
    ddp, zero1, zero3 = reports(of)
    changes = answer(of).findings[0].numbers["changes"]
    for one, report in zip(changes, (ddp, zero1, zero3), strict=True):
        assert one["memory_change"] == pytest.approx(report["peak_memory_bytes"] / ddp["peak_memory_bytes"] - 1)
        assert one["time_change"] == pytest.approx(report["step_time_s"] / ddp["step_time_s"] - 1)


def test_a_baseline_that_is_named_stands_first() -> None:
    of = compared(SHARDED | {"baseline": {"training.sharding": "zero1"}, "answer": ["change"]})
    assert of.settings[0] == {"training.sharding": "zero1"}
    sentence = answer(of).sentences[0]
    assert re.search(r"\bddp takes \d+ % more time than zero1 \(.* ms instead of .* ms\)", sentence)
    # The winner has the first clause.
    assert sentence.startswith("zero3 takes ")


def test_winners_are_the_least_of_those_that_fit() -> None:
    of = compared(
        SHARDED
        | {"sweep": {"training.micro_batch_size": [1, 8]}, "cluster": {"topology": "star_100g", "world_size": 4}}
    )
    for place in answer(of).findings[0].numbers["places"]:
        rows = [row for row in of.rows if row.condition == place["condition"] and row.fits]
        least = min(rows, key=lambda row: row.report["step_time_s"])  # type: ignore[index]
        assert place["winner"] == least.setting
        for other in place["others"]:
            (row,) = (row for row in rows if row.setting == other["setting"])
            assert other["factor"] == pytest.approx(row.report["step_time_s"] / least.report["step_time_s"])  # type: ignore[index]


def test_what_does_not_fit_wins_nothing() -> None:
    large = SHARDED["training"] | {"model": "gpt2_xl", "seq_len": 1024, "micro_batch_size": 8}
    of = compared(SHARDED | {"training": large, "cluster": {"topology": "star_100g", "world_size": 4, "gpu": "l4"}})
    assert of.rows[0].fits is False
    told = answered(SHARDED | {"training": large, "cluster": {"topology": "star_100g", "world_size": 4, "gpu": "l4"},
                               "answer": ["fit"]})  # type: ignore[dict-item]  # fmt: skip
    report = of.rows[0].report or {}
    process = report["peak_reserved_bytes"] + report["context_bytes"] + report["nccl_bytes"]
    assert told.sentences[0].startswith("No setting fits in 22.5 GiB; the closest setting is zero3 (reserved memory ")
    # The smallest need comes first; ddp needs the most.
    assert told.sentences[1].endswith(
        f"; ddp does not fit in 22.5 GiB (reserved memory {format_memory(report['peak_reserved_bytes'])}, process "
        f"{format_memory(process)}, {format_memory(process - report['capacity_bytes'])} missing)."
    )


def test_a_threshold_is_where_the_margin_is_crossed() -> None:
    asked = {"finding": "threshold", "along": "training.seq_len", "of": ["memory"], "margin": 0.05}
    data = SHARDED | {
        "compare": {"training.attention": ["flash", "standard"]},
        "sweep": {"training.seq_len": [64, 1024]},
        "answer": [asked],
    }
    of = compared(data)
    (found,) = answer(of).findings
    (told,) = found.numbers["places"]
    (place,) = told["places"]
    assert place["worse_from_here"] is True

    def more(tokens: int) -> float:
        held = [
            of.known({"training.attention": way, "training.seq_len": tokens})["peak_memory_bytes"]  # type: ignore[index]
            for way in ("flash", "standard")
        ]
        return held[1] / held[0]

    assert more(place["from"]) <= 1.05 < more(place["to"])
    assert place["to"] - place["from"] <= max(64, WIDTH * place["from"])


def test_the_least_number_that_is_enough_is_exact() -> None:
    """As many servers as it takes: one less is more than 5 % slower than all-reduce."""
    asked = {"finding": "threshold", "along": "training.sharding.servers", "between": [1, 8]}
    of = compared(
        SHARDED
        | {
            "cluster": {"topology": "star_100g", "world_size": 8},
            "compare": {"training.sharding": ["ddp", {"strategy": "parameter_server", "servers": 1}]},
            "answer": [asked],
        }
    )
    (told,) = answer(of).findings[0].numbers["places"]
    (place,) = told["places"]
    assert place["exact"]

    def time(sharding: Any) -> float:
        played = load_scenario(SHARDED | {"cluster": {"topology": "star_100g", "world_size": 8}, "compare": {
            "training.sharding": [sharding, "zero1"]}})  # fmt: skip
        (outcome,) = play_points([(0, points(played)[0])])
        return float(outcome.report["step_time_s"])  # type: ignore[index]

    least = int(place["at"])
    enough, too_few = (time({"strategy": "parameter_server", "servers": n}) for n in (least, least - 1))
    assert enough <= 1.05 * time("ddp") < too_few


def test_parts_of_a_difference_add_up_to_it() -> None:
    of = compared(SHARDED)
    told = answer(of)
    reason = why(of, told.spoken)
    assert reason is not None
    whole = of.rows[told.spoken[0]].report["step_time_s"] - of.rows[told.spoken[1]].report["step_time_s"]  # type: ignore[index]
    assert sum(reason.numbers["parts"].values()) == pytest.approx(whole, rel=1e-9)
    assert reason.numbers["whole"] == pytest.approx(whole, rel=1e-12)
    for report in reports(of):
        assert sum(parts_of_step(report).values()) == pytest.approx(report["step_time_s"], rel=1e-9)


@pytest.mark.parametrize("finding", ["change", {"finding": "effect", "along": "training.sharding"}])
def test_the_settings_that_fit_are_told_before_a_baseline_that_does_not_fit(finding: Any) -> None:
    """DDP keeps 16 bytes a parameter on each GPU, 120 GiB for Llama 3 8B; ZeRO-3 keeps an eighth."""
    base = {
        "name": "lacks", "cluster": {"topology": "dgx_a100", "world_size": 8},
        "training": {"model": "llama3_8b", "seq_len": 1024, "activation_checkpointing": "full"},
        "compare": {"training.sharding": ["ddp", "zero1", "zero3"]},
        "answer": [finding],
    }  # fmt: skip
    of = compared(base)
    ddp, *fitting = (row.report or {} for row in of.rows)
    reserved = ddp["peak_reserved_bytes"]
    process = reserved + ddp["context_bytes"] + ddp["nccl_bytes"]
    assert 100 * 2**30 < reserved < 200 * 2**30
    best, second = sorted(zip(("zero1", "zero3"), fitting, strict=True), key=lambda one: one[1]["step_time_s"])
    told = answer(of).sentences
    assert re.match(rf"{best[0]} fits(,| and) takes? {format_time(best[1]['step_time_s'])}", told[0])
    assert f"; {second[0]} fits" in told[0]
    assert told[1] == (
        f"ddp does not fit in 80 GiB (reserved memory {format_memory(reserved)}, process {format_memory(process)}, "
        f"{format_memory(process - 80 * 2**30)} missing): changes vs ddp compare with a step that cannot run."
    )
    assert not any("does not fit" in sentence for sentence in told[2:])


def test_settings_beside_the_baseline_that_do_not_fit_are_told_after_it() -> None:
    base = {
        "name": "lacks", "cluster": {"topology": "dgx_a100", "world_size": 8},
        "training": {"model": "llama3_8b", "seq_len": 1024},
        "compare": {"training.sharding": ["ddp", "zero3", {"strategy": "ddp", "bucket_size": "1 GiB"}]},
        "answer": ["change", "fit"],
    }  # fmt: skip
    of = compared(base)
    assert [row.fits for row in of.rows] == [False, True, False]
    fits, first, other, *_, last = answer(of).sentences
    names = [of.name(row.setting) for row in of.rows]
    verdicts = [margin_of(row.report or {}).verdict for row in of.rows]
    assert fits.startswith(f"{names[1]} fits")
    assert first.startswith(f"{names[0]} {verdicts[0]}: changes vs ")
    assert other == f"{names[2]} {verdicts[2]}."
    # The finding on memory begins with the setting that fits as well.
    assert last.startswith(f"{names[1]} {verdicts[1]}; ")


def test_why_of_a_sweep_names_the_bottleneck_under_each_condition() -> None:
    """Within a node the ring fills NVLink; over two nodes it fills a network card; a small array fills neither."""
    base = {"name": "link", "cluster": {"topology": "dgx_a100", "world_size": 8}}
    ring = {"operation": "all_reduce", "algorithm": "ring"}
    told = answer(compared(base | {"collective": ring | {"size": "256 MiB"}, "sweep": {"cluster.world_size": [8, 16]}}))
    assert re.fullmatch(
        r"Bottleneck with 8 GPUs: link gpu\d->node0/nvswitch, \d+ % busy, carries 1\.75x the array\. "
        r"Bottleneck with 16 GPUs: each node sends to other nodes over 1 of its 8 network cards, and 7 cards send "
        r"nothing; link nic\d->leaf\d, \d+ % busy, uses \d+ % of its bandwidth, carries 1\.88x the array\.",
        told.why,
    )
    small = answer(compared(base | {"collective": ring, "sweep": {"collective.size": ["1 KiB", "256 MiB"]}}))
    assert small.why.startswith("Bottleneck with 1 KiB: latency and waiting; the busiest link, gpu")


def test_why_and_trust_tell_that_a_ring_leaves_network_cards_idle() -> None:
    """A ring over 16 ranks crosses nodes from 7 to 8 and from 15 to 0 only: a node of p4de sends over 1 of 4 cards."""
    base = {"name": "cards", "cluster": {"topology": "aws_p4de", "world_size": 16}}
    collective = {"operation": "all_reduce", "size": "64 MiB"}
    idle = "each node sends to other nodes over 1 of its 4 network cards, and 3 cards send nothing"

    def told(algorithms: list[str], **keys: Any) -> Answer:
        return answered(base | {"collective": collective | keys, "compare": {"collective.algorithm": algorithms}})

    # Every node's ranks cross to their peers in the other node with `blueconnect`, over all four cards.
    fast = told(["ring", "blueconnect"])
    assert fast.why.endswith(f". With ring, {idle}.")
    assert not [one for one in fast.caveats if one.topic == "cards"]
    slow = told(["ring", "naive"])
    assert f"With ring, {idle}." in slow.why
    times = {
        name: simulator.simulate(load_scenario(base | {"collective": collective | {"algorithm": name}})).report.time_s
        for name in ("ring", "blueconnect")
    }
    (text,) = [one.text for one in slow.caveats if one.topic == "cards"]
    assert text == (
        "ring leaves 3 of a node's 4 network cards idle (NCCL's Ring is multi_ring); algorithm auto is blueconnect "
        "here and takes "
        f"{format_time(times['blueconnect'])} instead of {format_time(times['ring'])}"
    )
    alone = told(["ring"])
    assert alone.why.startswith(f"Bottleneck: {idle}; link nic3->leaf0, 100 % busy, uses ")
    # The link sends all the time, at less than half of its rate: the reason stands beside it.
    assert "% of its bandwidth (the rate of the machine's collectives), carries" in alone.why
    # A single rank of each node has a single card, and latencies alone decide a few bytes.
    for keys in ({"group": [0, 8]}, {"size": "8 B"}):
        assert "network cards" not in told(["ring"], **keys).text


@pytest.mark.parametrize("kind", ["sweep", "compare"])
def test_why_of_a_single_point_names_the_point_if_there_are_several(kind: str) -> None:
    """The finding `value` tells the last condition, or all settings; a threshold of a value tells the last point."""
    ring = {
        "name": "one", "cluster": {"topology": "star_100g", "world_size": 4},
        "collective": {"operation": "all_reduce", "algorithm": "ring", "size": "16 MiB", "payload": False},
        kind: {"cluster.world_size": [4, 8]},
    }  # fmt: skip
    of = compared(ring)
    for place, name in ((0, "4 GPUs"), (1, "8 GPUs")):
        reason = why(of, (place,))
        assert reason is not None
        assert reason.sentence.startswith(f"Bottleneck with {name}: link gpu0->switch0, ")
    step = {key: value for key, value in ring.items() if key != "collective"}
    step["training"] = {"model": "gpt2", "seq_len": 128, "sharding": "zero1"}
    of = compared(step)
    reason = why(of, (1,))
    assert reason is not None
    assert reason.sentence.startswith("with 8 GPUs: compute ")
    alone = why(compared({key: value for key, value in step.items() if key != kind}), (0,))
    assert alone is not None
    assert alone.sentence.startswith("Compute ")


def test_why_tells_the_bandwidths_of_busiest_links_that_differ_in_them() -> None:
    """Inside a node a rank carries 2 x 7/8 of the array over NVLink, a ring over 16 ranks 2 x 15/16 over a card."""
    told = answered({
        "name": "links", "cluster": {"topology": "dgx_a100", "world_size": 16},
        "collective": {"operation": "all_reduce", "size": "64 MiB", "payload": False},
        "compare": {"collective.algorithm": ["hierarchical", "ring"]},
    })  # fmt: skip
    assert told.why.startswith(
        "The busiest link carries 1.75x the array with hierarchical (gpu0->node0/nvswitch, 300 GB/s) and 1.88x the "
        "array with ring (nic7->leaf7, 25 GB/s)"
    )
    # The same link at half its bandwidth carries as much.
    slow = compared({
        "name": "links", "cluster": {"topology": "star_100g", "world_size": 4},
        "collective": {"operation": "all_reduce", "size": "64 MiB", "algorithm": "ring", "payload": False},
        "compare": {"cluster.link_factors": [{}, {"gpu*->switch0": 0.5}]},
    })  # fmt: skip
    reason = why(slow, (0, 1))
    assert reason is not None
    assert re.fullmatch(
        r"the busiest link, gpu0->switch0, carries 1\.5x the array .* \(12\.5 GB/s\) and 1\.5x the array .* "
        r"\(6\.25 GB/s\)",
        reason.sentence,
    )


def test_why_names_setting_and_condition_of_points_that_differ_in_both() -> None:
    """A ring's busiest link carries 2 (N - 1) / N arrays, and the naive root receives and sends N - 1 arrays."""
    of = compared({
        "name": "both", "cluster": {"topology": "star_100g", "world_size": 8},
        "collective": {"operation": "all_reduce", "size": "64 MiB", "payload": False},
        "compare": {"collective.algorithm": ["ring", "naive"]}, "sweep": {"cluster.world_size": [4, 8]},
    })  # fmt: skip
    places = {of.place(row): row.index for row in of.rows}
    reason = why(of, (places["ring (4 GPUs)"], places["naive (8 GPUs)"]))
    assert reason is not None
    assert reason.sentence == (
        "the busiest link, gpu0->switch0, carries 1.5x the array with ring (4 GPUs) and 7x the array, then 7x the "
        "array back with naive (8 GPUs)"
    )


def test_why_names_the_slow_gpu_of_another_setting_or_condition() -> None:
    """The busiest link carries the same bytes with and without the slow GPU, so its load explains nothing."""
    cluster = {"topology": "star_100g", "world_size": 8, "gpu": "a100_sxm_80gb"}
    base = {
        "name": "slow",
        "cluster": cluster,
        "collective": {"operation": "all_reduce", "algorithm": "ring", "size": "16 MiB", "payload": False},
    }
    axis = {"cluster.stragglers": [{}, {3: 0.01}]}
    for kind in ("compare", "sweep"):
        of = compared(base | {kind: axis})
        reason = why(of, (0, 1))
        assert reason is not None
        healthy, slow = reason.sentence.split(". ")
        assert healthy.startswith("Bottleneck with no slow GPU: link gpu0->switch0, ")
        assert slow.startswith("Bottleneck with rank 3 at 1 % of its speed: the slow GPU of rank 3 adds arriving data ")


def test_why_says_how_the_update_runs_where_the_optimizer_decides() -> None:
    """DDP updates on each of 8 ranks what ZeRO-1 updates on one; a fused kernel moves a third of the bytes."""
    base = {
        "name": "update", "cluster": {"topology": "dgx_h100", "world_size": 8},
        "compare": {"training.sharding": ["zero1", "ddp"]},
    }  # fmt: skip
    plain = {"model": "gpt2", "seq_len": 128, "framework": "llm_foundry", "cuda_graphs": "full_iteration"}
    saved = {}
    for optimizer, runs in (
        ("adam", "for_loop"),
        ({"implementation": "foreach"}, "foreach"),
        ({"implementation": "fused"}, "fused"),
    ):
        of = compared(base | {"training": plain | {"optimizer": optimizer}})
        reason = why(of, (0, 1))
        assert reason is not None
        told = f" (update: {runs}, selected by training.optimizer.implementation)"
        assert re.search(r": optimizer -[\d.]+ [mu]s" + re.escape(told), reason.sentence)
        saved[runs] = -reason.numbers["parts"]["optimizer"]
    # The host issues both early enough: the bytes decide, and they are the same.
    assert saved["for_loop"] == pytest.approx(saved["foreach"])
    assert saved["foreach"] > 2 * saved["fused"]


def test_why_names_the_collective_and_the_link_where_exposed_communication_decides() -> None:
    """One all-reduce of all gradients takes longer than the gathers of ZeRO-3, which kernels hide."""
    base = {
        "name": "exposed", "cluster": {"topology": "star_100g", "world_size": 4},
        "training": {"model": "gpt2", "seq_len": 128, "collectives": "played", "cuda_graphs": "full_iteration"},
    }  # fmt: skip
    sharding = {"compare": {"training.sharding": ["ddp", "zero3"]}}
    reason = why(compared(base | sharding), (0, 1))
    assert reason is not None
    assert re.search(
        r"exposed communication \+[\d.]+ ms \(mostly all_reduce; link gpu0->switch0 is \d+ % busy with ddp\)",
        reason.sentence,
    )
    # Closed forms fill no link.
    forms = base | {"training": {"model": "gpt2", "seq_len": 128, "cuda_graphs": "full_iteration"}}
    reason = why(compared(forms | sharding), (0, 1))
    assert reason is not None
    assert "(mostly all_reduce)" in reason.sentence
    # Under two conditions, the link belongs to the condition with more exposed communication.
    for spoken in ((0, 1), (1, 0)):
        slow = compared(base | {"sweep": {"cluster.link_factors": [{}, {"gpu2->switch0": 0.1}]}})
        reason = why(slow, spoken)
        assert reason is not None
        assert re.search(
            r"; link gpu2->switch0 is 100 % busy with gpu2->switch0 at a tenth of its speed\)", reason.sentence
        )


def test_why_names_a_slow_link_that_no_bottleneck_shows_and_the_step_without_it() -> None:
    """Closed forms fill no link; the step without the slow link is a simulation of its own."""
    machine = {"topology": "dgx_h100", "world_size": 16}
    base = {
        "name": "cable",
        "training": {"model": "gpt2_medium", "seq_len": 1024, "sharding": "zero3", "cuda_graphs": "full_iteration"},
    }
    slow = base | {"cluster": machine | {"link_factors": {"nic3->leaf3": 0.1}}}
    told = answered(slow)
    one, other = (simulator.simulate(load_scenario(data)).report for data in (slow, base | {"cluster": machine}))
    assert one.bottleneck is None
    now, without = one.step_time_s, other.step_time_s
    assert told.why.startswith(
        f"The slow link (nic3->leaf3 at a tenth of its speed) costs {format_time(now - without)}; without it, the step "
        f"takes {format_time(without)}. {one.because}"
    )
    assert told.reasons["slow_parts"] == [
        {"of": "cluster.link_factors", "point": 0, "time_s": now, "time_without_s": without}
    ]
    whole = answered(base | {"cluster": machine | {"link_factors": {"nic3->leaf3": 1.0}}})
    assert whole.why == f"{other.because}."
    # A scenario that compares both steps needs no further step.
    both = answered(base | {"cluster": machine, "sweep": {"cluster.link_factors": [{}, {"nic3->leaf3": 0.1}]}})
    assert both.further == 0
    assert "nic3->leaf3 at a tenth of its speed" in both.why


def test_why_says_that_a_slow_link_without_traffic_costs_nothing() -> None:
    """A ring over eight GPUs of one node uses no network card."""
    told = answered({
        "name": "cable", "cluster": {"topology": "dgx_h100", "world_size": 16, "link_factors": {"nic3->leaf3": 0.1}},
        "collective": {"operation": "all_reduce", "size": "1 MiB", "group": list(range(8)), "payload": False},
        "compare": {"collective.algorithm": ["ring", "tree"]},
    })  # fmt: skip
    end = "The slow link (nic3->leaf3 at a tenth of its speed) costs less than 1 % of the time with ring."
    assert told.why.endswith(f". {end}")


def test_why_names_the_hosts_rate_where_the_host_updates() -> None:
    """The kernels of an update on GPUs, which `implementation` selects, run at one of the two points only."""
    base = {
        "name": "update", "cluster": {"topology": "dgx_h100", "world_size": 8},
        "training": {"model": "gpt2", "seq_len": 128, "sharding": "zero1", "cuda_graphs": "full_iteration"},
    }  # fmt: skip
    slow = {"what": "optimizer", "host_rate": "20 GB/s"}
    for settings, rates in ((["none", slow], "20 GB/s"), (["optimizer", slow], "50 GB/s and 20 GB/s")):
        reason = why(compared(base | {"compare": {"training.offload": settings}}), (0, 1))
        assert reason is not None
        told = f" (update on the host at {rates})"
        assert re.search(r": optimizer -[\d.]+ [mu]?s" + re.escape(told), reason.sentence)


def test_the_front_is_what_brute_force_finds() -> None:
    of = compared(
        SHARDED
        | {"sweep": {"training.micro_batch_size": [1, 4], "training.activation_checkpointing": ["none", "full"]}}
    )
    known = {
        row.index: (1 / row.report["tokens_per_s"], row.report["peak_memory_bytes"])  # type: ignore[index]
        for row in of.rows
    }
    wanted = {
        index
        for index, (time, held) in known.items()
        if not any(t <= time and h <= held and (t, h) != (time, held) for t, h in known.values())
    }
    found = {one["point"] for one in pareto_front(of)}
    assert {known[index] for index in found} == {known[index] for index in wanted}


def test_a_budget_is_the_step_times_its_number() -> None:
    budget = {"tokens": 1e9, "price": 2.5, "watts": 1000}
    of = compared(SHARDED | {"budget": budget})
    told = answer(of)
    for one, report in zip(told.budget, reports(of), strict=True):
        hours = 1e9 / report["tokens_per_s"] / 3600
        assert one["days"] == pytest.approx(hours / 24)
        assert one["gpu_hours"] == pytest.approx(8 * hours)
        assert one["cost"] == pytest.approx(2.5 * 8 * hours)
        assert one["energy_kwh"] == pytest.approx(8 * hours)
    assert told.sentences[-1].startswith("Estimate for 1 billion tokens with zero3: ")
    costs = budget_table(of, told)
    assert costs is not None
    assert costs.columns == ("days", "GPU hours", "cost", "energy (kWh)")
    assert [name for name, _ in costs.rows] == [of.name(row.setting) for row in of.rows]
    for (_, cells), one in zip(costs.rows, told.budget, strict=True):
        written = [float(cell.replace(",", "")) for cell in cells]
        assert written == pytest.approx([one[key] for key in ("days", "gpu_hours", "cost", "energy_kwh")], rel=5e-3)


def test_the_budget_of_a_single_point_does_not_bear_the_scenarios_name() -> None:
    of = compared({key: value for key, value in SHARDED.items() if key != "compare"} | {"budget": {"tokens": 1e9}})
    told = answer(of)
    assert told.sentences[-1].startswith("Estimate for 1 billion tokens: ")
    assert budget_table(of, told) is None


def test_straggling_is_told_against_nobody_slow() -> None:
    told = answered(
        RING_OR_NAIVE
        | {
            "compare": {"collective.algorithm": ["ring", "tree"]},
            "sweep": {"cluster.stragglers": [{}, {3: 0.5}]},
            "answer": ["effect"],
        }
    )
    assert told.sentences == (
        "Rank 3 at half speed has no effect vs no slow GPU: the same time with ring and with tree.",
    )


def test_the_effect_of_a_compared_key_is_told_beside_the_others() -> None:
    of = compared(
        RING_OR_NAIVE
        | {
            "compare": {
                "collective.algorithm": ["ring", "naive"],
                "cluster.link_factors": [{}, {"gpu0->switch0": 0.5}],
            },
            "baseline": {"collective.algorithm": "naive"},
            "sweep": {"collective.size": ["1 MiB"]},
            "answer": [{"finding": "effect", "along": "collective.algorithm"}],
        }
    )
    (found,) = answer(of).findings
    times = {(r.setting["collective.algorithm"], bool(r.setting["cluster.link_factors"])): (r.report or {})["time_s"]
             for r in of.rows}  # fmt: skip
    told = {bool(one["setting"]["cluster.link_factors"]): one["change"] for one in found.numbers["changes"]}
    assert told == {slow: times["ring", slow] / times["naive", slow] - 1 for slow in (False, True)}
    assert found.sentences[0].startswith("ring vs naive: ")


def test_shares_of_unlike_peaks_are_told_as_what_they_are_shares_of() -> None:
    of = compared(SHARDED | {"compare": {"training.precision": ["fp32", "bf16"]}, "answer": ["value"]})
    # Dense peaks of the A100's datasheet: 19.5 TFLOP/s in float32, 312 in bfloat16.
    for report, peak in zip(reports(of), (19.5e12, 312e12), strict=True):
        assert report["model_flops_per_s_per_gpu"] == pytest.approx(report["mfu"] * peak)
    (sentence,) = answer(of).sentences
    assert "MFU" not in sentence
    assert sentence.count("model TFLOP/s per GPU") == 2


def test_a_single_step_is_told_with_its_speed_and_its_time() -> None:
    of = compared({key: value for key, value in SHARDED.items() if key != "compare"})
    (report,) = reports(of)
    (sentence,) = answer(of).sentences
    speed = f"{report['tokens_per_s']:,.0f} tokens/s and {100 * report['mfu']:.1f} % MFU"
    assert sentence == f"The job reaches {speed} and takes {1e3 * report['step_time_s']:.4g} ms a step."


def test_several_changes_of_several_measures_are_a_list_with_their_signs() -> None:
    of = compared(
        SHARDED | {"compare": {"training.sharding": ["ddp", "zero1", "zero2", "zero3"]}, "answer": ["change"]}
    )
    best, rest, *_ = answer(of).sentences
    ddp, *others = ((report["step_time_s"], report["peak_memory_bytes"]) for report in reports(of))
    assert rest.startswith("Time and peak memory of the other settings vs ddp: ")
    least = min(others)
    for one in others:
        time, memory = (100 * (after / before - 1) for after, before in zip(one, ddp, strict=True))
        if one == least:
            assert f" takes {abs(time):.2g} % less time than ddp (" in best
            assert f" and needs {abs(memory):.0f} % less peak memory (" in best
        else:
            assert re.search(rf"{'-' if time < 0 else '[+]'}{abs(time):.2g} % and -{abs(memory):.0f} %", rest)


def test_why_tells_latencies_and_waiting_where_links_carry_the_same() -> None:
    """Eight tensors one by one are 8 x 2 (n - 1) latencies; in one bucket 2 (n - 1); the bytes are the same."""
    tensors = {"operation": "all_reduce", "algorithm": "ring", "tensors": ["8 KiB"] * 8}
    of = compared(
        RING_OR_NAIVE
        | {
            "collective": tensors,
            "compare": {"collective.fusion": [None, {"buckets": "64 KiB"}]},
            "sweep": {},
            "answer": ["change"],
        }
    )
    told = answer(of)
    fused, single = told.reasons["parts"]
    sending = 14 / 8 * 65536 / BANDWIDTH
    assert fused["bandwidth_s"] == single["bandwidth_s"] == pytest.approx(sending)
    assert fused["time_s"] - sending == pytest.approx(14 * LATENCY)
    assert single["time_s"] - sending == pytest.approx(8 * 14 * LATENCY)
    assert told.why.startswith("The busiest link, gpu0->switch0, sends for ")
    assert told.why.endswith("the remaining time is latency and waiting.")


def test_a_threshold_tells_which_point_does_not_fit() -> None:
    told = answered(
        SHARDED
        | {
            "training": SHARDED["training"] | {"model": "gpt2_xl", "activation_checkpointing": "none"},
            "compare": {"training.sharding": ["zero3", "ddp"]},
            "sweep": {"training.micro_batch_size": [1, 44]},
            "answer": [{"finding": "threshold", "along": "training.micro_batch_size"}],
        }
    )
    assert told.sentences[0].endswith("; ddp does not fit with micro-batch 44.")


def test_points_that_failed_are_told_and_win_nothing() -> None:
    told = answered(RING_OR_NAIVE | {"sweep": {"cluster.link_factors": [{}, {"gpu9->switch0": 0.5}]}})
    assert "; 2 of 4 points failed." in told.sentences[0]


def test_nothing_played_is_an_answer_too() -> None:
    broken = RING_OR_NAIVE["cluster"] | {"link_factors": {"gpu9->switch0": 0.5}}
    told = answered(RING_OR_NAIVE | {"cluster": broken})
    assert told.sentences[0].startswith("No point could be simulated: link: got 'gpu9->switch0'")


@given(
    root=st.floats(1.0, 1e9), low=st.integers(1, 10**6), times=st.floats(1.1, 1e4), power=st.floats(0.2, 3.0),
    step=st.sampled_from([1, 64]), rising=st.booleans(),
)  # fmt: skip
def test_a_sign_change_is_bracketed_to_two_per_cent_or_one_step(
    root: float, low: int, times: float, power: float, step: int, rising: bool
) -> None:
    ends = low * step, (low + max(1, int(low * times))) * step
    sign = 1 if rising else -1

    def difference(x: int) -> float:
        return sign * (x**power - root**power)

    found = sign_change(difference, *ends, step)
    if (difference(ends[0]) > 0) == (difference(ends[1]) > 0):
        assert found is None
        return
    assert found is not None
    assert (difference(found.low) > 0) != (difference(found.high) > 0)
    assert found.high - found.low <= max(step, WIDTH * found.low + 1)
    assert found.low % step == found.high % step == 0


def test_of_real_trainings_the_lowest_last_loss_leads() -> None:
    """Hand-made losses; the last run stops before its second step, with the lowest loss of all."""
    small = {"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64, "vocab_size": 64}
    real = {"model": small, "seq_len": 64, "precision": "fp32", "numerics": True, "steps": 2}
    shardings = ["ddp", "zero1", "zero2", "zero3"]
    scenario = load_scenario(SHARDED | {"training": real, "compare": {"training.sharding": shardings}})

    def told(*last: float) -> FindingResult:
        whole = {"ended_s": [1.0, 2.0], "skipped": [], "seen": {}, "stopped": ""}
        runs = [whole | {"losses": [4.0, loss]} for loss in last]
        runs.append(whole | {"losses": [1.0], "ended_s": [1.0], "stopped": "out of memory"})
        outcomes = [PointOutcome(number, {}, "events", {"learning": run}) for number, run in enumerate(runs)]
        found = find_learned(Comparison(scenario, outcomes), FindingSpec(finding="learned"))
        assert found is not None
        return found

    lowest = told(3.0, 2.0, 2.5)
    assert lowest.sentences[0] == "zero1 has the lowest last loss (2)"
    # Pictures show this run first.
    assert lowest.spoken[0] == 1
    # Within 0.5 % of the lowest, no loss leads.
    assert told(2.009, 2.0, 2.005).sentences[0].startswith("Last loss: ddp 2.009")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"answer": ["chang"]}, "did you mean 'change'?"),
        ({"answer": [{"finding": "change", "of": ["mfu"]}]}, "measures of a collective are time, busbw, error"),
        ({"answer": ["learned"]}, "answer.0: learned needs real training; add training.numerics: true"),
        (
            {"answer": [{"finding": "threshold"}]},
            "threshold needs a key to search along; add along: KEY",
        ),
        ({"answer": [{"finding": "threshold", "along": "collective.siz"}]}, "did you mean 'collective.size'?"),
        (
            {"answer": [{"finding": "threshold", "along": "cluster.world_size"}]},
            "is not swept; add between: [FIRST, LAST]",
        ),
        ({"answer": [{"finding": "best", "along": "collective.size"}]}, "best takes no key along; remove the key"),
        ({"compare": {}, "answer": ["best"]}, "best compares settings, but the scenario has no key compare"),
        ({"baseline": {"collective.size": "1 MiB"}}, "is not a key of compare; a baseline needs a key of compare"),
        ({"baseline": {"collective.algorithm": "tree"}}, "must be one of the compared values: 'ring', 'naive'"),
        ({"budget": {"tokens": 1e12}}, "needs a training, but the scenario simulates a collective; remove the key"),
    ],
)
def test_what_cannot_be_told_is_one_line(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(ScenarioError) as raised:
        load_scenario(RING_OR_NAIVE | change)
    assert fault in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_a_budget_needs_one_length() -> None:
    for budget in ({}, {"tokens": 1e9, "steps": 10}):
        with pytest.raises(ScenarioError, match="needs either tokens or steps"):
            load_scenario(SHARDED | {"budget": budget})


def test_an_option_that_takes_an_axis_away_takes_what_is_told_of_it_along() -> None:
    data = RING_OR_NAIVE | {"baseline": {"collective.algorithm": "ring"}, "answer": ["best", "value"]}
    alone = load_scenario(data, {"collective.algorithm": "naive"})
    assert (alone.baseline, [asked.finding for asked in alone.answer]) == ({}, ["value"])
    kept = load_scenario(data, {"collective.size": "64 KiB"})
    assert kept.answer == load_scenario(data).answer


def test_a_cost_that_only_another_condition_has_is_told() -> None:
    """Who adds all parts at once sends the sums of each only once they are whole: wider sums cost no bytes there."""
    told = answered(
        RING_OR_NAIVE
        | {
            "collective": {"operation": "all_reduce", "size": "1 MiB", "dtype": "float16"},
            "compare": {"collective.accumulate": ["payload", "float32"]},
            "sweep": {"collective.algorithm": ["ring", "direct"]},
            "answer": [{"finding": "change", "of": ["error", "time"]}],
        }
    )
    (over,) = [sentence for sentence in told.sentences if sentence.startswith("Change of time")]
    assert over.startswith("Change of time vs sums in the payload's dtype over 2 conditions: sums in float32 +")
    assert over.endswith(" % (ring) to 0 % (direct).")


def test_changes_stand_in_a_table_only_where_points_differ_in_one_thing() -> None:
    one = RING_OR_NAIVE | {"compare": {}}
    two = one | {"sweep": {**one["sweep"], "cluster.world_size": [4, 8]}}
    for data, changed in ((one, True), (two, False)):
        of = compared(data)
        (table,) = small_tables(of, answer(of))
        assert any("%" in cell for _, cells in table.rows for cell in cells) == changed


def green(of: Comparison) -> dict[str, list[str]]:
    """Names of the rows that are marked as best, by column of the comparison's small table."""
    (table,) = small_tables(of, answer(of))
    return {
        column: [name for line, (name, _) in enumerate(table.rows) if (line, place) in table.best]
        for place, column in enumerate(table.columns)
    }


def test_numbers_of_gpus_are_no_rivals_except_per_gpu() -> None:
    """More GPUs take less time for the same tokens, or as long for more tokens: this makes no setting the best."""
    data = {"name": "scaling", "cluster": {"topology": "dgx_a100", "world_size": 8},
            "training": {"model": "gpt2", "seq_len": 256, "sharding": "zero3"} | AT_ONCE}  # fmt: skip
    gpus = {"cluster.world_size": [2, 4, 8]}
    for batch in ({}, {"global_batch": "64seq"}):
        alone = compared(data | {"training": data["training"] | batch, "sweep": gpus})
        marked = green(alone)
        assert (marked["time"], marked["tokens/s"], marked["peak memory"]) == ([], [], [])
        assert small_tables(alone, answer(alone))[0].rivals.startswith("among points with the same number of GPUs")
    both = green(compared(data | {"compare": {"training.sharding": ["ddp", "zero3"], **gpus}}))
    # Each number of GPUs has its own best.
    assert both["peak memory"] == ["zero3, 2 GPUs", "zero3, 4 GPUs", "zero3, 8 GPUs"]


def test_a_larger_array_is_no_slower_setting() -> None:
    alone = compared(RING_OR_NAIVE | {"compare": {}, "sweep": {"collective.size": ["64 KiB", "1 MiB"]}})
    assert not any(green(alone).values())


def test_equal_ones_win_together_and_are_not_called_equal_to_those_they_beat() -> None:
    """Two dtypes of equal bytes tie; both beat the naive way."""
    told = answered(
        RING_OR_NAIVE
        | {
            "compare": {"collective.algorithm": ["ring", "naive"], "collective.dtype": ["float32", "int32"]},
            "sweep": {"collective.size": ["1 MiB", "4 MiB"]},
            "answer": ["best"],
        }
    )
    assert told.sentences[0].startswith(
        "(ring, float32) and (ring, int32) are fastest under both conditions, ahead of "
    )
    numbers = told.findings[0].numbers
    assert (numbers["ties"], numbers["wins"]) == (0, {"ring, float32 and ring, int32": 2})


def test_what_is_zero_everywhere_or_missing_wins_nothing_and_is_told() -> None:
    sizes = {"collective.size": ["0 B", "1 MiB"]}
    missing = answered(
        RING_OR_NAIVE
        | {
            "collective": RING_OR_NAIVE["collective"] | {"payload": False},
            "sweep": sizes,
            "answer": [{"finding": "best", "of": ["error"]}],
        }
    )
    assert missing.sentences[0] == ("No result for best of error: the simulated points do not determine the answer.")
    zero = answered(SHARDED | {"answer": [{"finding": "best", "of": ["recompute"]}]})
    assert zero.sentences[0] == "All 3 settings have 0 s of recompute."
    json.dumps([missing.to_dict(), zero.to_dict()], allow_nan=False)


def test_a_search_that_had_to_end_tells_its_two_ends_and_no_number_between() -> None:
    found = sign_change(lambda x: float(x - 5000) if x in (1024, 65536) else None, 1024, 65536, 64)
    assert found is not None
    assert (found.low, found.high, found.at) == (1024, 65536, None)
    assert bracket_text("training.seq_len", bracketed(found)) == "somewhere between 1,024 and 65,536 tokens"


def test_a_place_that_is_known_to_its_step_is_the_first_beyond() -> None:
    found = sign_change(lambda x: float(x - 157), 128, 256, 64)
    assert found is not None
    assert (found.low, found.high, found.exact, found.at) == (128, 192, True, 192.0)


def test_a_sign_change_is_found_from_zero_on() -> None:
    found = sign_change(lambda x: float(x - 157), 0, 1024, 64)
    assert found is not None
    assert (found.low, found.high) == (128, 192)


def test_a_reason_is_none_where_the_fastest_carries_more() -> None:
    """With few bytes the naive way wins by its latency, though its link carries more."""
    told = answered(RING_OR_NAIVE | {"sweep": {"collective.size": ["1 KiB"]}, "answer": ["best"]})
    assert told.sentences[0].startswith("Naive is fastest")
    assert "latenc" in told.why
    assert "x the array" not in told.why.partition(":")[0]


def test_where_nothing_fits_the_answer_begins_with_that() -> None:
    training = SHARDED["training"] | {"model": "llama2_13b", "micro_batch_size": 1}
    cluster = {"topology": "star_100g", "world_size": 2, "gpu": "l4"}
    of = compared(SHARDED | {"training": training, "cluster": cluster})
    told = answer(of)
    reports = [row.report for row in of.rows if row.report is not None]
    assert not any(report["fits"] for report in reports)
    least = min(reports, key=lambda report: report["shortfall_bytes"])
    process = least["peak_reserved_bytes"] + least["context_bytes"] + least["nccl_bytes"]
    assert told.sentences[0] == (
        "No setting fits in 22.5 GiB; the closest setting is zero3 (reserved memory "
        f"{format_memory(least['peak_reserved_bytes'])}, process {format_memory(process)}, "
        f"{format_memory(process - least['capacity_bytes'])} missing)."
    )


@pytest.mark.parametrize(
    "finding", ["value", "fit", "change", "best", {"finding": "effect", "along": "training.sharding"}]
)
def test_the_answer_begins_with_the_best_point_that_fits(finding: Any) -> None:
    """Llama 3 8B needs 16 bytes a parameter, 120 GiB with ddp; zero1 and zero3 fit, and zero3 is fastest of the two."""
    base = {
        "name": "opens", "cluster": {"topology": "dgx_a100", "world_size": 8}, "answer": [finding],
        "training": {"model": "llama3_8b", "seq_len": 2048, "activation_checkpointing": "full"},
    }  # fmt: skip
    of = compared(base | {"compare": {"training.sharding": ["ddp", "zero1", "zero3"]}})
    times = [report["step_time_s"] for report in reports(of)]
    assert [row.fits for row in of.rows] == [False, True, True]
    assert times[2] < times[1]
    told = answer(of)
    assert told.spoken[0] == 2
    assert "No setting fits" not in told.text


def test_the_answer_begins_with_the_closest_point_if_none_fits() -> None:
    """ZeRO-3 keeps an eighth of the model states: it lacks least."""
    base = {
        "name": "opens", "cluster": {"topology": "dgx_a100", "world_size": 8},
        "training": {"model": "llama3_70b", "seq_len": 2048, "activation_checkpointing": "full"},
        "compare": {"training.sharding": ["ddp", "zero3", "zero1"]},
    }  # fmt: skip
    for finding in ("value", "fit"):
        of = compared(base | {"answer": [finding]})
        lacking = [report["shortfall_bytes"] for report in reports(of)]
        assert 0 < lacking[1] < min(lacking[0], lacking[2])
        told = answer(of)
        assert told.spoken[0] == 1
        assert told.sentences[0].startswith("No setting fits in 80 GiB; the closest setting is zero3 (reserved memory ")


def timed(data: dict[str, Any], times: Mapping[tuple[str, int], float], fits: float) -> Comparison:
    """A comparison of shardings by micro-batch with given step times [s]; times above `fits` do not fit."""

    def report(point: Mapping[str, Any]) -> dict[str, Any]:
        size = point["training.micro_batch_size"]
        time = times[point["training.sharding"], size]
        interval = {"step_time_s_80_low": 0.95 * time, "step_time_s_80_high": 1.05 * time}
        return {
            "step_time_s": time, "tokens_per_s": 512 * size / time, "fits": time < fits, "mfu": 0.4,
            "intervals": interval, "shortfall_bytes": 0, "capacity_bytes": 1,
        }  # fmt: skip

    base = {
        "name": "timed", "cluster": {"topology": "dgx_a100", "world_size": 8},
        "training": {"model": "gpt2", "seq_len": 512} | AT_ONCE, "compare": {"training.sharding": ["ddp", "zero3"]},
        "sweep": {"training.micro_batch_size": sorted({size for _, size in times})},
    }  # fmt: skip
    return outcomes(base | data, report)


def found(of: Comparison) -> Any:
    (asked,) = of.scenario.answer
    return FINDING_KINDS.find(asked.finding).find(of, asked)


def test_the_worst_point_of_a_threshold_fits_if_any_worse_point_does() -> None:
    """Zero3 is worst at micro-batch 4, 3.0 against 1.5 s, where it does not fit."""
    asked = {"finding": "threshold", "along": "training.micro_batch_size", "margin": 0.05}
    times = {("ddp", 1): 1.0, ("zero3", 1): 1.2, ("ddp", 2): 1.2, ("zero3", 2): 1.8, ("ddp", 4): 1.5, ("zero3", 4): 3.0}
    for fits, size in ((2.5, 2), (9.0, 4), (1.1, 4)):
        of = timed({"answer": [asked]}, times, fits)
        assert [of.rows[index].condition for index in found(of).spoken] == [{"training.micro_batch_size": size}] * 2


def test_a_threshold_tells_where_settings_tie() -> None:
    """The reports' intervals are 0.95 to 1.05 of a time: differences up to sqrt(1.05 / 0.95) - 1 = 5.1 % are ties."""
    asked = {"finding": "threshold", "along": "training.micro_batch_size", "margin": 0.1}
    ddp = {("ddp", size): 1.0 for size in (1, 2, 3, 4)}
    zero3 = {("zero3", 1): 1.2, ("zero3", 2): 1.08, ("zero3", 3): 1.02, ("zero3", 4): 0.99}
    told = found(timed({"answer": [asked]}, ddp | zero3, 9.0))
    assert told.sentences == (
        "zero3 takes at most 10 % more time per step than ddp from micro-batch 2 on: 1.2 s instead of 1 s at "
        "micro-batch 1 (+20 %), 990 ms instead of 1 s at micro-batch 4 (-1 %); from micro-batch 3 on, the difference "
        "is within the uncertainty of ±5.1 %",
    )
    assert told.numbers["places"][0]["ties"] == [{"from": 3, "to": None}]
    # A setting that is nominally better everywhere, by less than the uncertainty, is not called better.
    near = {("zero3", size): 0.97 for size in (1, 2, 3, 4)}
    told = found(timed({"answer": [asked]}, ddp | near, 9.0))
    assert told.sentences[0].startswith(
        "zero3 ties with ddp in time per step within the uncertainty of ±5.1 % from micro-batch 1 to micro-batch 4: "
    )
    # Equal values are the same, which says more than a tie.
    told = found(timed({"answer": [asked]}, ddp | {("zero3", size): 1.0 for size in (1, 2, 3, 4)}, 9.0))
    assert told.sentences == ("zero3 takes the same time per step as ddp from micro-batch 1 to micro-batch 4",)


def test_findings_and_tables_call_the_same_differences_ties() -> None:
    """Uncertainties of 2 % and 30 % at a difference of 10 %: the larger one makes a tie, whichever setting leads."""

    def report(point: Mapping[str, Any]) -> dict[str, Any]:
        time, width = {"ddp": (1.0, 1.02), "zero1": (1.1, 1.3), "zero3": (1.2, 1.02)}[point["training.sharding"]]
        return {
            "step_time_s": time, "tokens_per_s": 512 / time, "fits": True, "mfu": 0.4, "shortfall_bytes": 0,
            "capacity_bytes": 1, "peak_memory_bytes": 1, "peak_reserved_bytes": 1,
            "intervals": {"step_time_s_80_low": time / width, "step_time_s_80_high": time * width},
        }  # fmt: skip

    of = outcomes(SHARDED | {"answer": ["best"]}, report)
    (place,) = found(of).numbers["places"]
    assert place["tied_with_winner"] == [{"training.sharding": "zero1"}]
    assert _best(of.measure("time"), of.rows) == [0, 1]
    of = outcomes(SHARDED | {"answer": [{"finding": "change", "of": ["time"]}]}, report)
    assert [row for row in found(of).sentences if "uncertainty" in row] == [found(of).sentences[0]]
    assert "1.1 s instead of 1 s; a tie within the uncertainty of ±30 %" in found(of).sentences[0]


def test_the_reason_is_sought_where_settings_do_not_tie() -> None:
    """Within 5 % settings tie: at micro-batch 4 they do, and at 2 zero3 is faster by half."""
    times = {("ddp", 2): 1.5, ("zero3", 2): 1.0, ("ddp", 4): 2.01, ("zero3", 4): 2.0}
    of = timed({"answer": ["best"]}, times, fits=9.0)
    assert [of.place(of.rows[index]) for index in found(of).spoken] == ["zero3 (micro-batch 2)", "ddp (micro-batch 2)"]
    # If all conditions tie, the last is shown.
    of = timed({"answer": ["best"]}, times | {("ddp", 2): 1.01}, fits=9.0)
    assert found(of).spoken == (of.rows[3].index, of.rows[1].index)


def test_conditions_without_a_rival_and_without_a_fitting_setting_are_told_along_numbers_too() -> None:
    times = {
        ("ddp", 1): 1.5, ("zero3", 1): 1.0, ("ddp", 2): 3.5, ("zero3", 2): 2.0, ("ddp", 4): 7.0, ("zero3", 4): 4.0,
    }  # fmt: skip
    of = timed({"answer": ["best"]}, times, fits=3.0)
    first, second = found(of).sentences
    assert first.startswith("With micro-batch 1, zero3 is fastest with ")
    assert first.endswith("; 3 of 6 points do not fit in memory")
    assert second.startswith("With micro-batch 2, only zero3 fits: ")
    del times["ddp", 2], times["zero3", 2]
    assert (
        found(timed({"answer": ["best"]}, times, fits=3.0))
        .sentences[0]
        .endswith("; 2 of 4 points do not fit in memory (all settings with micro-batch 4)")
    )


def test_sentences_are_of_the_last_condition_in_which_a_setting_fits() -> None:
    """With 16 micro-batches at once neither fits; with 8, zero3 alone; with 1, both; no two fit, then one counts."""

    def shown(*micro_batches: int) -> Mapping[str, Any]:
        fits = {("zero1", 1), ("zero3", 1), ("zero3", 8)}
        return outcomes(
            {
                "name": "shown", "cluster": {"topology": "dgx_a100", "world_size": 8},
                "training": {"model": "gpt2", "seq_len": 512} | AT_ONCE,
                "compare": {"training.sharding": ["zero1", "zero3"]},
                "sweep": {"training.micro_batch_size": list(micro_batches)},
            },
            lambda point: {"fits": (point["training.sharding"], point["training.micro_batch_size"]) in fits},
        ).shown_condition  # fmt: skip

    for micro_batches, expected in (((1, 8, 16), 1), ((8, 16), 8), ((16, 32), 32)):
        assert shown(*micro_batches) == {"training.micro_batch_size": expected}


def test_a_lead_within_the_uncertainty_of_the_prediction_is_called_a_tie() -> None:
    """gpipe and 1f1b take the same time, zb_h1 a few per cent less: less than measured runs differ from predictions."""
    staged = {
        "name": "staged",
        "cluster": {"topology": "dgx_h100", "world_size": 8},
        "training": {"model": "gpt2_medium", "seq_len": 512, "gradient_accumulation_steps": 64,
        "cuda_graphs": "full_iteration",
                     "sharding": "zero1", "parallelism": {"pp": 4}},
        "compare": {"training.parallelism.schedule": ["gpipe", "zb_h1"]},
        "answer": ["best"],
    }  # fmt: skip
    of = compared(staged)
    told = answer(of)
    reports = [row.report for row in of.rows if row.report is not None]
    times, width = [report["step_time_s"] for report in reports], interval_width(reports[1])
    assert width is not None
    assert 0 < times[0] / times[1] - 1 < width
    assert told.sentences[0].startswith("zb_h1 is fastest with ")
    assert f"; tied within the uncertainty of ±{percent_text(width)}: gpipe with " in told.sentences[0]
    (place,) = told.findings[0].numbers["places"]
    assert (place["equal_to_winner"], place["tied_with_winner"]) == ([], [{"training.parallelism.schedule": "gpipe"}])


def test_a_question_about_memory_is_explained_by_what_holds_it() -> None:
    """Why was the optimizer's time, whatever was asked."""
    of = compared(SHARDED | {"answer": [{"finding": "change", "of": ["memory", "time"]}]})
    told = answer(of)
    ddp, _, zero3 = reports(of)
    less = ddp["peak_memory_bytes"] - zero3["peak_memory_bytes"]
    assert told.why.startswith(f"zero3 needs {format_memory(less)} less memory than ddp: ")
    assert told.reasons["whole_bytes"] == -less == sum(told.reasons["parts_bytes"].values())
    by_time = answer(compared(SHARDED | {"answer": [{"finding": "change", "of": ["time", "memory"]}]}))
    assert by_time.why.startswith("zero3 takes ")


def test_settings_of_one_data_parallel_rank_shard_nothing() -> None:
    setting = PlanSetting(8, 4, 2, 1, 1, "1f1b", 1, "zero3", None, 1, 32, "none", "none", None, None)
    assert setting.text == "tp 4, pp 2, dp 1, 1f1b, no sharding, micro-batch 1 x 32, no checkpointing"
    assert ", zero3, " in replace(setting, gpus=16).text


def test_what_fits_along_an_axis_says_under_which_condition() -> None:
    training = SHARDED["training"] | {"model": "gpt2_xl", "activation_checkpointing": "none"}
    of = compared(
        SHARDED
        | {
            "training": training,
            "cluster": {"topology": "star_100g", "world_size": 4, "gpu": "l4"},
            "compare": {"training.sharding": ["zero3"]},
            "sweep": {"training.micro_batch_size": [1, 64], "training.seq_len": [64, 1024]},
            "answer": [{"finding": "fit", "along": "training.micro_batch_size"}],
        }
    )
    told = answer(of)
    fixed = told.findings[0].numbers["fixed"]
    assert told.sentences[0].startswith(f"With {fixed['training.seq_len']:,} tokens, zero3 ")
    (place,) = told.findings[0].numbers["places"]
    if place["at"] is not None:
        held = [of.known({"training.sharding": "zero3", "training.micro_batch_size": n, **fixed}) for n in
                (place["from"], place["to"])]  # fmt: skip
        assert [report["fits"] for report in held if report] == [True, False]


def test_tables_are_held_against_the_baseline_that_is_named() -> None:
    of = compared(SHARDED | {"baseline": {"training.sharding": "zero3"}})
    (table,) = small_tables(of, answer(of))
    rows = dict(table.rows)
    assert not any("(" in cell for cell in rows["zero3"])
    assert any("(" in cell for cell in rows["ddp"])


def test_an_axis_may_be_written_in_any_order() -> None:
    rising, falling = (
        answered(RING_OR_NAIVE | {"sweep": {"collective.size": sizes}, "answer": ["best"]})
        for sizes in (["64 KiB", "1 MiB"], ["1 MiB", "64 KiB"])
    )
    assert rising.findings[0].numbers["crossings"] == falling.findings[0].numbers["crossings"] != []


def outcomes(data: dict[str, Any], reports_of: Callable[[Mapping[str, Any]], dict[str, Any] | None]) -> Comparison:
    """A comparison whose reports are given, and not simulated."""
    scenario = load_scenario(data)
    made = [
        PointOutcome(number, point.settings, "events", reports_of(point.settings))
        for number, point in enumerate(points(scenario))
    ]
    return Comparison(scenario, made)


SWEPT = SHARDED | {
    "compare": {"training.sharding": ["ddp", "zero3"]},
    "sweep": {"training.micro_batch_size": [1, 2, 4]},
}


def test_ranges_leave_out_conditions_whose_baseline_does_not_fit() -> None:
    """ddp fits at 1 and 2 alone, where zero3 takes 1.1 and 1.2 times as long; at 4 it would be 9 times."""
    factor = {1: 1.1, 2: 1.2, 4: 9.0}

    def report(settings: Mapping[str, Any]) -> dict[str, Any]:
        size, ddp = settings["training.micro_batch_size"], settings["training.sharding"] == "ddp"
        return {"step_time_s": 1.0 if ddp else factor[size], "fits": not (ddp and size == 4)}

    (found,) = _ranges(outcomes(SWEPT, report), find("time", "training"))
    assert (found["least"], found["most"]) == (pytest.approx(0.1), pytest.approx(0.2))
    assert found["most_at"] == {"training.micro_batch_size": 2}


def test_a_sentence_speaks_of_the_largest_condition_at_which_two_settings_fit() -> None:
    """At 4 zero3 alone fits, at 2 both do."""

    def report(settings: Mapping[str, Any]) -> dict[str, Any]:
        fits = settings["training.sharding"] == "zero3" or settings["training.micro_batch_size"] < 4
        return {"time_s": 1.0, "fits": fits}

    assert outcomes(SWEPT, report).shown_condition == {"training.micro_batch_size": 2}


def test_an_axis_ends_where_its_setting_can_be_simulated_and_repeats_no_number() -> None:
    """Of 1, 2 and 4 the last cannot be; half of it is there already."""

    def report(settings: Mapping[str, Any]) -> dict[str, Any] | None:
        return None if settings["training.micro_batch_size"] == 4 else {"time_s": 1.0, "fits": True}

    compared_ones = outcomes(SWEPT, report)
    axis = Axis("training.micro_batch_size", (1, 2, 4))
    assert _playable(compared_ones, {"training.sharding": "ddp"}, axis, {}).numbers == (1, 2)


def test_from_how_many_gpus_on_a_share_is_exceeded_needs_no_comparison() -> None:
    """Searched with further points: the first number of GPUs whose share is above, one less is not."""
    asked = {"finding": "threshold", "of": ["exposed_share"], "along": "cluster.world_size", "above": 0.5}
    data: dict[str, Any] = {
        "name": "dominates",
        "cluster": {"topology": "leaf_spine_100g", "world_size": 8},
        "training": {"model": "gpt2_xl", "seq_len": 1024, "micro_batch_size": 4, "sharding": "ddp"},
        "sweep": {"cluster.world_size": [1, 16]},
        "answer": [asked],
    }
    told = answered(data)
    (found,) = told.findings[0].numbers["places"]
    (place,) = found["places"]
    assert place["above_from_here"]
    gpus = int(place["at"])

    def share(number: int) -> float:
        single = {key: value for key, value in data.items() if key not in ("sweep", "answer")}
        one = {**single, "cluster": {"topology": "leaf_spine_100g", "world_size": number}}
        (report,) = reports(compared(one))
        return float(report["exposed_comm_time_s"] / report["step_time_s"])

    assert share(gpus - 1) <= 0.5 < share(gpus)
    assert told.sentences[0].startswith(f"The job has over 50 % exposed communication from {gpus} GPUs on: 0.0 % at 1")
    # A value that is never reached is told with both ends.
    never = answered(data | {"answer": [asked | {"above": 0.99}]})
    assert never.sentences[0].startswith("The job has at most 99 % exposed communication from 1 GPU to 16 GPUs: ")


def test_what_above_belongs_to_is_told() -> None:
    with pytest.raises(ScenarioError, match="belongs to threshold; remove the key"):
        load_scenario(SHARDED | {"answer": [{"finding": "change", "above": 2}]})
    alone = {key: value for key, value in SHARDED.items() if key not in ("compare", "baseline")}
    asked = {"finding": "threshold", "along": "training.seq_len", "between": [64, 128]}
    with pytest.raises(ScenarioError, match="add above: VALUE to search for a value instead"):
        load_scenario(alone | {"answer": [asked]})


def test_a_change_of_the_time_within_the_uncertainty_is_told() -> None:
    of = compared(SHARDED | {"compare": {"training.sharding.bucket_size": ["25 MiB", "400 MiB"]}, "answer": ["change"]}
                  | {"training": {**SHARDED["training"], "sharding": {"strategy": "ddp"}}})  # fmt: skip
    first, second = reports(of)
    change = abs(second["step_time_s"] / first["step_time_s"] - 1)
    uncertain = max(interval_width(report, "step_time_s") or 0.0 for report in (first, second))
    assert 0 < change < uncertain
    assert f"; a tie within the uncertainty of ±{percent_text(uncertain)})" in answer(of).sentences[0]


def test_a_list_of_changes_has_the_uncertainty_of_a_small_change_of_the_time() -> None:
    """Bucket sizes change the time of ddp by a few per cent, and the memory by exactly known bytes."""
    sizes = ["25 MiB", "100 MiB", "200 MiB", "400 MiB"]
    of = compared(SHARDED | {"compare": {"training.sharding.bucket_size": sizes}, "answer": ["change"]}
                  | {"training": {**SHARDED["training"], "sharding": {"strategy": "ddp"}}})  # fmt: skip
    told = answer(of).sentences[1]
    assert told.startswith("Time and peak memory of the other settings vs ")
    uncertain = percent_text(max(interval_width(report, "step_time_s") or 0.0 for report in reports(of)))
    assert re.search(rf" % \(a tie within ±{uncertain}\) and ", told)


def test_a_setting_that_fits_without_a_rival_is_told_first_if_it_is_faster() -> None:
    """Four L4: with the optimizer on the host both fit, without only full checkpointing, which is faster than both."""
    data: dict[str, Any] = {
        "name": "lone",
        "cluster": {"topology": "pcie_workstation", "world_size": 4, "gpu": "l4"},
        "training": {"model": "gpt2_xl", "seq_len": 1024, "micro_batch_size": 7, "sharding": "zero3"},
        "compare": {"training.activation_checkpointing": ["none", "full"]},
        "sweep": {"training.offload": ["none", "optimizer"]},
    }
    of = compared(data)
    fits = {row.index: row.fits for row in of.rows}
    told = answer(of)
    alone = next(row for row in of.rows if row.fits and row.condition == {"training.offload": "none"})
    assert sum(fits.values()) == 3
    assert alone.report is not None
    time = format_time(alone.report["step_time_s"])
    assert told.sentences[0] == f"With offload none, only full checkpointing fits: {time}."
    assert told.sentences[1].startswith("With offload optimizer, ")
    assert told.spoken[0] == alone.index
    # Where nothing has a rival, the conditions are told one by one.
    larger = answered(data | {"training": {**data["training"], "micro_batch_size": 12}})
    assert all(", only full checkpointing fits: " in sentence for sentence in larger.sentences)
    # Whether something fits is told under every condition.
    fit = answered(data | {"answer": ["fit"]})
    assert [sentence.partition(",")[0] for sentence in fit.sentences] == ["With offload optimizer", "With offload none"]


MANY = {
    "name": "many", "cluster": {"topology": "dgx_a100", "world_size": 8},
    "training": {"model": "gpt2", "seq_len": 256, "cuda_graphs": "full_iteration"},
    "compare": {"training.sharding": ["ddp", "zero1", "zero2", "zero3"], "training.framework": ["torchtitan", "nemo"]},
    "sweep": {"training.seq_len": [256, 512]},
}  # fmt: skip


def test_an_effect_on_many_settings_is_a_range_with_its_two_ends() -> None:
    told = answer(compared(MANY | {"answer": [{"finding": "effect", "along": "training.seq_len"}]}))
    changes = [one["change"] for one in told.findings[0].numbers["changes"]]
    (sentence,) = told.sentences
    found = re.fullmatch(
        r"512 tokens vs 256 tokens: time per token -(\d+) % with .+ to -(\d+) % with .+\.",
        sentence,
    )
    assert found is not None
    assert [int(percent) for percent in found.groups()] == [round(-100 * pick(changes)) for pick in (min, max)]
    both = answer(
        compared(MANY | {"answer": [{"finding": "effect", "along": "training.seq_len", "of": ["time", "memory"]}]})
    )
    # The ends belong to one measure each.
    assert re.search(r": time per token [^;]+ to [^;]+; peak memory [^;]+ to [^;]+\.$", both.sentences[0])


def test_values_of_many_settings_name_the_best_three_and_a_range() -> None:
    told = answer(compared(MANY | {"answer": [{"finding": "value", "of": ["speed"]}]}))
    speeds = sorted((one["speed"] for one in told.findings[0].numbers["values"]), reverse=True)
    (sentence,) = told.sentences
    # ZeRO-1 and ZeRO-2 take equally long and share a clause.
    assert f" reach {speeds[0]:,.0f} tokens/s; " in sentence
    assert sentence.endswith(f"; 5 further settings reach {speeds[-1]:,.0f} tokens/s to {speeds[3]:,.0f} tokens/s.")


def test_a_speed_is_reached_and_a_time_is_taken() -> None:
    """`time_per_token` is shown as a speed, and its changes are changes of a time."""
    per_token, time = (find(name, "training") for name in ("time_per_token", "time"))
    assert (per_token.value_verb, per_token.verb, per_token.text(1 / 500)) == ("reaches", "takes", "500 tokens/s")
    assert (time.value_verb, time.verb) == ("takes", "takes")
    told = answer(compared(MANY | {"answer": [{"finding": "value", "of": ["time_per_token"]}]}))
    assert not re.search(r"takes? (over |at most )?[\d,]+ tokens/s", told.sentences[0])
    assert re.search(r"reach(es)? [\d,]+ tokens/s", told.sentences[0])


def test_changes_of_many_settings_name_the_best_and_a_range() -> None:
    told = answer(compared(MANY | {"answer": [{"finding": "change", "of": ["time"]}]}))
    changes = [one["time_change"] for one in told.findings[0].numbers["changes"][1:]]
    # The baseline has no change, and the best setting has the sentence before; the three worst are one range.
    worst = dict.fromkeys(f"{100 * change:.0f} %" for change in sorted(changes)[-3:])
    assert told.sentences[1].endswith(f"; 3 further settings: {' to '.join(worst)}.")


def test_the_cost_of_recompute_can_be_asked_as_hfu() -> None:
    """HFU counts recomputed FLOPs, so it exceeds MFU under full checkpointing only."""
    data = {
        "name": "again", "cluster": {"topology": "dgx_h100", "world_size": 8},
        "training": {"model": "gpt2", "seq_len": 512, "cuda_graphs": "full_iteration"},
        "compare": {"training.activation_checkpointing": ["none", "full"]},
        "answer": [{"finding": "value", "of": ["mfu", "hfu"]}],
    }  # fmt: skip
    of = compared(data)
    told = answer(of)
    none, full = told.findings[0].numbers["values"]
    assert none["hfu"] == pytest.approx(none["mfu"], rel=1e-12)
    assert full["hfu"] > 1.1 * full["mfu"]
    assert f"{100 * full['mfu']:.1f} % MFU and {100 * full['hfu']:.1f} % HFU" in told.sentences[0]
    assert {"MFU", "HFU"} <= set(small_tables(of, told)[0].columns)
    # The tables of all points have a column for it only if a step recomputes.
    for kept, there in ((slice(None), True), (slice(1), False)):
        rows = [{"settings": {"seed": 0}, "report": report, "engine": ""} for report in reports(of)[kept]]
        heads = [column.header for table in points_tables(rows, 400) for column in table.columns]
        assert ("HFU" in heads) == there
    assert "hfu" in [column.key for column in figures(of)]


def test_a_leader_that_does_not_fit_further_on_is_not_overtaken() -> None:
    """Without checkpointing, two sequences a micro-batch need 113 GiB; with one it is the fastest."""
    data = {
        "name": "leader",
        "cluster": {"topology": "dgx_h100", "world_size": 8},
        "training": {"model": "llama3_8b", "seq_len": 8192},
        "compare": {"training.sharding": ["zero1", "zero3"], "training.activation_checkpointing": ["none", "full"]},
        "sweep": {"training.micro_batch_size": [1, 2]},
        "answer": ["best"],
    }
    answer = simulator.play(data).answer
    assert not any("Crossover" in sentence for sentence in answer.sentences)
    assert any("do not fit in memory" in sentence for sentence in answer.sentences)


def test_an_axis_with_a_single_value_is_named_once_and_in_no_label() -> None:
    of = compared(
        SHARDED
        | {
            "compare": {"training.sharding": ["ddp", "zero3"], "training.attention": ["flash"]},
            "sweep": {"cluster.world_size": [4], "training.micro_batch_size": [1, 2]},
        }
    )
    assert [of.name(setting) for setting in of.settings] == ["ddp", "zero3"]
    assert [of.where(condition) for condition in of.conditions] == ["micro-batch 1", "micro-batch 2"]
    assert "flash attention, 4 GPUs" in of.setting_text or "4 GPUs, flash attention" in of.setting_text


def test_a_tie_under_one_condition_names_the_condition() -> None:
    """Between two GPUs, ring and direct send the same bytes in the same steps; among eight, direct has fewer steps."""
    sentence = (
        answered(
            RING_OR_NAIVE
            | {
                "compare": {"collective.algorithm": ["ring", "direct"]},
                "sweep": {"cluster.world_size": [2, 8]},
            }
        )
        .findings[0]
        .sentences[0]
    )
    assert "all settings are equal with 2 GPUs" in sentence


def test_changes_over_many_conditions_name_three_settings_and_count_the_rest() -> None:
    """Nine settings are compared with the baseline: a sentence names the best three, and has a range for six."""
    found = answered(
        SHARDED
        | {
            "compare": {
                "training.sharding": [
                    "ddp",
                    "zero1",
                    "zero2",
                    "zero3",
                    {"strategy": "zero3", "reshard_after_forward": False},
                ],
                "training.activation_checkpointing": ["none", "full"],
            },
            "sweep": {"cluster.world_size": [2, 8]},
            "answer": ["change"],
        }
    ).findings[0]
    (change, *_) = [sentence for sentence in found.sentences if sentence.startswith("Change of time")]
    # 120 columns a line.
    assert len(change) <= 3 * 120
    assert re.search(r"; \d further settings: ", change)


def test_an_answer_ends_with_the_summaries_of_the_algorithms_that_it_names() -> None:
    """The demo's sentences name ring and naive; an answer without a comparison of algorithms names none."""
    told = answered(RING_OR_NAIVE)
    summaries = {name: ALGORITHMS.find(name).summary for name in ("ring", "naive")}
    assert dict(told.algorithms) == summaries == told.to_dict()["algorithms"]
    last = told.text.splitlines()[-1]
    assert last == f"Algorithms: naive ({summaries['naive']}), ring ({summaries['ring']})."
    assert not answered(SHARDED).algorithms


def test_the_slow_cable_of_the_shipped_scenario_is_slow_in_both_directions() -> None:
    """A key of `link_factors` is one direction: a cable has two links with the same ends."""
    scenario = load_scenario(registry.find("scenario", "slow_link"))
    whole, slow = scenario.sweep["cluster.link_factors"]
    back = {"->".join(reversed(link.split("->"))): factor for link, factor in slow.items()}
    assert not whole
    assert len(slow) == 2
    assert slow == back


def test_the_best_setting_is_followed_by_the_lack_of_the_settings_that_do_not_fit() -> None:
    """DDP keeps 16 bytes a parameter, 120 GiB for Llama 3 8B, in 80 GiB; `value` tells its figures last as well."""
    base = {
        "name": "lacks", "cluster": {"topology": "dgx_a100", "world_size": 8},
        "training": {"model": "llama3_8b", "seq_len": 1024},
        "compare": {"training.sharding": ["ddp", "zero1", "zero3"]},
        "answer": ["best", "value"],
    }  # fmt: skip
    of = compared(base)
    verdict = margin_of(of.rows[0].report or {}).verdict
    best, value = answer(of).sentences
    assert not best.startswith("ddp")
    assert best.endswith(f"; ddp {verdict}.")
    order = sorted(of.rows[1:], key=lambda row: -(row.report or {})["tokens_per_s"])
    assert value.startswith(of.name(order[0].setting))
    assert re.search(r"; ddp reaches [^;]*, but does not fit in memory\.$", value)


def test_an_answer_explains_the_algorithms_of_its_question() -> None:
    """The ring wins everywhere; the question names the naive algorithm."""
    scenario = load_scenario(RING_OR_NAIVE | {"sweep": {"collective.size": ["4 MiB", "16 MiB"]}})
    scenario = scenario.replaced(question="How do a ring and the naive way compare?")
    of = Comparison(scenario, list(play_points(list(enumerate(points(scenario))))))
    told = answer(of)
    assert not any("naive" in sentence.split("ahead")[0] for sentence in told.sentences)
    assert list(told.algorithms) == ["ring", "naive"]
