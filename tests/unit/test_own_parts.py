"""A scenario names a file, or an installed package, as one of its parts: every kind is found by the same rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import yaml

import simulator
from simulator.basics.errors import ScenarioError, ScenarioWarning
from simulator.scenario.load import load_scenario
from simulator.scenario.schema import schema
from simulator.step.framework import load_framework
from simulator.sweeps.cache import Cache
from tests.commands import Command, commands_in
from tests.own_parts import BUILDER, CLUSTER, FINDING, OPTIMIZER, PARTS, PLOT, SHARDING, TRAINING, OwnPart
from tests.own_parts import installed as package

SIMULATED = {kind: part for kind, part in PARTS.items() if part.simulated}
every_simulated = pytest.mark.parametrize("part", SIMULATED.values(), ids=list(SIMULATED))
every_part = pytest.mark.parametrize("part", PARTS.values(), ids=list(PARTS))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for part in PARTS.values():
        part.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(folder, monkeypatch, capsys)


def written(part: OwnPart, folder: Path, name: str = "") -> str:
    """The name of a scenario's file that names the part's file, or another name of the part."""
    data = {"plots": [], **part.scenario(name or f"./{part.file}")}
    (folder / "own.yaml").write_text(yaml.safe_dump(data))
    return "own.yaml"


@every_simulated
def test_a_file_is_simulated_alike_by_both_engines(folder: Path, part: OwnPart) -> None:
    times = [
        simulator.simulate(part.scenario(f"./{part.file}", engine=engine)).timeline.end
        for engine in ("events", "compiled")
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-9)


@every_part
def test_a_path_starts_at_the_scenarios_folder(folder: Path, part: OwnPart, monkeypatch: pytest.MonkeyPatch) -> None:
    written(part, folder)
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert len(simulator.play("../own.yaml").outcomes) > 0


def test_worker_processes_say_nothing_of_code(folder: Path, command: Command) -> None:
    name = written(BUILDER, folder)
    done = command("sweep", name, "--set", "seed=0,1", "--jobs", "2", "--out", "out")
    # Workers keep the environment of the first command in this process, which may have forbidden code.
    assert done.code in (0, 1), done.err
    assert [line for line in done.err.splitlines() if "runs the code of" in line] == [
        f"warning: runs the code of {BUILDER.file}"
    ]


@every_simulated
@pytest.mark.one_of(4)
def test_workers_load_the_file_too(folder: Path, part: OwnPart) -> None:
    data = part.scenario(f"./{part.file}")
    here = simulator.sweep(data, axes={"seed": [0, 1]})
    there = simulator.sweep(data, axes={"seed": [0, 1]}, jobs=2)
    column = "step_time_s" if "training" in data else "time_s"
    assert here[column].tolist() == there[column].tolist()


@every_part
def test_a_run_says_whose_code_runs(folder: Path, command: Command, part: OwnPart) -> None:
    done = command("check", written(part, folder))
    assert done.code == 0, done.err
    (line,) = [line for line in done.err.splitlines() if "runs the code of" in line]
    assert line.endswith(part.file)


@every_part
@pytest.mark.parametrize("name", ["run", "check", "sweep"])
def test_no_plugins_runs_no_code(folder: Path, command: Command, part: OwnPart, name: str) -> None:
    (folder / part.file).write_text("raise SystemExit('this ran')")
    done = command(name, written(part, folder), "--no-plugins")
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert f": got './{part.file}', whose code is not run" in line


@every_part
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1\n", "declares no "),
        ("x = 1\ny = 1 / 0\n", "{file}:2: ZeroDivisionError: division by zero"),
        ("{constant} = 'name'\n", "{constant}"),
        (None, "./{file}: cannot be read: No such file or directory"),
    ],
)
def test_a_wrong_file_gets_one_line(
    folder: Path, command: Command, part: OwnPart, content: str | None, message: str
) -> None:
    facts = {"constant": part.constant, "file": part.file}
    if content is None:
        (folder / part.file).unlink()
    else:
        (folder / part.file).write_text(content.format(**facts))
    done = command("run", written(part, folder))
    assert done.code == 2
    *warned, line = done.err.splitlines()
    assert warned in ([], [f"warning: runs the code of {part.file}"])
    assert line.startswith("own.yaml:")
    assert message.format(**facts) in line


@pytest.mark.parametrize(
    ("kind", "before", "after", "message"),
    [
        ("schedule", "for rank in range(shape.ranks)", "for rank in range(shape.rank)", "lifo.py:13: AttributeError: "),
        ("sharding", "sum {bucket.name}", "sum {bucket.nam}", "synced.py:14: AttributeError: "),
        ("topology_builder", "right, bandwidth, latency)", "right, bandwidth)", "row.py:30: TypeError: "),
        ("topology_builder", "return TopologyLimits()", "return Limits()", "row.py:35: NameError: "),
        ("optimizer", "states=3,", "state=3,", "amsgrad.py:21: TypeError: "),
    ],
)
def test_an_error_while_planning_gets_one_line(
    folder: Path, command: Command, kind: str, before: str, after: str, message: str
) -> None:
    part = PARTS[kind]
    assert before in part.source
    (folder / part.file).write_text(part.source.replace(before, after))
    done = command("run", written(part, folder))
    assert done.code == 2
    told = [line for line in done.err.splitlines() if message in line]
    assert told == done.err.splitlines()[-1:]
    assert "Traceback" not in done.err


def test_an_option_of_a_builder_needs_a_type(folder: Path, command: Command) -> None:
    """What every builder gets from the cluster, such as the number of GPUs, is no option and needs none."""
    source = BUILDER.source.replace("world_size: int,", "world_size,")
    (folder / BUILDER.file).write_text(source)
    assert command("check", written(BUILDER, folder)).code == 0
    (folder / BUILDER.file).write_text(source.replace("bandwidth: Bandwidth", "bandwidth"))
    done = command("check", written(BUILDER, folder))
    assert (done.code, len(done.faults)) == (2, 1)
    assert "builder row: option bandwidth has no type; write for example `bandwidth: Bandwidth`" in done.err


@every_part
def test_an_unknown_name_says_that_a_path_is_possible(folder: Path, command: Command, part: OwnPart) -> None:
    done = command("check", written(part, folder, "no_such_part"))
    assert (done.code, len(done.faults)) == (2, 1)
    assert "got 'no_such_part'" in done.err
    assert "or the path of a file that ends in .py" in done.err


@every_simulated
def test_cached_outcomes_depend_on_the_content_of_the_file(folder: Path, part: OwnPart) -> None:
    cache, name = Cache(folder / "cache"), written(part, folder)
    before = cache.key(load_scenario(name))
    assert before == cache.key(load_scenario(name))
    (folder / part.file).write_text(part.source + "\n# changed\n")
    assert before != cache.key(load_scenario(name))


@every_part
@pytest.mark.one_of(3)
def test_editors_accept_the_path(part: OwnPart) -> None:
    jsonschema.validate(part.scenario(f"./{part.file}"), schema())


@every_part
@pytest.mark.one_of(3)
def test_a_run_can_be_repeated_from_its_directory(folder: Path, command: Command, part: OwnPart) -> None:
    assert command("run", written(part, folder), "--out", "out").code == 0
    assert command("rerun", "out").out == "out: repeated; the report is identical\n"


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with an entry point for the module of every part."""
    with package(
        folder / "site", {f"of_{p.module}": f"own_site.{p.module}" for p in PARTS.values()}, monkeypatch
    ) as site:
        (site / "own_site").mkdir()
        for part in PARTS.values():
            part.write(site / "own_site")
        yield site


