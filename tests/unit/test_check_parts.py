"""The check of a part's kind names the law that a wrong part breaks, with the first setting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from simulator.basics import registry
from simulator.basics.errors import ScenarioError
from simulator.model.parameters import total
from simulator.testing import (
    PartCheck,
    check_finding,
    check_framework,
    check_optimizer,
    check_plot,
    check_plugin,
    check_schedule,
    check_sharding,
    check_topology_builder,
)
from simulator.testing.sharding_laws import EVEN
from tests.commands import commands_in
from tests.own_parts import PARTS, OwnPart

CHECKS: Final[dict[str, Callable[[str], PartCheck]]] = {
    "schedule": check_schedule,
    "sharding": check_sharding,
    "topology_builder": check_topology_builder,
    "optimizer": check_optimizer,
    "plot": check_plot,
    "finding": check_finding,
}
# Laws that say nothing about the sound part: it shards no parameters, or has no hosts.
SILENT: Final = {"sharding": {"layers gathered ahead"}, "topology_builder": {"routes to hosts"}}
every_kind = pytest.mark.parametrize("kind", PARTS)


def changed(part: OwnPart, folder: Path, before: str, after: str) -> str:
    """The path of a part's file with a changed text."""
    assert before in part.source
    path = folder / part.file
    path.write_text(part.source.replace(before, after))
    return str(path)


@every_kind
@pytest.mark.one_of(3)
def test_a_sound_part_keeps_every_law(kind: str, tmp_path: Path) -> None:
    path = PARTS[kind].write(tmp_path)
    checked = CHECKS[kind](str(path))
    assert checked.holds, "\n".join(checked.lines())
    silent = {result.law for result in checked.results if not result.cases}
    assert silent == SILENT.get(kind, set()), "\n".join(checked.lines())
    assert [one.lines() for one in check_plugin(path)] == [checked.lines()]


