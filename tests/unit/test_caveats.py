"""What must be known to trust an answer stands in the terminal, on the page and in report.json."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.basics import registry
from simulator.cluster.build import build
from simulator.cluster.gpu_file import load_gpu
from simulator.cluster.topology_file import load_topology
from simulator.findings.caveats import caveats as found_caveats
from simulator.findings.comparison import Comparison
from simulator.scenario.load import load_scenario, points
from simulator.step.framework import load_framework
from simulator.sweeps.sweep import play_points
from tests.commands import commands_in

UNMEASURED = (
    "no collective of this run was measured on star_100g; times assume rated link bandwidths and no start-up cost"
)
BORROWED = "not measured here: as two dgx_b200 nodes with cards half as fast"


def collective(topology: str, ranks: int, **keys: Any) -> dict[str, Any]:
    section = {"operation": "all_reduce", "size": "64 MiB", "payload": False} | keys
    return {"name": "demo", "cluster": {"topology": topology, "world_size": ranks}, "collective": section}


def training(topology: str, ranks: int, **keys: Any) -> dict[str, Any]:
    # Launches of so small a model would take longer than its kernels.
    section = {"model": "gpt2", "seq_len": 512, "sharding": "ddp", "cuda_graphs": "full_iteration"} | keys
    return {"name": "demo", "cluster": {"topology": topology, "world_size": ranks}, "training": section}


def caveats(data: dict[str, Any]) -> dict[str, list[str]]:
    told: dict[str, list[str]] = {}
    for one in simulator.play(data).answer.caveats:
        told.setdefault(one.topic, []).append(one.text)
    return told


def rows_of(page: str, name: str) -> list[str]:
    """Facts of that name in the page's tables."""
    return [unescape(text) for text in re.findall(rf'<td>{name}</td><td class="text">(.*?)</td>', page)]


def test_what_auto_took_and_why_is_told_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = commands_in(tmp_path, monkeypatch, capsys)
    Path("auto.yaml").write_text(json.dumps(collective("dgx_a100", 16, algorithm="auto")), encoding="utf-8")
    told = " ".join(cli("run", "auto.yaml", "--out", "done").out.split())
    assert f"Trust: auto chose blueconnect: dgx_a100 runs blueconnect ({BORROWED}; fitted to 16 B200: " in told
    assert told.count(BORROWED) == 1
    (on_page,) = rows_of(Path("done/report.html").read_text(encoding="utf-8"), "auto")
    assert on_page.startswith(f"auto chose blueconnect: dgx_a100 runs blueconnect ({BORROWED}; ")
    report = json.loads(Path("done/report.json").read_text(encoding="utf-8"))
    assert report["answer"]["caveats"] == [{"topic": "auto", "text": on_page}]
    assert BORROWED in report["points"][0]["report"]["constants"]


def test_points_in_which_auto_takes_one_algorithm_are_told_together() -> None:
    told = caveats(collective("star_100g", 8) | {"sweep": {"collective.size": ["4 KiB", "8 KiB", "1 GiB"]}})
    assert len(told["auto"]) == 1
    assert re.match(
        r"auto chose halving_doubling for 3 points: shortest time by formula: halving_doubling ", told["auto"][0]
    )
    assert told["network"] == [UNMEASURED]


def test_a_topology_without_measured_collectives_is_named() -> None:
    assert caveats(collective("star_100g", 8, algorithm="ring"))["network"] == [UNMEASURED]
    told = caveats(training("star_100g", 8))
    assert told["network"] == [UNMEASURED]
    assert told["interval"][0].endswith(
        "; on unmeasured networks, exposed communication adds the error of measured collectives"
    )
    assert "network" not in caveats(training("star_100g", 1))


@pytest.mark.parametrize(("topology", "ranks"), [("dgx_a100", 12), ("dgx_a100", 17), ("leaf_spine_100g", 5)])
def test_a_partly_used_last_node_is_told(topology: str, ranks: int) -> None:
    """The built cluster has the ranks of each node; a node has as many GPUs as the first."""
    first, *_, last = build(topology, ranks).nodes
    nodes, idle = len(build(topology, ranks).nodes), len(first) - len(last)
    text = (
        f"{ranks} GPUs take {nodes} nodes of {len(first)} GPUs: the last node runs {len(last)} rank"
        f"{'' if len(last) == 1 else 's'}, and {idle} GPU{'' if idle == 1 else 's'} of this node "
        f"{'is' if idle == 1 else 'are'} idle"
    )
    assert caveats(collective(topology, ranks, algorithm="ring"))["nodes"] == [text]
    assert caveats(training(topology, ranks))["nodes"] == [text]


