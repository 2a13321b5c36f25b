"""A layer of a GPT: forward, backward, and the saved tensors under each activation checkpointing policy.

A cache is a dict of saved tensors, keyed by operation. Recomputing a layer gives the same cache.

Pre-LN: m = x + proj(attention(norm(x))); output = m + fc2(gelu(fc1(norm(m)))).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics import attention, flash, layers
from simulator.numerics.arithmetic import Arithmetic
from simulator.numerics.attention import Core, of_documents
from simulator.numerics.context_attention import ContextAttention
from simulator.numerics.cut_linear import CutLinear, Gradients, Left, Part
from simulator.numerics.dropout import Draw
from simulator.numerics.exchange import Pass
from simulator.numerics.experts import Experts
from simulator.numerics.tensor_shard import WHOLE, TensorShard

Cache = dict[str, Any]

_CORES: Final = {"standard": attention.CORE, "flash": flash.CORE}
# A layer has three dropouts; each number gives a different mask.
_SCORES, _PROJECTED, _OUT = range(3)
# Parts of a cache that policies for the feed-forward block drop.
_DROPPED: Final = {"feed_forward": ("fc1", "gelu", "fc2", "experts"), "activation": ("fc2",)}


@dataclass(frozen=True, slots=True)
class TransformerBlock:
    """Settings of a layer's computation."""

    heads: int  # attention heads of the whole model
    arithmetic: Arithmetic
    attention: str = "standard"  # one of {"standard", "flash"}
    share: TensorShard = WHOLE  # this rank's part of the layer and of the sequences
    experts: Experts | None = None  # experts that replace the MLP
    documents: tuple[int, ...] = ()  # tokens of the documents packed into the only sequence; empty: one a sequence

    def forward(self, p: Mapping[str, Array], x: Array, draw: Draw, c: Cache) -> Pass[Array]:
        """Run a layer forward, return its output and fill the cache for the backward pass.

        Parameters
        ----------
        p : mapping of name to array
            Parameters by their names within the layer ("qkv.weight").
        x : float array, shape (batch, seq_len, width)
            This rank's tokens between matrices (with sequence parallelism a part of the sequence).
        c : dict
            Cache to fill with saved tensors.
        """
        a, shape, linear = self.arithmetic, x.shape, self._linears(len(x))
        flat = x.reshape(-1, shape[-1])
        # Shapes on a rank of t tensor-parallel ranks with T tokens between matrices (T / t of them with sequence
        # parallelism):
        #    flat (T, d) -> norm1 (T, d) -> qkv (T, 3 d / t) -> q, k, v (batch, heads / t, seq_len, head_dim)
        #    mixed (batch, heads / t, seq_len, head_dim) -> proj (T, d) -> + flat = middle (T, d)
        #    norm2 (T, d) -> fc1, gelu (T, 4 d / t) -> fc2 (T, d) -> + middle
        normed, c["norm1"] = layers.layer_norm(a, flat, p["ln1.weight"], p["ln1.bias"])
        qkv, c["qkv"] = yield from linear["qkv"].columns(p, normed)
        q, k, v = (self._split(part, len(x)) for part in np.split(qkv, 3, axis=1))
        mixed, c["core"] = yield from self._attend(q, k, v, draw.at(_SCORES))
        projected = yield from linear["proj"].rows(p, self._joined(mixed), c, "proj")
        projected, c["projected"] = layers.dropout(a, projected, draw.at(_PROJECTED))
        middle = a.rounded(flat + projected)
        normed, c["norm2"] = layers.layer_norm(a, middle, p["ln2.weight"], p["ln2.bias"])
        # Draw the mask before the last exchange: a recompute ends before that exchange, yet the backward pass needs the
        # mask.
        c["out"] = draw.at(_OUT).mask(flat.shape)
        if self.experts is None:
            wide, c["fc1"] = yield from linear["fc1"].columns(p, normed)
            bent, c["gelu"] = layers.gelu(a, wide)
            out = yield from linear["fc2"].rows(p, bent, c, "fc2")
        else:
            out, c["experts"] = yield from self.experts.forward(p, normed)
        out = layers.masked(a, out, c["out"], draw.at(_OUT))
        return a.rounded(middle + out).reshape(shape)

    def backward(
        self, p: Mapping[str, Array], c: Cache, dy: Array, draw: Draw, g: Gradients, left: Left, part: Part
    ) -> Pass[Array]:
        """Return the gradient of a layer's input; put the parameters' gradients into `g` by their names within the
        layer.

        `part` selects the whole pass or a half. The input half stores in `left` the arrays that the weight half needs
        (zero-bubble pipelines run the weight half later).
        """
        a, shape, linear = self.arithmetic, dy.shape, self._linears(len(dy))
        if part == "weights":
            # The input half has already computed the gradients of norms, router and experts (they cost little or come
            # with the input's gradient); only the gradients of the large matrices remain.
            names = ("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias", "router.weight")
            g |= {name: left.pop(name) for name in list(left) if name in names or name.startswith("experts.")}
            if self.experts is None:
                yield from linear["fc2"].rows_backward(p, dy, c["fc2"], g, left, part)
                yield from linear["fc1"].columns_backward(p, dy, c["fc1"], g, left, part)
            yield from linear["proj"].rows_backward(p, dy, c["proj"], g, left, part)
            yield from linear["qkv"].columns_backward(p, dy, c["qkv"], g, left, part)
            return dy
        # A split pass reports gradients at the end of the weight half, so the input half puts norms' gradients aside.
        norms = left if part == "input" else g
        flat = dy.reshape(-1, shape[-1])
        d = layers.masked(a, flat, c["out"], draw.at(_OUT))
        if self.experts is None:
            d = yield from linear["fc2"].rows_backward(p, d, c["fc2"], g, left, part)
            d = layers.gelu_backward(a, d, c["gelu"])
            d = yield from linear["fc1"].columns_backward(p, d, c["fc1"], g, left, part)
        else:
            # Experts have no split pass: the gradients of their weights are computed here and reported with the weight
            # half.
            d = yield from self.experts.backward(p, d, c["experts"], norms)
        d, norms["ln2.weight"], norms["ln2.bias"] = layers.layer_norm_backward(a, d, c["norm2"], p["ln2.weight"])
        middle = a.rounded(flat + d)
        d = layers.masked(a, middle, c["projected"], draw.at(_PROJECTED))
        d = yield from linear["proj"].rows_backward(p, d, c["proj"], g, left, part)
        mixed = self._split(a.load(c["proj"]), len(dy))
        # Start gathering qkv's input before attention's backward pass: the gather does not depend on attention, whose
        # last exchange may still be in flight when the gather has ended.
        begun = "" if part == "input" else (yield from linear["qkv"].gather_again(c["qkv"]))
        parts = yield from self._attend_backward(self._split(d, len(dy)), c["core"], mixed, draw.at(_SCORES))
        d = np.concatenate([self._joined(gradient) for gradient in parts], axis=1)
        d = yield from linear["qkv"].columns_backward(p, d, c["qkv"], g, left, part, begun)
        d, norms["ln1.weight"], norms["ln1.bias"] = layers.layer_norm_backward(a, d, c["norm1"], p["ln1.weight"])
        return a.rounded(middle + d).reshape(shape)

    def again(self, p: Mapping[str, Array], x: Array, saved: Cache, draw: Draw, c: Cache) -> Pass[Array]:
        """Recompute a layer's forward pass from its input `x` and fill the cache `c`; tensors in `saved` replace
        recomputed tensors.
        """
        out = yield from self.forward(p, x, draw, c)
        core = c["core"] | saved.get("core", {})
        c |= {name: part for name, part in saved.items() if name != "x"} | {"core": core}
        return out

    def _linears(self, batch: int) -> Mapping[str, CutLinear]:
        """Return the layer's four matrices (qkv, proj, fc1, fc2) by name, for a micro-batch of `batch` sequences."""
        # Exchanges use the names of the cost model (model/partition.py), which calls the MLP's matrices up and down.
        names = {"qkv": "qkv", "proj": "proj", "fc1": "up", "fc2": "down"}
        return {
            matrix: CutLinear(self.arithmetic, self.share, name, f"{matrix}.weight", f"{matrix}.bias", batch)
            for matrix, name in names.items()
        }

    def _attend(self, q: Array, k: Array, v: Array, draw: Draw) -> Pass[tuple[Array, Cache]]:
        """Return attention's output and saved tensors, context-parallel if sequences are cut."""
        if self.share.context > 1:
            return (yield from ContextAttention(self.arithmetic, self.share).forward(q, k, v))
        return self._core.forward(self.arithmetic, q, k, v, draw)

    def _attend_backward(self, dy: Array, saved: Cache, out: Array, draw: Draw) -> Pass[tuple[Array, Array, Array]]:
        """Return the gradients for q, k and v from the output gradient, with forward's implementation."""
        if self.share.context > 1:
            return (yield from ContextAttention(self.arithmetic, self.share).backward(dy, saved, out))
        return self._core.backward(self.arithmetic, dy, saved, out, draw)

    @property
    def _core(self) -> Core:
        core = _CORES[self.attention]
        return of_documents(core, self.documents) if self.documents else core

    def _split(self, x: Array, batch: int) -> Array:
        """Reshape (tokens, own width) to (batch, own heads, tokens of a sequence, head_dim)."""
        return x.reshape(batch, len(x) // batch, self.heads // self.share.tensor, -1).transpose(0, 2, 1, 3)

    def _joined(self, x: Array) -> Array:
        """Return an array of shape (batch, heads, seq_len, head_dim) in the shape (tokens, width)."""
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(len(x) * x.shape[2], -1)


def entry(cache: Cache) -> Array:
    """Return a layer's input from the saved tensors in its cache."""
    x: Array = cache["x"] if "x" in cache else cache["norm1"][0]
    return x


def trimmed(cache: Cache, policy: str) -> Cache:
    """Return the tensors in a layer's cache that a checkpointing policy keeps.

    Parameters
    ----------
    cache : Cache
        Complete cache of the forward pass.
    policy : {"full", "attention", "selective_op", "feed_forward", "activation"}
        "full" keeps the layer's input. "attention" drops the arrays of the scores' size. "selective_op" keeps the
        layer's input, attention's output, and the results of every second of the four matmuls: queries, keys and values
        (a single matmul), and GELU's input. "feed_forward" drops the arrays of the feed-forward block, "activation"
        only GELU's output.

    Raises
    ------
    ValueError
        The policy is unknown.
    """
    x = {"x": cache["norm1"][0]}
    core = {name: part for name, part in cache["core"].items() if name not in attention.SCORES}
    if policy == "full":
        return x
    if policy == "attention":
        return cache | {"core": core}
    if policy == "selective_op":
        # Experts have no single input of GELU: all their arrays are recomputed.
        return x | {name: cache[name] for name in ("proj", "gelu") if name in cache} | {"core": core}
    if policy in _DROPPED:
        return {name: part for name, part in cache.items() if name not in _DROPPED[policy]}
    raise ValueError(f"checkpointing: got {policy!r}; one of full, attention, selective_op, {', '.join(_DROPPED)}")