# A change of the sound file, the law that it breaks, and the beginning of the fault.
WRONG: Final = [
    (
        "schedule",
        "for micro in reversed(micros)),",
        "for micro in list(micros)[1:]),",
        "every pass once",
        "BROKEN with 2 ranks, 1 micro-batches: rank 0 runs F of stage 0 and micro-batch 0; must run F and B",
    ),
    (
        "schedule",
        "order=order,",
        # Rank 0 runs F0 B0 F1 B1, the others F0 F1 B1 B0.
        "order=lambda s: (tuple(sorted(order(s)[0], key=lambda slot: slot[0].micro)), *order(s)[1:]),",
        "no deadlock",
        "BROKEN with 2 ranks, 2 micro-batches: no rank can continue; the next passes are B0.0, F1.1",
    ),
    (
        "schedule",
        "(shape.ranks - 1) * (times.forward + times.backward)",
        "shape.ranks * (times.forward + times.backward)",
        "closed form of the bubble",
        "BROKEN with 2 ranks, 1 micro-batches: the bubble lasts 3 s, and its closed form gives 6 s",
    ),
    (
        "schedule",
        "shape.micro_batches,",
        "1,",
        "activations in memory",
        "BROKEN with 2 ranks, 2 micro-batches: rank 0 holds 2 activations at most, and declares 1",
    ),
    (
        "sharding",
        "return 2 * ",
        "return 3 * ",
        "elements on the wire",
        # 4 ranks sum the gradients of every parameter of the model once.
        f"BROKEN with the default options: sends {2 * 3 * total(EVEN)} elements, and declares {3 * 3 * total(EVEN)}",
    ),
    (
        "sharding",
        "sending=GradientSync.EVERY",
        "sending=GradientSync.LAST",
        "micro-batches with gradients",
        "BROKEN: communicates gradients in micro-batches [0, 1, 2]; must be [2]",
    ),
    (
        "sharding",
        "dtype = passes.step",
        "dtype = passes.nonsense",
        "kernels of ddp",
        "BROKEN with the default options: synced.py:12: AttributeError: ",
    ),
    (
        "sharding",
        '"all_reduce", bucket.elements,',
        '"reduce_scatter", bucket.elements,',
        "losses and parameters of ddp",
        "BROKEN with the default options: ",
    ),
    (
        "sharding",
        "bucket.names, bucket.micro)",
        # Each micro-batch sends the gradients of micro-batch 0.
        "bucket.names, 0)",
        "losses and parameters of ddp beside a slow rank",
        "BROKEN with the default options: rank 0 sends gradients of head, micro-batch 0, which it lacks",
    ),
    (
        "plot",
        "axes.bar(ranks, idle, color=style.GREY)",
        "pass",
        "titles, texts, colours and axes",
        "BROKEN with a scenario of a collective: the picture of point 0: axes are empty",
    ),
    (
        "plot",
        "color=style.GREY",
        "color='#123456'",
        "titles, texts, colours and axes",
        "BROKEN with a scenario of a collective: the picture of point 0: the colours #123456 are none of the style's",
    ),
    (
        "finding",
        "as the fastest",
        "as the fastest.",
        "sentences, numbers and points",
        "BROKEN with a comparison of collectives: the sentence 'The slowest point takes ",
    ),
    (
        "finding",
        "done[-1].index)",
        "99)",
        "sentences, numbers and points",
        # Two algorithms with two sizes.
        "BROKEN with a comparison of collectives: mentions point 99; must be one of 0 .. 3",
    ),
    (
        "optimizer",
        "states=3",
        "states=2",
        "states and accesses of its kernels",
        "BROKEN: declares 2 states for each parameter; its kernels use 3 (m, v, x)",
    ),
    (
        "optimizer",
        "numbers=17",
        "numbers=14",
        "states and accesses of its kernels",
        # Two accesses to m, v, v, d and d, three to x and v, two of the temporary's first, and two of the last kernel.
        "BROKEN: declares 14 accesses to states and temporaries; its kernels have 17",
    ),
    (
        "optimizer",
        "temporaries=1",
        "temporaries=0",
        "traffic of separate kernels",
        "BROKEN with ddp, bfloat16: ddp: temporaries take 0 B; those of the kernels take 16000 B",
    ),
    (
        "topology_builder",
        "GraphSize(world_size, world_size - 1)",
        "GraphSize(world_size, world_size)",
        "parts as counted",
        # Each cable is two links.
        "BROKEN with 1 ranks: has 1 vertices and 0 links, and counts 1 and 2",
    ),
    (
        "topology_builder",
        "in pairwise(names):",
        "in list(pairwise(names))[:4]:",
        "a route for every pair",
        "BROKEN with 7 ranks: ",
    ),
    (
        "topology_builder",
        "TopologyLimits()",
        "TopologyLimits(node_size=4)",
        "nodes hold every rank once",
        "BROKEN with 7 ranks: has 1 nodes; must have 2",
    ),
    (
        "topology_builder",
        "latency : float",
        "delay : float",
        "options are described",
        "BROKEN: the docstring does not explain option latency",
    ),
]


@pytest.mark.parametrize(("kind", "before", "after", "law", "fault"), WRONG)
def test_a_wrong_part_is_refused(kind: str, before: str, after: str, law: str, fault: str, tmp_path: Path) -> None:
    checked = CHECKS[kind](changed(PARTS[kind], tmp_path, before, after))
    broken = {result.law: result.fault for result in checked.results if result.fault}
    assert law in broken, "\n".join(checked.lines())
    assert broken[law].startswith(fault)


def test_a_strategy_that_forgets_to_gather_is_refused(tmp_path: Path) -> None:
    """Ranks that update their own shards compute with stale parameters elsewhere."""
    path = tmp_path / "forgetful.py"
    path.write_text(
        "from dataclasses import replace\n"
        "from simulator.step.spec import Gathering\n"
        "from simulator.step.strategies.zero1 import STRATEGY as ZERO1\n"
        "STRATEGY = replace(ZERO1, name='forgetful', gathering=Gathering.NOT_NEEDED)\n"
    )
    broken = {result.law: result.fault for result in check_sharding(path).results if result.fault}
    assert "the loss of a training differs from ddp's by" in broken["losses and parameters of ddp"]


