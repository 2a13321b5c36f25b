"""Traces a PyTorch module as a list of layers: kernels, saved tensors and parameters, without a GPU and weights.

The module runs forward and backward with fake tensors, which have shapes and no numbers. Every operation of the two
passes becomes kernels: matmuls and convolutions by their sizes, attention as one kernel that keeps its scores
on the chip, everything else by the bytes that it reads and writes. Autograd tells which tensors it saves. Two micro-
batches of different size give each number's fixed part and its part per sample, and a third one checks both.

PyTorch is imported by this module alone, and only when it is called.
"""

from __future__ import annotations

import copy
import traceback
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from simulator.basics.errors import ScenarioError, one_line
from simulator.model.convolution import Convolution
from simulator.model.layer_list import (
    Amount,
    AttentionCounts,
    Count,
    ElementwiseCounts,
    KernelCounts,
    Layer,
    LayerList,
    LayerOperation,
    MatmulCounts,
    SavedTensor,
)
from simulator.model.layer_types import BATCH_NORM_PASSES
from simulator.model.parameters import Parameter

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

# Micro-batches that are traced: the first two give the numbers per sample, the third checks that they grow evenly.
# Batches of one sample take other paths through some modules.
_SAMPLES: Final = (2, 3, 5)
# Operations that HBM limits, by the beginning of their names; operations that PyTorch marks as pointwise need no name.
_MEMORY_BOUND: Final = (
    "_adaptive_avg_pool", "_embedding_bag", "_fused_rms_norm", "_log_softmax", "_native_batch_norm", "_softmax",
    "_to_copy", "adaptive_", "all", "amax", "amin", "any", "arange", "argmax", "argmin", "argsort", "avg_pool",
    "batch_norm", "bernoulli", "binary_cross_entropy", "bincount", "cat", "clone", "col2im", "constant_pad",
    "convert", "copy", "count_nonzero", "cross_entropy_loss", "cummax", "cumprod", "cumsum", "diagonal", "dropout",
    "embedding", "eye", "fill", "flip", "full", "gather", "grid_sampler", "group_norm", "hardsigmoid", "hardswish",
    "hardtanh", "huber_loss", "im2col", "index", "kthvalue", "layer_norm", "lift_fresh", "linspace", "log_softmax",
    "logcumsumexp", "logsumexp", "masked", "max", "mean", "min", "mse_loss", "multinomial", "native_batch_norm",
    "native_dropout", "native_group_norm", "native_layer_norm", "new_full", "new_ones", "new_zeros", "nll_loss",
    "norm", "normal", "one_hot", "ones", "pixel_shuffle", "pixel_unshuffle", "prod", "put", "rand", "reflection_pad",
    "repeat", "replication_pad", "rms_norm", "roll", "rrelu", "scalar_tensor", "scatter", "select_backward",
    "slice_backward", "slice_scatter", "smooth_l1_loss", "sort", "split_with_sizes_copy", "stack", "std", "sum",
    "take", "topk", "trace", "tril", "triu", "unbind", "unfold_backward", "uniform", "upsample",
    "value_selecting_reduction_backward", "var", "where", "zero", "zeros",
)  # fmt: skip
# Operations that touch no memory.
_FREE: Final = (
    "as_strided", "empty", "new_empty", "detach", "alias", "_unsafe_view", "_reshape_alias", "set_", "resize_",
)  # fmt: skip
_MATMULS: Final = ("mm", "addmm", "bmm", "baddbmm")
# Attention of modules that PyTorch's own functions call: one kernel, as on a GPU.
_ATTENTION: Final = "_scaled_dot_product_flash_attention"
# A batch norm reads its arrays several times, since a channel's numbers lie in every sample.
_READ_AGAIN: Final = "batch_norm"


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
        raise ScenarioError("tracing a module needs PyTorch; write: pip install torch") from error
    working = getattr(torch, dtype)
    from torch._subclasses.fake_tensor import FakeTensorMode

    runs = []
    for samples in _SAMPLES:
        with FakeTensorMode(allow_non_fake_inputs=True):
            recorder = _Recorder(_fake(module, working), frozenset(units), working)
            given = _batch(inputs, samples, working)
            try:
                recorder.run(given)
            # A module may raise anything on tensors without numbers.
            except Exception as error:
                raise ScenarioError(one_line(f"{name}: cannot be traced: {_reason(error)}")) from error
        runs.append(recorder)
    tokens = _tokens(inputs)
    return _model(name, runs, tokens)


