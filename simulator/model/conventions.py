"""Memory formulas of papers and frameworks, under their own names, to compare with what a run really holds.

Rule: functions of numbers only; no model, no GPU. Each convention counts something else, and none is wrong. P is for
parameters, N for ranks that share them.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

_MASTER_AND_ADAM: Final = 12  # K of the ZeRO paper, section 3.1: fp32 parameter, momentum, variance
_HOST_FACTOR: Final = 1.5  # DeepSpeed's estimators, additional_buffer_factor


@dataclass(frozen=True, slots=True)
class ModelStates:
    """What a rank holds for the model itself, without activations [B].

    Attributes
    ----------
    parameters, gradients, optimizer : float
        The optimizer's part has the fp32 master parameters, where there are any.
    transient : float
        What is gathered for a while.
    host : float
        In the host's memory, of a whole node.
    """

    parameters: float
    gradients: float
    optimizer: float
    transient: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        """All on the GPU [B]."""
        return self.parameters + self.gradients + self.optimizer + self.transient


def paper(parameters: float, ranks: int, stage: int, optimizer_bytes: float = _MASTER_AND_ADAM) -> ModelStates:
    """Model states of the ZeRO paper: 2 P + 2 P + K P, of which each stage shares one more.

    Parameters
    ----------
    parameters : float
        P.
    ranks : int
        N.
    stage : {0, 1, 2, 3}
        0 shares nothing, 1 the optimizer's part, 2 gradients too, 3 parameters too.
    optimizer_bytes : float
        K, of a parameter [B].

    References
    ----------
    .. [1] Rajbhandari et al., "ZeRO", SC20, arXiv:1910.02054, figure 1 and table 1.

    Examples
    --------
    >>> [round(paper(7.5e9, 64, stage).total / 1e9, 1) for stage in (0, 1, 2, 3)]
    [120.0, 31.4, 16.6, 1.9]
    """
    _refuse(parameters, ranks, stage, (0, 1, 2, 3))
    share = 1 / ranks
    return ModelStates(
        parameters=2 * parameters * (share if stage == 3 else 1),
        gradients=2 * parameters * (share if stage >= 2 else 1),
        optimizer=optimizer_bytes * parameters * (share if stage >= 1 else 1),
    )


def deepspeed_zero2(
    parameters: float, ranks: int, *, ranks_per_node: int = 8, offload_optimizer: bool = False, older: bool = False
) -> ModelStates:
    """DeepSpeed's estimate for stage 2: 2 P + 18 P / N, the 18 with fp32 gradients beside the fp16 ones.

    Parameters
    ----------
    parameters, ranks
        P and N.
    ranks_per_node : int
        For the host's memory.
    offload_optimizer : bool
        2 P stay on the GPU.
    older : bool
        4 P + 16 P / N: before June 2024, and in its documentation's examples still.

    References
    ----------
    .. [1] DeepSpeed, runtime/zero/stage_1_and_2.py, estimate_zero2_model_states_mem_needs.
    """
    _refuse(parameters, ranks, 2, (2,))
    if offload_optimizer:
        host = parameters * max(4 * ranks, 16) * _HOST_FACTOR
        return ModelStates(2 * parameters, 0.0, 0.0, host=host)
    host = parameters * 4 * min(ranks, ranks_per_node) * _HOST_FACTOR
    gradients = 2 * parameters + 4 * parameters / ranks if older else 6 * parameters / ranks
    return ModelStates(2 * parameters, gradients, 12 * parameters / ranks, host=host)


def deepspeed_zero3(
    parameters: float,
    ranks: int,
    largest_layer: float,
    *,
    ranks_per_node: int = 8,
    offload_optimizer: bool = False,
    offload_parameters: bool = False,
    zero_init: bool = True,
) -> ModelStates:
    """DeepSpeed's estimate for stage 3: 18 P / N, and 4 bytes of each parameter of the largest layer, gathered.

    Parameters
    ----------
    parameters, ranks
        P and N.
    largest_layer : float
        Parameters of the largest layer.
    ranks_per_node : int
        For the host's memory.
    offload_optimizer, offload_parameters : bool
        The second only with the first.
    zero_init : bool
        Whether the model is shared out while it is built; else every rank first builds all of it on the host.

    Raises
    ------
    ValueError
        Parameters offloaded, but not the optimizer.

    References
    ----------
    .. [1] DeepSpeed, runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs.
    """
    _refuse(parameters, ranks, 3, (3,))
    if offload_parameters and not offload_optimizer:
        raise ValueError("offload_parameters: got True; only together with offload_optimizer")
    nodes = math.ceil(ranks / ranks_per_node)
    local = min(ranks, ranks_per_node)
    whole = 4 * parameters * local
    transient = 4 * largest_layer
    if not offload_optimizer:
        host = (4 * largest_layer * local if zero_init else whole) * _HOST_FACTOR
        share = parameters / ranks
        return ModelStates(2 * share, 4 * share, 12 * share, transient, host)
    shared = (18 if offload_parameters else 16) * parameters / nodes
    host = (shared if zero_init else max(whole, shared)) * _HOST_FACTOR
    return ModelStates(0.0 if offload_parameters else 2 * parameters / ranks, 0.0, 0.0, transient, host)


def fsdp(
    parameters: float,
    ranks: int,
    largest_unit: float,
    *,
    reshard_after_forward: bool = True,
    prefetch: int = 1,
    gradient_bytes: float = 2,
) -> ModelStates:
    """PyTorch FSDP: fp32 shards, (4 + 4 + 8) P / N, and units gathered in bf16 for a while.

    Parameters
    ----------
    parameters, ranks
        P and N.
    largest_unit : float
        Parameters of the largest unit (usually a layer).
    reshard_after_forward : bool
        False is SHARD_GRAD_OP: all of the parameters stay gathered between forward and backward pass, not longer.
    prefetch : int
        Units gathered ahead of the one at work.
    gradient_bytes : float
        Of an element of the gradient of the unit at work, before it is reduced and scattered [B].

    References
    ----------
    .. [1] Zhao et al., "PyTorch FSDP", VLDB 2023, arXiv:2304.11277.
    """
    _refuse(parameters, ranks, 3, (3,))
    share = parameters / ranks
    gathered = min(parameters, (1 + prefetch) * largest_unit) if reshard_after_forward else parameters
    return ModelStates(4 * share, 4 * share, 8 * share, 2 * gathered + gradient_bytes * largest_unit)


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """What all layers keep [B].

    Attributes
    ----------
    after_forward : float
        Between forward and backward pass.
    backward_peak : float
        With what is computed again for the layer (or segment) at work; without kernels' own transients.
    """

    after_forward: float
    backward_peak: float


Policy = Literal["none", "full", "sqrt", "every", "attention", "listed"]


def live_bytes(
    policy: Policy,
    num_layers: int,
    boundary: float,
    layer: float,
    *,
    quadratic: float = 0.0,
    every: int = 1,
    listed: Collection[int] = (),
) -> LiveBytes:
    """Count what equal layers keep under a checkpointing policy.

    Parameters
    ----------
    policy : {"none", "full", "sqrt", "every", "attention", "listed"}
        Which layers keep their input alone: none; all; all, in about sqrt(L) segments that keep one input each (Chen et
        al., 2016); each `every`-th from the first; all keep everything but what is quadratic in the sequence
        (Korthikanti et al., 2023); those of `listed`.
    num_layers : int
        L.
    boundary : float
        A layer's input [B]; b s d p.
    layer : float
        All that a layer saves, its input in it [B].
    quadratic : float
        The part of it that grows with the square of the sequence [B].

    Returns
    -------
    LiveBytes
        A layer's input counts once: what is kept of it is what it is computed again from.

    Examples
    --------
    >>> live_bytes("full", num_layers=24, boundary=1, layer=17)
    LiveBytes(after_forward=24, backward_peak=40)
    """
    if num_layers < 1 or every < 1:
        raise ValueError(f"num_layers and every: got {num_layers} and {every}; must be at least 1")
    if not 0 <= boundary <= layer or not 0 <= quadratic <= layer:
        raise ValueError(f"boundary and quadratic: got {boundary} and {quadratic}; must be from 0 to layer {layer}")
    if policy == "sqrt":
        return _segments(num_layers, boundary, layer)
    if policy == "attention":
        return _peak([layer - quadratic] * num_layers, layer)
    if policy == "listed" and not set(listed) <= set(range(num_layers)):
        raise ValueError(f"listed: got {sorted(listed)}; must be layers 0 .. {num_layers - 1}")
    chosen: dict[str, Collection[int]] = {
        "none": (), "full": range(num_layers), "every": range(0, num_layers, every), "listed": set(listed),
    }  # fmt: skip
    if policy not in chosen:
        raise ValueError(f"policy: got {policy!r}; must be one of none, full, sqrt, every, attention, listed")
    return _peak([boundary if i in chosen[policy] else layer for i in range(num_layers)], layer)


def _peak(kept: list[float], layer: float) -> LiveBytes:
    """Walk backward: the layer at work is whole, those before it as they were left, those behind it gone."""
    # Sums only grow, so the last layer is the worst.
    return LiveBytes(sum(kept), sum(kept[:-1]) + layer)


def _segments(num_layers: int, boundary: float, layer: float) -> LiveBytes:
    count = max(1, round(math.sqrt(num_layers)))
    sizes = [num_layers // count + (i < num_layers % count) for i in range(count)]
    return LiveBytes(count * boundary, max(i * boundary + size * layer for i, size in enumerate(sizes)))


def _refuse(parameters: float, ranks: int, stage: int, stages: tuple[int, ...]) -> None:
    if parameters < 0 or ranks < 1:
        raise ValueError(f"parameters and ranks: got {parameters} and {ranks}; must be at least 0 and 1")
    if stage not in stages:
        raise ValueError(f"stage: got {stage}; must be one of {', '.join(map(str, stages))}")
