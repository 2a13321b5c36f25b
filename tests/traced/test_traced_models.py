"""Models traced from PyTorch modules: recorded files, and new traces where PyTorch is installed.

The files beside this test were written by `simulator.model_from_torch` from the modules in networks.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from simulator.api.tracing import model_from_torch
from simulator.basics.errors import ScenarioError
from simulator.model.layer_list import LayerList
from simulator.model.load import load_model
from simulator.model.model import first_operations, last_operations, layer_operations, total
from simulator.model.operation import Batch, saved_bytes
from simulator.model.torch_tracing import _tokens
from simulator.model.traced_file import written_layer_list
from simulator.scenario.load import load_scenario
from tests.traced.networks import NETWORKS

HERE: Final = Path(__file__).parent
# Parameters and multiply-adds of a sample, by hand or as published.
FACTS: Final = {
    "resnet50": (25_557_032, 4.089184256e9),
    "vit_b": (86_567_656, 17.563828224e9),
    # Three blocks of two 3 x 3 convolutions, a matrix of the time step and two shortcuts of 1 x 1, four further
    # convolutions, and group norms.
    "unet": (
        (64 * 64 * 9 + 64) * 2 + (64 * 128 * 9 + 128) + (128 * 128 * 9 + 128) + (128 * 64 * 9 + 64)
        + (64 * 64 * 9 + 64) + 257 * (64 + 128 + 64) + (64 * 128 + 128) + (128 * 64 + 64) + (4 * 64 * 9 + 64)
        + (64 * 64 * 9 + 64) + (128 * 64 * 4 + 64) + (64 * 4 * 9 + 4) + 2 * (2 * 64 + 64 + 128 + 128 + 64),
        64 * 64 * (9 * (4 * 64 + 64 * 64 * 2 + 128 * 64 + 64 * 64 + 64 * 4) + 128 * 64)
        + 32 * 32 * (9 * (64 * 64 + 64 * 128 + 128 * 128) + 64 * 128 + 4 * 128 * 64) + 256 * 256,
    ),
    "dlrm": (
        64 * 21_500 + 14 * 512 + 513 * 64 + 71 * 256 + 257,
        13 * 512 + 512 * 64 + 4 * 64 * 4 + 70 * 256 + 256,
    ),
}  # fmt: skip
LLAMA: Final = {
    "model_type": "llama", "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 4, "intermediate_size": 2816, "vocab_size": 8192, "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}  # fmt: skip


def recorded(name: str) -> LayerList:
    """The recorded trace of a network."""
    model = load_model(HERE / f"{name}.json")
    assert isinstance(model, LayerList)
    return model


@pytest.mark.parametrize("name", FACTS)
def test_a_recorded_trace_has_the_parameters_and_multiplications_of_its_network(name: str) -> None:
    parameters, multiplications = FACTS[name]
    assert total(recorded(name)) == parameters
    assert recorded(name).forward_flops_per_sample / 2 == multiplications
    assert recorded(name).unknown == ()


def test_the_traced_llama_is_the_built_in_one() -> None:
    """Parameters, FLOPs and saved bytes of a Llama with fused kernels, traced and by this package's own formulas."""
    counted = []
    for model in (recorded("llama"), load_model(LLAMA)):
        for sequences in (1, 3):
            batch = Batch(sequences, 1024)
            layers = [layer_operations(kind, batch) for kind, own in model.kinds.items() for _ in own]
            parts = [first_operations(model, batch), *layers, last_operations(model, batch)]
            flops = sum(kernel.flops for part in parts for op in part for kernel in op.forward)
            counted.append((total(model), flops, sum(map(saved_bytes, parts))))
    traced, own = counted[:2], counted[2:]
    for one, other in zip(traced, own, strict=True):
        assert one[0] == other[0]
        assert one[1] == other[1]
        assert one[2] == pytest.approx(other[2], rel=0.01)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_file_is_read_as_it_was_written(name: str) -> None:
    text = (HERE / f"{name}.json").read_text()
    assert written_layer_list(recorded(name)) == text


