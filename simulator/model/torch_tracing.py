"""Traces a PyTorch module as a list of layers: kernels, saved tensors and parameters, without a GPU and weights.

The module runs forward and backward with fake tensors, which have shapes and no numbers. Every operation of the two
passes becomes kernels: matmuls and convolutions by their sizes, attention as one kernel that keeps its scores on the
chip, everything else by the bytes that it reads and writes (torch_operations.py). Autograd tells which tensors it saves
(torch_recording.py). Micro-batches of different size give each number's fixed part and its part per sample
(recorded_layers.py).

PyTorch is imported by these modules alone, and only when they are called.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.errors import ScenarioError, one_line
from simulator.model.recorded_layers import SAMPLES, layers_of_recordings
from simulator.model.torch_recording import Recorder

if TYPE_CHECKING:
    from torch.nn import Module

    from simulator.model.layer_list import LayerList

NEEDS_TORCH: Final = (
    "tracing a module needs PyTorch: pip install 'cluster-training-simulator[torch]'; or list the layers in a file "
    "(docs/howto/own_network.md)"
)


def trace(
    module: Module,
    inputs: Sequence[Any] | Mapping[str, Any],
    name: str,
    units: Iterable[str] = (),
    dtype: str = "bfloat16",
) -> LayerList:
    """Return a PyTorch module as a list of layers.

    Parameters
    ----------
    module : torch.nn.Module
        The module in training mode; its output is the loss, or is taken as if a loss followed it.
    inputs : sequence or mapping
        Arguments of `forward` by place or name. The first dimension of the first tensor is the micro-batch; other
        tensors with an equal first dimension grow with it.
    units : iterable of str
        Names of the classes that become layers, which are gathered, recomputed and placed on stages as one. By default
        the children of lists and sequences of modules.
    dtype : str
        Dtype of parameters and activations in the trace. Tensors that the module itself converts keep theirs.

    Raises
    ------
    ScenarioError
        PyTorch is missing, or the module cannot be traced: what it did, in which line.
    """
    try:
        import torch
    except ImportError as error:
        raise ScenarioError(NEEDS_TORCH) from error
    working = getattr(torch, dtype)
    from torch._subclasses.fake_tensor import FakeTensorMode

    runs = []
    for samples in SAMPLES:
        with FakeTensorMode(allow_non_fake_inputs=True):
            recorder = Recorder(_fake(module, working), frozenset(units), working)
            batch = _batch(inputs, samples, working)
            try:
                recorder.run(batch)
            # A module may raise anything on tensors without numbers.
            except Exception as error:
                raise ScenarioError(one_line(f"{name}: cannot be traced: {_reason(error)}")) from error
        runs.append(recorder)
    tokens = _tokens(inputs)
    return layers_of_recordings(name, runs, tokens)


def _reason(error: Exception) -> str:
    """Return why a module cannot be traced, with the last line of the user's own code that ran."""
    import torch

    if isinstance(error, ScenarioError):
        return str(error)
    foreign = str(Path(torch.__file__).parent), str(Path(__file__).parent)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(foreign)]
    where = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    if "DataDependent" in type(error).__name__ or "DynamicOutputShape" in type(error).__name__:
        return f"{where}numbers in a tensor decide what is computed next, and a traced tensor has none"
    lines = str(error).splitlines() or [""]
    return f"{where}{type(error).__name__}: {lines[0]}"


def _fake(module: Module, dtype: Any) -> Module:
    """Return a copy of a module with the same structure and fake tensors, under a mode that makes these."""
    import torch

    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        fake_dtype = dtype if tensor.is_floating_point() else tensor.dtype
        empty = torch.empty(tensor.shape, dtype=fake_dtype)
        trained = isinstance(tensor, torch.nn.Parameter)
        memo[id(tensor)] = torch.nn.Parameter(empty, requires_grad=tensor.requires_grad) if trained else empty
    return copy.deepcopy(module, memo).train()


def _batch(
    inputs: Sequence[Any] | Mapping[str, Any], samples: int, dtype: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments of `forward` for a micro-batch of `samples` samples, by place and by name."""
    import torch

    by_name = dict(inputs) if isinstance(inputs, Mapping) else {}
    by_place = () if isinstance(inputs, Mapping) else tuple(inputs)
    tensors = [value_ for value_ in (*by_place, *by_name.values()) if isinstance(value_, torch.Tensor)]
    if not tensors or not tensors[0].dim():
        raise ScenarioError("inputs: must begin with a tensor whose first dimension is the micro-batch")
    samples_given = tensors[0].shape[0]

    def sized(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        grows = value.dim() > 0 and value.shape[0] == samples_given
        shape = (samples, *value.shape[1:]) if grows else value.shape
        return torch.empty(shape, dtype=dtype if value.is_floating_point() else value.dtype)

    return tuple(map(sized, by_place)), {key: sized(value) for key, value in by_name.items()}


def _tokens(inputs: Sequence[Any] | Mapping[str, Any]) -> int:
    """Return the tokens of a sample: the length of a sequence of whole numbers, 1 for other inputs."""
    import torch

    values = inputs.values() if isinstance(inputs, Mapping) else inputs
    first = next(value for value in values if isinstance(value, torch.Tensor))
    return int(first.shape[1]) if first.dim() == 2 and not first.is_floating_point() else 1
