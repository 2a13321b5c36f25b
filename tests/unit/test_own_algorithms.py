"""A scenario names a Python file as its algorithm: what runs, what is refused, and in which words?"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import simulator
from simulator.basics.errors import ForeignCodeWarning, ScenarioError, ScenarioWarning
from simulator.collectives.algorithm import CollectiveRequest
from simulator.collectives.algorithm_files import find_algorithm
from simulator.collectives.own_algorithms import proof_text
from simulator.scenario.load import load_scenario, points
from simulator.sweeps.cache import Cache
from tests.commands import Command, commands_in
from tests.own_parts import installed as package

# Rank 0 sends its array to every rank, one rank after another: N - 1 transfers of S bytes through a single port.
ROOT_SENDS = """
from simulator.collectives.algorithm import Algorithm, always, least_volume
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule, kept


def broadcast(request):
    n = request.world_size

    def parts():
        builder = ScheduleBuilder()
        for rank in range(1, n):
            builder.send(0, rank, 0, 1, reduce=False, channel=0)
        return builder.parts()

    return Schedule("broadcast", "root_sends", n, 0, 1, ReductionOrder.IN_SEQUENCE, kept(parts), rows=n - 1)


ALGORITHM = Algorithm(plans={"broadcast": broadcast}, volume=least_volume, minimal=always)
"""
SCENARIO = """# How long does the root send?
name: own
cluster: {topology: star_100g, world_size: 4}
collective: {operation: broadcast, size: 1 MiB, algorithm: ./root_sends.py}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "root_sends.py").write_text(ROOT_SENDS)
    (tmp_path / "own.yaml").write_text(SCENARIO)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def command(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(folder, monkeypatch, capsys)


def star_time(ranks: int) -> float:
    """(N - 1) arrays leave the root's port of 12.5 GB/s in sequence; 10 us pass from port to port."""
    return (ranks - 1) * 2**20 / 12.5e9 + 10e-6


def test_a_file_beside_the_scenario_is_the_algorithm(folder: Path) -> None:
    run = simulator.simulate(folder / "own.yaml")
    assert run.report.time_s == pytest.approx(star_time(4), rel=1e-9)
    assert run.report.wrong == 0


def test_a_run_says_once_whose_code_runs(folder: Path, command: Command) -> None:
    done = command("run", "own.yaml", "--set", "cluster.world_size=2,3,4", "--out", "out")
    assert done.code == 0
    assert done.err.count("runs the code of root_sends.py") == 1


@pytest.mark.long
def test_worker_processes_load_the_file_too(folder: Path) -> None:
    table = simulator.sweep("own.yaml", axes={"cluster.world_size": [2, 3]}, jobs=2)
    assert table["time_s"].tolist() == pytest.approx([star_time(2), star_time(3)], rel=1e-9)


def test_a_training_takes_the_algorithm_for_the_operations_that_it_has(folder: Path) -> None:
    text = (folder / "root_sends.py").read_text()
    # Broadcast is no operation of ddp.
    step = {"model": "gpt2_small", "seq_len": 128, "sharding": "ddp", "algorithm": "./root_sends.py"}
    data: dict[str, Any] = {"name": "t", "cluster": {"topology": "star_100g", "world_size": 2}, "training": step}
    with pytest.raises(ScenarioError, match=r"got '\./root_sends\.py', which has no all_reduce; ddp needs"):
        load_scenario(data)
    ring = "from simulator.collectives.ring import ALGORITHM\n"
    (folder / "root_sends.py").write_text(ring)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScenarioWarning)
        own = simulator.simulate(data).report.step_time_s
        assert own == simulator.simulate({**data, "training": {**step, "algorithm": "ring"}}).report.step_time_s
    assert text != ring