@every_simulated
def test_an_installed_package_brings_a_part(folder: Path, installed: Path, command: Command, part: OwnPart) -> None:
    done = command("check", written(part, folder, f"of_{part.module}"))
    assert (done.code, done.err.count(f"runs the code of of_{part.module}")) == (0, 1)
    own = simulator.simulate(part.scenario(f"./{part.file}")).timeline.end
    assert simulator.simulate(part.scenario(f"of_{part.module}")).timeline.end == own
    refused = command("check", written(part, folder, f"of_{part.module}"), "--no-plugins")
    assert (refused.code, len(refused.faults)) == (2, 1)


LISTED = {
    "schedule": "schedules", "sharding": "strategies", "topology_builder": "builders", "optimizer": "optimizers",
    "plot": "plots", "finding": "findings",
}  # fmt: skip


def test_installed_names_are_listed_for_every_kind(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry point of a module may be of any kind; `module:SCHEDULE` is of one; nothing is imported."""
    with package(folder / "site", {"any": "own_site.any", "mine": "own_site.lifo:SCHEDULE"}, monkeypatch):
        for kind in (*LISTED.values(), "algorithms"):
            lines = [line for line in command("list", kind).out.splitlines() if "from an installed package" in line]
            assert [line.split()[0].rstrip(":") for line in lines] == [
                "any",
                *(["mine"] if kind == "schedules" else []),
            ]
    assert set(LISTED) == set(PARTS)


FRAMEWORK = "based_on: torchtitan\nkernel_time: {value: 2.0, source: here}\n"


def test_an_installed_package_brings_a_framework_without_running_code(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels take twice as long in the package's file; `raise` in its code is never run."""
    inner = folder / "site" / "own_site" / "files"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("raise RuntimeError\n")
    (inner / "slow.yaml").write_text(FRAMEWORK)
    (folder / "slow_here.yaml").write_text(FRAMEWORK)
    entries = {"slow": "own_site.files", "lost": "own_site.files", "gone": "no_package"}
    with package(folder / "site", entries, monkeypatch, "cluster_simulator.frameworks"):
        assert load_framework("slow").kernel_time == 2.0
        slow, here = (
            {"name": "own", "cluster": CLUSTER, "training": {**TRAINING, "framework": name}, "plots": []}
            for name in ("slow", "./slow_here.yaml")
        )
        assert simulator.simulate(slow).timeline.end == simulator.simulate(here).timeline.end
        (folder / "own.yaml").write_text(yaml.safe_dump(slow))
        assert command("check", "own.yaml", "--no-plugins").code == 0
        assert command("list", "frameworks").out.splitlines()[-3:] == ["gone", "lost", "slow"]
        for name in ("lost", "gone"):
            with pytest.raises(
                ScenarioError, match=f"got '{name}', which an installed package names, but .* is missing"
            ):
                load_framework(name)
        with pytest.raises(ScenarioError, match="did you mean 'slow'"):
            load_framework("slwo")


def test_an_own_strategy_plans_the_collectives(folder: Path) -> None:
    """Each of 4 micro-batches sums the gradients of 124,439,808 parameters."""
    run = simulator.simulate(SHARDING.scenario("./synced.py"))
    sums = [op for name, op in run.plan.program.collectives().items() if name.startswith("sum bucket")]
    assert sum(op.elements for op in sums) == 4 * 124_439_808


def test_an_own_strategy_trains_beside_a_slow_rank(folder: Path) -> None:
    """The losses are those of ddp; a fast rank's next micro-batch changes no sum."""
    model = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "vocab_size": 32}
    learns = {"model": model, "seq_len": 8, "numerics": True, "precision": "fp32", "gradient_accumulation_steps": 2}
    slow = {"topology": "star_100g", "world_size": 4, "stragglers": {1: 4.0}}
    losses = []
    for strategy in ("./synced.py", "ddp"):
        training = learns | {"sharding": strategy, "dropout": 0.0, "steps": 3}
        run = simulator.simulate({"name": "own", "cluster": slow, "training": training})
        losses.append(run.report.learning.losses)
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_an_own_plot_draws_a_picture_of_the_run(folder: Path, command: Command) -> None:
    done = command("run", written(PLOT, folder), "--out", "out")
    assert done.code == 0, done.err
    pictures = [path.name for path in (folder / "out" / "plots").glob("*.png")]
    assert pictures
    assert all(name.startswith("idle") for name in pictures)
    more = command("plot", "out", "--kind", "./idle.py", "--point", "collective.algorithm=tree", "--out", "tree.png")
    assert more.code == 0, more.err
    assert (folder / "tree.png").is_file()


