"""`simulator check` and `simulator diff`: estimates before a run, differences after two."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from simulator import load_scenario
from simulator.engine.compiled.library import is_there
from simulator.engine.play import BYTES_A_TRANSFER
from simulator.report.views import view as views
from simulator.results.run_differences import ReportedRun, ValueChange, differences
from simulator.run.cost_estimate import effort
from simulator.run.outcome import read_outcome
from simulator.run.scenario_cluster import Clusters
from simulator.scenario.build_training import to_step
from simulator.step.plan import plan_step
from tests.commands import Command, commands_in


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def point(time: float, link: str = "a->b", **settings: Any) -> dict[str, Any]:
    return {"settings": settings, "engine": "events", "report": {"time_s": time, "bottleneck": {"link": link}}}


def reported(*points: dict[str, Any], scenario: dict[str, Any] | None = None) -> ReportedRun:
    return ReportedRun(Path(), tuple(read_outcome(number, own) for number, own in enumerate(points)), scenario)


def test_check_counts_points_and_transfers_and_plays_nothing(cli: Command, tmp_path: Path) -> None:
    answer = cli("check", "both.yaml", "--set", "sweep.cluster.world_size=[2, 4]")
    assert answer.code == 0
    told = dict(line.split(":", 1) for line in answer.out.splitlines())
    # A ring sends 2 (n - 1) n parts, a tree 2 (n - 1) arrays.
    expected = sum(2 * (n - 1) * n + 2 * (n - 1) for n in (2, 4))
    assert (told["points"].strip(), told["transfers"].strip()) == ("4", str(expected))
    assert told["question"].strip() == "How fast is a small ring?"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["both.yaml", "small.yaml"]


def test_the_estimated_time_counts_a_rank_of_each_pipeline_stage() -> None:
    """The report reads the operations of one rank per stage: with pp stages, about pp lists as long as one stage's.

    Without the time of planning, which is measured, both estimates consist of a few terms with known counts.
    """
    text = {
        "name": "x",
        "cluster": {"topology": "dgx_h100", "world_size": 64},
        "training": {
            "model": "llama3_8b",
            "seq_len": 4096,
            "gradient_accumulation_steps": 16,
            "parallelism": {"pp": 8},
        },
    }
    scenario = load_scenario(text)
    assert scenario.training is not None
    plan = plan_step(Clusters().of(scenario), to_step(scenario.training, 64))
    # Ranks of a stage share a list. Every operation in the report takes 20 us.
    reported = sum(len(plan.program.ranks[rank]) for rank in range(0, 64, 8))
    assert len({id(ops) for ops in plan.program.lists.lists}) == 8
    assert reported > 4 * len(plan.program.ranks[0])
    assert effort(scenario).seconds > 20e-6 * reported


@pytest.mark.parametrize("command", ["check", "run"])
def test_what_is_too_large_is_one_line_from_check_and_from_run(
    command: str, cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulator.basics.host_memory.memory", lambda: 2.0**20)
    settings = ("cluster.world_size=64", "collective.algorithm=direct")
    answer = cli(command, "small.yaml", *(word for setting in settings for word in ("--set", setting)))
    assert answer.code == 2
    assert len(answer.faults) == 1
    assert "direct over 64 ranks: 8.06e+03 transfers" in answer.err


def test_a_collective_too_large_is_named_by_the_option_that_was_typed(
    cli: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulator.basics.host_memory.memory", lambda: 24.0 * 2**30)
    answer = cli("collective", "all_reduce", "--algorithm", "direct", "--world-size", "6000")
    assert (answer.code, len(answer.faults)) == (2, 1)
    assert answer.err.startswith("--algorithm: direct over 6,000 ranks")


def test_check_counts_the_payload_of_the_largest_point(cli: Command) -> None:
    size = "collective.size=16 MiB"
    with_arrays = cli("check", "small.yaml", "--set", size).out
    without = cli("check", "small.yaml", "--set", size, "--set", "collective.payload=false").out
    assert "memory:    about 128 MiB for the largest point" in with_arrays
    # Without arrays: four operations, and the ring's three rounds of four rows.
    operations, rows = (4 * 40, 12 * 400) if is_there() else (4 * 1000, 0)
    transfers = 0 if is_there() else 24 * BYTES_A_TRANSFER
    assert f"memory:    about {operations + rows + transfers} B for the largest point" in without


def test_check_finds_what_only_the_cluster_shows(cli: Command) -> None:
    answer = cli("check", "small.yaml", "--set", "cluster.link_factors={'gpu0->gpu1': 0.5}")
    assert (answer.code, answer.out, len(answer.faults)) == (2, "", 1)
    assert "link: got 'gpu0->gpu1'" in answer.err


def test_check_tells_of_all_points_that_cannot_be_built(cli: Command) -> None:
    """Each different fault is one line, with how many points have it and the first of them."""
    links = "cluster.link_factors={'gpu3->switch0': 0.5, 'gpu0->hub': 0.5}"
    answer = cli("check", "both.yaml", "--set", "cluster.world_size=2,3,4", "--set", links)
    assert (answer.code, answer.out) == (2, "")
    for line, ranks in zip(answer.faults, (2, 3, 4), strict=True):
        settings = f"collective.algorithm=ring, cluster.world_size={ranks}"
        assert line.startswith(f"both.yaml: 2 of 6 points are invalid, the first with {settings}: ")
        assert ("link: got 'gpu3->switch0'" in line) == (ranks < 4)
        assert "link: got 'gpu0->hub'; one of gpu0->switch0" in line


def test_check_warns_of_a_step_that_exceeds_the_memory_of_its_gpu(cli: Command, tmp_path: Path) -> None:
    """70 billion parameters need 16 B each under ddp: 1.04 TiB. 8 billion under zero3 on 8 GPUs fit."""
    training = "training: {model: llama3_70b, seq_len: 8k, sharding: ddp}"
    text = f"name: full\ncluster: {{topology: dgx_h100, world_size: 8}}\n{training}\n"
    (tmp_path / "full.yaml").write_text(text, encoding="utf-8")
    full = cli("check", "full.yaml")
    assert (full.code, full.out.splitlines()[0]) == (0, "full.yaml: valid")
    assert re.fullmatch(
        r"warning: full.yaml: GPU memory: the step does not fit: a rank needs at least 1\.\d+ TiB and has 79.6 GiB; "
        "`simulator run` names changes that make the step fit\n",
        full.err,
    )
    small = ("check", "full.yaml", "--set", "training.model=llama3_8b")
    assert cli(*small, "--set", "training.sharding=zero3").err == ""
    several = cli(*small, "--set", "training.sharding=zero3,ddp").err
    assert "1 of 2 points does not fit; in the first (training.sharding=ddp), a rank needs at least 1" in several


def test_check_warns_of_a_step_that_may_exceed_the_memory_of_its_gpu(cli: Command, tmp_path: Path) -> None:
    """ZeRO-2 of DeepSeek-V3 holds at least 70 GiB, reserves 82.3 GiB in a run, and needs 3 GiB beside them."""
    parallelism = "parallelism: {pp: 4, ep: 64, experts: {dispatch: deduplicated}}"
    training = (
        "training: {model: deepseek_v3, seq_len: 4096, global_batch: 512seq, mtp_layers: 1, "
        f"activation_checkpointing: full, {parallelism}, sharding: zero2}}"
    )
    text = f"name: close\ncluster: {{topology: dgx_h100, world_size: 256}}\n{training}\n"
    (tmp_path / "close.yaml").write_text(text, encoding="utf-8")
    assert cli("check", "close.yaml").err == (
        "warning: close.yaml: GPU memory: the step may not fit: a rank needs at least 73 GiB and may reserve up to "
        "86.4 GiB, and has 79.6 GiB; `simulator run` finds the exact need\n"
    )
    several = cli("check", "close.yaml", "--set", "training.sharding=zero2,zero3").err
    assert "1 of 2 points may not fit: in the first (training.sharding=zero2), a rank needs at least 73" in several


def test_a_run_does_not_differ_from_itself(cli: Command) -> None:
    cli("run", "both.yaml", "--out", "one")
    answer = cli("diff", "one", "one/report.json")
    assert (answer.code, answer.out) == (0, "no difference: every figure is equal at every point\n")
    same = {"scenario": [], "points": {"both": 2, "only_first": [], "only_second": []}, "differences": []}
    assert cli("diff", "one", "one", "--json").data == same


def test_a_figure_that_was_rounded_otherwise_does_not_differ_and_others_have_units(
    cli: Command, tmp_path: Path
) -> None:
    for name in ("one", "other"):
        assert cli("run", "small.yaml", "--out", name, "--no-report").code == 0
    report = tmp_path / "other" / "report.json"
    data = json.loads(report.read_text())
    took = data["points"][0]["report"]["time_s"]

    def again(time: float) -> str:
        data["points"][0]["report"]["time_s"] = time
        report.write_text(json.dumps(data))
        return cli("diff", "one", "other").out

    assert again(took * (1 + 1e-14)) == "no difference: every figure is equal at every point\n"
    assert f"time_s: {1e6 * took:.4g} us -> {1.1e6 * took:.4g} us (+10 %)" in again(took * 1.1).splitlines()
    # Four digits would be equal: every digit is printed.
    assert f"time_s: {took} s -> {took * (1 + 1e-7)} s (+1e-05 %)" in again(took * (1 + 1e-7)).splitlines()
    # From nearly nothing, a factor says more than a percentage with ten digits.
    assert f"time_s: {1e6 * took:.4g} us -> {took * 1e6:.4g} s (x 1e6)" in again(took * 1e6).splitlines()


def test_two_runs_differ_in_what_was_changed(cli: Command) -> None:
    cli("run", "both.yaml", "--out", "one")
    cli("run", "both.yaml", "--out", "two", "--set", "cluster.link_factors={'gpu0->switch0': 0.5}")
    answer = cli("diff", "one", "two")
    assert answer.code == 0
    (slower,) = (line for line in answer.out.splitlines() if line.startswith("collective.algorithm=ring: time_s:"))
    # A part makes six hops round a ring of four, so it crosses the slow link twice, with 1 KiB at half the bandwidth.
    before, late = 6 * (10e-6 + 1024 / 12.5e9), 2 * 1024 / 12.5e9
    assert f"({100 * late / before:+.3g} %)" in slower
    changes = cli("diff", "one", "two", "--json").data["differences"]
    assert {change["key"] for change in changes} >= {"time_s", "algbw", "busbw"}


def a_step(time: float, memory: int, tokens: int = 4096) -> dict[str, Any]:
    """The report of a training step on one GPU."""
    report = {"step_time_s": time, "tokens_per_s": tokens / time, "peak_memory_bytes": memory, "because": f"{time}"}
    return report | {"intervals": {"step_time_s_80_low": time / 2}, "closed_form_collectives": memory}


def test_the_first_line_has_the_change_of_time_and_memory_with_both_names(cli: Command, tmp_path: Path) -> None:
    """The median of several points stands between the least and the largest change."""

    def told(*pairs: tuple[dict[str, Any], dict[str, Any]]) -> str:
        for name, reports in zip(("one", "two"), zip(*pairs, strict=True), strict=True):
            several = [{"seed": seed} if len(pairs) > 1 else {} for seed in range(len(pairs))]
            points = [
                {"settings": settings, "engine": "events", "report": report}
                for settings, report in zip(several, reports, strict=True)
            ]
            (tmp_path / f"{name}.json").write_text(json.dumps({"points": points}), encoding="utf-8")
        return cli("diff", "one.json", "two.json").out.splitlines()[0]

    assert told((a_step(2.0, 2**30), a_step(2.2, 2**29))) == (
        "two.json takes 10 % more time (2 s -> 2.2 s) and needs 50 % less peak memory (1 GiB -> 512 MiB) compared with "
        "one.json."
    )
    # A step with twice the tokens takes longer, and is faster per token.
    assert told((a_step(2.0, 2**30), a_step(3.2, 2**30, 8192))).startswith(
        "two.json takes 20 % less time per token (2,048 tokens/s -> 2,560 tokens/s) and needs the same peak memory"
    )
    assert told(*((a_step(2.0, 2**30), a_step(2.0 * ratio, 2**30)) for ratio in (1.1, 0.5, 3.0))) == (
        "two.json takes 10 % more time (-50 % to 3.0x) and needs the same peak memory compared with one.json (median "
        "of 3 common points)."
    )


def test_figures_that_follow_from_others_are_only_counted(cli: Command, tmp_path: Path) -> None:
    for name, time in (("one", 2.0), ("two", 4.0)):
        points = [{"settings": {}, "engine": "events", "report": a_step(time, int(time) * 2**30)}]
        (tmp_path / f"{name}.json").write_text(json.dumps({"points": points}), encoding="utf-8")
    lines = cli("diff", "one.json", "two.json").out.splitlines()
    assert lines[2:] == [
        "6 figures differ in 1 common point.",
        "step_time_s: 2 s -> 4 s (+100 %)",
        "tokens_per_s: 2,048 -> 1,024 (-50 %)",
        "peak_memory_bytes: 2 GiB -> 4 GiB (+100 %)",
        "Not listed: 3 of because, intervals, closed_form_collectives; --json lists them.",
    ]
    assert len(cli("diff", "one.json", "two.json", "--json").data["differences"]) == 6


def test_main_measures_differ_first_and_the_largest_ratio_of_each_kind_is_first() -> None:
    """Step time doubles (2), memory falls to a quarter (4); of the others a missing value is the largest change."""
    before = a_step(2.0, 4 * 2**30) | {"mfu": 0.5, "comm_time_s": 1.0, "kinds": ["a"], "gathered": None}
    after = a_step(4.0, 2**30) | {"mfu": 0.25, "comm_time_s": 8.0, "kinds": ["b"], "gathered": 3}
    one, two = (reported({"settings": {}, "engine": "events", "report": report}) for report in (before, after))
    (common,) = differences(one, two).common
    assert [(change.key, change.derived) for change in common.changes] == [
        ("peak_memory_bytes", False), ("step_time_s", False), ("tokens_per_s", False),
        ("gathered", False), ("comm_time_s", False), ("mfu", False), ("kinds", False),
        ("because", True), ("intervals.step_time_s_80_low", True), ("closed_form_collectives", True),
    ]  # fmt: skip


def test_points_are_matched_by_their_settings_not_by_their_place() -> None:
    one = point(1.0, seed=0), point(2.0, seed=1)
    found = differences(reported(*one), reported(*reversed(one)))
    assert found.nothing
    assert [common.places for common in found.common] == [(0, 1), (1, 0)]


def test_a_point_that_only_one_run_has_is_no_figure_that_differs() -> None:
    found = differences(reported(point(1.0, seed=0)), reported(point(2.0, seed=1)))
    assert (found.figures, found.common, found.only) == (0, (), (({"seed": 0},), ({"seed": 1},)))


def test_figures_within_figures_are_told_by_their_path() -> None:
    found = differences(reported(point(1.0)), reported(point(1.0, "b->a")))
    assert [common.changes for common in found.common] == [(ValueChange("bottleneck.link", "a->b", "b->a"),)]


SIZES = ("64 KiB", "1 MiB", "4 MiB")


def a_sweep(**changed: Any) -> ReportedRun:
    """A report of one array size after another on 4 GPUs, and its scenario."""
    cluster = {"world_size": 4} | changed
    scenario = {"cluster": cluster, "collective": {"size": "1 GiB"}, "sweep": {"collective.size": list(SIZES)}}
    points = [point(1.0 + number, **{"collective.size": size}) for number, size in enumerate(SIZES)]
    return reported(*points, scenario=scenario)


def test_a_single_point_is_compared_with_the_point_of_a_sweep_that_has_its_keys() -> None:
    single = reported(point(2.5), scenario={"cluster": {"world_size": 4}, "collective": {"size": "1024 KiB"}})
    found = differences(a_sweep(), single)
    (common,) = found.common
    assert (common.places, common.changes) == ((1, 0), (ValueChange("time_s", 2.0, 2.5),))
    assert found.only == (({"collective.size": "64 KiB"}, {"collective.size": "4 MiB"}), ())
    assert found.keys == (ValueChange("collective.size", list(SIZES), "1024 KiB"),)


def test_runs_over_different_axes_have_the_points_in_common_where_both_axes_meet() -> None:
    """Sizes on 4 GPUs against 2, 4 and 8 GPUs at 1 MiB: the point of 4 GPUs and 1 MiB alone is in both runs."""
    counts = [2, 4, 8]
    other = reported(
        *(point(float(ranks), **{"cluster.world_size": ranks}) for ranks in counts),
        scenario={"collective": {"size": "1 MiB"}, "compare": {"cluster.world_size": counts}},
    )
    found = differences(a_sweep(), other)
    assert [(common.settings, common.places) for common in found.common] == [
        ({"collective.size": "1 MiB", "cluster.world_size": 4}, (1, 1))
    ]
    assert tuple(map(len, found.only)) == (2, 2)
    assert found.keys == (
        ValueChange("cluster.world_size", 4, counts),
        ValueChange("collective.size", list(SIZES), "1 MiB"),
    )


def test_keys_that_no_run_varies_differ_and_points_stay_common() -> None:
    found = differences(a_sweep(), a_sweep(world_size=8, link_factors={"gpu0->switch0": 0.5}))
    assert (len(found.common), found.figures, found.only) == (3, 0, ((), ()))
    assert found.keys == (
        ValueChange("cluster.world_size", 4, 8),
        ValueChange("cluster.link_factors", None, {"gpu0->switch0": 0.5}),
    )


def test_settings_of_a_section_and_of_a_key_in_it_can_be_one_point() -> None:
    written = reported(point(1.0, training={"sharding": "zero3", "steps": 2}), scenario={"training": {"steps": 1}})
    other = reported(point(1.0), scenario={"training": {"sharding": {"strategy": "zero3"}, "steps": 2}})
    assert len(differences(written, other).common) == 1


def test_diff_says_keys_first_and_counts_the_points_of_one_run_alone(cli: Command, tmp_path: Path) -> None:
    """Six of eight points are only in the first run: five are named, one is counted."""
    cli("run", "both.yaml", "--out", "one", "--set", "cluster.world_size=2,3,4,5")
    cli("run", "both.yaml", "--out", "two", "--set", "cluster.world_size=3")
    answer = cli("diff", "one", "two")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[:4] == [
        "Scenario keys that differ:",
        "  cluster.world_size: [2, 3, 4, 5] -> 3",
        "2 common points are equal.",
        "6 points are only in one.",
    ]
    assert lines[4] == "  only in one: collective.algorithm=ring, cluster.world_size=2"
    assert (len(lines), lines[-1]) == (10, "  only in one: 1 more")
    assert cli("diff", "two", "one", "--html", "page.html").out == (
        "2 common points are equal. 6 points are only in one. Page: page.html\n"
    )
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert '<p class="answer">2 common points are equal. 6 points are only in one.</p>' in page
    assert '<td class="text short">cluster.<wbr>world_<wbr>size</td>' in page
    assert 'id="differences"' not in page


def test_a_page_of_an_older_run_is_refused_in_one_line(cli: Command, tmp_path: Path) -> None:
    """Lanes of an older view count alike ranks, and the page's scripts expect the list of these ranks."""
    for name in ("one", "two"):
        cli("run", "small.yaml", "--out", name)
    assert cli("diff", "one", "two", "--html", "page.html").code == 0
    path = tmp_path / "two" / views.NAME
    view = views.stored(path)
    del view["format"]
    older = "another version of the simulator wrote this view, in another format; simulate the run again"
    whole = views.compressed(view)
    for data, fault in (
        (whole, older),
        (views.compressed(view | {"format": 1}), older),
        (whole[:40], "not a view of a point: Compressed file ended before the end-of-stream marker was reached; "
                     "simulate the run again"),
    ):  # fmt: skip
        path.write_bytes(data)
        answer = cli("diff", "one", "two", "--html", "refused.html")
        assert (answer.code, answer.out, answer.err) == (2, "", f"two/view.json.gz: {fault}\n")
        assert not (tmp_path / "refused.html").exists()
        # The text of the comparison needs no view.
        assert cli("diff", "one", "two").code == 0


