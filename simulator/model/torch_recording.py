"""Which operations does a PyTorch module run in its two passes, and which tensors does autograd save?

The module runs on tensors without numbers. A dispatch mode sees every operation, hooks on modules tell which layer
runs, and autograd's hooks which tensors are saved. The backward pass finds the layer of an operation by the number of
its autograd node.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from simulator.basics.errors import ScenarioError
from simulator.model.torch_operations import (
    TensorBytes,
    TracedKernel,
    is_attention,
    is_known,
    kernels_of,
    runs_no_kernel,
    size_of,
    storage_of,
    tensors_in,
)

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


@dataclass(slots=True)
class RecordedOperation:
    """An operation of a pass: what it computes, and the tensors that autograd saves after it."""

    name: str
    place: int  # the layer that it belongs to; see `Recorder.place`
    kernels: list[TracedKernel]
    output: TensorBytes = (0, 0)
    saved: list[tuple[str, TensorBytes, str]] = field(default_factory=list)

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must be equal in micro-batches of any size."""
        kernels = tuple((kernel.kind, kernel.fixed, kernel.of_weights) for kernel in self.kernels)
        return self.name, self.place, kernels, tuple((name, source) for name, _, source in self.saved)

    @property
    def numbers(self) -> tuple[int, ...]:
        """What may grow with the micro-batch."""
        kernels = [number for kernel in self.kernels for number in kernel.numbers]
        return (*kernels, *self.output, *(number for _, size, _ in self.saved for number in size))


