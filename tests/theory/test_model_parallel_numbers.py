"""Real training where several ranks compute one model: PyTorch's numbers, whatever is cut, and in every schedule."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from simulator.basics.arrays import Array
from simulator.basics.errors import ScenarioError, SimulationError
from simulator.engine.jitter import Jitter
from simulator.learning import passes
from simulator.learning.learn import gpt_of
from simulator.learning.setting import TrainingContext
from simulator.learning.start import start
from simulator.learning.training import Training
from simulator.model import context
from simulator.model import partition as cut
from simulator.model.experts_spec import ExpertsSpec
from simulator.model.shape import Transformer
from simulator.numerics import task
from simulator.numerics.cut_linear import CutLinear
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from simulator.step import update
from simulator.step.framework import BARE
from simulator.step.learning_spec import LossScaling
from simulator.step.parallelism import Parallelism
from simulator.step.pipelines.schedule import SCHEDULES
from simulator.step.precision import Precision
from simulator.step.process_groups import Groups
from simulator.step.training_spec import Offload
from tests.golden.gpt import farthest, golden, initial, tokens
from tests.golden.half import SHAPE
from tests.training import play, step

# Sequences of a step, and what each is cut into; words, which pad a table that is cut.
SEQUENCES, LENGTH, WORDS = 16, 16, 61
SCHEDULES = tuple(SCHEDULES.names())
SMALL = {
    "model_type": "gpt2", "n_embd": 32, "n_layer": 4, "n_head": 4, "n_positions": LENGTH, "vocab_size": WORDS,
}  # fmt: skip
Trained = tuple[list[float], list[float], dict[str, Array]]


def pytorchs(strategy: str, ranks: int, dtype: str = "float64", **sizes: Any) -> Training:
    """The model of the golden trajectories, cut."""
    cut_into, accumulation = Parallelism(**sizes), 4 if sizes.get("pp", 1) > 1 else 1
    made = step(
        strategy,
        SHAPE,
        precision=Precision(params=dtype).resolved(),
        seq_len=32,
        micro_batch_size=16 * cut_into.size // ranks // accumulation,
        gradient_accumulation_steps=accumulation,
        attention="flash",
        parallelism=cut_into,
    )
    played = play(made, ranks)
    setting = TrainingContext(gpt_of(made), played.plan, played.timeline)
    return start(setting, initial(setting.gpt))


@pytest.mark.parametrize(
    ("strategy", "ranks", "sizes", "steps"),
    [
        ("ddp", 2, {"tp": 2, "sequence_parallel": False}, 20),
        ("zero3", 4, {"cp": 2, "context": "all_gather"}, 20),
        ("zero1", 8, {"tp": 2, "pp": 2, "cp": 2, "schedule": "zb_h1"}, 5),
    ],
)
def test_in_float64_it_is_pytorch_to_the_last_digits(
    strategy: str, ranks: int, sizes: dict[str, Any], steps: int
) -> None:
    made = pytorchs(strategy, ranks, **sizes)
    told = [made.step(tokens(number)) for number in range(steps)]
    reference = golden("fp64_single")
    np.testing.assert_allclose([one.loss for one in told], reference["loss"][:steps], rtol=1e-12)
    np.testing.assert_allclose([one.norm for one in told], reference["gnorm"][:steps], rtol=1e-12)
    assert not made.checks.seen
    if steps == 20:
        found = made.parameters()
        size = max(float(np.abs(reference[f"final/{name}"]).max()) for name in found)
        assert farthest(found, reference) <= 1e-12 * size


def test_in_float32_it_passes_the_gates_of_data_parallelism() -> None:
    made = pytorchs("zero1", 4, "float32", tp=2)
    told = [made.step(tokens(number)) for number in range(20)]
    reference = golden("fp32_ddp")
    assert np.abs(np.array([one.loss for one in told]) - reference["loss"]).max() <= 3e-6
    np.testing.assert_allclose([one.norm for one in told], reference["gnorm"], rtol=1e-6)
    assert farthest(made.parameters(), reference) <= 1e-5


def trained(strategy: str, ranks: int, sizes: dict[str, Any], depth: int = 4, **facts: Any) -> Trained:
    """Train a smaller model for two steps; `experts` replace its MLPs, and `tells` are the checks that must report."""
    tells: set[str] = facts.pop("tells", set())
    may_tell: set[str] = facts.pop("may_tell", set())
    sizes, dtype = dict(sizes), facts.pop("dtype", "float64")
    cut_into = Parallelism(ep=sizes.pop("ep", 1), experts=ExpertsSpec(capacity=facts.pop("capacity", None)), **sizes)
    given = {
        "precision": Precision(params=dtype).resolved(),
        "attention": "flash",
        "gradient_accumulation_steps": 1,
    } | facts
    model = Transformer("small", depth, 32, 4, 4, 8, 128, WORDS, LENGTH, tied=given.pop("tied", False))
    experts = given.pop("experts", 0)
    model = replace(model, num_experts=experts, active_experts=2 if experts else 0)
    batch = SEQUENCES * cut_into.size // ranks // given["gradient_accumulation_steps"]
    machine = {name: given.pop(name) for name in ("topology", "stragglers", "jitter") if name in given}
    made = step(strategy, model, seq_len=LENGTH, micro_batch_size=batch, parallelism=cut_into, **given)
    played = play(made, ranks, **machine)
    setting = TrainingContext(gpt_of(made), played.plan, played.timeline)
    training = start(setting, task.initial(setting.gpt, 1))
    told = [training.step(task.sequences(3, n, SEQUENCES, LENGTH + 1, WORDS)) for n in range(2)]
    assert tells <= set(training.checks.seen) <= tells | may_tell
    return [one.loss for one in told], [one.norm for one in told], training.parameters()


@cache
def on_one_rank(depth: int = 4, *, tied: bool = False, clip: float | None = None) -> Trained:
    return trained("ddp", 1, {}, depth, tied=tied, clip_norm=clip)


def same(one: Trained, other: Trained, within: float = 1e-12) -> None:
    np.testing.assert_allclose(one[0], other[0], rtol=within)
    np.testing.assert_allclose(one[1], other[1], rtol=within)
    size = max(float(np.abs(value).max()) for value in other[2].values())
    for name, value in other[2].items():
        np.testing.assert_allclose(one[2][name], value, rtol=0, atol=within * size, err_msg=name)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.one_of(3)
def test_no_schedule_changes_what_is_learned(schedule: str, *, tied: bool) -> None:
    sizes = {"pp": 2, "schedule": schedule, "virtual_stages": 2, "tp": 1 if tied else 2}
    same(
        trained("ddp", 2 if tied else 4, sizes, 8, tied=tied, gradient_accumulation_steps=8), on_one_rank(8, tied=tied)
    )


@pytest.mark.parametrize("strategy", ["zero2", *(pytest.param(n, marks=pytest.mark.long) for n in ("zero1", "zero3"))])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_stage_that_no_other_rank_holds_sums_all_its_micro_batches(schedule: str, strategy: str) -> None:
    """Nobody reduces these gradients; looped_bfs passes the last micro-batch back first, and the first one last."""
    sizes = {"pp": 2, "schedule": schedule, "virtual_stages": 2}
    same(trained(strategy, 2, sizes, gradient_accumulation_steps=4), on_one_rank())


@pytest.mark.parametrize("strategy", ["ddp", "zero2", "zero3"])
@pytest.mark.parametrize(
    "sizes",
    [
        {"schedule": "1f1b", "stages": (0, 4, 4, 0)},
        {"schedule": "interleaved", "virtual_stages": 2, "stages": {"first_less": 1, "last_less": 1}},
        {"schedule": "zb_v", "stages": (0, 2, 1, 1, 1, 1, 2, 0)},
    ],
)
@pytest.mark.one_of(3)
def test_stages_of_the_embedding_alone_and_of_the_head_alone_learn_the_same(
    strategy: str, sizes: dict[str, Any]
) -> None:
    depth = 6 if isinstance(sizes["stages"], dict) else 8
    same(trained(strategy, 8, {"pp": 4} | sizes, depth, gradient_accumulation_steps=4), on_one_rank(depth))


@pytest.mark.parametrize(
    ("strategy", "ranks", "sizes", "facts"),
    [
        ("ddp", 8, {}, {"tied": True}),
        ("zero2", 8, {"tp": 2}, {"tied": True}),
        ("zero3", 8, {"cp": 2}, {"clip_norm": 0.5}),
        ("zero3", 8, {}, {"shard_size": 2, "activation_checkpointing": "full"}),
        ("zero1", 8, {"tp": 2}, {"offload": Offload(what="optimizer")}),
    ],
)
def test_two_copies_from_both_ends_sum_what_each_has_learned(
    strategy: str, ranks: int, sizes: dict[str, Any], facts: dict[str, Any]
) -> None:
    """DualPipe: ranks r and p - 1 - r hold the same stages, and micro-batches pass either copy."""
    expected = on_one_rank(8, tied=facts.get("tied", False), clip=facts.get("clip_norm"))
    same(
        trained(strategy, ranks, {"pp": 4, "schedule": "dualpipe"} | sizes, 8, gradient_accumulation_steps=8, **facts),
        expected,
    )


@cache
def experts_on_one_rank(capacity: float | None = None, accumulation: int = 1) -> Trained:
    return trained("ddp", 1, {}, experts=4, capacity=capacity, gradient_accumulation_steps=accumulation)


@pytest.mark.parametrize(
    ("strategy", "ranks", "sizes", "facts"),
    [
        ("ddp", 4, {"ep": 2}, {}),
        ("ddp", 4, {"ep": 4}, {"activation_checkpointing": "full"}),
        ("zero1", 4, {"ep": 2, "cp": 2}, {}),
        ("zero2", 4, {"ep": 4}, {}),
        ("zero3", 4, {"ep": 2}, {"gradient_accumulation_steps": 2}),
        # Experts that have one copy: nobody gathers them.
        ("zero3", 4, {"ep": 4}, {}),
        ("zero3", 4, {"ep": 4, "cp": 2}, {"gradient_accumulation_steps": 2}),
        ("zero1", 8, {"ep": 4, "cp": 2, "pp": 2, "schedule": "zb_h1"}, {"gradient_accumulation_steps": 4}),
        (
            "ddp",
            4,
            {"ep": 2, "pp": 2, "schedule": "interleaved", "virtual_stages": 2},
            {"gradient_accumulation_steps": 4},
        ),
        ("zero2", 8, {"ep": 2, "pp": 4, "schedule": "dualpipe"}, {"gradient_accumulation_steps": 8}),
        # The sums of experts' gradients hold back the experts' units, and the gradients go to the stage before.
        (
            "ddp",
            4,
            {"ep": 2, "pp": 2},
            {"gradient_accumulation_steps": 2, "framework": BARE.with_constants(overlaps=False)},
        ),
        ("ddp", 1, {}, {"activation_checkpointing": "selective_op"}),
        ("ddp", 2, {"pp": 2}, {"activation_checkpointing": (("selective_op", (0, 3)), ("activation", (1,)))}),
    ],
)
@pytest.mark.one_of(3)
def test_experts_learn_the_same_wherever_they_are(
    strategy: str, ranks: int, sizes: dict[str, Any], facts: dict[str, Any]
) -> None:
    same(trained(strategy, ranks, sizes, experts=4, **facts), experts_on_one_rank())


@pytest.mark.parametrize("capacity", [0.5, 1.0, 1.25])
@pytest.mark.parametrize(("strategy", "ep"), [("ddp", 4), ("zero1", 2)])
def test_experts_that_take_so_many_tokens_drop_the_same(strategy: str, ep: int, capacity: float) -> None:
    """How many it takes is counted by rank and micro-batch: one rank with as many micro-batches drops the same."""
    expected = experts_on_one_rank(capacity, 4)
    same(trained(strategy, 4, {"ep": ep}, experts=4, capacity=capacity), expected)
    assert abs(expected[0][1] / experts_on_one_rank()[0][1] - 1) > 1e-9  # it did drop some


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3"])
def test_a_host_updates_with_what_was_summed_last(strategy: str) -> None:
    """Norms' gradients are whole behind the sum over tensor-parallel ranks; the host must not begin before."""
    same(
        trained(strategy, 8, {"tp": 2, "pp": 2}, gradient_accumulation_steps=4, offload=Offload(what="optimizer")),
        on_one_rank(),
    )