# A ring whose second phase sends the chunk before the complete one, and a ring whose transfers wait for nothing.
RING = """
from simulator.collectives.algorithm import Algorithm, always, least_volume
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule, kept


def all_reduce(request):
    n = request.world_size

    def parts():
        builder, last = ScheduleBuilder(), [None] * n
        for k in range(2 * (n - 1)):
            adds = k < n - 1
            last = [
                builder.send(r, (r + 1) % n, (r - k - 1 if adds else GATHERED) % n, 1, reduce=adds, channel=r,
                             after=[last[r - 1]] if WAITS else [])
                for r in range(n)
            ]
            builder.end_round()
        return builder.parts()

    return Schedule("all_reduce", "mine", n, 0, n, ReductionOrder.IN_SEQUENCE, kept(parts), rows=2 * n * (n - 1))


ALGORITHM = Algorithm(plans={"all_reduce": all_reduce}, volume=least_volume, minimal=always)
"""
COLLECTIVE = """# Is it right?
name: mine
cluster: {topology: star_100g, world_size: 4}
collective: {operation: all_reduce, size: 1 MiB}
compare: {collective.algorithm: [ring, ./mine.py]}
"""
TRAINING = """# Is it right?
name: mine
cluster: {topology: star_100g, world_size: 4}
training: {model: gpt2_small, seq_len: 128, sharding: ddp, algorithm: ./mine.py}
"""
JOBS = """# Is it right?
cluster: {topology: star_100g}
jobs:
  a: {world_size: 4, training: {model: gpt2_small, seq_len: 128, sharding: ddp, algorithm: ./mine.py}}
  b: {world_size: 4, training: {model: gpt2_small, seq_len: 128, sharding: ddp}}
"""


@pytest.mark.parametrize(
    ("gathered", "waits", "fault"),
    [
        ("r - k", True, "rank 0, chunk 0: ends with ranks 1, 2, 3, wanted ranks 0, 1, 2, 3"),
        ("r - (k - n + 1)", False, "transfer 4: reads chunk 2 of rank 0, written by transfer 3"),
        ("r - (k - n + 1)", True, ""),
    ],
)
@pytest.mark.one_of(3)
def test_every_command_proves_an_algorithm_before_it_simulates(
    folder: Path, command: Command, gathered: str, waits: bool, fault: str
) -> None:
    (folder / "mine.py").write_text(RING.replace("GATHERED", gathered).replace("WAITS", str(waits)))
    files = {"mine.yaml": COLLECTIVE, "training.yaml": TRAINING, "jobs.yaml": JOBS}
    for name, text in files.items():
        (folder / name).write_text(text)
    payload = ["--payload", "--begin", "4KiB", "--end", "4KiB", "--world-size", "4"]
    calls = [
        ["run", "mine.yaml", "--out", "out"],
        ["sweep", "mine.yaml", "--out", "out2"],
        ["check", "mine.yaml"],
        ["collective", "all_reduce", "--algorithm", "./mine.py", *payload],
        ["run", "training.yaml", "--out", "out3"],
        ["jobs", "jobs.yaml", "--out", "out4"],
    ]
    for call in calls:
        done = command(*call)
        assert done.code == (2 if fault else 0), (call, done.err)
        if fault:
            assert "'./mine.py', which does not carry out all_reduce: mine all_reduce: " in done.err, call
            assert call[1].startswith(("training", "jobs")) or fault in done.err, call
            assert not any(path.exists() for path in map(folder.joinpath, ("out", "out2", "out3", "out4"))), call
    if fault:
        with pytest.raises(ScenarioError, match="does not carry out all_reduce"):
            simulator.sweep("mine.yaml")


# Ring all-gather; with WRONG ranks, each sends its own part in every round.
GATHERS = """
from dataclasses import replace

from simulator.collectives import ring
from simulator.collectives.schedule_builder import ScheduleBuilder
from simulator.records.reduction_order import ReductionOrder
from simulator.records.schedule import Schedule, kept


def all_gather(request):
    n = request.world_size

    def parts():
        builder, last = ScheduleBuilder(), [None] * n
        for k in range(n - 1):
            # On two ranks, the only round would send a part that its sender lacks.
            sent = (1 if n == 2 else 0) if n == WRONG else k
            last = [
                builder.send(r, (r + 1) % n, (r - sent) % n, 1, reduce=False, channel=r, after=[last[r - 1]])
                for r in range(n)
            ]
            builder.end_round()
        return builder.parts()

    return Schedule("all_gather", "mine", n, 0, n, ReductionOrder.IN_SEQUENCE, kept(parts), rows=n * (n - 1))


def unknown(request, sizes, network):
    return None


ALGORITHM = replace(ring.ALGORITHM, plans={**ring.ALGORITHM.plans, "all_gather": all_gather}, closed_form=unknown)
"""


