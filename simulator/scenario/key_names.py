"""Which message does an unknown scenario key get: the key meant by the end of a key, or by another program's word?

Our own names are defined only in the records. Here are names used by PyTorch, Hugging Face's Trainer, DeepSpeed and
Megatron-LM, each with advice.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from types import MappingProxyType
from typing import Final

from simulator.basics.errors import one_of
from simulator.scenario.records import KINDS, axis_keys

_BATCH: Final = "write global_batch: 512seq (sequences of all ranks together) or global_batch: 4M (tokens)"
_LENGTH: Final = "one step is simulated; write the length of the training as budget: {tokens: 1e12}"
_GPUS: Final = "write world_size, the number of GPUs in all nodes together"
# Foreign names for each mapping, with advice in place of "did you mean".
_OTHERS: Final = MappingProxyType(
    {
        "training": {
            **dict.fromkeys(("global_batch_size", "train_batch_size", "total_batch_size"), _BATCH),
            "batch_size": f"{_BATCH}; or micro_batch_size for the sequences in a micro-batch of each rank",
            **dict.fromkeys(
                ("per_device_train_batch_size", "train_micro_batch_size_per_gpu", "local_batch_size"),
                "write micro_batch_size",
            ),
            **dict.fromkeys(("learning_rate", "lr"), "write learning: {rate: 1e-3}"),
            "weight_decay": "write learning: {decay: 0.01}",
            **dict.fromkeys(("peft", "adapter", "qlora"), "write lora: {rank: 16}"),
            "warmup_steps": "write learning: {warmup: 100}",
            **dict.fromkeys(("epochs", "num_epochs", "num_train_epochs", "max_steps", "train_iters"), _LENGTH),
            **dict.fromkeys(("max_grad_norm", "gradient_clipping", "clip_grad"), "write clip_norm"),
            **dict.fromkeys(("zero_stage", "zero_optimization", "fsdp"), "write sharding: zero3, zero2, zero1 or ddp"),
            **dict.fromkeys(
                ("gradient_checkpointing", "recompute", "recompute_granularity"), "write activation_checkpointing: full"
            ),
            **dict.fromkeys(("sequence_length", "max_seq_len", "seq_length", "context_length"), "write seq_len"),
            **dict.fromkeys(("bf16", "fp16", "fp8"), "write precision: bf16 (or fp16, fp8)"),
            **dict.fromkeys(
                ("tensor_parallel_size", "tensor_model_parallel_size", "tensor_parallel_degree"),
                "write parallelism: {tp: 8}",
            ),
            **dict.fromkeys(
                ("pipeline_parallel_size", "pipeline_model_parallel_size", "pipeline_parallel_degree"),
                "write parallelism: {pp: 8}",
            ),
        },
        "cluster": dict.fromkeys(("gpus", "num_gpus", "n_gpus", "nodes", "num_nodes", "nnodes"), _GPUS),
        "collective": {
            **dict.fromkeys(("bytes", "nbytes", "message_size"), "write size"),
            **dict.fromkeys(("data_type", "datatype"), "write dtype"),
        },
    }
)
# An ending shared by more keys is not helpful.
_MOST_ENDS: Final = 3


def keys_of(kind: str) -> tuple[str, ...]:
    """Return the dotted keys for a kind of scenario ("collective" or "training").

    Examples
    --------
    >>> "collective.size" in keys_of("collective"), "training.model" in keys_of("collective")
    (True, False)
    """
    return tuple(key for key in axis_keys() if (first := key.partition(".")[0]) == kind or first not in KINDS)


def ending(written: str, keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys meant by a text: the key itself, or every key with this ending.

    Examples
    --------
    >>> ending("algorithm", ["collective.algorithm", "collective.size", "training.algorithm"])
    ('collective.algorithm', 'training.algorithm')
    """
    listed = tuple(keys)
    return (written,) if written in listed else tuple(key for key in listed if key.endswith(f".{written}"))


def _advice(mapping: str, name: str) -> str | None:
    """Return the advice for another program's key; None for an unfamiliar key.

    Other programs have no sections, therefore a key at the top of the file is looked up in each section.
    """
    if mapping:
        return _OTHERS.get(mapping, {}).get(name)
    found = ((section, advice[name]) for section, advice in _OTHERS.items() if name in advice)
    return next((f"{told}, below {section}" for section, told in found), None)


def unknown_key(written: str, keys: Iterable[str], allowed: Iterable[str] | None = None) -> str:
    """Return the message for an unknown dotted key, with the key probably meant.

    Parameters
    ----------
    written : str
        Dotted key.
    keys : iterable of str
        Dotted keys that may be meant.
    allowed : iterable of str, optional
        Names allowed in the same mapping, listed in place of every key.

    Examples
    --------
    >>> unknown_key("training.lr", ["training.seq_len"], ["seq_len"])
    'unknown key; one of seq_len; write learning: {rate: 1e-3}'
    >>> unknown_key("strategy", ["seed", "training.sharding.strategy"])
    "unknown key; one of seed, training.sharding.strategy; did you mean 'training.sharding.strategy'?"
    """
    listed = tuple(keys)
    mapping, _, name = written.rpartition(".")
    # Split a text like "one of a, b; did you mean 'b'?" into menu and suggestion.
    menu, _, near = one_of(listed if allowed is None else allowed, written if allowed is None else name).partition("; ")
    meant = near.rpartition("did you mean ")[2].strip("'?").rpartition(".")[2]
    if mapping and not difflib.get_close_matches(name, [meant]):
        # Both keys share only the mapping's name, and this alone made them similar.
        near = ""
    if allowed is not None:
        # `one_of` shows at most 12 names; show every name in the mapping, since no other list exists.
        names = sorted(allowed)
        menu = menu.replace(", ...", ", " + ", ".join(names[12:]))
    instead = _advice(mapping, name)
    ends = ending(name, listed)
    # Perhaps the end of a key, misspelt.
    if not near and not ends:
        close = difflib.get_close_matches(name, {key.rpartition(".")[2] for key in listed}, n=1)
        ends = ending(close[0], listed) if close else ()
    if instead is not None:
        hint = instead
    elif len(name) > 1 and 0 < len(ends) <= _MOST_ENDS:
        hint = f"did you mean {' or '.join(map(repr, ends))}?"
    else:
        hint = near
    return f"unknown key; {menu}" + (f"; {hint}" if hint else "")
