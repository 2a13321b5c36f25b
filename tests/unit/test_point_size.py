"""A point that needs more memory than the machine has is refused in one line, and a point that takes long begins with a
warning of one line. Nothing is built before that line."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from simulator.api import runs as api
from simulator.basics import registry
from simulator.basics.errors import ScenarioWarning, SimulatorError, TooLargeError
from simulator.basics.units import format_duration
from simulator.cluster.build import build, graph_size
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.engine.expandable_segments import ExpandableAllocator
from simulator.engine.segments import LARGE_SEGMENT
from simulator.planner.plan_question import PlanQuestion
from simulator.records.transfers import BYTES_WRITTEN_OUT, write_out
from simulator.run import size_estimate as size
from simulator.run import step_size
from simulator.run.cost_estimate import effort
from simulator.run.scenario_cluster import Clusters
from simulator.run.simulate import simulate
from simulator.scenario.build_training import to_step
from simulator.scenario.load import load_scenario, points
from simulator.scenario.plan_spec import PlanSpec
from simulator.step.plan import plan_step
from simulator.sweeps.sweep import sweep
from tests.commands import Command, commands_in

GIB = 2**30
GPT = {"model_type": "gpt2", "n_embd": 64, "n_layer": 4, "n_head": 4, "n_positions": 1024, "vocab_size": 100}


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return commands_in(tmp_path, monkeypatch, capsys)


@pytest.fixture
def has(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Say how much memory this machine has."""

    def memory(gib: float) -> None:
        monkeypatch.setattr("simulator.basics.host_memory.memory", lambda: gib * GIB)

    memory(24.0)
    return memory


@pytest.fixture
def nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def built(*_: object, **__: object) -> None:
        pytest.fail("a cluster was built")

    monkeypatch.setattr("simulator.run.scenario_cluster.build_cluster", built)


def collective(topology: Any, ranks: int, algorithm: str = "ring", **facts: Any) -> dict[str, Any]:
    own = {"operation": "all_reduce", "algorithm": algorithm, "size": "16 MiB"}
    return {"name": "x", "cluster": {"topology": topology, "world_size": ranks}, "collective": own | facts}


def asks(sequences: int) -> PlanQuestion:
    return PlanQuestion(load_scenario(training(8)), PlanSpec(global_batch=f"{sequences}seq"))


def training(ranks: int, **facts: Any) -> dict[str, Any]:
    own = {"model": GPT, "seq_len": 1024, "micro_batch_size": 1, "sharding": "zero3"}
    return {"name": "x", "cluster": {"topology": "dgx_h100", "world_size": ranks}, "training": own | facts}


TOO_LARGE = {
    # 2 (n - 1) n transfers of unequal sizes at 40 B.
    "ranks of a ring": (
        collective("star_100g", 10**6),
        "collective.algorithm: ring over 1,000,000 ranks (2e+12 transfers of unequal sizes) would take about 2.3 days "
        "and 72.76 TiB, this machine has 24 GiB; take a size that is divisible into 1,000,000 equal parts, or fewer "
        "ranks, "
        "or use a machine with more memory",
    ),
    "ranks that all send to all": (
        collective("star_100g", 20_000, "direct"),
        "collective.algorithm: direct over 20,000 ranks (8e+08 transfers)",
    ),
    # The machine runs NVLS, whose constants two nodes have: no cluster of a million ranks is built.
    "ranks of auto on a measured machine": (
        collective("dgx_h100", 10**6, "auto", size="1 GiB"),
        "collective.algorithm: nvls over 1,000,000 ranks (3.84e+08 transfers)",
    ),
    "ranks of a step": (training(10**6, model="llama3_8b"), "cluster.world_size: 1,000,000 ranks ("),
    "micro-batches": (
        training(4, gradient_accumulation_steps=10**6),
        "training.gradient_accumulation_steps: 1,000,000 micro-batches (",
    ),
    "micro-batches in a pipeline": (
        training(16, gradient_accumulation_steps=10**6, parallelism={"pp": 4}),
        "micro-batches (",
    ),
    "layers and micro-batches": (
        training(16, model=GPT | {"n_layer": 10_000}, gradient_accumulation_steps=1000),
        "1,000 micro-batches (1.5e+08 operations of 10,000 layers)",
    ),
    "ranks and micro-batches": (training(10**6, gradient_accumulation_steps=10**6), "1,000,000 ranks ("),
}  # fmt: skip


