"""The command line: what it says to whom, its exit codes, and that every fault is one clear line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

import simulator
from simulator.basics import registry
from simulator.basics.errors import SimulationError
from simulator.cli.guard import guarded
from simulator.cluster.gpu_file import load_gpu
from simulator.model.kernel import Matmul
from simulator.scenario.schema import schema
from simulator.step.kernels.kernel_time import duration
from tests.commands import SMALL, Command, commands_in
from tests.interrupting import PATIENCE_S

ROOT = Path(__file__).parents[1]
HEAVY = ("numpy", "pandas", "matplotlib", "networkx", "simpy", "pydantic", "yaml", "rich.table")


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


def test_the_help_imports_nothing_heavy_and_no_command() -> None:
    code = f"""if True:
        import sys
        from simulator.cli.commands import application
        application(["--help"], standalone_mode=False)
        print([m for m in sys.modules if m in {HEAVY!r} or m.startswith("simulator.cli.commands.")])
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.startswith("Usage: ")
    assert done.stdout.splitlines()[-1] == "[]"


def test_without_a_command_the_help_is_told(cli: Command) -> None:
    answer = cli()
    assert answer.code == 0
    assert answer.err == ""
    assert answer.out.startswith("Usage: simulator")
    for command in ("run", "sweep", "collective", "new", "check", "list", "show", "schema", "diff", "plot", "rerun"):
        assert f"\n  {command} " in answer.out


def test_the_version_is_the_packages(cli: Command) -> None:
    assert cli("--version").out.strip() == simulator.__version__


