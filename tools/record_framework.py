"""Records which operations a framework's modules launch, and which tensors they save: `tests/recordings/NAME.json`.

    python -m tools.record_framework --out tests/recordings [NAME ...]

A module runs forward and backward on PyTorch's meta device, which has shapes and no numbers. A dispatch mode sees each
operation of ATen, autograd's included, with its arrays; hooks see the saved tensors; weak references see when a storage
is freed. What a GPU does differently from the meta device is asked for by name: flash attention, the fused RMS norm,
one-hot rows, autograd's operations in place. Code that needs numbers (a loop over experts, fused optimizers) runs on
the processor.

A recording lists `rows` (operations that launch something or allocate; views are left out), `known` (storages that
existed before, and gradients of leaves: they do not count in `live`), `saved` (storages kept for the backward pass, but
for known ones, which are named in `saved_inputs`), `after_forward` (bytes alive between the passes, the output
included), `output` (bytes of the output, which is alive during the backward pass), `module`, `parameters`, `sizes`.
A row's `live` counts the bytes right after the operation, when its arguments are still referenced. A gradient of a leaf
counts in the row that computes it, and no more afterwards. Rows of lists have the arrays of all lists in `reads`, and
in `lists` how many belong to each argument. Rows with `device` run on the processor in a run on a GPU, too.

Layers with experts of Megatron-Core need numbers, and run on the processor with one rank of a group whose other ranks
are made up: each has the same tokens per expert. Their rows say which `part` of the layer launches them (in the
backward pass, the part whose gradient it is). A row with `to` copies to the host what a GPU has; `host.wait` is where
the host waits for such copies. Rows of `c10d` are collectives: `writes` is what they fill.

The frameworks are no dependencies of the project: run this file in an environment with PyTorch's CPU build and the
packages that a recording needs. torchtune needs a torchao that PEFT refuses, so theirs are two environments. The
recordings are facts for tests/test_recordings.py.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import sys
from bisect import bisect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial, wraps
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
import torch._prims_common
import torch.fx.experimental._config
import torch.overrides
import torch.utils.checkpoint
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

# The meta device has no numbers: an index of nonzero elements has as many as there could be.
torch.fx.experimental._config.meta_nonzero_assume_all_nonzero = True

# Sizes of every recorded module: sequences, tokens, hidden size, heads, key heads, feed-forward width, words.
SIZES: Final = {
    "sequences": 2,
    "seq_len": 192,
    "hidden_size": 512,
    "num_heads": 8,
    "num_kv_heads": 2,
    "ffn_size": 1408,
    "vocab_size": 4096,
}


# What a run on the processor cannot show of a GPU: a copy to the host, and a wait for it.
_HOST: Final = torch.library.Library("host", "DEF")
_HOST.define("copy(Tensor array) -> Tensor")
_HOST.define("wait() -> ()")
_HOST.impl("copy", lambda array: array.clone(), "CPU")
_HOST.impl("wait", lambda: None, "BackendSelect")  # the key of operations without arrays


class Parts:
    """Names the part of a layer that runs.

    A part is the forward pass of a module or a function. A gradient's part is the one that made autograd's node: nodes
    are numbered in the order of the forward pass.
    """

    def __init__(self, outermost: str) -> None:
        self.inside = [outermost]
        self.starts = [0]
        self.names = [outermost]

    def _start(self) -> None:
        self.starts.append(torch.autograd._get_sequence_nr())
        self.names.append(self.inside[-1])

    def named(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, whose operations belong to the part of this name."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.inside.append(name)
            self._start()
            try:
                return function(*args, **kwargs)
            finally:
                self.inside.pop()
                self._start()

        return call

    def name(self, owner: Any, functions: Mapping[str, str]) -> None:
        """Let an object's functions, and the forward passes of its modules, be parts: names of parts by attribute."""
        for attribute, name in functions.items():
            found = getattr(owner, attribute)
            if isinstance(found, torch.nn.Module):
                found.forward = self.named(name, found.forward)
            else:
                setattr(owner, attribute, self.named(name, found))

    def current(self, func: Any) -> str:
        """Return the part that an operation belongs to."""
        node = torch._C._current_autograd_node()
        if node is None:
            return self.inside[-1]
        if func.overloadpacket is torch.ops.aten.add and not torch.is_grad_enabled() and _called_by_autograd():
            return "sums of gradients"
        return self.names[bisect(self.starts, node._sequence_nr()) - 1]