def test_full_nodes_a_single_node_and_a_placement_leave_no_node_partly_used() -> None:
    assert not any("nodes" in caveats(collective("dgx_a100", ranks, algorithm="ring")) for ranks in (4, 8, 16))
    assert "nodes" not in caveats(collective("star_100g", 12, algorithm="ring"))
    spread = collective("dgx_a100", 12, algorithm="ring")
    spread["cluster"]["placement"] = [*range(6), *range(8, 14)]
    assert "nodes" not in caveats(spread)


@pytest.mark.parametrize(
    ("topology", "ranks", "placement", "parallelism", "cut"),
    [
        # Ranks 64 to 95 are eight on the first rack of 72, and 24 on the second.
        ("gb200_nvl72", 128, None, {"ep": 32}, ("ep groups of 32 ranks have 8 to 32 ranks", 64)),
        ("gb200_nvl72", 128, {"gpus_per_node": 64}, {"ep": 32}, ()),
        # Ranks 6 and 7 are on the first node of eight, ranks 8 to 11 on the second.
        ("dgx_h100", 24, None, {"ep": 6}, ("ep groups of 6 ranks have 2 to 6 ranks", 6)),
        # A list says itself which GPUs hold a group.
        ("dgx_h100", 24, [*range(12), *range(16, 28)], {"tp": 3}, ()),
        ("dgx_h100", 24, None, {"tp": 3}, ("tp groups of 3 ranks have 1 to 3 ranks", 6)),
        ("dgx_h100", 16, None, {"ep": 8}, ()),
    ],
)
def test_groups_that_nodes_cut_into_unequal_parts_are_told(
    topology: str, ranks: int, placement: Any, parallelism: dict[str, int], cut: tuple[str, int] | tuple[()]
) -> None:
    experts = {"model_type": "mixtral", "num_local_experts": 96, "num_experts_per_tok": 2}
    model = {
        "model_type": "llama", "num_attention_heads": 12, "num_key_value_heads": 12, "hidden_size": 768,
        "intermediate_size": 768, "num_hidden_layers": 1, "vocab_size": 768, "max_position_embeddings": 512,
    } | (experts if "ep" in parallelism else {})  # fmt: skip
    data = training(topology, ranks, model=model, seq_len=192, parallelism=parallelism)
    data["cluster"] |= {"placement": placement} if placement else {}
    texts = [text for text in caveats(data).get("nodes", []) if " groups of " in text]
    hint = " on a node; with cluster.placement {gpus_per_node: N}, every group has equally many on each of its nodes"
    assert texts == ([cut[0] + hint.replace("N", str(cut[1]))] if cut else [])


def test_a_plan_says_it_too() -> None:
    options: dict[str, Any] = {"seq_len": 512, "global_batch": "8seq", "fix": {"tp": 1, "pp": 1}, "best": 1}
    unknown = simulator.plan("gpt2", topology="star_100g", gpus=2, **options)
    assert f"{UNMEASURED[:1].upper()}{UNMEASURED[1:]}." in unknown.sentences
    known = simulator.plan("gpt2", topology="dgx_a100", gpus=2, **options)
    assert not any("rated link" in sentence for sentence in known.sentences)


def test_measured_constants_need_no_caveat_and_those_of_another_machine_do() -> None:
    assert caveats(collective("dgx_a100", 8, algorithm="ring")) == {}
    assert caveats(collective("dgx_a100", 16, algorithm="blueconnect")) == {
        "network": [f"constants of all_reduce are {BORROWED}"]
    }
    # Gathers and reduce-scatters have one origin; sums of small tensors have another.
    assert caveats(training("dgx_h100", 16, sharding="zero3"))["network"] == [
        "constants of all_gather and reduce_scatter are not measured here: inside nodes those of one node, between "
        "nodes those of the all_reduce of dgx_b200 (same cards)",
        "constants of all_reduce are not measured here: rates as aws_p5 (the same nodes, as much card bandwidth), "
        "start-up as dgx_b200 (the same cards)",
    ]
    told = caveats(training("dgx_a100", 8))
    assert list(told) == ["interval", "evidence", "framework"]
    assert re.fullmatch(
        r"uncertainty \(80 %\) of the step time: ±\d+ %, from the errors of comparable measured runs",
        told["interval"][0],
    )
    assert re.fullmatch(
        r"\d+ % of the time rests on kernels and collectives measured on this GPU and machine, \d+ % on assumptions",
        told["evidence"][0],
    )