@pytest.mark.parametrize(
    ("sizes", "checkpointing"),
    [
        *product(({"tp": 2}, {"tp": 2, "sequence_parallel": False}, {"tp": 2, "pp": 2}), ("full", 2)),
        # The last layer of a segment stops early; the layers before it run to their ends.
        ({"tp": 2}, "sqrt"),
    ],
    ids=str,
)
def test_what_is_made_again_may_stop_before_the_layers_last_sum(sizes: dict[str, Any], checkpointing: Any) -> None:
    """torch.utils.checkpoint ends there: nothing behind it is needed."""
    facts = {
        "activation_checkpointing": checkpointing,
        "framework": BARE.with_constants(stops_early=True),
        "gradient_accumulation_steps": 2,
    }
    same(trained("zero1", 4, sizes, **facts), on_one_rank())


def test_segments_that_would_reach_over_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="segments cross pipeline stages"):
        trained("ddp", 2, {"pp": 2}, 8, gradient_accumulation_steps=2, activation_checkpointing="sqrt")


@st.composite
def cuts(draw: st.DrawFn) -> tuple[str, int, dict[str, Any], dict[str, Any]]:
    """A strategy, ranks, how the model is cut, and other facts of a step."""
    tp, pp, cp = (draw(st.sampled_from([1, 2])) for _ in range(3))
    dp, accumulation = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 4]))
    schedule = draw(st.sampled_from(SCHEDULES))
    sizes = {"tp": tp, "pp": pp, "cp": cp, "schedule": schedule, "virtual_stages": draw(st.sampled_from([1, 2]))}
    sizes |= {name: draw(st.booleans()) for name in ("sequence_parallel", "balanced")}
    sizes["context"] = draw(st.sampled_from(["ring", "all_gather"]))
    strategy = draw(st.sampled_from(["ddp", "zero1", "zero2", "zero3"]))
    tied = draw(st.booleans()) and (pp == 1 or strategy == "ddp")
    facts = {
        "tied": tied,
        "gradient_accumulation_steps": accumulation,
        "clip_norm": draw(st.sampled_from([None, 0.5])),
        "activation_checkpointing": draw(st.sampled_from(["none", "full", 2, (1,), "attention"])),
        "framework": BARE.with_constants(stops_early=draw(st.booleans())),
        "loss_scaling": draw(st.sampled_from([LossScaling(rule=rule) for rule in ("none", "dynamic")])),
        "topology": draw(st.sampled_from(["star_100g", "dgx_h100"])),
    }
    ranks = tp * pp * cp * dp
    if ranks > 1:
        # With nvls, two copies of the model may sum their norms in different orders, see the test below.
        calm = facts["topology"] == "dgx_h100" and facts["clip_norm"] is not None
        facts["stragglers"] = draw(st.sampled_from([None, None if calm else {ranks - 1: 0.4}]))
        facts["jitter"] = draw(st.sampled_from([None, None if calm else Jitter(0.2, 0.2, 7)]))
    if strategy != "ddp":
        facts["offload"] = draw(st.sampled_from([Offload(what=what) for what in ("none", "optimizer")]))
    if strategy == "zero3":
        facts["reshard_after_forward"] = draw(st.booleans())
    if strategy in ("zero1", "zero2", "zero3"):
        facts |= {"shard_size": 2} if dp * cp == 4 and draw(st.booleans()) else {}
    return strategy, ranks, sizes, facts


