"""Memory formulas of papers and frameworks, under their names, for comparison with a run's real memory.

Functions of numbers only: no model, no GPU. Each convention counts different things, and none is wrong. P stands for
parameters, N for the ranks that share them.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

# K of the ZeRO paper, section 3.1: fp32 parameter, momentum and variance [B].
_MASTER_AND_ADAM: Final = 12
# DeepSpeed's estimators, additional_buffer_factor.
_HOST_FACTOR: Final = 1.5


@dataclass(frozen=True, slots=True)
class ModelStates:
    """Memory of the model states on a rank, without activations [B]."""

    # `parameters`, `gradients`, `optimizer`: Sharded or whole; the optimizer's part includes fp32 master weights, if
    # any [B].
    parameters: float
    gradients: float
    optimizer: float
    transient: float = 0.0  # parameters gathered for a while [B]
    host: float = 0.0  # memory of a node's host [B]

    @property
    def total(self) -> float:
        """Model states on the GPU together: parameters, gradients, optimizer, gathered parameters [B]."""
        return self.parameters + self.gradients + self.optimizer + self.transient


def paper(parameters: float, ranks: int, stage: int, optimizer_bytes: float = _MASTER_AND_ADAM) -> ModelStates:
    """Return the bytes of model states on a rank by the ZeRO paper: 2 P + 2 P + K P, with a further term sharded in
    each stage.

    Parameters
    ----------
    parameters : float
        P.
    ranks : int
        N.
    stage : {0, 1, 2, 3}
        0 shards nothing, 1 the optimizer states, 2 also gradients, 3 also parameters.
    optimizer_bytes : float
        K, per parameter [B].

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
        # fp16 weights and fp16 gradients: 2 bytes each.
        parameters=2 * parameters * (share if stage == 3 else 1),
        gradients=2 * parameters * (share if stage >= 2 else 1),
        optimizer=optimizer_bytes * parameters * (share if stage >= 1 else 1),
    )


def deepspeed_zero2(
    parameters: float, ranks: int, *, ranks_per_node: int = 8, offload_optimizer: bool = False, older: bool = False
) -> ModelStates:
    """Return DeepSpeed's estimate of the model states on a rank for ZeRO-2: 2 P + 18 P / N bytes, with gradients in
    fp16 and fp32.

    Parameters
    ----------
    parameters, ranks
        P and N.
    ranks_per_node : int
        Ranks that share a host's memory.
    offload_optimizer : bool
        If True, only 2 P stay on the GPU.
    older : bool
        If True, 4 P + 16 P / N, the estimate before June 2024 (DeepSpeed's documentation still uses it in examples).

    References
    ----------
    .. [1] DeepSpeed, runtime/zero/stage_1_and_2.py, estimate_zero2_model_states_mem_needs.

    Examples
    --------
    >>> deepspeed_zero2(7.5e9, 64).total
    17109375000.0
    """
    _refuse(parameters, ranks, 2, (2,))
    if offload_optimizer:
        host = parameters * max(4 * ranks, 16) * _HOST_FACTOR
        return ModelStates(2 * parameters, 0.0, 0.0, host=host)
    host = parameters * 4 * min(ranks, ranks_per_node) * _HOST_FACTOR
    # Newer estimates shard fp16 (2) and fp32 (4) gradients; the older estimate kept fp16 gradients whole.
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
    """Return DeepSpeed's estimate of the model states on a rank for ZeRO-3: 18 P / N, and 4 bytes per parameter of the
    largest layer.

    Parameters
    ----------
    parameters, ranks
        P and N.
    largest_layer : float
        Parameters of the largest layer.
    ranks_per_node : int
        Ranks that share a host's memory.
    offload_optimizer, offload_parameters : bool
        Parts moved to the host; parameters only together with the optimizer.
    zero_init : bool
        If True, the model is sharded while it is built; if False, every rank first builds the whole model on the host.

    Raises
    ------
    ValueError
        Parameters are offloaded without the optimizer.

    References
    ----------
    .. [1] DeepSpeed, runtime/zero/stage3.py, estimate_zero3_model_states_mem_needs.

    Examples
    --------
    >>> deepspeed_zero3(7.5e9, 64, 0.0).total
    2109375000.0
    """
    _refuse(parameters, ranks, 3, (3,))
    if offload_parameters and not offload_optimizer:
        raise ValueError("offload_parameters: got True; only together with offload_optimizer")
    nodes = math.ceil(ranks / ranks_per_node)
    local = min(ranks, ranks_per_node)
    # Without zero_init each local rank builds an fp32 copy.
    copies = 4 * parameters * local
    transient = 4 * largest_layer
    if not offload_optimizer:
        host = (4 * largest_layer * local if zero_init else copies) * _HOST_FACTOR
        share = parameters / ranks
        return ModelStates(2 * share, 4 * share, 12 * share, transient, host)
    shared = (18 if offload_parameters else 16) * parameters / nodes
    host = (shared if zero_init else max(copies, shared)) * _HOST_FACTOR
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
    """Return the bytes of model states on a rank under PyTorch FSDP: fp32 shards, (4 + 4 + 8) P / N, and units gathered
    in bf16.

    Parameters
    ----------
    parameters, ranks
        P and N.
    largest_unit : float
        Parameters of the largest unit (usually a layer).
    reshard_after_forward : bool
        False is SHARD_GRAD_OP: every parameter stays gathered from the forward to the backward pass, not longer.
    prefetch : int
        Units gathered ahead of the current unit.
    gradient_bytes : float
        Bytes per gradient element of the current unit, before the reduce-scatter [B].

    References
    ----------
    .. [1] Zhao et al., "PyTorch FSDP", VLDB 2023, arXiv:2304.11277.

    Examples
    --------
    >>> fsdp(7.5e9, 64, 2e8).total
    3075000000.0
    """
    _refuse(parameters, ranks, 3, (3,))
    share = parameters / ranks
    # At most the current unit and the prefetched units are whole at a time.
    gathered = min(parameters, (1 + prefetch) * largest_unit) if reshard_after_forward else parameters
    # fp32 weight, fp32 gradient, and Adam's two fp32 moments; the transient part is bf16 weights and a unit's gradient.
    return ModelStates(4 * share, 4 * share, 8 * share, 2 * gathered + gradient_bytes * largest_unit)


