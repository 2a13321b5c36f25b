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
from simulator.numerics.dropout import Draw

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
    arithmetic : Arithmetic
    attention : {"standard", "flash"}
    """

    heads: int
    arithmetic: Arithmetic
    attention: str = "standard"

    def forward(self, p: Mapping[str, Array], x: Array, draw: Draw) -> tuple[Array, Cache]:
        """Run the layer; return its output, and the cache that the backward pass needs.

        Parameters
        ----------
        p : mapping of name to array
            Parameters by their names within the layer.
        x : float array, shape (batch, seq_len, width)
        draw : Draw
        """
        a, shape, c = self.arithmetic, x.shape, Cache()
        flat = x.reshape(-1, shape[-1])
        normed, c["norm1"] = layers.layer_norm(a, flat, p["ln1.weight"], p["ln1.bias"])
        qkv, c["qkv"] = layers.linear(a, normed, p["qkv.weight"], p["qkv.bias"])
        q, k, v = (self._split(part, shape) for part in np.split(qkv, 3, axis=1))
        mixed, c["core"] = _CORES[self.attention].forward(a, q, k, v, draw.at(_SCORES))
        projected, c["proj"] = layers.linear(a, self._joined(mixed), p["proj.weight"], p["proj.bias"])
        projected, c["projected"] = layers.dropout(a, projected, draw.at(_PROJECTED))
        middle = a.rounded(flat + projected)
        normed, c["norm2"] = layers.layer_norm(a, middle, p["ln2.weight"], p["ln2.bias"])
        wide, c["fc1"] = layers.linear(a, normed, p["fc1.weight"], p["fc1.bias"])
        bent, c["gelu"] = layers.gelu(a, wide)
        out, c["fc2"] = layers.linear(a, bent, p["fc2.weight"], p["fc2.bias"])
        out, c["out"] = layers.dropout(a, out, draw.at(_OUT))
        return a.rounded(middle + out).reshape(shape), c

    def backward(self, p: Mapping[str, Array], c: Cache, dy: Array, draw: Draw) -> tuple[Array, dict[str, Array]]:
        """Gradients of the input, and of the parameters by their names within the layer."""
        a, shape, g = self.arithmetic, dy.shape, dict[str, Array]()
        flat = dy.reshape(-1, shape[-1])
        d = layers.dropout_backward(a, flat, c["out"], draw.at(_OUT))
        d, g["fc2.weight"], g["fc2.bias"] = layers.linear_backward(a, d, c["fc2"], p["fc2.weight"])
        d = layers.gelu_backward(a, d, c["gelu"])
        d, g["fc1.weight"], g["fc1.bias"] = layers.linear_backward(a, d, c["fc1"], p["fc1.weight"])
        d, g["ln2.weight"], g["ln2.bias"] = layers.layer_norm_backward(a, d, c["norm2"], p["ln2.weight"])
        middle = a.rounded(flat + d)
        d = layers.dropout_backward(a, middle, c["projected"], draw.at(_PROJECTED))
        d, g["proj.weight"], g["proj.bias"] = layers.linear_backward(a, d, c["proj"], p["proj.weight"])
        mixed = self._split(a.load(c["proj"]), shape)
        parts = _CORES[self.attention].backward(a, self._split(d, shape), c["core"], mixed, draw.at(_SCORES))
        d = np.concatenate([self._joined(part) for part in parts], axis=1)
        d, g["qkv.weight"], g["qkv.bias"] = layers.linear_backward(a, d, c["qkv"], p["qkv.weight"])
        d, g["ln1.weight"], g["ln1.bias"] = layers.layer_norm_backward(a, d, c["norm1"], p["ln1.weight"])
        return a.rounded(middle + d).reshape(shape), g

    def again(self, p: Mapping[str, Array], x: Array, kept: Cache, draw: Draw) -> tuple[Array, Cache]:
        """Run forward again; arrays that were kept stay as they are."""
        out, cache = self.forward(p, x, draw)
        core = cache["core"] | kept.get("core", {})
        return out, cache | {name: part for name, part in kept.items() if name != "x"} | {"core": core}

    def _split(self, x: Array, shape: tuple[int, ...]) -> Array:
        """(tokens, width) to (batch, heads, seq_len, head_dim)."""
        return x.reshape(shape[0], shape[1], self.heads, -1).transpose(0, 2, 1, 3)

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