@pytest.mark.parametrize("name", registry.names("topology"))
@pytest.mark.one_of(3)
def test_constants_of_other_machines_are_told_in_short_lines_that_name_their_operations(name: str) -> None:
    """Origins are told once, with every operation that has the origin."""
    if not load_topology(name).collectives:
        return
    for keys in ({"sharding": "zero3"}, {"sharding": "zero1", "clip_norm": 1.0}):
        lines = caveats(training(name, 16, **keys)).get("network", [])
        assert all(re.match(r"constants of [a-z_]+(, [a-z_]+)*( and [a-z_]+)? are not measured", one) for one in lines)
        assert all(len(one) <= 160 for one in lines)
        origins = [one.partition(" are ")[2] for one in lines]
        assert len(origins) == len(set(origins))


def test_a_kind_of_parallelism_that_no_run_of_the_framework_has_widens_the_interval() -> None:
    """Steps with experts were measured under nemo, and none under torchtitan."""
    keys = {"model": "qwen3_30b_a3b", "parallelism": {"ep": 8}, "collectives": "closed_form"}
    told = caveats(training("dgx_h100", 8, framework="torchtitan", **keys))["interval"][0]
    known = caveats(training("dgx_h100", 8, framework="nemo", **keys))["interval"][0]
    assert told.endswith(
        "from the errors of measured runs; no run of torchtitan with ep was measured, therefore the larger errors of "
        "unseen sources are used"
    )
    assert known.endswith("from the errors of comparable measured runs")
    widths = [int(re.findall(r"±(\d+) %", one)[0]) for one in (told, known)]
    assert widths[0] > widths[1]


def test_a_precision_of_which_no_training_was_measured_is_told() -> None:
    measured = caveats(training("dgx_h100", 8, precision="bf16"))["interval"][0]
    assert caveats(training("dgx_h100", 8, precision="fp8"))["interval"][0].endswith("comparable measured runs")
    for precision, dtype in (("fp32", "float32"), ("tf32", "tf32")):
        told = caveats(training("dgx_h100", 8, precision=precision))["interval"][0]
        assert told.endswith(
            f"; no training step with matmuls in {dtype} was measured, therefore the larger errors of unseen sources "
            "are used"
        )
        assert int(re.findall(r"±(\d+) %", told)[0]) > 1.5 * int(re.findall(r"±(\d+) %", measured)[0])
    # Training in fp8 was measured on NVIDIA's GPUs only.
    assert "matmuls in float8_e4m3fn on this chip" in caveats(training("mi300x_box", 8, precision="fp8"))["interval"][0]


def test_the_uncertain_rate_of_a_hosts_update_is_told() -> None:
    """The host's update takes nearly the whole step, and its rate may be off by the root of ten."""
    told = caveats(training("dgx_h100", 8, sharding="zero1", offload="optimizer"))["interval"][0]
    assert told.endswith("; the rate of the host's update is known within a factor of ten, which widens the interval")
    assert 100 < int(re.findall(r"±(\d+) %", told)[0]) < 100 * (10**0.5 - 1) * 1.2


def test_a_page_says_whose_runs_constants_were_fitted_to() -> None:
    page = simulator.play(training("dgx_h100", 8)).to_html()
    assert rows_of(page, "constants") == [
        "constants with which torchtitan slows kernels down: none is fitted to measured runs of its own; carried over "
        "from llm_foundry: parameter_bytes; carried over from dgxc, llm_foundry, llmq, mlperf, nanotron: sustained of "
        "H100; assumed: attention_masked, issue (docs/validation.md)"
    ]
    assert "measured constants of the framework" not in page
    compiled = rows_of(simulator.play(training("dgx_h100", 8, compile=True)).to_html(), "constants")[0]
    assert "torchtitan slows kernels down: fitted to its own measured runs: compiled;" in compiled
    core = rows_of(simulator.play(training("dgx_h100", 8, framework="megatron_core")).to_html(), "constants")[0]
    assert "measured runs of its own; " in core
    assert "carried over from dgxc, llm_foundry, llmq, mlperf, nanotron: sustained of H100" in core
    own = rows_of(simulator.play(training("dgx_h100", 8, framework="llm_foundry")).to_html(), "constants")[0]
    assert "fitted to its own measured runs: attention_masked, parameter_bytes;" in own
    bare = rows_of(simulator.play(training("dgx_h100", 8, framework="bare")).to_html(), "constants")
    assert bare == ["no fitted constants (framework: bare)"]
    other = rows_of(simulator.play(training("mi300x_box", 8)).to_html(), "constants")[0]
    assert "; loss of mi300x under sustained load: median of other chips (" in other


