"""Reads a PyTorch module as a model for a scenario: the contents of a file that needs no PyTorch later."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.basics.atomic_files import write_atomically
from simulator.model.torch_tracing import trace
from simulator.model.traced_file import written_layer_list

if TYPE_CHECKING:
    from torch.nn import Module


def model_from_torch(
    module: Module,
    inputs: Sequence[Any] | Mapping[str, Any],
    *,
    name: str | None = None,
    units: Iterable[str] = (),
    out: str | Path | None = None,
) -> dict[str, Any]:
    """Return a PyTorch module as a model for `training_scenario(model=...)`, traced without a GPU and without weights.

    Parameters
    ----------
    module : torch.nn.Module
        The module. If its output is the loss, the loss is part of the model.
    inputs : sequence or mapping
        Arguments of the module's `forward`, by place or by name. The first dimension of the first tensor is the
        micro-batch; tensors on the meta device will do.
    name : str, optional
        Name of the model; by default the class of the module.
    units : iterable of str
        Classes whose instances are layers: gathered by FSDP, recomputed, and placed on pipeline stages as one. By
        default the members of lists and sequences of modules.
    out : path, optional
        File to write, which can be named as `training.model`.

    Returns
    -------
    dict
        The model's kinds of layers with parameters, kernels and saved tensors. The key `unknown` names operations that
        have no cost of their own and count by the bytes that they read and write.

    Raises
    ------
    ScenarioError
        PyTorch is missing, or the module cannot be traced; the message names the line.

    Examples
    --------
    A network of two matrices::

        net = torch.nn.Sequential(torch.nn.Linear(784, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10))
        model = model_from_torch(net, [torch.empty(1, 784)], name="mlp")
        run = simulate(training_scenario(topology="dgx_h100", world_size=8, model=model, seq_len=1))
    """
    text = written_layer_list(trace(module, inputs, name or type(module).__name__, units))
    if out is not None:
        write_atomically(Path(out), text)
    return dict(json.loads(text))
