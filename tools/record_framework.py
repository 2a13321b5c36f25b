"""Records which operations a framework's modules launch, and which tensors they save: `tests/recordings/NAME.json`.

    python -m tools.record_framework --out tests/recordings [NAME ...]

A module runs forward and backward on PyTorch's meta device, which has shapes and no numbers. A dispatch mode sees each
operation of ATen, autograd's included, with its arrays; hooks see the saved tensors; weak references see when a storage
is freed. What a GPU does differently from the meta device is asked for by name: flash attention, the fused RMS norm,
one-hot rows. Code that needs numbers (a loop over experts, fused optimizers) runs on the processor.

A recording lists `rows` (operations that launch something or allocate; views are left out), `known` (storages that
existed before, and gradients of leaves: they do not count in `live`), `saved` (storages kept for the backward pass, but
for known ones, which are named in `saved_inputs`), `after_forward` (bytes alive between the passes, the output
included), `output` (bytes of the output, which is alive during the backward pass), `module`, `parameters`, `sizes`.
A row's `live` counts the bytes right after the operation, when its arguments are still referenced. A gradient of a leaf
counts in the row that computes it, and no more afterwards. Rows of lists have the arrays of all lists in `reads`, and
in `lists` how many belong to each argument. Rows with `device` run on the processor in a run on a GPU, too.

The frameworks are no dependencies of the project: run this file in an environment with PyTorch's CPU build and the
packages that a recording needs. The recordings are facts for tests/test_recordings.py.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import torch._prims_common
import torch.fx.experimental._config
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
        if not torch.is_grad_enabled() and _called_by_autograd():
            func, args = _in_place(func, args)
        read = [self._array(tensor) for tensor in _tensors((args, kwargs))]
        out = func(*args, **kwargs)
        changed = [
            value
            for argument, value in _arguments(func, args, kwargs)
            if argument.alias_info and argument.alias_info.is_write
        ]
        # Operations on lists return nothing: what they write are their arguments.
        written = [self._array(tensor) for tensor in (list(_tensors(out)) or list(_tensors(changed)))]
        inside = {array["storage"] for array in read}
        if written and not changed and all(array["storage"] in inside for array in written):
            self.views.add(str(func))
            return out
        row = {"phase": self.phase, "op": str(func), "reads": read, "writes": written, "live": self.live()}
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
}


def _called_by_autograd() -> bool:
    """Return whether autograd's engine calls an operation, and no Python code between them."""
    frame = sys._getframe(2)
    while frame and frame.f_code.co_filename.endswith(("eval_frame.py", "_compile.py", "record_framework.py")):
        frame = frame.f_back  # type: ignore[assignment]
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


# GPUs have a kernel for this operation. Without this line, the meta device takes it apart, and autograd sees the parts.
_OPERATIONS: Final = torch.library.Library("aten", "IMPL")
_OPERATIONS.m.impl("_fused_rms_norm", "Meta", fused_rms_norm)


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Replace functions that a processor computes in another way than a GPU."""
    functional = torch.nn.functional
    before = functional.scaled_dot_product_attention, functional.one_hot
    functional.scaled_dot_product_attention, functional.one_hot = flash, one_hot  # type: ignore[assignment]
    try:
        yield
    finally:
        functional.scaled_dot_product_attention, functional.one_hot = before


def record(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], call: Callable[..., torch.Tensor],
    sizes: Mapping[str, int], autocast: bool = False, name: str = "",
) -> dict[str, Any]:  # fmt: skip
    """Return the operations and saved tensors of a module's forward and backward pass.

    `inputs` are tensors by name; `call` runs the module on them and returns its output. `name` says what runs, if that
    is not the module's own forward.
    """
    widths = [sizes[key] for key in ("hidden_size", "ffn_size", "vocab_size") if key in sizes]
    widths.append(sizes["sequences"] * sizes["seq_len"])
    assert len({*widths}) == len(widths), f"equal sizes hide a mistake: {sizes}"
    parameters = dict(module.named_parameters())
    recorder = Recorder(device=next(iter(inputs.values())).device.type)
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


RECORDINGS: Final[Mapping[str, Callable[[], dict[str, Any]]]] = {
    "transformers_llama": lambda: _decoder_layer("llama"),
    "transformers_llama_autocast": lambda: _decoder_layer("llama", torch.float32, autocast=True),
    "transformers_llama_checkpointed": lambda: _decoder_layer("llama", checkpoint=True),
    "transformers_qwen3": lambda: _decoder_layer("qwen3"),
    "transformers_mixtral": lambda: _decoder_layer("mixtral", sizes=MIXTRAL),
    "transformers_mixtral_loop": lambda: _loop_over_experts("mixtral"),
    "transformers_qwen3_moe": lambda: _decoder_layer("qwen3_moe", sizes=QWEN3_MOE),
    "transformers_qwen3_moe_loop": lambda: _loop_over_experts("qwen3_moe"),
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
