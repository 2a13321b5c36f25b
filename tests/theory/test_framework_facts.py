"""What a framework's facts do to a step: each against a formula, or against the step without it."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import pytest

from simulator.calibration.kernel_rows import kernel_rows
from simulator.calibration.measured_kernels import MeasuredMatmul
from simulator.cluster.build import build
from simulator.cluster.cluster import MachineCollective, Steps
from simulator.cluster.gpu_file import load_gpu
from simulator.collectives.algorithm import ALGORITHMS, CollectiveRequest
from simulator.collectives.collective_plan import Task, plan
from simulator.model.kernel import Matmul
from simulator.model.layer import layer_operations
from simulator.model.operation import GRAPH_SCOPES
from simulator.model.parameters import modules
from simulator.model.shape import Transformer
from simulator.records.measures import HOST_WAIT
from simulator.records.operation import ISSUE, Allocate, Collective, Compute, Free
from simulator.report.plots.training import breakdown
from simulator.step.framework import BARE, Framework, HostTime, MemoryBuffer, load_framework
from simulator.step.kernels.framework_operations import narrow_casts
from simulator.step.parallelism import Parallelism
from simulator.step.precision import Precision
from simulator.step.units import batch_of, units
from tests.training import TINY, PlayedStep, play, step

GATED = Transformer("gated", 4, 64, 4, 4, 16, 256, 512, 128, gated=True, positions="rotary", norm="rmsnorm")

H100 = load_gpu("h100_sxm")


def played(ranks: int, strategy: str = "ddp", model: Transformer = TINY, **facts: Any) -> PlayedStep:
    known = {name: facts.pop(name) for name in ("issue", "parts", "sends_block", "overlaps", "each_tensor",
             "gathers_again", "issue_in_pipeline", "keeps_copies", "keeps_gradients",
             "gradient_buffers", "accumulates_in_matmul", "placeholders", "widens_gradients",
             "workspaces", "memory_buffer")
             if name in facts}  # fmt: skip
    topology = facts.pop("topology", "star_100g")
    return play(step(strategy, model, framework=BARE.with_constants(**known), **facts), ranks, topology)


def test_a_gpu_with_little_to_do_waits_for_its_host() -> None:
    """With a second a kernel nothing else counts: as many seconds as kernels and collectives were issued.

    Behind the last operation's first kernel nothing waits.
    """
    slow = played(2, issue=1.0)
    (ops,) = (rank for rank in slow.plan.program.ranks[:1])
    issued = sum(op.duration for op in ops if isinstance(op, Compute) and op.stream == ISSUE)
    assert slow.timeline.end == pytest.approx(issued, rel=1e-3)
    forward = sum(isinstance(op, Compute) and op.name.startswith("issue layer 0 forward") for op in ops)
    assert forward == 1  # all of a unit's kernels together
    assert slow.report.comm_time_s < 1.0  # what the host does is no communication


def test_a_host_that_is_fast_enough_changes_nothing() -> None:
    plain, fast = (played(2, issue=issue, micro_batch_size=64).timeline.end for issue in (0.0, 1e-12))
    assert fast == pytest.approx(plain, rel=1e-6)


def test_kernels_start_when_the_first_of_them_is_launched_and_wait_for_the_last() -> None:
    """A GPU of no time: a step of n launches takes n times 1 ms, less what no kernel waits for (the last kernels').

    The report tells the time without kernels as waiting for the host, and host, kernels and the rest add up.
    """
    run = played(1, issue=1e-3)
    launches = {
        op.name: op.duration
        for op in next(iter(run.plan.program.ranks))
        if isinstance(op, Compute) and op.stream == ISSUE
    }
    layers = [unit for unit in units(run.plan.step, load_gpu("h100_sxm")) if unit.is_layer]
    forward = layers[0].forward.cost.launches
    # The next operation pays for all but the first of a layer's kernels, and for its own first one.
    assert launches["issue layer 1 forward 0"] == pytest.approx(forward * 1e-3)
    report = run.report
    assert report.host_wait_time_s / report.step_time_s > 0.9
    assert report.compute_time_s + report.host_wait_time_s + report.bubble_time_s == pytest.approx(report.step_time_s)
    assert "waiting for the host" in report.because
    assert "host-bound" in report.because


def test_parts_with_a_time_of_their_own_take_it() -> None:
    """Norm and attention are launched in as much time as 5 and 7 kernels, of 1 ms each."""
    times = {"norm1": HostTime(5.0, 2.0), "attention": HostTime(7.0, 3.0)}
    plain, own = (
        units(played(1, issue=1e-3, parts=parts).plan.step, H100)[1] for parts in ({}, times)
    )  # fmt: skip
    assert own.forward.cost.host - plain.forward.cost.host == pytest.approx(4e-3 + 6e-3)
    kernels = {op.name: len(op.backward) for op in layer_operations(TINY, batch_of(played(1).plan.step))}
    more = 2e-3 + 3e-3 - (kernels["norm1"] + kernels["attention"]) * 1e-3
    assert own.backward.cost.host - plain.backward.cost.host == pytest.approx(more)


def test_graphs_launch_at_once() -> None:
    """A step as one graph waits for no launch; with a graph of attention a layer launches its first kernel alone."""
    facts: dict[str, Any] = {"issue": 1e-3}
    bare, graph, part, launched = (
        played(1, **facts, cuda_graphs=scopes) if scopes is not None else played(1)
        for scopes in (None, ("full_iteration",), ("attn",), ())
    )
    assert graph.timeline.end == bare.timeline.end
    operations = layer_operations(TINY, batch_of(bare.plan.step))
    captured = sum(len(op.forward) for op in operations if op.name in GRAPH_SCOPES["attn"])
    one, all_ = (units(run.plan.step, H100)[1].forward.cost.host for run in (part, launched))
    assert all_ - one == pytest.approx((captured - 1) * 1e-3)
    assert graph.timeline.end < part.timeline.end < launched.timeline.end


def test_a_host_that_waits_for_what_comes_cannot_issue_ahead() -> None:
    facts: dict[str, Any] = {"parallelism": Parallelism(pp=2), "gradient_accumulation_steps": 4, "issue": 1e-4}
    free, waiting = (played(2, sends_block=block, **facts).timeline.end for block in (False, True))
    assert waiting > free


def test_in_a_pipeline_over_nodes_an_exchange_may_take_its_host_longer() -> None:
    """(t - 1) times as long for each exchange among t ranks; nothing in one node, or without a pipeline."""
    facts: dict[str, Any] = {
        "gradient_accumulation_steps": 2,
        "issue": 1e-9,
        "issue_in_pipeline": 1e-3,
        "topology": "dgx_h100",
    }
    sizes = {"tp": 4, "pp": 2}
    over = played(16, parallelism=Parallelism(**sizes), **facts)
    ops = next(iter(over.plan.program.ranks))
    issued = {op.name: op.duration for op in ops if isinstance(op, Compute) and op.stream == ISSUE}
    exchanges = [op.name for op in ops if isinstance(op, Collective) and "gather up input" in op.name]
    assert exchanges
    assert all(issued[f"issue {name.split(' (')[0]}"] == pytest.approx(3e-3, rel=1e-4) for name in exchanges)
    for ranks, cut in ((8, sizes), (16, {"tp": 4})):
        ops = next(iter(played(ranks, parallelism=Parallelism(**cut), **facts).plan.program.ranks))
        assert max((op.duration for op in ops if isinstance(op, Compute) and op.stream == ISSUE), default=0.0) < 1e-3


def test_where_nothing_overlaps_communication_is_bare() -> None:
    """ZeRO-3 with `overlaps: false`: every gather and scatter stands between kernels."""
    beside, apart = (played(4, "zero3", overlaps=overlaps).report for overlaps in (True, False))
    assert apart.exposed_comm_time_s == pytest.approx(apart.comm_time_s, rel=1e-9)
    assert apart.step_time_s == pytest.approx(apart.compute_time_s + apart.comm_time_s, rel=1e-6)
    assert beside.exposed_comm_time_s < beside.comm_time_s


def test_tensors_that_travel_by_themselves_begin_as_often() -> None:
    """A layer of the tiny model has 12 tensors: its gather starts twelve times, and moves the same bytes."""
    one, each = (played(8, "zero3", topology="dgx_h100", each_tensor=flag) for flag in (False, True))

    def gather(run: PlayedStep) -> Collective:
        ops = next(iter(run.plan.program.ranks))
        return next(op for op in ops if isinstance(op, Collective) and op.name.startswith("gather layer 1 forward"))

    assert gather(each).startup == pytest.approx(12 * gather(one).startup)
    assert gather(each).elements == gather(one).elements


def test_a_checkpointed_layer_may_be_gathered_three_times() -> None:
    counts = {}
    for again in (False, True):
        run = played(4, "zero3", activation_checkpointing="full", gathers_again=again, overlaps=False)
        ops = next(iter(run.plan.program.ranks))
        counts[again] = sum(isinstance(op, Collective) and op.name.startswith("gather layer 1") for op in ops)
    assert counts == {False: 2, True: 3}


def test_casts_once_read_activations_and_gradients_alone() -> None:
    """(m, k) of two bytes read, written in both orders; a weight's gradient takes what is there; b is a weight."""
    forward = narrow_casts(Matmul("up", 128, 256, 64), once=True)
    assert (forward.read, forward.written) == (2 * 128 * 64, 2 * 128 * 64)
    assert narrow_casts(Matmul("up weight gradient", 256, 64, 128, of_weights=True), once=True).read == 0.0
    assert narrow_casts(Matmul("up", 128, 256, 64)).read == 2 * (128 * 64 + 64 * 256)


def test_casts_to_four_bits_read_twice_and_write_half_a_byte_and_a_scale_for_sixteen_elements() -> None:
    """A pass finds the tensor's largest element; 16 elements take 8 B and a scale of 1 B (NVFP4)."""
    cast = narrow_casts(Matmul("up", 128, 256, 64), "float4_e2m1fn", once=True)
    elements = 128 * 64
    assert cast.read == 2 * 2 * elements
    assert cast.written == 2 * elements * (8 + 1) / 16


def test_matmuls_in_four_bits_gain_as_little_over_eight_as_measured_on_a_b200() -> None:
    """Peaks of 9,000 and 4,500 TFLOP/s; measured times in four bits, with their casts, are 0.88 of those in eight."""
    rows = {
        (row.dtype, row.m, row.n, row.k): row
        for row in kernel_rows("matmul")
        if isinstance(row, MeasuredMatmul) and row.gpu == "b200" and row.m * row.n * row.k > 5e11
    }
    pairs = [(four, rows["fp8", *shape]) for (dtype, *shape), four in rows.items()
             if dtype == "nvfp4" and ("fp8", *shape) in rows]  # fmt: skip
    gpu = load_gpu("b200")
    measured = median(four.seconds / eight.seconds for four, eight in pairs)
    simulated = median(four.simulated(gpu) / eight.simulated(gpu) for four, eight in pairs)
    assert simulated == pytest.approx(measured, rel=0.06)
    assert 4500 / 9000 < simulated < 1


def test_four_bits_are_cast_before_the_exchange_and_heads_stay_wide() -> None:
    """Transformer Engine gathers four bits (pytorch/distributed.py, `_all_gather_nvfp4`); the head's matmul takes as
    long as in bfloat16.
    """
    framework = load_framework("nemo_2025")
    gpu = load_gpu("b200")
    wide, narrow = (
        step("ddp", TINY, precision=Precision(matmul=dtype).resolved(), framework=framework)
        for dtype in ("bfloat16", "float4_e2m1fn")
    )
    assert batch_of(narrow).cut.gather_dtype == "float4_e2m1fn"
    assert units(narrow, gpu)[-1].forward == units(wide, gpu)[-1].forward


def test_a_matmul_that_adds_to_the_gradient_reads_it_and_no_kernel_adds() -> None:
    """Instead of 2 + 2 x 4 bytes a parameter in a kernel of its own, 4 bytes read beside the matmul's operands."""
    precision = Precision(grads="float32").resolved()
    plain, merged = (
        units(step("ddp", TINY, precision=precision, framework=BARE.with_constants(accumulates_in_matmul=fact)), H100)[
            1
        ]
        for fact in (False, True)
    )
    assert plain.accumulate is not None
    assert merged.accumulate is not None
    assert plain.accumulate.nbytes == pytest.approx(10 * plain.elements)
    assert merged.accumulate.nbytes == pytest.approx(4 * plain.elements)


def test_gradients_in_buffers_stay() -> None:
    """Four bytes a parameter, and two more where those of the parameters' dtype stay too; never freed."""
    sizes = []
    for kept in (False, True):
        run = played(
            2, "zero1", precision=Precision(grads="float32").resolved(), gradient_buffers=True, keeps_gradients=kept
        )
        ops = next(iter(run.plan.program.ranks))
        sizes.append(next(op.nbytes for op in ops if isinstance(op, Allocate) and op.name == "gradient buffers"))
        assert not any(isinstance(op, Free) and op.allocation == "gradient buffers" for op in ops)
    elements = sum(module.elements for module in modules(TINY))
    assert sizes == [4 * elements, 6 * elements]


def test_modules_keep_copies_that_merged_kernels_do_not() -> None:
    """In bfloat16 of a token: silu's output, f; queries and keys beside their array, 2 d; the output by tokens, d."""
    tokens, d, f = 2 * 32, 64, 256
    plain, copies = (
        sum(op.nbytes for op in next(iter(played(1, model=GATED, keeps_copies=flag).plan.program.ranks))
            if getattr(op, "name", "") == "layer 1 activations 0")
        for flag in (False, True)
    )  # fmt: skip
    assert copies - plain == 2 * tokens * (f + 2 * d + d)


@pytest.mark.parametrize(
    ("gpu", "attention", "copies"),
    [("a100_sxm_80gb", "flash", 1), ("a100_sxm_80gb", "standard", 0), ("h200", "flash", 0)],
)
def test_flash_attention_before_hopper_saves_its_output_in_two_orders(gpu: str, attention: Any, copies: int) -> None:
    """Two bytes a token and dimension in bfloat16."""
    kept = [
        next(
            unit.kept
            for unit in units(step("ddp", framework=framework, attention=attention), load_gpu(gpu))
            if unit.is_layer
        )
        for framework in (Framework(), BARE.with_constants(copies_output=("A100",)))
    ]
    assert kept[1] - kept[0] == copies * 2 * 2 * 32 * TINY.hidden_size


def test_a_loss_that_overwrites_its_float32_logits_holds_two_bytes_a_logit_more() -> None:
    """Megatron-LM's loss in bfloat16: four bytes a logit saved, the softmax, and two beside it."""
    ops = next(iter(played(1, loss="vocab_parallel").plan.program.ranks))
    sizes = {op.name: op.nbytes for op in ops if isinstance(op, Allocate)}
    assert sizes["head recomputed 0"] == 2 * 2 * 32 * 512
    assert "head recomputed 0" not in {
        op.name for op in next(iter(played(1, loss="ideal").plan.program.ranks)) if isinstance(op, Allocate)
    }


@pytest.mark.parametrize(("tokens", "parameters"), [(8, 64 * 512 + 64 + 64), (64, 0)])
def test_the_heads_weight_gradient_takes_the_place_of_the_float32_logits(tokens: int, parameters: int) -> None:
    """Two bytes a parameter less four bytes a logit: the softmax is freed, the logits' gradient is not."""
    precision = Precision(grads="float32").resolved()
    facts: dict[str, Any] = {"loss": "vocab_parallel", "seq_len": tokens, "micro_batch_size": 1, "precision": precision}
    ops = next(iter(played(2, "ddp", replace(TINY, tied=False), **facts).plan.program.ranks))
    made = next(op.nbytes for op in ops if isinstance(op, Allocate) and op.name == "head gradients 0")
    assert made == max(0, 2 * parameters - 4 * tokens * 512)


def test_a_gradient_that_matmuls_add_takes_no_memory_besides() -> None:
    """Only the embedding's gradient, which no matmul makes, has an array of its own, of two bytes a parameter."""
    precision = Precision(grads="float32").resolved()
    run = played(
        2, precision=precision, gradient_accumulation_steps=2, gradient_buffers=True, accumulates_in_matmul=True
    )
    ops = next(iter(run.plan.program.ranks))
    fresh = {op.name: op.nbytes for op in ops if isinstance(op, Allocate) and op.name.endswith("gradients 1")}
    assert set(fresh) == {f"{module.name} gradients 1" for module in modules(TINY)}
    assert {name: nbytes for name, nbytes in fresh.items() if nbytes} == {
        "embedding gradients 1": 2 * modules(TINY)[0].elements
    }


@pytest.mark.parametrize("pp", [1, 2])
def test_placeholders_of_gradients_are_one_array_for_each_shape_of_matrices(pp: int) -> None:
    """Two bytes an element of 3 d x d, d x d, f x d, d x f, and the head's v x d, however many layers; nothing more for
    a layer or the head.
    """
    facts: dict[str, Any] = {
        "precision": Precision(grads="float32").resolved(),
        "gradient_buffers": True,
        "placeholders": True,
    }
    run = played(2, parallelism=Parallelism(pp=pp), gradient_accumulation_steps=2, **facts)
    d, f = TINY.hidden_size, TINY.ffn_size
    for rank, ops in enumerate(run.plan.program.ranks):
        sizes = {op.name: op.nbytes for op in ops if isinstance(op, Allocate)}
        head = TINY.vocab_size * d if pp == 1 or rank == 1 else 0
        assert sizes["gradient placeholders"] == 2 * (3 * d * d + d * d + 2 * d * f + head)
        matmuls = [
            nbytes for name, nbytes in sizes.items() if name.startswith(("layer", "head")) and "gradients" in name
        ]
        assert matmuls
        assert not any(matmuls)
        assert not any(isinstance(op, Free) and op.allocation == "gradient placeholders" for op in ops)


@pytest.mark.parametrize(
    ("grads", "strategy", "nbytes"), [("float16", "ddp", 4), ("float16", "zero1", 2), ("float32", "ddp", 0)]
)
def test_narrow_gradients_are_copied_in_float32_until_the_next_step(grads: str, strategy: str, nbytes: int) -> None:
    """Four bytes a parameter that the rank updates, of two ranks with zero1; none if gradients are float32 already."""
    precision = Precision(params="float16", grads=grads, reduce=grads, matmul="float16").resolved()
    ops = next(iter(played(2, strategy, precision=precision, widens_gradients=True).plan.program.ranks))
    made = [op.nbytes for op in ops if isinstance(op, Allocate) and op.name == "gradients for the update"]
    elements = sum(module.elements for module in modules(TINY))
    assert sum(made) == nbytes * elements
    assert not any(isinstance(op, Free) and op.allocation == "gradients for the update" for op in ops)


@pytest.mark.parametrize(
    ("users", "facts", "nbytes"),
    [
        # Tokens and width of the gathered input: 2 x 16 tokens of a rank's two sequences, 2 bytes a number.
        ("head", {"tp": 2, "pp": 2}, (0, 2 * 16 * TINY.hidden_size * 2)),
        ("inputs", {"tp": 2, "pp": 2}, (2 * 16 * TINY.hidden_size * 2, 2 * 16 * TINY.hidden_size * 2)),
        # A context-parallel rank gathers its own part of the sequence.
        ("head", {"tp": 2, "cp": 2}, (2 * 8 * TINY.hidden_size * 2,) * 2),
        # Without sequence parallelism nothing is gathered.
        ("inputs", {"tp": 2, "pp": 2, "sequence_parallel": False}, (0, 0)),
        ("none", {"tp": 2, "pp": 2}, (0, 0)),
    ],
)
def test_gathered_inputs_lie_in_a_buffer_that_is_never_freed(
    users: MemoryBuffer, facts: dict[str, Any], nbytes: tuple[int, int]
) -> None:
    run = played(4, memory_buffer=users, parallelism=Parallelism(**facts), micro_batch_size=2, seq_len=16,
                 gradient_accumulation_steps=2, precision=Precision(grads="float32").resolved())  # fmt: skip
    ranks = run.plan.program.ranks
    for ops, expected in zip((ranks[0], ranks[-1]), nbytes, strict=True):
        assert [op.nbytes for op in ops if isinstance(op, Allocate) and op.name == "memory buffer"] == (
            [expected] if expected else []
        )
        assert not any(isinstance(op, Free) and op.allocation == "memory buffer" for op in ops)


@pytest.mark.parametrize(("attention", "users"), [("standard", "scores"), ("eager", "scores"), ("flash", "scores"),
                                                  ("standard", "inputs"),
                                                  ("standard", "head")])  # fmt: skip
def test_scores_of_local_layers_lie_in_the_same_buffer(attention: str, users: MemoryBuffer) -> None:
    """Two sequences, half of the heads, 16 x 16 positions of 2 bytes: more than the gathered input if it is narrow."""
    run = played(2, memory_buffer=users, parallelism=Parallelism(tp=2, sequence_parallel=False), micro_batch_size=2,
                 seq_len=16, attention=attention, precision=Precision(grads="float32").resolved())  # fmt: skip
    sizes = [op.nbytes for op in next(iter(run.plan.program.ranks)) if getattr(op, "name", "") == "memory buffer"]
    scores = 2 * TINY.num_heads // 2 * 16 * 16 * 2
    assert sizes == ([scores] if users == "scores" and attention != "flash" else [])


def test_workspaces_are_allocated_for_the_whole_step() -> None:
    peaks = [max(s.nbytes for s in played(2, workspaces={"other": size}).timeline.memory) for size in (0.0, 3e6)]
    assert peaks[1] - peaks[0] == 3_000_000


@pytest.mark.parametrize(
    ("gpu", "dense", "grouped"),
    [("a100_sxm_80gb", 2 * 8.125 + 4, 4 * 4), ("l40s", 2 * 8.125 + 4, 4 * 4), ("h200", 2 * 32 + 32, 4 * 32),
     ("gb200", 2 * 32 + 32, 4 * 32)],
)  # fmt: skip
def test_workspaces_of_megatron_core_are_those_of_pytorch_and_transformer_engine(
    gpu: str, dense: float, grouped: float
) -> None:
    """Two of PyTorch, one of Transformer Engine, four more for experts: 32 MiB each from Hopper on."""
    framework, chip = load_framework("megatron_core"), load_gpu(gpu)
    assert framework.scratch(chip, experts=False) == dense * 2**20
    assert framework.scratch(chip, experts=True) == (dense + grouped) * 2**20
    assert load_framework("torchtitan").scratch(chip, experts=True) == 0


@pytest.mark.parametrize(
    ("algorithm", "operation", "steps"),
    [
        # A ring over two nodes of eight leaves one of them once in a gather, twice in a sum.
        ("multi_ring", "all_gather", Steps(14, 1)),
        ("ring", "all_reduce", Steps(28, 2)),
        # Seven steps in every node and one between, there and back.
        ("hierarchical", "all_reduce", Steps(14, 2)),
        ("nvls", "all_reduce", Steps(2, 2)),
        ("blueconnect", "all_reduce", Steps(14, 2)),
        # A chain over the seven others in a node and one level above, up and down.
        ("double_binary_tree", "all_reduce", Steps(14, 2)),
        ("direct", "all_to_all", Steps(0, 1)),
    ],
)
def test_steps_are_counted_on_the_longest_way(algorithm: str, operation: str, steps: Steps) -> None:
    request = CollectiveRequest(operation, 16, 1600, nodes=(tuple(range(8)), tuple(range(8, 16))))
    assert ALGORITHMS.find(algorithm).steps(request) == steps
    machine = MachineCollective(algorithm, startup=1e-5, step=1e-6, cross_step=1e-3)
    assert machine.latency(steps) == pytest.approx(1e-5 + steps.inside * 1e-6 + steps.across * 1e-3)


def test_a_group_in_one_node_does_not_pay_for_the_network() -> None:
    cluster = build("hf_h100", 16)
    inside, across = (cluster.machine("all_gather", group) for group in (range(8), range(16)))
    assert inside is not None
    assert across is not None
    assert (inside.cross_step, across.cross_step) == (0.0, pytest.approx(450e-6))
    assert replace(inside, source="") == replace(build("hf_h100", 8).collectives["all_gather"], source="")


@pytest.mark.parametrize("ranks", [4, 8])
def test_an_exchange_of_all_with_all_has_one_port_and_a_rings_share_of_it(ranks: int) -> None:
    """H100s on one NVSwitch, 512 MiB: OpenXLA's table (collective_interpolator_data.h, sm_90) has 1,272 us over 4.

    Seven flows of a rank pass one port together, of which the machine's cap is; each by itself would fill it. Without
    constants of its own, an exchange takes those of a ring of gathers, and without these those of sums at the switch,
    with which NCCL counts on 0.85 of a ring's bandwidth (src/graph/tuning.cc).
    """
    cluster = build("dgx_h100", ranks)
    nbytes = 512 * 2**20
    task = Task(CollectiveRequest("all_to_all", ranks, nbytes // 4), "auto", tuple(range(ranks)))
    sums, gather, exchange = (cluster.collectives[name] for name in ("all_reduce", "all_gather", "all_to_all"))
    alone, others = {"all_reduce": sums}, {"all_reduce": sums, "all_gather": gather}
    for held, constants, share in ((cluster.collectives, exchange, 1.0), (others, gather, 1.0), (alone, sums, 0.85)):
        made = plan(replace(cluster, collectives=held), task)
        (op,) = made.ops
        assert op.startup == constants.startup
        # A rank's own part takes a part of the time, in a ring of gathers and in an exchange.
        left = (ranks - 1) / (ranks - 1 + constants.own_part)
        assert op.caps.inside == pytest.approx(
            constants.rate_cap / share * constants.factor(nbytes) * left / (ranks - 1)
        )
        assert made.predicted is not None
        if ranks == 4:
            assert made.predicted == pytest.approx(1272.256e-6, rel=0.2)


def test_a_picture_of_a_steps_parts_shows_the_wait_for_the_host() -> None:
    """Stacked, the parts are as long as the step."""
    report = played(1, issue=1e-3).report.to_dict()
    fig = breakdown.figure([("slow host", report)])
    (axes,) = fig.axes
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert HOST_WAIT in [text.get_text() for legend in fig.legends for text in legend.get_texts()]
    assert max(ends) == pytest.approx(report["step_time_s"], rel=0.01)
