"""A decoder-only GPT, unit by unit: embedding, layers, head, each a forward and a backward function.

Rule: a unit's forward takes what the one before gave and returns what the next needs and its cache; backward goes the
other way and returns gradients by parameter name. Who gathers, frees or recomputes is somebody else's business.

Pre-LN blocks, fused and biased queries, keys and values (heads are contiguous slices), GELU in its tanh form, learned
positions, a head without bias that is not tied to the embedding. Parameters are named as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from simulator.numerics import layers
from simulator.numerics.arithmetic import Arithmetic, Array
from simulator.numerics.attention import attention, attention_backward

Parameters = Mapping[str, Array]
Gradients = dict[str, Array]


@dataclass(frozen=True, slots=True)
class Gpt:
    """A model's sizes and its arithmetic.

    Attributes
    ----------
    vocabulary, width, heads, positions, depth : int
        The width of a head is width / heads; the MLP is four times as wide as the model.
    arithmetic : Arithmetic
    """

    vocabulary: int
    width: int
    heads: int
    positions: int
    depth: int
    arithmetic: Arithmetic

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"heads: got {self.heads}; must divide the width {self.width}")

    @property
    def units(self) -> tuple[str, ...]:
        """Names in the order of the forward pass."""
        return ("embedding", *(f"layer {i}" for i in range(self.depth)), "head")

    def shapes(self, unit: str) -> dict[str, tuple[int, ...]]:
        """Shapes of a unit's parameters by name, in the order in which PyTorch registers them."""
        d = self.width
        if unit == "embedding":
            return {"tok.weight": (self.vocabulary, d), "pos.weight": (self.positions, d)}
        if unit == "head":
            return {"lnf.weight": (d,), "lnf.bias": (d,), "head.weight": (self.vocabulary, d)}
        shapes: dict[str, tuple[int, ...]] = {"ln1.weight": (d,), "ln1.bias": (d,)}
        shapes |= {"qkv.weight": (3 * d, d), "qkv.bias": (3 * d,), "proj.weight": (d, d), "proj.bias": (d,)}
        shapes |= {"ln2.weight": (d,), "ln2.bias": (d,), "fc1.weight": (4 * d, d), "fc1.bias": (4 * d,)}
        shapes |= {"fc2.weight": (d, 4 * d), "fc2.bias": (d,)}
        return {f"blocks.{unit.removeprefix('layer ')}.{name}": shape for name, shape in shapes.items()}

    def forward(self, unit: str, p: Parameters, x: Array) -> tuple[Array, Any]:
        """Run a unit.

        Parameters
        ----------
        unit : str
        p : mapping of name to array
            Its parameters as they are stored.
        x : array
            Token numbers, shape (batch, seq_len), for the embedding; else (batch, seq_len, width).

        Returns
        -------
        tuple
            (batch, seq_len, width), or logits (batch, seq_len, vocabulary) from the head; and the cache.
        """
        if unit == "embedding":
            return self._embed(p, x), x
        if unit == "head":
            return self._head(p, x)
        return self._layer(_inside(unit, p), x)

    def backward(self, unit: str, p: Parameters, cache: Any, dy: Array) -> tuple[Array | None, Gradients]:
        """Gradients of a unit's input (None for the embedding) and of its parameters, as they are stored."""
        if unit == "embedding":
            dx, found = None, self._embed_backward(cache, dy)
        elif unit == "head":
            dx, found = self._head_backward(p, cache, dy)
        else:
            dx, inner = self._layer_backward(_inside(unit, p), cache, dy)
            found = {f"blocks.{unit.removeprefix('layer ')}.{name}": g for name, g in inner.items()}
        return dx, {name: self.arithmetic.store(g) for name, g in found.items()}

    def gradients(self, p: Mapping[str, Parameters], rows: Array) -> tuple[float, Gradients]:
        """Loss of some sequences, and gradients of all parameters: every unit there and back, on one rank alone.

        Parameters
        ----------
        p : mapping of unit to parameters
        rows : int array, shape (batch, seq_len + 1)
        """
        x: Any = rows[:, :-1]
        targets, caches = rows[:, 1:].ravel(), {}
        for unit in self.units:
            x, caches[unit] = self.forward(unit, p[unit], x)
        loss, kept = layers.cross_entropy(x.reshape(-1, self.vocabulary), targets)
        d: Any = layers.cross_entropy_backward(kept, targets).reshape(x.shape)
        found: Gradients = {}
        for unit in reversed(self.units):
            d, own = self.backward(unit, p[unit], caches[unit], d)
            found |= own
        return loss, found

    def _embed(self, p: Parameters, tokens: Array) -> Array:
        a = self.arithmetic
        return a.rounded(a.load(p["tok.weight"])[tokens] + a.load(p["pos.weight"])[: tokens.shape[1]])

    def _embed_backward(self, tokens: Array, dy: Array) -> Gradients:
        tok = np.zeros((self.vocabulary, self.width), dy.dtype)
        np.add.at(tok, tokens.ravel(), dy.reshape(-1, self.width))
        pos = np.zeros((self.positions, self.width), dy.dtype)
        pos[: dy.shape[1]] = dy.sum(axis=0)
        return {"tok.weight": self.arithmetic.rounded(tok), "pos.weight": self.arithmetic.rounded(pos)}

    def _head(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        flat = x.reshape(-1, self.width)
        normed, norm = layers.layer_norm(self.arithmetic, flat, p["lnf.weight"], p["lnf.bias"])
        logits, kept = layers.linear(self.arithmetic, normed, p["head.weight"], None)
        return logits.reshape(*x.shape[:2], -1), (norm, kept)

    def _head_backward(self, p: Parameters, cache: Any, dy: Array) -> tuple[Array, Gradients]:
        a, (norm, kept) = self.arithmetic, cache
        flat = dy.reshape(-1, self.vocabulary)
        dx, weight, _ = layers.linear_backward(a, flat, kept, p["head.weight"])
        dx, scale, shift = layers.layer_norm_backward(a, dx, norm, p["lnf.weight"])
        shape = (*dy.shape[:2], self.width)
        return dx.reshape(shape), {"lnf.weight": scale, "lnf.bias": shift, "head.weight": weight}

    def _layer(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        a, shape = self.arithmetic, x.shape
        flat = x.reshape(-1, self.width)
        normed, norm1 = layers.layer_norm(a, flat, p["ln1.weight"], p["ln1.bias"])
        qkv, qkv_in = layers.linear(a, normed, p["qkv.weight"], p["qkv.bias"])
        mixed, attended = attention(a, *(self._split(part, shape) for part in np.split(qkv, 3, axis=1)))
        projected, proj_in = layers.linear(a, self._joined(mixed), p["proj.weight"], p["proj.bias"])
        middle = a.rounded(flat + projected)
        normed, norm2 = layers.layer_norm(a, middle, p["ln2.weight"], p["ln2.bias"])
        wide, fc1_in = layers.linear(a, normed, p["fc1.weight"], p["fc1.bias"])
        bent, gelu_in = layers.gelu(a, wide)
        out, fc2_in = layers.linear(a, bent, p["fc2.weight"], p["fc2.bias"])
        cache = (norm1, qkv_in, attended, proj_in, norm2, fc1_in, gelu_in, fc2_in)
        return a.rounded(middle + out).reshape(shape), cache

    def _layer_backward(self, p: Parameters, cache: Any, dy: Array) -> tuple[Array, Gradients]:
        a, shape = self.arithmetic, dy.shape
        norm1, qkv_in, attended, proj_in, norm2, fc1_in, gelu_in, fc2_in = cache
        g: Gradients = {}
        flat = dy.reshape(-1, self.width)
        d, g["fc2.weight"], g["fc2.bias"] = layers.linear_backward(a, flat, fc2_in, p["fc2.weight"])
        d = layers.gelu_backward(a, d, gelu_in)
        d, g["fc1.weight"], g["fc1.bias"] = layers.linear_backward(a, d, fc1_in, p["fc1.weight"])
        d, g["ln2.weight"], g["ln2.bias"] = layers.layer_norm_backward(a, d, norm2, p["ln2.weight"])
        middle = a.rounded(flat + d)
        d, g["proj.weight"], g["proj.bias"] = layers.linear_backward(a, middle, proj_in, p["proj.weight"])
        parts = attention_backward(a, self._split(d, shape), attended)
        d = np.concatenate([self._joined(part) for part in parts], axis=1)
        d, g["qkv.weight"], g["qkv.bias"] = layers.linear_backward(a, d, qkv_in, p["qkv.weight"])
        d, g["ln1.weight"], g["ln1.bias"] = layers.layer_norm_backward(a, d, norm1, p["ln1.weight"])
        return a.rounded(middle + d).reshape(shape), g

    def _split(self, x: Array, shape: tuple[int, ...]) -> Array:
        """(tokens, width) to (batch, heads, seq_len, head_dim)."""
        return x.reshape(shape[0], shape[1], self.heads, -1).transpose(0, 2, 1, 3)

    def _joined(self, x: Array) -> Array:
        """And back."""
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3)).reshape(-1, self.width)


def _inside(unit: str, p: Parameters) -> dict[str, Array]:
    """A layer's parameters by their names within it."""
    prefix = f"blocks.{unit.removeprefix('layer ')}."
    return {name.removeprefix(prefix): value for name, value in p.items()}