def test_an_own_plot_is_drawn_in_python(folder: Path) -> None:
    run = simulator.simulate({**PLOT.data, "name": "own", "compare": {}})
    assert run.plot("./idle.py").get_suptitle().startswith("Rank ")


def test_an_own_finding_answers(folder: Path, command: Command) -> None:
    """The ratio is that of the times of both points."""
    sweep = simulator.play(FINDING.scenario("./spread.py"))
    ring, tree = sorted(sweep.frame["time_s"])
    assert sweep.answer.sentences == (f"The slowest point takes {tree / ring:.2f} times as long as the fastest.",)
    assert sweep.answer.findings[0].numbers["ratio"] == tree / ring
    done = command("run", written(FINDING, folder))
    assert sweep.answer.sentences[0] in " ".join(done.out.split())


def test_an_own_finding_that_fails_is_one_line(folder: Path, command: Command) -> None:
    (folder / "spread.py").write_text(FINDING.source.replace("len(done) < 2", "len(none) < 2"))
    done = command("run", written(FINDING, folder))
    assert done.code == 2
    assert done.err.splitlines()[-1] == "spread.py:9: NameError: name 'none' is not defined"
    assert "Traceback" not in done.err


def test_an_installed_package_brings_a_plot_and_a_finding(folder: Path, installed: Path, command: Command) -> None:
    data = {**FINDING.scenario("of_spread"), "plots": ["of_idle"]}
    (folder / "both.yaml").write_text(yaml.safe_dump(data))
    done = command("run", "both.yaml", "--out", "out")
    assert done.code == 0, done.err
    assert done.err.count("runs the code of ") == 2
    assert "The slowest point takes" in done.out
    assert list((folder / "out" / "plots").glob("of_idle*.png"))