@dataclass
class Recorder(TorchDispatchMode):
    """Notes each operation's arrays, the saved tensors, and the bytes that are allocated after each operation."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    saved: dict[int, dict[str, Any]] = field(default_factory=dict)
    # Storages by address: number, size [B], and a weak reference, which keeps the address from being used again.
    storages: dict[int, tuple[int, int, StorageWeakRef]] = field(default_factory=dict)
    elsewhere: set[int] = field(default_factory=set)
    # Storages that existed before: parameters and inputs, with their names.
    known: dict[int, str] = field(default_factory=dict)
    # Leaves, whose gradients outlive the backward pass.
    leaves: list[torch.Tensor] = field(default_factory=list)
    phase: str = "forward"
    # Device of the parameters; arrays elsewhere do not count as allocated.
    device: str = "meta"
    # Operations that were taken for views, for a look at them.
    views: set[str] = field(default_factory=set)
    # The parts of the module, if rows are to name them.
    parts: Parts | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def know(self, name: str, tensor: torch.Tensor) -> None:
        """Give a parameter's or an input's storage a name; it does not count as allocated."""
        self.known[self._number(tensor)] = name
        if tensor.requires_grad:
            self.leaves.append(tensor)

    def _number(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self.storages:
            self.storages[key] = (len(self.storages), storage.nbytes(), StorageWeakRef(storage))
            if tensor.device.type != self.device:
                self.elsewhere.add(self.storages[key][0])
        return self.storages[key][0]

    def _array(self, tensor: torch.Tensor) -> dict[str, Any]:
        number = self._number(tensor)
        # Elements repeated by an expanded view are read from memory once.
        elements = 1
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
            elements *= size if stride or not size else 1
        return {"storage": number, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."),
                "nbytes": elements * tensor.element_size()}  # fmt: skip

    def live(self) -> int:
        """Return the bytes that are allocated, parameters, inputs and the gradients of both aside [B]."""
        for leaf in self.leaves:
            if leaf.grad is not None:
                self.known.setdefault(self._number(leaf.grad), "gradient")
        return sum(
            size
            for number, size, reference in self.storages.values()
            if number not in self.known and number not in self.elsewhere and not reference.expired()
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in {"prim", "profiler"}:  # questions about a tensor, and marks for a profile
            return func(*args, **kwargs)
        part = {"part": self.parts.current(func)} if self.parts else {}
        if func is torch.ops.host.wait.default:  # It has no arrays, hence no device that could run it.
            self.rows.append(
                {"phase": self.phase, **part, "op": "host.wait", "reads": [], "writes": [], "live": self.live()}
            )
            return None
        if not torch.is_grad_enabled() and _called_by_autograd():
            func, args = _in_place(func, args)
        collective = func.namespace == "c10d"
        fills = collective and not func._schema.name.startswith(("c10d::allreduce", "c10d::broadcast"))
        read = [self._array(tensor) for tensor in _tensors((args[1:] if fills else args, kwargs))]
        out = func(*args, **kwargs)
        changed = [
            value
            for argument, value in _arguments(func, args, kwargs)
            if argument.alias_info and argument.alias_info.is_write
        ]
        if collective:  # Their declarations do not say that they write into their first argument.
            changed = [args[0]]
        # Operations on lists return nothing: what they write are their arguments.
        results = [] if collective else list(_tensors(out))
        written = [self._array(tensor) for tensor in (results or list(_tensors(changed)))]
        inside = {array["storage"] for array in read}
        if written and not changed and all(array["storage"] in inside for array in written):
            self.views.add(str(func))
            return out
        to_host = func is torch.ops.host.copy.default
        if to_host or (self.device == "cpu" and read and inside <= self.elsewhere):
            # The processor plays the GPU, too: what is made of the host's arrays is the host's.
            self.elsewhere.update(array["storage"] for array in written)
        name = "aten._to_copy.default" if to_host else str(func)
        row = {"phase": self.phase, **part, "op": name, "reads": read, "writes": written, "live": self.live()}
        if to_host:
            row["to"] = "cpu"
        if func._schema.name.startswith(("aten::_foreach", "aten::_fused_adam")):
            lists = [(argument.name, value) for argument, value in _arguments(func, args, kwargs)]
            row["lists"] = {name: len(value) for name, value in lists if isinstance(value, list | tuple)}
        arrays = [*read, *written]
        if arrays and all(array["storage"] in self.elsewhere for array in arrays):
            row["device"] = "cpu"
        self.rows.append(row)
        return out

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record operations and saved tensors inside the block."""

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            array = self._array(tensor)
            array["allocated"] = tensor.untyped_storage().nbytes()
            self.saved.setdefault(array["storage"], array)
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), self:
            yield


# Autograd's formulas write into new arrays, unless a tensor may be of a subclass, which a dispatch mode looks like.
_WRITES: Final = {
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
    torch.ops.aten.scatter_add.default: torch.ops.aten.scatter_add_.default,
    torch.ops.aten.index_add.default: torch.ops.aten.index_add_.default,
    torch.ops.aten.masked_scatter.default: torch.ops.aten.masked_scatter_.default,
}


def _called_by_autograd() -> bool:
    """Return whether autograd's engine calls an operation, and no Python code between them."""
    frame: Any = sys._getframe(2)
    while frame and frame.f_code.co_filename.endswith(("eval_frame.py", "_compile.py", "record_framework.py")):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "_engine_run_backward"


def _in_place(func: Any, args: Any) -> tuple[Any, Any]:
    """Return the operation in place that autograd calls without a dispatch mode, and its arguments.

    Autograd adds a second gradient of an array to the first, if nothing else refers to the first or to its storage.
    Here, the engine, the tensor's Python object and two stacks refer to the tensor, and a storage's Python object adds
    one to the storage.
    """
    aten = torch.ops.aten
    if func is aten.index_put.default:
        return aten._index_put_impl_.default, (*args, True)
    if func is aten.add.Tensor and isinstance(args[0], torch.Tensor):
        storage = args[0].untyped_storage()
        alone = args[0]._use_count() <= 4 and torch._C._storage_Use_Count(storage._cdata) <= 2
        dense = torch._prims_common.is_non_overlapping_and_dense_or_false(args[0])
        return (aten.add_.Tensor if alone and dense else func), args
    return _WRITES.get(func, func), args


def _arguments(func: Any, args: Any, kwargs: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Return the arguments that an operation declares, each with the value that it was given."""
    declared = func._schema.arguments
    named = [(argument, kwargs[argument.name]) for argument in declared if argument.name in kwargs]
    return [*zip(declared, args, strict=False), *named]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested arguments or results."""
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, Mapping):
        for value in values.values():
            yield from _tensors(value)


def flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Attend as `scaled_dot_product_attention` does on a GPU with flash attention."""
    assert attn_mask is None, "flash attention takes no mask"
    if torch.is_autocast_enabled("cpu"):  # The operation below is called behind the cast of autocast.
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    attend = torch.ops.aten._scaled_dot_product_flash_attention
    return attend(query, key, value, dropout_p, is_causal, scale=scale)[0]


def one_hot(indices: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Return one-hot rows as `torch.nn.functional.one_hot` makes them on a GPU, without a look at the numbers."""
    zeros = torch.zeros((*indices.shape, num_classes), dtype=torch.int64, device=indices.device)
    return zeros.scatter_(-1, indices.unsqueeze(-1), 1)


