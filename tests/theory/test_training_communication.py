"""Bytes on the wire of a data-parallel step, against the formulas of ZeRO (Rajbhandari et al., SC 2020, section 7).

P parameters, N ranks, p bytes each: an all-reduce sends 2 p P (N-1)/N from every rank, an all-gather or a
reduce-scatter half of it.
"""

from __future__ import annotations

from typing import Any

import pytest

from simulator.model.parameters import modules, total
from simulator.step.learning_spec import LossScaling
from simulator.step.precision import Precision
from simulator.step.training_spec import Offload
from tests.training import TINY, WITHOUT_SERVERS, play, sent, step

P = total(TINY)
ROOT = modules(TINY)[0].elements + modules(TINY)[-1].elements
BF16 = Precision(reduce="bfloat16").resolved()


def padded(elements: int, ranks: int) -> int:
    return -(-elements // ranks) * ranks


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("strategy", "times"), [("ddp", 2), ("zero1", 2), ("zero2", 2)])
def test_ddp_and_the_first_two_stages_send_every_parameter_twice(strategy: str, times: int, ranks: int) -> None:
    # One bucket for all, so that nothing but the whole is padded.
    played = play(step(strategy, precision=BF16, bucket_size=2**40), ranks)
    expected = times * 2 * padded(P, ranks) * (ranks - 1) / ranks
    assert sent(played) == pytest.approx([expected] * ranks)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("reshard", "gathers"), [(True, 2), (False, 1)])
def test_stage_three_gathers_forward_and_backward_and_scatters_once(ranks: int, reshard: bool, gathers: int) -> None:
    """Exceptions that FSDP makes: the root is gathered once; the last layer stays for its backward pass."""
    played = play(step("zero3", precision=BF16, reshard_after_forward=reshard), ranks)
    layer = padded(modules(TINY)[1].elements, ranks)
    layers = TINY.num_layers
    gathered = layers * layer * gathers - (layer if reshard else 0) + padded(ROOT, ranks)
    scattered = layers * layer + padded(ROOT, ranks)
    expected = 2 * (gathered + scattered) * (ranks - 1) / ranks
    assert sent(played) == pytest.approx([expected] * ranks)


@pytest.mark.parametrize(("strategy", "rounds"), [("ddp", 1), ("zero1", 1), ("zero2", 3)])
def test_accumulation_multiplies_only_what_reduces_every_micro_batch(strategy: str, rounds: int) -> None:
    """Three micro-batches: ddp and stage 1 communicate in the last, stage 2 (DeepSpeed) in each."""
    ranks, facts = 4, {"precision": BF16, "bucket_size": 2**40}
    thrice = play(step(strategy, gradient_accumulation_steps=3, **facts), ranks)
    half = 2 * padded(P, ranks) * (ranks - 1) / ranks
    assert sent(thrice) == pytest.approx([half * rounds + half] * ranks)


def test_gradients_in_float32_double_their_part() -> None:
    wide = play(step("ddp", precision=Precision(reduce="float32").resolved(), bucket_size=2**40), 4)
    narrow = play(step("ddp", precision=BF16, bucket_size=2**40), 4)
    assert sent(wide) == pytest.approx([2 * nbytes for nbytes in sent(narrow)])


@pytest.mark.parametrize("strategy", WITHOUT_SERVERS)
def test_closed_forms_and_played_collectives_give_one_step_time(strategy: str) -> None:
    facts: dict[str, Any] = {"precision": BF16, "bucket_size": 2**16}
    played = play(step(strategy, collectives="played", **facts), 4)
    formed = play(step(strategy, collectives="auto", **facts), 4)
    assert formed.report.closed_form_collectives > 0
    assert formed.report.step_time_s == pytest.approx(played.report.step_time_s, rel=1e-9)