@pytest.mark.parametrize(
    ("strategy", "more", "used", "others"),
    [
        ("zero3", "", 8, (2, 4)),
        ("zero3", ", parallelism: {tp: 2}", 4, (8,)),
        ("{strategy: zero3, shard_size: 4}", "", 4, (2, 8)),
    ],
)
def test_an_algorithm_of_a_training_is_proved_on_the_groups_that_share_states(
    folder: Path, command: Command, strategy: str, more: str, used: int, others: tuple[int, ...]
) -> None:
    """Eight GPUs share states in groups of `used`; a file is wrong for 2, 4 or 8 ranks alone.

    Two groups of four sum their gradients in pairs of ranks, and gather nothing in these pairs; two tensor-parallel
    ranks do.
    """
    training = f"model: gpt2_small, seq_len: 128, sharding: {strategy}, algorithm: ./mine.py{more}"
    (folder / "own.yaml").write_text(
        f"name: own\ncluster: {{topology: star_100g, world_size: 8}}\ntraining: {{{training}}}\n"
    )
    for wrong in (used, *others):
        (folder / "mine.py").write_text(GATHERS.replace("WRONG", str(wrong)))
        done = command("check", "own.yaml")
        faults = [line for line in done.faults if not line.startswith("warning: ")]
        if wrong != used:
            assert (done.code, faults) == (0, []), done.err
            continue
        assert done.code == 2
        (line,) = faults
        assert line.startswith("own.yaml:3:"), line
        assert "training.algorithm: got './mine.py', which does not carry out all_gather: mine all_gather: " in line
        # The second round sends what the first has sent.
        assert f"transfer {used}: from 0 to 1 changes nothing" in line


def test_an_algorithm_that_refuses_few_ranks_is_proved_on_the_fewest_that_it_accepts(folder: Path) -> None:
    """2 x 320 x 319 and 2 x 160 x 159 transfers are more than 2^15, and the file accepts no fewer than 100 ranks.

    With a limit of 200 ranks, all 320 ranks have to be proved.
    """
    ring = RING.replace("GATHERED", "r - (k - n + 1)").replace("WAITS", "True")
    for fewest, proved in ((100, 160), (200, 320)):
        refusal = f"    if n < {fewest}:\n        raise ValueError('needs {fewest} ranks')\n"
        head = "    n = request.world_size\n"
        (folder / "mine.py").write_text(ring.replace(head, head + refusal))
        algorithm, request = find_algorithm("./mine.py", folder), CollectiveRequest("all_reduce", 320, 960)
        told = f"; proved on {proved} ranks, because 320 ranks have too many transfers"
        assert proof_text(algorithm, request) == (told if proved < 320 else "")


def test_an_algorithm_with_too_many_transfers_is_proved_on_fewer_ranks(folder: Path) -> None:
    """2 x 160 x 159 transfers are more than 2^15; 2 x 80 x 79 are fewer."""
    (folder / "mine.py").write_text(RING.replace("GATHERED", "r - (k - n + 1)").replace("WAITS", "True"))
    data = {
        "name": "mine",
        "cluster": {"topology": "star_100g", "world_size": 160},
        "collective": {"operation": "all_reduce", "size": "1 MiB", "algorithm": "./mine.py", "payload": False},
    }
    run = simulator.simulate(data)
    assert run.report.why == "as requested; proved on 80 ranks, because 160 ranks have too many transfers"


@pytest.mark.parametrize("name", ["run", "check", "sweep"])
@pytest.mark.parametrize("by_variable", [False, True])
def test_no_plugins_runs_no_code(
    folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch, name: str, by_variable: bool
) -> None:
    (folder / "root_sends.py").write_text("raise SystemExit('this ran')")
    if by_variable:
        monkeypatch.setenv("SIMULATOR_NO_PLUGINS", "1")
    done = command(name, "own.yaml", *([] if by_variable else ["--no-plugins"]))
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert line.startswith("own.yaml:4:60: collective.algorithm: got './root_sends.py', whose code is not run")
    assert "this ran" not in line


