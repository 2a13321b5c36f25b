"""`simulator goodput`: bytes, times and verdicts by hand, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator import load_scenario, simulate
from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.run.reliability.failures import DAY, FailureKind, FailureProcess
from simulator.run.reliability.question import GoodputQuestion, HealthyStep, checkpoint_bytes, goodput
from simulator.scenario.days_file import RunOfDays, load_days
from tests.commands import Command, commands_in

SCENARIO: dict[str, Any] = {
    "name": "days",
    "cluster": {"topology": "dgx_h100", "world_size": 16},
    "training": {"model": "llama3_8b", "seq_len": 2048, "sharding": "zero3", "framework": "torchtitan"},
}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def asked(**facts: Any) -> GoodputQuestion:
    return GoodputQuestion(load_scenario(SCENARIO), RunOfDays.model_construct(**({"days": 30.0} | facts)))


def test_a_checkpoint_is_copied_to_the_host_and_written_behind() -> None:
    found = goodput(asked(storage=10e9))
    # torchtitan: float32 parameters and two states, 12 bytes for each of 8,030,261,248 parameters; a sixteenth over a
    # slot of PCIe 5.
    nbytes = 12 * 8_030_261_248
    assert found.checkpoint_bytes == nbytes
    assert found.job.checkpointing.write == found.job.checkpointing.load == nbytes / 10e9
    assert found.job.checkpointing.stall >= nbytes / 16 / 64e9
    assert found.job.checkpointing.stall <= nbytes / 16 / (0.82 * 50e9)
    assert found.job.nodes == 2


def test_a_synchronous_save_stops_the_work_for_the_whole_write() -> None:
    found = goodput(asked(storage=10e9, save="synchronous"))
    assert (found.job.checkpointing.stall, found.job.checkpointing.write) == (12 * 8_030_261_248 / 10e9, 0.0)


def test_the_work_of_days_without_failures_is_their_steps() -> None:
    found = goodput(asked(failures=0.0))
    step = simulate(SCENARIO).report
    assert found.step_time == step.step_time_s
    assert found.outlook.work(0.5) == pytest.approx(30 * DAY)
    assert found.to_dict()["work"]["0.5"] == pytest.approx(30 * DAY * step.tokens_per_s)
    assert found.sentences[1] == "Nothing fails, so that no checkpoint is needed."


def test_the_training_of_some_tokens_ends_later_with_failures() -> None:
    tokens = 20 * DAY * simulate(SCENARIO).report.tokens_per_s
    sound, ill = (goodput(asked(days=None, tokens=tokens, failures=rate)) for rate in (0.0, 1.0))
    assert sound.outlook.time(0.5) == pytest.approx(20 * DAY)
    # Two failures a day, each 30 s or 600 s, 300 s, the load and lost work: at least half a per cent.
    assert ill.outlook.time(0.5) > 1.005 * 20 * DAY
    assert ill.frame()["share"].sum() == pytest.approx(1.0)


@pytest.mark.parametrize("days", [3.0, None])
def test_the_data_has_the_range_of_what_was_asked_alone(days: float | None) -> None:
    """Without failures, the range is that of the step: the figure divided and multiplied by 1 + its uncertainty."""
    asks = {"days": days} if days else {"days": None, "tokens": 2e10}
    sound, ill = (goodput(asked(**asks, failures=rate)) for rate in (0.0, 2.0))
    rate = sound.work_per_step / sound.step_time
    assert sound.uncertainty > 0.0
    wider = 1.0 + sound.uncertainty
    for found in (sound, ill):
        data = found.to_dict()
        assert [key for key in data if "80" in key] == ["work_80" if days else "time_80_s"]
        low, high = data["work_80"] if days else data["time_80_s"]
        middle = data["work" if days else "time_s"]["0.5"]
        if found is sound:
            assert middle == pytest.approx(3 * DAY * rate if days else 2e10 / rate)
            assert (low, high) == pytest.approx((middle / wider, middle * wider))
        else:
            ends = found.range(found.outlook.work if days else found.outlook.time)
            assert (low, high) == pytest.approx([end * rate for end in ends] if days else ends)
            assert low < middle / wider < middle * wider < high


def test_the_time_between_failures_of_the_job_is_a_rate_of_its_nodes() -> None:
    # Two nodes that fail every 8 h together: 3 failures a day, 1.5 of each node.
    by_time, by_rate = goodput(asked(mtbf=8 * 3600.0)), goodput(asked(failures=1.5))
    assert by_time.job == by_rate.job
    assert by_time.to_dict() == by_rate.to_dict()


def test_spares_cover_the_failures_of_a_repair_in_99_per_cent_of_the_time() -> None:
    """Two nodes that fail once a day and are back after a day: a Poisson number of mean 2, 98.3 % up to 5."""
    step = HealthyStep(1.0, 1000.0, "token", ranks=16, nodes=2, nbytes=1e9, copied=0.1, beside_save=1.0)
    within = [sum(math.exp(-2) * 2**k / math.factorial(k) for k in range(most + 1)) for most in range(10)]
    least = next(most for most, share in enumerate(within) if share >= 0.99)
    assert least == 6
    sound = goodput(asked(failures=0.0, repair=DAY), step)
    daily = FailureProcess((FailureKind("error", 1.0 / DAY),))
    assert replace(sound, job=replace(sound.job, process=daily)).spares_needed == least
    assert sound.spares_needed == 0


def test_the_answer_names_step_and_checkpoint() -> None:
    found = goodput(asked(storage=10e9, save="synchronous"))
    step = simulate(SCENARIO).report
    # A sequence of 2,048 tokens for each GPU; 12 x 8,030,261,248 B are 89.7 GiB, which 10 GB/s take in 9.636 s.
    assert found.sentences[-2:] == (
        f"A step of llama3_8b on 16 GPUs takes {1000 * step.step_time_s:.4g} ms for 32,768 tokens "
        "(framework torchtitan).",
        "A checkpoint of 89.7 GiB stops the work for 9.636 s, until the storage has it (synchronous save, 10 GB/s for "
        "all GPUs together).",
    )
    behind = goodput(asked(storage=10e9)).sentences[-1]
    assert behind.endswith("the storage has it 9.636 s later (asynchronous save, 10 GB/s for all GPUs together).")


def test_adapters_alone_are_saved() -> None:
    lora = SCENARIO | {"training": SCENARIO["training"] | {"lora": {"rank": 8, "targets": ["q"]}}}
    found = simulate(lora, limit_memory=False)
    # 32 layers, q: 8 x 4096 and 4096 x 8; float32 parameters and two float32 states, no master copy.
    assert checkpoint_bytes(found.plan.step) == 32 * 2 * 8 * 4096 * (4 + 8)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"tokens": 1e12}, "days: .* give one of the two"),
        ({"days": None}, "days: .* give one of the two"),
        ({"days": 0.0}, "days: got 0; must be above 0"),
        ({"days": float("nan")}, "days: got nan; must be above 0"),
        ({"storage": -1.0}, "storage: got -1; must be above 0"),
        ({"failures": -1.0}, "failures: got -1; must be at least 0"),
        ({"spares": -2}, "spares: got -2; must be at least 0"),
        ({"save": "never"}, "save: got 'never'"),
        ({"mtbf": 0.0}, "mtbf: got 0; must be above 0"),
        ({"mtbf": 3600.0, "failures": 0.1}, "mtbf: failures and mtbf are given; give one of the two"),
    ],
)
def test_questions_that_no_training_asks_are_refused(facts: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        asked(**facts)


def test_a_collective_has_no_checkpoints() -> None:
    ring = {
        "name": "ring",
        "cluster": {"topology": "star_100g", "world_size": 4},
        "collective": {"operation": "all_reduce", "size": "4 KiB"},
    }
    with pytest.raises(ScenarioError, match="a collective has no checkpoints"):
        GoodputQuestion(load_scenario(ring), RunOfDays(days=1.0))


def test_a_scenario_of_several_points_is_refused() -> None:
    several = SCENARIO | {"compare": {"training.sharding": ["ddp", "zero3"]}}
    with pytest.raises(ScenarioError, match=r"has several points along training\.sharding; give each a single value"):
        GoodputQuestion(load_scenario(several), RunOfDays(days=1.0))


def test_the_command_prints_the_answer_and_where_the_time_goes(cli: Command, tmp_path: Path) -> None:
    path = tmp_path / "days.json"
    path.write_text(json.dumps(SCENARIO))
    out = cli("goodput", str(path), "--days", "30d", "--failures", "500").out
    assert "of the time is useful" in out
    assert "Young" in out
    assert "lost work" in out
    data = json.loads(cli("goodput", str(path), "--days", "30d", "--json").out)
    assert data["nodes"] == 2
    assert sum(data["shares"].values()) == pytest.approx(1.0)


SHORT = "name: s\ncluster: {topology: dgx_h100, world_size: 8}\ntraining: {model: gpt2, seq_len: 256}\n"


def saved(folder: Path, text: str, name: str = "days.yaml") -> str:
    (folder / name).write_text(text)
    return name


def test_a_file_of_days_asks_what_options_ask(cli: Command, tmp_path: Path) -> None:
    saved(tmp_path, SHORT, "s.yaml")
    name = saved(tmp_path, "scenario: s.yaml\ndays: 2w\nfailures: 50\nrepair: 2 d\nstorage: 1 GB/s\nspares: 1\n")
    options = ("--days", "14", "--failures", "50", "--repair", "2d", "--storage", "1 GB/s", "--spares", "1")
    assert cli("goodput", name, "--json").data == cli("goodput", "s.yaml", *options, "--json").data
    # An option replaces what the file says; tokens replace days, and mtbf replaces failures.
    timed = cli("goodput", name, "--mtbf", "2d", "--json").data
    rest = [option for option in options if option not in ("--failures", "50")]
    assert timed == cli("goodput", "s.yaml", "--mtbf", "2d", *rest, "--json").data
    other = cli("goodput", name, "--tokens", "100B", "--json").data
    assert other == cli("goodput", "s.yaml", "--tokens", "100B", *options[2:], "--json").data


@pytest.mark.parametrize("option", ["--interval", "--storage", "--detection", "--watchdog", "--restart"])
def test_options_of_times_and_rates_need_units(cli: Command, option: str) -> None:
    told = cli("goodput", "checkpoint_interval", option, "20")
    assert (told.code, told.out) == (2, "")
    unit = "GB/s" if option == "--storage" else "s"
    assert f"Invalid value for '{option}': got '20', which has no unit; write for example '20 {unit}'" in told.faults[0]


@pytest.mark.long
def test_a_scenario_inside_a_file_of_days_takes_changes(cli: Command) -> None:
    """A scenario in the file needs no name, with and without --set."""
    told = cli("goodput", "checkpoint_interval", "--set", "cluster.world_size=512", "--json")
    assert (told.code, told.err) == (0, "")
    assert list(told.data["answers"])


@pytest.mark.long
def test_values_of_a_fact_are_compared_on_the_same_failures(cli: Command, tmp_path: Path) -> None:
    saved(tmp_path, SHORT, "s.yaml")
    head = "# Which interval?\nscenario: s.yaml\ndays: 30\nfailures: 100\nsave: synchronous\nstorage: 1 MB/s\n"
    name = saved(tmp_path, head + "compare: {interval: [1 h, 4 h, 24 h]}\n")
    told = cli("goodput", name, "--json").data
    assert list(told["answers"]) == ["1 h", "4 h", "24 h"]
    for value, seconds in (("1 h", 3600), ("4 h", 14400), ("24 h", 86400)):
        alone = saved(tmp_path, head + f"interval: {value}\n", "alone.yaml")
        assert told["answers"][value] == cli("goodput", alone, "--json").data
        assert told["answers"][value]["save_interval_s"] == seconds
    best = max(told["answers"], key=lambda value: told["answers"][value]["goodput"])
    assert told["sentences"][0].startswith(f"Interval {best} leaves most of the time useful, ")
    out = cli("goodput", name).out
    assert out.startswith("Which interval?")
    assert "waiting for spares" in out
    # The option chooses one value.
    assert cli("goodput", name, "--interval", "60 min", "--json").data == told["answers"]["1 h"]


def test_shipped_files_of_days_are_read() -> None:
    for name in registry.names("days"):
        file = load_days(name, {})
        assert file.question.endswith("?")
        assert file.scenario.training is not None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scenario: s.yaml\ndayz: 30\n", "days.yaml:2:1: dayz: unknown key; "),
        ("scenario: s.yaml\ndays: soon\n", "days.yaml:2:7: days: got 'soon'; must be a time in days"),
        ("scenario: s.yaml\ndays: 30\ncompare: {days: [1, 2]}\n", "days.yaml:3:11: compare.days: unknown key; "),
        ("scenario: s.yaml\ndays: 30\ncompare: {spares: [1, -2]}\n", "days.yaml:3:23: compare.spares.1: got -2; "),
        ("scenario: s.yaml\ndays: 30\ncompare: {spares: []}\n", "days.yaml:3:19: compare.spares: got 0 values; "),
        ("scenario: s.yaml\ndays: 3\ncompare: {spares: [1], save: [x]}\n", "days.yaml:3:10: compare: has 2 keys; "),
        ("scenario: s.yaml\n", "--days: neither days nor tokens are given; "),
        ("scenario: {cluster: {topology: x, world_size: 8}}\ndays: 3\n", "days.yaml: scenario: "),
        ("scenario: nosuch\ndays: 3\n", "scenario: got 'nosuch'; "),
    ],
)
def test_a_wrong_file_of_days_is_told(cli: Command, tmp_path: Path, text: str, said: str) -> None:
    saved(tmp_path, SHORT, "s.yaml")
    answer = cli("goodput", saved(tmp_path, text))
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith(said)


@pytest.mark.long
def test_days_and_work_carry_the_uncertainty_of_the_step() -> None:
    """Without failures the range is the step's; with failures the squares of the logarithms add."""
    scenario = load_scenario(SCENARIO)
    report = simulate(scenario).report
    low, high = (report.intervals[f"step_time_s_80_{end}"] / report.step_time_s for end in ("low", "high"))
    calm = goodput(GoodputQuestion(scenario, RunOfDays(tokens=1e12, failures=0.0)))
    days = calm.outlook.time(0.5)
    assert calm.range(calm.outlook.time) == pytest.approx((days * low, days * high))
    text = f"({100 * (high - 1):.0f} % of the step time"
    assert f"80 %: {days * low / 86400:.1f} to {days * high / 86400:.1f}, from ±" in calm.sentences[0]
    assert text.lstrip("(") in calm.sentences[0]
    rough = goodput(GoodputQuestion(scenario, RunOfDays.model_construct(tokens=1e12, mtbf=6 * 3600.0)))
    times = rough.outlook.time
    expected = times(0.5) * math.exp(math.hypot(math.log(high), math.log(times(0.9) / times(0.5))))
    assert rough.range(times)[1] == pytest.approx(expected)