@dataclass(frozen=True, slots=True)
class LiveBytes:
    """Bytes saved for the backward pass by the layers together, at two moments in a step [B]."""

    after_forward: float  # between forward and backward pass [B]
    # Including the recomputed tensors of the current layer (or segment), without kernels' temporary buffers [B]
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
    """Count the bytes that equal layers save under a checkpointing policy.

    Parameters
    ----------
    policy : {"none", "full", "sqrt", "every", "attention", "listed"}
        Layers that save only their input: "none"; "full": each; "sqrt": each, in about sqrt(L) segments with a single
        saved input (Chen et al., 2016); "every": each `every`-th from the first; "attention": no layer, but tensors
        quadratic in the sequence are dropped (Korthikanti et al., 2023); "listed": the layers of `listed`.
    num_layers : int
        L.
    boundary : float
        A layer's input, b s d p [B].
    layer : float
        Everything that a layer saves, including its input [B].
    quadratic : float
        Part of `layer` that grows with the square of the sequence [B].

    Returns
    -------
    LiveBytes
        A recomputed layer's input counts once: it is both the saved tensor and a part of the recomputed ones.

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
    recomputed: dict[str, Collection[int]] = {
        "none": (), "full": range(num_layers), "every": range(0, num_layers, every), "listed": set(listed),
    }  # fmt: skip
    if policy not in recomputed:
        raise ValueError(f"policy: got {policy!r}; must be one of none, full, sqrt, every, attention, listed")
    return _peak([boundary if i in recomputed[policy] else layer for i in range(num_layers)], layer)


def _peak(nbytes: list[float], layer: float) -> LiveBytes:
    """Return the saved bytes after the forward pass and at the backward peak, from layers' saved and whole bytes."""
    # In the backward pass the current layer is whole, earlier layers are as kept, later layers are freed. The sum
    # shrinks from layer to layer, so the last layer is the peak.
    return LiveBytes(sum(nbytes), sum(nbytes[:-1]) + layer)


def _segments(num_layers: int, boundary: float, layer: float) -> LiveBytes:
    """Return the saved bytes under "sqrt": segments of about sqrt(L) layers, each with a single saved input."""
    count = max(1, round(math.sqrt(num_layers)))
    # With 10 layers: 3 segments of 4, 3 and 3 layers.
    sizes = [num_layers // count + (i < num_layers % count) for i in range(count)]
    # While a segment is recomputed, earlier segments hold only their input.
    return LiveBytes(count * boundary, max(i * boundary + size * layer for i, size in enumerate(sizes)))


def _refuse(parameters: float, ranks: int, stage: int, stages: tuple[int, ...]) -> None:
    """Raise ValueError for a negative number of parameters, fewer than 1 rank, or a ZeRO stage not in `stages`."""
    if parameters < 0 or ranks < 1:
        raise ValueError(f"parameters and ranks: got {parameters} and {ranks}; must be at least 0 and 1")
    if stage not in stages:
        raise ValueError(f"stage: got {stage}; must be one of {', '.join(map(str, stages))}")