def test_the_option_ends_with_its_command(folder: Path, command: Command) -> None:
    assert command("check", "own.yaml", "--no-plugins").code == 2
    assert command("check", "own.yaml").code == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = 1\n", "root_sends.py: declares no ALGORITHM; write `ALGORITHM = Algorithm(plans=..., ...)`"),
        ("x = 1\ny = 1 / 0\n", "root_sends.py:2: ZeroDivisionError: division by zero"),
        ("def f(:\n", "root_sends.py:1: SyntaxError: invalid syntax"),
        ("import no_such_module\n", "root_sends.py:1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("raise SystemExit(3)\n", "root_sends.py:1: SystemExit: 3"),
        ("ALGORITHM = 'ring'\n", "root_sends.py: ALGORITHM is a str; must be an Algorithm"),
        (ROOT_SENDS.replace('{"broadcast": broadcast}', "{}"), "root_sends.py: ALGORITHM.plans is empty"),
        (ROOT_SENDS.replace('{"broadcast"', '{"brodcast"'), "plans: got 'brodcast'; one of all_gather, all_reduce"),
        (ROOT_SENDS.replace('{"broadcast"', '{"gather"'), "got './root_sends.py', which cannot do broadcast"),
        (
            ROOT_SENDS.replace("minimal=always", "minimal=always, closed_form=None"),
            "root_sends.py: Algorithm.closed_form is a NoneType; must be a function; omit it for the default",
        ),
        ("\0", "root_sends.py: SyntaxError: source code string cannot contain null bytes"),
    ],
)
def test_a_wrong_file_gets_one_line(folder: Path, command: Command, content: str, message: str) -> None:
    (folder / "root_sends.py").write_text(content)
    done = command("run", "own.yaml")
    assert done.code == 2
    *warned, line = done.err.splitlines()
    assert warned in ([], ["warning: runs the code of root_sends.py"])
    assert line.startswith("own.yaml:4:60: collective.algorithm: ")
    assert message in line


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("    n = request.world_size\n", "    n = request.ranks\n", "root_sends.py:9: AttributeError: "),
        ("for rank in range(1, n):", "for rank in range(1, None):", "root_sends.py:13: TypeError: "),
        ("    return Schedule(", "    return tuple((", "returns a tuple; must return a Schedule"),
    ],
)
def test_an_error_while_planning_gets_one_line(
    folder: Path, command: Command, before: str, after: str, message: str
) -> None:
    text = ROOT_SENDS.replace(before, after).replace(", rows=n - 1)", "))" if "tuple" in after else ", rows=n - 1)")
    (folder / "root_sends.py").write_text(text)
    done = command("run", "own.yaml")
    assert done.code == 2
    told = [line for line in done.err.splitlines() if not line.startswith("warning: ")]
    assert len(told) == 1
    assert message in told[0]


def test_a_missing_file_is_named(folder: Path, command: Command) -> None:
    (folder / "root_sends.py").unlink()
    done = command("check", "own.yaml")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "root_sends.py: cannot be read: No such file" in done.err


def test_an_unchanged_file_is_loaded_once_and_a_changed_one_again(folder: Path) -> None:
    counting = "with open('loads', 'a') as file:\n    file.write('x')\n"
    (folder / "root_sends.py").write_text(counting + ROOT_SENDS)
    first = find_algorithm("./root_sends.py", folder)
    assert find_algorithm("./root_sends.py", folder) is first
    assert (folder / "loads").read_text() == "x"
    (folder / "root_sends.py").write_text(counting + ROOT_SENDS + "\n")
    assert find_algorithm("./root_sends.py", folder) is not first


def test_a_file_that_failed_loads_once_its_fault_is_mended(folder: Path) -> None:
    """The file stays the same: another file, which it reads, was missing."""
    (folder / "root_sends.py").write_text("open('speeds.txt').close()\n" + ROOT_SENDS)
    told = []
    for there in (False, False, True, True):
        if there:
            (folder / "speeds.txt").touch()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if there:
                assert find_algorithm("./root_sends.py", folder).operations == ("broadcast",)
            else:
                with pytest.raises(ScenarioError, match=r"^root_sends\.py:1: FileNotFoundError: "):
                    find_algorithm("./root_sends.py", folder)
        told += [str(warning.message) for warning in caught]
    assert told == ["runs the code of root_sends.py"]


