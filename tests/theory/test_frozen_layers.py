"""Training of some parts of a model: what is frozen has no gradient, no state, no exchange, and saves what it must."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import pytest

from simulator.basics.errors import ScenarioError
from simulator.model.adapters import FROZEN
from simulator.model.kernel import Attention, Matmul
from simulator.model.layer import layer_operations
from simulator.model.load import load_transformer
from simulator.model.model import modules
from simulator.model.operation import Batch, saved_bytes
from simulator.report.numbers.training_summary import TrainingReport
from simulator.run.simulate import simulate
from simulator.scenario.load import load_scenario
from tests.combinations import accepted, simulated

SMALL: Final = {
    "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 192, "vocab_size": 96, "tie_word_embeddings": False,
}  # fmt: skip


def data(trainable: Any, ranks: int = 4, **keys: Any) -> dict[str, Any]:
    """A training step of a small Llama that trains some parts."""
    topology = {"builder": "star", "options": {"bandwidth": "25 GB/s", "latency": "5 us"}}
    training = {"model": SMALL, "seq_len": 32, "sharding": "ddp", "trainable": trainable, "collectives": "played"}
    cluster = {"topology": topology, "world_size": ranks, "gpu": "h100_sxm"}
    return {"name": "frozen", "cluster": cluster, "training": training | keys}


def report(*asked: Any, **keys: Any) -> TrainingReport:
    """The report of a step."""
    found = simulate(load_scenario(data(*asked, **keys))).report
    assert isinstance(found, TrainingReport)
    return found


def elements(*names: str) -> int:
    """Parameters of some parts of the model."""
    return sum(part.elements for part in modules(load_transformer(SMALL)) if part.name in names)


def exchanged(*asked: Any, **keys: Any) -> dict[str, int]:
    """Bytes of each collective of a step, and that both engines agree."""
    drawn = accepted(data(*asked, **keys))
    assert drawn is not None
    timeline, _ = simulated(drawn)
    return {log.collective: int(log.nbytes.sum()) for log in timeline.logs}


def test_only_what_is_trained_has_states_and_an_exchange() -> None:
    """The head alone: 16 bytes a parameter of it, 2 of any other, and a ring's 2 (n - 1) float32 gradients of it."""
    head, whole = elements("head"), elements("embedding", "head", *(f"layer {n}" for n in range(4)))
    ranks = 4
    sent = exchanged(["head"])
    assert sum(sent.values()) == 2 * (ranks - 1) * 4 * head
    drawn = accepted(data(["head"]))
    assert drawn is not None
    (peak,) = [sample for sample in [simulated(drawn)[0].peak] if sample is not None]
    held = dict(peak.by_category)
    assert held["parameters"] == 2 * whole
    assert held["optimizer"] == 12 * head


def test_layers_before_the_first_trained_one_have_no_backward_pass() -> None:
    drawn = accepted(data(["layer 2", "head"]))
    assert drawn is not None
    timeline, _ = simulated(drawn)
    backward = {span.name for span in timeline.spans if span.kind == "backward" and span.end > span.start}
    # Layer 3 is frozen and passes the gradient back.
    assert {name.partition(" backward")[0] for name in backward} == {"head", "layer 3", "layer 2"}
    kept = {
        event.label.partition(" activations")[0]
        for event in timeline.allocations.get(0, ())
        if " activations" in event.label
    }
    assert kept <= {"head", "layer 3", "layer 2"}


def test_a_frozen_layer_by_hand() -> None:
    """Behind a trained layer: half of the matmuls' backward FLOPs, all of attention's, no saved input of a matrix."""
    model = load_transformer(SMALL)
    (kind,) = model.kinds
    batch = Batch(2, 32)
    whole, frozen = (layer_operations(kind, Batch(2, 32, adapters=own) if own else batch) for own in (None, FROZEN))
    sums = []
    for operations in (whole, frozen):
        kernels = [kernel for op in operations for kernel in op.backward]
        sums.append([sum(k.flops for k in kernels if isinstance(k, kind)) for kind in (Matmul, Attention)])
    assert sums[1][0] == sums[0][0] / 2
    assert sums[1][1] == sums[0][1]
    tokens, d, kv, f = 64, 64, 32, 192
    # Inputs of both norms with a float32 number per token; queries, keys, values, output and log-sum-exp (4 heads);
    # input of the activation (two halves).
    expected = (
        2 * tokens * (2 * d) + 4 * 2 * tokens + 2 * tokens * (2 * d + 2 * kv) + 4 * 4 * tokens + 2 * tokens * 2 * f
    )
    assert saved_bytes(frozen) == expected
    # A trained layer also keeps the inputs of its first matrices, the norms' outputs, and of the last.
    assert saved_bytes(whole) == expected + 2 * tokens * (2 * d + f)