def test_an_own_optimizer_has_its_states(folder: Path) -> None:
    """AMSGrad keeps 4 B more for each of 124,439,808 parameters than Adam; with zero1 a rank has a quarter."""
    data = {**OPTIMIZER.data, "training": {**OPTIMIZER.data["training"], "sharding": "zero1"}}
    own, adam = (
        simulator.simulate(replace(OPTIMIZER, data=data).scenario(name)).report.peak_memory_by_category["optimizer"]
        for name in ("./amsgrad.py", "adam")
    )
    assert own - adam == 124_439_808


def test_an_own_builder_makes_the_graph(folder: Path) -> None:
    """A chain through 4 GPUs passes 10^6 B over 3 cables of 10 GB/s and 1 us each, one after the other."""
    report = simulator.simulate(BUILDER.scenario("./row.py")).report
    assert report.time_s == pytest.approx(3 * (1e6 / 10e9 + 1e-6), rel=1e-9)


def test_a_topology_file_names_a_builder_beside_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = BUILDER.scenario("./row.py")
    (folder / "row.yaml").write_text(yaml.safe_dump(data["cluster"]["topology"]))
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    data["cluster"]["topology"] = "../row.yaml"
    assert simulator.simulate(data).report.time_s == pytest.approx(3 * (1e6 / 10e9 + 1e-6), rel=1e-9)


@pytest.mark.parametrize("jobs", [None, 2])
@pytest.mark.one_of(2)
def test_a_frameworks_file_lies_beside_the_scenario(folder: Path, jobs: int | None) -> None:
    """Kernels that take twice as long, on a single GPU without communication, make a step of twice the time."""
    (folder / "deeper").mkdir()
    slow = {"based_on": "bare", "kernel_time": 2.0}
    (folder / "slow.yaml").write_text(yaml.safe_dump(slow))
    step = {"model": "gpt2_small", "seq_len": 128}
    data = {"name": "own", "cluster": {"topology": "star_100g", "world_size": 1}, "training": step, "plots": []}
    (folder / "deeper" / "own.yaml").write_text(yaml.safe_dump(data))
    compared = {"training.framework": ["bare", "../slow.yaml"]}
    bare, own = simulator.sweep("deeper/own.yaml", axes=compared, jobs=jobs)["step_time_s"]
    assert own == pytest.approx(2 * bare, rel=1e-9)


def test_an_unknown_framework_says_that_a_path_is_possible(folder: Path, command: Command) -> None:
    data = {"name": "own", "cluster": SHARDING.data["cluster"], "training": {**TRAINING, "framework": "zzz"}}
    (folder / "own.yaml").write_text(yaml.safe_dump(data))
    done = command("check", "own.yaml")
    assert (done.code, len(done.faults)) == (2, 1)
    assert "or the path of a file that ends in .yaml or .yml" in done.err


@pytest.mark.parametrize("jobs", [None, 2])
@pytest.mark.one_of(2)
def test_a_plan_searches_among_own_schedules(folder: Path, jobs: int | None) -> None:
    """The order of the backward passes is gpipe's reversed, and every stage waits as long as with gpipe."""
    asked = {"topology": "star_100g", "gpus": 4, "seq_len": 128, "global_batch": "16seq", "jobs": jobs}
    fixed = {"tp": 1, "pp": 4, "micro_batch": 2, "checkpointing": "none", "framework": "bare"}
    with pytest.warns(ScenarioWarning, match=r"runs the code of lifo\.py"):
        own = simulator.plan("gpt2_small", fix={**fixed, "schedule": "./lifo.py"}, **asked)  # type: ignore[arg-type]
    gpipe = simulator.plan("gpt2_small", fix={**fixed, "schedule": "gpipe"}, **asked)  # type: ignore[arg-type]
    assert "lifo.py" in own.best[0].setting.text
    assert own.best[0].report["step_time_s"] == pytest.approx(gpipe.best[0].report["step_time_s"], rel=1e-9)


def test_a_plan_refuses_code_where_none_may_run(folder: Path, command: Command) -> None:
    asked = ["--topology", "star_100g", "--gpus", "4", "--seq-len", "128", "--global-batch", "16seq"]
    refused = command("plan", "gpt2_small", *asked, "--fix", "schedule=./lifo.py", "--no-plugins")
    assert (refused.code, len(refused.faults)) == (2, 1)
    assert "got './lifo.py', whose code is not run" in refused.err