def fused_rms_norm(
    hidden: torch.Tensor, normalized_shape: list[int], weight: torch.Tensor | None, eps: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the arrays that the fused RMS norm of a GPU writes: its output, and reciprocals in float32."""
    outer = hidden.shape[: hidden.dim() - len(normalized_shape)]
    shape = (*outer, *(1 for _ in normalized_shape))
    return hidden.new_empty(hidden.shape), hidden.new_empty(shape, dtype=torch.float32)


def _fused_rms_norm_of_numbers(hidden: torch.Tensor, shape: list[int], weight: torch.Tensor, eps: float | None) -> Any:
    """Return what the fused RMS norm of a GPU writes, with numbers."""
    wide = hidden.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + (torch.finfo(hidden.dtype).eps if eps is None else eps))
    return (wide * scale).to(hidden.dtype) * weight, scale


def _fused_rms_norm_gradients(
    gradient: torch.Tensor, hidden: torch.Tensor, shape: list[int], scale: torch.Tensor, weight: torch.Tensor,
    wanted: list[bool],
) -> Any:  # fmt: skip
    """Return the gradients of the fused RMS norm."""
    normal, outer = hidden.float() * scale, gradient.float() * weight.float()
    inner = (outer - normal * (outer * normal).mean(-1, keepdim=True)) * scale
    of_weight = (gradient.float() * normal).flatten(0, -2).sum(0)
    return inner.to(hidden.dtype), of_weight.to(weight.dtype)


# GPUs have a kernel for this operation. Without this line, the meta device takes it apart, and autograd sees the parts.
_OPERATIONS: Final = torch.library.Library("aten", "IMPL")
_OPERATIONS.m.impl("_fused_rms_norm", "Meta", fused_rms_norm)


class LinearIn(torch.overrides.TorchFunctionMode):
    """Casts what linear layers read, as autocast does on a GPU: weights before inputs."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.linear:
            hidden, weight, *bias = args
            weight = weight.to(self.dtype)
            args = (hidden.to(self.dtype), weight, *bias)
        return func(*args, **(kwargs or {}))


class PowersWide(torch.overrides.TorchFunctionMode):
    """Takes powers in float32, as autocast does on a GPU and not on a processor."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.pow:
            args = (args[0].float(), *args[1:])
        return func(*args, **(kwargs or {}))


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Replace functions that a processor or the meta device computes in another way than a GPU."""
    functional = torch.nn.functional
    before = functional.scaled_dot_product_attention, functional.one_hot
    autocast: Any = torch.autocast

    def cast(device_type: str, dtype: torch.dtype, enabled: bool = True, **keywords: Any) -> Any:
        if device_type == "meta":  # which autocast does not know
            return LinearIn(dtype) if enabled else nullcontext()
        return autocast(device_type, dtype, enabled, **keywords)

    functional.scaled_dot_product_attention, functional.one_hot = flash, one_hot
    torch.autocast = cast
    try:
        yield
    finally:
        functional.scaled_dot_product_attention, functional.one_hot = before
        torch.autocast = autocast


def record(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], call: Callable[..., torch.Tensor],
    sizes: Mapping[str, int], autocast: bool = False, name: str = "", parts: Parts | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return the operations and saved tensors of a module's forward and backward pass.

    `inputs` are tensors by name; `call` runs the module on them and returns its output. `name` says what runs, if that
    is not the module's own forward. `parts` name what the rows belong to.
    """
    widths = [sizes[key] for key in ("hidden_size", "ffn_size", "vocab_size") if key in sizes]
    widths.append(sizes["sequences"] * sizes["seq_len"])
    if sizes.get("num_kv_heads", 0) < sizes.get("num_heads", 0):
        widths.append(sizes["hidden_size"] // sizes["num_heads"] * sizes["num_kv_heads"])
    assert len({*widths}) == len(widths), f"equal sizes hide a mistake: {sizes}"
    parameters = dict(module.named_parameters())
    recorder = Recorder(device=next(iter(inputs.values())).device.type, parts=parts)
    for known, tensor in [*parameters.items(), *module.named_buffers()]:
        recorder.know(known, tensor)
    for known, tensor in inputs.items():
        recorder.know(f"input:{known}", tensor)
    with as_on_a_gpu():
        with recorder.recording(), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            output = call(module, **inputs)
        after_forward = recorder.live()
        recorder.phase = "backward"
        gradient = torch.zeros_like(output)
        recorder.know("input:gradient of the output", gradient)
        with recorder.recording():
            output.backward(gradient)
        recorder.live()  # finds the gradients that the last operation left
    return _recording(recorder, name or _name(module), sizes, parameters, after_forward, output)


def _name(module: Any) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _recording(
    recorder: Recorder, name: str, sizes: Mapping[str, int], parameters: Mapping[str, torch.Tensor],
    after_forward: int, output: torch.Tensor | None,
) -> dict[str, Any]:  # fmt: skip
    """Return what a recorder has seen, as a recording."""
    kept = [recorder.known[number] for number in recorder.saved if number in recorder.known]
    return {
        "module": name,
        "sizes": dict(sizes),
        "parameters": {
            key: [list(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.requires_grad]
            for key, tensor in parameters.items()
        },
        "known": {str(number): known for number, known in recorder.known.items()},
        "rows": recorder.rows,
        "saved": [array for number, array in recorder.saved.items() if number not in recorder.known],
        "saved_inputs": sorted(kept),
        "after_forward": after_forward,
        "output": output.untyped_storage().nbytes() if output is not None else 0,
        "views": sorted(recorder.views),
    }


def _hidden(dtype: torch.dtype = torch.bfloat16, device: str = "meta") -> torch.Tensor:
    shape = SIZES["sequences"], SIZES["seq_len"], SIZES["hidden_size"]
    return torch.empty(shape, device=device, dtype=dtype, requires_grad=True)


def _labels() -> torch.Tensor:
    return torch.empty((SIZES["sequences"], SIZES["seq_len"]), device="meta", dtype=torch.int64)


def _config(kind: str, sizes: Mapping[str, int], **changes: Any) -> Any:
    """Return a configuration of Transformers with these sizes."""
    import transformers

    names = {"llama": "Llama", "qwen3": "Qwen3", "mixtral": "Mixtral", "qwen3_moe": "Qwen3Moe"}
    if kind == "mixtral":
        changes |= {"num_local_experts": sizes["num_experts"], "num_experts_per_tok": sizes["top_k"]}
    if kind == "qwen3_moe":
        changes |= {
            "num_experts": sizes["num_experts"], "num_experts_per_tok": sizes["top_k"], "norm_topk_prob": True,
            "moe_intermediate_size": sizes["ffn_size"], "decoder_sparse_step": 1, "mlp_only_layers": [],
        }  # fmt: skip
    return getattr(transformers, f"{names[kind]}Config")(
        hidden_size=sizes["hidden_size"], num_attention_heads=sizes["num_heads"],
        num_key_value_heads=sizes["num_kv_heads"], intermediate_size=sizes["ffn_size"], num_hidden_layers=1,
        vocab_size=sizes["vocab_size"], head_dim=sizes["hidden_size"] // sizes["num_heads"],
        attn_implementation="sdpa", **changes,
    )  # fmt: skip


def _part(kind: str, suffix: str, *arguments: Any) -> Any:
    """Return a module of a model family of Transformers by the end of its class's name."""
    library = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    names = {"llama": "Llama", "qwen3": "Qwen3", "mixtral": "Mixtral", "qwen3_moe": "Qwen3Moe", "gpt2": "GPT2"}
    return getattr(library, names[kind] + suffix)(*arguments)


def _decoder_layer(
    kind: str, dtype: torch.dtype = torch.bfloat16, *, autocast: bool = False, checkpoint: bool = False,
    change: Callable[[Any], None] | None = None, sizes: Mapping[str, int] = SIZES,
) -> dict[str, Any]:  # fmt: skip
    """Record a decoder layer of Transformers; `change` may edit it first, and `checkpoint` recomputes it."""
    # Autocast knows no meta device. A fake processor has no numbers either, and casts the same operations as a GPU.
    device = "cpu" if autocast else "meta"
    with FakeTensorMode() if autocast else nullcontext():
        config = _config(kind, sizes, experts_implementation="grouped_mm")
        with torch.device(device):
            layer, rotary = _part(kind, "DecoderLayer", config, 0), _part(kind, "RotaryEmbedding", config)
        layer = (layer if autocast else layer.to(dtype)).train()
        if change:
            change(layer)
        hidden = _hidden(dtype, device)
        with torch.no_grad():
            cos, sin = rotary(hidden, torch.arange(sizes["seq_len"], device=device)[None])

        def call(module: Any, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
            keywords = {"position_embeddings": (cos, sin), "attention_mask": None}
            if checkpoint:
                out = torch.utils.checkpoint.checkpoint(module, hidden, use_reentrant=False, **keywords)
            else:
                out = module(hidden, **keywords)
            return out[0] if isinstance(out, tuple) else out

        return record(layer, {"hidden": hidden, "cos": cos, "sin": sin}, call, sizes, autocast)


# Sizes of layers with experts. Tokens times choices differ from every width.
MIXTRAL: Final = {**SIZES, "num_experts": 8, "top_k": 2}
QWEN3_MOE: Final = {**SIZES, "ffn_size": 640, "num_experts": 8, "top_k": 4}
# Sizes of a loop over experts, which runs with numbers on the processor.
LOOP: Final = {
    "sequences": 2, "seq_len": 20, "hidden_size": 64, "num_heads": 4, "num_kv_heads": 2, "ffn_size": 96,
    "vocab_size": 256, "num_experts": 8, "top_k": 2,
}  # fmt: skip


def _loop_over_experts(kind: str) -> dict[str, Any]:
    """Record a block of experts of Transformers that loops over the experts which got a token."""
    torch.manual_seed(0)
    config = _config(kind, LOOP, experts_implementation="eager")
    block = _part(kind, "SparseMoeBlock", config)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0, 0.02)
    block = block.to(torch.bfloat16).train()
    shape = LOOP["sequences"], LOOP["seq_len"], LOOP["hidden_size"]
    hidden = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
    with torch.no_grad():
        chosen = block.gate(hidden)[-1]
    counts = torch.bincount(chosen.flatten(), minlength=LOOP["num_experts"]).tolist()

    def call(module: Any, hidden: torch.Tensor) -> torch.Tensor:
        out = module(hidden)
        return out[0] if isinstance(out, tuple) else out

    sizes = {key: size for key, size in LOOP.items() if key not in {"num_heads", "num_kv_heads", "vocab_size"}}
    return {"tokens_per_expert": counts, **record(block, {"hidden": hidden}, call, sizes)}


def _head(**keywords: Any) -> dict[str, Any]:
    """Record the head of Llama with its loss, as the forward pass of LlamaForCausalLM runs it on hidden states."""
    from transformers.modeling_outputs import BaseModelOutputWithPast

    config = _config("llama", SIZES)
    with torch.device("meta"):
        model = _part("llama", "ForCausalLM", config).to(torch.bfloat16).train()

    class Body(torch.nn.Module):
        """Stands for the layers: it returns the hidden states that it gets."""

        def forward(self, inputs_embeds: torch.Tensor, **_: Any) -> Any:
            return BaseModelOutputWithPast(last_hidden_state=inputs_embeds)

    model.model = Body()

    def call(module: Any, hidden: torch.Tensor, labels: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        return module(inputs_embeds=hidden, labels=labels, **more).loss

    inputs = {"hidden": _hidden(), "labels": _labels(), **keywords}
    return record(model, inputs, call, SIZES, name=f"{_name(model)} (lm_head and loss_function)")


def _embedding() -> dict[str, Any]:
    """Record the lookup of words in Llama's embedding."""
    with torch.device("meta"):
        model = _part("llama", "Model", _config("llama", SIZES))
    embedding = model.embed_tokens.to(torch.bfloat16)
    name = f"{_name(model)}.embed_tokens ({_name(embedding)})"
    return record(embedding, {"words": _labels()}, lambda module, words: module(words), SIZES, name=name)


def _adapted(widened: bool) -> dict[str, Any]:
    """Record a Llama layer with LoRA on queries and values; adapters are in float32 if `widened`, which PEFT does."""
    import peft
    from peft.tuners.tuners_utils import cast_adapter_dtype

    def change(layer: Any) -> None:
        settings = peft.LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
        peft.inject_adapter_in_model(settings, layer, low_cpu_mem_usage=True)
        layer.to(torch.bfloat16)  # Adapters of a model in bfloat16 start in its dtype.
        cast_adapter_dtype(layer, "default", widened)
        for name, parameter in layer.named_parameters():
            assert parameter.requires_grad == ("lora_" in name), name

    return _decoder_layer("llama", change=change, sizes={**SIZES, "rank": 16})


def _gpt2(*, autocast: bool = False) -> dict[str, Any]:
    """Record a block of GPT-2: layer norms, biases, and GELU by its tanh formula."""
    import transformers

    sizes = {**SIZES, "num_kv_heads": SIZES["num_heads"]}
    config = transformers.GPT2Config(
        n_embd=sizes["hidden_size"], n_head=sizes["num_heads"], n_inner=sizes["ffn_size"], n_layer=1,
        vocab_size=sizes["vocab_size"], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    device, dtype = ("cpu", torch.float32) if autocast else ("meta", torch.bfloat16)

    def call(module: Any, hidden: torch.Tensor) -> torch.Tensor:
        with PowersWide() if autocast else nullcontext():
            out = module(hidden)
        return out[0] if isinstance(out, tuple) else out

    with FakeTensorMode() if autocast else nullcontext():
        with torch.device(device):
            block = _part("gpt2", "Block", config, 0).train()
        block = block if autocast else block.to(dtype)
        return record(block, {"hidden": _hidden(dtype, device)}, call, sizes, autocast)


# Parameters of a small model: matrices of five shapes, and a vector.
_SHAPES: Final = ((4096, 512), (512, 512), (128, 512), (1408, 512), (512, 1408), (512,))


def _update(call: Callable[[list[torch.nn.Parameter]], Any], name: str, device: str) -> dict[str, Any]:
    """Record what a function does to parameters that have gradients; an optimizer's first step is not recorded."""
    parameters = [torch.nn.Parameter(torch.zeros(shape, device=device)) for shape in _SHAPES]
    recorder = Recorder(device=device)
    for number, parameter in enumerate(parameters):
        parameter.grad = torch.zeros_like(parameter)
        recorder.know(f"parameter {number}", parameter)
        recorder.know(f"gradient {number}", parameter.grad)
    step = call(parameters)
    if isinstance(step, torch.optim.Optimizer):
        optimizer, step = step, step.step
        optimizer.step()
        for number, parameter in enumerate(parameters):
            for key, tensor in optimizer.state[parameter].items():
                recorder.know(f"{key} {number}", tensor)
    with recorder.recording():
        step()
    sizes = {"parameters": len(parameters)}
    named = {f"parameter {number}": parameter for number, parameter in enumerate(parameters)}
    return _recording(recorder, name, sizes, named, recorder.live(), None)


def _adamw(device: str, **keywords: bool) -> dict[str, Any]:
    chosen = ", ".join(f"{key}={value}" for key, value in keywords.items())

    def call(parameters: list[torch.nn.Parameter]) -> Any:
        return torch.optim.AdamW(parameters, **keywords)

    return _update(call, f"torch.optim.AdamW({chosen}).step", device)


def _clip(foreach: bool) -> dict[str, Any]:
    def call(parameters: list[torch.nn.Parameter]) -> Any:
        return partial(torch.nn.utils.clip_grad_norm_, parameters, 1.0, foreach=foreach)

    return _update(call, f"torch.nn.utils.clip_grad_norm_(foreach={foreach})", "cpu")


def _to_bfloat16(module: Any) -> Any:
    """Cast the parameters, as FSDP does for the compute; buffers of rotary embeddings stay as they are."""
    for parameter in module.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    return module.train()


# Sizes of latent attention: widths of the compressed queries and keys, and of a head's parts.
DEEPSEEK: Final = {
    **SIZES, "num_kv_heads": 8, "ffn_size": 640, "num_experts": 8, "top_k": 3, "q_lora_rank": 112, "kv_lora_rank": 176,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 96,
}  # fmt: skip


def _titan_layer(family: str, sizes: Mapping[str, int], attention: str = "varlen") -> Any:
    """Return the configuration of torchtitan for one layer of a family."""
    library = importlib.import_module(f"torchtitan.models.{family}")
    common = importlib.import_module("torchtitan.models.common")
    width = sizes["hidden_size"] // sizes["num_heads"]
    shared = {"n_layers": 1, "dim": sizes["hidden_size"], "n_heads": sizes["num_heads"], "attn_backend": attention}
    grouped = {**shared, "n_kv_heads": sizes["num_kv_heads"]}
    if family == "llama3":
        rope = common.ComplexRoPE.Config(dim=width, max_seq_len=1024, theta=500000, scaling="llama")
        return library._build_llama3_layers(**grouped, hidden_dim=sizes["ffn_size"], rope=rope)[0]
    experts = {"num_experts": sizes["num_experts"], "moe_comm_backend": "standard"}
    if family == "qwen3":
        rope = common.CosSinRoPE.Config(dim=width, max_seq_len=1024, theta=1000000.0)
        return library._build_qwen3_moe_layers(
            **grouped, **experts, head_dim=width, moe_hidden_dim=sizes["ffn_size"], top_k=sizes["top_k"], rope=rope
        )[0]
    latent = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    rope = common.ComplexRoPE.Config(dim=sizes["qk_rope_head_dim"], max_seq_len=1024, theta=10000.0)
    return library._build_dsv3_layers(
        **shared, **experts, **{key: sizes[key] for key in latent}, n_dense_layers=0, mscale=1.0,
        dense_hidden_dim=sizes["ffn_size"], moe_hidden_dim=sizes["ffn_size"], num_shared_experts=1,
        router_top_k=sizes["top_k"], router_score_func="sigmoid", rope=rope,
        non_blocking_capacity_factor=None,
    )[0]  # fmt: skip


def _titan(family: str, sizes: Mapping[str, int] = SIZES, packed: bool = True) -> dict[str, Any]:
    """Record a layer of torchtitan; `packed` sequences have positions, and attention knows where documents begin."""
    from torchtitan.models.common.attention import ScaledDotProductAttention, VarlenMetadata

    config = _titan_layer(family, sizes)
    if not packed:
        config.attention.inner_attention = ScaledDotProductAttention.Config()
    with torch.device("meta"):
        block = _to_bfloat16(config.build())
        length = sizes["seq_len"]
        positions = torch.empty((sizes["sequences"], length), dtype=torch.int64)
        # As many documents as sequences: each begins where one ends.
        starts = torch.empty(sizes["sequences"] + 1, dtype=torch.int32)

    def call(module: Any, hidden: torch.Tensor, positions: Any = None, starts: Any = None) -> torch.Tensor:
        masks = None if starts is None else VarlenMetadata(starts, starts, length, length)
        return module(hidden, masks, positions)

    inputs = {"hidden": _hidden()}
    if packed:
        inputs |= {"positions": positions, "starts": starts}
    return record(block, inputs, call, sizes)


def _titan_head(chunks: int = 0) -> dict[str, Any]:
    """Record torchtitan's head with its loss, at once or in chunks, each with its backward pass behind it."""
    from torchtitan.components import loss
    from torchtitan.models.common import Linear

    config = Linear.Config(in_features=SIZES["hidden_size"], out_features=SIZES["vocab_size"])
    with torch.device("meta"):
        head = _to_bfloat16(config.build())
    if chunks:
        measure: Any = loss.ChunkedLossWrapper.Config(num_chunks=chunks).build()
        measure.set_lm_head(head)
    else:
        measure = loss.CrossEntropyLoss.Config().build()

    def call(module: Any, hidden: torch.Tensor, labels: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return measure(hidden if chunks else module(hidden), labels, tokens)[0]

    inputs = {"hidden": _hidden(), "labels": _labels(), "tokens": torch.empty((), device="meta", dtype=torch.int64)}
    sizes = {**SIZES, "chunks": chunks or 1}
    return record(head, inputs, call, sizes, name=f"{_name(head)} and {_name(measure)}")


def _tune() -> Any:
    """Return a Llama 3 of torchtune with one layer."""
    from torchtune.models.llama3 import llama3

    with torch.device("meta"):
        model = llama3(
            vocab_size=SIZES["vocab_size"], num_layers=1, num_heads=SIZES["num_heads"],
            num_kv_heads=SIZES["num_kv_heads"], embed_dim=SIZES["hidden_size"], max_seq_len=1024,
            intermediate_dim=SIZES["ffn_size"],
        )  # fmt: skip
    return _to_bfloat16(model)


def _tune_layer() -> dict[str, Any]:
    return record(_tune().layers[0], {"hidden": _hidden()}, lambda module, hidden: module(hidden), SIZES)


def _tune_head(chunks: int = 8) -> dict[str, Any]:
    """Record torchtune's head with its loss, both in chunks."""
    from torchtune.modules.loss import CEWithChunkedOutputLoss

    model, loss = _tune(), CEWithChunkedOutputLoss(num_output_chunks=chunks)
    model.set_num_output_chunks(chunks)

    def call(module: Any, hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return loss(model.chunked_output(hidden), labels)

    name = f"{_name(model)}.chunked_output and {_name(loss)}"
    return record(
        model.output, {"hidden": _hidden(), "labels": _labels()}, call, {**SIZES, "chunks": chunks}, name=name
    )


def _megatron_ranks(expert_parallel: int = 0) -> None:
    """Start Megatron-Core's groups on one rank, or on the first of made-up ranks that share the experts."""
    from megatron.core import jit

    jit.disable_jit_fuser()  # before the modules load that it decorates
    from megatron.core import parallel_state

    if torch.distributed.is_initialized():
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
    if expert_parallel:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=expert_parallel)
    else:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(
        expert_model_parallel_size=expert_parallel or 1, create_gloo_process_groups=not expert_parallel
    )


class _Stream:
    """Stands for a stream of a GPU, and for its events."""

    def wait_stream(self, other: Any) -> None:
        """Wait on the GPU, which launches nothing."""

    def record_event(self) -> _Stream:
        """Return what stands for an event."""
        return self

    def synchronize(self) -> None:
        """Let the host wait."""
        torch.ops.host.wait()


@contextmanager
def _megatron_on(device: str) -> Iterator[None]:
    """Lend Megatron-Core another device as its GPU: random numbers, streams, and copies to the host."""
    from megatron.core import tensor_parallel
    from megatron.core.transformer.moe import token_dispatcher

    def to_host(array: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
        if not isinstance(array, torch.Tensor):
            return array
        copy = torch.ops.host.copy(array)
        return copy.numpy() if as_numpy else copy

    def to_host_at_once(array: torch.Tensor) -> Any:
        copy = torch.ops.host.copy(array)
        torch.ops.host.wait()
        return copy

    tracker = tensor_parallel.get_cuda_rng_tracker()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(tracker, "fork", return_value=nullcontext()))
        stack.enter_context(mock.patch.object(torch.cuda, "current_device", return_value=device))
        if device == "cpu":
            stream = _Stream()
            for name, stand_in in {
                "Stream": _Stream, "current_stream": lambda: stream, "stream": lambda _: nullcontext(),
            }.items():  # fmt: skip
                stack.enter_context(mock.patch.object(torch.cuda, name, stand_in))
            stack.enter_context(mock.patch.object(token_dispatcher, "maybe_move_tensor_to_cpu", to_host))
            stack.enter_context(mock.patch.object(torch.Tensor, "cpu", to_host_at_once))
        yield


def _megatron(gated: bool) -> dict[str, Any]:
    """Record a layer of Megatron-Core's local specification on one rank, without fused operations.

    A `gated` layer is one of Llama (RMS norms, SwiGLU, no biases), another one of GPT (layer norms, GELU, biases).
    """
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    _megatron_ranks()
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer.spec_utils import build_module
    from megatron.core.transformer.transformer_config import TransformerConfig

    functional = torch.nn.functional
    norm = "RMSNorm" if gated else "LayerNorm"
    config = TransformerConfig(
        num_layers=1, hidden_size=SIZES["hidden_size"], num_attention_heads=SIZES["num_heads"],
        num_query_groups=SIZES["num_kv_heads"], ffn_hidden_size=SIZES["ffn_size"], hidden_dropout=0.0,
        attention_dropout=0.0, bf16=True, params_dtype=torch.bfloat16, use_cpu_initialization=True,
        perform_initialization=False, gated_linear_unit=gated, add_bias_linear=not gated, normalization=norm,
        activation_func=functional.silu if gated else functional.gelu,
    )  # fmt: skip
    length, sequences = SIZES["seq_len"], SIZES["sequences"]
    with torch.device("meta"):
        layer = build_module(get_gpt_layer_local_spec(normalization=norm), config=config, layer_number=1)
        layer = layer.to(torch.bfloat16).train()
        # Megatron puts tokens first, and its data loader makes the mask.
        hidden = torch.empty((length, sequences, SIZES["hidden_size"]), dtype=torch.bfloat16, requires_grad=True)
        mask = torch.empty((sequences, 1, length, length), dtype=torch.bool)
        angles = torch.empty((length, 1, 1, SIZES["hidden_size"] // SIZES["num_heads"]))

    def call(module: Any, hidden: torch.Tensor, mask: torch.Tensor, angles: Any = None) -> torch.Tensor:
        return module(hidden, attention_mask=mask, rotary_pos_emb=angles)[0]

    inputs = {"hidden": hidden, "mask": mask, **({"angles": angles} if gated else {})}
    with _megatron_on("meta"):
        return record(layer, inputs, call, SIZES)


# Sizes of Megatron-Core's layers with experts.
MEGATRON_QWEN3_MOE: Final = {**QWEN3_MOE, "top_k": 2}
MEGATRON_DEEPSEEK: Final = {**DEEPSEEK, "num_groups": 2, "group_top_k": 1, "shared_ffn_size": 640}


def _megatron_experts_config(kind: str, sizes: Mapping[str, int], ranks: int, dispatcher: str) -> Any:
    """Return the configuration of a layer with experts, as NVIDIA's examples train Qwen3 and DeepSeek-V3."""
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig

    shared: dict[str, Any] = {
        "num_layers": 1, "hidden_size": sizes["hidden_size"], "num_attention_heads": sizes["num_heads"],
        "ffn_hidden_size": sizes["ffn_size"], "moe_ffn_hidden_size": sizes["ffn_size"], "hidden_dropout": 0.0,
        "attention_dropout": 0.0, "bf16": True, "params_dtype": torch.bfloat16, "use_cpu_initialization": True,
        "perform_initialization": False, "gated_linear_unit": True, "add_bias_linear": False,
        "normalization": "RMSNorm", "activation_func": torch.nn.functional.silu, "qk_layernorm": True,
        "num_moe_experts": sizes["num_experts"], "moe_router_topk": sizes["top_k"], "moe_router_dtype": "fp32",
        "moe_token_dispatcher_type": dispatcher, "expert_model_parallel_size": ranks,
    }  # fmt: skip
    if kind == "qwen3_moe":
        return TransformerConfig(
            **shared, num_query_groups=sizes["num_kv_heads"], moe_router_load_balancing_type="aux_loss",
            moe_aux_loss_coeff=1e-3,
        )  # fmt: skip
    return MLATransformerConfig(
        **shared, num_query_groups=sizes["num_heads"], kv_channels=sizes["v_head_dim"],
        q_lora_rank=sizes["q_lora_rank"], kv_lora_rank=sizes["kv_lora_rank"], qk_head_dim=sizes["qk_nope_head_dim"],
        qk_pos_emb_head_dim=sizes["qk_rope_head_dim"], v_head_dim=sizes["v_head_dim"],
        moe_router_load_balancing_type="seq_aux_loss", moe_aux_loss_coeff=1e-4, moe_router_score_function="sigmoid",
        moe_router_enable_expert_bias=True, moe_router_topk_scaling_factor=2.5,
        moe_router_num_groups=sizes["num_groups"], moe_router_group_topk=sizes["group_top_k"],
        moe_shared_expert_intermediate_size=sizes["shared_ffn_size"],
    )  # fmt: skip


def _megatron_parts(layer: Any) -> Parts:
    """Name the parts of a layer with experts."""
    parts = Parts("residual")
    attention, experts = layer.self_attention, layer.mlp
    parts.name(
        layer, {"input_layernorm": "norm", "self_attention": "attention", "pre_mlp_layernorm": "norm of experts"}
    )
    parts.name(attention, {"get_query_key_value_tensors": "qkv", "linear_proj": "projection"})
    for norm in ("q_layernorm", "k_layernorm", "kv_layernorm"):
        if hasattr(attention, norm):
            parts.name(attention, {norm: "qk norm"})
    parts.name(
        experts.router,
        {
            "forward": "router", "_apply_expert_bias": "expert bias", "_apply_aux_loss": "auxiliary loss",
            "_apply_seq_aux_loss": "auxiliary loss",
        },
    )  # fmt: skip
    parts.name(
        experts.token_dispatcher,
        {
            "dispatch_preprocess": "dispatch permute", "token_dispatch": "dispatch communication",
            "dispatch_postprocess": "dispatch sort", "combine_preprocess": "combine sort",
            "token_combine": "combine communication", "combine_postprocess": "combine unpermute",
        },
    )  # fmt: skip
    for function in ("preprocess", "_maybe_dtoh_and_synchronize"):
        if hasattr(experts.token_dispatcher, function):
            parts.name(experts.token_dispatcher, {function: "dispatch counts"})
    parts.name(
        experts, {"experts": "experts", "postprocess": "shared expert", "shared_experts_compute": "shared expert"}
    )
    return parts


def _megatron_experts(kind: str, ranks: int = 1, dispatcher: str = "alltoall") -> dict[str, Any]:
    """Record a layer with experts of Megatron-Core's local specification, without fused operations.

    `kind` is Qwen3's (norms of queries and keys, a softmax after the choice) or DeepSeek-V3's (latent attention,
    sigmoids with an expert bias and groups, a shared expert). `ranks` share the experts.
    """
    os.environ["TORCHDYNAMO_DISABLE"] = "1"
    _megatron_ranks(ranks)
    from megatron.core import parallel_state
    from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.transformer import attention, multi_latent_attention
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.core.transformer.moe import moe_utils, router
    from megatron.core.transformer.spec_utils import build_module

    class Core(DotProductAttention):
        """The local attention, which does not expect the widths that latent attention names."""

        def __init__(self, *args: Any, k_channels: int = 0, v_channels: int = 0, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    latent = kind == "deepseek_v3"
    sizes = MEGATRON_DEEPSEEK if latent else MEGATRON_QWEN3_MOE
    length, sequences = sizes["seq_len"], sizes["sequences"]
    # Two slips of the release without Transformer Engine: a name that is missing, and one that says that it is there.
    moe_utils.te_general_gemm, multi_latent_attention.HAVE_TE = None, False
    torch.manual_seed(0)
    with _megatron_on("cpu"), torch.library._scoped_library("aten", "IMPL") as operations:
        operations.impl("_fused_rms_norm", _fused_rms_norm_of_numbers, "CPU")
        operations.impl("_fused_rms_norm_backward", _fused_rms_norm_gradients, "CPU")
        config = _megatron_experts_config(kind, sizes, ranks, dispatcher)
        spec = get_gpt_layer_local_spec(
            num_experts=sizes["num_experts"], qk_layernorm=True, multi_latent_attention=latent, normalization="RMSNorm"
        )
        spec.submodules.self_attention.submodules.core_attention = Core
        layer = build_module(spec, config=config, layer_number=1)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                parameter.fill_(1) if "layernorm" in name else parameter.normal_(0, 0.02)
        layer = layer.to(torch.bfloat16).train()  # buffers too, as Megatron does
        layer.mlp.router._maintain_float32_expert_bias()
        shape = length, sequences, sizes["hidden_size"]
        hidden = torch.randn(shape, dtype=torch.bfloat16, requires_grad=True)
        mask = torch.ones((length, length), dtype=torch.bool).triu(1).expand(sequences, 1, length, length).contiguous()
        width = sizes["hidden_size"] // sizes["num_heads"]
        rotary = RotaryEmbedding(width, 1.0, use_cpu_initialization=True)
        if latent:
            rotary = layer.self_attention.rotary_pos_emb
        angles = rotary(length, packed_seq=False)  # kept from then on
        # What a training loop has made before: sums of the auxiliary loss, and the loss's scale.
        losses, scale = torch.zeros(1), torch.ones(1)
        named = "seq_load_balancing_loss" if latent else "load_balancing_loss"
        moe_utils.get_moe_layer_wise_logging_tracker()[named] = {"values": losses}
        moe_utils.MoEAuxLossAutoScaler.main_loss_backward_scale = scale

        def call(module: Any, hidden: torch.Tensor, mask: torch.Tensor, angles: Any, **_: Any) -> torch.Tensor:
            return module(hidden, attention_mask=mask, rotary_pos_emb=None if latent else angles)[0]

        with torch.no_grad():
            call(layer, hidden, mask, angles[0] if latent else angles)
        parallel_state.get_global_memory_buffer().buffer.clear()
        counts: list[int] = []
        layer.mlp.experts.register_forward_pre_hook(lambda _, arguments: counts.extend(arguments[1].tolist()))
        parts = _megatron_parts(layer)
        inputs = {
            "hidden": hidden, "mask": mask, "angles": angles[0] if latent else angles, "losses": losses, "scale": scale,
        }  # fmt: skip
        with ExitStack() as stack:
            rotated, scores = "apply_rotary_pos_emb", "compute_routing_scores_for_aux_loss"
            for module in (attention, multi_latent_attention):
                call_of = parts.named("rotary", getattr(module, rotated))
                stack.enter_context(mock.patch.object(module, rotated, call_of))
            call_of = parts.named("auxiliary loss", getattr(router, scores))
            stack.enter_context(mock.patch.object(router, scores, call_of))
            name = (
                f"{_name(layer)} ({type(layer.self_attention).__name__}, {type(layer.mlp.router).__name__}, "
                f"{type(layer.mlp.token_dispatcher).__name__}, {type(layer.mlp.experts).__name__}; local "
                f"specification, without Transformer Engine, fused operations and torch.compile)"
            )
            sizes = {**sizes, "expert_parallel": ranks}
            return {"tokens_per_expert": counts, **record(layer, inputs, call, sizes, name=name, parts=parts)}


RECORDINGS: Final[Mapping[str, Callable[[], dict[str, Any]]]] = {
    "transformers_llama": lambda: _decoder_layer("llama"),
    "transformers_llama_autocast": lambda: _decoder_layer("llama", torch.float32, autocast=True),
    "transformers_llama_checkpointed": lambda: _decoder_layer("llama", checkpoint=True),
    "transformers_qwen3": lambda: _decoder_layer("qwen3"),
    "transformers_mixtral": lambda: _decoder_layer("mixtral", sizes=MIXTRAL),
    "transformers_mixtral_loop": lambda: _loop_over_experts("mixtral"),
    "transformers_qwen3_moe": lambda: _decoder_layer("qwen3_moe", sizes=QWEN3_MOE),
    "transformers_qwen3_moe_loop": lambda: _loop_over_experts("qwen3_moe"),
    "transformers_head": _head,
    "transformers_head_items": lambda: _head(num_items_in_batch=torch.empty((), device="meta", dtype=torch.int64)),
    "transformers_embedding": _embedding,
    "transformers_gpt2": _gpt2,
    "transformers_gpt2_autocast": lambda: _gpt2(autocast=True),
    "peft_lora": lambda: _adapted(widened=True),
    "peft_lora_bfloat16": lambda: _adapted(widened=False),
    "torchtitan_llama3": lambda: _titan("llama3"),
    "torchtitan_llama3_sdpa": lambda: _titan("llama3", packed=False),
    "torchtitan_qwen3_moe": lambda: _titan("qwen3", QWEN3_MOE),
    "torchtitan_deepseek_v3": lambda: _titan("deepseek_v3", DEEPSEEK),
    "torchtitan_head": _titan_head,
    "torchtitan_head_chunked": lambda: _titan_head(chunks=8),
    "torchtune_llama3": _tune_layer,
    "torchtune_head": _tune_head,
    "megatron_llama": lambda: _megatron(gated=True),
    "megatron_gpt": lambda: _megatron(gated=False),
    "megatron_moe_alltoall": lambda: _megatron_experts("qwen3_moe"),
    "megatron_moe_alltoall_ep2": lambda: _megatron_experts("qwen3_moe", 2),
    "megatron_moe_alltoall_ep4": lambda: _megatron_experts("qwen3_moe", 4),
    "megatron_moe_allgather_ep4": lambda: _megatron_experts("qwen3_moe", 4, "allgather"),
    "megatron_mla_moe": lambda: _megatron_experts("deepseek_v3"),
    "megatron_mla_moe_ep4": lambda: _megatron_experts("deepseek_v3", 4),
    "torch_adamw_foreach": lambda: _adamw("meta", foreach=True),
    "torch_adamw_fused": lambda: _adamw("cpu", fused=True),
    "torch_adamw_for_loop": lambda: _adamw("meta", foreach=False),
    "torch_clip_foreach": lambda: _clip(foreach=True),
    "torch_clip_for_loop": lambda: _clip(foreach=False),
}

# Packages that a recording runs, besides PyTorch, by the first word of its name.
PACKAGES: Final[Mapping[str, tuple[str, ...]]] = {
    "transformers": ("transformers",),
    "peft": ("peft", "transformers"),
    "torchtitan": ("torchtitan",),
    "torchtune": ("torchtune",),
    "megatron": ("megatron-core",),
    "torch": (),
}


def main() -> None:
    """Write the recordings that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="recordings; all without a name")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    options = parser.parse_args()
    for name in options.names or RECORDINGS:
        recording = RECORDINGS[name]()
        views = recording.pop("views")
        packages = ["torch", *PACKAGES[name.partition("_")[0]]]
        versions = {package: importlib.metadata.version(package) for package in packages}
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"versions": versions, **recording}, indent=None, separators=(",", ":"))
        (options.out / f"{name}.json").write_text(text.replace('},{"phase"', '},\n{"phase"') + "\n", encoding="utf-8")
        print(f"{name}: {len(recording['rows'])} operations; taken for views: {' '.join(views)}")


if __name__ == "__main__":
    main()