@pytest.mark.parametrize(("ranks", "size"), [(4, 2), (8, 2), (8, 4)])
def test_hybrid_sharding_gathers_in_its_group_and_adds_its_part_over_the_copies(ranks: int, size: int) -> None:
    """As stage three with n = size ranks, and an all-reduce of the part over g copies: 2 (p P / n) (g-1)/g."""
    played = play(step("zero3", precision=BF16, shard_size=size), ranks)
    copies = ranks // size
    layer, layers = padded(modules(TINY)[1].elements, size), TINY.num_layers
    units = [ROOT]
    gathered = (2 * layers - 1) * layer + padded(ROOT, size)
    scattered = layers * layer + sum(padded(elements, size) for elements in units)
    parts = [layer // size] * layers + [padded(elements, size) // size for elements in units]
    summed = sum(2 * padded(part, copies) * (copies - 1) / copies for part in parts)
    expected = 2 * ((gathered + scattered) * (size - 1) / size + summed)
    # Which rank sends how much of a small all-reduce is the algorithm's choice; together they send the least there is.
    assert sum(sent(played)) == pytest.approx(expected * ranks)


@pytest.mark.parametrize("strategy", ["zero1", "zero2"])
@pytest.mark.parametrize(("ranks", "size"), [(4, 2), (8, 2), (8, 4)])
def test_optimizer_states_in_groups_scatter_and_gather_in_their_group(strategy: str, ranks: int, size: int) -> None:
    """With n = size ranks: the gradients scattered and the parameters gathered, 2 p P (n-1)/n, and an all-reduce of the
    part over g copies, 2 (p P / n) (g-1)/g; one bucket, one micro-batch.
    """
    played = play(step(strategy, precision=BF16, shard_size=size, bucket_size=2**30), ranks)
    copies, whole = ranks // size, padded(sum(module.elements for module in modules(TINY)), size)
    expected = 2 * (2 * whole * (size - 1) / size + 2 * padded(whole // size, copies) * (copies - 1) / copies)
    assert sum(sent(played)) == pytest.approx(expected * ranks)


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_a_shard_group_of_all_ranks_is_the_plain_strategy(strategy: str) -> None:
    plain, whole = (play(step(strategy, shard_size=size), 4).report for size in (None, 4))
    assert plain == whole


@pytest.mark.parametrize("size", [2, 3, 4])
def test_layers_of_a_unit_travel_together(size: int) -> None:
    """As stage three, with the last unit, whole or not, still there for its backward pass."""
    played = play(step("zero3", precision=BF16, layers_per_unit=size), 4)
    layer, layers = modules(TINY)[1].elements, TINY.num_layers
    blocks = [min(size, layers - i) for i in range(0, layers, size)]
    gathered = sum(padded(n * layer, 4) for n in blocks) + sum(padded(n * layer, 4) for n in blocks[:-1])
    scattered = sum(padded(n * layer, 4) for n in blocks) + padded(ROOT, 4)
    expected = 2 * (gathered + padded(ROOT, 4) + scattered) * 3 / 4
    assert sent(played) == pytest.approx([expected] * 4)


def test_small_tensors_stay_and_travel_once_after_the_update() -> None:
    """DeepSpeed keeps tensors below a number of elements whole; gradients are scattered as ever."""
    below = 1000
    small = [sum(p.elements for p in m.parameters if p.elements < below) for m in modules(TINY)]
    assert 0 < sum(small) < P
    played = play(step("zero3", precision=BF16, keep_below=below), 4)
    layer, layers = modules(TINY)[1].elements, TINY.num_layers
    gathered = (2 * layers - 1) * padded(layer - small[1], 4) + padded(ROOT - small[0] - small[-1], 4)
    scattered = layers * padded(layer, 4) + padded(ROOT, 4)
    expected = 2 * (gathered + padded(sum(small), 4) + scattered) * 3 / 4
    assert sent(played) == pytest.approx([expected] * 4)
    plain = play(step("zero3", precision=BF16), 4)
    held, held_plain = (dict(p.timeline.memory[-1].by_category)["parameters"] for p in (played, plain))
    assert held - held_plain == 2 * sum(small)


@pytest.mark.parametrize(("ranks", "mesh"), [(4, 2), (8, 2), (8, 4)])
def test_a_mesh_between_passes_gathers_in_its_neighbourhood(ranks: int, mesh: int) -> None:
    """Backward gathers come from `mesh` ranks, p P (mesh-1)/mesh each; the rest as in stage three."""
    played = play(step("zero3", precision=BF16, reshard_after_forward=mesh), ranks)
    layer, layers = modules(TINY)[1].elements, TINY.num_layers
    whole = layers * padded(layer, ranks) + padded(ROOT, ranks)
    scattered = layers * padded(layer, ranks) + padded(ROOT, ranks)
    near = (layers - 1) * padded(layer, mesh)
    expected = 2 * ((whole + scattered) * (ranks - 1) / ranks + near * (mesh - 1) / mesh)
    assert sent(played) == pytest.approx([expected] * ranks)


@pytest.mark.parametrize("servers", [1, 2, 3])
@pytest.mark.parametrize("ranks", [2, 4])
def test_workers_push_gradients_and_servers_send_parameters_to_each(ranks: int, servers: int) -> None:
    """Whole arrays, in dtypes of their own: r P from each worker; p P N / k from each of k servers."""
    precision = Precision(params="bfloat16", reduce="float32").resolved()
    played = play(step("parameter_server", precision=precision, bucket_size=2**40, servers=servers), ranks)
    whole = padded(P, servers)
    assert sent(played) == pytest.approx([4 * whole] * ranks + [2 * whole * ranks / servers] * servers)


@pytest.mark.parametrize("servers", [1, 2, 4])
def test_a_servers_own_part_stays_on_its_worker(servers: int) -> None:
    played = play(step("parameter_server", precision=BF16, bucket_size=2**40, servers=servers, servers_on="workers"), 4)
    # 2 (N-1) S in all, for any number of servers.
    assert sum(sent(played)) == pytest.approx(2 * 3 * 2 * padded(P, servers))


def test_loss_scaling_adds_a_number_that_all_ranks_must_know() -> None:
    plain, scaled = (
        play(step("ddp", precision=BF16, loss_scaling=LossScaling(rule=rule)), 4) for rule in ("none", "dynamic")
    )
    names = [{span.name for span in p.timeline.spans} for p in (plain, scaled)]
    assert names[1] - names[0] == {"unscale and check gradients", "any overflow"}
    assert sum(sent(scaled)) - sum(sent(plain)) == pytest.approx(2 * 3 * 4 * 4)  # 2 (N-1) S, padded to a number a rank
    order = [s.name for s in sorted(scaled.timeline.spans, key=lambda s: s.end) if s.rank == 0]
    assert order.index("any overflow") < order.index("optimizer step")


@pytest.mark.parametrize("ranks", [2, 4])
def test_without_sync_stage_three_still_gathers_and_holds_whole_gradients(ranks: int) -> None:
    """FSDP's no_sync: parameters travel for every micro-batch, gradients once; they are whole until then."""
    micros = 3
    once, every, last = (
        play(step("zero3", precision=BF16, gradient_accumulation_steps=n, gradient_sync=sync), ranks)
        for n, sync in ((1, "every"), (micros, "every"), (micros, "last"))
    )
    scattered = TINY.num_layers * padded(modules(TINY)[1].elements, ranks)
    scattered += padded(ROOT, ranks)
    reduction = 2 * scattered * (ranks - 1) / ranks
    assert sent(every) == pytest.approx([micros * nbytes for nbytes in sent(once)])
    assert sent(last) == pytest.approx([micros * nbytes - (micros - 1) * reduction for nbytes in sent(once)])
    held = [max(dict(s.by_category).get("gradients", 0) for s in p.timeline.memory) for p in (every, last)]
    assert held[1] >= 2 * P > held[0]


def test_copies_are_summed_once_where_only_shard_groups_sum_every_micro_batch() -> None:
    facts: dict[str, Any] = {"precision": BF16, "shard_size": 2}
    once = play(step("zero3", **facts), 4)
    every = play(step("zero3", gradient_accumulation_steps=2, **facts), 4)
    shard = play(step("zero3", gradient_accumulation_steps=2, gradient_sync="shard", **facts), 4)
    over = [
        sum(log.nbytes.sum() for log in p.timeline.logs if "over copies" in log.collective)
        for p in (once, every, shard)
    ]
    assert over[1] == 2 * over[0]
    assert over[2] == over[0]
    assert sum(sent(every)) - sum(sent(shard)) == pytest.approx(over[0])


@pytest.mark.parametrize(("ranks", "size"), [(12, 6), (24, 12)])
def test_copies_that_share_a_node_are_summed_by_its_own_algorithm(ranks: int, size: int) -> None:
    """Of 6 and 6 ranks in nodes of 8, ranks 0 and 6 share a node, 2 and 8 do not: no group can do as the first does.

    Two ranks of a node form a ring. Where each node has one of them, no switch has anything to add.
    """
    played = play(step("zero3", shard_size=size), ranks, "dgx_h100")
    switches = dict(zip(played.cluster.nodes, played.cluster.reducing_switches, strict=True))
    sums = [op for name, op in played.plan.program.collectives().items() if name.startswith("sum layer 0 over copies")]
    assert len(sums) == size
    for op in sums:
        together = [node for node in switches if set(op.group) <= set(node)]
        assert op.auxiliaries == ()
        assert op.schedule.algorithm == ("ring" if together else "blueconnect")


@pytest.mark.parametrize(
    ("strategy", "offload"), [("zero1", "none"), ("zero1", "optimizer"), ("parameter_server", "none")]
)
def test_gradients_are_held_until_they_have_been_sent(strategy: str, offload: str) -> None:
    """Nothing runs on the GPU after the backward pass where a host or servers update, and yet they are still needed."""
    played = play(step(strategy, bucket_size=1, servers=2, offload=Offload(what=offload)), 4)
    held = [(s.time, dict(s.by_category).get("gradients", 0)) for s in played.timeline.memory if s.rank == 0]
    sent = [s.end for s in played.timeline.spans if s.rank == 0 and s.kind in ("push", "reduce_scatter")]
    backward = max(s.end for s in played.timeline.spans if s.rank == 0 and s.kind == "backward")
    assert backward < sent[-1]
    # While the last bucket, the embedding's, is under way its gradients are there.
    least = 2 * modules(TINY)[0].elements
    assert all(nbytes >= least for time, nbytes in held if backward <= time < sent[-1])