@dataclass(slots=True)
class Recorder:
    """Records both passes of a module with fake tensors."""

    module: Module
    units: frozenset[str]
    dtype: Any
    # Layer of the forward pass: 2 k + 1 inside layer k, 2 k between layer k - 1 and layer k.
    place: int = 0
    path: list[str] = field(default_factory=list)
    roots: list[str] = field(default_factory=list)
    # `forward`, `backward`: Operations of each pass, in order.
    forward: list[RecordedOperation] = field(default_factory=list)
    backward: list[RecordedOperation] = field(default_factory=list)
    # Places by the number of autograd's nodes, from which a node of the backward pass finds its place.
    changes: list[tuple[int, int, str]] = field(default_factory=list)
    made_by: dict[int, RecordedOperation] = field(default_factory=dict)  # event that wrote a storage last
    kept: set[int] = field(default_factory=set)
    owned: dict[str, int] = field(default_factory=dict)
    outputs: dict[int, TensorBytes] = field(default_factory=dict)
    entered: TensorBytes = (0, 0)
    unknown: dict[str, None] = field(default_factory=dict)
    names: Counter[tuple[int, str]] = field(default_factory=Counter)
    computing: bool = True

    def run(self, inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """Record the forward and the backward pass on arguments of `forward`."""
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        recorder = self

        class Operations(TorchDispatchMode):
            """Calls the recorder after every operation."""

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                outputs = func(*args, **(kwargs or {}))
                recorder.note(func, args, kwargs or {}, outputs)
                return outputs

        class Calls(torch.overrides.TorchFunctionMode):
            """Replaces PyTorch's attention and RMSNorm by one kernel each, as on a GPU."""

            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                if func is torch.nn.functional.scaled_dot_product_attention:
                    return recorder.attention(*args, **(kwargs or {}))
                if func is torch.nn.functional.rms_norm:
                    return recorder.rms_norm(*args, **(kwargs or {}))
                return func(*args, **(kwargs or {}))

        self.entered = size_of(tensors_in(inputs), self.dtype)
        self.kept = {storage_of(tensor_) for tensor_ in (*self.module.parameters(), *self.module.buffers())}
        hooks = self._hooks()
        try:
            with Calls(), Operations(), torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor):
                outputs = self.module(*inputs[0], **inputs[1])
            self._change("")
            self.computing = False
            results = [tensor_ for tensor_ in tensors_in(outputs) if tensor_.requires_grad]
            if not results:
                raise ScenarioError("the module's output has no gradient: no parameter is trained")
            with Operations():
                torch.autograd.backward(results, [torch.empty_like(tensor_) for tensor_ in results])
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
        hooks += [
            parameter.register_hook(self._of_weights)
            for parameter in self.module.parameters()
            if parameter.requires_grad
        ]
        return hooks

    def _unit_modules(self) -> Iterator[str]:
        """Yield the paths of the modules that become layers: those of the wanted classes, or the members of lists and
        sequences that have modules of their own and are no list or sequence themselves.
        """
        import torch

        lists = (torch.nn.ModuleList, torch.nn.Sequential)

        def below(path: str, module: Module) -> Iterator[str]:
            for name, child in module.named_children():
                inner = f"{path}.{name}".lstrip(".")
                if self.units:
                    is_unit = type(child).__name__ in self.units
                else:
                    is_unit = type(module) in lists and type(child) not in lists and any(child.children())
                yield from (inner,) if is_unit else below(inner, child)

        return below("", self.module)

    def _entering(self, path: str, unit: bool) -> Callable[..., None]:
        """Return the hook before a module's forward pass."""

        def hook(module: Module, args: Any, kwargs: Any) -> None:
            if unit and self.place % 2 == 0:
                if self.place == 0:
                    self.outputs[-1] = size_of(tensors_in((args, kwargs))[:1], self.dtype)
                self.roots.append(path)
                self.place += 1
            self.path.append(path)
            self.owned.setdefault(path, self.place)
            self._change(path)

        return hook

    def _leaving(self, unit: bool) -> Callable[..., None]:
        """Return the hook after a module's forward pass."""

        def hook(module: Module, args: Any, outputs: Any) -> None:
            path = self.path.pop()
            if unit and self.roots and self.roots[-1] == path and self.place % 2:
                self.outputs[self.place // 2] = size_of(tensors_in(outputs), self.dtype)
                self.place += 1
            self._change(self.path[-1] if self.path else "")

        return hook

    def _change(self, path: str) -> None:
        """Note the place and the module from which on autograd numbers its nodes."""
        import torch

        self.changes.append((torch.autograd._get_sequence_nr(), self.place, path))

    def _keep(self, tensor: Tensor) -> Tensor:
        """Note a tensor that autograd saves, once for each storage."""
        storage = storage_of(tensor)
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
            nbytes = tensor.untyped_storage().nbytes()
            size = (nbytes // self.dtype.itemsize, 0) if tensor.dtype == self.dtype else (0, nbytes)
            last.saved.append((name, size, source))
        return tensor

    def _of_weights(self, gradient: Tensor) -> None:
        """Mark the kernel that made a parameter's gradient."""
        maker = self.made_by.get(storage_of(gradient))
        if maker is not None and len(maker.kernels) == 1:
            maker.kernels[0].of_weights = True

    def note(self, func: Any, args: Any, kwargs: Any, results: Any) -> None:
        """Record an operation."""
        name = func._schema.name.partition("::")[2]
        outputs, inputs = tensors_in(results), tensors_in((args, kwargs))
        if runs_no_kernel(func, name) or not outputs:
            return
        if is_attention(name):
            backward = name.endswith("backward")
            causal = bool(args[7] if backward else args[4] if len(args) > 4 else kwargs.get("is_causal", False))
            query, key = args[1:3] if backward else args[:2]
            self.attended(query, key, causal=causal, backward=backward, results=tuple(outputs))
            return
        if not is_known(func, name):
            self.unknown[name] = None
        kernels = kernels_of(func, name, args, inputs, outputs, self.dtype)
        self._event(name, kernels, size_of(outputs, self.dtype), outputs)

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
                recorder.attended(query, key, causal=is_causal, backward=False, results=(result, statistics))
                ctx.save_for_backward(query, key, value, result, statistics)
                return result

            @staticmethod
            def backward(ctx: Any, gradient: Tensor) -> Any:
                query, key, value, _, _ = ctx.saved_tensors
                gradients = tuple(torch.empty_like(tensor) for tensor in (query, key, value))
                recorder.attended(query, key, causal=is_causal, backward=True, results=gradients)
                return gradients

        return Attention.apply(query, key, value)

    def rms_norm(self, x: Tensor, normalized_shape: Any, weight: Any = None, eps: Any = None) -> Any:
        """Return the output of PyTorch's RMSNorm, which one kernel computes in each pass."""
        import torch

        recorder, wide = self, prod(normalized_shape)

        def one_kernel(read: list[Any], results: list[Any]) -> None:
            moved = (*size_of(read, recorder.dtype), *size_of(results, recorder.dtype))
            recorder._event(
                "rms_norm", [TracedKernel("elementwise", moved, (True,))], size_of(results[:1], recorder.dtype), results
            )

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
                gradients = [torch.empty_like(x), *([torch.empty_like(weight)] if weight is not None else [])]
                one_kernel([x, gradient, statistics], gradients)
                return gradients[0], gradients[1] if weight is not None else None

        return RmsNorm.apply(x, weight)

    def attended(self, query: Tensor, key: Tensor, *, causal: bool, backward: bool, results: tuple[Any, ...]) -> None:
        """Record an attention kernel."""
        *outer, heads, tokens, width = query.shape
        keys = key.shape[-2] if key.shape[-2] != tokens else None
        fixed = heads, key.shape[-3], tokens, width, causal, backward, keys
        self._event(
            "attention", [TracedKernel("attention", (prod(outer),), fixed)], size_of(results[:1], self.dtype), results
        )

    def _event(self, name: str, kernels: list[TracedKernel], output: TensorBytes, results: Sequence[Any] = ()) -> None:
        """Append an operation to the pass that is running."""
        place, path = (self.place, self.path[-1] if self.path else "") if self.computing else self._behind()
        root = self.roots[place // 2] if place % 2 else ""
        within = path.removeprefix(root).lstrip(".")
        label = f"{within} {name}".lstrip() + ("" if self.computing else " gradient")
        self.names[place, label] += 1
        number = self.names[place, label]
        event = RecordedOperation(label if number == 1 else f"{label} {number}", place, kernels, output)
        (self.forward if self.computing else self.backward).append(event)
        for tensor in results:
            self.made_by[storage_of(tensor)] = event

    def _behind(self) -> tuple[int, str]:
        """Return the place and the module of the forward operation whose gradient is computed."""
        import torch

        node = torch._C._current_autograd_node()
        number = node._sequence_nr() if node is not None else 0
        # A node without a number of its own adds to a parameter's gradient.
        index = bisect_right([change[0] for change in self.changes], number) - 1
        _, place, path = self.changes[max(0, index)]
        return place, path
