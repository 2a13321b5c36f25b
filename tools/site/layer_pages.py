"""Which types of layers may a file of layers name? The page is written from the types in the code."""

from __future__ import annotations

from typing import Final

from simulator.model.layer_types import LAYER_TYPES, LayerKey

_INTRO: Final = """# Layers

A file of layers describes a model whose layers are known ([How do I simulate my own network: a CNN, or any PyTorch
module?](../howto/own_network.md)). This page lists its keys, and the types of layers with the meaning and the default
of each key, for users who write such a file.
"""
# Key, meaning, example.
_KEYS: Final = (
    (
        "`input`",
        "shape of a sample: `[channels, height, width]`, `[tokens, width]`, `[width]`, or a number of token numbers",
        "`[3, 224, 224]`, `{tokens: 1024}`",
    ),
    ("`layers`", "the layers, in order", "`[{linear: [784, 10]}]`"),
    ("`loss`", "`cross_entropy` (default), `mean_squared_error` or `none`", "`none`"),
    ("`source`", "source of the figures, for readers", "`He et al., 2016`"),
)
_COMPOSED: Final = (
    (
        "`block`",
        "layers that are one: gathered by FSDP, recomputed, and placed on a pipeline stage together",
        "`block: [{linear: [64, 64]}, relu]`",
    ),
    (
        "`repeat`",
        "as many equal blocks; inside a block, as many equal layers",
        "`{repeat: 12, layers: [{mlp: 3072}]}`",
    ),
    (
        "`residual`",
        "the layers' output plus their input, or plus the output of the layers of `shortcut`",
        "`residual: {layers: [relu], shortcut: []}`",
    ),
    (
        "`branch`",
        "layers on an input of their own, such as a condition; their output does not enter the next layer",
        "`branch: {input: [1152], layers: [silu]}`",
    ),
)
_BETWEEN: Final = """
A layer is its type alone (`relu`), or the type with its keys. Four words compose layers:
"""
_AFTER: Final = """
Layers before the first block are the model's first part, layers after the last block its last part. Without blocks
every layer with parameters begins a part.
"""


def layer_page() -> str:
    """Return the page about types of layers."""
    types = []
    for name, kind in LAYER_TYPES.items():
        keys = "; ".join(f"`{key}`: {one.meaning}, {_default(one)}" for key, one in kind.keys.items())
        short = f"`{name}: [{', '.join(kind.short)}]`" if kind.short else ""
        types.append((f"`{name}`", kind.meaning, keys, short))
    return "\n".join([
        _INTRO, _table(("key", "meaning", "example"), _KEYS), _BETWEEN,
        _table(("word", "meaning", "example"), _COMPOSED), _AFTER,
        _table(("type", "meaning", "keys", "short form"), types), "",
    ])  # fmt: skip


def _default(key: LayerKey) -> str:
    """Return the default of a key as text, or that the key is required."""
    return "required" if key.default is None else f"default {key.default}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]] | tuple[tuple[str, ...], ...]) -> str:
    """Return a table as Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