@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
def test_a_fast_rank_that_passes_back_from_the_last_micro_batch_takes_no_others_gradient(strategy: str) -> None:
    sizes = {"pp": 2, "schedule": "looped_bfs"}
    found = trained(
        strategy, 4, sizes, 8, gradient_accumulation_steps=2, topology="star_100g", jitter=Jitter(0.2, 0.2, 7)
    )
    same(found, on_one_rank(8, tied=False, clip=None))


@pytest.mark.parametrize(
    ("strategy", "changed", "may_tell"),
    [
        ("ddp", {}, {"copies"}),
        ("ddp", {"stragglers": None}, set()),
        ("ddp", {"clip_norm": None}, set()),
        ("ddp", {"topology": "star_100g", "algorithm": "auto"}, set()),
        ("zero1", {"tied": False}, set()),
    ],
)
@pytest.mark.one_of(5)
def test_copies_whose_norms_a_switch_sums_in_another_order_differ_by_rounding(
    strategy: str, changed: dict[str, Any], may_tell: set[str]
) -> None:
    """Ranks 0, 1, 4, 5 hold one copy, 2, 3, 6, 7 the other; the slow rank 7 changes the order of the second sum only.

    Whether another order rounds differently depends on the sums that the processor's matmuls give. NVSwitches of Hopper
    add in no fixed order: https://github.com/NVIDIA/nccl/issues/1497.
    """
    facts: dict[str, Any] = {"tied": True, "gradient_accumulation_steps": 4, "clip_norm": 0.5, "topology": "dgx_h100"}
    # NCCL itself would take rings for four ranks of a node.
    facts |= {"stragglers": {7: 0.4}, "algorithm": "nvls"} | changed
    sizes = {"tp": 2, "pp": 2, "cp": 2, "schedule": "1f1b", "sequence_parallel": False}
    found = trained(strategy, 8, sizes, 8, may_tell=may_tell, **facts)
    same(found, on_one_rank(8, tied=facts["tied"], clip=facts["clip_norm"]))