WRONG_COMMANDS = [
    (("lst",), "simulator: got 'lst'; ", "did you mean 'list'? `simulator --help` lists all"),
    (("run",), "simulator run: Missing argument 'SCENARIO'", "see `simulator run --help`"),
    (("run", "small.yaml", "more"), "simulator run: Got unexpected extra argument", "see `simulator run --help`"),
    (("run", "small.yaml", "--faster"), "simulator run: No such option: --faster", "see `simulator run --help`"),
    (
        ("sweep", "small.yaml", "--jobs", "0"),
        "simulator sweep: Invalid value for '--jobs'",
        "greater than or equal to 1",
    ),
    (("sweep", "small.yaml", "--jobs", "x"), "simulator sweep: Invalid value for '--jobs'", "valid integer"),
    (("run", "nosuch"), "scenario: got 'nosuch'; ", "`simulator list scenarios` lists all"),
    (("run", "stragler"), "scenario: got 'stragler'", "did you mean 'straggler'?"),
    (("run", "gone.yaml"), "gone.yaml: no such scenario file", "give an existing path"),
    (("run", "."), ".: is a directory; ", "`simulator list scenarios` lists all"),
    (("run", "a" * 5000), "scenario: got 'aaa", "File name too long"),
    (("run", "empty.yaml"), "empty.yaml:1:1: the file is empty", "`simulator new NAME` writes a scenario"),
    (("run", "nogpu.yaml"), "nogpu.yaml:1:1: this is a topology; ", "use `simulator show nogpu.yaml`"),
    (("check", "days.yaml"), "days.yaml:1:1: this is a file of days; ", "use `simulator goodput days.yaml`"),
    (("run", "jobs.yaml"), "jobs.yaml:1:1: this is a file of several jobs; ", "use `simulator jobs jobs.yaml`"),
    (("run", "plan.json"), "plan.json:1:1: this is the answer of a plan; ", "use `simulator run best.yaml`"),
    (("jobs", "nogpu.yaml"), "nogpu.yaml:1:1: this is a topology; ", "use `simulator show nogpu.yaml`"),
    (("jobs", "small.yaml"), "small.yaml:2:1: this is a scenario; ", "use `simulator run small.yaml`"),
    (("goodput", "nogpu.yaml"), "nogpu.yaml:1:1: this is a topology; ", "use `simulator show nogpu.yaml`"),
    (("show", "small.yaml"), "small.yaml:2:1: this is a scenario; ", "use `simulator run small.yaml`"),
    (("run", "checkpoint_interval"), "scenario: got 'checkpoint_interval'; use `simulator goodput ", "_interval`"),
    (("new", "größe"), "name: got 'größe'; must be at most 100 letters a to z or A to Z, digits", "folder"),
    (("run", "binary.yaml"), "binary.yaml: not a UTF-8 text file", "byte 0 is 0xff"),
    (("run", "open.yaml"), "open.yaml:1:1: not YAML", "check indentation, quotes and brackets"),
    (("run", "small.yaml", "--set", "seed"), "--set seed: must be KEY=VALUE", ""),
    (("run", "small.yaml", "--set", "=1"), "--set =1: must be KEY=VALUE", ""),
    (("run", "small.yaml", "--set", "sed=1"), "--set sed=1: unknown key", "did you mean 'seed'?"),
    (("run", "small.yaml", "--set", "collective.size=5"), "--set collective.size=5: got 5, which has no unit", "5 B"),
    (("run", "small.yaml", "--set", "collective.size=6 B"), "--set collective.size=6 B: got 6 B", "try 4 B or 8 B"),
    (("run", "small.yaml", "--set", "cluster.world_size=1"), "--set cluster.world_size=1: got 1", "at least 2 ranks"),
    (("run", "small.yaml", "--set", "collective.algorithm=nvls"), "--set collective.algorithm=nvls: ", "cannot reduce"),
    (("run", "small.yaml", "--engine", "fast"), "--set engine=fast: got 'fast'", "one of auto, compiled, events"),
    (("sweep", "small.yaml", "--set", "cluster.world_size=2,x"), "--set cluster.world_size=2,x: ", "a whole number"),
    (("check", "small.yaml", "--set", "collective.dtype=fp32"), "--set collective.dtype=fp32: ", "'float32'"),
    (("collective", "all_redue"), "OPERATION: got 'all_redue'", "did you mean 'all_reduce'?"),
    (("collective", "all_reduce", "--algorithm", "rng"), "--algorithm: got 'rng'", "did you mean 'ring'?"),
    (("collective", "all_reduce", "--topology", "star"), "--topology: got 'star'", "did you mean 'star_100g'?"),
    (("collective", "all_reduce", "--world-size", "1"), "--world-size: got 1", "at least 2 ranks"),
    (("collective", "all_reduce", "--gpu", "h10"), "--gpu: got 'h10'", "`simulator list gpus` lists all"),
    (("collective", "all_reduce", "--dtype", "float12"), "--dtype: got 'float12'", "did you mean 'float32'?"),
    (("collective", "all_reduce", "--begin", "x"), "--begin: got 'x'", "a number and a unit"),
    (
        ("collective", "all_reduce", "--begin", "1G", "--end", "8"),
        "--begin: got 1G, which is larger than --end 8",
        "swap",
    ),
    (("collective", "all_reduce", "--begin", "2PiB", "--end", "4PiB"), "--begin, --end: got", "at most 1 PiB"),
    (("new", "a/b"), "name: got 'a/b'", "letters a to z or A to Z, digits"),
    (("list", "gpu"), "list: got 'gpu'", "did you mean 'gpus'?"),
    (("show", "star_100g", "--world-size", "9999999"), "simulator show: ", "Invalid value for '--world-size'"),
    (("show", "torus"), "topology: got 'torus'", "did you mean 'torus_2d' or 'torus_3d'?"),
    (("show", "star_100g", "--gpu", "b20"), "--gpu: got 'b20'; ", "did you mean 'b200'?"),
    (("show", "nogpu.yaml"), "--gpu: topology nogpu has no GPU", "--gpu a100_sxm_80gb"),
    (("show", "star_100g", "--links", "--svg"), "--svg: excludes --links", "omit one option"),
    (("show", "dgx1_v100", "--links", "--channels"), "--channels: excludes --links", "omit one option"),
    (("show", "p5"), "topology: got 'p5'", "did you mean 'aws_p5'?"),
    (("show", "star_100g", "--out", "star.txt"), "--out: got star.txt; must end with one of .png, .svg, .pdf", ""),
    (("show", "star_100g", "--out", "small.yaml/x.png"), "--out: small.yaml/x.png: cannot be written", ""),
    (("diff", "a", "b"), "a: is not the directory of a run", "the directory that `simulator run` printed"),
    (("rerun", "."), ".: has no finished run", "give a run's directory"),
    (("run", "small.yaml", "--out", "small.yaml"), "--out: small.yaml is a file", "choose a directory"),
    (("run", "small.yaml", "--out", "small.yaml/x"), "--out: small.yaml/x: cannot be written: Not a directory", ""),
    (("run", "small.yaml", "--out", "full"), "--out: full exists and is not empty", "continue the run with --resume"),
    (
        ("run", "small.yaml", "--svg", "--json"),
        "--svg: excludes --json, because --json draws no pictures",
        "omit one option",
    ),
    (("sweep", "small.yaml", "--resume"), "--resume: needs the directory of the interrupted run", "give --out DIR"),
    (("sweep", "small.yaml", "--resume", "--out", "gone"), "--resume: gone has no scenario.yaml", "no run to continue"),
]


