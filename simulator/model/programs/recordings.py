"""Which recordings of real modules prove the kernels of a program or of a loss? The tests compare them.

A recording lists what PyTorch launches in a module's forward and backward pass (tools/record_framework.py): kernels by
name and bytes, saved tensors, and the most bytes of memory. tests/contracts/test_every_recording.py holds this list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from simulator.model.operation import LossKernels, ProgramName


@dataclass(frozen=True, slots=True)
class Recording:
    """A recording of a real module that tests compare with kernels of the package."""

    name: str  # name of the file in tests/recordings
    # Part of a model whose kernels the recording proves; of a head, those over its logits.
    part: Literal["layer", "head"]
    proves: ProgramName | LossKernels  # program of the layer, or implementation of the head's loss
    # `module`, `versions`: Recorded module, and the packages from which it was recorded.
    module: str
    versions: str


_TITAN: Final = "torch 2.13.0+cpu, torchtitan 0.3.0"
_TUNE: Final = "torch 2.13.0+cpu, torchtune 0.6.1"
_TRANSFORMERS: Final = "torch 2.13.0+cpu, transformers 5.24.0"
_TITAN_LAYER: Final = "torchtitan.models.llama3.model.Llama3TransformerBlock"
_GPT2: Final = "transformers.models.gpt2.modeling_gpt2.GPT2Block"
_TITAN_HEAD: Final = "torchtitan.models.common.linear.Linear and torchtitan.components.loss.CrossEntropyLoss"
_TUNE_LAYER: Final = "torchtune.modules.transformer.TransformerSelfAttentionLayer"
_LLAMA: Final = "transformers.models.llama.modeling_llama.LlamaDecoderLayer"
_QWEN3: Final = "transformers.models.qwen3.modeling_qwen3.Qwen3DecoderLayer"
_HEAD: Final = "transformers.models.llama.modeling_llama.LlamaForCausalLM (lm_head and loss_function)"

RECORDINGS: Final = (
    Recording("torchtitan_llama3_sdpa", "layer", "torchtitan", _TITAN_LAYER, _TITAN),
    Recording("torchtune_llama3", "layer", "torchtune", _TUNE_LAYER, _TUNE),
    Recording("transformers_llama", "layer", "transformers", _LLAMA, _TRANSFORMERS),
    Recording("transformers_qwen3", "layer", "transformers", _QWEN3, _TRANSFORMERS),
    Recording("transformers_llama_autocast", "layer", "transformers", _LLAMA, _TRANSFORMERS),
    Recording("transformers_gpt2", "layer", "transformers", _GPT2, _TRANSFORMERS),
    Recording("transformers_gpt2_autocast", "layer", "transformers", _GPT2, _TRANSFORMERS),
    Recording("torchtitan_head", "head", "separate", _TITAN_HEAD, _TITAN),
    Recording("transformers_head", "head", "separate", _HEAD, _TRANSFORMERS),
    Recording("transformers_head_items", "head", "separate", _HEAD, _TRANSFORMERS),
)


def recordings_of(part: str, proves: str) -> tuple[Recording, ...]:
    """Return the recordings that prove the kernels of a part of a model, by its program or its loss.

    >>> [recording.name for recording in recordings_of("layer", "torchtune")], recordings_of("layer", "bare")
    (['torchtune_llama3'], ())
    """
    return tuple(recording for recording in RECORDINGS if (recording.part, recording.proves) == (part, proves))