def test_reports_without_scenarios_are_compared_by_what_was_written(cli: Command, tmp_path: Path) -> None:
    for name, told in (("one", point(1.0, seed=0)), ("two", point(1.0))):
        (tmp_path / f"{name}.json").write_text(json.dumps({"points": [told]}), encoding="utf-8")
    lines = cli("diff", "one.json", "two.json").out.splitlines()
    assert lines[:2] == [
        "Scenario keys were not compared, because a single report file has no scenario.",
        "The runs have no common point; no figure can be compared.",
    ]
    assert cli("diff", "one.json", "one.json", "--json").data["scenario"] is None


def test_no_point_is_lost_whose_setting_the_key_cannot_read() -> None:
    """`simulator collective --json` writes a size without a unit, and JSON makes text of a straggler's rank."""
    for key, values in (
        ("collective.size", (2**20, 2**21, 2**22)),
        ("cluster.stragglers", ({"0": 0.4}, {"0": 0.8}, {"1": 0.5})),
    ):
        one, other = (reported(*(point(time, **{key: value}) for value in values)) for time in (1.0, 2.0))
        assert [own.settings[key] for own in differences(one, other).common] == list(values)


def test_equal_points_of_one_run_are_compared_one_by_one() -> None:
    one, other = reported(point(1.0, seed=1), point(2.0, seed=1)), reported(point(1.0, seed=1), point(3.0, seed=1))
    found = differences(one, other)
    assert [own.changes for own in found.common] == [(), (ValueChange("time_s", 2.0, 3.0),)]