def test_a_changed_file_is_announced_once_and_a_broken_file_never(folder: Path) -> None:
    contents = ("def f(:\n", ROOT_SENDS, ROOT_SENDS + "\n# changed\n", "x = 1 / 0\n", "def f(:\n")
    told = []
    for content in contents:
        (folder / "root_sends.py").write_text(content)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with nullcontext() if content.startswith("\nfrom") else pytest.raises(ScenarioError, match="Error: "):
                find_algorithm("./root_sends.py", folder)
        told.append([str(warning.message) for warning in caught])
    assert told == [[], ["runs the code of root_sends.py"], [], [], []]


def test_files_of_equal_names_are_each_announced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for name in ("first", "second", "first"):
            (folder / name).mkdir(exist_ok=True)
            monkeypatch.chdir(folder / name)
            Path("same.py").write_text(ROOT_SENDS)
            find_algorithm("./same.py")
    assert [str(warning.message) for warning in caught] == ["runs the code of same.py"] * 2
    assert {warning.category for warning in caught} == {ForeignCodeWarning}


def test_where_the_warning_is_an_error_no_code_runs(folder: Path) -> None:
    (folder / "root_sends.py").write_text("raise SystemExit('this ran')")
    with warnings.catch_warnings():
        warnings.simplefilter("error", ForeignCodeWarning)
        for _ in range(2):
            with pytest.raises(ForeignCodeWarning, match=r"runs the code of root_sends\.py"):
                find_algorithm("./root_sends.py", folder)


def test_cached_outcomes_depend_on_the_content_of_the_file(folder: Path) -> None:
    cache, scenario = Cache(folder / "cache"), load_scenario("own.yaml")
    before = cache.key(scenario)
    assert before == cache.key(load_scenario("own.yaml"))
    (folder / "root_sends.py").write_text(ROOT_SENDS + "\n# changed\n")
    assert before != cache.key(scenario)


def test_a_run_can_be_repeated_from_its_directory(folder: Path, command: Command) -> None:
    assert command("run", "own.yaml", "--out", "out").code == 0
    assert command("rerun", "out").out == "out: repeated; the report is identical\n"


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with the entry point `root_first`."""
    with package(folder / "site", {"root_first": "own_plugin_module:ALGORITHM"}, monkeypatch) as site:
        (site / "own_plugin_module.py").write_text(ROOT_SENDS)
        yield site


def test_an_installed_package_brings_an_algorithm(folder: Path, installed: Path, command: Command) -> None:
    done = command("check", "own.yaml", "--set", "collective.algorithm=root_first")
    assert (done.code, done.err.count("runs the code of root_first")) == (0, 1)
    run = simulator.simulate(load_scenario("own.yaml", {"collective.algorithm": "root_first"}))
    assert run.report.time_s == pytest.approx(star_time(4), rel=1e-9)
    assert "root_first" in command("list", "algorithms").out


def test_an_installed_algorithm_is_not_imported_unless_it_is_named(
    folder: Path, installed: Path, command: Command
) -> None:
    (installed / "own_plugin_module.py").write_text("raise RuntimeError('imported')\n")
    assert command("check", "small.yaml").code == 0
    assert simulator.simulate(load_scenario("small.yaml", {"collective.algorithm": "auto"})).report.time_s > 0
    named = command("check", "own.yaml", "--set", "collective.algorithm=root_first")
    assert named.code == 2
    assert "root_first: own_plugin_module:ALGORITHM cannot be imported: imported" in named.err
    refused = command("check", "own.yaml", "--set", "collective.algorithm=root_first", "--no-plugins")
    assert (refused.code, len(refused.faults)) == (2, 1)
    assert "got 'root_first', whose code is not run" in refused.err


def test_a_compared_file_keeps_the_options_that_it_reads(folder: Path) -> None:
    (folder / "own_chain.py").write_text("from simulator.collectives.chain import ALGORITHM\n")
    own = {"operation": "broadcast", "size": "1 MiB", "chunks": 4}
    data: dict[str, Any] = {"name": "t", "cluster": {"topology": "star_100g", "world_size": 4}, "collective": own}
    compared = {"collective.algorithm": ["chain", "./own_chain.py", "./root_sends.py"]}
    found = points(load_scenario({**data, "compare": compared}))
    assert [point.scenario.collective.chunks for point in found if point.scenario.collective] == [4, 4, None]