@pytest.mark.parametrize(("arguments", "begin", "hint"), WRONG_COMMANDS, ids=lambda value: str(value)[:50])
def test_a_users_fault_is_one_line_exit_code_2_and_nothing_written(
    cli: Command, tmp_path: Path, arguments: tuple[str, ...], begin: str, hint: str
) -> None:
    (tmp_path / "empty.yaml").write_text("", encoding="utf-8")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "open.yaml").write_text("[1, 2\n", encoding="utf-8")
    (tmp_path / "nogpu.yaml").write_text(
        "builder: star\noptions: {bandwidth: 1 GB/s, latency: 5 us}\n", encoding="utf-8"
    )
    (tmp_path / "days.yaml").write_text("scenario: straggler\ndays: 3\n", encoding="utf-8")
    (tmp_path / "jobs.yaml").write_text("cluster: {topology: leaf_spine_100g}\njobs: {}\n", encoding="utf-8")
    (tmp_path / "plan.json").write_text('{"sentences": [], "sequences": 64}', encoding="utf-8")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "kept").write_text("", encoding="utf-8")
    before = sorted(tmp_path.rglob("*"))
    answer = cli(*arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert len(answer.faults) == 1
    assert answer.err.startswith(begin)
    assert hint in answer.err
    assert sorted(tmp_path.rglob("*")) == before


def test_faults_of_several_options_come_in_one_round(cli: Command) -> None:
    options = ("--algorithm", "rng", "--topology", "star", "--begin", "3x", "--dtype", "f3", "--gpu", "b20")
    answer = cli("collective", "all_reduces", *options)
    assert (answer.code, answer.out) == (2, "")
    told = [line.partition(": ")[0] for line in answer.faults]
    assert told == ["--dtype", "--begin", "--gpu", "--topology", "--algorithm", "OPERATION"]


def test_every_fault_of_a_file_has_its_line_and_column(cli: Command, tmp_path: Path) -> None:
    wrong = SMALL.replace("4 KiB", "4 KB/s").replace("ring\n", "rng\n").replace("world_size: 4", "world_sise: 4")
    (tmp_path / "wrong.yaml").write_text(wrong, encoding="utf-8")
    answer = cli("run", "wrong.yaml")
    assert answer.code == 2
    assert [line.split(": ")[:2] for line in answer.faults] == [
        ["wrong.yaml:3:1", "cluster.world_size"],
        ["wrong.yaml:5:3", "cluster.world_sise"],
        ["wrong.yaml:8:14", "collective.algorithm"],
        ["wrong.yaml:9:9", "collective.size"],
    ]


def test_a_fault_that_only_the_cluster_shows_leaves_no_directory(cli: Command, tmp_path: Path) -> None:
    answer = cli("run", "small.yaml", "--set", "cluster.link_factors={'gpu0->gpu1': 0.5}", "--out", "there")
    assert (answer.code, len(answer.faults)) == (2, 1)
    assert "small.yaml: link: got 'gpu0->gpu1'; one of gpu0->switch0, switch0->gpu1" in answer.err
    assert not (tmp_path / "there").exists()


def test_the_framework_that_a_training_step_assumes_is_told_once(cli: Command, tmp_path: Path) -> None:
    text = (
        "name: step\ncluster: {topology: dgx_h100, world_size: 8}\nplots: []\n"
        "training: {model: gpt2, seq_len: 256, micro_batch_size: 1}\n"
    )
    (tmp_path / "step.yaml").write_text(text, encoding="utf-8")
    # Times depend on the framework: the terminal tells the assumed one in a short line.
    told = "note: training.framework is not given; kernels and memory are those of torchtitan, the default\n"
    assert cli("expect", "step.yaml", "--measured", "1 s").err.count(told) == 1
    # All points of a run share the framework: the report and the page tell it, too.
    fact = "kernels and memory are those of the framework torchtitan (training.framework;"
    answer = cli("run", "step.yaml", "--set", "training.micro_batch_size=1,2", "--out", "a")
    assert answer.err.count(told) == 1
    assert "training.framework" not in answer.out
    for file in ("report.json", "report.html"):
        assert fact in (tmp_path / "a" / file).read_text(encoding="utf-8")
    for named, tells in (("torchtitan", True), ("bare,torchtitan", False), ("bare", False)):
        folder = named.replace(",", "-")
        answer = cli("run", "step.yaml", "--set", f"training.framework={named}", "--out", folder)
        assert "training.framework" not in answer.err
        assert (fact in (tmp_path / folder / "report.json").read_text(encoding="utf-8")) == tells
    # A scenario of a collective has no framework.
    answer = cli("run", "small.yaml", "--out", "c")
    assert (answer.code, "training.framework" in answer.err) == (0, False)
    assert "training.framework" not in (tmp_path / "c" / "report.json").read_text(encoding="utf-8")


@pytest.mark.long
def test_a_measurement_of_images_is_told_in_samples(cli: Command, tmp_path: Path) -> None:
    """4 GPUs at 1,000 samples/s each take 4 x 64 / 4,000 s = 64 ms for a step of 64 images per GPU."""
    text = (
        "name: images\ncluster: {topology: dgx_a100, world_size: 4}\n"
        "training: {model: resnet50, seq_len: 1, micro_batch_size: 64, framework: torchtitan}\n"
    )
    (tmp_path / "images.yaml").write_text(text, encoding="utf-8")
    for measured in ("1000 samples/s/GPU", "4000 images/s"):
        out = " ".join(cli("expect", "images.yaml", "--measured", measured).out.split())
        assert "measured 64 ms" in out
        assert "1,000 against" in out
        assert "samples/s per GPU" in out
        assert "tokens" not in out
    # A rate of one GPU, written as that of all: the hint has the model's unit.
    assert "write '2000 samples/s/GPU'" in cli("expect", "images.yaml", "--measured", "2000 samples/s").err
    refused = cli("expect", "images.yaml", "--measured", "8000 tokens/s")
    assert (refused.code, len(refused.faults)) == (2, 1)
    assert "'120000 samples/s' or '5700 samples/s/GPU'" in refused.err


def test_payload_that_no_memory_holds_is_refused_before_it_is_tried(cli: Command, tmp_path: Path) -> None:
    for command in ("check", "run"):
        answer = cli(command, "small.yaml", "--set", "collective.size=1 PiB", "--set", "collective.payload=true")
        assert (answer.code, len(answer.faults)) == (2, 1)
        assert "collective.payload: got true; real arrays of 4 ranks and their checks need 8 PiB" in answer.err
    assert list((tmp_path / "runs").iterdir()) == []


def test_errors_have_the_exit_code_of_who_is_at_fault(capsys: pytest.CaptureFixture[str]) -> None:
    def failing(error: BaseException) -> int:
        def command() -> None:
            raise error

        return guarded(command)

    assert failing(SimulationError("the run cannot go on")) == 1
    assert failing(KeyboardInterrupt()) == 130
    assert failing(OSError(28, "No space left on device", "runs/a")) == 1
    assert failing(MemoryError("Unable to allocate 3.64 TiB")) == 1
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "the run cannot go on"
    assert told[1].startswith("interrupted")
    assert told[2].startswith("runs/a: cannot be read or written: No space left on device; free space, then continue ")
    assert told[3].startswith("this machine ran out of memory; take fewer ranks, ")
    assert len(told) == 4
    with pytest.raises(ZeroDivisionError):
        failing(ZeroDivisionError())


def test_run_prints_the_answer_a_table_and_where_results_are(cli: Command) -> None:
    answer = cli("run", "small.yaml")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.startswith("How fast is a small ring?")
    assert answer.out.splitlines()[-1] == "report: runs/small-0001/report.html"
    assert "\nWhy: Bottleneck: latency and waiting; the busiest link, gpu0->switch0, uses 1 % of its " in answer.out
    assert "carries 1.5x the array" in " ".join(answer.out.split())
    assert "\x1b" not in answer.out


def test_the_cost_of_each_setting_is_printed(cli: Command) -> None:
    training = {"model": "gpt2", "seq_len": 128, "sharding": "ddp"}
    scenario = {
        "name": "cost", "cluster": {"topology": "dgx_a100", "world_size": 8}, "training": training,
        "budget": {"tokens": 1e9, "price": 2},
    }  # fmt: skip
    Path("cost.yaml").write_text(json.dumps(scenario), encoding="utf-8")
    alone = cli("run", "cost.yaml", "--no-report").out
    assert "Estimate for 1 billion tokens: " in alone
    assert "estimate for the whole training" not in alone
    several = cli("run", "cost.yaml", "--no-report", "--set", "training.sharding=ddp,zero3").out
    table = several[several.index("estimate for the whole training") :]
    assert all(text in table for text in ("days", "GPU hours", "cost", "│ ddp", "│ zero3"))


def test_json_is_one_document_on_stdout(cli: Command) -> None:
    single, sweep = cli("run", "small.yaml", "--json"), cli("sweep", "both.yaml", "--jobs", 1, "--json")
    assert list(single.data) == ["answer", "points"]
    (point,) = single.data["points"]
    assert (point["settings"], point["engine"], point["report"]["wrong"]) == ({}, "events", 0)
    # 2 (n - 1) steps, each 10 us of latency and a quarter of 4 KiB at 12.5 GB/s.
    assert point["report"]["time_s"] == pytest.approx(6 * (10e-6 + 1024 / 12.5e9), rel=1e-9)
    assert [p["settings"] for p in sweep.data["points"]] == [{"collective.algorithm": a} for a in ("ring", "tree")]
    assert "2/2" in sweep.err


def test_a_new_gpu_has_times_of_kernels_and_no_question(cli: Command, tmp_path: Path) -> None:
    """The file's figures are an H100's, so that a matmul takes as long as on the catalog's."""
    done = cli("new", "mine", "--gpu")
    assert (done.code, done.err) == (0, "")
    kernel = Matmul("", 4096, 4096, 4096)
    mine, h100 = (duration(kernel, load_gpu(gpu), "bfloat16") for gpu in (tmp_path / "mine.yaml", "h100_sxm"))
    assert mine == pytest.approx(h100)
    assert cli("new", "other", "--gpu", "--training").code == 2


def test_a_new_scenario_can_be_checked_and_is_never_overwritten(cli: Command, tmp_path: Path) -> None:
    assert cli("new", "mine", "--question", "Which one?").code == 0
    assert (tmp_path / "mine.yaml").read_text(encoding="utf-8").startswith("# Which one?\nname: mine")
    again = cli("new", "mine.yaml")
    assert (again.code, again.err) == (
        2,
        ("mine.yaml: the file exists already; choose another name, or remove the file\n"),
    )
    checked = cli("check", "mine.yaml")
    assert checked.code == 0
    assert checked.out.startswith("mine.yaml: valid\nquestion:  Which one?\npoints:    24\n")


def test_a_listed_model_has_its_layers_and_parameters_and_no_empty_cells(cli: Command) -> None:
    """ResNet-50 has 3 + 4 + 6 + 3 = 16 blocks and 25,557,032 parameters (torchvision)."""
    *rows, note = cli("list", "models").out.splitlines()
    (row,) = [row.split() for row in rows if row.startswith("resnet50 ")]
    assert row == ["resnet50", "25,557,032", "16", "n/a", "n/a", "n/a"]
    assert note == "n/a: not a transformer, but a list of layers"
    assert not any(cell == "-" for row in rows for cell in row.split())


def test_every_list_names_what_there_is(cli: Command) -> None:
    for kind, names in (
        ("topologies", registry.names("topology")),
        ("gpus", registry.names("gpu")),
        ("scenarios", registry.names("scenario")),
        ("dtypes", ("float64", "bfloat16", "int8")),
        ("algorithms", ("ring", "nvls", "direct")),
        ("operations", ("all_reduce", "all_to_all")),
    ):
        listed = [line.split()[0] for line in cli("list", kind).out.splitlines()]
        assert set(names) <= set(listed)


def test_the_schema_is_json_and_accepts_the_small_scenario(cli: Command) -> None:
    assert cli("schema").data == json.loads(json.dumps(schema()))
    jsonschema.Draft202012Validator.check_schema(cli("schema").data)


def test_show_draws_and_counts_links(cli: Command, tmp_path: Path) -> None:
    answer = cli("show", "star_100g", "--world-size", 3, "--out", "pictures/star.svg")
    assert answer.code == 0
    assert "3 x gpu -> switch: 12.5 GB/s, 5 us" in answer.out
    assert (tmp_path / "pictures" / "star.svg").stat().st_size > 1000


def test_show_prints_the_name_of_every_link_that_a_scenario_can_slow_down(cli: Command, tmp_path: Path) -> None:
    answer = cli("show", "star_100g", "--links", "--world-size", 11)
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert lines[1].split() == ["gpu1->switch0", "12.5", "GB/s", "5", "us"]
    names = [line.split()[0] for line in lines]
    assert names[10:12] == ["gpu10->switch0", "switch0->gpu0"]
    assert len(names) == 22
    assert not list(tmp_path.glob("*.png"))
    factors = ", ".join(f"'{name}': 0.5" for name in names)
    changes = ("cluster.world_size=11", f"cluster.link_factors={{{factors}}}")
    assert cli("check", "small.yaml", *(word for one in changes for word in ("--set", one))).code == 0


def test_show_draws_another_gpu_and_files_by_path(cli: Command, tmp_path: Path) -> None:
    plain = "builder: star\noptions: {bandwidth: 100 Gb/s, latency: 5 us}\n"
    (tmp_path / "mine.yaml").write_text(plain, encoding="utf-8")
    answer = cli("show", "./mine.yaml", "--gpu", "l4", "--world-size", 2, "--svg")
    first, *_, one, other = answer.out.splitlines()
    assert first == "mine: 2 ranks of l4, 2 gpus, 1 switch"
    assert (one, other) == ("picture: mine.png", "picture: mine.svg")
    assert (tmp_path / "mine.png").read_bytes().startswith(b"\x89PNG")
    cli("show", "mine.yaml", "--gpu", "l4", "--world-size", 2, "--out", "again.svg")
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "mine.svg").read_bytes()
    assert "l4 (number: rank)" in (tmp_path / "mine.svg").read_text(encoding="utf-8")