@pytest.mark.parametrize("examples", [8, pytest.param(400, marks=pytest.mark.long)])
def test_whatever_is_drawn_together_learns_what_one_rank_learns(examples: int) -> None:
    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(cuts())
    def law(drawn: tuple[str, int, dict[str, Any], dict[str, Any]]) -> None:
        strategy, ranks, sizes, facts = drawn
        try:
            found = trained(strategy, ranks, sizes, 8, **facts)
        except ValueError as error:
            # These micro-batches do not fit the schedule; nothing else is refused.
            assume("parallelism.schedule" not in str(error))
            raise
        same(found, on_one_rank(8, tied=facts["tied"], clip=facts["clip_norm"]))

    law()


@pytest.mark.parametrize("sizes", [{"tp": 2}, {"pp": 2}, {"tp": 2, "pp": 2, "cp": 2}], ids=str)
def test_of_an_overflow_anywhere_all_ranks_hear(sizes: dict[str, int]) -> None:
    """float16 with a scale that overflows at first: skipped on every rank, then learned as without cutting."""
    half = {
        "precision": Precision(params="float16", grads="float16", reduce="float32", master="float32", matmul="float16"),
        "loss_scaling": LossScaling(rule="dynamic", start=2.0**20),
        "gradient_accumulation_steps": 2,
    }
    plain, found = (trained("zero1", 8, own, **half) for own in ({}, sizes))
    np.testing.assert_allclose(found[0], plain[0], rtol=1e-4)
    assert all(np.isfinite(value).all() for value in found[2].values())