@pytest.mark.parametrize("name", registry.names("framework"))
def test_every_constant_says_whose_runs_it_was_fitted_to_as_its_source_does(name: str) -> None:
    framework = load_framework(name)
    whose, sources = framework.facts["fitted_to"], framework.facts["sources"]
    for key, owner in whose.items():
        taken = re.match(r"as (\w+)", sources[key])
        if taken and "recalled" not in sources[key]:
            assert owner == taken[1]
        assert owner or "fitted" not in sources[key]
        assert {*owner.split(", ")} <= {"", "dgxc", "mlperf", "simumax", *registry.names("framework")}
    told = framework.fitted_to(load_gpu("h100_sxm"))
    assert sum(names.count("sustained of H100") for names in told.values()) == 1


MIB = 2**20
# Context of an A100, and a communicator of two GPUs over NVLink (step/process_memory.py).
BESIDE = (437 + 544) * MIB
TIGHT = (
    "stay free beside the CUDA context and NCCL buffers: kernels that libraries load (not modelled) need up to 512 MiB"
)


@pytest.mark.parametrize(
    ("free", "told"),
    [
        (BESIDE + 511 * MIB, [f"only 511 MiB of 3.46 GiB {TIGHT} with zero1"]),
        (BESIDE + 512 * MIB, []),
    ],
)
def test_a_step_that_fits_by_less_than_its_process_and_loaded_kernels_is_warned_of(free: int, told: list[str]) -> None:
    """The second point has exactly `free` bytes beside its reserved memory of 2 GiB, the first has plenty."""
    scenario = load_scenario(training("dgx_a100", 2) | {"compare": {"training.sharding": ["ddp", "zero1"]}})
    plenty, tight = play_points(list(enumerate(points(scenario))))
    memory = {"peak_memory_bytes": 2**30, "peak_reserved_bytes": 2 * 2**30, "fits": True}
    changed = [
        replace(one, report={**(one.report or {}), **memory, "capacity_bytes": 2 * 2**30 + room})
        for one, room in ((plenty, 40 * 2**30), (tight, free))
    ]
    found = found_caveats(Comparison(scenario, changed))
    assert [one.text for one in found if one.topic == "memory"] == told


def test_a_plan_warns_of_a_best_setting_that_fits_tightly() -> None:
    options: dict[str, Any] = {"seq_len": 512, "global_batch": "8seq", "fix": {"tp": 1, "pp": 1}, "best": 1}
    found = simulator.plan("gpt2", topology="dgx_a100", gpus=2, **options)
    assert not any("stay free" in sentence for sentence in found.sentences)
    best = found.best[0]
    tight = {**best.report, "capacity_bytes": best.report["process_bytes"] + 2**28}
    said = replace(found, best=(replace(best, report=tight),)).sentences
    assert any(one.startswith("Only 256 MiB of ") and TIGHT in one for one in said)


def test_a_step_outside_the_validated_range_says_so_as_a_plan_does() -> None:
    (told,) = caveats(training("dgx_h100", 8, parallelism={"pp": 2}, framework="internevo"))["range"]
    assert told == "outside the validated range: no measured run of internevo has 1f1b, pp"
    assert "range" not in caveats(
        training("dgx_h100", 8, parallelism={"tp": 2}, framework="nanotron", sharding="zero1")
    )
    both = training("dgx_h100", 8, framework="nanotron", sharding="zero1") | {
        "compare": {"training.sharding": ["zero1", "zero2"]}
    }
    assert caveats(both)["range"] == ["outside the validated range: no measured run uses zero2 (1 of 2 points)"]


@pytest.mark.parametrize("algorithm", ["auto", pytest.param("ring", marks=pytest.mark.long)])
@pytest.mark.parametrize("name", [name for name in registry.names("topology") if load_topology(name).collectives])
@pytest.mark.one_of(3)
def test_constants_of_another_machine_are_told(name: str, algorithm: str) -> None:
    """Over two nodes, with the machine's own algorithm and with an algorithm that the scenario names."""
    file, ranks = load_topology(name), 2 * len(build(name, 2).graph.graph["nodes"][0])
    for operation in file.collectives:
        if algorithm == "ring" and operation == "all_to_all":
            continue
        data = collective(name, ranks, operation=operation, algorithm=algorithm)
        report = simulator.simulate(data).report
        told = " ".join(text for texts in caveats(data).values() for text in texts)
        for source in (report.constants or "").split(" | "):
            assert not source.startswith("not measured") or source.partition(";")[0] in told, operation