FAULTS: Final = [
    (("format",), "layer list 2", "format: got 'layer list 2'; must be 'layer list 1'"),
    (("first",), 99, "first: got 99; must be the number of a kind, 0 to"),
    (("layers",), [], "layers: must name at least one layer"),
    (("layers",), ["a"], "layers.0: got 'a'; must be the number of a kind"),
    (("tokens",), 0, "tokens: got 0; must be a whole number of at least 1"),
    (("unknown",), "x", "unknown: must be a list of names"),
    (("kinds",), 3, "kinds: must be a list"),
    (("kinds", 1, "parameters"), [["w", [4, -1], True]], "kinds.1.parameters.0: must be [name, shape, trained]"),
    (("kinds", 1, "operations", 0), 5, "kinds.1.operations.0: must be a mapping"),
    (
        ("kinds", 1, "operations", 0, "forward"),
        [{"mat": 1}],
        "must have one of the keys matmul, attention, elementwise",
    ),
    (("kinds", 1, "operations", 0, "saved"), [["a"]], "must be [name, size, source]"),
    (
        ("kinds", 1, "operations", 0, "output"),
        {"elements": [1, 2, 3]},
        "must be a whole number, or [fixed, per sample]",
    ),
    (("kinds", 1, "operations", 0, "output"), {"elements": 1e300}, "must be a whole number, or [fixed, per sample]"),
]


@pytest.mark.parametrize(("key", "value", "message"), FAULTS, ids=[message for _, _, message in FAULTS])
def test_a_damaged_file_is_refused_in_one_line(key: Any, value: Any, message: str) -> None:
    data = json.loads((HERE / "vit_b.json").read_text())
    place: Any = data
    for step in key[:-1]:
        place = place[step]
    place[key[-1]] = value
    with pytest.raises(ScenarioError) as told:
        load_model(data)
    assert any(message in line and len(line) < 300 for line in str(told.value).splitlines())


def test_operations_without_a_cost_are_told_when_a_scenario_is_read() -> None:
    data = json.loads((HERE / "vit_b.json").read_text()) | {"unknown": ["my_kernel", "other"]}
    cluster = {"topology": "dgx_h100", "world_size": 8}
    scenario = load_scenario({"name": "told", "cluster": cluster, "training": {"model": data, "seq_len": 1}})
    assert any("no cost of their own" in line and "my_kernel, other" in line for line in scenario.warnings)


def test_tracing_without_pytorch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(ScenarioError, match=r"pip install 'cluster-training-simulator\[torch\]'"):
        model_from_torch(None, [])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("shape", "whole", "tokens"),
    [((4, 128), True, 128), ((4, 128), False, 1), ((4,), True, 1), ((4, 3, 224, 224), False, 1)],
)
def test_a_sample_has_the_tokens_of_a_sequence_of_whole_numbers(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], whole: bool, tokens: int
) -> None:
    """The first tensor decides; 128 real numbers are the features of one sample."""

    class Tensor:
        def __init__(self, *sizes: int, floating: bool) -> None:
            self.shape, self.floating = sizes, floating

        def dim(self) -> int:
            return len(self.shape)

        def is_floating_point(self) -> bool:
            return self.floating

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Tensor))
    inputs = ["no tensor", Tensor(*shape, floating=not whole), Tensor(4, 7, floating=False)]
    assert _tokens(inputs) == _tokens(dict(enumerate(inputs))) == tokens


@pytest.mark.parametrize("name", NETWORKS)
def test_a_new_trace_is_the_recorded_one(name: str) -> None:
    """Only where PyTorch is installed: the operations' names may differ between its versions, the counts may not."""
    pytest.importorskip("torch")
    module, inputs = NETWORKS[name]()
    made = load_model(model_from_torch(module, inputs, name=name))
    other = recorded(name)
    assert isinstance(made, LayerList)
    assert total(made) == total(other)
    assert made.forward_flops_per_sample == other.forward_flops_per_sample
    assert _saved(made) == _saved(other)


def test_a_module_whose_path_depends_on_numbers_is_refused_with_its_line() -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            y = self.linear(x)
            return y if y.sum() > 0 else -y

    with pytest.raises(ScenarioError, match=r"test_traced_models.py:\d+: numbers in a tensor decide"):
        model_from_torch(Net(), [torch.empty(2, 4)])


def _saved(model: LayerList) -> int:
    """Bytes that a sample's layers save."""
    batch = Batch(1, model.tokens)
    layers = (model.first, *model.layers, model.last)
    return sum(saved_bytes(tuple(one.of(batch) for one in layer.operations)) for layer in layers)