@pytest.mark.parametrize("text", ["- 1\n", "a: [\n", ""])
def test_a_scenario_that_cannot_be_read_is_one_line(cli: Command, tmp_path: Path, text: str) -> None:
    cli("run", "small.yaml", "--out", "one")
    (tmp_path / "one" / "scenario.yaml").write_text(text, encoding="utf-8")
    answer = cli("diff", "one", "one")
    assert (answer.code, answer.out, len(answer.faults)) == (2, "", 1)
    assert answer.err.startswith(str(Path("one") / "scenario.yaml"))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"points": [1]}', '{"points": 3}', '{"points": [{}]}', "\x00"])
def test_what_is_no_report_is_refused_in_one_line(cli: Command, tmp_path: Path, text: str) -> None:
    (tmp_path / "report.json").write_text(text, encoding="utf-8")
    answer = cli("diff", ".", "report.json")
    assert (answer.code, answer.out) == (2, "")
    assert answer.faults == ["report.json: is not the report of a run; give the directory that `simulator run` printed"]


def test_a_point_that_failed_differs_by_its_error(cli: Command, tmp_path: Path) -> None:
    failed: dict[str, Any] = {"settings": {}, "engine": None, "report": None, "error": "no route"}
    for name, told in (("one", point(1.0)), ("two", failed)):
        (tmp_path / f"{name}.json").write_text(json.dumps({"points": [told]}), encoding="utf-8")
    lines = cli("diff", "one.json", "two.json").out.splitlines()
    assert "error: not set -> no route" in lines
    assert "time_s: 1 s -> not set" in lines