@pytest.mark.usefixtures("has", "nothing_is_built")
@pytest.mark.parametrize("name", TOO_LARGE)
@pytest.mark.one_of(3)
def test_a_point_larger_than_memory_is_refused_before_anything_is_built(name: str) -> None:
    data, told = TOO_LARGE[name]
    scenario = load_scenario(data)
    for ask in (simulate, effort):
        with pytest.raises(TooLargeError) as found:
            ask(scenario)
        line = str(found.value)
        assert told in line
        assert "\n" not in line
        assert "this machine has 24 GiB" in line
        assert line.endswith(", or use a machine with more memory")
    with pytest.raises(TooLargeError) as announced:
        size.announced([scenario])
    assert str(announced.value) == line
    # One of two points: the other one is simulated.
    assert size.announced([scenario, load_scenario(collective("star_100g", 4))]) == ""


@pytest.mark.usefixtures("has", "nothing_is_built")
def test_python_is_told_the_same() -> None:
    scenario = load_scenario(training(4, gradient_accumulation_steps=10**6))
    axes = {"training.gradient_accumulation_steps": [10**6 - 1, 10**6]}
    for ask in (lambda: api.simulate(scenario), lambda: api.play(scenario, axes), lambda: sweep(scenario, axes)):
        with pytest.raises(TooLargeError, match=r"^training.gradient_accumulation_steps: .* micro-batches \("):
            ask()


