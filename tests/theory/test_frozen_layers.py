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
from simulator.model.model import layer_operations as model_operations
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

GPT2: Final = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 96}


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


ATTENTION: Final = frozenset({"qkv.weight", "proj.weight"})


def test_attention_alone_by_hand() -> None:
    """Weight gradients of two matrices of four, and the input of the first; the second's is saved anyway."""
    model = load_transformer(SMALL)
    (kind,) = model.kinds
    frozen, partly = (
        layer_operations(kind, Batch(2, 32, adapters=FROZEN, trained=names)) for names in (frozenset[str](), ATTENTION)
    )
    tokens, d, kv = 64, 64, 32
    weights = [one for op in partly for one in op.backward if one.of_weights]
    assert [one.flops for one in weights] == [2 * tokens * d * (d + 2 * kv), 2 * tokens * d * d]
    assert saved_bytes(partly) == saved_bytes(frozen) + 2 * tokens * d


def test_nothing_before_the_first_trained_matrix_has_a_gradient() -> None:
    """Only the feed-forward block of the first trained layer: no operation before its first matrix runs backward."""
    model = load_transformer(SMALL)
    (kind,) = model.kinds
    names = frozenset({"up.weight", "down.weight"})
    whole, cut = (
        model_operations(kind, Batch(2, 32, adapters=FROZEN, trained=names, begins=begins)) for begins in (False, True)
    )
    at = [op.name for op in cut].index("up")
    assert cut[at:] == whole[at:]
    assert all(op.backward == op.saved == () for op in cut[:at])
    assert all(op.forward == other.forward for op, other in zip(cut, whole, strict=True))


def test_biases_alone_have_a_sum_over_tokens_and_no_matmul_of_weights() -> None:
    """BitFit: each matrix reads its output's gradient of T x n numbers and writes n; its input is not saved."""
    gpt2 = load_transformer(GPT2)
    names = frozenset(f"{name}.bias" for name in ("qkv", "proj", "up", "down"))
    (kind,) = gpt2.kinds
    partly, frozen = (
        layer_operations(kind, Batch(2, 32, adapters=FROZEN, trained=own)) for own in (names, frozenset[str]())
    )
    sums = [one for op in partly for one in op.backward if one.of_weights]
    assert [one.nbytes(2) for one in sums] == [2 * (64 + 1) * n for n in (3 * 64, 64, 4 * 64, 64)]
    assert saved_bytes(partly) == saved_bytes(frozen)


def test_a_pattern_has_the_states_and_the_exchange_of_its_parameters() -> None:
    """Four layers of attention: 16,384 parameters each, 12 bytes of states, and a ring's 2 (n - 1) float32 each."""
    trained, ranks = 4 * (64 * (64 + 2 * 32) + 64 * 64), 4
    patterns = ["layers.*.attention.*"]
    assert sum(exchanged(patterns).values()) == 2 * (ranks - 1) * 4 * trained
    drawn = accepted(data(patterns))
    assert drawn is not None
    peak = simulated(drawn)[0].peak
    assert peak is not None
    assert dict(peak.by_category)["optimizer"] == 12 * trained


def test_patterns_and_parts_that_name_the_same_are_the_same() -> None:
    assert report(["layers.2", "head"]).to_dict() == report(["layer 2", "head"]).to_dict()
    assert report(["layers.[23].*", "head.*"]).to_dict() == report(["layers 2-3", "head"]).to_dict()
    assert report(["layers.*", "embedding", "head"]).to_dict() == report("all").to_dict()
    whole, partly, less = (report(one) for one in ("all", ["layers.*.attention.*"], ["layers.*.attention.proj.*"]))
    assert whole.step_time_s > partly.step_time_s > less.step_time_s
    assert whole.peak_memory_bytes > partly.peak_memory_bytes > less.peak_memory_bytes
    # No FLOP of MFU is counted that is not computed.
    assert whole.mfu * whole.step_time_s > partly.mfu * partly.step_time_s > less.mfu * less.step_time_s