def test_the_nccl_table_names_operation_algorithm_and_trust(cli: Command) -> None:
    """The operation has its own name and reduction; each algorithm has its first size, and trust a line."""
    sizes = ("--begin", "1KiB", "--end", "1GiB", "--factor", 1024)
    answer = cli("collective", "allreduce", "--topology", "h100_ethernet_100g", "--world-size", 12, *sizes)
    comments = [line for line in answer.out.splitlines() if line.startswith("# ")]
    assert comments[0] == "# simulated: h100_ethernet_100g, 12 ranks, all_reduce"
    first, *later = (line for line in comments if line.startswith("# algorithm"))
    assert re.match(r"# algorithm: (\w+); shortest time by formula for 1 KiB: \1 ", first)
    assert re.match(r"# algorithm from 1 MiB on: (\w+); shortest time by formula for 1 MiB: \1 ", later[0])
    (trust,) = (line for line in comments if line.startswith("# trust: "))
    assert "no collective of this run was measured on h100_ethernet_100g; times follow a model" in trust
    assert {line.split()[3] for line in answer.out.splitlines() if not line.startswith("#")} == {"sum"}
    measured = cli("collective", "all_reduce", "--topology", "aws_p5", "--world-size", 16, "--begin", "1G").out
    assert measured.splitlines()[1].startswith("# algorithm: nvls; aws_p5 runs nvls (fitted to 16 H100: ")
    assert measured.splitlines()[1].endswith("results p5.48xlarge)")
    assert "# trust: " not in measured
    borrowed = cli("collective", "all_reduce", "--topology", "aws_p4de", "--world-size", 8, "--algorithm", "tree").out
    assert "# trust: constants of collectives are not measured here: as dgx_a100" in borrowed


