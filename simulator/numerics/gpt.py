"""Forward and backward functions of a decoder-only GPT, unit by unit: embedding, layers, head.

Rule: a unit's forward takes the output of the unit before, and returns its own output and its cache; backward takes the
gradient of the output, and returns that of the input and those of parameters by name. The caller decides when
parameters are gathered or freed, and what is computed again.

Pre-LN blocks; queries, keys and values are one matmul with bias (heads are contiguous slices); GELU in its tanh form;
learned positions; a head without bias, with a table of its own or the embedding's. Parameters are named as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from simulator.basics.arrays import Array
from simulator.numerics import layers
from simulator.numerics.arithmetic import Arithmetic
from simulator.numerics.block import Block, Cache
from simulator.numerics.dropout import NO_DROPOUT, Draw

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
    attention : {"standard", "flash"}
    tied : bool
        Whether the head uses the embedding's table of tokens, which then gets gradients from both units.
    dropout : float
        Probability of dropout, on embeddings, on attention's weights and on what each block adds.
    """

    vocabulary: int
    width: int
    heads: int
    positions: int
    depth: int
    arithmetic: Arithmetic
    attention: Literal["standard", "flash"] = "standard"
    tied: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"heads: got {self.heads}; must divide the width {self.width}")

    @property
    def units(self) -> tuple[str, ...]:
        """Names of the units, in the order of the forward pass."""
        return ("embedding", *(f"layer {i}" for i in range(self.depth)), "head")

    def shapes(self, unit: str) -> dict[str, tuple[int, ...]]:
        """Shapes of a unit's parameters by name, in the order in which PyTorch registers them."""
        d = self.width
        if unit == "embedding":
            return {"tok.weight": (self.vocabulary, d), "pos.weight": (self.positions, d)}
        if unit == "head":
            norm: dict[str, tuple[int, ...]] = {"lnf.weight": (d,), "lnf.bias": (d,)}
            return norm if self.tied else norm | {"head.weight": (self.vocabulary, d)}
        shapes: dict[str, tuple[int, ...]] = {"ln1.weight": (d,), "ln1.bias": (d,)}
        shapes |= {"qkv.weight": (3 * d, d), "qkv.bias": (3 * d,), "proj.weight": (d, d), "proj.bias": (d,)}
        shapes |= {"ln2.weight": (d,), "ln2.bias": (d,), "fc1.weight": (4 * d, d), "fc1.bias": (4 * d,)}
        shapes |= {"fc2.weight": (d, 4 * d), "fc2.bias": (d,)}
        return {f"blocks.{unit.removeprefix('layer ')}.{name}": shape for name, shape in shapes.items()}

    def home(self, name: str) -> str:
        """The unit that owns a parameter; another unit may compute with it too."""
        return next(unit for unit in self.units if name in self.shapes(unit))

    def used(self, unit: str, p: Mapping[str, Parameters]) -> Parameters:
        """The parameters that a unit computes with: its own, and for a tied head the table of tokens."""
        if unit == "head" and self.tied:
            return {**p[unit], "tok.weight": p["embedding"]["tok.weight"]}
        return p[unit]

    def forward(self, unit: str, p: Parameters, x: Array, draw: Draw = NO_DROPOUT) -> tuple[Array, Any]:
        """Run a unit.

        Parameters
        ----------
        unit : str
        p : mapping of name to array
            The parameters that it computes with, in the stored dtype.
        x : array
            Token numbers, shape (batch, seq_len), for the embedding; else (batch, seq_len, width).
        draw : Draw, optional

        Returns
        -------
        tuple
            (batch, seq_len, width), or logits (batch, seq_len, vocabulary) from the head; and the cache.
        """
        if unit == "embedding":
            return self._embed(p, x, draw)
        if unit == "head":
            return self._head(p, x)
        return self._block.forward(_inside(unit, p), x, draw)

    def again(self, unit: str, p: Parameters, x: Array, kept: Cache, draw: Draw = NO_DROPOUT) -> tuple[Array, Cache]:
        """Run a layer forward again; arrays of its cache that were kept stay as they are."""
        return self._block.again(_inside(unit, p), x, kept, draw)

    def backward(
        self, unit: str, p: Parameters, cache: Any, dy: Array, draw: Draw = NO_DROPOUT
    ) -> tuple[Array | None, Gradients]:
        """Gradients of a unit's input (None for the embedding) and, in the stored dtype, of the parameters it used."""
        dx: Array | None = None
        if unit == "embedding":
            gradients = self._embed_backward(cache, dy, draw)
        elif unit == "head":
            dx, gradients = self._head_backward(p, cache, dy)
        else:
            dx, inner = self._block.backward(_inside(unit, p), cache, dy, draw)
            gradients = {f"blocks.{unit.removeprefix('layer ')}.{name}": g for name, g in inner.items()}
        return dx, {name: self.arithmetic.store(g) for name, g in gradients.items()}

    @property
    def _block(self) -> Block:
        return Block(self.heads, self.arithmetic, self.attention)

    def gradients(self, p: Mapping[str, Parameters], rows: Array) -> tuple[float, Gradients]:
        """Loss of some sequences, and gradients of all parameters: all units forward and backward, on one rank.

        Parameters
        ----------
        p : mapping of unit to parameters
        rows : int array, shape (batch, seq_len + 1)
        """
        x: Any = rows[:, :-1]
        targets, caches = rows[:, 1:].ravel(), {}
        for unit in self.units:
            x, caches[unit] = self.forward(unit, self.used(unit, p), x)
        loss, kept = layers.cross_entropy(x.reshape(-1, self.vocabulary), targets)
        d: Any = layers.cross_entropy_backward(kept, targets).reshape(x.shape)
        gradients: Gradients = {}
        for unit in reversed(self.units):
            d, own = self.backward(unit, self.used(unit, p), caches[unit], d)
            for name, gradient in own.items():
                gradients[name] = gradients[name] + gradient if name in gradients else gradient
        return loss, gradients

    def _embed(self, p: Parameters, tokens: Array, draw: Draw) -> tuple[Array, Any]:
        a = self.arithmetic
        x = a.rounded(a.load(p["tok.weight"])[tokens] + a.load(p["pos.weight"])[: tokens.shape[1]])
        out, mask = layers.dropout(a, x, draw)
        return out, (tokens, mask)

    def _embed_backward(self, cache: Any, dy: Array, draw: Draw) -> Gradients:
        tokens, mask = cache
        dy = layers.dropout_backward(self.arithmetic, dy, mask, draw)
        tok = np.zeros((self.vocabulary, self.width), dy.dtype)
        np.add.at(tok, tokens.ravel(), dy.reshape(-1, self.width))
        pos = np.zeros((self.positions, self.width), dy.dtype)
        pos[: dy.shape[1]] = dy.sum(axis=0)
        return {"tok.weight": self.arithmetic.rounded(tok), "pos.weight": self.arithmetic.rounded(pos)}

    def _head(self, p: Parameters, x: Array) -> tuple[Array, Any]:
        flat = x.reshape(-1, self.width)
        normed, norm = layers.layer_norm(self.arithmetic, flat, p["lnf.weight"], p["lnf.bias"])
        logits, kept = layers.linear(self.arithmetic, normed, p[self._table], None)
        return logits.reshape(*x.shape[:2], -1), (norm, kept)

    def _head_backward(self, p: Parameters, cache: Any, dy: Array) -> tuple[Array, Gradients]:
        a, (norm, kept) = self.arithmetic, cache
        flat = dy.reshape(-1, self.vocabulary)
        dx, weight, _ = layers.linear_backward(a, flat, kept, p[self._table])
        dx, scale, shift = layers.layer_norm_backward(a, dx, norm, p["lnf.weight"])
        shape = (*dy.shape[:2], self.width)
        return dx.reshape(shape), {"lnf.weight": scale, "lnf.bias": shift, self._table: weight}

    @property
    def _table(self) -> str:
        """Name of the table that the head multiplies by."""
        return "tok.weight" if self.tied else "head.weight"


def _inside(unit: str, p: Parameters) -> dict[str, Array]:
    """A layer's parameters by their names within it."""
    prefix = f"blocks.{unit.removeprefix('layer ')}."
    return {name.removeprefix(prefix): value for name, value in p.items()}