@pytest.mark.usefixtures("has")
@pytest.mark.parametrize(
    ("topology", "parts"),
    [
        ({"builder": "fully_connected", "options": {}}, 10**6 + 10**6 * (10**6 - 1)),
        ({"builder": "hypercube", "options": {}}, 2**20 * 21),
        ({"builder": "fat_tree", "options": {"k": 158}}, 158**3 // 4 + 5 * 158**2 // 4 + 2 * (3 * 158**3 // 4)),
        (
            {"builder": "dragonfly", "options": {"hosts": 1, "routers": 10**6, "groups": 1, "global_links": 1}},
            2 * 10**6 + 2 * (10**6 + 10**6 * (10**6 - 1) // 2),
        ),
        ({"builder": "torus", "options": {"shape": [10] * 6}}, 10**6 * 13),
    ],
    ids=lambda value: str(value.get("builder")) if isinstance(value, dict) else "",
)
def test_a_graph_larger_than_memory_is_refused_before_it_is_built(
    topology: dict[str, Any], parts: int, has: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulator.cluster.builder.Builder.build", lambda *_: pytest.fail("it was built"))
    options = topology["options"] | {"bandwidth": "1 GB/s", "latency": "1 us"}
    machine = topology | {"options": options, "gpu": "h100_sxm"}
    ranks = 16 if "dragonfly" in topology.values() or "torus" in topology.values() else 985_000
    counted = graph_size(machine, ranks).parts
    assert counted == pytest.approx(parts, rel=0.04)
    has(counted * 899 / GIB)
    with pytest.raises(TooLargeError, match=r"^topology 'inline': .* links would take about .*; take fewer ranks"):
        build(machine, ranks)


def test_servers_count_as_ranks_do(has: Callable[[float], None]) -> None:
    """A graph of 4 ranks, a switch and a million servers, and eight million transfers."""
    servers = load_scenario(collective("star_100g", 4, "parameter_server", servers={"count": 10**6}))
    told = "collective.servers.count: 1,000,000 servers (8e+06 transfers)"
    assert size.announced([servers]).startswith(f"{told}: simulating takes about ")
    has(4.0)
    with pytest.raises(TooLargeError) as found:
        simulate(servers)
    assert str(found.value).startswith(told)


@pytest.mark.usefixtures("has", "nothing_is_built")
@pytest.mark.parametrize(
    ("data", "told"),
    [
        (collective("star_100g", 10**6, size="4 MB"), "cluster.world_size: 1,000,000 ranks (each with its routes)"),
        (collective("star_100g", 10**6, "auto"), "cluster.world_size: 1,000,000 ranks (each with its routes)"),
        (
            collective("star_100g", 4, "chain", operation="broadcast", chunks=10**6),
            "collective.chunks: 1,000,000 pieces over 4 ranks (3e+06 transfers in 1,000,000 rounds)",
        ),
        (
            training(4, gradient_accumulation_steps=50_000),
            "training.gradient_accumulation_steps: 50,000 micro-batches (",
        ),
        (training(4, numerics=True, steps=100_000), "training.steps: 100,000 steps with numerics ("),
    ],
)  # fmt: skip
def test_a_point_that_takes_long_is_announced(data: dict[str, Any], told: str) -> None:
    line = size.announced([load_scenario(data)])
    assert line.startswith(f"{told}")
    assert ": simulating takes about " in line
    assert "; to be faster, take fewer" in line or "; to be faster, take another algorithm, or fewer" in line
    assert "\n" not in line


@pytest.mark.usefixtures("has")
def test_the_time_of_all_points_is_announced_together() -> None:
    """Each of two points takes 110 s."""
    one = load_scenario(collective("star_100g", 10**6, size="4 MB"))
    alone, both = size.announced([one]), size.announced([one, one])
    assert "): simulating takes about 1.8 minutes on one core and 4.38 GiB of memory; " in alone
    assert "): simulating 2 points takes about 3.7 minutes on one core and 4.38 GiB of memory; " in both


@pytest.mark.usefixtures("has")
def test_python_is_warned_of_what_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size, "_LONG", 0.1)
    scenario = collective("star_100g", 4096, payload=False)
    for ask in (api.simulate, api.play, sweep):
        with pytest.warns(
            ScenarioWarning, match=r"^cluster.world_size: 4,096 ranks \(each with its routes\): simulating"
        ):
            ask(scenario)


@pytest.mark.usefixtures("has")
@pytest.mark.long
def test_commands_say_it_in_one_line(
    cli: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has: Callable[[float], None]
) -> None:
    ranks = ("--set", "cluster.world_size=4096", "--set", "collective.payload=false", "--set")
    has(1.0)
    for command in (("check",), ("run", "--out", "here")):
        answer = cli(*command, "small.yaml", *ranks, "collective.size=4 KiB")
        assert (answer.code, answer.out) == (2, "")
        (line,) = answer.faults
        assert "collective.algorithm: ring over 4,096 ranks (3.35e+07 transfers of unequal sizes) would take" in line
        assert not (tmp_path / "here").exists()
    has(24.0)
    monkeypatch.setattr(size, "_LONG", 0.1)
    for command in (("check",), ("run", "--no-report"), ("sweep", "--jobs", "1", "--no-report")):
        answer = cli(*command, "small.yaml", *ranks, "collective.size=16 MiB")
        assert answer.code == 0
        warned = [line for line in answer.faults if line.startswith("warning: ")]
        assert len(warned) == 1
        assert warned[0].startswith("warning: cluster.world_size: 4,096 ranks (each with its routes): simulating takes")
    table = cli("collective", "all_reduce", "--topology", "star_100g", "--world-size", "4096", "--begin", "16M",
                "--end", "16M")  # fmt: skip
    assert [line[:51] for line in table.faults] == ["warning: --world-size: 4,096 ranks (each with its r"]


def test_a_point_larger_than_memory_is_told_before_others_are_planned(
    cli: Command, monkeypatch: pytest.MonkeyPatch, has: Callable[[float], None]
) -> None:
    has(1.0)
    monkeypatch.setattr("simulator.run.cost_estimate.effort", lambda *_: pytest.fail("a point was planned"))
    of = "small.yaml: 1 of 4 points are invalid, the first with cluster.world_size=2, collective.size=1 TiB: "
    sizes = ("--set", "sweep={cluster.world_size: [2, 4], collective.size: [4 KiB, 1 TiB]}")
    answer = cli("check", "small.yaml", *sizes, "--set", "collective.payload=true")
    assert (answer.code, answer.out) == (2, "")
    assert answer.faults[0].startswith(of)


def test_the_commands_of_topologies_say_it_too(
    cli: Command, monkeypatch: pytest.MonkeyPatch, has: Callable[[float], None]
) -> None:
    has(1.0)
    answer = cli("show", "dgx_h100", "--world-size", "1000000")
    assert (answer.code, len(answer.faults)) == (2, 1)
    assert answer.faults[0].startswith(
        "cluster.world_size: 1,000,000 ranks (3,406,288 vertices and 12,250,384 links) would take about "
    )
    has(24.0)
    monkeypatch.setattr(size, "_FEW_PARTS", 10)
    monkeypatch.setattr(size, "_LONG_DRAWING", 0.0)
    answer = cli("show", "star_100g", "--world-size", "8")
    assert answer.code == 0
    assert answer.faults[0].startswith("warning: cluster.world_size: 8 ranks (9 vertices and 16 links): drawing takes")


def test_a_plan_judges_its_smallest_step_and_announces_an_ordinary_one(
    cli: Command, has: Callable[[float], None]
) -> None:
    """12,800,000 sequences on 512 GPUs are at least 3,125 micro-batches of 8."""
    asked = ("plan", "llama3_70b", "--topology", "dgx_h100", "--seq-len", "8192", "--gpus", "512")
    answer = cli(*asked, "--global-batch", "12800000seq")
    assert (answer.code, answer.out, len(answer.faults)) == (2, "", 1)
    assert answer.faults[0].startswith(
        "a step of 12,800,000 sequences on 512 GPUs: training.gradient_accumulation_steps: 3,125 micro-batches ("
    )
    assert "would take about" in answer.faults[0]
    question = asks(8 * 40_000)
    assert question.announced()[0].startswith(
        "a step of 320,000 sequences on 8 GPUs, for each setting: training.gradient_acc"
    )
    assert asks(8).announced() == ()
    assert asks(8 * 2000).announced()[0] == (
        "a step of 16,000 sequences on 8 GPUs has 2,000 micro-batches of one sequence on each GPU; the search may "
        "take hours; take fewer sequences per step"
    )
    assert asks(8 * 500_000).announced()[0] == (
        "a step of 4,000,000 sequences on 8 GPUs: this machine has too little memory to simulate settings with "
        "micro-batches of one sequence; the plan omits these settings; take fewer sequences per step"
    )
    with pytest.raises(TooLargeError, match=r"^a step of 10,000,000,000 sequences on 8 GPUs: "):
        asks(10**10).choices()


def test_a_pipeline_whose_passes_no_memory_holds_is_refused(cli: Command, has: Callable[[float], None]) -> None:
    """Two passes of a million micro-batches through 16 stages, of 300 B each."""
    asked = ("memory", "llama3_405b", "--tp", "8", "--pp", "16", "--micro-batches", "1000000")
    has(32e6 * 300 / GIB - 0.001)
    answer = cli(*asked)
    assert (answer.code, answer.out) == (2, "")
    (line,) = answer.faults
    assert line.startswith(
        "32,000,000 passes of 1,000,000 micro-batches through 16 stages would take about 8.941 GiB, "
    )
    assert line.endswith("; take fewer micro-batches, or fewer stages")


@pytest.mark.parametrize(
    ("facts", "ranks"),
    [
        ({}, 8),
        ({"sharding": "ddp"}, 8),
        ({"sharding": "zero2", "activation_checkpointing": "full"}, 8),
        ({"parallelism": {"pp": 4}}, 8),
        ({"parallelism": {"pp": 2, "tp": 2}, "sharding": "zero1"}, 8),
        ({"parallelism": {"pp": 2, "schedule": "interleaved", "virtual_stages": 2}}, 8),
        ({"parallelism": {"pp": 2, "schedule": "zb_v"}}, 4),
        ({"parallelism": {"pp": 2, "schedule": "dualpipe"}}, 4),
        ({"parallelism": {"cp": 2}}, 4),
    ],
)
@pytest.mark.one_of(3)
def test_counted_operations_are_those_of_the_program(facts: dict[str, Any], ranks: int, has: Any) -> None:
    """A few micro-batches stand for 64, within a tenth."""
    scenario = load_scenario(training(ranks, gradient_accumulation_steps=64, **facts))
    assert scenario.training is not None
    step = to_step(scenario.training, ranks)
    program = plan_step(Clusters().of(scenario), step).program
    noted = sum(map(len, program.lists.lists))
    assert step_size._counted(scenario, step) == pytest.approx(noted, rel=0.1)
    assert noted / 3 < step_size._roughly_noted(step) < 3 * noted


@pytest.mark.parametrize(
    ("data", "seconds", "gib"),
    [
        (collective("star_100g", 131_072, payload=False), 8.0, 0.66),
        (training(16_384, model="llama3_70b", seq_len=8192), 7.9, 0.7),
        (
            training(16_384, model="llama3_405b", seq_len=8192, sharding={"strategy": "zero3", "shard_size": 512}),
            25.0,
            1.2,
        ),
        (
            training(131_072, model="llama3_70b", seq_len=8192, sharding={"strategy": "zero3", "shard_size": 512}),
            237.0,
            8.1,
        ),
        (
            training(
                16_384, model="llama3_405b", seq_len=8192, parallelism={"tp": 8, "pp": 16}, sharding="zero1",
                gradient_accumulation_steps=16,
            ),
            25.0,
            1.0,
        ),
        # NVLS over all ranks: 7 million transfers are routed.
        (training(8192, model="gpt2_xl", sharding="ddp"), 32.0, 2.6),
    ],
    ids=["a ring of 131,072", "70B on 16,384", "405B on 16,384", "70B on 131,072", "405B cut", "1.5B, ddp, NVLS"],
)  # fmt: skip
@pytest.mark.one_of(3)
def test_large_runs_that_docs_speed_tells_of_are_not_refused(
    data: dict[str, Any], seconds: float, gib: float, has: Callable[[float], None]
) -> None:
    """Where memory is a half more than was seen; and the estimates are good to a factor of three."""
    has(1.5 * gib)
    scenario = load_scenario(data)
    size.refuse_too_large(scenario)
    found = size.size_of(scenario)
    assert seconds / 3 < found.seconds < 3 * seconds
    assert gib / 3 < found.nbytes / GIB < 3 * gib


@pytest.mark.parametrize("name", registry.names("scenario"))
@pytest.mark.one_of(3)
def test_shipped_scenarios_are_simulated_without_a_word(name: str, has: Callable[[float], None]) -> None:
    has(4.0)
    scenario = load_scenario(name)
    own = [point.scenario for point in points(scenario.replaced(plan=None))]
    assert size.announced(own) == ""
    for one in own:
        size.refuse_too_large(one)


def test_transfers_of_unequal_sizes_are_not_written_out_where_memory_is_short(has: Callable[[float], None]) -> None:
    """As many as 2 x 99 x 100; a size that 100 divides needs none of them."""
    schedule = ALGORITHMS.find("ring").plans["all_reduce"](CollectiveRequest("all_reduce", 100, 250))
    nbytes = 2 * 99 * 100 * BYTES_WRITTEN_OUT
    has(nbytes / GIB)
    assert len(write_out(schedule)) == 2 * 99 * 100
    has((nbytes - 1) / GIB)
    with pytest.raises(
        TooLargeError, match=r"^ring over 100 ranks: 1.98e\+04 transfers, written out one by one, would"
    ):
        write_out(schedule)
    # A thousand ranks: 2 million transfers take 80 MB, all else some 5 MB.
    sizes = ("10 kB", "40 kB")
    uneven, even = (load_scenario(collective("star_100g", 1000, size=nbytes, payload=False)) for nbytes in sizes)
    has(0.01)
    with pytest.raises(TooLargeError, match="take a size that 1000 parts divide evenly"):
        simulate(uneven)
    assert simulate(even).report.time_s > 0


def test_a_check_makes_no_collective_of_each_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check of 16,384 ranks took 6 minutes and 5 GB; simulating them takes 25 s."""
    scenario = load_scenario(training(64, parallelism={"tp": 2, "pp": 2}, sharding="zero1", collectives="played"))
    assert scenario.training is not None
    program = plan_step(Clusters().of(scenario), to_step(scenario.training, 64)).program
    transfers = sum(op.schedule.length() for op in program.collectives().values() if op.duration is None)
    assert transfers > 0
    monkeypatch.setattr("simulator.records.program.Program.collectives", lambda _: pytest.fail("all were made"))
    assert effort(scenario).transfers == transfers


def test_rounds_of_a_chain_share_one_table() -> None:
    """A table each took memory that grew with the square of the pieces: 40 GB for 100,000."""
    schedule = ALGORITHMS.find("chain").plans["broadcast"](CollectiveRequest("broadcast", 4, 1000, chunks=1000))
    tables = {id(repeat.table): repeat.table for repeat in schedule.repeats()}
    assert [len(table) for table in tables.values()] == [1000]


def test_an_allocation_larger_than_a_segment_s_addresses_gets_a_segment_of_its_own() -> None:
    """A sequence of 10^9 tokens asks for 10^15 B, and the run ended in an OverflowError."""
    allocator = ExpandableAllocator(float("inf"))
    first, huge, last = (allocator.allocate(nbytes) for nbytes in (2**30, 2**50, 2**48))
    ends = [(block.address, block.address + block.size) for block in (first, huge, last)]
    assert ends == sorted(ends)
    assert all(a[1] <= b[0] for a, b in pairwise(ends))
    assert allocator.allocated == 2**30 + 2**50 + 2**48
    assert allocator.reserved >= allocator.allocated
    assert allocator.reserved - allocator.allocated < 3 * LARGE_SEGMENT


@pytest.mark.parametrize("key", [{"seq_len": 10**9}, {"micro_batch_size": 10**6}])
@pytest.mark.one_of(2)
def test_a_step_that_needs_a_thousand_terabytes_says_so(key: dict[str, int]) -> None:
    model = {"model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8,
             "intermediate_size": 2048, "vocab_size": 32000}  # fmt: skip
    with pytest.raises(SimulatorError, match=r"^rank 0 ran out of memory at .* needs at least [\d.]+ [TP]iB; "):
        simulate(load_scenario(training(16, model=model, **{"seq_len": 4096} | key)))


def test_how_long_somebody_waits_is_told_with_two_digits() -> None:
    told = {0.5: "0.5 seconds", 89.0: "89 seconds", 91.0: "1.5 minutes", 3600.0: "60 minutes", 2.5 * 86400: "2.5 days"}
    assert {seconds: format_duration(seconds) for seconds in told} == told


def test_a_step_whose_collectives_have_closed_forms_on_few_ranks_is_not_refused_on_many(
    has: Callable[[float], None],
) -> None:
    # 128 ranks have closed forms alone, 256 play 1,536 rows: no factor from one to the other.
    training = {"model": "llama3_8b", "seq_len": 2048, "sharding": "ddp", "activation_checkpointing": "full"}
    cluster = {"topology": "leaf_spine_100g", "world_size": 4096}
    size.announced([load_scenario({"name": "large", "cluster": cluster, "training": training})])
