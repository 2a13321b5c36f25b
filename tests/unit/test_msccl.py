"""MSCCL programs: what they mean, which wrong programs are refused, and the way back into XML.

The programs are written here, from the definition of the algorithm and not by the package's own writer.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from simulator.basics.errors import ScenarioError
from simulator.collectives.algorithm import ALGORITHMS, Algorithm, CollectiveRequest
from simulator.collectives.algorithm_files import find_algorithm
from simulator.collectives.msccl.convert import algorithm_of_program
from simulator.collectives.msccl.xml_writer import exported
from simulator.scenario.load import load_scenario
from simulator.testing import check_algorithm
from tests.commands import Command, commands_in
from tests.playing import equal_nodes, nodes, star, time_of

Step = tuple[str, str, int, str, int, int, int]  # type, source, destination, depid, deps
SCENARIO = """# How long does the program take?
name: own
cluster: {topology: star_100g, world_size: 4}
collective: {operation: all_reduce, size: 1 MiB, algorithm: ./program.xml}
"""


def block(number: int, send: int, receive: int, steps: Iterable[Step], channel: int = 0) -> str:
    lines = [
        f'<step s="{s}" type="{kind}" srcbuf="{a}" srcoff="{i}" dstbuf="{b}" dstoff="{j}" cnt="1" '
        f'depid="{depid}" deps="{deps}" hasdep="0"/>'
        for s, (kind, a, i, b, j, depid, deps) in enumerate(steps)
    ]
    return "\n".join([f'<tb id="{number}" send="{send}" recv="{receive}" chan="{channel}">', *lines, "</tb>"])


def program(blocks_of: list[list[str]], collective: str, chunks: int, in_place: int = 1, scratch: int = 0) -> str:
    gpus = [
        "\n".join([f'<gpu id="{gpu}" i_chunks="0" o_chunks="0" s_chunks="{scratch}">', *blocks, "</gpu>"])
        for gpu, blocks in enumerate(blocks_of)
    ]
    head = f'<algo name="own" proto="Simple" nchannels="1" nchunksperloop="{chunks}" ngpus="{len(gpus)}"'
    return "\n".join([f'{head} coll="{collective}" inplace="{in_place}">', *gpus, "</algo>"])


def same(kind: str, chunk: int, depid: int = -1, deps: int = -1) -> Step:
    return kind, "i", chunk, "i", chunk, depid, deps


def ring_all_reduce(n: int) -> str:
    """Rank r sends chunk r, adds its own to N - 2 partial sums, completes one, and passes the sums round."""
    made = []
    for r in range(n):
        steps = [same("s", r)]
        steps += [same("rrs", (r - k) % n) for k in range(1, n - 1)]
        steps += [same("rrcs", (r + 1) % n)]
        steps += [same("rcs", (r - k) % n) for k in range(n - 2)]
        steps += [same("r", (r + 2) % n)]
        made.append([block(0, (r + 1) % n, (r - 1) % n, steps)])
    return program(made, "allreduce", n)


def exchange_all_reduce(n: int) -> str:
    """Rank r gets all parts of chunk r in scratch, adds them one after another, and sends the sum to every rank."""
    made = []
    for r in range(n):
        others = [q for q in range(n) if q != r]
        place = {q: k for k, q in enumerate(others)}
        adds = [("re", "s", place[q], "i", r, 1 + place[q], 1) for q in others]
        blocks = [block(0, -1, -1, adds)]
        for q in others:
            steps: list[Step] = [("s", "i", q, "s", 0, -1, -1), ("r", "i", 0, "s", place[q], -1, -1)]
            steps += [same("s", r, 0, len(adds) - 1), same("r", q)]
            blocks.append(block(1 + place[q], q, q, steps))
        made.append(blocks)
    return program(made, "allreduce", n, scratch=n - 1)


def all_to_all(n: int, pieces: int) -> str:
    made = []
    for r in range(n):
        blocks = [block(0, -1, -1, [("cpy", "i", r * pieces + k, "o", r * pieces + k, -1, -1) for k in range(pieces)])]
        for q in (q for q in range(n) if q != r):
            sends: list[Step] = [("s", "i", q * pieces + k, "o", 0, -1, -1) for k in range(pieces)]
            receives: list[Step] = [("r", "i", 0, "o", q * pieces + k, -1, -1) for k in range(pieces)]
            blocks += [block(len(blocks), q, -1, sends), block(len(blocks) + 1, -1, q, receives)]
        made.append(blocks)
    return program(made, "alltoall", n * pieces, 0)


def scattered_sums(n: int) -> str:
    """A reduce-scatter in place: every rank sends chunk q to rank q, which adds the parts in the order of ranks."""
    made = []
    for r in range(n):
        blocks = []
        others = [q for q in range(n) if q != r]
        for k, q in enumerate(others):
            before = (k - 1, 1) if k else (-1, -1)
            blocks.append(block(k, q, q, [same("s", q), same("rrc", r, *before)]))
        made.append(blocks)
    return program(made, "reduce_scatter", n)


def algorithm(text: str) -> Algorithm:
    return algorithm_of_program(text.encode(), "own.xml")


@pytest.mark.parametrize("elements", [0, 1, 1003, 4096])
@pytest.mark.parametrize("n", [3, 4, 5, 8])
def test_a_ring_from_xml_takes_the_time_of_the_shipped_ring(n: int, elements: int) -> None:
    request = CollectiveRequest("all_reduce", n, elements)
    own = time_of(star(n), algorithm(ring_all_reduce(n)), request)
    assert own == pytest.approx(time_of(star(n), "ring", request), rel=1e-12)


def test_a_ring_of_four_takes_two_times_three_steps() -> None:
    # 2 (N - 1) steps of S/N bytes at 12.5 GB/s, each with 2 x 5 us of latency.
    request = CollectiveRequest("all_reduce", 4, 4 * 250_000)
    expected = 6 * (250_000 * 4 / 12.5e9 + 10e-6)
    assert time_of(star(4), algorithm(ring_all_reduce(4)), request) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n", [3, 4, 5])
@pytest.mark.parametrize("text", [exchange_all_reduce, lambda n: all_to_all(n, 1), scattered_sums])
def test_direct_programs_take_the_time_of_the_direct_algorithm(n: int, text) -> None:  # type: ignore[no-untyped-def]
    own = algorithm(text(n))
    request = CollectiveRequest(own.operations[0], n, 840)
    assert time_of(star(n), own, request) == pytest.approx(time_of(star(n), "direct", request), rel=1e-9)


@pytest.mark.parametrize(
    "text",
    [ring_all_reduce(4), exchange_all_reduce(5), all_to_all(3, 1), all_to_all(4, 3), scattered_sums(4)],
    ids=["ring", "exchange", "all_to_all", "all_to_all in pieces", "reduce_scatter"],
)
def test_programs_keep_the_laws_of_collectives(text: str) -> None:
    checked = check_algorithm(algorithm(text))
    assert checked.holds, checked.lines()


def steps_of(text: str) -> list[str]:
    return re.findall(r"<step .*/>\n", text)


def renumbered(text: str) -> str:
    """The text with steps numbered again in each thread block."""
    parts = re.split(r"(?=<tb )", text)
    for k, part in enumerate(parts):
        counter = iter(range(10_000))
        parts[k] = re.sub(r'<step s="\d+"', lambda _: f'<step s="{next(counter)}"', part)  # noqa: B023
    return "".join(parts)


@pytest.mark.parametrize("number", range(28))
def test_a_ring_without_any_one_step_is_refused(number: int) -> None:
    text = ring_all_reduce(4)
    step = steps_of(text)[number]
    # Equal lines may stand in other thread blocks: cut this occurrence.
    at = [m.start() for m in re.finditer(r"<step .*/>\n", text)][number]
    with pytest.raises(ScenarioError, match=r"^own\.xml(:\d+)?: gpu \d"):
        algorithm(renumbered(text[:at] + text[at + len(step) :]))


def test_an_exchange_without_any_one_dependency_is_refused() -> None:
    text = exchange_all_reduce(3)
    deps = list(re.finditer(r'depid="(\d+)" deps="(\d+)"', text))
    # Two additions and two sends of the sum in each of three ranks.
    assert len(deps) == 12
    for found in deps:
        dropped = text[: found.start()] + 'depid="-1" deps="-1"' + text[found.end() :]
        with pytest.raises(ScenarioError, match=r"neither waits for the other|no value yet|ends with|twice"):
            algorithm(dropped)


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 5])
def test_swapped_steps_are_refused(number: int) -> None:
    text = ring_all_reduce(4)
    first, second = steps_of(text)[number : number + 2]
    with pytest.raises(ScenarioError, match=r"^own\.xml(:\d+)?: gpu \d"):
        algorithm(renumbered(text.replace(first + second, second + first, 1)))


def test_a_program_that_needs_two_values_of_a_chunk_is_refused_with_the_reason() -> None:
    # Both ranks send the same chunk at once, and add the other's part: right, and not a schedule.
    pair = program([[block(0, 1 - r, 1 - r, [same("s", 0), same("rrc", 0)])] for r in (0, 1)], "allreduce", 1)
    with pytest.raises(ScenarioError, match=r"own\.xml: the program is right, but a schedule, in which a rank holds"):
        algorithm(pair)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('coll="allreduce"', 'coll="custom"', "own.xml:1: algo 'own': coll is 'custom', which promises no result"),
        ('coll="allreduce"', 'coll="alreduce"', "own.xml:1: algo: coll: got 'alreduce'; one of allgather, allreduce"),
        ('type="rrs"', 'type="rsr"', "own.xml:5: step: type: got 'rsr'; one of cpy"),
        ('srcbuf="i"', 'srcbuf="x"', "own.xml:4: step: srcbuf: got 'x'; one of i, o, s"),
        ('srcoff="0"', 'srcoff="9"', "own.xml:4: gpu 0, tb 0: step uses i[9 .. 9], but i has 4 chunks"),
        ('send="1"', 'send="9"', "own.xml:4: gpu 0, tb 0: send: got 9; must be another GPU, 0 .. 3"),
        ('send="1"', 'send="-1"', "own.xml:4: step: type s sends, but send of its tb is -1"),
        ('ngpus="4"', 'ngpus="5"', "own.xml:1: algo: has gpus 0, 1, 2, 3; must have 0 .. 4, because ngpus is 5"),
        ('cnt="1"', 'cnt="one"', "own.xml:4: step: cnt: got 'one'; must be a whole number"),
        ('cnt="1"', "", "own.xml:4: step: cnt: is missing"),
        ('depid="-1" deps="-1"', 'depid="7" deps="0"', "own.xml:4: step: waits for step 0 of tb 7"),
        ('<gpu id="1"', '<gpu id="0"', "own.xml:1: algo: has gpus 0, 0, 2, 3"),
        ("<algo ", "<!DOCTYPE x [<!ENTITY a 'b'>]>\n<algo ", "own.xml:1: has a document type, which is refused"),
        ("</algo>", "", "own.xml:46: not valid XML: no element found"),
        ("</algo>", "</algo>\n<algo/>", "a second program begins here"),
        ("<tb ", "<block ", "own.xml:3: got element 'block' inside gpu"),
        ('name="own"', 'name="&own;"', "own.xml:1: not valid XML: undefined entity"),
    ],
)
def test_a_wrong_file_is_refused_with_line_and_reason(before: str, after: str, message: str) -> None:
    with pytest.raises(ScenarioError) as refused:
        algorithm(ring_all_reduce(4).replace(before, after, 1))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_mutated_files_get_a_line_or_a_proved_schedule() -> None:
    draw = random.Random(7)
    texts = [ring_all_reduce(4), exchange_all_reduce(4), all_to_all(3, 2)]
    for number in range(300):
        data = bytearray(texts[number % 3].encode())
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(data))
            kind = draw.randrange(4)
            if kind == 0:
                data[at] = draw.randrange(256)
            elif kind == 1:
                del data[at : at + draw.randint(1, 200)]
            elif kind == 2:
                data[at:at] = data[max(0, at - draw.randint(1, 300)) : at]
            else:
                digits = [m.start() for m in re.finditer(rb"\d", bytes(data))]
                data[draw.choice(digits)] = ord(draw.choice("0123456789"))
        told = "own.xml:"
        try:
            algorithm_of_program(bytes(data), "own.xml")
        except ScenarioError as error:
            told = str(error)
        assert told.startswith("own.xml:")
        assert "\n" not in told


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('nchunksperloop="4"', 'nchunksperloop="999999999"', "nchunksperloop: got 999999999; must be 1 .. 65536"),
        (
            'nchunksperloop="4"',
            'nchunksperloop="9999999999"',
            "nchunksperloop: got '9999999999'; must be a whole number",
        ),
        ('s_chunks="0"', 's_chunks="70000"', "s_chunks: got 70000; must be 0 .. 65536"),
        ('cnt="1"', 'cnt="65536"', "moves more than 1048576 chunks"),
        ('ngpus="4"', 'ngpus="257"', "ngpus: got 257; must be 2 .. 256"),
    ],
)
def test_numbers_that_would_cost_memory_are_refused(before: str, after: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=re.escape(message)):
        algorithm(ring_all_reduce(4).replace(before, after))


def test_more_steps_than_can_be_proved_are_refused() -> None:
    nops = "".join(f'<step s="{s}" type="nop" cnt="0" depid="-1" deps="-1" hasdep="0"/>' for s in range(2**16 + 1))
    text = '<algo name="own" nchunksperloop="4" ngpus="4" coll="allreduce" inplace="1"><gpu id="0" s_chunks="0">'
    with pytest.raises(ScenarioError, match=r"own\.xml:1: has more than 65536 steps"):
        algorithm(f'{text}<tb id="0" send="-1" recv="-1" chan="0">{nops}</tb></gpu></algo>')


EXPORTED = [
    pytest.param(name, operation, id=f"{name}-{operation}")
    for name, operation in ALGORITHMS.pairs()
    if operation in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    and name not in ("nvls", "parameter_server")
]


@pytest.mark.parametrize(("name", "operation"), EXPORTED)
@pytest.mark.one_of(3)
def test_an_exported_algorithm_comes_back_with_the_same_results(name: str, operation: str) -> None:
    for n in (2, 4, 5, 8):
        request = CollectiveRequest(operation, n, 1680, nodes=equal_nodes(n, n if n % 2 else n // 2))
        text = exported(ALGORITHMS.find(name).plans[operation](request))
        checked = check_algorithm(algorithm(text))
        assert checked.holds, checked.lines()


@pytest.mark.parametrize("name", ["ring", "direct", "halving_doubling"])
def test_an_exported_algorithm_with_a_connection_for_each_queue_takes_the_same_time(name: str) -> None:
    request = CollectiveRequest("all_gather", 8, 1680)
    back = algorithm(exported(ALGORITHMS.find(name).plans["all_gather"](request)))
    assert time_of(star(8), back, request) == pytest.approx(time_of(star(8), name, request), rel=1e-9)
    assert time_of(nodes(8, 4), back, request) == pytest.approx(time_of(nodes(8, 4), name, request), rel=1e-9)


def test_what_msccl_cannot_say_is_not_exported() -> None:
    with pytest.raises(ScenarioError, match="broadcast: MSCCL has no such operation; one of"):
        exported(ALGORITHMS.find("tree").plans["broadcast"](CollectiveRequest("broadcast", 4, 4)))
    request = CollectiveRequest("all_reduce", 4, 400, nodes=equal_nodes(4, 4))
    with pytest.raises(ScenarioError, match="nvls: sends data over servers or switches"):
        exported(ALGORITHMS.find("nvls").plans["all_reduce"](request))


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    (tmp_path / "own.yaml").write_text(SCENARIO)
    (tmp_path / "program.xml").write_text(ring_all_reduce(4))
    return commands_in(tmp_path, monkeypatch, capsys)


def test_a_scenario_names_a_program_which_runs_no_code(command: Command) -> None:
    done = command("run", "own.yaml", "--no-plugins", "--json", "--out", "out")
    assert (done.code, done.faults) == (0, [])
    report = done.data["points"][0]["report"]
    # Six steps of 256 KiB at 12.5 GB/s, and 10 us of latency each.
    assert report["time_s"] == pytest.approx(6 * (2**18 / 12.5e9 + 10e-6), rel=1e-9)
    assert report["wrong"] == 0


def test_another_number_of_ranks_is_refused_at_the_key(command: Command) -> None:
    done = command("check", "own.yaml", "--set", "cluster.world_size=8")
    assert done.code == 2
    assert "got './program.xml', which is for 4 ranks, but 8 take part" in done.err
    assert len(done.faults) == 1


def test_the_command_writes_a_program_that_a_scenario_can_name(command: Command, tmp_path: Path) -> None:
    done = command("export-msccl", "ring", "all_reduce", "--ranks", "4", "--out", "program.xml")
    assert (done.code, done.out) == (0, "program.xml: 24 transfers of ring all_reduce over 4 ranks\n")
    assert command("run", "own.yaml", "--out", "out").code == 0
    wrong = command("export-msccl", "ring", "broadcast", "--out", "x.xml")
    assert (wrong.code, len(wrong.faults)) == (2, 1)
    uneven = command("export-msccl", "hierarchical", "all_reduce", "--group-size", "3", "--out", "x.xml")
    assert (uneven.code, uneven.err) == (2, "--group-size: got 3; must divide the 8 ranks\n")
    assert not (tmp_path / "x.xml").exists()


def test_a_plan_of_mscclpp_is_refused_by_its_name() -> None:
    with pytest.raises(ScenarioError, match=r"algorithm: got 'plan.json'; JSON files, such as .* MSCCL\+\+"):
        find_algorithm("plan.json")
    collective = {"operation": "all_reduce", "size": "1 MiB", "algorithm": "./plan.json"}
    data = {"name": "plan", "cluster": {"topology": "star_100g", "world_size": 4}, "collective": collective}
    with pytest.raises(ScenarioError, match=r"collective.algorithm: got './plan.json'; JSON files, .* MSCCL\+\+"):
        load_scenario(data)
