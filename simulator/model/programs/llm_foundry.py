"""Parts of a layer of an MPT model as llm-foundry launches them: eager PyTorch, LayerNorm in the activations' dtype.

Source: mosaicml/llm-foundry 5e85bd62d, llmfoundry/models/layers (blocks.py, norm.py, attention.py, ffn.py); its
benchmarks choose `low_precision_layernorm` (scripts/train/benchmarking/submit_benchmarks.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from simulator.model.programs.bare import Heads
from simulator.model.programs.tape import Array
from simulator.model.programs.torchtitan import joined_gradients
from simulator.model.programs.transformers import TransformersParts


def layer_norm(hidden: Array, weight: Array) -> Array:
    """Return PyTorch's LayerNorm; backward a kernel makes the input's gradient, and another one the weight's
    (aten/src/ATen/native/cuda/layer_norm_kernel.cu, `LayerNormBackwardKernelImplInternal`).
    """
    tape = hidden.storage.tape
    result, statistics = tape.array(hidden.shape, hidden.dtype), tape.array((*hidden.shape[:-1], 2), "float32")
    tape.moved("native_layer_norm", [hidden, weight], [result, statistics], reduces=True)
    saved = hidden.view(), statistics.view(), weight.view()

    def formula(gradients: Sequence[Array]) -> list[Array | None]:
        of_hidden, of_weight = (tape.array(array.shape, array.dtype) for array in (saved[0], saved[2]))
        tape.moved("native_layer_norm_backward", [gradients[0], *saved], [of_hidden], reduces=True)
        tape.moved("native_layer_norm_backward of the weight", [gradients[0], *saved[:2]], [of_weight], reduces=True)
        return [of_hidden, of_weight]

    tape.node([hidden, weight], [result], saved, formula)
    return result


@dataclass(frozen=True, slots=True)
class LlmFoundryParts(TransformersParts):
    """Writes the parts of a layer as llm-foundry's modules compute them."""

    def norm(self, name: str, hidden: Array) -> Array:
        """Return the norm: LayerNorm by PyTorch's own kernels."""
        if self.model.norm == "rmsnorm":
            return TransformersParts.norm(self, name, hidden)
        with self.tape.named(name) as part:
            normed = layer_norm(hidden, self._weight(name, (hidden.shape[-1],), hidden.dtype))
            part.output = normed.nbytes
        return normed

    def queries_keys_values(self, hidden: Array) -> Heads:
        """Return queries, keys and values, views of one matrix's product, whose gradients are joined by a copy."""
        (product,) = self.projected(hidden, [sum(self.head_widths)])
        with self.tape.named("qkv"):
            return Heads(*joined_gradients(product, self.head_widths))


PARTS: Final = LlmFoundryParts