@every_kind
def test_an_error_in_the_code_names_its_line(kind: str, tmp_path: Path) -> None:
    (tmp_path / PARTS[kind].file).write_text("\n\nimport no_such_module\n")
    with pytest.raises(ScenarioError, match=rf"^{PARTS[kind].file}:3: ModuleNotFoundError"):
        CHECKS[kind](str(tmp_path / PARTS[kind].file))


def test_a_file_without_a_part_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.py").write_text("x = 1\n")
    with pytest.raises(ScenarioError, match=r"declares no part; must have one of ALGORITHM \(Algorithm\), SCHEDULE"):
        check_plugin(tmp_path / "empty.py")


def test_only_python_files_and_framework_files_are_read(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"^got '.*part\.txt'; must be a Python file \(\.py\) with a part, or"):
        check_plugin(tmp_path / "part.txt")


FRAMEWORK = """\
based_on: torchtitan
kernel_time: {value: 1.1, source: measured on our cluster}
host: {issue: {value: 6.0e-6, source: a profile}}
calibration: {runs: 2, errors: [0.01, -0.02]}
"""


@pytest.mark.parametrize("name", registry.names("framework"))
def test_shipped_frameworks_name_the_sources_of_their_constants(name: str) -> None:
    assert [line for line in check_framework(name).lines() if "BROKEN" in line] == []


def test_an_own_framework_file_is_checked(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FRAMEWORK, encoding="utf-8")
    (checked,) = check_plugin(path)
    assert checked.holds
    path.write_text(FRAMEWORK.replace("{value: 6.0e-6, source: a profile}", "6.0e-6"), encoding="utf-8")
    (checked,) = check_plugin(path)
    assert [result.fault for result in checked.results if result.fault] == [
        "BROKEN with host.issue: has no source; write {value: ..., source: where the value was measured}"
    ]


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("kernel_tme: 1.0", r":2:1: kernel_tme: unknown key"),
        ("kernel_time: -1.0", r":2:14: kernel_time\.value: got -1\.0; must be more than 0"),
        ("kernel_time: .nan", r":2:14: kernel_time"),
        ("calibration: {runs: 3, errors: [0.1]}", r":2:14: calibration: got 1 error of 3 runs; must be 3"),
        ("based_on: nothing", r":2:1: based_on: occurs twice, first in line 1"),
    ],
)
def test_a_framework_file_with_a_fault_is_refused_with_its_line(tmp_path: Path, key: str, told: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"based_on: torchtitan\n{key}\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match=told):
        check_plugin(path)


def test_a_file_with_several_parts_is_checked_for_each(tmp_path: Path) -> None:
    path = tmp_path / "both.py"
    path.write_text(f"{PARTS['schedule'].source}\nfrom simulator.collectives.ring import ALGORITHM\n")
    assert {checked.laws for checked in check_plugin(path)} == {"collectives", "pipeline schedules"}


def test_the_command_prints_the_laws_and_ends_with_code_1_if_one_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = commands_in(tmp_path, monkeypatch, capsys)
    PARTS["schedule"].write(tmp_path)
    done = command("check-plugin", "lifo.py")
    assert (done.code, done.err.splitlines()) == (0, ["warning: runs the code of lifo.py"])
    assert done.out.startswith("lifo.py: keeps the laws of pipeline schedules")
    refused = command("check-plugin", "lifo.py", "--no-plugins")
    assert (refused.code, len(refused.faults)) == (2, 1)
    changed(PARTS["schedule"], tmp_path, "shape.micro_batches,", "1,")
    assert command("check-plugin", "lifo.py").code == 1
