"""Records which operations a framework's modules launch, and which tensors they save: `tests/recordings/NAME.json`.

    python -m tools.record_framework --out tests/recordings [NAME ...]

A module runs forward and backward on PyTorch's meta device, which has shapes and no numbers. A dispatch mode sees each
operation of ATen, autograd's included, with its arrays; hooks see the saved tensors; weak references see when a storage
is freed. Flash attention is asked for by name, because the meta device would choose the kernels of a processor.

The frameworks are no dependencies of the project: run this file in an environment with PyTorch's CPU build and the
packages that a recording needs. The recordings are facts for tests/test_recordings.py.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
import torch.fx.experimental._config
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
    # Storages that existed before: parameters and inputs, with their names.
    known: dict[int, str] = field(default_factory=dict)
    # Leaves, whose gradients outlive the backward pass.
    leaves: list[torch.Tensor] = field(default_factory=list)
    phase: str = "forward"

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
            if number not in self.known and not reference.expired()
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        read = [self._array(tensor) for tensor in _tensors((args, kwargs))]
        out = func(*args, **(kwargs or {}))
        written = [self._array(tensor) for tensor in _tensors(out)]
        inside = {array["storage"] for array in read}
        alias = bool(written) and all(array["storage"] in inside for array in written)
        in_place = any(argument.is_write for argument in map(_alias, func._schema.arguments) if argument)
        if not (alias and not in_place):
            self.rows.append(
                {"phase": self.phase, "op": str(func), "reads": read, "writes": written, "live": self.live()}
            )
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


def _alias(argument: Any) -> Any:
    return argument.alias_info


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
    attend = torch.ops.aten._scaled_dot_product_flash_attention
    return attend(query, key, value, dropout_p, is_causal, scale=scale)[0]


def record(
    module: torch.nn.Module, inputs: Mapping[str, torch.Tensor], call: Callable[..., Any], autocast: bool = False
) -> dict[str, Any]:
    """Return the operations and saved tensors of a module's forward and backward pass.

    `inputs` are tensors by name; `call` runs the module on them and returns its output.
    """
    recorder = Recorder()
    for name, parameter in [*module.named_parameters(), *module.named_buffers()]:
        recorder.know(name, parameter)
    for name, tensor in inputs.items():
        recorder.know(f"input:{name}", tensor)
    attention = torch.nn.functional.scaled_dot_product_attention
    torch.nn.functional.scaled_dot_product_attention = flash
    try:
        with recorder.recording():
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                output = call(module, **inputs)
            after_forward = recorder.live()
            recorder.phase = "backward"
            gradient = torch.empty_like(output)
            recorder.know("input:gradient of the output", gradient)
            recorder.rows = [row for row in recorder.rows if row["op"] != "aten.empty_like.default" or row["writes"][0]["storage"] not in recorder.known]  # fmt: skip
            keeps = output.untyped_storage().nbytes()
            output.backward(gradient)
    finally:
        torch.nn.functional.scaled_dot_product_attention = attention
    names = {str(number): name for number, name in recorder.known.items()}
    saved = [array for number, array in recorder.saved.items() if number not in recorder.known]
    kept = [names[str(number)] for number in recorder.saved if number in recorder.known]
    return {
        "known": names, "rows": recorder.rows, "saved": saved, "saved_inputs": sorted(kept),
        "after_forward": after_forward, "output": keeps,
    }  # fmt: skip


def _hidden(dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    shape = SIZES["sequences"], SIZES["seq_len"], SIZES["hidden_size"]
    return torch.empty(shape, device="meta", dtype=dtype, requires_grad=True)


def _transformers(kind: str, **changes: Any) -> tuple[Any, Any, Any]:
    """Return a decoder layer of Transformers, its rotary embedding, and its configuration."""
    import transformers

    names = {"llama": "Llama", "qwen3": "Qwen3", "mixtral": "Mixtral", "qwen3_moe": "Qwen3Moe"}
    library = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
    config = getattr(transformers, f"{names[kind]}Config")(
        hidden_size=SIZES["hidden_size"], num_attention_heads=SIZES["num_heads"],
        num_key_value_heads=SIZES["num_kv_heads"], intermediate_size=SIZES["ffn_size"], num_hidden_layers=1,
        vocab_size=SIZES["vocab_size"], head_dim=SIZES["hidden_size"] // SIZES["num_heads"],
        attn_implementation="sdpa", **changes,
    )  # fmt: skip
    with torch.device("meta"):
        layer = getattr(library, f"{names[kind]}DecoderLayer")(config, 0)
        rotary = getattr(library, f"{names[kind]}RotaryEmbedding")(config)
    return layer, rotary, config


def _layer_of_transformers(kind: str, dtype: torch.dtype = torch.bfloat16, autocast: bool = False) -> dict[str, Any]:
    layer, rotary, _ = _transformers(kind)
    layer = layer.to(dtype).train()
    hidden = _hidden(dtype)
    places = torch.arange(SIZES["seq_len"], device="meta")[None]
    with torch.no_grad():
        cos, sin = rotary(hidden, places)

    def call(module: Any, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        out = module(hidden, position_embeddings=(cos, sin), attention_mask=None)
        return out[0] if isinstance(out, tuple) else out

    return record(layer, {"hidden": hidden, "cos": cos, "sin": sin}, call, autocast)


RECORDINGS: Final[Mapping[str, Callable[[], dict[str, Any]]]] = {
    "transformers_llama": lambda: _layer_of_transformers("llama"),
    "transformers_llama_autocast": lambda: _layer_of_transformers("llama", torch.float32, autocast=True),
    "transformers_qwen3": lambda: _layer_of_transformers("qwen3"),
    "transformers_mixtral": lambda: _layer_of_transformers("mixtral"),
    "transformers_qwen3_moe": lambda: _layer_of_transformers("qwen3_moe"),
}


def main() -> None:
    """Write the recordings that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="recordings; all without a name")
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    options = parser.parse_args()
    for name in options.names or RECORDINGS:
        recording = RECORDINGS[name]()
        packages = ["torch", name.partition("_")[0]]
        versions = {package: importlib.metadata.version(package) for package in packages}
        options.out.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"versions": versions, "sizes": SIZES, **recording}, indent=None, separators=(",", ":"))
        (options.out / f"{name}.json").write_text(text.replace('},{"phase"', '},\n{"phase"') + "\n", encoding="utf-8")
        print(f"{name}: {len(recording['rows'])} operations")


if __name__ == "__main__":
    main()