@pytest.mark.parametrize("tied", [False, True])
def test_a_table_alone_has_the_gradients_of_both_its_uses(tied: bool) -> None:
    """Of a tied table the head's matmul has a weight gradient too, although nothing else of the head is trained."""
    parts = ["embedding.token", "head.norm.bias"] if tied else ["embedding.token"]
    drawn = accepted(data(parts, model=GPT2 | {"tie_word_embeddings": tied}))
    assert drawn is not None
    timeline, _ = simulated(drawn)
    states = dict(timeline.peak.by_category)["optimizer"] if timeline.peak else 0
    assert states == 12 * (96 * 64 + (64 if tied else 0))


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
        (["layers.*.self_attn.*"], {}, "matches no parameter of inline; did you mean 'layers.*.attention.*'"),
        (["layers.*.atention.qkv.weight"], {}, "did you mean 'layers.*.attention.qkv.weight'"),
        (["layers.7"], {}, "no parameter of inline; some of layers 0 to 3 are layers.*.norm1.weight, layers.*"),
        (
            ["layer 0"],
            {
                "model": {"input": [64], "layers": [{"repeat": 3, "layers": ["dropout"]}, {"linear": [64, 8]}]},
                "seq_len": 1,
            },
            "got 'layer 0', which has no parameters in inline",
        ),
        (["head"], {"lora": {"rank": 4}}, "got [head] beside adapters on a frozen model"),
        (["head"], {"activation_checkpointing": "sqrt"}, "beside segments of sqrt"),
        (["head"], {"model": SMALL | {"tie_word_embeddings": True}}, "shares a table between embedding and head"),
    ],
)
def test_what_cannot_be_frozen_is_refused_in_one_line(trainable: Any, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as told:
        load_scenario(data(trainable, **keys))
    assert message in str(told.value)


SHARDINGS = ["ddp", "zero1", "zero2", "zero3", {"strategy": "zero3", "reshard_after_forward": 2}]
KEYS: list[dict[str, Any]] = [
    {"activation_checkpointing": "full", "gradient_accumulation_steps": 2},
    {"parallelism": {"tp": 2}, "compile": True},
    {"framework": "megatron_core", "activation_checkpointing": "selective_op", "optimizer": "muon"},
]
TRAINED = [["head"], ["layers 1-2"], ["embedding", "layer 0"], ["layers.[12].feed_forward.*", "*.norm2.*"]]


@pytest.mark.one_of(3)
@pytest.mark.parametrize("trainable", TRAINED)
@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize("sharding", SHARDINGS)
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


@pytest.mark.parametrize("framework", ["megatron_core", "megatron_local", "nemo"])
@pytest.mark.parametrize("sharding", ["ddp", "zero1"])
def test_a_frozen_shared_table_has_no_placeholder_of_a_gradient(framework: str, sharding: str) -> None:
    """These frameworks hold an array for the gradient of each shape of trained matrix: of one layer, no more."""
    keys = {"model": GPT2, "framework": framework, "sharding": sharding, "precision": "bf16"}
    layer, both = (report(parts, **keys) for parts in (["layer 0"], ["layer 0", "embedding", "head"]))
    assert 0 < layer.peak_memory_bytes < both.peak_memory_bytes


def test_the_norms_of_a_model_with_a_shared_table_can_be_trained_alone() -> None:
    """2 layers with two norms, and the last norm: 64 weights and 64 biases each, and a ring's 2 (n - 1) sums."""
    sent = exchanged(["*norm*"], model=GPT2, algorithm="ring")
    assert sum(sent.values()) == 5 * 128 * 4 * 2 * 3


@pytest.mark.parametrize("parts", [["embedding"], ["head"]])
def test_a_shared_table_is_trained_by_both_names(parts: list[str]) -> None:
    with pytest.raises(ScenarioError, match="inline shares a table between embedding and head; name both"):
        report(parts, model=GPT2)