def test_arrays_too_large_are_refused_by_the_option(cli: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulator.basics.host_memory.memory", lambda: 2.0**30)
    answer = cli("collective", "all_reduce", "--payload", "--begin", "1GiB", "--end", "8GiB", "--factor", "8")
    assert (answer.code, answer.out, len(answer.faults)) == (2, "", 1)
    assert answer.err.startswith("--payload: real arrays of 8 ranks and their checks need ")
    assert answer.err.endswith("; leave out --payload, or use a smaller --end\n")


def test_the_nccl_table_tells_idle_network_cards_and_the_choice_of_auto(cli: Command) -> None:
    """A ring over two nodes of p4de leaves each node at one rank; `blueconnect` leaves it at all eight."""
    options = ("all_reduce", "--topology", "aws_p4de", "--world-size", 16, "--begin", "1MiB", "--end", "64MiB")
    table = cli("collective", *options, "--factor", 64, "--algorithm", "ring").out
    assert re.search(
        r"\n# trust: ring leaves 3 of a node's 4 network cards idle \(NCCL's Ring is multi_ring\); algorithm auto is "
        r"blueconnect here and takes "
        r"[\d.]+ ms instead of [\d.]+ ms \(64 MiB\)\n",
        table,
    )
    assert "network cards" not in cli("collective", *options, "--factor", 64).out


def test_the_nccl_table_doubles_from_begin_to_end(cli: Command) -> None:
    arguments = ("collective", "all_reduce", "--algorithm", "ring", "--world-size", 4, "--begin", "1K", "--end", "4KiB")
    rows = [line.split() for line in cli(*arguments, "--payload").out.splitlines() if not line.startswith("#")]
    assert [(row[0], row[1], row[8]) for row in rows] == [
        ("1024", "256", "0"),
        ("2048", "512", "0"),
        ("4096", "1024", "0"),
    ]
    points = cli(*arguments, "--json").data["points"]
    assert [p["report"]["time_s"] for p in points] == [
        pytest.approx(6 * (10e-6 + size / 4 / 12.5e9), rel=1e-9) for size in (1024, 2048, 4096)
    ]


def test_help_is_a_letter_too_and_cuts_no_summary(cli: Command) -> None:
    assert cli("-h").out == cli("--help").out
    assert cli("list", "-h").out == cli("list", "--help").out
    # Of one command alone, "[ARGS]..." is no cut.
    assert "..." not in cli("-h").out.replace("[ARGS]...", "")


@pytest.mark.parametrize(
    ("typed", "proposed"),
    [
        ("simulator ker", ["kernels"]),
        ("simulator run ring", ["ring_vs_parameter_server"]),
        ("simulator show dgx_h", ["dgx_h100", "dgx_h200"]),
        ("simulator collective all_reduce --topology star_100", ["star_100g"]),
        ("simulator kernels gpt2_m", ["gpt2_medium"]),
        ("simulator program llama3_8b --framework torcht", ["torchtitan", "torchtitan_2024", "torchtune"]),
        ("simulator memory gpt2 --gpu h1", ["h100_pcie", "h100_sxm"]),
        ("simulator list topo", ["topologies"]),
        # Nothing begins so: the shell proposes files.
        ("simulator run ./ring", []),
    ],
)
def test_a_shell_completes_commands_and_names(typed: str, proposed: list[str]) -> None:
    words = {"COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_SIMULATOR_COMPLETE": "complete_bash", **words}
    command = [sys.executable, "-m", "simulator"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout.split()) == (0, proposed)


def test_the_script_of_a_shell_is_shown() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "simulator", "--show-completion", "zsh"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE_S)
    assert done.returncode == 0
    assert done.stdout.startswith("#compdef simulator")


def test_a_reader_that_has_had_enough_is_no_error(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = [sys.executable, "-m", "simulator", "schema"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
