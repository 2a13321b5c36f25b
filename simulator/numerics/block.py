"""One layer of a GPT: forward, backward, and which of its arrays each policy of activation checkpointing keeps.

Rule: a cache is a dict of arrays, named by the operation that needs them; a layer that runs again gives the same cache.

Pre-LN: x + proj(attention(norm(x))), then that + fc2(gelu(fc1(norm(that)))).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics import attention, flash, layers
from simulator.numerics.arithmetic import Arithmetic
from simulator.numerics.context_attention import ContextAttention
from simulator.numerics.cut_linear import CutLinear, Gradients, Left, Part
from simulator.numerics.dropout import Draw
from simulator.numerics.exchange import Pass
from simulator.numerics.experts import Experts
from simulator.numerics.share import WHOLE, Share

Cache = dict[str, Any]

_CORES: Final = {"standard": attention.CORE, "flash": flash.CORE}
# Numbers of a layer's three dropouts, from which their masks are drawn.
_SCORES, _PROJECTED, _OUT = range(3)


@dataclass(frozen=True, slots=True)
class Block:
    """Settings of a layer's computation.

    Attributes
    ----------
    heads : int
        Of the whole model.
    arithmetic : Arithmetic
    attention : {"standard", "flash"}
    share : Share
        What of the layer, and of sequences, this rank has.
    experts : Experts or None
        What stands in the place of the MLP.
    """

    heads: int
    arithmetic: Arithmetic
    attention: str = "standard"
    share: Share = WHOLE
    experts: Experts | None = None

    def forward(self, p: Mapping[str, Array], x: Array, draw: Draw, c: Cache) -> Pass[Array]:
        """Run the layer; return its output, and fill the cache that the backward pass needs.

        Parameters
        ----------
        p : mapping of name to array
            Parameters by their names within the layer.
        x : float array, shape (batch, seq_len, width)
            Of the tokens that this rank has between matrices.
        draw : Draw
        c : dict
        """
        a, shape, linear = self.arithmetic, x.shape, self._linears(len(x))
        flat = x.reshape(-1, shape[-1])
        normed, c["norm1"] = layers.layer_norm(a, flat, p["ln1.weight"], p["ln1.bias"])
        qkv, c["qkv"] = yield from linear["qkv"].columns(p, normed)
        q, k, v = (self._split(part, len(x)) for part in np.split(qkv, 3, axis=1))
        mixed, c["core"] = yield from self._attend(q, k, v, draw.at(_SCORES))
        projected = yield from linear["proj"].rows(p, self._joined(mixed), c, "proj")
        projected, c["projected"] = layers.dropout(a, projected, draw.at(_PROJECTED))
        middle = a.rounded(flat + projected)
        normed, c["norm2"] = layers.layer_norm(a, middle, p["ln2.weight"], p["ln2.bias"])
        # Known before the last exchange, which a pass that is run again may leave out.
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
        """The input's gradient; those of parameters are put into `g`, by their names within the layer.

        What the half for inputs leaves behind for the half for weights is in `left`.
        """
        a, shape, linear = self.arithmetic, dy.shape, self._linears(len(dy))
        if part == "weights":
            made = ("ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias", "router.weight")
            g |= {name: left.pop(name) for name in list(left) if name in made or name.startswith("experts.")}
            if self.experts is None:
                yield from linear["fc2"].rows_backward(p, dy, c["fc2"], g, left, part)
                yield from linear["fc1"].columns_backward(p, dy, c["fc1"], g, left, part)
            yield from linear["proj"].rows_backward(p, dy, c["proj"], g, left, part)
            yield from linear["qkv"].columns_backward(p, dy, c["qkv"], g, left, part)
            return dy
        norms = left if part == "input" else g
        flat = dy.reshape(-1, shape[-1])
        d = layers.masked(a, flat, c["out"], draw.at(_OUT))
        if self.experts is None:
            d = yield from linear["fc2"].rows_backward(p, d, c["fc2"], g, left, part)
            d = layers.gelu_backward(a, d, c["gelu"])
            d = yield from linear["fc1"].columns_backward(p, d, c["fc1"], g, left, part)
        else:
            # Gradients of experts' weights are made at once, and told with the others.
            d = yield from self.experts.backward(p, d, c["experts"], norms)
        d, norms["ln2.weight"], norms["ln2.bias"] = layers.layer_norm_backward(a, d, c["norm2"], p["ln2.weight"])
        middle = a.rounded(flat + d)
        d = layers.masked(a, middle, c["projected"], draw.at(_PROJECTED))
        d = yield from linear["proj"].rows_backward(p, d, c["proj"], g, left, part)
        mixed = self._split(a.load(c["proj"]), len(dy))
        # It needs nothing of attention, whose last exchange may still be under way when it has come.
        begun = "" if part == "input" else (yield from linear["qkv"].gather_again(c["qkv"]))
        parts = yield from self._attend_backward(self._split(d, len(dy)), c["core"], mixed, draw.at(_SCORES))
        d = np.concatenate([self._joined(own) for own in parts], axis=1)
        d = yield from linear["qkv"].columns_backward(p, d, c["qkv"], g, left, part, begun)
        d, norms["ln1.weight"], norms["ln1.bias"] = layers.layer_norm_backward(a, d, c["norm1"], p["ln1.weight"])
        return a.rounded(middle + d).reshape(shape)

    def again(self, p: Mapping[str, Array], x: Array, kept: Cache, draw: Draw, c: Cache) -> Pass[Array]:
        """Run forward again; arrays that were kept stay as they are."""
        out = yield from self.forward(p, x, draw, c)
        core = c["core"] | kept.get("core", {})
        c |= {name: part for name, part in kept.items() if name != "x"} | {"core": core}
        return out

    def _linears(self, batch: int) -> Mapping[str, CutLinear]:
        """The layer's four matrices, by their names within it."""
        names = {"qkv": "qkv", "proj": "proj", "fc1": "up", "fc2": "down"}
        return {
            own: CutLinear(self.arithmetic, self.share, name, f"{own}.weight", f"{own}.bias", batch)
            for own, name in names.items()
        }

    def _attend(self, q: Array, k: Array, v: Array, draw: Draw) -> Pass[tuple[Array, Cache]]:
        if self.share.context > 1:
            return (yield from ContextAttention(self.arithmetic, self.share).forward(q, k, v))
        return _CORES[self.attention].forward(self.arithmetic, q, k, v, draw)

    def _attend_backward(self, dy: Array, kept: Cache, out: Array, draw: Draw) -> Pass[tuple[Array, Array, Array]]:
        if self.share.context > 1:
            return (yield from ContextAttention(self.arithmetic, self.share).backward(dy, kept, out))
        return _CORES[self.attention].backward(self.arithmetic, dy, kept, out, draw)

    def _split(self, x: Array, batch: int) -> Array:
        """(tokens, own width) to (batch, own heads, tokens of a sequence, head_dim)."""
        return x.reshape(batch, len(x) // batch, self.heads // self.share.tensor, -1).transpose(0, 2, 1, 3)

    def _joined(self, x: Array) -> Array:
        """(batch, heads, seq_len, head_dim) to (tokens, width)."""
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(len(x) * x.shape[2], -1)


def entry(cache: Cache) -> Array:
    """A layer's input, from what is kept of its cache."""
    x: Array = cache["x"] if "x" in cache else cache["norm1"][0]
    return x


def trimmed(cache: Cache, policy: str) -> Cache:
    """What a policy of activation checkpointing keeps of a layer.

    Parameters
    ----------
    cache : Cache
    policy : {"full", "attention", "selective_op"}
        "full" keeps the layer's input. "attention" keeps all but the arrays that are as large as the scores.
        "selective_op" keeps the layer's input, attention's output, and the results of every second of its four matmuls:
        queries, keys and values (one matmul), and GELU's input.

    Raises
    ------
    ValueError
        The policy is none of these.
    """
    x = {"x": cache["norm1"][0]}
    core = {name: part for name, part in cache["core"].items() if name not in attention.SCORES}
    if policy == "full":
        return x
    if policy == "attention":
        return cache | {"core": core}
    if policy == "selective_op":
        return x | {"core": core, "proj": cache["proj"], "gelu": cache["gelu"]}
    raise ValueError(f"checkpointing: got {policy!r}; one of full, attention, selective_op")