def _reason(error: Exception) -> str:
    """Return why a module cannot be traced, with the last line of the user's own code that ran."""
    import torch

    if isinstance(error, ScenarioError):
        return str(error)
    foreign = str(Path(torch.__file__).parent), str(Path(__file__).parent)
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith(foreign)]
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
        wanted = dtype if tensor.is_floating_point() else tensor.dtype
        empty = torch.empty(tensor.shape, dtype=wanted)
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
    tensors = [one for one in (*by_place, *by_name.values()) if isinstance(one, torch.Tensor)]
    if not tensors or not tensors[0].dim():
        raise ScenarioError("inputs: must begin with a tensor whose first dimension is the micro-batch")
    shown = tensors[0].shape[0]

    def sized(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        grows = value.dim() > 0 and value.shape[0] == shown
        shape = (samples, *value.shape[1:]) if grows else value.shape
        return torch.empty(shape, dtype=dtype if value.is_floating_point() else value.dtype)

    return tuple(map(sized, by_place)), {key: sized(value) for key, value in by_name.items()}


def _tokens(inputs: Sequence[Any] | Mapping[str, Any]) -> int:
    """Return the tokens of a sample: the length of a sequence of whole numbers, 1 for other inputs."""
    import torch

    values = inputs.values() if isinstance(inputs, Mapping) else inputs
    first = next(one for one in values if isinstance(one, torch.Tensor))
    return int(first.shape[1]) if first.dim() == 2 and not first.is_floating_point() else 1


# Elements in the working dtype, and bytes of other dtypes.
_Bytes = tuple[int, int]


@dataclass(slots=True)
class _Kernel:
    """A kernel with its numbers for one micro-batch.

    Attributes
    ----------
    kind : str
        "matmul", "attention" or "elementwise", or the pass of a convolution.
    numbers : tuple of int
        Sizes that may grow with the samples.
    fixed : tuple
        Sizes and switches that may not.
    """

    kind: str
    numbers: tuple[int, ...]
    fixed: tuple[Any, ...] = ()
    of_weights: bool = False


@dataclass(slots=True)
class _Event:
    """An operation of a pass: what it computes, and the tensors that autograd saves after it.

    Attributes
    ----------
    place : int
        The layer that it belongs to; see `_Recorder.place`.
    """

    name: str
    place: int
    kernels: list[_Kernel]
    output: _Bytes = (0, 0)
    saved: list[tuple[str, _Bytes, str]] = field(default_factory=list)

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must be equal in micro-batches of any size."""
        kernels = tuple((one.kind, one.fixed, one.of_weights) for one in self.kernels)
        return self.name, self.place, kernels, tuple((name, source) for name, _, source in self.saved)

    @property
    def numbers(self) -> tuple[int, ...]:
        """What may grow with the micro-batch."""
        kernels = [number for one in self.kernels for number in one.numbers]
        return (*kernels, *self.output, *(number for _, size, _ in self.saved for number in size))


@dataclass(slots=True)
class _Recorder:
    """Records both passes of a module with fake tensors.

    Attributes
    ----------
    place : int
        Layer of the forward pass: 2 k + 1 inside layer k, 2 k between layer k - 1 and layer k.
    forward, backward : list of _Event
        Operations of each pass, in order.
    changes : list of (autograd's number, place, path of the module)
        Places by the number of autograd's nodes, from which a node of the backward pass finds its place.
    made_by : dict of storage to event
        Event that wrote a storage last.
    """

    module: Module
    units: frozenset[str]
    dtype: Any
    place: int = 0
    path: list[str] = field(default_factory=list)
    roots: list[str] = field(default_factory=list)
    forward: list[_Event] = field(default_factory=list)
    backward: list[_Event] = field(default_factory=list)
    changes: list[tuple[int, int, str]] = field(default_factory=list)
    made_by: dict[int, _Event] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    owned: dict[str, int] = field(default_factory=dict)
    outputs: dict[int, _Bytes] = field(default_factory=dict)
    entered: _Bytes = (0, 0)
    unknown: dict[str, None] = field(default_factory=dict)
    names: Counter[tuple[int, str]] = field(default_factory=Counter)
    computing: bool = True

    def run(self, given: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """Record the forward and the backward pass on arguments of `forward`."""
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        recorder = self

        class Operations(TorchDispatchMode):
            """Calls the recorder after every operation."""

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                made = func(*args, **(kwargs or {}))
                recorder.note(func, args, kwargs or {}, made)
                return made

        class Calls(torch.overrides.TorchFunctionMode):
            """Replaces PyTorch's attention and RMSNorm by one kernel each, as on a GPU."""

            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if func is torch.nn.functional.scaled_dot_product_attention:
                    return recorder.attention(*args, **(kwargs or {}))
                if func is torch.nn.functional.rms_norm:
                    return recorder.rms_norm(*args, **(kwargs or {}))
                return func(*args, **(kwargs or {}))

        self.entered = self._total(_tensors(given))
        self.kept = {_storage(one) for one in (*self.module.parameters(), *self.module.buffers())}
        hooks = self._hooks()
        try:
            with Calls(), Operations(), torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor):
                made = self.module(*given[0], **given[1])
            self._change("")
            self.computing = False
            results = [one for one in _tensors(made) if one.requires_grad]
            if not results:
                raise ScenarioError("the module's output has no gradient: no parameter is trained")
            with Operations():
                torch.autograd.backward(results, [torch.empty_like(one) for one in results])
        finally:
            for hook in hooks:
                hook.remove()

    def _hooks(self) -> list[Any]:
        """Return hooks on every module, which tell where the forward pass is, and on every parameter's gradient."""
        inside = set(self._unit_modules())
        hooks = []
        for path, module in self.module.named_modules():
            hooks.append(module.register_forward_pre_hook(self._entering(path, path in inside), with_kwargs=True))
            hooks.append(module.register_forward_hook(self._leaving(path in inside)))
        hooks += [one.register_hook(self._of_weights) for one in self.module.parameters() if one.requires_grad]
        return hooks

    def _unit_modules(self) -> Iterator[str]:
        """Yield the paths of the modules that become layers: those of the wanted classes, or the members of lists and
        sequences that have modules of their own and are no list or sequence themselves.
        """
        import torch

        lists = (torch.nn.ModuleList, torch.nn.Sequential)

        def below(path: str, module: Module) -> Iterator[str]:
            for name, child in module.named_children():
                own = f"{path}.{name}".lstrip(".")
                if self.units:
                    wanted = type(child).__name__ in self.units
                else:
                    wanted = type(module) in lists and type(child) not in lists and any(child.children())
                yield from (own,) if wanted else below(own, child)

        return below("", self.module)

    def _entering(self, path: str, unit: bool) -> Callable[..., None]:
        """Return the hook before a module's forward pass."""

        def hook(module: Module, args: Any, kwargs: Any) -> None:
            if unit and self.place % 2 == 0:
                if self.place == 0:
                    self.outputs[-1] = self._total(_tensors((args, kwargs))[:1])
                self.roots.append(path)
                self.place += 1
            self.path.append(path)
            self.owned.setdefault(path, self.place)
            self._change(path)

        return hook

    def _leaving(self, unit: bool) -> Callable[..., None]:
        """Return the hook after a module's forward pass."""

        def hook(module: Module, args: Any, made: Any) -> None:
            path = self.path.pop()
            if unit and self.roots and self.roots[-1] == path and self.place % 2:
                self.outputs[self.place // 2] = self._total(_tensors(made))
                self.place += 1
            self._change(self.path[-1] if self.path else "")

        return hook

    def _change(self, path: str) -> None:
        """Note the place and the module from which on autograd numbers its nodes."""
        import torch

        self.changes.append((torch.autograd._get_sequence_nr(), self.place, path))

    def _keep(self, tensor: Tensor) -> Tensor:
        """Note a tensor that autograd saves, once for each storage."""
        storage = _storage(tensor)
        if storage not in self.kept:
            self.kept.add(storage)
            maker = self.made_by.get(storage)
            source = maker.name if maker is not None and maker.place == self.place else "input"
            if not self.forward:
                self._event("input", [], (0, 0))
            last = self.forward[-1]
            label = f"{source} output" if source != "input" else f"input of {last.name}"
            # Two saved tensors of a layer have different names: tensors of equal name count once.
            self.names[self.place, label] += 1
            number = self.names[self.place, label]
            name = label if number == 1 else f"{label} {number}"
            whole = tensor.untyped_storage().nbytes()
            size = (whole // self.dtype.itemsize, 0) if tensor.dtype == self.dtype else (0, whole)
            last.saved.append((name, size, source))
        return tensor

    def _of_weights(self, gradient: Tensor) -> None:
        """Mark the kernel that made a parameter's gradient."""
        maker = self.made_by.get(_storage(gradient))
        if maker is not None and len(maker.kernels) == 1:
            maker.kernels[0].of_weights = True

    def note(self, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """Record an operation."""
        import torch

        name = func._schema.name.partition("::")[2]
        if func.is_view or name.startswith(_FREE):
            return
        outputs, inputs = _tensors(made), _tensors((args, kwargs))
        if not outputs:
            return
        pointwise = torch.Tag.pointwise in func.tags
        known = pointwise or torch.Tag.reduction in func.tags
        if name.startswith(_ATTENTION):
            backward = name.endswith("backward")
            causal = bool(args[7] if backward else args[4] if len(args) > 4 else kwargs.get("is_causal", False))
            query, key = args[1:3] if backward else args[:2]
            self.attended(query, key, causal=causal, backward=backward, made=tuple(outputs))
            return
        if name in _MATMULS:
            kernels = [_matmul(inputs[-2:] if name.startswith(("ad", "ba")) else inputs)]
        elif name == "convolution":
            kernels = [_convolution("forward", args[0], args[1], outputs[0], args[6], args[8])]
        elif name == "convolution_backward":
            kernels = _convolution_backward(args)
        else:
            if not known and not name.lstrip("_").startswith(tuple(one.lstrip("_") for one in _MEMORY_BOUND)):
                self.unknown[name] = None
            passes = BATCH_NORM_PASSES if _READ_AGAIN in name else 1
            read, written = self._total(inputs), self._total(outputs)
            moved = (passes * read[0], passes * read[1], *written)
            kernels = [_Kernel("elementwise", moved, (pointwise or "norm" in name or "softmax" in name,))]
        self._event(name, kernels, self._total(outputs), outputs)

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
        is_causal: bool = False, **options: Any,
    ) -> Any:  # fmt: skip
        """Return the output of PyTorch's attention, which one kernel computes in each pass."""
        import torch

        recorder = self

        class Attention(torch.autograd.Function):
            """Attention as a kernel that keeps its scores on the chip and saves its output and the log-sum-exp."""

            @staticmethod
            def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                # The kernels write the output with the tokens before the heads.
                *outer, heads, tokens, _ = query.shape
                result = query.new_empty((*outer, tokens, heads, value.shape[-1])).transpose(-2, -3)
                statistics = query.new_empty(query.shape[:-1], dtype=torch.float32)
                recorder.attended(query, key, causal=is_causal, backward=False, made=(result, statistics))
                ctx.save_for_backward(query, key, value, result, statistics)
                return result

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Any:
                query, key, value, _, _ = ctx.saved_tensors
                made = tuple(torch.empty_like(one) for one in (query, key, value))
                recorder.attended(query, key, causal=is_causal, backward=True, made=made)
                return made

        return Attention.apply(query, key, value)

    def rms_norm(self, x: Tensor, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
        """Return the output of PyTorch's RMSNorm, which one kernel computes in each pass."""
        import torch

        recorder, wide = self, prod(normalized_shape)

        def one_kernel(read: list[Any], made: list[Any]) -> None:
            moved = (*recorder._total(read), *recorder._total(made))
            recorder._event("rms_norm", [_Kernel("elementwise", moved, (True,))], recorder._total(made[:1]), made)

        class RmsNorm(torch.autograd.Function):
            """RMSNorm as a kernel that saves its input and a float32 number per row."""

            @staticmethod
            def forward(ctx: Any, x: Tensor, weight: Any) -> Tensor:
                result, statistics = torch.empty_like(x), x.new_empty(x.numel() // wide, dtype=torch.float32)
                one_kernel([x, weight] if weight is not None else [x], [result, statistics])
                ctx.save_for_backward(x, weight, statistics)
                return result

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Any:
                x, weight, statistics = ctx.saved_tensors
                made = [torch.empty_like(x), *([torch.empty_like(weight)] if weight is not None else [])]
                one_kernel([x, gradient, statistics], made)
                return made[0], made[1] if weight is not None else None

        return RmsNorm.apply(x, weight)

    def attended(self, query: Tensor, key: Tensor, *, causal: bool, backward: bool, made: tuple[Any, ...]) -> None:
        """Record an attention kernel."""
        *outer, heads, tokens, width = query.shape
        keys = key.shape[-2] if key.shape[-2] != tokens else None
        fixed = heads, key.shape[-3], tokens, width, causal, backward, keys
        self._event("attention", [_Kernel("attention", (prod(outer),), fixed)], self._total(made[:1]), made)

    def _event(self, name: str, kernels: list[_Kernel], output: _Bytes, made: Sequence[Any] = ()) -> None:
        """Append an operation to the pass that is running."""
        place, path = (self.place, self.path[-1] if self.path else "") if self.computing else self._behind()
        root = self.roots[place // 2] if place % 2 else ""
        within = path.removeprefix(root).lstrip(".")
        label = f"{within} {name}".lstrip() + ("" if self.computing else " gradient")
        self.names[place, label] += 1
        number = self.names[place, label]
        event = _Event(label if number == 1 else f"{label} {number}", place, kernels, output)
        (self.forward if self.computing else self.backward).append(event)
        for tensor in made:
            self.made_by[_storage(tensor)] = event

    def _behind(self) -> tuple[int, str]:
        """Return the place and the module of the forward operation whose gradient is computed."""
        import torch

        node = torch._C._current_autograd_node()
        number = node._sequence_nr() if node is not None else 0
        # A node without a number of its own adds to a parameter's gradient.
        index = bisect_right([change[0] for change in self.changes], number) - 1
        _, place, path = self.changes[max(0, index)]
        return place, path

    def _total(self, tensors: Iterable[Any]) -> _Bytes:
        """Return the size of some tensors together, each storage once."""
        elements = nbytes = 0
        for tensor in {_storage(one): one for one in tensors}.values():
            held = tensor.untyped_storage().nbytes() // tensor.element_size()
            count = min(tensor.numel(), held)
            if tensor.dtype == self.dtype:
                elements += count
            else:
                nbytes += count * tensor.element_size()
        return elements, nbytes


def _storage(tensor: Tensor) -> int:
    """Return a number that tensors with the same memory share."""
    return tensor.untyped_storage()._cdata


def _tensors(value: Any) -> list[Any]:
    """Return the tensors in nested lists, tuples and mappings, in order."""
    import torch
    from torch.utils import _pytree

    return [one for one in _pytree.tree_leaves(value) if isinstance(one, torch.Tensor)]


def _matmul(operands: Sequence[Any]) -> _Kernel:
    """Return the kernel of a matmul of two matrices, or of two batches of matrices."""
    a, b = operands[-2], operands[-1]
    batch = a.shape[0] if a.dim() == 3 else 1
    return _Kernel("matmul", (a.shape[-2], b.shape[-1], a.shape[-1], batch))


def _convolution(which: str, image: Tensor, weight: Tensor, made: Tensor, transposed: bool, groups: int) -> _Kernel:
    """Return a kernel of a convolution; a transposed one is the input gradient of a convolution of its output."""
    if transposed:
        image, made = made, image
        which = {"forward": "input gradient", "input gradient": "forward"}.get(which, which)
    places = made.shape[0] * prod(made.shape[2:])
    sizes = image.shape[1] // groups, made.shape[1] // groups, prod(weight.shape[2:]), groups
    return _Kernel(which, (places, image.numel()), sizes, of_weights=which == "weight gradient")


def _convolution_backward(args: Sequence[Any]) -> list[_Kernel]:
    """Return the kernels of a convolution's backward pass: those of the gradients that are wanted."""
    made, image, weight, transposed, groups, wanted = args[0], args[1], args[2], args[7], args[9], args[10]
    passes = [which for which, needed in zip(("input gradient", "weight gradient"), wanted, strict=False) if needed]
    kernels = [_convolution(which, image, weight, made, transposed, groups) for which in passes]
    if wanted[2]:
        kernels.append(_Kernel("elementwise", (made.numel(), 0, weight.shape[0], 0), (False,), of_weights=True))
    return kernels


def _model(name: str, runs: Sequence[_Recorder], tokens: int) -> LayerList:
    """Return the list of layers of a module that was recorded on micro-batches of different sizes."""
    first = runs[0]
    number = len(first.roots)
    forward, backward = (_fitted(name, [getattr(run, which) for run in runs]) for which in ("forward", "backward"))
    layers = [list[LayerOperation]() for _ in range(number + 2)]
    gradients = [list[KernelCounts]() for _ in range(number + 2)]
    for event, operation in forward:
        layers[_layer_of(event.place, number)].append(operation)
    for event, operation in backward:
        gradients[_layer_of(event.place, number)] += operation.forward
    sizes = {place: _grown(name, "output", [run.outputs[place] for run in runs]) for place in first.outputs}
    made = []
    for place, operations in enumerate(layers):
        own = operations or ([LayerOperation("gradients")] if gradients[place] else [])
        if own:
            # The backward pass of a layer runs as it was recorded, before the passes of earlier layers.
            own[-1] = replace(own[-1], backward=tuple(gradients[place]))
        output = Amount(*sizes[place - 1]) if place - 1 in sizes else Amount()
        made.append(Layer(_parameters(first, place, number), tuple(own), output))
    if not number:
        # A module without lists of modules is one layer.
        entered = Amount(*_grown(name, "input", [run.entered for run in runs]))
        made = [Layer((), (), entered), _merged(made[0], made[1]), Layer((), (), Amount())]
    return LayerList(name, made[0], tuple(made[1:-1]), made[-1], tokens, tuple(first.unknown))


def _layer_of(place: int, number: int) -> int:
    """Return the index among first layer, `number` layers and last layer of a place of the forward pass; what runs
    between two layers belongs to the earlier one.
    """
    if place % 2:
        return place // 2 + 1
    return number + 1 if place // 2 == number else place // 2


def _merged(one: Layer, other: Layer) -> Layer:
    """Return two layers as one."""
    return Layer(one.parameters + other.parameters, one.operations + other.operations, other.output)


def _parameters(run: _Recorder, layer: int, number: int) -> tuple[Parameter, ...]:
    """Return the parameters of a layer, by the module that holds them."""
    found = []
    for name, parameter in run.module.named_parameters():
        holder = name.rpartition(".")[0]
        while holder and holder not in run.owned:
            holder = holder.rpartition(".")[0]
        place = run.owned.get(holder, 0)
        if _layer_of(place, number) == layer:
            root = run.roots[place // 2] if place % 2 else ""
            own = name.removeprefix(root).lstrip(".")
            found.append(Parameter(own, tuple(parameter.shape), parameter.requires_grad))
    return tuple(found)


def _fitted(name: str, passes: Sequence[list[_Event]]) -> list[tuple[_Event, LayerOperation]]:
    """Return each operation of a pass with numbers that grow with the samples, from the same pass on several
    micro-batches.
    """
    if len({len(events) for events in passes}) != 1:
        raise ScenarioError(f"{name}: runs other operations on a larger micro-batch; trace a module without that")
    found = []
    for events in zip(*passes, strict=True):
        if len({event.shape for event in events}) != 1:
            raise ScenarioError(f"{name}: {events[0].name} does something else on a larger micro-batch")
        counts = iter(_grown(name, events[0].name, [event.numbers for event in events]))
        kernels = tuple(
            _kernel(events[0].name, kernel, [next(counts) for _ in kernel.numbers]) for kernel in events[0].kernels
        )
        output = Amount(next(counts), next(counts))
        saved = tuple(
            SavedTensor(label, Amount(next(counts), next(counts)), source) for label, _, source in events[0].saved
        )
        found.append((events[0], LayerOperation(events[0].name, kernels, (), saved, output)))
    return found


def _grown(name: str, what: str, numbers: Sequence[Sequence[int]]) -> list[Count]:
    """Return counts from the same numbers on micro-batches of `_SAMPLES` samples."""
    counts = []
    for few, more, most in zip(*numbers, strict=True):
        each = (more - few) // (_SAMPLES[1] - _SAMPLES[0])
        count = Count(few - each * _SAMPLES[0], each)
        if count.fixed < 0 or each < 0 or count.of(_SAMPLES[2]) != most:
            raise ScenarioError(
                f"{name}: {what} does not grow evenly with the micro-batch: {few}, {more} and {most} for "
                f"{', '.join(map(str, _SAMPLES))} samples"
            )
        counts.append(count)
    return counts


def _kernel(name: str, kernel: _Kernel, counts: list[Count]) -> KernelCounts:
    """Return a kernel with counts in place of its numbers."""
    if kernel.kind == "matmul":
        m, n, k, batch = counts
        return MatmulCounts(name, m, n, k, batch, kernel.of_weights)
    if kernel.kind == "attention":
        heads, kv_heads, tokens, width, causal, backward, keys = kernel.fixed
        return AttentionCounts(name, counts[0], heads, kv_heads, tokens, width, causal, backward, keys)
    if kernel.kind == "elementwise":
        read, written = Amount(*counts[:2]), Amount(*counts[2:])
        return ElementwiseCounts(name, read, written, kernel.fixed[0], kernel.of_weights)
    channels, outputs, window, groups = kernel.fixed
    of = Convolution(name, counts[0], channels, outputs, window, groups, counts[1])
    passes = {"forward": of.forward, "input gradient": of.input_gradient, "weight gradient": of.weight_gradient}
    return passes[kernel.kind]()