def test_check_says_which_engine_plays_and_why(cli: Command) -> None:
    def engines(*settings: str) -> str:
        told = cli("check", "both.yaml", *(word for setting in settings for word in ("--set", setting))).out
        return dict(line.split(":", 1) for line in told.splitlines())["engine"].strip()

    without = "compiled, only times are asked for" if is_there() else "events, there is no compiled core"
    assert engines("collective.payload=true") == "events, it carries arrays"
    assert engines("collective.payload=false") == without
    assert engines("engine=events", "collective.payload=false") == "events, as requested"


def test_a_played_point_takes_longer_with_noise_and_with_arrays() -> None:
    def seconds(**facts: Any) -> float:
        cluster = {"topology": "dgx_h100", "world_size": 64} | facts.pop("cluster", {})
        collective = {"operation": "all_reduce", "algorithm": "ring", "size": "64 MiB", "payload": False} | facts
        scenario = load_scenario({"name": "x", "cluster": cluster, "collective": collective})
        return min(effort(scenario).seconds for _ in range(3))

    # 64 arrays of 64 MiB at 8 ns a byte are half a minute.
    assert seconds(payload=True) > 30 > 1 > seconds()


def test_a_group_without_rank_0_is_counted_too() -> None:
    def memory(*group: int) -> int:
        collective = {"operation": "all_reduce", "algorithm": "ring", "size": "4 KiB", "payload": False}
        cluster = {"topology": "star_100g", "world_size": 4}
        return effort(
            load_scenario({"name": "x", "cluster": cluster, "collective": collective | {"group": group}})
        ).memory

    assert memory(1, 2, 3) == memory(0, 1, 2)


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_file_of_layers_is_one_fault_that_names_its_uses(cli: Command, tmp_path: Path, command: str) -> None:
    (tmp_path / "net.yaml").write_text("input: [8]\nlayers:\n- linear: [8, 4]\nloss: cross_entropy\n", encoding="utf-8")
    found = cli(command, "net.yaml")
    assert (found.code, found.out) == (2, "")
    assert found.faults == [
        "net.yaml:1:1: this is a file of layers; write training.model: net.yaml in a scenario, or use `simulator "
        "kernels net.yaml`"
    ]
    # Both uses accept the file.
    scenario = "name: step\ncluster: {topology: dgx_h100, world_size: 1}\ntraining: {model: net.yaml, seq_len: 1}\n"
    (tmp_path / "step.yaml").write_text(scenario, encoding="utf-8")
    assert cli("check", "step.yaml").code == 0
    assert cli("kernels", "net.yaml", "--gpu", "h100_sxm").code == 0