def test_a_scenario_trains_a_cut_model() -> None:
    """From the file to the losses: the same for every way to spread 8 ranks."""
    scenario: dict[str, Any] = {
        "name": "cut", "question": "?", "cluster": {"topology": "star_100g", "world_size": 8},
        "training": {
            "model": SMALL,
            "seq_len": 16, "micro_batch_size": 1, "gradient_accumulation_steps": 2, "numerics": True, "steps": 3,
            "precision": "fp32", "sharding": "zero1",
        },
    }  # fmt: skip
    losses = []
    for sizes in ({"tp": 2}, {"cp": 2}, {"tp": 2, "cp": 2, "sequence_parallel": False}):
        own = 8 // (sizes.get("tp", 1) * sizes.get("cp", 1))
        training = scenario["training"] | {"parallelism": sizes, "micro_batch_size": 8 // own}
        report = simulate(load_scenario(scenario | {"training": training})).report
        losses.append(report.learning.losses)  # type: ignore[union-attr]
    for other in losses[1:]:
        np.testing.assert_allclose(other, losses[0], rtol=1e-5)


def mutated(monkeypatch: pytest.MonkeyPatch, mutant: str) -> tuple[str, int, dict[str, Any]]:
    """Break one thing; and a step in which it shows."""
    if mutant == "a missing all-reduce":
        # Neither the played step nor the numbers sum what a matrix cut by rows makes.
        rows = CutLinear.rows

        def alone(self: CutLinear, p: Any, x: Array, *kept: Any) -> Any:
            run = rows(self, p, x, *kept)
            wanted = next(run)
            try:
                run.send(wanted.array)  # type: ignore[union-attr]
            except StopIteration as end:
                return end.value
            raise RuntimeError
            yield

        monkeypatch.setattr(CutLinear, "rows", alone)
        monkeypatch.setattr(cut, "around_rows", lambda *_: ())
        monkeypatch.setattr("simulator.model.operation.around_rows", lambda *_: ())
        return "ddp", 2, {"tp": 2, "sequence_parallel": False}
    if mutant == "an exchange that was not played":
        monkeypatch.setattr("simulator.model.operation.around_rows", lambda *_: ())
        return "ddp", 2, {"tp": 2, "sequence_parallel": False}
    if mutant == "norms are not summed over tp":
        monkeypatch.setattr(update, "_sum_partial", lambda *_: None)
        return "ddp", 2, {"tp": 2}
    if mutant == "experts are summed over the wrong ranks":
        # Those that hand tokens to each other, of which each has other experts.
        monkeypatch.setattr(Groups, "_build_table", _swapped(Groups._build_table))
        return "ddp", 4, {"ep": 2}
    if mutant == "a micro-batch's gradient is dropped":
        keep = passes._keep

        def all_but_one(setting: TrainingContext, rank: Any, unit: str, micro: int, gradients: Any) -> None:
            dropped = {name: 0 * value for name, value in gradients.items()} if micro == 1 else gradients
            keep(setting, rank, unit, micro, dropped)

        monkeypatch.setattr(passes, "_keep", all_but_one)
        return "ddp", 2, {"pp": 2}
    # Gradients of keys stay with the rank that they were made on last, and take a round less.
    communications = context._round

    def never_home(keys: int, own: Any, kernels: int) -> Any:
        last = f"keys' gradients {own.ring}"
        return [one for one in communications(keys, own, kernels) if one.name != last]

    monkeypatch.setattr(context, "_round", never_home)
    return "ddp", 2, {"cp": 2}


def _swapped(made: Any) -> Any:
    return lambda self, scope: made(self, "experts" if scope == "expert data" else scope)


@pytest.mark.parametrize(
    "mutant",
    [
        "experts are summed over the wrong ranks",
        "a missing all-reduce",
        "an exchange that was not played",
        "norms are not summed over tp",
        "a micro-batch's gradient is dropped",
        "keys' gradients do not come home",
    ],
)
def test_mutants_are_stopped(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shows as numbers that are not one rank's, or as an exchange that was played and that nobody asks for."""
    experts = 4 if "experts" in mutant else 0
    expected = experts_on_one_rank() if experts else on_one_rank()
    strategy, ranks, sizes = mutated(monkeypatch, mutant)
    with pytest.raises((AssertionError, SimulationError)):
        same(
            trained(strategy, ranks, sizes, gradient_accumulation_steps=4 if "pp" in sizes else 1, experts=experts),
            expected,
        )


@pytest.mark.parametrize(
    ("parallelism", "more", "text"),
    [
        ({"cp": 2, "context": "ulysses"}, {}, "real training does not support; write ring"),
        ({"tp": 2}, {"dropout": 0.1}, "write dropout: false"),
        ({"tp": 2}, {"activation_checkpointing": "selective_op"}, "write full or attention"),
        ({"tp": 2}, {"activation_checkpointing": {"selective_op": [0]}}, "write full or attention"),
        ({"cp": 2}, {"activation_checkpointing": {"full": [1], "activation": [0]}}, "does not support activation"),
        (
            {"pp": 2, "cp": 2},
            {"activation_checkpointing": "feed_forward"},
            "cp: got 2, .* support feed_forward",
        ),
        (
            {"pp": 2},
            {"sharding": "zero1"},
            ("only sharding: ddp sums the gradients of the first and the last stage; write ddp"),
        ),
        ({"tp": 2}, {"faults": [{"what": "stopped", "rank": 0, "step": 1}]}, "omit faults"),
    ],
)
def test_what_numbers_are_not_carried_for_is_one_line(
    parallelism: dict[str, Any], more: dict[str, Any], text: str
) -> None:
    training = {
        "model": SMALL | {"tie_word_embeddings": True}, "seq_len": 16, "micro_batch_size": 1, "numerics": True,
        "gradient_accumulation_steps": 2, "precision": "fp32", "sharding": "ddp", "parallelism": parallelism,
    }  # fmt: skip
    with pytest.raises(ScenarioError, match=text) as told:
        load_scenario({
            "name": "n", "question": "?", "cluster": {"topology": "star_100g", "world_size": 4},
            "training": training | more,
        })  # fmt: skip
    assert len(str(told.value).splitlines()) == 1