def test_zero3_gathers_again_only_from_the_first_trained_layer_on() -> None:
    sent = exchanged(["layer 2", "head"], sharding="zero3")
    again = {name for name in sent if name.startswith("gather") and "backward" in name}
    # Layer 3 stays gathered from the forward pass.
    assert again == {"gather layer 2 backward 0"}
    scattered = {name for name in sent if "reduce" in name or "scatter" in name}
    assert all("layer 0" not in name and "layer 1" not in name and "layer 3" not in name for name in scattered)


def test_less_is_trained_in_less_time_and_memory() -> None:
    """Each further frozen part saves time and memory, and no FLOP of MFU is counted that is not computed."""
    trained: list[Any] = ["all", ["layers 1-3", "head"], ["layers 3-3", "head"], ["head"]]
    reports = [report(one) for one in trained]
    for more, less in pairwise(reports):
        assert less.step_time_s < more.step_time_s
        assert less.peak_memory_bytes < more.peak_memory_bytes
        assert less.mfu * less.step_time_s < more.mfu * more.step_time_s
    # The head alone: a third of the layers' FLOPs, and all of the head's.
    assert reports[-1].mfu * reports[-1].step_time_s > reports[0].mfu * reports[0].step_time_s / 3


def test_naming_every_part_is_training_all() -> None:
    parts = ["embedding", "layers 0-3", "head"]
    assert report(parts).to_dict() == report("all").to_dict()


@pytest.mark.parametrize(
    ("trainable", "keys", "message"),
    [
        (["tail"], {}, "got 'tail'; must be all, or a list of embedding, head, layer 3, layers 28-31"),
        ([], {}, "must be all, or a list of embedding"),
        (["layer 4"], {}, "training.trainable: got 'layer 4'; the layers are 0 to 3"),
        (["layers 3-1"], {}, "the layers are 0 to 3"),
        (["head"], {"lora": {"rank": 4}}, "got [head] beside adapters on a frozen model"),
        (["head"], {"parallelism": {"pp": 2}}, "beside a pipeline, which is not supported yet; write pp: 1"),
        (["head"], {"activation_checkpointing": "sqrt"}, "beside segments of sqrt"),
        (["head"], {"model": SMALL | {"tie_word_embeddings": True}}, "shares a table between embedding and head"),
    ],
)
def test_what_cannot_be_frozen_is_refused_in_one_line(trainable: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as told:
        load_scenario(data(trainable, **keys))
    assert message in str(told.value)


@pytest.mark.parametrize(
    "sharding", ["ddp", "zero1", "zero2", "zero3", {"strategy": "zero3", "reshard_after_forward": 2}]
)
@pytest.mark.parametrize(
    "keys",
    [
        {"activation_checkpointing": "full", "gradient_accumulation_steps": 2},
        {"parallelism": {"tp": 2}, "compile": True},
        {"framework": "megatron_core", "activation_checkpointing": "selective_op", "optimizer": "muon"},
    ],
)
@pytest.mark.parametrize("trainable", [["head"], ["layers 1-2"], ["embedding", "layer 0"]])
def test_both_engines_agree_with_frozen_parts(sharding: Any, keys: dict[str, Any], trainable: Any) -> None:
    drawn = accepted(data(trainable, 8, sharding=sharding, **keys))
    if drawn is None:
        pytest.skip("refused")
    simulated(drawn)


def test_the_head_of_a_list_of_layers() -> None:
    """Transfer learning with ResNet-50: the classifier's 2,049,000 parameters alone have gradients and states."""
    cluster = {"topology": "dgx_h100", "world_size": 8}
    training = {"model": "resnet50", "seq_len": 1, "micro_batch_size": 16, "sharding": "ddp"}
    whole, head = (
        simulate(load_scenario({"name": "t", "cluster": cluster, "training": training | more})).report
        for more in ({}, {"trainable": ["head"]})
    )
    assert isinstance(whole, TrainingReport)
    assert isinstance(head, TrainingReport)
    assert head.step_time_s < whole.step_time_s / 2
    assert head.peak_memory_bytes < 2 * 25_557_032 + 16 * 2_049_000 + 50e6
