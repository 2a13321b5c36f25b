"""Which message does an unknown scenario key get: the key meant by the end of a key, or by another program's word?

Our own names are defined only in the records. Here are names used by PyTorch, Hugging Face's Trainer, DeepSpeed and
Megatron-LM, each with advice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from simulator.basics.errors import MOST_MEANT, did_you_mean, one_of, similar

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
            **dict.fromkeys(
                ("freeze", "frozen", "freeze_layers"), "write the trained parts, trainable: [layers 28-31, head]"
            ),
            **dict.fromkeys(("peft", "adapter", "qlora"), "write lora: {rank: 16}"),
            **dict.fromkeys(("dora", "use_dora"), "write lora: {rank: 16, dora: true}"),
            "load_in_4bit": "write lora: {rank: 16, base: nf4}",
            "load_in_8bit": "write lora: {rank: 16, base: int8}",
            "optim": "write optimizer",
            **dict.fromkeys(("padding", "pad_ratio"), "write the share that is not padding, tokens_used: 0.6"),
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
# Most names that stand before the hint.
_LONG_MENU: Final = 12
# An ending shared by more keys is not helpful.
_MOST_ENDS: Final = 3


def ending(written: str, keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys meant by a text: the key itself, or every key with this ending.

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
    matches = ((section, advice[name]) for section, advice in _OTHERS.items() if name in advice)
    return next((f"{advice}, below {section}" for section, advice in matches), None)


def unknown_key(written: str, keys: Iterable[str], allowed: Iterable[str] | None = None) -> str:
    """Return the message for an unknown dotted key, with the keys probably meant.

    Parameters
    ----------
    written : str
        Dotted key.
    keys : iterable of str
        Dotted keys that may be meant.
    allowed : iterable of str, optional
        Names allowed in the same mapping, all listed in the message. Without them, the message contains the keys
        probably meant or, if no key is similar, the command that lists all keys.

    Examples
    --------
    >>> unknown_key("training.lr", ["training.seq_len"], ["seq_len"])
    'unknown key; one of seq_len; write learning: {rate: 1e-3}'
    >>> unknown_key("strategy", ["seed", "training.sharding.strategy"])
    "unknown key; did you mean 'training.sharding.strategy'?"
    """
    listed = tuple(keys)
    mapping, _, name = written.rpartition(".")
    if allowed is None:
        siblings = {key.rpartition(".")[2]: key for key in listed if key.rpartition(".")[0] == mapping}
        menu = ""
    else:
        siblings = {key: key for key in sorted(allowed)}
        menu = f"one of {', '.join(siblings)}"
    hint = _advice(mapping, name) or did_you_mean(_meant(written, listed, siblings, 1 if menu else MOST_MEANT))
    if not menu and not hint:
        menu = one_of(siblings.values() or listed, "", "simulator schema")
    # Behind a long list, nobody would find the hint.
    if len(siblings) > _LONG_MENU and menu and hint:
        return f"unknown key; {hint}{'' if hint.endswith('?') else ';'} {menu}"
    return "; ".join(filter(None, ("unknown key", menu, hint)))


def _meant(written: str, keys: Sequence[str], siblings: Mapping[str, str], most: int) -> Sequence[str]:
    """Return the keys that a dotted key probably means, most of them of its own mapping; empty if none is similar.

    `siblings` maps the names in the same mapping to the texts to propose. Of similar names, at most `most` count.
    """
    mapping, _, name = written.rpartition(".")
    top = f"{mapping.partition('.')[0]}."
    ends = ending(name, keys) if len(name) > 1 else ()
    # training.tp means training.parallelism.tp, and neither plan.fix.tp nor a key similar to training.tp.
    near = tuple(key for key in ends if not mapping or key.startswith(top))
    if 0 < len(near) <= _MOST_ENDS:
        return near
    if close := similar(list(siblings), name, most):
        return [siblings[sibling] for sibling in close]
    if 0 < len(ends) <= _MOST_ENDS:
        return ends
    # Perhaps the mapping is misspelt. Keys that share only the mapping's name are not similar.
    if close := [key for key in similar(keys, written, most) if similar([key.rpartition(".")[2]], name, 1)]:
        return close
    # Perhaps the end of a key, misspelt.
    close = similar(sorted({key.rpartition(".")[2] for key in keys}), name, 1)
    ends = ending(close[0], keys) if close else ()
    return ends if len(ends) <= _MOST_ENDS else ()
